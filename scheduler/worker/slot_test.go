package worker_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// A lateReply is a hook that keeps the replies to some commands back.
type lateReply struct {
	late func(args string) bool
	come <-chan struct{}
}

func (h *lateReply) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return next(ctx, network, address)
	}
}

func (h *lateReply) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if h.late(fmt.Sprint(cmd.Args()...)) {
			select {
			case <-h.come:
			case <-ctx.Done():
			}
		}
		return err
	}
}

func (h *lateReply) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// receive returns the next value, or fails the test.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(time.Minute):
		t.Fatal("nothing came within a minute")
		panic("unreachable")
	}
}

// TestNextRunNeedNotWaitForTheEndOfABriefOne keeps the reply to a finish back until another run has
// begun in the same slot.
func TestNextRunNeedNotWaitForTheEndOfABriefOne(t *testing.T) {
	f := newFleet(t)
	second := make(chan struct{})
	f.job("settle", func(context.Context, *jobs.Run[struct{}]) error { return nil },
		func(j *jobs.Job) { j.Lock.Exclusive = []string{"bill:1"} })
	other := f.job("other", func(context.Context, *jobs.Run[struct{}]) error { close(second); return nil })
	hook := &lateReply{late: func(args string) bool {
		return strings.Contains(args, "succeeded") && strings.Contains(args, "settle#1")
	}, come: second}
	f.start(func(o *worker.Options) { o.Concurrency, o.Hook = 1, hook })
	f.enqueue(f.jobs[0], "1")
	f.enqueue(other, "1")
	for _, run := range []jobs.RunID{"settle#1", "other#1"} {
		if record := f.awaitState(run, ledger.StateSucceeded); len(record.Attempts) != 1 {
			t.Errorf("%+v, want one attempt", record)
		}
	}
}

// TestRunsOfLongAttemptsKeepTheirSlots keeps the reply to a finish back. No other run begins before
// it: a run that this finish makes due would find no slot.
func TestRunsOfLongAttemptsKeepTheirSlots(t *testing.T) {
	f := newFleet(t)
	var replied atomic.Bool
	come, finished := make(chan struct{}), make(chan struct{})
	long := f.job("long", func(context.Context, *jobs.Run[struct{}]) error {
		time.Sleep(200 * time.Millisecond) // the work
		return nil
	})
	early := make(chan bool, 1)
	other := f.job("other", func(context.Context, *jobs.Run[struct{}]) error { early <- !replied.Load(); return nil })
	hook := &lateReply{late: func(args string) bool {
		late := strings.Contains(args, "succeeded") && strings.Contains(args, "long#1")
		if late {
			close(finished)
		}
		return late
	}, come: come}
	f.start(func(o *worker.Options) { o.Concurrency, o.Hook = 1, hook })
	f.enqueue(long, "1")
	f.enqueue(other, "1")
	receive(t, finished)
	select {
	case <-early:
		t.Error("another run began in the slot of a long one, before that was recorded")
	case <-time.After(100 * time.Millisecond): // it would begin within a few
	}
	replied.Store(true)
	close(come)
	if receive(t, early) {
		t.Error("another run began early")
	}
}

// TestNoMoreAttemptsRunThanThereAreSlots has many brief runs, of which some wait for each other's
// locks. Then each slot is free, once.
func TestNoMoreAttemptsRunThanThereAreSlots(t *testing.T) {
	f := newFleet(t)
	const slots, runs = 3, 600
	var now, most, done atomic.Int64
	work := func() {
		n := now.Add(1)
		for before := most.Load(); n > before && !most.CompareAndSwap(before, n); before = most.Load() {
		}
	}
	brief := func(context.Context, *jobs.Run[struct{}]) error {
		work()
		time.Sleep(time.Duration(done.Add(1)%3) * time.Millisecond) // the work
		now.Add(-1)
		return nil
	}
	f.job("plain", brief)
	f.job("settle", brief, func(j *jobs.Job) { j.Lock.Exclusive = []string{"bill:1"} })
	all := make(chan struct{})
	last := f.job("last", func(ctx context.Context, _ *jobs.Run[struct{}]) error {
		work()
		defer now.Add(-1)
		select {
		case <-all:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	f.start(func(o *worker.Options) { o.Concurrency = slots })
	for i := range runs {
		f.enqueue(f.jobs[i%2], fmt.Sprint(i))
	}
	f.await("the brief runs to end", func() bool { return done.Load() == runs })
	var waiting []jobs.RunID
	for i := range slots + 2 {
		waiting = append(waiting, f.enqueue(last, fmt.Sprint(i)))
	}
	f.await("the slots to be taken", func() bool { return now.Load() >= slots })
	close(all)
	for _, run := range waiting {
		f.awaitState(run, ledger.StateSucceeded)
	}
	if got := most.Load(); got != slots {
		t.Errorf("up to %d attempts ran, want %d", got, slots)
	}
}
