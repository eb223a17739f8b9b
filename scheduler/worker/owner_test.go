package worker_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
	"lockstep/scheduler/worker"
)

func TestAQueueGivenToAnotherNamespaceRaisesAnAlarmAndStopsNoWorker(t *testing.T) {
	f := newFleet(t)
	var d done
	job := f.job("settle", d.handle)
	var log logged
	r := f.start(func(o *worker.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	owners := func(do func() error) {
		t.Helper()
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	owners(func() error { return f.rdb.HSet(t.Context(), "lockstep:queues", f.queue, "thief").Err() })
	const alarm = "a queue that this worker serves was given to another namespace"
	f.await("an alarm", func() bool { return strings.Count(log.String(), alarm) > 0 })
	f.await("the worker to show it", func() bool { return f.card(r.ID()).Disputed[f.queue] == "thief" })
	f.awaitState(f.enqueue(job, "during"), ledger.StateSucceeded)
	if r.Unready() != nil {
		t.Error("the worker is not ready any more")
	}
	late := f.worker(worker.Options{
		Redis: f.rdb, Locks: locks.Options{Namespace: f.namespace}, Queues: map[string]int{f.queue: 1}, Expand: expandNothing,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err := late.Run(t.Context()); !errors.Is(err, queue.ErrOwned) {
		t.Errorf("a worker that starts then ended with %v, want ErrOwned", err)
	}
	owners(func() error { return f.rdb.HSet(t.Context(), "lockstep:queues", f.queue, f.namespace).Err() })
	f.await("the end of the alarm", func() bool { return len(f.card(r.ID()).Disputed) == 0 })
	if n := strings.Count(log.String(), alarm); n != 1 {
		t.Errorf("the log has %d lines about one change of owner, want 1", n)
	}
}

func expandNothing(job *jobs.Job) (*jobs.Job, []jobs.Secret, error) { return job, nil, nil }
