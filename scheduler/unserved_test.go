package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
)

// reads is a hook that counts the pages of due runs that are read, and breaks those of a queue.
type reads struct {
	broken string
	pages  atomic.Int64
}

func (r *reads) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (r *reads) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (r *reads) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if cmd.Name() == "zlexcount" {
				r.pages.Add(1)
				if r.broken != "" && strings.HasPrefix(fmt.Sprint(cmd.Args()[2]), "["+r.broken+"\x00") {
					return errors.New("the queue takes too long")
				}
			}
		}
		return next(ctx, cmds)
	}
}

// unservedFixture has a scheduler that moves runs to the queue "served", which alone is served.
type unservedFixture struct {
	*testing.T
	*Scheduler
	reads     reads
	rdb       *redis.Client
	namespace string
}

func newUnserved(t *testing.T) *unservedFixture {
	t.Helper()
	t.Parallel()
	f := &unservedFixture{T: t, rdb: redistest.New(t, redistest.Options{}).Client(t), namespace: redistest.Namespace(t)}
	f.rdb.AddHook(&f.reads)
	space, err := locks.NewSpace(f.rdb, f.namespace)
	if err != nil {
		t.Fatal(err)
	}
	f.Scheduler, err = New(Options{
		Ledger:  ledger.New(f.rdb, space),
		Served:  func(context.Context) (map[string]bool, error) { return map[string]bool{"served": true}, nil },
		Paused:  func(context.Context) ([]string, error) { return nil, nil },
		Deliver: func(context.Context, []ledger.Due) {},
		Logger:  slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.o.Ledger.Register(t.Context(), "config", []*jobs.Job{unservedJob("moves", "served")}); err != nil {
		t.Fatal(err)
	}
	return f
}

func unservedJob(name, queue string) *jobs.Job {
	return &jobs.Job{
		Name: name, Queue: queue, Command: []string{"true"}, Overlap: jobs.OverlapQueue, MaxQueued: 10, OnMissed: jobs.MissedAll,
		OnCrash: jobs.CrashRerun, MaxCrashes: 3, Retry: jobs.Retry{Backoff: jobs.BackoffFixed, Initial: time.Second},
		History: jobs.History{Runs: 10, For: time.Hour},
	}
}

// enqueue makes a due run in a queue. Only runs of the job "moves" can move.
func (f *unservedFixture) enqueue(job, queue string) jobs.RunID {
	f.Helper()
	enqueued, err := f.o.Ledger.Enqueue(f.Context(), ledger.Request{Job: unservedJob(job, queue), ID: queue, Trigger: ledger.TriggerEnqueue})
	if err != nil {
		f.Fatal(err)
	}
	return enqueued.Run
}

func (f *unservedFixture) queueOf(run jobs.RunID) string {
	f.Helper()
	record, _, err := f.o.Ledger.Find(f.Context(), run)
	if err != nil {
		f.Fatal(err)
	}
	return record.Queue
}

// TestAQueueThatTakesTooLongHoldsUpNoOther: each round continues behind the queue at which the one
// before ended.
func TestAQueueThatTakesTooLongHoldsUpNoOther(t *testing.T) {
	f := newUnserved(t)
	f.reads.broken = "a"
	stays := f.enqueue("moves", "a")
	runs := []jobs.RunID{f.enqueue("moves", "b"), f.enqueue("moves", "c")}
	for range 3 {
		f.moveUnserved(t.Context())
	}
	for _, run := range runs {
		if queue := f.queueOf(run); queue != "served" {
			t.Errorf("after three rounds %s is in the queue %s, which no worker serves", run, queue)
		}
	}
	f.reads.broken = ""
	for range 2 {
		f.moveUnserved(t.Context())
	}
	if queue := f.queueOf(stays); queue != "served" {
		t.Errorf("%s is in the queue %s, want it to move once its queue can be read", stays, queue)
	}
}

// TestARoundReadsSomePagesAndTheNextOneContinues has more queues than a round reads, whose runs
// stay. It reaches the last one.
func TestARoundReadsSomePagesAndTheNextOneContinues(t *testing.T) {
	f := newUnserved(t)
	const most = 16 // pages in a round
	for i := range 2 * most {
		f.enqueue("stays", fmt.Sprintf("q%02d", i))
	}
	last := f.enqueue("moves", "z")
	for round := range 3 {
		f.reads.pages.Store(0)
		f.moveUnserved(t.Context())
		if pages := f.reads.pages.Load(); pages > most {
			t.Errorf("round %d has read %d pages, want %d at most", round, pages, most)
		}
	}
	if queue := f.queueOf(last); queue != "served" {
		t.Errorf("%s is in the queue %s after three rounds, want it to have moved", last, queue)
	}
}

// TestAPauseIsNoticedWhileRunsAreMoved: other tools pause a queue while a look for runs in queues
// that no worker serves takes long.
func TestAPauseIsNoticedWhileRunsAreMoved(t *testing.T) {
	f := newUnserved(t)
	looks, free := make(chan struct{}, 1), make(chan struct{})
	f.o.Served = func(ctx context.Context) (map[string]bool, error) {
		select {
		case looks <- struct{}{}:
		default:
		}
		<-free
		return nil, ctx.Err()
	}
	var paused atomic.Pointer[[]string]
	paused.Store(new([]string))
	f.o.Paused = func(context.Context) ([]string, error) { return *paused.Load(), nil }
	f.duty.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	ended := f.startPauses(ctx)
	defer func() {
		cancel()
		close(free)
		ended()
	}()

	<-looks
	paused.Store(&[]string{"night"})
	for until := time.Now().Add(10 * time.Second); ; {
		kept := f.rdb.HGet(t.Context(), "{"+f.namespace+"}:meta", "kept").Val()
		if slices.Contains(strings.Split(kept, "\x1f"), "night") {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("the paused queues are %q after 10 s, want night among them", kept)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// startPauses starts what watches queues, and returns a function that waits for its end.
func (f *unservedFixture) startPauses(ctx context.Context) (wait func()) {
	var loops sync.WaitGroup
	loops.Go(func() { f.pauses(ctx) })
	loops.Go(func() { f.moves(ctx) })
	return loops.Wait
}
