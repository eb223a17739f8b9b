package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

func TestATickReplacesTheRunBeforeIt(t *testing.T) {
	f := newFleet(t)
	causes := make(chan error, 100)
	job := f.job("long", func(ctx context.Context, _ *jobs.Run[struct{}]) error {
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return ctx.Err()
	}, func(j *jobs.Job) { j.Every, j.Overlap = 2*time.Second, jobs.OverlapReplace })
	for range 2 {
		// the last run would never end
		f.start(func(o *worker.Options) { o.DrainTimeout = time.Millisecond })
	}
	for range 2 {
		if cause := <-causes; !errors.Is(cause, jobs.ErrCanceled) || !strings.Contains(cause.Error(), "overlap: replace") {
			t.Errorf("a run ended with %v, want it replaced", cause)
		}
	}
	var canceled []*ledger.Record
	f.await("two runs to be recorded as replaced while they ran", func() bool {
		history, err := f.ledger.History(t.Context(), job.Name, 0)
		if err != nil {
			t.Fatal(err)
		}
		canceled = history
		ran := 0
		for _, record := range history {
			ran += len(record.Attempts)
		}
		return ran >= 2
	})
	for _, record := range canceled {
		// on a busy machine, the next tick may replace one that has not begun
		if record.State != ledger.StateCanceled || len(record.Attempts) > 1 || record.Fails != 0 {
			t.Errorf("%+v, want it canceled in its only attempt, and no failure counted", record)
		}
	}
}

func TestACanceledRunIsStoppedWithItsReason(t *testing.T) {
	f := newFleet(t)
	began, causes := make(chan struct{}, 1), make(chan error, 1)
	job := f.job("long", func(ctx context.Context, _ *jobs.Run[struct{}]) error {
		began <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return ctx.Err()
	})
	f.start()
	id := f.enqueue(job, "x")
	<-began
	act := ledger.Act{Who: "ann", What: "cancel run", Why: "wrong bill"}
	if canceled, err := f.ledger.Cancel(t.Context(), id, job, act); err != nil || !canceled.Asked {
		t.Fatalf("%+v, %v, want its worker asked", canceled, err)
	}
	if cause := <-causes; !errors.Is(cause, jobs.ErrCanceled) || !strings.Contains(cause.Error(), "ann: wrong bill") {
		t.Errorf("it was stopped for %v, want the user and the reason", cause)
	}
	f.awaitState(id, ledger.StateCanceled)
}

// TestACanceledRunIsStoppedWhenAnEarlierAttemptOfItHasEndedHere: the first attempt loses its locks
// and ignores that, the second one begins on the same worker, and then the first one ends.
func TestACanceledRunIsStoppedWhenAnEarlierAttemptOfItHasEndedHere(t *testing.T) {
	f := newFleet(t)
	began, first, ended := make(chan int, 2), make(chan struct{}), make(chan int, 2)
	release := sync.OnceFunc(func() { close(first) })
	t.Cleanup(release)
	job := f.job("deaf", func(ctx context.Context, r *jobs.Run[struct{}]) error {
		began <- r.Attempt()
		if r.Attempt() == 1 {
			<-first
			return errors.New("too late")
		}
		<-ctx.Done()
		return ctx.Err()
	})
	w := f.start(calm, func(o *worker.Options) {
		o.OnAttempt = func(c *ledger.Claimed) func(*ledger.Finished) {
			return func(*ledger.Finished) { ended <- c.Record.Last().Number }
		}
	})
	id := f.enqueue(job, "x")
	<-began
	exp := "{" + f.namespace + "}:exp"
	if err := f.rdb.ZAddXX(t.Context(), exp, redis.Z{Score: 1, Member: "s" + string(f.session(w))}).Err(); err != nil {
		t.Fatal(err)
	}
	if n := <-began; n != 2 {
		t.Fatalf("attempt %d began, want the second one", n)
	}
	release()
	if n := <-ended; n != 1 {
		t.Fatalf("attempt %d ended, want the first one", n)
	}
	if canceled, err := f.ledger.Cancel(t.Context(), id, job, ledger.Act{Who: "ann", What: "cancel run"}); err != nil || !canceled.Asked {
		t.Fatalf("%+v, %v, want its worker asked", canceled, err)
	}
	f.awaitState(id, ledger.StateCanceled)
}

