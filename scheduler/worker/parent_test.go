package worker_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// TestWhatAHandlerAsksForIsMadeFromItsRun: a handler asks for a run with its context, and each run
// knows the other. A further attempt asks again, and adds nothing.
func TestWhatAHandlerAsksForIsMadeFromItsRun(t *testing.T) {
	f := newFleet(t)
	child := f.job("child", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	asked := make(chan jobs.RunID, 2)
	parent := f.job("parent", func(ctx context.Context, run *jobs.Run[struct{}]) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		enqueued, err := f.ledger.Enqueue(ctx, ledger.Request{Job: child, ID: "of-" + run.Job(), Named: true, Trigger: ledger.TriggerEnqueue})
		if err != nil {
			return err
		}
		if asked <- jobs.RunOf(ctx); run.Attempt() == 1 {
			return errors.New("the first attempt fails after it has asked")
		}
		if !enqueued.Exists {
			return errors.New("the second attempt made another run")
		}
		return nil
	}, func(j *jobs.Job) {
		j.Retry = jobs.Retry{Max: 1, Backoff: jobs.BackoffFixed, Initial: 10 * time.Millisecond}
	})
	f.start()
	run := f.enqueue(parent, "p")
	record := f.awaitState(run, ledger.StateSucceeded)
	if len(record.Attempts) != 2 {
		t.Errorf("%d attempts, want 2", len(record.Attempts))
	}
	for range 2 {
		if of := <-asked; of != run {
			t.Errorf("the context of the handler is of the run %q, want %s", of, run)
		}
	}
	made := f.awaitState("child#of-parent", ledger.StateSucceeded)
	if made.Parent != run {
		t.Errorf("the parent is %q, want %s", made.Parent, run)
	}
	children, err := f.ledger.Children(t.Context(), record)
	if err != nil || children.All != 1 || !slices.Equal(children.First, []jobs.RunID{made.ID}) {
		t.Errorf("it led to %+v, %v, want %s", children, err, made.ID)
	}
	if made.By != "" {
		t.Errorf("the child was decided by %q", made.By)
	}
}
