package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/locks/space"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
	"lockstep/scheduler/worker"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const patience = time.Minute // for expected events; long, since machines are shared

// fleet is a namespace with a queue of its own, and the workers in it.
type fleet struct {
	*testing.T
	rdb       *redis.Client
	namespace string
	queue     string
	ledger    *ledger.Ledger
	handlers  *jobs.Registry
	jobs      []*jobs.Job
}

func newFleet(t *testing.T) *fleet { return newFleetOn(t, redistest.Client(t)) }

// newFleetOn is for a test that has a server of its own, to damage it.
func newFleetOn(t *testing.T, rdb *redis.Client) *fleet {
	t.Parallel()
	namespace := redistest.Namespace(t)
	space, err := locks.NewSpace(rdb, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return &fleet{
		T: t, rdb: rdb, namespace: namespace, queue: "q-" + namespace, ledger: ledger.New(rdb, space), handlers: jobs.NewRegistry(),
	}
}

// job adds a job with a Go handler.
func (f *fleet) job(name string, handle func(context.Context, *jobs.Run[struct{}]) error, change ...func(*jobs.Job)) *jobs.Job {
	f.Helper()
	jobs.Handle(f.handlers, name, handle)
	job := &jobs.Job{
		Name: name, Handler: name, Queue: f.queue, Overlap: jobs.OverlapQueue, MaxQueued: 100, OnMissed: jobs.MissedAll,
		OnCrash: jobs.CrashRerun, MaxCrashes: 3, Retry: jobs.Retry{Max: 3, Backoff: jobs.BackoffFixed, Initial: 10 * time.Millisecond},
		History: jobs.History{Runs: 1000, For: time.Hour},
	}
	for _, c := range change {
		c(job)
	}
	f.jobs = append(f.jobs, job)
	return job
}

// running is a running worker.
type running struct {
	*worker.Worker
	stop func() // drains it and waits
}

// session returns the session of a worker. On a busy machine, a worker is without a certain one for
// a moment.
func (f *fleet) session(w *running) (id locks.SessionID) {
	f.Helper()
	f.await("a session that is certain", func() bool { id = w.ID(); return id != "" })
	return id
}

// start starts a worker and waits until it is ready.
func (f *fleet) start(change ...func(*worker.Options)) *running {
	f.Helper()
	w := f.launch(change...)
	f.await("the worker to be ready", func() bool { return w.Unready() == nil })
	return w
}

// launch starts a worker.
func (f *fleet) launch(change ...func(*worker.Options)) *running {
	f.Helper()
	o := worker.Options{
		Redis: f.rdb, Locks: locks.Options{Namespace: f.namespace, Name: "w", Lease: 4 * time.Second}, Concurrency: 4, Queues: map[string]int{f.queue: 1},
		Jobs: f.jobs, Expand: expandNothing, Executors: map[string]jobs.Executor{"handler": f.handlers},
		Logger: slog.New(slog.NewTextHandler(f.Output(), &slog.HandlerOptions{Level: slog.LevelInfo})),
	}
	for _, c := range change {
		c(&o)
	}
	w := f.worker(o)
	ctx, cancel := context.WithCancel(f.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.Errorf("worker ended with: %v", err)
		}
	})
	f.Cleanup(stop)
	return &running{w, stop}
}

// worker returns a worker on a ledger, a queue and a pusher of its own. They send through o.Redis,
// as the worker does.
func (f *fleet) worker(o worker.Options) *worker.Worker {
	f.Helper()
	space, err := locks.NewSpace(o.Redis, o.Locks.Namespace)
	if err != nil {
		f.Fatal(err)
	}
	o.Ledger = ledger.New(o.Redis, space)
	if o.Queue, err = queue.New(o.Redis, o.Locks.Namespace); err != nil {
		f.Fatal(err)
	}
	o.Pusher = worker.NewPusher(o.Queue, o.Ledger)
	w, err := worker.New(o)
	if err != nil {
		f.Fatal(err)
	}
	return w
}

// dies ends the session of a worker as its parent does when the process has died. The worker
// continues under another session.
func (f *fleet) dies(w *running) {
	f.Helper()
	id := f.session(w)
	if err := f.ledger.Died(f.Context(), id); err != nil {
		f.Fatal(err)
	}
	if err := f.ledger.Space().EndSession(f.Context(), id); err != nil {
		f.Fatal(err)
	}
}

