package queue_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
)

func TestQueueBelongsToOneNamespace(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		mine, q := newClient(t, rdb)
		theirs, free := newClient(t, rdb)
		if err := mine.Own(t.Context(), []string{q}); err != nil {
			t.Fatal(err)
		}
		if err := mine.Own(t.Context(), []string{q}); err != nil {
			t.Errorf("again by its owner: %v", err)
		}
		err := theirs.Own(t.Context(), []string{free, q})
		if !errors.Is(err, queue.ErrOwned) {
			t.Fatalf("got %v, want ErrOwned", err)
		}
		for _, want := range []string{q, info(t, mine, q).Namespace, "worker.queues", "HDEL"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not name %s", err, want)
			}
		}
		if got := info(t, theirs, free).Namespace; got != "" {
			t.Errorf("a refusal registered %s for %q", free, got)
		}
		if err := mine.Own(t.Context(), []string{free}); err != nil {
			t.Errorf("the free queue: %v", err)
		}
	})
}

func TestServerFetchesNothingFromAnotherNamespacesQueue(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	owner, q := newClient(t, rdb)
	if err := owner.Own(t.Context(), []string{q}); err != nil {
		t.Fatal(err)
	}
	push(t, owner, ledger.Due{Run: "r", N: 1, Queue: q})
	other, free := newClient(t, rdb)
	s, err := queue.NewServer(other, queue.Options{
		Queues: map[string]int{q: 1, free: 1},
		Handle: func(_ context.Context, d []ledger.Due) { t.Errorf("handled %+v", d) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); !errors.Is(err, queue.ErrOwned) {
		t.Errorf("got %v, want ErrOwned", err)
	}
	if n := info(t, owner, q).Pending; n != 1 {
		t.Errorf("%d are pending, want 1", n)
	}
}

func TestMisdirectedDeliveriesAreEndedAndLogged(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	c, q := newClient(t, rdb)
	other, _ := newClient(t, rdb)
	push(t, other, ledger.Due{Run: "of-another-namespace", N: 1, Queue: q})
	plain := asynq.NewClientFromRedisClient(rdb)
	for _, body := range []string{"", "garbage", `{"namespace":""}`, `{"run":"r","n":1}`, `{"namespace":1}`} {
		if _, err := plain.Enqueue(asynq.NewTask(queue.TaskType, []byte(body)), asynq.Queue(q)); err != nil {
			t.Fatal(err)
		}
	}
	log, lines := newLog()
	got := make(chan ledger.Due)
	slots := newSlots(1)
	serve(t, c, queue.Options{Queues: map[string]int{q: 1}, Handle: into(got), Logger: log, Slots: slots})
	push(t, c, ledger.Due{Run: "good", N: 1, Queue: q})
	if d := receive(t, got); d.Run != "good" {
		t.Errorf("got %+v, want the good one", d)
	}
	slots.Release(1)
	eventually(t, "the others are ended", func() bool { i := info(t, c, q); return i.Pending+i.Active+i.Retry+i.Archived == 0 })
	if n := lines.count("delivery of another namespace ended"); n != 1 {
		t.Errorf("%d lines about the other namespace, want 1", n)
	}
	if n := lines.count("unreadable delivery ended"); n != 5 {
		t.Errorf("%d lines about unreadable ones, want 5", n)
	}
}
