package queue_test

import (
	"context"
	"fmt"
	"testing"

	"lockstep/jobs"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
)

// slots is a channel with as many messages as there are free slots.
type slots chan struct{}

func newSlots(n int) slots {
	s := make(slots, n)
	s.Release(n)
	return s
}

func (s slots) Acquire(ctx context.Context) error {
	select {
	case <-s:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s slots) HasFree() bool { return len(s) > 0 }

func (s slots) More(most int) int {
	for n := range most {
		select {
		case <-s:
		default:
			return n
		}
	}
	return most
}

func (s slots) Release(n int) {
	for range n {
		select {
		case s <- struct{}{}:
		default:
			panic("a slot was given back twice")
		}
	}
}

func (s slots) free() int { return len(s) }

func TestBusyWorkerKeepsNothingFromAnIdleOne(t *testing.T) {
	t.Parallel()
	c, q := newClient(t, redistest.Client(t))
	const n = 10
	var deliveries []ledger.Due
	for i := range n {
		deliveries = append(deliveries, ledger.Due{Run: jobs.RunID(fmt.Sprint("run-", i)), N: 1, Queue: q})
	}
	push(t, c, deliveries...)

	busy := newSlots(2) // these slots are never returned
	byBusy := make(chan ledger.Due, n)
	serve(t, c, queue.Options{Queues: map[string]int{q: 1}, Handle: into(byBusy), Slots: busy})
	receive(t, byBusy)
	receive(t, byBusy)

	byIdle := make(chan ledger.Due)
	serve(t, c, queue.Options{Queues: map[string]int{q: 1}, Handle: into(byIdle)})
	for range n - 2 {
		receive(t, byIdle)
	}
	if len(byBusy) != 0 {
		t.Errorf("the busy worker took %d more than it has slots", len(byBusy))
	}
}

func TestSlotGoesToHandle(t *testing.T) {
	t.Parallel()
	c, q := newClient(t, redistest.Client(t))
	s := newSlots(1)
	free := make(chan int)
	stop := serve(t, c, queue.Options{Queues: map[string]int{q: 1}, Slots: s, Handle: func(context.Context, []ledger.Due) {
		free <- s.free()
		s.Release(1)
	}})
	for i := range 20 {
		push(t, c, ledger.Due{Run: "r", N: int64(i), Queue: q})
		if n := receive(t, free); n != 0 {
			t.Errorf("%d slots were free while the only one is in use", n)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if n := s.free(); n != 1 {
		t.Errorf("%d slots are free after the server has stopped, want 1", n)
	}
}
