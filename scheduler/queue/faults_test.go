package queue_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
)

func TestLostDeliveryIsNotAlive(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	namespace, q := redistest.Namespace(t), redistest.Namespace(t)
	c, err := queue.New(rdb, namespace)
	if err != nil {
		t.Fatal(err)
	}
	never := ledger.Due{Run: "never pushed", N: 1, Queue: q}
	deleted := ledger.Due{Run: "deleted", N: 1, Queue: q}
	archived := ledger.Due{Run: "archived", N: 1, Queue: q}
	kept := ledger.Due{Run: "kept", N: 1, Queue: q}
	push(t, c, deleted, archived, kept)
	if err := inspector.DeleteTask(q, namespace+":deleted#1"); err != nil {
		t.Fatal(err)
	}
	if err := inspector.ArchiveTask(q, namespace+":archived#1"); err != nil {
		t.Fatal(err)
	}
	for d, want := range map[ledger.Due]bool{
		never: false, deleted: false, archived: false, kept: true,
		{Run: "kept", N: 2, Queue: q}: false,
	} {
		if got := alive(t, c, d); got != want {
			t.Errorf("%+v: alive is %v, want %v", d, got, want)
		}
	}
}

// clock is a clock that a test sets.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) turn(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// holdInAsynq makes asynq itself fetch a delivery and keep it until release is called. Deliveries
// left to asynq, or fetched by an earlier release of lockstep, are active there.
func holdInAsynq(t *testing.T, rdb redis.UniversalClient, q string) (inHand <-chan struct{}, release func()) {
	t.Helper()
	begun, end := make(chan struct{}), make(chan struct{})
	server := asynq.NewServerFromRedisClient(rdb, asynq.Config{
		Concurrency: 1, Queues: map[string]int{q: 1}, TaskCheckInterval: 5 * time.Millisecond, LogLevel: asynq.FatalLevel,
	})
	if err := server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		close(begun)
		<-end
		return nil
	})); err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() {
		close(end)
		server.Shutdown()
	})
	t.Cleanup(release)
	return begun, release
}

// To others, a server that loses Redis with a delivery in hand looks like one that was killed.
func TestDeliveryActiveUnderADeadServerIsNotAlive(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	proxy := s.Proxy(t)
	namespace, q := redistest.Namespace(t), redistest.Namespace(t)
	there, err := queue.New(proxy.Client(t), namespace)
	if err != nil {
		t.Fatal(err)
	}
	d := ledger.Due{Run: "r", N: 1, Queue: q}
	push(t, there, d)
	inHand, release := holdInAsynq(t, proxy.Client(t), q)
	receive(t, inHand)

	rdb := s.Client(t)
	here, err := queue.New(rdb, namespace)
	if err != nil {
		t.Fatal(err)
	}
	now := &clock{now: time.Now()}
	here.SetClock(now.read)
	if !alive(t, here, d) {
		t.Error("not alive although a worker has just fetched it")
	}
	now.turn(queue.NobodyAfter - time.Second)
	if !alive(t, here, d) {
		t.Error("not alive before its time")
	}
	// A heartbeat moves the lease. The test moves it directly, because the real heartbeat needs 5
	// s.
	lease := "asynq:{" + q + "}:lease"
	if n := rdb.ZIncrBy(t.Context(), lease, 5, namespace+":r#1").Val(); n == 0 {
		t.Fatal("no lease")
	}
	now.turn(2 * time.Second)
	if !alive(t, here, d) {
		t.Error("not alive although its lease moved")
	}
	proxy.Set(redistest.Faults{DropRequests: true, DropReplies: true})
	proxy.Cut()
	now.turn(queue.NobodyAfter)
	if alive(t, here, d) {
		t.Error("alive although its lease is unchanged")
	}
	if err := rdb.ZRem(t.Context(), lease, namespace+":r#1").Err(); err != nil {
		t.Fatal(err)
	}
	another, err := queue.New(rdb, namespace)
	if err != nil {
		t.Fatal(err)
	}
	if alive(t, another, d) {
		t.Error("alive without a lease")
	}
	// The next n does not conflict with the leftovers of the previous one.
	next := ledger.Due{Run: "r", N: 2, Queue: q}
	push(t, here, next)
	if !alive(t, here, next) {
		t.Error("the next delivery is not alive")
	}
	proxy.Close() // otherwise asynq's last commands wait for their timeouts
	release()
}

