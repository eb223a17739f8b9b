package queue_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"lockstep/locks/redistest"
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
	never := queue.Delivery{Run: "never pushed", N: 1, Queue: q}
	deleted := queue.Delivery{Run: "deleted", N: 1, Queue: q}
	archived := queue.Delivery{Run: "archived", N: 1, Queue: q}
	kept := queue.Delivery{Run: "kept", N: 1, Queue: q}
	push(t, c, deleted, archived, kept)
	if err := inspector.DeleteTask(q, namespace+":deleted#1"); err != nil {
		t.Fatal(err)
	}
	if err := inspector.ArchiveTask(q, namespace+":archived#1"); err != nil {
		t.Fatal(err)
	}
	for d, want := range map[queue.Delivery]bool{
		never: false, deleted: false, archived: false, kept: true,
		{Run: "kept", N: 2, Queue: q}: false,
	} {
		if got := alive(t, c, d); got != want {
			t.Errorf("%+v: alive is %v, want %v", d, got, want)
		}
	}
}

// clock is a clock that a test turns.
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

// A server that is cut off from Redis while it has a delivery in hand is the same to others as one that was killed.
func TestDeliveryActiveUnderNobodyIsNotAlive(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	proxy := s.Proxy(t)
	namespace, q := redistest.Namespace(t), redistest.Namespace(t)
	there, err := queue.New(proxy.Client(t), namespace)
	if err != nil {
		t.Fatal(err)
	}
	d := queue.Delivery{Run: "r", N: 1, Queue: q}
	inHand := make(chan struct{})
	stop := serve(t, there, queue.Options{
		Queues: map[string]int{q: 1},
		Handle: func(ctx context.Context, _ queue.Delivery) {
			close(inHand)
			<-ctx.Done()
		},
	})
	push(t, there, d)
	receive(t, inHand)

	rdb := s.Client(t)
	here, err := queue.New(rdb, namespace)
	if err != nil {
		t.Fatal(err)
	}
	now := &clock{now: time.Now()}
	here.SetClock(now.read)
	if !alive(t, here, d) {
		t.Error("not alive although somebody has just fetched it")
	}
	now.turn(queue.NobodyAfter - time.Second)
	if !alive(t, here, d) {
		t.Error("not alive before its time")
	}
	// A heartbeat moves the lease, here done by hand: the real one needs 5 s.
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
		t.Error("alive although its lease stands still")
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
	// The next n does not meet what is left over of the last one.
	next := queue.Delivery{Run: "r", N: 2, Queue: q}
	push(t, here, next)
	if !alive(t, here, next) {
		t.Error("the next delivery is not alive")
	}
	proxy.Close() // else asynq's last commands wait for their timeouts
	if err := stop(); err != nil {
		t.Error(err)
	}
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
	d := queue.Delivery{Run: "r", N: 1, Queue: q}
	inHand, release := make(chan struct{}), make(chan struct{})
	serve(t, c, queue.Options{Queues: map[string]int{q: 1}, Handle: func(context.Context, queue.Delivery) {
		close(inHand)
		<-release
	}})
	push(t, c, d)
	receive(t, inHand)
	alive(t, c, d)
	now.turn(queue.NobodyAfter)
	eventually(t, "a heartbeat moves the lease", func() bool { return alive(t, c, d) })
	close(release)
}

func TestEmptiedRedisIsServedOn(t *testing.T) {
	t.Parallel()
	rdb := redistest.New(t, redistest.Options{}).Client(t)
	c, q := newClient(t, rdb)
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	got := make(chan queue.Delivery)
	serve(t, c, queue.Options{Queues: map[string]int{q: 1}, Handle: into(got)})
	push(t, c, queue.Delivery{Run: "before", N: 1, Queue: q})
	receive(t, got)
	if err := errors.Join(rdb.FlushAll(t.Context()).Err(), rdb.ScriptFlush(t.Context()).Err()); err != nil {
		t.Fatal(err)
	}
	d := queue.Delivery{Run: "after", N: 1, Queue: q}
	push(t, c, d)
	if got := receive(t, got); got != d {
		t.Errorf("got %+v, want %+v", got, d)
	}
	if _, err := inspector.GetQueueInfo(q); err != nil {
		t.Errorf("asynq's tools do not know the queue: %v", err)
	}
	if testing.Short() {
		return // the rest waits for the server's next registration, up to 5 s
	}
	eventually(t, "the queue is registered again", func() bool { return owner(t, c, q) != "" })
}

