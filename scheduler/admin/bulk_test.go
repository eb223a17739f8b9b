package admin

import (
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
		match := must(r.match(t.Context(), Filter{Job: "j"}, most, func(*ledger.Record) bool { return true }, func(*pager) {}))
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
