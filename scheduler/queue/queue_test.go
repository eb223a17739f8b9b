package queue_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
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

func TestMain(m *testing.M) { redistest.Main(m) }

// newClient returns a client with its own namespace, and a queue that no other test uses.
func newClient(t testing.TB, rdb redis.UniversalClient) (c *queue.Client, name string) {
	t.Helper()
	c, err := queue.New(rdb, redistest.Namespace(t))
	if err != nil {
		t.Fatal(err)
	}
	return c, redistest.Namespace(t)
}

// serve runs a server until the test ends or stop is called. stop returns the result of Run.
func serve(t testing.TB, c *queue.Client, o queue.Options) (stop func() error) {
	t.Helper()
	if o.PollInterval == 0 {
		o.PollInterval = 5 * time.Millisecond
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := queue.NewServer(c, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }() // received by stop
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return stop
}

// into returns a Handle that sends its deliveries to a channel.
func into(ch chan<- ledger.Due) func(context.Context, []ledger.Due) {
	return func(ctx context.Context, some []ledger.Due) {
		for _, d := range some {
			select {
			case ch <- d:
			case <-ctx.Done():
			}
		}
	}
}

// receive returns the next value, or fails the test if none arrives.
func receive[T any](t testing.TB, ch <-chan T) T {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	select {
	case v := <-ch:
		return v
	case <-deadline.C:
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

// eventually waits for a condition that no event reports.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline.C:
			t.Fatal("never happened: ", what)
		case <-tick.C:
		}
	}
}

func push(t testing.TB, c *queue.Client, deliveries ...ledger.Due) {
	t.Helper()
	pushed, err := c.Push(t.Context(), deliveries...)
	if err != nil {
		t.Fatal(err)
	}
	if len(pushed) != len(deliveries) {
		t.Fatalf("pushed %d of %d", len(pushed), len(deliveries))
	}
}

func info(t testing.TB, c *queue.Client, name string) queue.Info {
	t.Helper()
	infos, err := c.Queues(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range infos {
		if i.Name == name {
			return i
		}
	}
	return queue.Info{Name: name}
}

func alive(t testing.TB, c *queue.Client, d ledger.Due) bool {
	t.Helper()
	alive, err := c.AllAlive(t.Context(), []ledger.Due{d})
	if err != nil {
		t.Fatal(err)
	}
	return alive[0]
}

// safeBuffer is a log for concurrent writers.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) count(text string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.b.String(), text)
}

func newLog() (*slog.Logger, *safeBuffer) {
	b := new(safeBuffer)
	return slog.New(slog.NewTextHandler(b, nil)), b
}

func TestPushedDeliveryIsHandledAndEnded(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c, q := newClient(t, rdb)
		got := make(chan ledger.Due)
		serve(t, c, queue.Options{Queues: map[string]int{q: 1}, Handle: into(got)})
		want := ledger.Due{Run: "nightly-backup@2026-11-21T01:00:00Z", N: 3, Queue: q}
		push(t, c, want)
		if d := receive(t, got); d != want {
			t.Errorf("got %+v, want %+v", d, want)
		}
		eventually(t, "the delivery is ended", func() bool { return info(t, c, q) == queue.Info{Name: q, Namespace: owner(t, c, q)} })
		if alive(t, c, want) {
			t.Error("an ended delivery is alive")
		}
	})
}

func owner(t testing.TB, c *queue.Client, q string) string { return info(t, c, q).Namespace }

func TestDeliveryPushedTwiceExistsOnce(t *testing.T) {
	t.Parallel()
	c, q := newClient(t, redistest.Client(t))
	d := ledger.Due{Run: "r", N: 1, Queue: q}
	push(t, c, d)
	push(t, c, d, d)
	if n := info(t, c, q).Pending; n != 1 {
		t.Errorf("%d are pending, want 1", n)
	}
	push(t, c, ledger.Due{Run: "r", N: 2, Queue: q})
	if n := info(t, c, q).Pending; n != 2 {
		t.Errorf("after the next n %d are pending, want 2", n)
	}
}