// TestAWorkerConfirmsThatItSurvivedALostLease: its session ends under it, and another worker's
// sweep may come first.
func TestAWorkerConfirmsThatItSurvivedALostLease(t *testing.T) {
	f := newFleet(t)
	end := make(chan struct{})
	release := sync.OnceFunc(func() { close(end) })
	t.Cleanup(release)
	began := make(chan int, 10)
	job := f.job("long", func(ctx context.Context, r *jobs.Run[struct{}]) error {
		began <- r.Attempt()
		select {
		case <-end:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	w := f.start(calm)
	var runs []jobs.RunID
	for i := range 3 {
		runs = append(runs, f.enqueue(job, fmt.Sprint(i)))
	}
	for range runs {
		<-began
	}
	old := f.session(w)
	f.start(calm) // it may take over the runs
	exp := "{" + f.namespace + "}:exp"
	if err := f.rdb.ZAddXX(t.Context(), exp, redis.Z{Score: 1, Member: "s" + string(old)}).Err(); err != nil {
		t.Fatal(err)
	}
	for _, id := range runs {
		f.await("the lost lease of "+string(id)+" to be confirmed", func() bool {
			record, _, err := f.ledger.Find(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			first := record.Attempts[0]
			return first.Worker == old && first.Outcome == ledger.AttemptLostLease && first.Confirmed
		})
	}
	release()
	for _, id := range runs {
		if record := f.awaitState(id, ledger.StateSucceeded); record.Crashes != 0 || record.Fails != 0 {
			t.Errorf("%+v, want nothing counted", record)
		}
	}
}

func TestAWorkerThatIsAskedToDrainsAndEnds(t *testing.T) {
	f := newFleet(t)
	began, end := make(chan struct{}), make(chan struct{})
	job := f.job("long", func(context.Context, *jobs.Run[struct{}]) error {
		close(began)
		<-end
		return nil
	})
	w := f.start()
	id := f.enqueue(job, "x")
	<-began
	if _, err := f.ledger.Drain(t.Context(), f.session(w), ledger.Act{Who: "ann"}); err != nil {
		t.Fatal(err)
	}
	f.await("the drain", func() bool { return w.Unready() != nil })
	close(end)
	f.awaitState(id, ledger.StateSucceeded)
	f.await("the end of the session", func() bool {
		sessions, _, err := f.ledger.Space().Sessions(t.Context())
		return err == nil && len(sessions) == 0
	})
}

func TestARunIsCanceledAlsoWhileItsWorkerDrains(t *testing.T) {
	f := newFleet(t)
	began := make(chan struct{})
	job := f.job("long", func(ctx context.Context, _ *jobs.Run[struct{}]) error {
		close(began)
		<-ctx.Done()
		return ctx.Err()
	})
	w := f.start(func(o *worker.Options) { o.DrainTimeout = time.Hour })
	id := f.enqueue(job, "x")
	<-began
	stopped := make(chan struct{})
	go func() { w.stop(); close(stopped) }()
	f.await("the drain", func() bool { return w.Unready() != nil })
	if _, err := f.ledger.Cancel(t.Context(), id, job, ledger.Act{Who: "ann"}); err != nil {
		t.Fatal(err)
	}
	<-stopped
	f.awaitState(id, ledger.StateCanceled)
}

func TestJitterPartsTheRunsOfOneTick(t *testing.T) {
	f := newFleet(t)
	job := f.job("tick", func(context.Context, *jobs.Run[struct{}]) error { return nil },
		func(j *jobs.Job) { j.Every, j.Jitter = 2*time.Second, time.Second })
	f.start()
	f.start()
	var history []*ledger.Record
	f.await("three runs", func() bool {
		var err error
		if history, err = f.ledger.History(t.Context(), job.Name, 0); err != nil {
			t.Fatal(err)
		}
		return len(history) >= 3
	})
	for _, record := range history {
		want := record.Tick.Add(job.Spread(record.Tick, 2*time.Second))
		if record.State != ledger.StateSucceeded || record.Started.Before(want) || record.Created.After(want.Add(5*time.Second)) {
			t.Errorf("tick %v was decided at %v and began at %v, want it not to begin before %v", record.Tick, record.Created, record.Started, want)
		}
	}
}

func TestAWaitForLocksThatIsOverEndsTheRun(t *testing.T) {
	f := newFleet(t)
	nothing := func(context.Context, *jobs.Run[struct{}]) error { return nil }
	job := f.job("billed", nothing, func(j *jobs.Job) {
		j.Lock = jobs.Lock{Exclusive: []string{"bill:1"}, Wait: 200 * time.Millisecond, OnBusy: jobs.BusySkip}
	})
	client, err := locks.Open(t.Context(), f.rdb, locks.Options{Namespace: f.namespace, Name: "other"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := client.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	if _, err := client.Acquire(t.Context(), locks.Exclusive("bill:1")); err != nil {
		t.Fatal(err)
	}
	f.start()
	if record := f.awaitState(f.enqueue(job, "x"), ledger.StateSkipped); !strings.Contains(record.Reason, "lock.wait") {
		t.Errorf("reason %q, want the wait named", record.Reason)
	}
}

func TestAWorkerRunsOneRunAtATimeThatHasCrashedBefore(t *testing.T) {
	f := newFleet(t)
	began, release := make(chan struct{}, 10), make(chan struct{})
	job := f.job("poison", func(context.Context, *jobs.Run[struct{}]) error {
		began <- struct{}{}
		<-release
		return nil
	})
	// A worker has begun both, and its session ends.
	client, err := locks.Open(t.Context(), f.rdb, locks.Options{Namespace: f.namespace, Name: "dead"})
	if err != nil {
		t.Fatal(err)
	}
	// A new server grants nothing in its first second, and a claim does not wait for the end of it.
	if hold, err := client.Acquire(t.Context(), locks.Exclusive("anything")); err != nil {
		t.Fatal(err)
	} else if err := hold.Release(); err != nil {
		t.Fatal(err)
	}
	var ids []jobs.RunID
	for _, id := range []string{"a", "b"} {
		enqueued, err := f.ledger.Enqueue(t.Context(), ledger.Request{Job: job, ID: id, Trigger: ledger.TriggerEnqueue})
		if err != nil {
			t.Fatal(err)
		}
		request, err := client.Extension().Begin()
		if err != nil {
			t.Fatal(err)
		}
		claimed, err := f.ledger.Claim(t.Context(), request, enqueued.Due[0], 0, nil)
		if err != nil || claimed.Outcome != ledger.ClaimGranted {
			t.Fatalf("%+v, %v, want it granted", claimed, err)
		}
		ids = append(ids, enqueued.Run)
	}
	if err := f.ledger.Died(t.Context(), client.Session()); err != nil {
		t.Fatal(err)
	}
	if err := client.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.start()
	<-began
	running := func() (n int) {
		records, err := f.ledger.Outstanding(t.Context(), job.Name, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, record := range records {
			if record.State == ledger.StateRunning {
				n++
			}
		}
		return n
	}
	if n := running(); n != 1 {
		t.Errorf("%d of them run at a time, want 1", n)
	}
	f.start() // another worker may take the other one
	<-began
	close(release)
	for _, id := range ids {
		if record := f.awaitState(id, ledger.StateSucceeded); record.Crashes != 1 {
			t.Errorf("%+v, want one crash", record)
		}
	}
}