// stopsInTime drains a worker, which must not take long; failure describes the defect if it does.
func (r *running) stopsInTime(t *testing.T, failure string) {
	t.Helper()
	stopped := make(chan struct{})
	go func() { r.stop(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(patience):
		t.Fatal(failure)
	}
}

// await waits until so returns true.
func (f *fleet) await(what string, so func() bool) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.Fatalf("%s did not happen in time", what)
		}
	}
}

func (f *fleet) enqueue(job *jobs.Job, id string) jobs.RunID {
	f.Helper()
	enqueued, err := f.ledger.Enqueue(f.Context(), ledger.Request{Job: job, ID: id, Trigger: ledger.TriggerEnqueue})
	if err != nil {
		f.Fatal(err)
	}
	for _, due := range enqueued.Due {
		f.pushAndConfirm(due)
	}
	return enqueued.Run
}

// enqueueMany enqueues n runs of a job: "0", "1" and so on.
func (f *fleet) enqueueMany(job *jobs.Job, n int) {
	f.Helper()
	var items []ledger.Request
	for i := range n {
		items = append(items, ledger.Request{Job: job, ID: fmt.Sprint(i), Trigger: ledger.TriggerEnqueue})
	}
	for some := range slices.Chunk(items, ledger.MaxRequests) {
		replies, err := f.ledger.EnqueueAll(f.Context(), ledger.List{Items: some})
		if err != nil {
			f.Fatal(err)
		}
		var due []ledger.Due
		for _, reply := range replies {
			if reply.Err != nil {
				f.Fatal(reply.Err)
			}
			due = append(due, reply.Due...)
		}
		f.pushAndConfirm(due...)
	}
}

func (f *fleet) pushAndConfirm(due ...ledger.Due) {
	f.Helper()
	q, err := queue.New(f.rdb, f.namespace)
	if err != nil {
		f.Fatal(err)
	}
	if _, err := q.Push(f.Context(), due...); err != nil {
		f.Fatal(err)
	}
	if err := f.ledger.Confirm(f.Context(), due); err != nil {
		f.Fatal(err)
	}
}

func (f *fleet) awaitState(id jobs.RunID, want ledger.State) *ledger.Record {
	f.Helper()
	var record *ledger.Record
	f.await(fmt.Sprintf("run %s to be %s", id, want), func() bool {
		var err error
		if record, _, err = f.ledger.Find(f.Context(), id); err != nil {
			f.Fatal(err)
		}
		if record.State.Final() && record.State != want {
			f.Fatalf("run %s is %s, want %s: %+v", id, record.State, want, record)
		}
		return record.State == want
	})
	return record
}

func TestATickRunsOnceOnManyWorkers(t *testing.T) {
	f := newFleet(t)
	var mu sync.Mutex
	ran := make(map[jobs.RunID]int)
	job := f.job("tick", func(_ context.Context, r *jobs.Run[struct{}]) error {
		mu.Lock()
		defer mu.Unlock()
		ran[r.ID()]++
		return nil
	}, func(j *jobs.Job) { j.Every = time.Second })
	for range 3 {
		f.start()
	}
	f.await("four ticks", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(ran) >= 4
	})
	var history []*ledger.Record
	f.await("their records", func() (so bool) {
		var err error
		if history, err = f.ledger.History(f.Context(), job.Name, 0); err != nil {
			t.Fatal(err)
		}
		return len(history) >= 4
	})
	mu.Lock()
	defer mu.Unlock()
	slices.SortFunc(history, func(a, b *ledger.Record) int { return a.Tick.Compare(b.Tick) })
	for i, record := range history {
		if i > 0 && !record.Tick.Equal(history[i-1].Tick.Add(time.Second)) {
			t.Errorf("tick %v follows %v, want every second", record.Tick, history[i-1].Tick)
		}
		if record.State != ledger.StateSucceeded || ran[record.ID] != 1 || len(record.Attempts) != 1 {
			t.Errorf("run %s: %s, ran %d times in %d attempts, want once", record.ID, record.State, ran[record.ID], len(record.Attempts))
		}
	}
}

