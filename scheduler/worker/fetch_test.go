package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// digestOf returns the digest with which a script of the ledger is called.
func (f *fleet) digestOf(script string) string {
	f.Helper()
	for digest, name := range ledger.ScriptNames() {
		if name == script {
			return digest
		}
	}
	f.Fatalf("the ledger has no script %s", script)
	return ""
}

// fetched returns how many deliveries have been fetched from the queue.
func (f *fleet) fetched() int64 {
	f.Helper()
	n, err := f.rdb.Get(f.Context(), "asynq:{"+f.queue+"}:processed").Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		f.Fatal(err)
	}
	return n
}

// endLease ends the session of a worker in Redis, which the worker learns by its next renewal.
func (f *fleet) endLease(w *running) {
	f.Helper()
	if err := f.rdb.ZAddXX(f.Context(), f.key("exp"), redis.Z{Score: 1, Member: "s" + string(f.session(w))}).Err(); err != nil {
		f.Fatal(err)
	}
}

// TestAWorkerWithoutASessionFetchesNothing: its session has ended, and it cannot open the next one,
// while its other calls get replies. Otherwise it would send the backlog around in its queue.
func TestAWorkerWithoutASessionFetchesNothing(t *testing.T) {
	f := newFleet(t)
	var d done
	job := f.job("j", d.handle)
	var away atomic.Bool
	// The request for a session has the worker's card.
	opens := func(request string) bool { return away.Load() && strings.Contains(request, `"picks":true`) }
	w := f.start(quiet, f.lossy(opens, func() {}), func(o *worker.Options) { o.Locks.Lease = 2 * time.Second })
	away.Store(true)
	f.endLease(w)
	f.await("the worker to lose its session", func() bool { return errors.Is(w.Unready(), locks.ErrNoSession) })
	var runs []jobs.RunID
	before := f.fetched()
	for i := range 20 {
		runs = append(runs, f.enqueue(job, fmt.Sprint(i)))
	}
	const some = 800 * time.Millisecond // longer than a pause
	for until := time.Now().Add(some); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		// Each of four fetchers may have been about to fetch one.
		if n := f.fetched() - before; n > 4 {
			t.Fatalf("%d deliveries of %d runs were fetched without a session, want them to stay in the queue", n, len(runs))
		}
	}
	away.Store(false)
	for _, id := range runs {
		if record := f.awaitState(id, ledger.StateSucceeded); len(record.Attempts) != 1 {
			t.Errorf("%s has %d attempts, want 1", id, len(record.Attempts))
		}
	}
}

// TestAWorkerLearnsFromAClaimThatItsSessionHasEnded: until its next renewal, in a minute, it
// would fetch the same delivery again and again.
func TestAWorkerLearnsFromAClaimThatItsSessionHasEnded(t *testing.T) {
	f := newFleet(t)
	var d done
	job := f.job("j", d.handle)
	w := f.start(quiet, func(o *worker.Options) { o.Locks.Lease = 3 * time.Minute })
	f.endLease(w)
	began := time.Now()
	f.awaitState(f.enqueue(job, "x"), ledger.StateSucceeded)
	took := time.Since(began)
	t.Logf("the run ended after %v and %d fetches", took, f.fetched())
	if took > 30*time.Second {
		t.Errorf("the run ended after %v, want it to start under a new session at once", took)
	}
}

// TestGrantedRunsDoNotWaitForTheOthersOfTheirFetch: Redis does not reply to the calls that set runs
// aside. The worker starts a run that it has fetched behind them, and begins to drain.
func TestGrantedRunsDoNotWaitForTheOthersOfTheirFetch(t *testing.T) {
	f := newFleet(t)
	nothing := func(context.Context, *jobs.Run[struct{}]) error { return nil }
	missing := f.job("missing", nothing)
	has, began := jobs.NewRegistry(), make(chan struct{}, 1)
	job := f.job("granted", nothing)
	jobs.Handle(has, "granted", func(context.Context, *jobs.Run[struct{}]) error {
		began <- struct{}{}
		return nil
	})
	for i := range 8 { // the first delivery is fetched alone, the others together
		f.enqueue(missing, fmt.Sprint(i))
	}
	id := f.enqueue(job, "x")
	replies := make(chan struct{})
	release := sync.OnceFunc(func() { close(replies) })
	aside := f.digestOf("aside")
	var log lines
	w := f.launch(f.lossy(func(request string) bool { return strings.Contains(request, aside) }, func() { <-replies }),
		func(o *worker.Options) {
			o.Concurrency, o.Executors["handler"] = 20, has
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		})
	t.Cleanup(release) // before the worker stops
	select {
	case <-began:
	case <-time.After(patience / 3):
		t.Fatal("the granted run does not start while runs that were fetched with it are not set aside")
	}
	f.awaitState(id, ledger.StateSucceeded)
	stopped := make(chan struct{})
	go func() { w.stop(); close(stopped) }() // received below
	f.await("the drain to begin", func() bool { return log.contains("worker drains") })
	release()
	<-stopped
}
