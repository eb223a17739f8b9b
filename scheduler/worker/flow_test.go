package worker_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// A worker that leaves in order loses no count.
func TestAWorkerCountsTheAttemptsThatItBegins(t *testing.T) {
	f := newFleet(t)
	job := f.job("j", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	w := f.start()
	for i := range 3 {
		f.awaitState(f.enqueue(job, fmt.Sprint(i)), ledger.StateSucceeded)
	}
	w.stop()
	value := f.rdb.Get(f.Context(), "{"+f.namespace+"}:flow:"+f.queue).Val()
	if count, _, _ := strings.Cut(value, "\x1f"); count != "3" {
		f.Errorf("got %q, want 3 attempts", value)
	}
}
