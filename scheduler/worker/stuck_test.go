package worker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// counts keeps the numbers of stuck attempts that a worker has reported.
type counts struct {
	mu  sync.Mutex
	all []int
}

func (c *counts) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, n)
}

func (c *counts) told() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.all)
}

func TestAnAttemptThatIgnoresItsTimeoutShowsAsStuck(t *testing.T) {
	f := newFleet(t)
	began, end := make(chan struct{}, 1), make(chan struct{})
	job := f.job("deaf", func(context.Context, *jobs.Run[struct{}]) error {
		began <- struct{}{}
		<-end
		return errors.New("late")
	}, func(j *jobs.Job) {
		j.Timeout, j.Retry.Max, j.Lock.Exclusive = 50*time.Millisecond, 0, []string{"bill:1"}
	})
	punctual := f.job("punctual", func(ctx context.Context, _ *jobs.Run[struct{}]) error {
		<-ctx.Done()
		return ctx.Err()
	}, func(j *jobs.Job) { j.Timeout, j.Retry.Max = 50*time.Millisecond, 0 })
	var stuck counts
	w := f.start(func(o *worker.Options) { o.OnStuck, o.Locks.Lease = stuck.add, 15*time.Second })
	f.awaitState(f.enqueue(punctual, "x"), ledger.StateFailed)
	run := f.enqueue(job, "x")
	<-began
	f.await("the card to show the stuck attempt", func() bool { return len(f.card(w.ID()).Stuck) == 1 })
	session := f.session(w)
	record := f.awaitState(run, ledger.StateRunning)
	got, last := f.card(session).Stuck[0], record.Last()
	if got.Run != run || got.Token != last.Token || got.Because != jobs.ErrTimeout.Error() {
		t.Errorf("%+v is stuck, want the attempt %+v, for its timeout", got, last)
	}
	if late := got.Since.Sub(last.Started); late < job.Timeout || late > patience {
		t.Errorf("stuck since %s after the start, want at least the timeout of %s", late, job.Timeout)
	}
	if busy := f.card(session).Busy; busy != 1 {
		t.Errorf("%d slots are busy, want that of the stuck attempt", busy)
	}
	close(end)
	f.awaitState(run, ledger.StateFailed)
	f.await("the card to show nothing any more", func() bool { return len(f.card(w.ID()).Stuck) == 0 })
	if got := stuck.told(); !slices.Equal(got, []int{1, 0}) {
		t.Errorf("told the numbers %v, want 1 and 0: the punctual attempt was never stuck", got)
	}
}

// TestACardNamesAsManyStuckAttemptsAsItHasRoomFor: the names of all of them make a card that is too
// large.
func TestACardNamesAsManyStuckAttemptsAsItHasRoomFor(t *testing.T) {
	f := newFleet(t)
	end := make(chan struct{})
	release := sync.OnceFunc(func() { close(end) })
	job := f.job("deaf", func(context.Context, *jobs.Run[struct{}]) error { <-end; return nil },
		func(j *jobs.Job) { j.Timeout = 50 * time.Millisecond })
	const n = 64
	var stuck counts
	w := f.start(func(o *worker.Options) { o.Concurrency, o.OnStuck = n, stuck.add })
	t.Cleanup(release) // before the worker stops
	for i := range n {
		f.enqueue(job, fmt.Sprintf("%03d%s", i, strings.Repeat("x", 190)))
	}
	f.await("all attempts to be stuck", func() bool { return slices.Contains(stuck.told(), n) })
	end <- struct{}{} // so the card changes while they are stuck
	f.await("the card to show stuck attempts and the slots that they keep", func() bool {
		card := f.card(w.ID())
		return len(card.Stuck) > 0 && card.Busy == n-1
	})
}

// A drain leaves a handler behind that ignores its context, keeps the session for it, and returns
// how to record its end.
func TestADrainDoesNotWaitForAHandlerThatIgnoresItsContext(t *testing.T) {
	f := newFleet(t)
	began, end := make(chan jobs.RunID, 10), make(chan struct{})
	handle := func(_ context.Context, r *jobs.Run[struct{}]) error {
		began <- r.ID()
		<-end
		return nil
	}
	reruns := f.job("reruns", handle)
	abandons := f.job("abandons", handle, func(j *jobs.Job) { j.OnCrash = jobs.CrashAbandon })
	late := f.job("late", handle, func(j *jobs.Job) { j.Timeout, j.Retry.Max = time.Millisecond, 0 })
	prompt := f.job("prompt", func(ctx context.Context, r *jobs.Run[struct{}]) error {
		began <- r.ID()
		if r.Attempt() > 1 {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	})
	w := f.worker(worker.Options{
		Redis: f.rdb, Locks: locks.Options{Namespace: f.namespace, Name: "w", Lease: 15 * time.Second}, Concurrency: 4, DrainTimeout: 10 * time.Millisecond,
		Queues: map[string]int{f.queue: 1}, Jobs: f.jobs, Expand: expandNothing, Executors: map[string]jobs.Executor{"handler": f.handlers},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	f.await("the worker to be ready", func() bool { return w.Unready() == nil })
	runs := make(map[string]jobs.RunID)
	for _, job := range []*jobs.Job{reruns, abandons, late, prompt} {
		runs[job.Name] = f.enqueue(job, "x")
		<-began
	}
	session := w.ID()
	cancel()
	var stuck *worker.StuckError
	select {
	case err := <-ended:
		if !errors.As(err, &stuck) || stuck.Err != nil {
			t.Fatalf("the worker ended with %v, want the runs that it has left behind", err)
		}
	case <-time.After(patience):
		t.Fatal("the drain waits for handlers that ignore their contexts")
	}
	slices.Sort(stuck.Runs)
	if want := []jobs.RunID{runs["abandons"], runs["late"], runs["reruns"]}; !slices.Equal(stuck.Runs, want) {
		t.Errorf("left behind: %v, want %v", stuck.Runs, want)
	}
	// As a parent does once the process is dead: here, once the handlers have returned.
	for name, state := range map[string]ledger.State{"reruns": ledger.StateRunning, "abandons": ledger.StateRunning, "late": ledger.StateRunning, "prompt": ledger.StateDue} {
		f.awaitState(runs[name], state)
	}
	close(end)
	for _, finish := range stuck.Left {
		if _, err := f.ledger.Finish(t.Context(), finish); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.ledger.Space().EndSession(t.Context(), session); err != nil {
		t.Fatal(err)
	}
	w.CloseSession(t.Context())
	if record := f.awaitState(runs["reruns"], ledger.StateDue); record.Crashes != 0 || record.Fails != 0 {
		t.Errorf("%+v, want it handed back with nothing counted", record)
	}
	if record := f.awaitState(runs["late"], ledger.StateFailed); record.Fails != 1 || record.Crashes != 0 {
		t.Errorf("%+v, want its timeout counted as a failure", record)
	}
	record := f.awaitState(runs["abandons"], ledger.StateLost)
	if want := "its worker " + string(session) + " ended while the handler ignored the end of its context (on_crash: abandon)"; record.Reason != want {
		t.Errorf("reason %q, want %q", record.Reason, want)
	}
	if last := record.Last(); last.Outcome != ledger.AttemptHandedBack || strings.Contains(last.Error, "lease") {
		t.Errorf("%+v, want no lost lease", last)
	}
	f.start()
	if record := f.awaitState(runs["reruns"], ledger.StateSucceeded); len(record.Attempts) != 2 || record.Crashes != 0 {
		t.Errorf("%+v, want the attempt that was handed back and the next one", record)
	}
}
