package jobs_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
)

func TestNames(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		rule  string
		check func(string) error
		good  []string
		bad   []string
	}{
		{"ValidName", jobs.ValidName,
			[]string{"a", "0", "nightly-backup", "a--b", strings.Repeat("a", 63)},
			[]string{"", "-a", "a-", "A", "a_b", "a.b", "a b", "ä", "a\n", strings.Repeat("a", 64)}},
		{"ValidHandlerName", jobs.ValidHandlerName,
			[]string{"a", "bills.settle", "Bills/settle_v2", "a-1", strings.Repeat("a", 100)},
			[]string{"", ".a", "a.", "a b", "ä", "a\x00b", strings.Repeat("a", 101)}},
		{"ValidRunName", jobs.ValidRunName,
			[]string{"1", "order-4711", "a/b#c@d:e{f}", "~!", strings.Repeat("x", 200)},
			[]string{"", "a b", `a"b`, "a'b", "a`b", `a\b`, "a\tb", "a\x7f", "ä", strings.Repeat("x", 201)}},
	} {
		for _, name := range test.good {
			if err := test.check(name); err != nil {
				t.Errorf("%s(%q) = %v, want nil", test.rule, name, err)
			}
		}
		for _, name := range test.bad {
			if err := test.check(name); err == nil {
				t.Errorf("%s(%q) = nil, want an error", test.rule, name)
			}
		}
	}
}

func TestNewRunNamesSortByTime(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1469918176385) // the example of the ULID specification: 01ARYZ6S41
	id := jobs.NewRunName(at)
	if len(id) != 26 || !strings.HasPrefix(id, "01ARYZ6S41") {
		t.Errorf("NewRunName = %q, want 26 characters that begin with 01ARYZ6S41", id)
	}
	var ids []string
	for i := range 100 {
		ids = append(ids, jobs.NewRunName(at.Add(time.Duration(i)*time.Millisecond)))
	}
	if !slices.IsSorted(ids) || len(slices.Compact(ids)) != len(ids) {
		t.Errorf("ids of later instants do not sort after earlier ones, or repeat: %q", ids)
	}
	if a, b := jobs.NewRunName(at), jobs.NewRunName(at); a == b {
		t.Errorf("the same id twice: %q", a)
	}
}

func TestOnlyTheIDOfATicksRunHasATick(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 1, 0, 0, 0, time.UTC)
	if got, ok := jobs.TickRunID("nightly", at).Tick(); !ok || !got.Equal(at) {
		t.Errorf("the id of a tick's run has the tick %v, %t, want %v", got, ok, at)
	}
	for _, id := range []jobs.RunID{"", "nightly", "nightly@", "nightly@x", "nightly@..2026-11-21T01:00:00Z",
		jobs.RequestRunID("nightly", "x"), jobs.RequestRunID("nightly", "x@2026-11-21T01:00:00Z"),
		jobs.RequestRunID("nightly", "@2026-11-21T01:00:00Z"), "nightly@2026-11-21T01:00:00Z#x"} {
		if got, ok := id.Tick(); ok {
			t.Errorf("%q has the tick %v, want none", id, got)
		}
	}
}

func TestTheIDOfAReplayHasItsTick(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 1, 0, 0, 0, time.UTC)
	first, second := jobs.ReplayRunID("nightly", at, at), jobs.ReplayRunID("nightly", at, at)
	if first == second {
		t.Errorf("two replays of one tick have the same id, and so the same idempotency key: %s", first)
	}
	if got, ok := first.Replays(); !ok || !got.Equal(at) {
		t.Errorf("%s replays %v, %t, want %v", first, got, ok, at)
	}
	if got, ok := first.Tick(); ok || first.Job() != "nightly" {
		t.Errorf("%s is a run of job %q with the tick %v, want no tick of its own", first, first.Job(), got)
	}
	if err := jobs.ValidRunName(strings.TrimPrefix(string(first), "nightly#")); err != nil {
		t.Error(err)
	}
	for _, id := range []jobs.RunID{"", jobs.TickRunID("nightly", at), "nightly#replay-", "nightly#replay-x-y", "nightly#x",
		"nightly#replay-2026-11-21T01:00:00Z", "nightly@#replay-2026-11-21T01:00:00Z-x"} {
		if got, ok := id.Replays(); ok {
			t.Errorf("%q replays %v, want none", id, got)
		}
	}
}
