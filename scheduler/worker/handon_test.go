package worker_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// began is when a run began and ended.
type began struct {
	run        jobs.RunID
	from, upto time.Time
}

// client opens a session of a process that is not a worker.
func (f *fleet) client() *locks.Client {
	f.Helper()
	client, err := locks.Open(f.Context(), f.rdb, locks.Options{Namespace: f.namespace, Name: "other"})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := client.Close(context.WithoutCancel(f.Context())); err != nil {
			f.Error(err)
		}
	})
	return client
}

// TestHotBillDoesNotStarveBehindABacklog lets some runs wait for a bill, then fills the queue with
// runs that are due later, and releases the bill. The runs of the bill follow each other in the
// order of their requests.
//
// The slots of short runs are given away before their ends are recorded.
func TestHotBillDoesNotStarveBehindABacklog(t *testing.T) {
	for name, takes := range map[string]time.Duration{"long runs": 20 * time.Millisecond, "short runs": time.Millisecond} {
		t.Run(name, func(t *testing.T) { hotBill(t, takes) })
	}
}

func hotBill(t *testing.T, takes time.Duration) {
	f := newFleet(t)
	const waits, slots = 20, 4
	backlog := 600
	if takes < 10*time.Millisecond {
		backlog = 6000
	}
	var mu sync.Mutex
	var bill, others []began
	note := func(to *[]began, r *jobs.Run[struct{}]) {
		from := time.Now()
		time.Sleep(takes) // the work
		mu.Lock()
		defer mu.Unlock()
		*to = append(*to, began{r.ID(), from, time.Now()})
	}
	settle := f.job("settle", func(_ context.Context, r *jobs.Run[struct{}]) error { note(&bill, r); return nil },
		func(j *jobs.Job) { j.Lock.Exclusive = []string{"bill:1"} })
	queued := make(chan struct{}) // closed when the whole backlog is in the queue
	other := f.job("other", func(ctx context.Context, r *jobs.Run[struct{}]) error {
		select {
		case <-queued:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		note(&others, r)
		return nil
	})
	client := f.client()
	hold, err := client.Acquire(t.Context(), locks.Exclusive("bill:1"))
	if err != nil {
		t.Fatal(err)
	}
	f.start(func(o *worker.Options) { o.Concurrency = slots })
	for i := range waits {
		f.enqueue(settle, fmt.Sprintf("%02d", i))
		f.await("the run to wait", func() bool {
			n, err := f.rdb.ZLexCount(t.Context(), "{"+f.namespace+"}:q", "[bill:1\x00", "(bill:1\x01").Result()
			return err == nil && n == int64(i+1)
		})
	}
	f.enqueueMany(other, backlog)
	if err := hold.Release(); err != nil {
		t.Fatal(err)
	}
	released := time.Now()
	close(queued)
	for ended := false; !ended; time.Sleep(10 * time.Millisecond) {
		if time.Since(released) > 3*time.Minute {
			t.Fatal("the runs of the bill did not end in time")
		}
		mu.Lock()
		ended = len(bill) == waits
		mu.Unlock()
	}

	mu.Lock() // the others still run
	defer mu.Unlock()
	slices.SortFunc(bill, func(a, b began) int { return a.from.Compare(b.from) })
	var gaps []time.Duration
	var passed []int // how many others began in each gap
	for i, one := range bill {
		if want := jobs.RunID(fmt.Sprintf("settle#%02d", i)); one.run != want {
			t.Errorf("run %d of the bill is %s, want %s", i+1, one.run, want)
		}
		if i > 0 {
			gaps = append(gaps, one.from.Sub(bill[i-1].upto))
			n := 0
			for _, other := range others {
				if other.from.After(bill[i-1].upto) && other.from.Before(one.from) {
					n++
				}
			}
			passed = append(passed, n)
		}
	}
	left := backlog // when the last run of the bill began
	for _, one := range others {
		if one.from.Before(bill[waits-1].from) {
			left--
		}
	}
	slices.Sort(gaps)
	slices.Sort(passed)
	t.Logf("the first run began %s after the release; the bill was idle for %s at most, %s in the median; up to %d others began meanwhile; %d of %d were left when the last one began",
		bill[0].from.Sub(released), gaps[len(gaps)-1], gaps[len(gaps)/2], passed[len(passed)-1], left, backlog)
	// A gap is two round trips. A machine that starves the process makes some longer, but others do
	// not pass meanwhile.
	if n := passed[len(passed)*95/100-1]; n > backlog/waits {
		t.Errorf("%d others began while the bill was idle between two of its runs, want a few: %d, %s", n, passed, gaps)
	}
	if left <= slots { // those that still run are not noted yet
		t.Error("the runs of the bill ended with the backlog, although they were due before all of it")
	}
}

// TestSlotIsPassedToNoRunThatWasDueLater has a run that waits for a bill and became due after a
// backlog. It does not start before runs of the backlog that were due earlier.
func TestSlotIsPassedToNoRunThatWasDueLater(t *testing.T) {
	f := newFleet(t)
	const backlog = 60
	const takes = 20 * time.Millisecond
	var mu sync.Mutex
	var order []jobs.RunID
	note := func(r *jobs.Run[struct{}]) {
		mu.Lock()
		order = append(order, r.ID())
		mu.Unlock()
		time.Sleep(takes) // the work
	}
	bill := func(j *jobs.Job) { j.Lock.Exclusive = []string{"bill:1"} }
	first := make(chan struct{})
	holds := f.job("holds", func(ctx context.Context, r *jobs.Run[struct{}]) error {
		note(r)
		select {
		case <-first:
		case <-ctx.Done():
		}
		return nil
	}, bill)
	settle := f.job("settle", func(_ context.Context, r *jobs.Run[struct{}]) error { note(r); return nil }, bill)
	other := f.job("other", func(_ context.Context, r *jobs.Run[struct{}]) error { note(r); return nil })
	f.start(func(o *worker.Options) { o.Concurrency = 1 })
	f.enqueue(holds, "1")
	f.await("the first run to begin", func() bool { mu.Lock(); defer mu.Unlock(); return len(order) == 1 })
	f.enqueueMany(other, backlog)
	waits, err := f.ledger.Enqueue(t.Context(), ledger.Request{Job: settle, ID: "1", Trigger: ledger.TriggerEnqueue})
	if err != nil {
		t.Fatal(err)
	}
	request, err := f.client().Extension().Begin()
	if err != nil {
		t.Fatal(err)
	}
	if claimed, err := f.ledger.Claim(t.Context(), request, waits.Due[0], time.Second, nil); err != nil || claimed.Outcome != ledger.ClaimWaiting {
		t.Fatalf("the run of the bill: %+v, %v, want it to wait", claimed, err)
	}
	request.Drop()
	close(first)
	f.await("all runs to begin", func() bool { mu.Lock(); defer mu.Unlock(); return len(order) == backlog+2 })
	at := slices.Index(order, "settle#1")
	t.Logf("the run of the bill was number %d of %d", at+1, len(order))
	if at < backlog {
		t.Errorf("the run of the bill was number %d, before runs that had been due for longer", at+1)
	}
}

// TestLapsedOfferDoesNotSendARunBehindTheBacklog offers a run its locks while no slot is free,
// for longer than they are reserved. Its delivery is then behind a backlog that became due later.
func TestLapsedOfferDoesNotSendARunBehindTheBacklog(t *testing.T) {
	for name, leaves := range map[string]bool{"the worker that was offered it continues": false, "that worker leaves": true} {
		t.Run(name, func(t *testing.T) { lapsedOffer(t, leaves) })
	}
}

func lapsedOffer(t *testing.T, leaves bool) {
	f := newFleet(t)
	const backlog, takes = 150, 100 * time.Millisecond
	var others atomic.Int64
	settled := make(chan int64, 1) // how many others had begun before
	settle := f.job("settle", func(context.Context, *jobs.Run[struct{}]) error { settled <- others.Load(); return nil },
		func(j *jobs.Job) { j.Lock.Exclusive = []string{"bill:1"} })
	released := make(chan struct{})
	long := f.job("long", func(ctx context.Context, _ *jobs.Run[struct{}]) error {
		select {
		case <-released:
		case <-ctx.Done():
		}
		return context.Cause(ctx)
	})
	other := f.job("other", func(context.Context, *jobs.Run[struct{}]) error {
		others.Add(1)
		time.Sleep(takes) // the work
		return nil
	})
	client := f.client()
	hold, err := client.Acquire(t.Context(), locks.Exclusive("bill:1"))
	if err != nil {
		t.Fatal(err)
	}
	one := func(o *worker.Options) { o.Concurrency, o.DrainTimeout = 1, time.Millisecond }
	w := f.start(one)
	waits := func(state space.WaitState) func() bool {
		return func() bool {
			listing, err := client.Space().Read(t.Context())
			return err == nil && len(listing.Waits) == 1 && listing.Waits[0].State == state
		}
	}
	f.enqueue(settle, "1")
	f.await("the run of the bill to wait", waits(space.Waiting))
	f.awaitState(f.enqueue(long, "1"), ledger.StateRunning)
	f.enqueueMany(other, backlog)
	if err := hold.Release(); err != nil {
		t.Fatal(err)
	}
	f.await("its offer to lapse", waits(space.Lapsed))
	if leaves {
		w.stop()
		f.start(one)
	} else {
		close(released)
	}
	select {
	case n := <-settled:
		t.Logf("%d of %d others had begun before the run of the bill", n, backlog)
		if n > backlog-10 {
			t.Errorf("it began with the end of the backlog, although it was due before all of it")
		}
	case <-time.After(time.Minute):
		t.Fatal("the run of the bill has not begun")
	}
}

// TestChainOfHandOnsLetsAnotherQueueIn has one slot, in which the runs of a bill follow each other
// in a queue of a high weight, and a run in a queue of a low weight that was due before nearly all
// of them. That run does not wait for the end of the chain, and the bill keeps its order.
func TestChainOfHandOnsLetsAnotherQueueIn(t *testing.T) {
	f := newFleet(t)
	const waits = 50
	var mu sync.Mutex
	var order []jobs.RunID
	note := func(r *jobs.Run[struct{}]) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, r.ID())
	}
	began := func(n int) func() bool {
		return func() bool { mu.Lock(); defer mu.Unlock(); return len(order) == n }
	}
	critical := func(j *jobs.Job) { j.Queue, j.Lock.Exclusive = f.queue+"-critical", []string{"bill:1"} }
	first := make(chan struct{})
	holds := f.job("holds", func(ctx context.Context, r *jobs.Run[struct{}]) error {
		note(r)
		select {
		case <-first:
		case <-ctx.Done():
		}
		return nil
	}, critical)
	settle := f.job("settle", func(_ context.Context, r *jobs.Run[struct{}]) error { note(r); return nil }, critical)
	other := f.job("other", func(_ context.Context, r *jobs.Run[struct{}]) error { note(r); return nil },
		func(j *jobs.Job) { j.Queue = f.queue + "-low" })
	w := f.start(func(o *worker.Options) {
		o.Concurrency, o.Queues = 1, map[string]int{holds.Queue: 6, other.Queue: 1}
	})
	f.enqueue(holds, "1")
	f.await("the first run to begin", began(1))
	start := time.Now()
	f.enqueue(other, "1")
	client := f.client()
	for i := range waits {
		asked, err := f.ledger.Enqueue(t.Context(), ledger.Request{Job: settle, ID: fmt.Sprintf("%02d", i), Trigger: ledger.TriggerEnqueue})
		if err != nil {
			t.Fatal(err)
		}
		request, err := client.Extension().Begin()
		if err != nil {
			t.Fatal(err)
		}
		claimed, err := f.ledger.Claim(t.Context(), request, asked.Due[0], time.Minute, nil)
		request.Drop()
		if err != nil || claimed.Outcome != ledger.ClaimWaiting {
			t.Fatalf("the run of the bill: %+v, %v, want it to wait", claimed, err)
		}
	}
	// A brief attempt would give its slot away, to the delivery that was fetched ahead.
	f.await("the first run to take long", func() bool { return time.Since(start) > worker.Slow && w.Ahead() == 0 })
	released := time.Now()
	close(first)
	f.await("all runs to begin", began(waits+2))
	took := time.Since(released)
	at := slices.Index(order, "other#1")
	t.Logf("the run of the low queue was number %d of %d", at+1, len(order))
	if at > waits/2 {
		t.Errorf("the run of the low queue was number %d of %d, want it to interrupt the chain", at+1, len(order))
	}
	// An offer lapses after two seconds, and others may pass the run then.
	if bill := slices.Delete(slices.Clone(order), at, at+1); took < 2*time.Second && !slices.IsSorted(bill) {
		t.Errorf("the runs of the bill began as %s, want the order of their requests", bill)
	}
	f.await("the slot to be free", func() bool { return w.FreeSlots() == 1 })
}
