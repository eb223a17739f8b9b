package worker_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
	"lockstep/scheduler/worker"
)

// stock is a worker of the standard program, without handlers.
func stock(o *worker.Options) { o.Executors["handler"] = jobs.NewRegistry() }

// awaitAside waits until a run is set aside, and returns its needs.
func (f *fleet) awaitAside(id jobs.RunID) (record *ledger.Record, need ledger.Need) {
	f.Helper()
	f.await(fmt.Sprintf("run %s to be set aside", id), func() bool {
		var err error
		if record, _, err = f.ledger.Find(f.Context(), id); err != nil {
			f.Fatal(err)
		}
		if need, err = f.ledger.NeedOf(f.Context(), record); err != nil {
			f.Fatal(err)
		}
		return record.State == ledger.StateDue && need != ""
	})
	return record, need
}

// TestRunsStartAtOnceOnTheOneWorkerThatHasTheirHandler makes four workers of five take most of the
// deliveries.
func TestRunsStartAtOnceOnTheOneWorkerThatHasTheirHandler(t *testing.T) {
	f := newFleet(t)
	var mu sync.Mutex
	var delays []time.Duration
	asked := make(map[jobs.RunID]time.Time)
	job := f.job("bill", func(_ context.Context, r *jobs.Run[struct{}]) error {
		mu.Lock()
		defer mu.Unlock()
		delays = append(delays, time.Since(asked[r.ID()]))
		return nil
	}, func(j *jobs.Job) { j.Lock.Exclusive = []string{"till"} })
	for range 4 {
		f.start(stock)
	}
	f.start()
	const n = 20
	var runs []jobs.RunID
	for i := range n {
		mu.Lock()
		asked[jobs.RequestRunID("bill", fmt.Sprint(i))] = time.Now()
		mu.Unlock()
		runs = append(runs, f.enqueue(job, fmt.Sprint(i)))
	}
	for _, id := range runs {
		if record := f.awaitState(id, ledger.StateSucceeded); len(record.Attempts) != 1 || record.Fails != 0 {
			t.Errorf("%s has %d attempts, want 1", id, len(record.Attempts))
		}
	}
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(delays)
	t.Logf("the runs started %v to %v after they were asked for", delays[0], delays[n-1])
	if delays[n/2] > 3*time.Second || delays[n-1] > 20*time.Second {
		t.Errorf("runs started up to %v after they were asked for, want about a second at most: %v", delays[n-1], delays)
	}
}

