package worker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// TestForgottenJobsReturnWithTheirWorker: a person removes jobs while the only worker that carries
// them is absent. Its session continues.
func TestForgottenJobsReturnWithTheirWorker(t *testing.T) {
	server := redistest.New(t, redistest.Options{})
	f := newFleetOn(t, server.Client(t))
	proxy := server.Proxy(t)
	tick := f.everySecond("tick")
	// one without a schedule
	f.job("idle", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	w := f.start(func(o *worker.Options) { o.Redis, o.Locks.Lease = proxy.Client(t), time.Minute })
	session := w.ID()
	digest, _, err := ledger.Digest(f.jobs)
	if err != nil {
		t.Fatal(err)
	}
	forget := func(name string) bool {
		err := f.ledger.Forget(t.Context(), name, ledger.Act{Who: "ann", What: "forget job", On: name})
		if err != nil && !errors.Is(err, ledger.ErrUnknown) && !errors.Is(err, ledger.ErrRefused) {
			t.Fatal(err)
		}
		return !errors.Is(err, ledger.ErrRefused)
	}
	f.await("a moment without a run", func() bool {
		proxy.Set(redistest.Faults{HoldRequests: true})
		long := time.Now().Add(-time.Minute).UnixMilli()
		if err := f.rdb.HSet(t.Context(), "{"+f.namespace+"}:ledger", "config:"+digest, long).Err(); err != nil {
			t.Fatal(err)
		}
		if forget("tick") && forget("idle") {
			return true
		}
		proxy.Set(redistest.Faults{})
		return false
	})
	proxy.Set(redistest.Faults{})
	f.await("the jobs to be registered again", func() bool {
		records, err := f.ledger.Jobs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(records) == 2
	})
	f.await("a tick", func() bool {
		ticks := f.ticks(tick)
		return len(ticks) > 0 && ticks[0].State == ledger.StateSucceeded
	})
	if now := w.ID(); now != session {
		t.Errorf("the session is %s, was %s: the test proves less", now, session)
	}
}