func TestDeliveryActiveUnderALivingServerIsAlive(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a heartbeat of asynq, 5 s")
	}
	t.Parallel()
	rdb := redistest.Client(t)
	c, q := newClient(t, rdb)
	now := &clock{now: time.Now()}
	c.SetClock(now.read)
	d := ledger.Due{Run: "r", N: 1, Queue: q}
	push(t, c, d)
	inHand, _ := holdInAsynq(t, rdb, q)
	receive(t, inHand)
	alive(t, c, d)
	now.turn(queue.NobodyAfter)
	eventually(t, "a heartbeat moves the lease", func() bool { return alive(t, c, d) })
}

func TestServerSurvivesAnEmptiedRedis(t *testing.T) {
	t.Parallel()
	rdb := redistest.New(t, redistest.Options{}).Client(t)
	c, q := newClient(t, rdb)
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	got := make(chan ledger.Due)
	serve(t, c, queue.Options{Queues: map[string]int{q: 1}, Handle: into(got)})
	push(t, c, ledger.Due{Run: "before", N: 1, Queue: q})
	receive(t, got)
	if err := errors.Join(rdb.FlushAll(t.Context()).Err(), rdb.ScriptFlush(t.Context()).Err()); err != nil {
		t.Fatal(err)
	}
	d := ledger.Due{Run: "after", N: 1, Queue: q}
	push(t, c, d)
	if got := receive(t, got); got != d {
		t.Errorf("got %+v, want %+v", got, d)
	}
	if _, err := inspector.GetQueueInfo(q); err != nil {
		t.Errorf("asynq's tools do not know the queue: %v", err)
	}
	if testing.Short() {
		return // the rest waits up to 5 s for the server's next registration
	}
	eventually(t, "the queue is registered again", func() bool { return owner(t, c, q) != "" })
}

