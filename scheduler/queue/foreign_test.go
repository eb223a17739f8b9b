package queue_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
)

func TestForeignTaskGoesBackAndIsNeverEnded(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]asynq.Option{
		"plain":              nil,
		"without retries":    {asynq.MaxRetry(0)},
		"with a unique lock": {asynq.Unique(time.Hour)},
		"kept when complete": {asynq.Retention(time.Hour), asynq.MaxRetry(0)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Client(t)
			c, q := newClient(t, rdb)
			plain := asynq.NewClientFromRedisClient(rdb)
			inspector := asynq.NewInspectorFromRedisClient(rdb)
			task, err := plain.Enqueue(asynq.NewTask("mail:send", []byte("hello")), append(options, asynq.Queue(q))...)
			if err != nil {
				t.Fatal(err)
			}
			log, lines := newLog()
			got := make(chan ledger.Due)
			slots := newSlots(1)
			serve(t, c, queue.Options{Queues: map[string]int{q: 1}, Handle: into(got), Logger: log, Slots: slots})
			for round := range 3 {
				var now *asynq.TaskInfo
				eventually(t, "the task is back", func() bool {
					now, err = inspector.GetTaskInfo(q, task.ID)
					return err == nil && now.State == asynq.TaskStateRetry
				})
				if now.Retried != 0 || now.MaxRetry != task.MaxRetry || string(now.Payload) != "hello" {
					t.Errorf("round %d: it was changed to %+v", round, now)
				}
				if in := time.Until(now.NextProcessAt); in < 5*time.Second || in > 10*time.Second {
					t.Errorf("round %d: it comes again in %v, want 10s", round, in)
				}
				if err := inspector.RunTask(q, task.ID); err != nil { // to skip the delay
					t.Fatal(err)
				}
			}
			// Each time, its slot is free again.
			push(t, c, ledger.Due{Run: "ours", N: 1, Queue: q})
			if d := receive(t, got); d.Run != "ours" {
				t.Errorf("got %+v, want ours", d)
			}
			if n := lines.count("unknown type"); n != 1 {
				t.Errorf("%d lines about it, want 1", n)
			}
			if n := lines.count("level="); n != 1 {
				t.Errorf("%d lines in all, want 1", n)
			}
			slots.Release(1)
		})
	}
}

// TestDeletedTasksAtTheHeadAreNoFailure has more IDs at the head of a queue than a fetch examines,
// whose tasks a tool has deleted. The worker does not wait for a poll after each fetch.
func TestDeletedTasksAtTheHeadAreNoFailure(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	c, q := newClient(t, rdb)
	for i := range 80 {
		if err := rdb.LPush(t.Context(), "asynq:{"+q+"}:pending", fmt.Sprint("deleted-", i)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	push(t, c, ledger.Due{Run: "ours", N: 1, Queue: q})
	log, lines := newLog()
	got := make(chan ledger.Due)
	serve(t, c, queue.Options{Queues: map[string]int{q: 1}, Handle: into(got), Logger: log, Slots: newSlots(1), PollInterval: time.Hour})
	if d := receive(t, got); d.Run != "ours" {
		t.Errorf("got %+v, want ours", d)
	}
	if n := lines.count("level="); n != 0 {
		t.Errorf("%d lines, want none", n)
	}
}

// Tasks whose deadline has passed, and tasks that cannot be decoded, must not cost the worker a
// slot.
func TestForeignTasksCostNoSlots(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	c, q := newClient(t, rdb)
	plain := asynq.NewClientFromRedisClient(rdb)
	for range 3 {
		if _, err := plain.Enqueue(asynq.NewTask("mail:send", nil), asynq.Queue(q), asynq.Deadline(time.Unix(1, 0))); err != nil {
			t.Fatal(err)
		}
	}
	for i, message := range []string{"\xff\xff broken", "\x0a\x06settle\x12\xff"} {
		key := fmt.Sprintf("asynq:{%s}:t:broken-%d", q, i)
		err := errors.Join(
			rdb.HSet(t.Context(), key, "msg", message, "state", "pending").Err(),
			rdb.LPush(t.Context(), "asynq:{"+q+"}:pending", fmt.Sprint("broken-", i)).Err(),
		)
		if err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan ledger.Due)
	slots := newSlots(1)
	a := &adopter{answer: func(queue.Request) error { return queue.ErrForeign }, slots: slots}
	stop := serve(t, c, queue.Options{Queues: map[string]int{q: 1}, Handle: into(got), Slots: slots, Adopt: a.adopt})
	push(t, c, ledger.Due{Run: "ours", N: 1, Queue: q})
	receive(t, got)
	slots.Release(1)
	if n := len(a.all()); n != 3 {
		t.Errorf("%d tasks were offered, want those that can be read: 3", n)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if n := slots.free(); n != 1 {
		t.Errorf("%d slots are free after the server has stopped, want 1", n)
	}
}
