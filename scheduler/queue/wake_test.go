package queue_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/semaphore"

	"lockstep/locks/redistest"
	"lockstep/locks/space"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
)

// sleeper is a worker that messages wake.
type sleeper struct {
	woken atomic.Int64 // messages that it received
	got   atomic.Int64 // deliveries
	lost  atomic.Bool  // it receives no messages
}

// newSpace returns a client with a namespace and a queue of its own.
func newSpace(t *testing.T, rdb *redis.Client) (c *queue.Client, namespace, name string) {
	t.Helper()
	namespace, name = redistest.Namespace(t), redistest.Namespace(t)
	c, err := queue.New(rdb, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return c, namespace, name
}

// startSleeper starts a server with a session, and passes on its messages. Without poll, it never
// polls by itself.
func startSleeper(t *testing.T, rdb *redis.Client, namespace, name, session string, got chan<- ledger.Due, poll ...time.Duration) *sleeper {
	t.Helper()
	return startSleeperWith(t, rdb, namespace, name, session, got, nil, poll...)
}

// startSleeperWith is startSleeper with slots, which the deliveries do not return.
func startSleeperWith(t *testing.T, rdb *redis.Client, namespace, name, session string, got chan<- ledger.Due, slots queue.Slots,
	poll ...time.Duration,
) *sleeper {
	t.Helper()
	c, err := queue.New(rdb, namespace)
	if err != nil {
		t.Fatal(err)
	}
	s := new(sleeper)
	server, err := queue.NewServer(c, queue.Options{
		Queues: map[string]int{name: 1}, PollInterval: append(poll, time.Hour)[0], Session: func() string { return session }, Slots: slots,
		Handle: func(ctx context.Context, some []ledger.Due) {
			s.got.Add(int64(len(some)))
			into(got)(ctx, some)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	messages := rdb.Subscribe(t.Context(), space.Channel(namespace, space.SessionID(session)))
	if _, err := messages.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	go func() { // ends with the subscription
		for m := range messages.Channel() {
			if m.Payload != space.Notice(queue.NoticePushed) {
				t.Errorf("got message %q", m.Payload)
			}
			if s.woken.Add(1); !s.lost.Load() {
				server.Wake()
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = messages.Close()
	})
	return s
}

// asleep waits until so many workers sleep.
func asleep(t *testing.T, rdb *redis.Client, namespace, name string, want int64) {
	t.Helper()
	eventually(t, fmt.Sprint(want, " workers sleep"), func() bool {
		n, err := rdb.ZCard(t.Context(), "asynq:{"+name+"}:lockstep:asleep:"+namespace).Result()
		if err != nil {
			t.Fatal(err)
		}
		return n == want
	})
}

// TestAPushWakesAsManyWorkersAsItHasDeliveries has three workers that never poll. Their passes
// cannot take all slots: a worker without a free one would wake another.
func TestAPushWakesAsManyWorkersAsItHasDeliveries(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		c, namespace, name := newSpace(t, rdb)
		got := make(chan ledger.Due, 100)
		var workers []*sleeper
		for i := range 3 {
			workers = append(workers, startSleeperWith(t, rdb, namespace, name, fmt.Sprint("s", i), got, queue.NewSlots(semaphore.NewWeighted(1000))))
		}
		sum := func() (woken int64) {
			for _, w := range workers {
				woken += w.woken.Load()
			}
			return woken
		}
		asleep(t, rdb, namespace, name, 3)
		run := int64(0)
		for _, n := range []int{1, 1, 2, 3, 20} {
			before := sum()
			var some []ledger.Due
			for range n {
				run++
				some = append(some, ledger.Due{Run: "j#a", N: run, Queue: name})
			}
			push(t, c, some...)
			for range n {
				receive(t, got)
			}
			asleep(t, rdb, namespace, name, 3)
			if woken := sum() - before; woken != int64(min(n, 3)) {
				t.Errorf("a push of %d woke %d times", n, woken)
			}
		}
	})
}

// TestALostMessageCostsOnePoll has a worker that receives no messages.
func TestALostMessageCostsOnePoll(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	c, namespace, name := newSpace(t, rdb)
	got := make(chan ledger.Due, 1)
	w := startSleeper(t, rdb, namespace, name, "deaf", got, 200*time.Millisecond)
	w.lost.Store(true)
	asleep(t, rdb, namespace, name, 1)
	push(t, c, ledger.Due{Run: "j#a", N: 1, Queue: name})
	receive(t, got)
}

// TestResumeWakesTheWorkersOfAQueue pushes to a paused queue.
func TestResumeWakesTheWorkersOfAQueue(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	c, namespace, name := newSpace(t, rdb)
	got := make(chan ledger.Due, 1)
	w := startSleeper(t, rdb, namespace, name, "a", got)
	asleep(t, rdb, namespace, name, 1)
	if paused, err := c.Pause(t.Context(), name); err != nil || !paused {
		t.Fatal(paused, err)
	}
	push(t, c, ledger.Due{Run: "j#a", N: 1, Queue: name})
	eventually(t, "the push wakes the worker", func() bool { return w.woken.Load() == 1 })
	asleep(t, rdb, namespace, name, 1) // it found the queue paused
	if resumed, err := c.Resume(t.Context(), name); err != nil || !resumed {
		t.Fatal(resumed, err)
	}
	receive(t, got)
}

// TestAWorkerThatTakesADeliveryDoesNotCountAsAsleep keeps the slots of a worker taken: a push must
// wake another one.
func TestAWorkerThatTakesADeliveryDoesNotCountAsAsleep(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	c, namespace, name := newSpace(t, rdb)
	full := make(chan ledger.Due) // nobody receives
	startSleeper(t, rdb, namespace, name, "busy", full)
	asleep(t, rdb, namespace, name, 1)
	var many []ledger.Due
	for i := range int64(100) { // more than it has slots
		many = append(many, ledger.Due{Run: "j#b", N: 1 + i, Queue: name})
	}
	push(t, c, many...)
	asleep(t, rdb, namespace, name, 0)
	got := make(chan ledger.Due, 200)
	idle := startSleeper(t, rdb, namespace, name, "idle", got)
	asleep(t, rdb, namespace, name, 1) // it has taken the rest
	taken := idle.got.Load()
	push(t, c, ledger.Due{Run: "j#c", N: 1, Queue: name})
	eventually(t, "the idle worker takes it", func() bool { return idle.got.Load() > taken })
}

// TestAWorkerWithoutASlotPassesTheMessageOn fills the slots of a worker that is asleep, as runs do
// that it has claimed without a delivery.
func TestAWorkerWithoutASlotPassesTheMessageOn(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	c, namespace, name := newSpace(t, rdb)
	got := make(chan ledger.Due, 10)
	startSleeper(t, rdb, namespace, name, "idle", got)
	asleep(t, rdb, namespace, name, 1)
	slots := newSlots(1)
	// It is also behind "idle" if both fall asleep in the same millisecond.
	full := startSleeperWith(t, rdb, namespace, name, "later", got, slots)
	asleep(t, rdb, namespace, name, 2)
	eventually(t, "its slot is free and then taken", func() bool { return slots.More(1) == 1 })
	push(t, c, ledger.Due{Run: "j#a", N: 1, Queue: name})
	receive(t, got)
	if woken := full.woken.Load(); woken != 1 {
		t.Errorf("the worker that fell asleep last was woken %d times, want once: the test proves nothing", woken)
	}
	slots.Release(1)
}

// TestAWorkerWithoutASlotLooksOnceItHasOne: no other worker sleeps that it could wake, and it does
// not count as asleep any more.
func TestAWorkerWithoutASlotLooksOnceItHasOne(t *testing.T) {
	rdb := redistest.Shared(t).Client(t)
	c, namespace, name := newSpace(t, rdb)
	got := make(chan ledger.Due, 10)
	slots := newSlots(1)
	full := startSleeperWith(t, rdb, namespace, name, "full", got, slots)
	asleep(t, rdb, namespace, name, 1)
	eventually(t, "its slot is free and then taken", func() bool { return slots.More(1) == 1 })
	push(t, c, ledger.Due{Run: "j#a", N: 1, Queue: name})
	eventually(t, "it is woken", func() bool { return full.woken.Load() == 1 })
	slots.Release(1)
	receive(t, got)
}

// TestFurtherServersHelpWhileThereIsWork counts the asynq servers of one of ours.
func TestFurtherServersHelpWhileThereIsWork(t *testing.T) {
	rdb := redistest.New(t, redistest.Options{}).Client(t)
	c, name := newClient(t, rdb)
	servers := func() int64 {
		n, err := rdb.ZCard(t.Context(), "asynq:servers").Result()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	stop := serve(t, c, queue.Options{Queues: map[string]int{name: 1}, Handle: func(context.Context, []ledger.Due) {}})
	push(t, c, ledger.Due{Run: "j#a", N: 1, Queue: name}) // one delivery is no work for several
	eventually(t, "one server runs", func() bool { return servers() == 1 })
	n := int64(1)
	eventually(t, "the others help", func() bool {
		for range 20 {
			n++
			push(t, c, ledger.Due{Run: "j#a", N: n, Queue: name})
		}
		return servers() == queue.DefaultFetchers
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if left := servers(); left != 0 {
		t.Errorf("%d servers remain after the end", left)
	}
}