func TestPushReturnsTheDeliveriesThatArrived(t *testing.T) {
	t.Parallel()
	c, q := newClient(t, redistest.Client(t))
	good := ledger.Due{Run: "good", N: 1, Queue: q}
	for _, bad := range []ledger.Due{
		{Run: "bad", N: 1, Queue: "a{b}"},
		{Run: "bad", N: 1, Queue: " "},
		{Run: "", N: 1, Queue: q},
	} {
		pushed, err := c.Push(t.Context(), bad, good)
		if len(pushed) != 1 || pushed[0] != good {
			t.Errorf("with %+v: pushed %+v, want only the good one", bad, pushed)
		}
		if err == nil {
			t.Errorf("with %+v: no error", bad)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if pushed, err := c.Push(ctx, ledger.Due{Run: "late", N: 1, Queue: q}); err == nil || len(pushed) != 0 {
		t.Errorf("with an ended context: pushed %v, error %v", pushed, err)
	}
	if pushed, err := c.Push(t.Context()); err != nil || len(pushed) != 0 {
		t.Errorf("nothing: pushed %v, error %v", pushed, err)
	}
}

func TestEveryDeliveryIsHandledOnceByManyFetchers(t *testing.T) {
	t.Parallel()
	c, q := newClient(t, redistest.Client(t))
	const n = 1000
	var (
		mu    sync.Mutex
		times = make(map[ledger.Due]int)
		all   = make(chan struct{})
	)
	handle := func(_ context.Context, some []ledger.Due) {
		mu.Lock()
		defer mu.Unlock()
		for _, d := range some {
			if times[d]++; len(times) == n && times[d] == 1 {
				close(all)
			}
		}
	}
	o := queue.Options{Queues: map[string]int{q: 1}, Handle: handle}
	stops := []func() error{serve(t, c, o), serve(t, c, o)}
	var deliveries []ledger.Due
	for i := range n {
		deliveries = append(deliveries, ledger.Due{Run: jobs.RunID(fmt.Sprint("run-", i)), N: int64(i), Queue: q})
	}
	push(t, c, deliveries...)
	receive(t, all)
	for _, stop := range stops {
		// deliveries in hand are handled before Run returns
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
	for _, d := range deliveries {
		if times[d] != 1 {
			t.Errorf("%+v was handled %d times", d, times[d])
		}
	}
	if i := info(t, c, q); i.Pending+i.Active+i.Retry+i.Archived != 0 {
		t.Errorf("left over: %+v", i)
	}
}

func TestFetchesFollowTheWeights(t *testing.T) {
	t.Parallel()
	c, high := newClient(t, redistest.Client(t))
	low := redistest.Namespace(t)
	const each, look = 300, 280
	var deliveries []ledger.Due
	for i := range each {
		run := jobs.RunID(fmt.Sprint("run-", i))
		deliveries = append(deliveries, ledger.Due{Run: run, Queue: high}, ledger.Due{Run: run, Queue: low})
	}
	push(t, c, deliveries...)
	got := make(chan ledger.Due)
	serve(t, c, queue.Options{Queues: map[string]int{high: 6, low: 1}, Handle: into(got), Fetchers: 1})
	fromHigh := 0
	for range look {
		if receive(t, got).Queue == high {
			fromHigh++
		}
	}
	// 240 are expected, with a standard deviation of 6.
	if fromHigh < 200 || fromHigh == look {
		t.Errorf("%d of the first %d came from the queue with 6 of 7 parts, want about %d", fromHigh, look, look*6/7)
	}
}

func TestPausedQueueKeepsItsDeliveries(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	c, q := newClient(t, rdb)
	open := redistest.Namespace(t)
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	d := ledger.Due{Run: "r", N: 1, Queue: q}
	push(t, c, d)
	if err := inspector.PauseQueue(q); err != nil {
		t.Fatal(err)
	}
	paused, err := c.Paused(t.Context(), []string{q, open})
	if err != nil {
		t.Fatal(err)
	}
	if len(paused) != 2 || !paused[q] || paused[open] {
		t.Errorf("paused are %v, want only %s", paused, q)
	}
	if !alive(t, c, d) {
		t.Error("the delivery is not alive")
	}
	got := make(chan ledger.Due)
	serve(t, c, queue.Options{Queues: map[string]int{q: 1, open: 1}, Handle: into(got)})
	// Later deliveries of another queue overtake it.
	for i := range 5 {
		push(t, c, ledger.Due{Run: "o", N: int64(i), Queue: open})
		if d := receive(t, got); d.Queue != open {
			t.Errorf("got %+v of a paused queue", d)
		}
	}
	if err := inspector.UnpauseQueue(q); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, got); got != d {
		t.Errorf("got %+v, want %+v", got, d)
	}
}

func TestQueuesAgreesWithTheInspector(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c, q := newClient(t, rdb)
		inspector := asynq.NewInspectorFromRedisClient(rdb)
		client := asynq.NewClientFromRedisClient(rdb)
		push(t, c, ledger.Due{Run: "a", N: 1, Queue: q}, ledger.Due{Run: "b", N: 1, Queue: q})
		for i, o := range []asynq.Option{asynq.ProcessIn(time.Hour), asynq.TaskID("to-archive")} {
			if _, err := client.Enqueue(asynq.NewTask("other", nil), asynq.Queue(q), o); err != nil {
				t.Fatal(i, err)
			}
		}
		if err := inspector.ArchiveTask(q, "to-archive"); err != nil {
			t.Fatal(err)
		}
		if err := inspector.PauseQueue(q); err != nil {
			t.Fatal(err)
		}
		if err := c.Own(t.Context(), []string{q, "only-registered-" + q}); err != nil {
			t.Fatal(err)
		}
		want, err := inspector.GetQueueInfo(q)
		if err != nil {
			t.Fatal(err)
		}
		got := info(t, c, q)
		if int(got.Pending) != want.Pending || int(got.Active) != want.Active || int(got.Scheduled) != want.Scheduled ||
			int(got.Retry) != want.Retry || int(got.Archived) != want.Archived || got.Paused != want.Paused {
			t.Errorf("got %+v, the inspector has %+v", got, want)
		}
		if got.Pending != 2 || got.Scheduled != 1 || got.Archived != 1 || !got.Paused {
			t.Errorf("got %+v, want 2 pending, 1 scheduled, 1 archived, paused", got)
		}
		if got.Namespace == "" {
			t.Error("the namespace is missing")
		}
		if got.Latency < 0 || got.Latency > time.Minute {
			t.Errorf("latency is %v", got.Latency)
		}
		if info(t, c, "only-registered-"+q).Namespace != got.Namespace {
			t.Error("a queue without tasks is missing")
		}
	})
}

func TestBadOptionsAreRefused(t *testing.T) {
	t.Parallel()
	c, q := newClient(t, redistest.Client(t))
	handle := func(context.Context, []ledger.Due) {}
	for name, o := range map[string]queue.Options{
		"no queues":          {Handle: handle},
		"no handle":          {Queues: map[string]int{q: 1}},
		"weight 0":           {Queues: map[string]int{q: 0}, Handle: handle},
		"huge weight":        {Queues: map[string]int{q: 1_000_000}, Handle: handle},
		"braces":             {Queues: map[string]int{"a{b}": 1}, Handle: handle},
		"negative fetchers":  {Queues: map[string]int{q: 1}, Handle: handle, Fetchers: -1},
		"negative intervals": {Queues: map[string]int{q: 1}, Handle: handle, PollInterval: -1},
	} {
		if _, err := queue.NewServer(c, o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := queue.New(redistest.Client(t), ""); err == nil {
		t.Error("a client without a namespace: accepted")
	}
}
