package ledger_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// makes asks for a run from within another one, with or without an entry for the audit.
func (f *fixture) makes(parent jobs.RunID, id string, act *ledger.Act) jobs.RunID {
	f.Helper()
	enqueued, err := f.Enqueue(f.Context(), ledger.Request{Job: f.job, ID: id, Trigger: ledger.TriggerEnqueue, Parent: parent, Act: act})
	if err != nil {
		f.Fatal(err)
	}
	return enqueued.Run
}

func (f *fixture) wantChildren(of *ledger.Record, all int, first ...jobs.RunID) {
	f.Helper()
	got, err := f.Children(f.Context(), of)
	if err != nil {
		f.Fatal(err)
	}
	if got.All != all || !slices.Equal(got.First, first) {
		f.Errorf("%s has the children %+v, want %d, first %v", of.ID, got, all, first)
	}
}

func TestARunKnowsTheRunThatItWasMadeFrom(t *testing.T) {
	each(t, func(f *fixture) {
		client, parent := f.session("w"), f.requested("parent")
		a := f.makes(parent.Run, "a", nil)
		b := f.makes(parent.Run, "b", &ledger.Act{Who: "ops", What: "enqueue", On: "j"})
		if again := f.makes(parent.Run, "b", nil); again != b {
			f.Errorf("got %s, want %s", again, b)
		}
		record := f.find(parent.Run)
		f.wantChildren(record, 2, a, b)
		f.wantChildren(f.find(a), 0)
		child := f.find(a)
		if child.Parent != parent.Run || child.By != "" {
			f.Errorf("got the parent %q, decided by %q, want %s", child.Parent, child.By, parent.Run)
		}
		f.finish(f.claim(client, ledger.Due{Run: a, N: 1, Queue: f.job.Queue}, ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.finish(f.claim(client, parent, ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		if got := f.find(a).Parent; got != parent.Run {
			f.Errorf("when it has ended, its parent is %q", got)
		}
		f.wantChildren(f.find(parent.Run), 2, a, b)
		// of its own job, an ended run is known, too
		c := f.makes(parent.Run, "c", nil)
		if got := f.find(c).Parent; got != parent.Run {
			f.Errorf("a child of an ended run has the parent %q", got)
		}
	})
}

// The caller only claims to be a run: the environment of a command may be that of another
// namespace.
func TestAParentThatDoesNotExistIsNotRecorded(t *testing.T) {
	each(t, func(f *fixture) {
		a := f.makes("j#nothing", "a", nil)
		if got := f.find(a).Parent; got != "" {
			f.Errorf("got the parent %q, want none", got)
		}
		if n := f.rdb.Exists(f.Context(), f.key("children")).Val(); n > 0 {
			f.Error("the parent is on record")
		}
		for _, parent := range []jobs.RunID{"nothing", "J#x", "j#", "j@noon", "j#a b", "#x"} {
			if _, err := f.Enqueue(f.Context(), ledger.Request{Job: f.job, ID: "b", Trigger: ledger.TriggerEnqueue, Parent: parent}); err == nil {
				f.Errorf("the parent %q is accepted", parent)
			}
		}
	})
}

// TestTheRunOfAContextIsTheParent of a request, unless the request names another one, or none.
func TestTheRunOfAContextIsTheParent(t *testing.T) {
	each(t, func(f *fixture) {
		parent, other := f.requested("parent").Run, f.requested("other").Run
		ctx := jobs.InRun(f.Context(), parent)
		for id, test := range map[string]struct {
			ctx         context.Context
			names, want jobs.RunID
		}{
			"by default":    {ctx, "", parent},
			"another":       {ctx, other, other},
			"none":          {ctx, ledger.NoParent, ""},
			"no run":        {f.Context(), "", ""},
			"not this one":  {jobs.InRun(ctx, other), "", other},
			"not on record": {jobs.InRun(ctx, "j#gone"), "", ""},
		} {
			request := ledger.Request{Job: f.job, ID: strings.ReplaceAll(id, " ", "-"), Trigger: ledger.TriggerEnqueue, Parent: test.names}
			for range 2 { // a further attempt asks again
				enqueued, err := f.Enqueue(test.ctx, request)
				if err != nil {
					f.Fatal(err)
				}
				if got := f.find(enqueued.Run).Parent; got != test.want {
					f.Errorf("%s: got the parent %q, want %q", id, got, test.want)
				}
			}
		}
		f.wantChildren(f.find(parent), 1, "j#by-default")
	})
}

func TestTheChildrenOfARunAreBounded(t *testing.T) {
	each(t, func(f *fixture) {
		parent := f.requested("parent")
		var first []jobs.RunID
		for i := range 25 {
			if id := f.makes(parent.Run, fmt.Sprintf("%02d", i), nil); i < 20 {
				first = append(first, id)
			}
		}
		record := f.find(parent.Run)
		f.wantChildren(record, 25, first...)
		// A later run with the same id has none of them.
		later := *record
		later.Created = record.Created.Add(time.Millisecond)
		f.wantChildren(&later, 0)

		// The run that made its first one 10,000 runs ago is forgotten.
		if err := f.rdb.HSet(f.Context(), f.key("children"), "#", "10000").Err(); err != nil {
			f.Fatal(err)
		}
		next := f.requested("next")
		child := f.makes(next.Run, "child", nil)
		f.wantChildren(f.find(next.Run), 1, child)
		f.wantChildren(record, 0)
		if fields := f.rdb.HKeys(f.Context(), f.key("children")).Val(); len(fields) != 3 {
			f.Errorf("got the fields %q, want the count, the last run and its number", fields)
		}
	})
}

// A run without a parent has the record that it had before there were parents.
func TestARunWithoutAParentDoesNotGrow(t *testing.T) {
	each(t, func(f *fixture) {
		parent := f.requested("parent")
		plain, child := f.makes("", "plain", nil), f.makes(parent.Run, "child", nil)
		size := func(run jobs.RunID) int { return len(f.rdb.HGet(f.Context(), f.key("run"), string(run)).Val()) }
		if got, want := size(child), size(plain)+len(parent.Run); got != want {
			f.Errorf("the record of a child has %d bytes, want %d: those of another run, and the id of its parent", got, want)
		}
		if got := f.find(plain); got.Parent != "" || got.By != "" {
			f.Errorf("got %+v", got)
		}
	})
}

func TestAReplayUnderANewKeyKnowsItsTick(t *testing.T) {
	each(t, func(f *fixture) {
		client := f.session("w")
		tick := f.run()
		f.finish(f.claim(client, tick, ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		at, _ := tick.Run.Tick()
		replay := jobs.ReplayRunID("j", at, f.now())
		for range 2 { // the second finds it outstanding
			if _, err := f.Reopen(f.Context(), ledger.Reopening{Run: replay, Job: f.job, Any: true, Parent: tick.Run}); err != nil {
				f.Fatal(err)
			}
		}
		if got := f.find(replay).Parent; got != tick.Run {
			f.Errorf("got the parent %q, want %s", got, tick.Run)
		}
		record := f.find(tick.Run)
		f.wantChildren(record, 1, replay)
		if record.Parent != "" || record.By == "" {
			f.Errorf("the tick has the parent %q and was decided by %q", record.Parent, record.By)
		}
	})
}