func TestServingResumesWhenRedisIsBack(t *testing.T) {
	t.Parallel()
	s := redistest.New(t, redistest.Options{})
	c, q := newClient(t, s.Client(t))
	got := make(chan queue.Delivery)
	log, lines := newLog()
	serve(t, c, queue.Options{Queues: map[string]int{q: 1}, Handle: into(got), Logger: log})
	push(t, c, queue.Delivery{Run: "before", N: 1, Queue: q})
	receive(t, got)
	s.Kill()
	eventually(t, "the outage is logged", func() bool { return lines.count("fetching deliveries fails") == 1 })
	if _, err := c.Push(t.Context(), queue.Delivery{Run: "during", N: 1, Queue: q}); err == nil {
		t.Error("pushed to a Redis that is away")
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	d := queue.Delivery{Run: "after", N: 1, Queue: q}
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
	got := make(chan queue.Delivery)
	serve(t, c, queue.Options{Queues: map[string]int{q: 1}, Handle: into(got)})
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	push(t, c, queue.Delivery{Run: "r", N: 1, Queue: q})
	receive(t, got)
}

func TestStopWaitsForHandle(t *testing.T) {
	t.Parallel()
	c, q := newClient(t, redistest.Client(t))
	inHand := make(chan struct{})
	finished := false // written before Run returns, read after
	stop := serve(t, c, queue.Options{Queues: map[string]int{q: 1}, Handle: func(ctx context.Context, _ queue.Delivery) {
		close(inHand)
		<-ctx.Done()
		work(t, c)
		finished = true
	}})
	push(t, c, queue.Delivery{Run: "r", N: 1, Queue: q})
	receive(t, inHand)
	if err := stop(); err != nil {
		t.Error(err)
	}
	if !finished {
		t.Error("Run returned before Handle")
	}
	if i := info(t, c, q); i.Active+i.Pending+i.Retry != 0 {
		t.Errorf("the handled delivery was not ended: %+v", i)
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
		Handle: func(_ context.Context, d queue.Delivery) { t.Errorf("handled %+v", d) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- server.Run(ctx) }() // received below
	eventually(t, "the server serves", func() bool { return slots.free() == 0 })

	// A fetch waits on its way to Redis; it meets the delivery; its answer waits until the server stops.
	proxy.Set(redistest.Faults{HoldRequests: true})
	d := queue.Delivery{Run: "r", N: 1, Queue: q}
	push(t, here, d)
	proxy.Set(redistest.Faults{HoldReplies: true})
	eventually(t, "it is fetched", func() bool { return info(t, here, q).Active == 1 })
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
	task, err := asynq.NewInspectorFromRedisClient(s.Client(t)).GetTaskInfo(q, namespace+":r#1")
	if err != nil || task.State != asynq.TaskStateRetry || task.Retried != 0 {
		t.Errorf("the delivery is %+v (%v), want one that is tried again, uncounted", task, err)
	}
}

func TestCancellationByAsynqDoesNotReachHandle(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until asynq brings the delivery again, 5 s")
	}
	t.Parallel()
	rdb := redistest.Client(t)
	namespace, q := redistest.Namespace(t), redistest.Namespace(t)
	c, err := queue.New(rdb, namespace)
	if err != nil {
		t.Fatal(err)
	}
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	inHand, again := make(chan struct{}), make(chan struct{})
	var (
		first    sync.Once
		finished bool // written before Run returns, read after
	)
	stop := serve(t, c, queue.Options{Queues: map[string]int{q: 1}, Handle: func(ctx context.Context, _ queue.Delivery) {
		isFirst := false
		first.Do(func() { isFirst = true })
		if !isFirst {
			close(again)
			return
		}
		close(inHand)
		select {
		case <-again:
		case <-ctx.Done():
			t.Error("Handle was cancelled")
		}
		<-ctx.Done()
		work(t, c)
		finished = true
	}})
	push(t, c, queue.Delivery{Run: "r", N: 1, Queue: q})
	receive(t, inHand)
	eventually(t, "the delivery comes again", func() bool {
		if err := inspector.CancelProcessing(namespace + ":r#1"); err != nil {
			t.Fatal(err)
		}
		select {
		case <-again:
			return true
		default:
			return false
		}
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
	if !finished {
		t.Error("Run returned before a Handle that asynq had left behind")
	}
}

// work takes a while: many round trips, longer than asynq needs to shut down.
func work(t *testing.T, c *queue.Client) {
	t.Helper()
	for range 3000 {
		if _, err := c.Paused(t.Context(), []string{"q"}); err != nil {
			t.Error(err)
		}
	}
}