func TestAFailedAttemptIsRepeatedUntilItSucceeds(t *testing.T) {
	f := newFleet(t)
	job := f.job("flaky", func(_ context.Context, r *jobs.Run[struct{}]) error {
		switch r.Attempt() {
		case 1:
			return errors.New("not yet")
		case 2:
			panic("no")
		}
		return nil
	})
	f.start()
	record := f.awaitState(f.enqueue(job, "x"), ledger.StateSucceeded)
	if len(record.Attempts) != 3 || record.Fails != 2 {
		t.Fatalf("%+v, want two failures and a success", record)
	}
	if a := record.Attempts; a[0].Error != "not yet" || !strings.HasPrefix(a[1].Error, "panic: no") || a[2].Token <= a[1].Token || a[1].Token <= a[0].Token {
		t.Errorf("attempts %+v, want both errors and growing tokens", a)
	}
}

func TestRetriesEnd(t *testing.T) {
	f := newFleet(t)
	job := f.job("broken", func(context.Context, *jobs.Run[struct{}]) error { return errors.New("never") },
		func(j *jobs.Job) { j.Retry.Max = 2 })
	final := f.job("final", func(context.Context, *jobs.Run[struct{}]) error { return jobs.Permanent(errors.New("no use")) })
	f.start()
	if record := f.awaitState(f.enqueue(job, "x"), ledger.StateFailed); len(record.Attempts) != 3 {
		t.Errorf("%d attempts, want 3", len(record.Attempts))
	}
	if record := f.awaitState(f.enqueue(final, "x"), ledger.StateFailed); len(record.Attempts) != 1 {
		t.Errorf("%d attempts, want 1", len(record.Attempts))
	}
}

func TestATimeoutEndsAnAttempt(t *testing.T) {
	f := newFleet(t)
	job := f.job("slow", func(ctx context.Context, _ *jobs.Run[struct{}]) error {
		<-ctx.Done()
		return ctx.Err()
	}, func(j *jobs.Job) { j.Timeout, j.Retry.Max = 10*time.Millisecond, 0 })
	f.start()
	record := f.awaitState(f.enqueue(job, "x"), ledger.StateFailed)
	if !strings.Contains(record.Last().Error, "timeout") {
		t.Errorf("error %q, want the timeout named", record.Last().Error)
	}
}

