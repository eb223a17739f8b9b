package worker_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// TestAllHistoriesStayWithinTheirSpace has two jobs with limits that would keep all of their runs.
func TestAllHistoriesStayWithinTheirSpace(t *testing.T) {
	f := newFleet(t)
	const runs, most = 200, 64 << 10
	nothing := func(context.Context, *jobs.Run[struct{}]) error { return nil }
	list := []*jobs.Job{f.job("one", nothing), f.job("two", nothing)}
	f.start(func(o *worker.Options) { o.MaxHistory, o.HistoryEvery = most, 20*time.Millisecond })
	for i := range runs {
		for _, job := range list {
			enqueued, err := f.ledger.Enqueue(t.Context(), ledger.Request{Job: job, ID: fmt.Sprint(i), Trigger: ledger.TriggerEnqueue})
			if err != nil {
				t.Fatal(err)
			}
			for _, due := range enqueued.Due {
				f.pushAndConfirm(due)
			}
		}
	}
	f.await("all runs to have ended", func() bool {
		open, err := f.ledger.CountOpen(t.Context(), []string{"one", "two"})
		return err == nil && open["one"]+open["two"] == 0
	})
	var size *ledger.HistorySize
	f.await("the histories to be within their space", func() (within bool) {
		var err error
		if size, err = f.ledger.HistorySize(t.Context(), func(ctx context.Context) error { return ctx.Err() }); err != nil {
			t.Fatal(err)
		}
		return size.Bytes <= most
	})
	if size.Runs == 0 || size.Runs == 2*runs {
		t.Errorf("%d of %d runs are kept, want some", size.Runs, 2*runs)
	}
	for _, job := range list {
		last, err := f.ledger.History(t.Context(), job.Name, 1)
		if err != nil || len(last) == 0 {
			t.Errorf("of %s nothing is kept, want its last runs, %v", job.Name, err)
		}
	}
	t.Logf("%d of %d runs are kept, which take %d bytes", size.Runs, 2*runs, size.Bytes)
}
