package worker_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// TestAHandlersOwnErrorsAreFailures returns errors that mean something else when they come from the
// worker or from another executor. For example, a handler that acquires locks with a client of its
// own may lose one of them.
func TestAHandlersOwnErrorsAreFailures(t *testing.T) {
	f := newFleet(t)
	tests := []struct {
		err      error
		attempts int
	}{
		{fmt.Errorf("report: %w", locks.ErrLost), 3},
		{locks.ErrExpired, 3},
		{errors.Join(errors.New("rolled back"), locks.ErrRevoked), 3},
		{jobs.Permanent(locks.ErrLost), 1},
		{jobs.ErrUnknownHandler, 3},
		{&jobs.UnknownKeysError{}, 3},
		{jobs.ErrAbandoned, 3},
	}
	job := make([]*jobs.Job, len(tests))
	for i, test := range tests {
		job[i] = f.job(fmt.Sprint("j", i), func(context.Context, *jobs.Run[struct{}]) error { return test.err },
			func(j *jobs.Job) { j.Retry.Max = 2 })
	}
	f.start(quiet)
	var runs []jobs.RunID
	for _, one := range job {
		runs = append(runs, f.enqueue(one, "x"))
	}
	limit := time.Now().Add(patience / 3)
	for i, test := range tests {
		var record *ledger.Record
		for record == nil || !record.State.Final() && time.Now().Before(limit) {
			var err error
			if record, _, err = f.ledger.Find(t.Context(), runs[i]); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Millisecond)
		}
		if record.State != ledger.StateFailed || record.Fails != test.attempts {
			t.Errorf("%v: the run is %s with %d failures in %d attempts, want it failed after %d", test.err, record.State, record.Fails,
				len(record.Attempts), test.attempts)
		}
	}
}

// TestACommandThatWasKilledForALeaseThatContinuedIsHandedBack: its guard saw no renewal in time,
// and the renewal was only late.
func TestACommandThatWasKilledForALeaseThatContinuedIsHandedBack(t *testing.T) {
	f := newFleet(t)
	job := f.job("j", func(context.Context, *jobs.Run[struct{}]) error { return nil }, func(j *jobs.Job) {
		j.Handler, j.Command, j.Retry.Max = "", []string{"true"}, 0
	})
	f.start(func(o *worker.Options) {
		o.Executors = map[string]jobs.Executor{"command": executor(func(_ context.Context, attempt *jobs.Attempt) error {
			if attempt.Number < 3 {
				return fmt.Errorf("%w (killed)", locks.ErrLost)
			}
			return nil
		})}
	})
	record := f.awaitState(f.enqueue(job, "x"), ledger.StateSucceeded)
	if record.Fails != 0 || len(record.Attempts) != 3 || record.Attempts[0].Outcome != ledger.AttemptHandedBack {
		t.Errorf("%+v, want two attempts handed back, and nothing counted", record)
	}
}
