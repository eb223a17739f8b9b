package admin

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/admin/fakes"
)

// past returns a fleet with some kept ends: of bill:1001, one hold after the other from
// 10:00 to 11:00, each with a wait for it.
func past() *fakes.Fake {
	f := fakes.Fleet()
	f.KeptSince = fakes.Noon.Add(-48 * time.Hour)
	for i := range 6 {
		at := fakes.Noon.Add(-2 * time.Hour).Add(time.Duration(i) * 10 * time.Minute)
		id := locks.HoldID(fmt.Sprintf("web-9.00000001.%d", i+1))
		run := fmt.Sprintf("settle-bills#%d", i+1)
		f.Ends = slices.Insert(f.Ends, 0,
			space.Entry{Position: fmt.Sprint(at.UnixMilli(), "1"), ID: id, Session: "web-9.00000001", Token: locks.Token(1795000000000001 + i),
				Since: at, To: at.Add(10 * time.Minute), Ended: space.EndReleased, Run: run, Names: []string{"bill:1001", "run:" + run}},
			space.Entry{Position: fmt.Sprint(at.UnixMilli(), "0"), Wait: true, ID: locks.HoldID("+settle-bills#" + fmt.Sprint(i+2)),
				Since: at.Add(time.Minute), To: at.Add(10 * time.Minute), Ended: space.EndGranted, Run: "settle-bills#" + fmt.Sprint(i+2), Names: []string{"bill:1001"},
				Blocker: &space.EntryBlocker{Name: "bill:1001", ID: id, Run: run}})
	}
	return f
}

func described(entries []Entry) (texts []string) {
	for _, e := range entries {
		text := fmt.Sprint(e.Kind, " ", e.RunID, " ", e.From.Format("15:04"))
		if !e.To.IsZero() {
			text += e.To.Format("-15:04 ") + string(e.Ended)
		}
		texts = append(texts, text)
	}
	return texts
}

func TestHistoryShowsWhatHeldALockAndWaitedForItAtATime(t *testing.T) {
	t.Parallel()
	at := fakes.Noon.Add(-95 * time.Minute) // 10:25
	h, err := readerOf(past()).History(t.Context(), HoldFilter{Lock: "bill:1001", Since: at, Until: at}, "")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"hold settle-bills#3 10:20-10:30 released", "wait settle-bills#4 10:21-10:30 granted"}
	if got := described(h.Entries); !slices.Equal(got, want) || h.Next != "" {
		t.Errorf("got %q, want %q", got, want)
	}
	if e := h.Entries[0]; e.Job != "settle-bills" || e.Worker != "web-9.00000001" || e.Host != "web-9" || e.Token.String() != "1795000000000003" {
		t.Errorf("got %+v", e)
	}
	if by := h.Entries[1].BlockedBy; by == nil || by.RunID != "settle-bills#3" || by.Worker != "web-9.00000001" || by.Lock != "bill:1001" {
		t.Errorf("the wait was blocked by %+v", by)
	}
}

func TestHistoryFiltersItsEntries(t *testing.T) {
	t.Parallel()
	r := readerOf(past())
	for name, test := range map[string]struct {
		filter HoldFilter
		want   int
	}{
		"all":         {HoldFilter{}, 7 + 12},
		"present":     {HoldFilter{Since: fakes.Noon.Add(-time.Minute)}, 7},
		"holds":       {HoldFilter{Kind: KindHold}, 4 + 6},
		"waits":       {HoldFilter{Kind: KindWait}, 3 + 6},
		"of a worker": {HoldFilter{Worker: "web-9.00000001"}, 6},
		"of a job":    {HoldFilter{Job: "nightly-backup"}, 1},
		"of no lock":  {HoldFilter{Lock: "nobody's"}, 0},
		"of a run":    {HoldFilter{Lock: "run:settle-bills#2"}, 1},
		"earlier":     {HoldFilter{Until: fakes.Noon.Add(-110 * time.Minute)}, 3},
	} {
		h, err := r.History(t.Context(), test.filter, "")
		if err != nil || len(h.Entries) != test.want {
			t.Errorf("%s: got %q, %v, want %d entries", name, described(h.Entries), err, test.want)
		}
	}
}