// TestARunThatNoWorkerCanDoStaysDueAndCostsNothing gives a run to two workers without its handler,
// then starts one with it.
func TestARunThatNoWorkerCanDoStaysDueAndCostsNothing(t *testing.T) {
	f := newFleet(t)
	job := f.job("bill", func(context.Context, *jobs.Run[struct{}]) error { return nil },
		func(j *jobs.Job) { j.Lock.Exclusive = []string{"till"} })
	other := f.job("other", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	has := jobs.NewRegistry()
	jobs.Handle(has, "other", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	for range 2 {
		f.start(func(o *worker.Options) { o.Executors["handler"] = has })
	}
	id := f.enqueue(job, "x")
	record, need := f.awaitAside(id)
	if need.Handler() != "bill" || len(record.Attempts) != 0 {
		t.Errorf("%+v, which needs %s; want no attempt, and its handler named", record, need)
	}
	if seq := f.rdb.Get(t.Context(), f.key("seq")).Val(); seq != "" {
		t.Errorf("token %s was issued, want none", seq)
	}
	text := f.rdb.HGet(t.Context(), f.key("run"), string(id)).Val()
	const lookUpTime = 4 * time.Second // within which a delivery that is in no queue is detected
	until := time.Now().Add(lookUpTime)
	for i := 0; time.Now().Before(until); i++ {
		f.awaitState(f.enqueue(other, fmt.Sprint(i)), ledger.StateSucceeded)
		if now := f.rdb.HGet(t.Context(), f.key("run"), string(id)).Val(); now != text {
			t.Fatalf("the record was %q and is %q, want nothing to happen to it", text, now)
		}
	}
	began := time.Now()
	f.start()
	if record = f.awaitState(id, ledger.StateSucceeded); len(record.Attempts) != 1 {
		t.Errorf("%d attempts, want 1", len(record.Attempts))
	}
	t.Logf("it ended %v after a worker with its handler had been started", time.Since(began))
	if n := f.rdb.Exists(t.Context(), f.key("aside")).Val(); n != 0 {
		t.Error("something is still set aside")
	}
}

// TestACanceledRunIsNoLongerSetAside cancels one of two runs that no worker can do.
func TestACanceledRunIsNoLongerSetAside(t *testing.T) {
	f := newFleet(t)
	job := f.job("bill", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	f.start(stock)
	first, second := f.enqueue(job, "a"), f.enqueue(job, "b")
	f.awaitAside(first)
	f.awaitAside(second)
	if _, err := f.ledger.Cancel(t.Context(), first, job, ledger.Act{Who: "ann"}); err != nil {
		t.Fatal(err)
	}
	f.await("the entry of the canceled run to be removed", func() bool { return f.rdb.ZCard(t.Context(), f.key("aside")).Val() == 1 })
	f.start()
	f.awaitState(second, ledger.StateSucceeded)
	f.awaitState(first, ledger.StateCanceled)
}

// TestRunsAreLeftToWorkersOfAnOlderBuildAsWell includes a worker that picks nothing.
func TestRunsAreLeftToWorkersOfAnOlderBuildAsWell(t *testing.T) {
	f := newFleet(t)
	job := f.job("bill", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	older, err := locks.Open(t.Context(), f.rdb, locks.Options{Namespace: f.namespace, Name: "older",
		Card: fmt.Appendf(nil, `{"slots":1,"queues":{%q:1}}`, f.queue)})
	if err != nil {
		t.Fatal(err)
	}
	defer older.Close(context.WithoutCancel(t.Context()))
	f.start(stock)
	id := f.enqueue(job, "x")
	f.await("the run to be pushed again", func() bool {
		fields := f.rdb.HGet(t.Context(), f.key("run"), string(id)).Val()
		var n int
		_, err := fmt.Sscanf(fields, "due\x1f%d\x1f", &n)
		return err == nil && n >= 3
	})
	if record, _, err := f.ledger.Find(t.Context(), id); err != nil || len(record.Attempts) != 0 {
		t.Errorf("%+v, %v, want no attempt", record, err)
	}
}

// TestRunsThatAreSetAsideAreLeftToAWorkerOfAnOlderBuildThatComesLater starts a worker that picks
// nothing after runs were set aside. It sees only the deliveries in its queue.
func TestRunsThatAreSetAsideAreLeftToAWorkerOfAnOlderBuildThatComesLater(t *testing.T) {
	f := newFleet(t)
	job := f.job("bill", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	f.start(stock)
	ids := []jobs.RunID{f.enqueue(job, "a"), f.enqueue(job, "b")}
	for _, id := range ids {
		f.awaitAside(id)
	}
	n := func(id jobs.RunID) (n int) {
		f.Helper()
		if _, err := fmt.Sscanf(f.rdb.HGet(t.Context(), f.key("run"), string(id)).Val(), "due\x1f%d\x1f", &n); err != nil {
			f.Fatal(err)
		}
		return n
	}
	older, err := locks.Open(t.Context(), f.rdb, locks.Options{Namespace: f.namespace, Name: "older",
		Card: fmt.Appendf(nil, `{"slots":1,"queues":{%q:1}}`, f.queue)})
	if err != nil {
		t.Fatal(err)
	}
	defer older.Close(context.WithoutCancel(t.Context()))
	for _, id := range ids {
		f.await(fmt.Sprintf("run %s to be pushed again and again", id), func() bool {
			return f.rdb.ZCard(t.Context(), f.key("aside")).Val() == 0 && n(id) >= 5
		})
	}
	const during = 3 * time.Second
	before := n(ids[0])
	time.Sleep(during)
	// Each second adds one to n, or two when a run is set aside once more: it is also picked.
	if times := n(ids[0]) - before; times > 4*int(during/time.Second) {
		t.Errorf("its n grew by %d in %v, want about one a second", times, during)
	}
	for _, id := range ids {
		if record, _, err := f.ledger.Find(t.Context(), id); err != nil || len(record.Attempts) != 0 {
			t.Errorf("%+v, %v, want no attempt", record, err)
		}
	}
}

// TestARunIsFoundBehindManyThatNoWorkerCanDo: the others need so many handlers that their shelves
// fill several pages.
func TestARunIsFoundBehindManyThatNoWorkerCanDo(t *testing.T) {
	f := newFleet(t)
	var d done
	job := f.job("zz", d.handle)
	aside := func(id string, need ledger.Need) jobs.RunID {
		enqueued, err := f.ledger.Enqueue(t.Context(), ledger.Request{Job: job, ID: id, Trigger: ledger.TriggerEnqueue})
		if err != nil {
			t.Fatal(err)
		}
		if done, err := f.ledger.SetAside(t.Context(), enqueued.Due[0], need); err != nil || !done {
			t.Fatalf("%s is not set aside: %v", enqueued.Run, err)
		}
		return enqueued.Run
	}
	for i := range 140 {
		aside(fmt.Sprint(i), ledger.Need(fmt.Sprintf("handler %03d", i)))
	}
	run := aside("found", "handler zz")
	f.start()
	f.awaitState(run, ledger.StateSucceeded)
}

// TestARunThatIsSetAsideObeysAPauseFromBeforeItsPick: the queue is paused while the worker waits
// for a free slot.
func TestARunThatIsSetAsideObeysAPauseFromBeforeItsPick(t *testing.T) {
	f := newFleet(t)
	var started atomic.Bool
	free, listed := make(chan struct{}), make(chan struct{}, 1)
	blocks := f.job("blocks", func(context.Context, *jobs.Run[struct{}]) error { <-free; return nil })
	job := f.job("bill", func(context.Context, *jobs.Run[struct{}]) error { started.Store(true); return nil })
	var setAside atomic.Bool
	w := f.start(func(o *worker.Options) { o.Concurrency = 1 }, f.lossy(func(request string) bool {
		if setAside.Load() && strings.Contains(request, "\r\nlist\r\n") {
			select {
			case listed <- struct{}{}:
			default:
			}
		}
		return false
	}, nil))
	release := sync.OnceFunc(func() { close(free) })
	defer release()
	f.awaitState(f.enqueue(blocks, "x"), ledger.StateRunning)
	enqueued, err := f.ledger.Enqueue(t.Context(), ledger.Request{Job: job, ID: "a", Trigger: ledger.TriggerEnqueue})
	if err != nil {
		t.Fatal(err)
	}
	setAside.Store(true)
	if done, err := f.ledger.SetAside(t.Context(), enqueued.Due[0], "handler bill"); err != nil || !done {
		t.Fatalf("%v, %v", done, err)
	}
	<-listed
	q, err := queue.New(f.rdb, f.namespace)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Pause(t.Context(), f.queue); err != nil {
		t.Fatal(err)
	}
	f.await("the worker to know of the pause", func() bool { return w.KnowsPaused(f.queue) })
	release()
	f.await("the run to be delivered again, or to start", func() bool {
		return started.Load() || f.rdb.ZScore(t.Context(), f.key("sent"), string(enqueued.Run)).Err() == nil
	})
	if started.Load() {
		t.Fatal("it has started although its queue was paused before the worker picked it")
	}
	if _, err := q.Resume(t.Context(), f.queue); err != nil {
		t.Fatal(err)
	}
	f.awaitState(enqueued.Run, ledger.StateSucceeded)
}

// TestALookAfterAnErrorReachesAllPlaces: it continues where the one before ended, and then reads
// the shelves in front of that. However many pages there are, each is read within some looks.
func TestALookAfterAnErrorReachesAllPlaces(t *testing.T) {
	t.Parallel()
	shelf := func(page int) ledger.Shelf {
		if page == 0 {
			return ledger.Shelf{}
		}
		return ledger.Shelf{Queue: "q", Need: ledger.Need(fmt.Sprintf("handler %03d", page))}
	}
	for _, pages := range []int{1, 3, worker.ShelfPages, 3*worker.ShelfPages - 1} {
		number := make(map[ledger.Shelf]int)
		for page := range pages {
			number[shelf(page)] = page
		}
		for breaks := range pages {
			broken, after := true, ledger.Shelf{}
			read, calls := make(map[int]bool), 0
			pick := func(after ledger.Shelf) (ledger.Shelf, bool) {
				page := number[after]
				if broken && page == breaks {
					return after, false
				}
				read[page] = true
				calls++
				return shelf((page + 1) % pages), true
			}
			for range 1 + breaks/worker.ShelfPages {
				after = worker.WalkShelves(after, pick)
			}
			if number[after] != breaks {
				t.Fatalf("it ended at page %d of %d, want %d, where it failed", number[after], pages, breaks)
			}
			broken = false
			clear(read)
			looks := (pages + worker.ShelfPages - 1) / worker.ShelfPages
			for look := range looks {
				calls = 0
				after = worker.WalkShelves(after, pick)
				if calls > worker.ShelfPages {
					t.Errorf("look %d has read %d pages, want %d at most", look, calls, worker.ShelfPages)
				}
			}
			if len(read) != pages {
				t.Errorf("after an error in page %d of %d, %d looks have read %d of them", breaks, pages, looks, len(read))
			}
		}
	}
}