func TestServerResumesWhenRedisIsBack(t *testing.T) {
	t.Parallel()
	s := redistest.New(t, redistest.Options{})
	c, q := newClient(t, s.Client(t))
	got := make(chan ledger.Due)
	log, lines := newLog()
	serve(t, c, queue.Options{Queues: map[string]int{q: 1}, Handle: into(got), Logger: log})
	push(t, c, ledger.Due{Run: "before", N: 1, Queue: q})
	receive(t, got)
	s.Kill()
	eventually(t, "the outage is logged", func() bool { return lines.count("fetching deliveries failed, will retry") == 1 })
	if _, err := c.Push(t.Context(), ledger.Due{Run: "during", N: 1, Queue: q}); err == nil {
		t.Error("pushed to an unreachable Redis")
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	d := ledger.Due{Run: "after", N: 1, Queue: q}
	push(t, c, d)
	if got := receive(t, got); got != d {
		t.Errorf("got %+v, want %+v", got, d)
	}
	eventually(t, "the end of the outage is logged", func() bool { return lines.count("works again") == 1 })
}

func TestServerStartsBeforeRedis(t *testing.T) {
	t.Parallel()
	s := redistest.New(t, redistest.Options{})
	s.Kill()
	c, q := newClient(t, s.Client(t))
	got := make(chan ledger.Due)
	serve(t, c, queue.Options{Queues: map[string]int{q: 1}, Handle: into(got)})
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	push(t, c, ledger.Due{Run: "r", N: 1, Queue: q})
	receive(t, got)
}

func TestStopWaitsForHandle(t *testing.T) {
	t.Parallel()
	c, q := newClient(t, redistest.Client(t))
	inHand := make(chan struct{})
	finished := false // written before Run returns, read after
	stop := serve(t, c, queue.Options{Queues: map[string]int{q: 1}, Handle: func(ctx context.Context, _ []ledger.Due) {
		close(inHand)
		<-ctx.Done()
		for range 3000 {
			// many round trips: longer than asynq needs to shut down
			if _, err := c.Paused(t.Context(), []string{"q"}); err != nil {
				t.Error(err)
			}
		}
		finished = true
	}})
	push(t, c, ledger.Due{Run: "r", N: 1, Queue: q})
	receive(t, inHand)
	if err := stop(); err != nil {
		t.Error(err)
	}
	if !finished {
		t.Error("Run returned before Handle")
	}
}

func TestDeliveryFetchedWhileStoppingGoesBack(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	proxy := s.Proxy(t)
	namespace, q := redistest.Namespace(t), redistest.Namespace(t)
	there, err := queue.New(proxy.Client(t), namespace)
	if err != nil {
		t.Fatal(err)
	}
	here, err := queue.New(s.Client(t), namespace)
	if err != nil {
		t.Fatal(err)
	}
	slots := newSlots(1)
	server, err := queue.NewServer(there, queue.Options{
		Queues: map[string]int{q: 1}, Slots: slots, PollInterval: time.Millisecond,
		Handle: func(_ context.Context, some []ledger.Due) { t.Errorf("handled %+v", some) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- server.Run(ctx) }() // received below
	eventually(t, "the server serves", func() bool { return slots.free() == 0 })

	// A fetch waits on its way to Redis and then takes the delivery. Its reply is held until the
	// server stops.
	proxy.Set(redistest.Faults{HoldRequests: true})
	d := ledger.Due{Run: "r", N: 1, Queue: q}
	push(t, here, d)
	proxy.Set(redistest.Faults{HoldReplies: true})
	eventually(t, "it is fetched", func() bool { return info(t, here, q).Pending == 0 })
	cancel()
	proxy.Set(redistest.Faults{})
	if err := receive(t, stopped); err != nil {
		t.Error(err)
	}
	if slots.free() != 1 {
		t.Error("the slot was not given back")
	}
	if !alive(t, here, d) {
		t.Error("the delivery is lost")
	}
	if n := info(t, here, q).Pending; n != 1 {
		t.Errorf("%d are pending, want the one that was put back", n)
	}
}

func TestDeliveryEndsWithItsFetch(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c, q := newClient(t, rdb)
		inHand, release, slots := make(chan ledger.Due), make(chan struct{}), newSlots(1)
		serve(t, c, queue.Options{Queues: map[string]int{q: 1}, Slots: slots, Handle: func(_ context.Context, some []ledger.Due) {
			inHand <- some[0]
			<-release
			slots.Release(len(some))
		}})
		d := ledger.Due{Run: "r#a", N: 7, Queue: q}
		push(t, c, d)
		if got := receive(t, inHand); got != d {
			t.Errorf("got %+v, want %+v", got, d)
		}
		if alive(t, c, d) {
			t.Error("it is alive although a worker has taken it")
		}
		// As if asynq itself had handled it.
		now, err := asynq.NewInspectorFromRedisClient(rdb).GetQueueInfo(q)
		if err != nil || now.Size != 0 || now.Processed != 1 || now.ProcessedTotal != 1 {
			t.Errorf("the inspector has %+v (%v), want nothing but one processed", now, err)
		}
		// Pushing it again finds no leftovers of it.
		push(t, c, d)
		if !alive(t, c, d) {
			t.Error("it is not alive after it was pushed again")
		}
		close(release)
		receive(t, inHand)
	})
}

// One fetch takes deliveries up to the first foreign task.
func TestDeliveriesBehindAForeignTaskAreFetched(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	namespace, q := redistest.Namespace(t), redistest.Namespace(t)
	c, err := queue.New(rdb, namespace)
	if err != nil {
		t.Fatal(err)
	}
	plain := asynq.NewClientFromRedisClient(rdb)
	want := make(map[ledger.Due]bool)
	for i := range 6 {
		for j := range 3 {
			d := ledger.Due{Run: jobs.RunID(fmt.Sprint("r", i)), N: int64(j), Queue: q}
			push(t, c, d)
			want[d] = true
		}
		// An ID like ours does not make a task ours.
		id := asynq.TaskID(fmt.Sprintf("%s:r%d#9", namespace, i))
		if _, err := plain.Enqueue(asynq.NewTask("mail:send", nil), asynq.Queue(q), id); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan ledger.Due)
	serve(t, c, queue.Options{Queues: map[string]int{q: 1}, Handle: into(got), Slots: newSlots(100), Fetchers: 2})
	for range len(want) {
		d := receive(t, got)
		if !want[d] {
			t.Errorf("got %+v, which was not pushed or came twice", d)
		}
		delete(want, d)
	}
	eventually(t, "the foreign tasks are back", func() bool { return info(t, c, q).Retry == 6 })
}