func TestPagesOfAHistoryAreTheWholeHistory(t *testing.T) {
	t.Parallel()
	r := readerOf(past())
	all, err := r.History(t.Context(), HoldFilter{}, "")
	if err != nil {
		t.Fatal(err)
	}
	for limit := 1; limit < 21; limit++ {
		var entries []Entry
		cursor := ""
		for range 100 {
			h, err := r.History(t.Context(), HoldFilter{Limit: limit}, cursor)
			if err != nil {
				t.Fatal(err)
			}
			if len(h.Entries) > limit {
				t.Fatalf("a page of %d has %d entries", limit, len(h.Entries))
			}
			entries = append(entries, h.Entries...)
			if cursor = h.Next; cursor == "" {
				break
			}
		}
		if got, want := described(entries), described(all.Entries); !slices.Equal(got, want) {
			t.Errorf("in pages of %d: got %q, want %q", limit, got, want)
		}
	}
}

func TestAHoldThatEndsDuringTheReadIsListedOnce(t *testing.T) {
	t.Parallel()
	f := past()
	hold := f.Listing.Holds[0]
	f.Ends = slices.Insert(f.Ends, 0, space.Entry{Position: "90000000000000", ID: hold.ID, Session: hold.Session, Token: hold.Token, Since: hold.Since,
		To: fakes.Noon, Ended: space.EndReleased, Names: hold.Names})
	h, err := readerOf(f).History(t.Context(), HoldFilter{Lock: "bill:1002"}, "")
	if err != nil || len(h.Entries) != 1 || h.Entries[0].Ended != "released" {
		t.Errorf("got %q, %v", described(h.Entries), err)
	}
}

func TestWithoutAHistoryOnlyWhatHasNotEndedIsListed(t *testing.T) {
	t.Parallel()
	f := past()
	f.KeptSince = time.Time{}
	h, err := readerOf(f).History(t.Context(), HoldFilter{}, "")
	if err != nil || len(h.Entries) != 7 || !h.KeptSince.IsZero() {
		t.Errorf("got %q, %v", described(h.Entries), err)
	}
}

func TestImpossibleQuestionsAboutAHistoryAreRefused(t *testing.T) {
	t.Parallel()
	r := readerOf(past())
	for name, filter := range map[string]HoldFilter{
		"limit": {Limit: -1}, "kind": {Kind: "lease"}, "window": {Since: fakes.Noon, Until: fakes.Noon.Add(-time.Second)},
	} {
		if _, err := r.History(t.Context(), filter, ""); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for _, cursor := range []string{"x", "{}", `{"p":"yesterday"}`, `{"p":"1-x"}`} {
		if _, err := r.History(t.Context(), HoldFilter{}, cursor); !errors.Is(err, ErrCursor) {
			t.Errorf("cursor %s: got %v", cursor, err)
		}
	}
	if _, err := GroupEntries(nil, "host"); !errors.Is(err, ErrInvalid) {
		t.Errorf("group host: got %v", err)
	}
}

func TestEntriesAreGroupedByWorkerLockOrJob(t *testing.T) {
	t.Parallel()
	h, err := readerOf(past()).History(t.Context(), HoldFilter{Since: fakes.Noon.Add(-time.Minute), Kind: KindHold}, "")
	if err != nil {
		t.Fatal(err)
	}
	for by, want := range map[string][]string{
		"worker": {"shell.00000001 1", "web-1.x7k2m9qa 2", "web-2.p91qd3f7 1"},
		"job":    {" 1", "nightly-backup 1", "settle-bills 2"},
		"lock":   {"bill:1001 1", "bill:1002 1", "bill:1003 1", "job:nightly-backup 1", "run:settle-bills#alone 1"},
	} {
		groups, err := GroupEntries(h.Entries, by)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, g := range groups {
			got = append(got, fmt.Sprint(g.Group, " ", len(g.Entries)))
		}
		if !slices.Equal(got, want) {
			t.Errorf("by %s: got %q, want %q", by, got, want)
		}
	}
}
