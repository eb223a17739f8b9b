package admin

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"lockstep/jobs"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
)

func TestASearchForAnActEndsWithItsBound(t *testing.T) {
	t.Parallel()
	f := &fakes.Fake{Registered: []ledger.JobRecord{{Job: &jobs.Job{Name: "j"}}}}
	for i := range 12 {
		f.Open = append(f.Open, &ledger.Record{ID: jobs.RequestRunID("j", fmt.Sprintf("%02d", i)), Job: "j", State: ledger.StateWaiting, Created: fakes.Noon})
	}
	r := readerOf(f)
	for most, more := range map[int]bool{5: true, 13: false} {
		match := must(r.match(t.Context(), Filter{Job: "j"}, most, func(*ledger.Record) string { return "" }, func(*pager) {}))
		if want := min(most, 12); len(match.Runs) != want || match.More != more || match.States[ledger.StateWaiting] != want {
			t.Errorf("at most %d: %d runs, more: %t, want %d and %t", most, len(match.Runs), match.More, want, more)
		}
	}
}

func TestAnActFindsOnlyRunsThatItFits(t *testing.T) {
	t.Parallel()
	r := readerOf(fakes.Fleet())
	ctx := t.Context()
	for name, test := range map[string]struct {
		find   func(Filter) (*Match, error)
		filter Filter
		want   string
	}{
		"cancel": {func(f Filter) (*Match, error) { return r.ToCancel(ctx, f) }, Filter{Job: "nightly-backup"}, "[nightly-backup@2026-11-21T01:00:00Z]"},
		"retry":  {func(f Filter) (*Match, error) { return r.ToRetry(ctx, f) }, Filter{Job: "nightly-backup"}, "[nightly-backup@2026-11-18T01:00:00Z]"},
		"ticks":  {func(f Filter) (*Match, error) { return r.ToRetry(ctx, f) }, Filter{State: "missed"}, "[nightly-backup@2026-11-17T01:00:00Z]"},
		"named":  {func(f Filter) (*Match, error) { return r.ToCancel(ctx, f) }, Filter{Query: "settle-bills#third"}, "[settle-bills#third]"},
		"ended":  {func(f Filter) (*Match, error) { return r.ToCancel(ctx, f) }, Filter{Query: "nightly-backup@2026-11-18T01:00:00Z"}, "[]"},
	} {
		match, err := test.find(test.filter)
		if err != nil || fmt.Sprint(match.Runs) != test.want || match.More {
			t.Errorf("%s: got %+v, %v, want %s", name, match, err, test.want)
		}
	}
	for _, filter := range []Filter{{}, {Limit: 3}, {State: "failed"}, {State: "exploded"}} {
		if _, err := r.ToCancel(ctx, filter); !errors.Is(err, ErrInvalid) {
			t.Errorf("cancel %+v: %v, want it refused", filter, err)
		}
	}
	for _, filter := range []Filter{{}, {State: "succeeded"}, {State: "due"}} {
		if _, err := r.ToRetry(ctx, filter); !errors.Is(err, ErrInvalid) {
			t.Errorf("retry %+v: %v, want it refused", filter, err)
		}
	}
}

func TestSelectedRunsThatAnActDoesNotFitAreSkipped(t *testing.T) {
	t.Parallel()
	r := readerOf(fakes.Fleet())
	ids := []jobs.RunID{
		"settle-bills#second", "nightly-backup@2026-11-18T01:00:00Z", "nightly-backup@2026-11-20T01:00:00Z", "settle-bills#never", "x", "settle-bills#second",
	}
	for name, test := range map[string]struct {
		find          func(context.Context, []jobs.RunID) (*Match, error)
		runs, skipped string
	}{
		"cancel": {r.SelectToCancel, "[settle-bills#second]", "[{x it is not the ID of a run} {nightly-backup@2026-11-18T01:00:00Z it has ended (failed)} " +
			"{nightly-backup@2026-11-20T01:00:00Z it has ended (succeeded)} {settle-bills#never it is not known (any more)}]"},
		"retry": {r.SelectToRetry, "[nightly-backup@2026-11-18T01:00:00Z]", "[{x it is not the ID of a run} {settle-bills#second it has not ended: it is waiting} " +
			"{nightly-backup@2026-11-20T01:00:00Z it has succeeded} {settle-bills#never it is not known (any more)}]"},
	} {
		match := must(test.find(t.Context(), ids))
		if fmt.Sprint(match.Runs) != test.runs || fmt.Sprint(match.Skipped) != test.skipped {
			t.Errorf("%s: got %v, skipped %v, want %s, %s", name, match.Runs, match.Skipped, test.runs, test.skipped)
		}
	}
}

// A page that described an act compares the mark: a run that has another state matters only if the
// act does something else to it then.
func TestAMarkChangesWithWhatAnActWouldDo(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	r := readerOf(f)
	mark := ""
	for _, step := range []struct {
		name   string
		change func()
		same   bool // as after the step before
	}{
		{"at first", func() {}, false},
		{"in another order", func() { f.Open[2], f.Open[3] = f.Open[3], f.Open[2] }, true},
		{"the waiting run is due", func() { f.Open[3].State = ledger.StateDue }, true},
		{"it runs", func() { f.Open[3].State = ledger.StateRunning }, false},
		{"it has ended", func() { f.Open = f.Open[:3] }, false},
	} {
		before := mark
		step.change()
		mark = must(r.ToCancel(t.Context(), Filter{Queue: "critical"})).Mark()
		if (mark == before) != step.same {
			t.Errorf("%s: the mark was %s, and is %s", step.name, before, mark)
		}
	}
}
