package worker_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// TestAnAttemptThatHoldsItsLocksForTooLongHasFailed: it is stopped, counted and tried again.
func TestAnAttemptThatHoldsItsLocksForTooLongHasFailed(t *testing.T) {
	f := newFleet(t)
	var attempts atomic.Int32
	causes := make(chan error, 1)
	job := f.job("long", func(ctx context.Context, _ *jobs.Run[struct{}]) error {
		if attempts.Add(1) > 1 {
			return nil
		}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return context.Cause(ctx)
	}, func(job *jobs.Job) {
		job.Lock = jobs.Lock{Exclusive: []string{"bill"}, MaxHold: 300 * time.Millisecond}
	})
	f.start()
	id := f.enqueue(job, "x")
	if cause := <-causes; !errors.Is(cause, locks.ErrExpired) {
		t.Errorf("it was stopped for %v", cause)
	}
	record := f.awaitState(id, ledger.StateSucceeded)
	if record.Fails != 1 || record.Crashes != 0 || len(record.Attempts) != 2 || !strings.Contains(record.Attempts[0].Error, "max hold") {
		t.Errorf("got %+v", record)
	}
}
