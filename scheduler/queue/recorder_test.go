package queue

import (
	"testing"

	"github.com/hibiken/asynq"

	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
)

// Our pushes must equal asynq's. To record them, asynq must need no more of Redis than the recorder
// provides.
func TestPushedDeliveryIsAsynqsOwn(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	namespace, q := redistest.Namespace(t), redistest.Namespace(t)
	c, err := New(rdb, namespace)
	if err != nil {
		t.Fatal(err)
	}
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