func TestARunThatWaitsForALockTakesNoSlot(t *testing.T) {
	f := newFleet(t)
	nothing := func(context.Context, *jobs.Run[struct{}]) error { return nil }
	billed := f.job("billed", nothing, func(j *jobs.Job) { j.Lock.Exclusive = []string{"bill:1"} })
	free := f.job("free", nothing)
	client, err := locks.Open(t.Context(), f.rdb, locks.Options{Namespace: f.namespace, Name: "other"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := client.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	hold, err := client.Acquire(t.Context(), locks.Exclusive("bill:1"))
	if err != nil {
		t.Fatal(err)
	}
	f.start(func(o *worker.Options) { o.Concurrency = 1 })
	var waiting []jobs.RunID
	for i := range 20 {
		waiting = append(waiting, f.enqueue(billed, fmt.Sprint(i)))
	}
	for _, id := range waiting {
		f.awaitState(id, ledger.StateWaiting)
	}
	f.awaitState(f.enqueue(free, "x"), ledger.StateSucceeded)
	if err := hold.Release(); err != nil {
		t.Fatal(err)
	}
	for _, id := range waiting {
		f.awaitState(id, ledger.StateSucceeded)
	}
}

// TestAQueuePausedByOthersToolsKeepsItsRunsBack pauses as asynq's tools do, without any notice.
func TestAQueuePausedByOthersToolsKeepsItsRunsBack(t *testing.T) {
	f := newFleet(t)
	billed := f.job("billed", func(context.Context, *jobs.Run[struct{}]) error { return nil },
		func(j *jobs.Job) { j.Lock.Exclusive = []string{"bill:1"} })
	client, err := locks.Open(t.Context(), f.rdb, locks.Options{Namespace: f.namespace, Name: "other"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := client.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	hold, err := client.Acquire(t.Context(), locks.Exclusive("bill:1"))
	if err != nil {
		t.Fatal(err)
	}
	f.start()
	id := f.enqueue(billed, "1")
	f.awaitState(id, ledger.StateWaiting)
	flag := "asynq:{" + f.queue + "}:paused"
	if err := f.rdb.Set(t.Context(), flag, time.Now().Unix(), 0).Err(); err != nil {
		t.Fatal(err)
	}
	f.await("its wait to step back", func() bool {
		listing, err := client.Space().Read(t.Context())
		return err == nil && len(listing.Waits) == 1 && listing.Waits[0].State == space.Kept
	})
	if err := hold.Release(); err != nil {
		t.Fatal(err)
	}
	if hold, err = client.TryAcquire(t.Context(), locks.Exclusive("bill:1")); err != nil {
		t.Fatalf("%v, want the lock free for others", err)
	}
	if err := hold.Release(); err != nil {
		t.Fatal(err)
	}
	f.awaitState(id, ledger.StateWaiting)
	if err := f.rdb.Del(t.Context(), flag).Err(); err != nil {
		t.Fatal(err)
	}
	f.awaitState(id, ledger.StateSucceeded)
}

func TestADrainHandsRunsBack(t *testing.T) {
	f := newFleet(t)
	began := make(chan int, 10)
	job := f.job("long", func(ctx context.Context, r *jobs.Run[struct{}]) error {
		began <- r.Attempt()
		if r.Attempt() > 1 {
			return nil
		}
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), jobs.ErrDrain) {
			t.Errorf("the context ended with %v, want the drain", context.Cause(ctx))
		}
		return ctx.Err()
	})
	abort := make(chan struct{})
	first := f.start(func(o *worker.Options) { o.DrainTimeout, o.Abort = time.Hour, abort })
	id := f.enqueue(job, "x")
	<-began
	close(abort) // as a second signal does: no waiting
	first.stop()
	record, _, err := f.ledger.Find(t.Context(), id)
	if err != nil || record.Fails != 0 || record.Crashes != 0 || record.State.Final() {
		t.Fatalf("%+v, %v, want it handed back with nothing counted", record, err)
	}
	f.start()
	if record = f.awaitState(id, ledger.StateSucceeded); len(record.Attempts) != 2 {
		t.Errorf("attempts %+v, want the one handed back and the next", record.Attempts)
	}
}

func TestADrainLetsRunsEnd(t *testing.T) {
	f := newFleet(t)
	began, end := make(chan struct{}), make(chan struct{})
	job := f.job("long", func(ctx context.Context, _ *jobs.Run[struct{}]) error {
		close(began)
		<-end
		return ctx.Err()
	})
	w := f.start()
	id := f.enqueue(job, "x")
	<-began
	stopped := make(chan struct{})
	go func() { w.stop(); close(stopped) }()
	f.await("the drain", func() bool { return w.Unready() != nil })
	close(end)
	<-stopped
	f.awaitState(id, ledger.StateSucceeded)
}

func TestARunWhoseSessionEndsIsTakenOver(t *testing.T) {
	f := newFleet(t)
	began, second := make(chan locks.Token, 10), make(chan struct{})
	causes := make(chan error, 1)
	job := f.job("long", func(ctx context.Context, r *jobs.Run[struct{}]) error {
		began <- r.Token()
		if r.Attempt() > 1 {
			close(second)
			return nil
		}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		<-second
		return nil // it reports success, but another worker has the run by now
	})
	first := f.start()
	id := f.enqueue(job, "x")
	token := <-began
	f.start()
	exp := "{" + f.namespace + "}:exp"
	if err := f.rdb.ZAddXX(t.Context(), exp, redis.Z{Score: 1, Member: "s" + string(f.session(first))}).Err(); err != nil {
		t.Fatal(err)
	}
	if next := <-began; next <= token {
		t.Errorf("token %v after %v, want it to grow", next, token)
	}
	if cause := <-causes; !errors.Is(cause, locks.ErrLost) {
		t.Errorf("the first attempt's context ended with %v, want the lock lost", cause)
	}
	record := f.awaitState(id, ledger.StateSucceeded)
	if record.Crashes != 0 || record.Fails != 0 || len(record.Attempts) != 2 || record.Attempts[0].Outcome != ledger.AttemptLostLease {
		t.Errorf("%+v, want one lost lease and then the success", record)
	}
}

func TestSessionsAreReportedBeforeAnyClaim(t *testing.T) {
	f := newFleet(t)
	var mu sync.Mutex
	var told []locks.SessionID
	began := make(chan int, 10)
	job := f.job("long", func(ctx context.Context, r *jobs.Run[struct{}]) error {
		mu.Lock()
		began <- len(told)
		mu.Unlock()
		if r.Attempt() > 1 {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	})
	w := f.start(func(o *worker.Options) {
		o.OnSession = func(id locks.SessionID) {
			mu.Lock()
			defer mu.Unlock()
			if !slices.Contains(told, id) {
				told = append(told, id)
			}
		}
	})
	id := f.enqueue(job, "x")
	if n := <-began; n != 1 {
		t.Errorf("the first attempt began when %d sessions had been told, want its own", n)
	}
	exp := "{" + f.namespace + "}:exp"
	if err := f.rdb.ZAddXX(t.Context(), exp, redis.Z{Score: 1, Member: "s" + string(f.session(w))}).Err(); err != nil {
		t.Fatal(err)
	}
	if n := <-began; n != 2 {
		t.Errorf("the second attempt began when %d sessions had been told, want its own as well", n)
	}
	for i, a := range f.awaitState(id, ledger.StateSucceeded).Attempts {
		if a.Worker != told[i] {
			t.Errorf("attempt %d ran under %s, told was %s", i+1, a.Worker, told[i])
		}
	}
}

// TestAWorkerRunsOneSuspectAtATime: three runs crash together, and never run together again.
func TestAWorkerRunsOneSuspectAtATime(t *testing.T) {
	f := newFleet(t)
	var mu sync.Mutex
	suspects, most := 0, 0
	began, end, endHealthy := make(chan jobs.RunID, 10), make(chan struct{}), make(chan struct{})
	job := f.job("risky", func(ctx context.Context, r *jobs.Run[struct{}]) error {
		if r.Attempt() == 1 {
			began <- r.ID()
			<-ctx.Done()
			return ctx.Err()
		}
		mu.Lock()
		suspects++
		most = max(most, suspects)
		mu.Unlock()
		began <- r.ID()
		<-end
		mu.Lock()
		suspects--
		mu.Unlock()
		return nil
		// so that none of them leaves the place before its attempt ends
	}, func(j *jobs.Job) { j.MaxCrashes = 2 })
	healthy := f.job("healthy", func(context.Context, *jobs.Run[struct{}]) error { <-endHealthy; return nil })
	w := f.start(calm) // four slots
	release := sync.OnceFunc(func() { close(end) })
	healed := sync.OnceFunc(func() { close(endHealthy) })
	t.Cleanup(func() { release(); healed() })
	var runs []jobs.RunID
	for i := range 3 {
		runs = append(runs, f.enqueue(job, fmt.Sprint(i)))
	}
	for range runs {
		<-began
	}
	f.dies(w)
	<-began // the first suspect runs
	other := f.enqueue(healthy, "x")
	f.awaitState(other, ledger.StateRunning) // beside it
	healed()
	f.awaitState(other, ledger.StateSucceeded)
	// Meanwhile the other two are offered again and again. The n of their deliveries shows how
	// often.
	f.await("the other two to be put off several times", func() bool {
		off := 0
		for _, id := range runs {
			record, err := f.rdb.HGet(t.Context(), "{"+f.namespace+"}:run", string(id)).Result()
			if err != nil {
				t.Fatal(err)
			}
			fields := strings.Split(record, "\x1f") // state, n, ...
			if n, err := strconv.Atoi(fields[1]); err == nil && fields[0] == string(ledger.StateDue) && n > 5 {
				off++
			}
		}
		return off == 2
	})
	for range 2 {
		end <- struct{}{}
		<-began
	}
	release()
	for _, id := range runs {
		if record := f.awaitState(id, ledger.StateSucceeded); record.Crashes != 1 || len(record.Attempts) != 2 {
			t.Errorf("%s: %d crashes, %d attempts, want one crash and then the success", id, record.Crashes, len(record.Attempts))
		}
	}
	if most != 1 {
		t.Errorf("%d runs that had crashed before ran at a time, want 1", most)
	}
}

func TestADeliveryThatNeverCameIsRepeated(t *testing.T) {
	f := newFleet(t)
	job := f.job("j", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	enqueued, err := f.ledger.Enqueue(t.Context(), ledger.Request{Job: job, ID: "x", Trigger: ledger.TriggerEnqueue})
	if err != nil {
		t.Fatal(err)
	}
	f.start() // its client died before the push
	f.awaitState(enqueued.Run, ledger.StateSucceeded)
}

// TestWhatIsMadeDueInThisProcessNeedsNoQueue has a run that was never pushed, and that the sweep
// takes for pushed.
func TestWhatIsMadeDueInThisProcessNeedsNoQueue(t *testing.T) {
	f := newFleet(t)
	job := f.job("j", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	w := f.start()
	enqueued, err := f.ledger.Enqueue(t.Context(), ledger.Request{Job: job, ID: "x", Trigger: ledger.TriggerEnqueue})
	if err == nil {
		err = f.ledger.Confirm(t.Context(), enqueued.Due)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !w.Deliver(t.Context(), enqueued.Due) {
		t.Error("a worker that is ready does not take it")
	}
	f.awaitState(enqueued.Run, ledger.StateSucceeded)
	w.stop()
	if w.Deliver(t.Context(), enqueued.Due) {
		t.Error("a worker that has ended takes it")
	}
}

func TestADeliveryThatTheQueueLostIsRepeated(t *testing.T) {
	f := newFleet(t)
	job := f.job("j", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	enqueued, err := f.ledger.Enqueue(t.Context(), ledger.Request{Job: job, ID: "x", Trigger: ledger.TriggerEnqueue})
	if err != nil {
		t.Fatal(err)
	}
	// it was pushed, and then the queue was emptied
	if err := f.ledger.Confirm(t.Context(), enqueued.Due); err != nil {
		t.Fatal(err)
	}
	// As if ten seconds ago: no test needs to wait for them.
	sent := redis.Z{Score: 1, Member: string(enqueued.Run)}
	if err := f.rdb.ZAddXX(t.Context(), "{"+f.namespace+"}:sent", sent).Err(); err != nil {
		t.Fatal(err)
	}
	f.start()
	f.awaitState(enqueued.Run, ledger.StateSucceeded)
}

func TestTicksContinueWhenTheWorkerOnDutyIsLost(t *testing.T) {
	f := newFleet(t)
	job := f.job("tick", func(context.Context, *jobs.Run[struct{}]) error { return nil }, func(j *jobs.Job) { j.Every = time.Second })
	for range 3 {
		f.start()
	}
	ticks := func() []*ledger.Record {
		history, err := f.ledger.History(t.Context(), job.Name, 0)
		if err != nil {
			t.Fatal(err)
		}
		return history
	}
	f.await("two ticks", func() bool { return len(ticks()) >= 2 })
	duty, err := f.rdb.HGet(t.Context(), "{"+f.namespace+"}:ledger", "duty").Result()
	if err != nil {
		t.Fatal(err)
	}
	// To the others it has died; it continues to poll, which does not give it duty again.
	if err := f.rdb.ZAddXX(t.Context(), "{"+f.namespace+"}:exp", redis.Z{Score: 1, Member: "s" + duty}).Err(); err != nil {
		t.Fatal(err)
	}
	before := len(ticks())
	f.await("three more ticks", func() bool { return len(ticks()) >= before+3 })
	history := ticks()
	slices.SortFunc(history, func(a, b *ledger.Record) int { return a.Tick.Compare(b.Tick) })
	for i := 1; i < len(history); i++ {
		if !history[i].Tick.Equal(history[i-1].Tick.Add(time.Second)) {
			t.Errorf("tick %v follows %v, want every second", history[i].Tick, history[i-1].Tick)
		}
	}
	if by := history[len(history)-1].By; string(by) == duty {
		t.Errorf("the last tick was decided by %s, whose session has ended", by)
	}
}

func TestADrainWithoutRedisEndsWithTheLease(t *testing.T) {
	server := redistest.New(t, redistest.Options{})
	f := newFleetOn(t, server.Client(t))
	began := make(chan struct{})
	job := f.job("long", func(ctx context.Context, _ *jobs.Run[struct{}]) error {
		close(began)
		<-ctx.Done()
		return ctx.Err()
	})
	abort := make(chan struct{})
	w := f.start(func(o *worker.Options) { o.DrainTimeout, o.Abort = time.Hour, abort })
	f.enqueue(job, "x")
	<-began
	server.Kill()
	close(abort)
	w.stopsInTime(t, "the worker still tries to hand its run back, though its lease has run out")
}

// TestADrainDoesNotWaitForARedisThatIsAway has an attempt succeed that cannot be recorded: its
// worker ends with the lease.
func TestADrainDoesNotWaitForARedisThatIsAway(t *testing.T) {
	server := redistest.New(t, redistest.Options{})
	f := newFleetOn(t, server.Client(t))
	began := make(chan struct{})
	job := f.job("done", func(ctx context.Context, _ *jobs.Run[struct{}]) error {
		close(began)
		<-ctx.Done()
		return nil
	})
	w := f.start(func(o *worker.Options) { o.DrainTimeout = time.Millisecond })
	f.enqueue(job, "x")
	<-began
	server.Kill()
	w.stopsInTime(t, "the worker still tries to record a success, though its lease has run out")
}

// TestADrainTimeoutRunsWhileTheCardIsWritten: Redis does not reply to the write of the card that
// shows the drain.
func TestADrainTimeoutRunsWhileTheCardIsWritten(t *testing.T) {
	f := newFleet(t)
	began, ended := make(chan struct{}), make(chan struct{})
	job := f.job("long", func(ctx context.Context, _ *jobs.Run[struct{}]) error {
		close(began)
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	})
	replies := make(chan struct{})
	release := sync.OnceFunc(func() { close(replies) })
	shows := func(request string) bool { return strings.Contains(request, `"state":"draining"`) }
	w := f.start(f.lossy(shows, func() { <-replies }), func(o *worker.Options) { o.DrainTimeout = 100 * time.Millisecond })
	t.Cleanup(release) // before the worker stops
	f.enqueue(job, "x")
	<-began
	stopped := make(chan struct{})
	go func() { w.stop(); close(stopped) }() // received below
	select {
	case <-ended:
	case <-time.After(patience / 3):
		t.Error("the attempt continues after the drain timeout, while the write of the card gets no reply")
	}
	release()
	<-stopped
}

// A removed job has no more ticks, an added one begins now, and one that stays loses none, even
// while the set is replaced again and again.
func TestJobsAreReplacedWhileTheWorkerRuns(t *testing.T) {
	f := newFleet(t)
	handle := func(context.Context, *jobs.Run[struct{}]) error { return nil }
	everySecond := func(job *jobs.Job) { job.Every = time.Second }
	stays, goes, comes := f.job("stays", handle, everySecond), f.job("goes", handle, everySecond), f.job("comes", handle, everySecond)
	ticks := func(job *jobs.Job) []time.Time {
		records, err := f.ledger.History(t.Context(), job.Name, 0)
		if err != nil {
			t.Fatal(err)
		}
		var list []time.Time
		for _, record := range records {
			list = append(list, record.Tick)
		}
		slices.SortFunc(list, time.Time.Compare)
		return list
	}
	w := f.start(func(o *worker.Options) { o.Jobs, o.Config = []*jobs.Job{stays, goes}, "one" })
	f.await("ticks of the first set", func() bool { return len(ticks(stays)) > 0 && len(ticks(goes)) > 0 })
	broken := *stays
	broken.Schedule, broken.Every = "x", 0
	if err := w.SetJobs(t.Context(), []*jobs.Job{&broken}, nil, "broken"); err == nil || !strings.Contains(err.Error(), "stays") {
		t.Errorf("a set that cannot be used: got %v, want an error that names the job", err)
	}
	for range 5 {
		if err := w.SetJobs(t.Context(), []*jobs.Job{stays, comes}, nil, "two"); err != nil {
			t.Fatal(err)
		}
	}
	f.await("ticks of the second set", func() bool { return len(ticks(comes)) > 1 })
	last := len(ticks(goes))
	f.await("more of them", func() bool { return len(ticks(comes)) > 3 })
	if now := len(ticks(goes)); now > last+1 { // one was perhaps decided and not finished yet
		t.Errorf("the removed job had %d ticks, and has %d now", last, now)
	}
	list := ticks(stays)
	for i := 1; i < len(list); i++ {
		if gap := list[i].Sub(list[i-1]); gap != time.Second {
			t.Errorf("the job that stays has a gap of %s after %s", gap, list[i-1])
		}
	}
	space, err := locks.NewSpace(f.rdb, f.namespace)
	if err != nil {
		t.Fatal(err)
	}
	sessions, _, err := space.Sessions(t.Context())
	if err != nil || len(sessions) != 1 || !strings.Contains(string(sessions[0].Card), `"config":"two"`) {
		t.Errorf("got %+v, %v, want the card to tell of the new config", sessions, err)
	}
}

// calm gives a worker a lease that survives on a busy machine: one more crash would end its runs.
func calm(o *worker.Options) { o.Locks.Lease = 6 * time.Second }

// TestASuspectThatOutlivesItsCrashLeavesThePlace: two runs crash together; the second one starts
// again while the first one is still running, on the same worker, when that has run for longer than
// before. Redis does not reply to the first calls that read how long that was.
func TestASuspectThatOutlivesItsCrashLeavesThePlace(t *testing.T) {
	f := newFleet(t)
	began, end := make(chan jobs.RunID, 10), make(chan struct{})
	job := f.job("risky", func(ctx context.Context, r *jobs.Run[struct{}]) error {
		began <- r.ID()
		if r.Attempt() == 1 {
			<-ctx.Done()
			return ctx.Err()
		}
		<-end
		return nil
	})
	find := f.digestOf("find")
	var lost atomic.Int32
	var shown atomic.Bool // a card has named the suspect
	reads := func(request string) bool {
		return strings.Contains(request, find) && (lost.Load() < 2 || !shown.Load())
	}
	w := f.start(calm, f.lossy(reads, func() { lost.Add(1) }))
	release := sync.OnceFunc(func() { close(end) })
	t.Cleanup(release)
	runs := []jobs.RunID{f.enqueue(job, "a"), f.enqueue(job, "b")}
	for range runs {
		<-began
	}
	f.dies(w)
	first := <-began
	f.await("the card to name the suspect", func() bool {
		card := f.card(w.ID())
		return card.Suspect == first && card.Busy == 1
	})
	shown.Store(true)
	select {
	case <-began:
	case <-time.After(patience / 2):
		t.Fatal("the second suspect does not start although the first one has outlived its crash")
	}
	if lost.Load() < 2 {
		t.Errorf("%d replies were lost, want 2: nothing was tested", lost.Load())
	}
	release()
	for _, id := range runs {
		if record := f.awaitState(id, ledger.StateSucceeded); record.Crashes != 1 {
			t.Errorf("%s: %d crashes, want 1", id, record.Crashes)
		}
	}
}

// TestACardOfManyHandlersIsBounded starts a worker with more handlers than its card has room for.
// Whether it has one that is not on the card stays open.
func TestACardOfManyHandlersIsBounded(t *testing.T) {
	f := newFleet(t)
	name := func(i int) string { return fmt.Sprintf("%s%04d", strings.Repeat("x", 96), i) }
	for i := range 3000 {
		jobs.Handle(f.handlers, name(i), func(context.Context, *jobs.Run[struct{}]) error { return nil })
	}
	card := f.card(f.session(f.start()))
	if !card.Has(name(0)) || !card.Has(name(500)) || !card.Has(name(2999)) || !card.Has("other") {
		t.Error("the card of 3,000 handlers excludes one that it does not have")
	}
	card.MoreHandlers = 1000
	if !card.Has(name(500)) || card.Has(name(2000)) {
		t.Error("the card has no hashes of the handlers that it does not name")
	}
}

func TestACardShowsWhatAWorkerCanStart(t *testing.T) {
	f := newFleet(t)
	end := make(chan struct{})
	release := sync.OnceFunc(func() { close(end) })
	t.Cleanup(release)
	job := f.job("long", func(context.Context, *jobs.Run[struct{}]) error { <-end; return nil })
	for i := range 70 {
		jobs.Handle(f.handlers, fmt.Sprintf("x%02d", i), func(context.Context, *jobs.Run[struct{}]) error { return nil })
	}
	w := f.start()
	card := f.card(f.session(w))
	if card.Busy != 0 || len(card.Handlers) != 64 || card.Handlers[0] != "long" || card.MoreHandlers != 7 {
		t.Errorf("idle: %+v, want no slot busy, 64 of 71 handlers named", card)
	}
	if !card.Has("x00") || !card.Has("x63") || !card.Has("x69") || card.Has("x70") {
		t.Error("the card does not show which handlers the worker has")
	}
	id := f.enqueue(job, "x")
	f.await("the busy slot to show", func() bool { return f.card(w.ID()).Busy == 1 })
	release()
	f.awaitState(id, ledger.StateSucceeded)
	f.await("the free slot to show", func() bool { return f.card(w.ID()).Busy == 0 })
}
