package queue

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
)

// newQueue returns a client with a namespace and a queue of its own.
func newQueue(t *testing.T) (c *Client, rdb *redis.Client, namespace, q string) {
	t.Helper()
	rdb = redistest.Client(t)
	namespace, q = redistest.Namespace(t), redistest.Namespace(t)
	c, err := New(rdb, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return c, rdb, namespace, q
}

// Our pushes must equal asynq's. To record them, asynq must need no more of Redis than the recorder
// provides.
func TestPushedDeliveryIsAsynqsOwn(t *testing.T) {
	t.Parallel()
	c, rdb, namespace, q := newQueue(t)
	// without a Redis: any other command panics
	c.asynq = asynq.NewClientFromRedisClient(&recorder{})
	d := ledger.Due{Run: "r", N: 1, Queue: q}
	if _, err := c.Push(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	task, err := newTask(d, namespace+"-plain")
	if err != nil {
		t.Fatal(err)
	}
	want, err := asynq.NewClientFromRedisClient(rdb).EnqueueContext(t.Context(), task)
	if err != nil {
		t.Fatal(err)
	}
	got, err := asynq.NewInspectorFromRedisClient(rdb).GetTaskInfo(q, taskID(d, namespace))
	if err != nil {
		t.Fatal(err)
	}
	if got.State != want.State || got.Type != want.Type || got.MaxRetry != want.MaxRetry || got.Timeout != want.Timeout ||
		!got.Deadline.Equal(want.Deadline) || got.Retention != want.Retention || got.Queue != want.Queue {
		t.Errorf("pushed %+v, want one like %+v", got, want)
	}
	fields, err := rdb.HKeys(t.Context(), taskKey(q, taskID(d, namespace))).Result()
	if err != nil {
		t.Fatal(err)
	}
	plain, err := rdb.HKeys(t.Context(), taskKey(q, taskID(d, namespace+"-plain"))).Result()
	if err != nil {
		t.Fatal(err)
	}
	if len(fields) != len(plain) {
		t.Errorf("pushed with the fields %v, want %v", fields, plain)
	}
}

// TestSeveralDeliveriesArePushedAsAsynqWouldPushThem: by our script, with the tasks that asynq's
// script makes. One that is in the queue already stays as it is.
func TestSeveralDeliveriesArePushedAsAsynqWouldPushThem(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	namespace, q, other := redistest.Namespace(t), redistest.Namespace(t), redistest.Namespace(t)
	c, err := New(rdb, namespace)
	if err != nil {
		t.Fatal(err)
	}
	call, err := c.enqueueing(t.Context(), ledger.Due{Run: "r", N: 1, Queue: q})
	if err != nil {
		t.Fatal(err)
	}
	if call.script.Hash() != asynqsScript {
		t.Fatalf("asynq enqueues by the script %s, and push.lua does what %s does: compare the two", call.script.Hash(), asynqsScript)
	}
	first := ledger.Due{Run: "a", N: 1, Queue: q}
	plain, err := newTask(first, namespace)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := asynq.NewClientFromRedisClient(rdb).EnqueueContext(t.Context(), plain); err != nil {
		t.Fatal(err)
	}
	want, err := rdb.HGetAll(t.Context(), taskKey(q, taskID(first, namespace))).Result()
	if err != nil {
		t.Fatal(err)
	}
	all := []ledger.Due{{Run: "b", N: 1, Queue: q}, first, {Run: "c", N: 2, Queue: other}, {Run: "d", N: 1, Queue: q}, {Run: "b", N: 1, Queue: q}}
	for range 2 { // a copy changes nothing
		pushed, err := c.Push(t.Context(), all...)
		if err != nil || len(pushed) != len(all) {
			t.Fatalf("pushed %v, %v, want all", pushed, err)
		}
	}
	if got := rdb.HGetAll(t.Context(), taskKey(q, taskID(first, namespace))).Val(); !maps.Equal(got, want) {
		t.Errorf("a task that was there is now %v, want %v", got, want)
	}
	for queue, ids := range map[string][]string{
		q:     {taskID(all[3], namespace), taskID(all[0], namespace), taskID(first, namespace)},
		other: {taskID(all[2], namespace)},
	} {
		if got := rdb.LRange(t.Context(), queueKey(queue, "pending"), 0, -1).Val(); !slices.Equal(got, ids) {
			t.Errorf("queue %s has %q, want %q", queue, got, ids)
		}
	}
	task := rdb.HGetAll(t.Context(), taskKey(q, taskID(all[0], namespace))).Val()
	if !slices.Equal(slices.Sorted(maps.Keys(task)), slices.Sorted(maps.Keys(want))) || task["state"] != want["state"] || len(task["pending_since"]) != len(want["pending_since"]) {
		t.Errorf("a task is %v, want one like %v", task, want)
	}
}

// TestDeliveriesThatGoBackAreTheFirstInTheirQueue: in their order, before those that were there,
// and before those that are pushed together with them.
func TestDeliveriesThatGoBackAreTheFirstInTheirQueue(t *testing.T) {
	t.Parallel()
	c, rdb, namespace, q := newQueue(t)
	due := func(run jobs.RunID, putBack bool) ledger.Due {
		return ledger.Due{Run: run, N: 1, Queue: q, PutBack: putBack}
	}
	for _, some := range [][]ledger.Due{
		{due("c", false), due("d", false)},
		{due("e", false), due("a", true), due("f", false), due("b", true), due("c", true)},
	} {
		if pushed, err := c.Push(t.Context(), some...); err != nil || len(pushed) != len(some) {
			t.Fatalf("pushed %v, %v, want all", pushed, err)
		}
	}
	var want []string
	for _, run := range []jobs.RunID{"f", "e", "d", "c", "b", "a"} {
		want = append(want, taskID(due(run, false), namespace))
	}
	if got := rdb.LRange(t.Context(), queueKey(q, "pending"), 0, -1).Val(); !slices.Equal(got, want) {
		t.Errorf("the queue has %q, the first one last, want %q", got, want)
	}
}

// TestDeliveriesThatAStoppingServerHasFetchedGoBackToTheHead lets a server stop between the fetch
// and the start of their runs.
func TestDeliveriesThatAStoppingServerHasFetchedGoBackToTheHead(t *testing.T) {
	t.Parallel()
	c, rdb, namespace, q := newQueue(t)
	var all []ledger.Due
	var want []string // the head is the last one
	for _, run := range []jobs.RunID{"a", "b", "c", "d"} {
		due := ledger.Due{Run: run, N: 1, Queue: q}
		all, want = append(all, due), append([]string{taskID(due, namespace)}, want...)
	}
	if _, err := c.Push(t.Context(), all...); err != nil {
		t.Fatal(err)
	}
	server, err := NewServer(c, Options{Queues: map[string]int{q: 1}, Handle: func(context.Context, []ledger.Due) { t.Error("a run was started") }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	r := &reception{Server: server, ctx: ctx}
	if err := server.o.Slots.Acquire(ctx); err != nil {
		t.Fatal(err)
	}
	server.o.Slots.More(1)
	f := &fetcher{UniversalClient: rdb, reception: r, ctx: ctx, queues: 1, slots: 2}
	taken, err := f.take(t.Context(), q)
	if err != nil || len(taken.deliveries) != 2 {
		t.Fatalf("took %+v, %v, want two deliveries", taken, err)
	}
	stop()
	r.hand(q, taken.field, taken.deliveries)
	r.handlers.Wait()
	if got := rdb.LRange(t.Context(), queueKey(q, "pending"), 0, -1).Val(); !slices.Equal(got, want) {
		t.Errorf("the queue has %q, the first one last, want %q", got, want)
	}
}

// TestADeliveryThatGoesBackKeepsTheLatencyOfItsQueue: it has waited for as long as the one that was
// the first without it, or longer.
func TestADeliveryThatGoesBackKeepsTheLatencyOfItsQueue(t *testing.T) {
	t.Parallel()
	c, rdb, namespace, q := newQueue(t)
	waits := ledger.Due{Run: "waits", N: 1, Queue: q}
	back := ledger.Due{Run: "back", N: 1, Queue: q, PutBack: true}
	if _, err := c.Push(t.Context(), waits); err != nil {
		t.Fatal(err)
	}
	key := taskKey(q, taskID(waits, namespace))
	if err := rdb.HSet(t.Context(), key, "pending_since", time.Now().Add(-time.Hour).UnixNano()).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Push(t.Context(), back); err != nil {
		t.Fatal(err)
	}
	info, err := asynq.NewInspectorFromRedisClient(rdb).GetQueueInfo(q)
	if err != nil || info.Latency < time.Hour {
		t.Errorf("the latency is %+v, %v, want an hour", info, err)
	}
}
