package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// api declares a limit of permits of "api".
func api(limit int, version int64) map[string]locks.PermitLimit {
	return map[string]locks.PermitLimit{"api": {Permits: limit, Version: version}}
}

func TestPermitsOfTheConfigBoundRuns(t *testing.T) {
	f := newFleet(t)
	var now, most atomic.Int64
	gate := make(chan struct{})
	job := f.job("calls", func(ctx context.Context, _ *jobs.Run[struct{}]) error {
		n := now.Add(1)
		defer now.Add(-1)
		for {
			if seen := most.Load(); n <= seen || most.CompareAndSwap(seen, n) {
				break
			}
		}
		select {
		case <-gate:
		case <-ctx.Done():
		}
		return nil
	}, func(j *jobs.Job) { j.Lock.Permits = map[string]int{"api": 1} })
	w := f.start(func(o *worker.Options) { o.Permits = api(1, 0) })
	var runs []jobs.RunID
	for i := range 4 {
		runs = append(runs, f.enqueue(job, fmt.Sprint(i)))
	}
	f.await("one to run", func() bool { return now.Load() == 1 })

	// Another limit needs another version; without one, nothing changes.
	err := w.SetJobs(t.Context(), nil, api(2, 0), "two")
	if !errors.Is(err, worker.ErrPermits) || !strings.Contains(err.Error(), "raise permits.api.version") {
		t.Errorf("got %v, want it refused with what to do", err)
	}
	if card := f.card(w.ID()); card.Config != "" {
		t.Errorf("%+v, want the old config", card)
	}
	if err := w.SetJobs(t.Context(), f.jobs, api(2, 1), "three"); err != nil {
		t.Fatal(err)
	}
	f.await("two to run", func() bool { return now.Load() == 2 })
	close(gate)
	for _, run := range runs {
		f.awaitState(run, ledger.StateSucceeded)
	}
	if most.Load() != 2 {
		t.Errorf("%d ran at a time, want 2", most.Load())
	}
}

func TestAWorkerDeclaresItsPermitsBeforeItBegins(t *testing.T) {
	f := newFleet(t)
	f.start(func(o *worker.Options) { o.Permits = api(2, 1) })
	f.start(func(o *worker.Options) { o.Permits = api(5, 0) }) // an older config changes nothing
	w := f.worker(worker.Options{
		Redis: f.rdb, Locks: locks.Options{Namespace: f.namespace}, Queues: map[string]int{f.queue: 1}, Permits: api(3, 1), Executors: map[string]jobs.Executor{"handler": f.handlers},
		Expand: func(job *jobs.Job) (*jobs.Job, []jobs.Secret, error) { return job, nil, nil },
	})
	if err := w.Run(t.Context()); !errors.Is(err, worker.ErrPermits) || !strings.Contains(err.Error(), "version 1 of it has been declared with 2") {
		t.Errorf("got %v, want the limit that stands told", err)
	}
	client, err := locks.Open(t.Context(), f.rdb, locks.Options{Namespace: f.namespace})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(context.WithoutCancel(t.Context()))
	if stands, err := client.Declare(t.Context(), "api", locks.PermitLimit{Permits: 9}); err != nil || stands.Permits != 2 {
		t.Errorf("%+v, %v, want two permits", stands, err)
	}
}
