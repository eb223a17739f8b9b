package worker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"lockstep/scheduler/worker"
)

// lines collects the log lines of a worker.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// contains reports whether a text has been logged.
func (l *lines) contains(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.text.Bytes(), []byte(text))
}

// warnings returns the lines above the level of information.
func (l *lines) warnings() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// TestWorkerIsNotReadyWhileRedisDoesNotAnswer: with a lease of 30 s its session is valid for long,
// but no run can start.
func TestWorkerIsNotReadyWhileRedisDoesNotAnswer(t *testing.T) {
	server := redistest.New(t, redistest.Options{})
	f := newFleetOn(t, server.Client(t))
	w := f.start(func(o *worker.Options) { o.Locks.Lease = 30 * time.Second })
	f.session(w)
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	f.await("the worker not to be ready", func() bool { return w.Unready() != nil })
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("the worker was ready for %s more, want at most half of its lease of 30 s", took)
	}
	if w.Unready() == nil {
		t.Error("the worker does not say why it is not ready")
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	f.await("the worker to be ready", func() bool { return w.Unready() == nil && w.ID() != "" })
}

// TestOnlyAWorkerThatDoesNotCheckRedisHasStalled: a supervisor may kill a worker that has stalled,
// and must not kill one that waits for Redis.
func TestOnlyAWorkerThatDoesNotCheckRedisHasStalled(t *testing.T) {
	server := redistest.New(t, redistest.Options{})
	f := newFleetOn(t, server.Client(t))
	w := f.start(func(o *worker.Options) { o.Locks.Lease = 6 * time.Second })
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	f.await("the worker not to be ready", func() bool { return w.Unready() != nil })
	// each check takes five seconds now; the second of these begins and ends in the outage
	for range 2 {
		before := w.Round()
		f.await("another check", func() bool { return w.Round().After(before) })
	}
	if err := w.Stalled(); err != nil {
		t.Errorf("while Redis does not answer, Stalled() = %v", err)
	}
	f.await("a worker that has not checked Redis for long to have stalled", func() bool {
		w.SetRound(time.Now().Add(-worker.StallLimit - time.Second))
		return w.Stalled() != nil
	})
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	f.await("the worker to be ready", func() bool { return w.Unready() == nil })
	f.await("a check", func() bool { return w.Stalled() == nil })
}

// TestAWorkerIsReadyWhenItsJobsAreRegistered keeps definitions from being stored: a client that
// waits for the worker and then enqueues a job must find it.
func TestAWorkerIsReadyWhenItsJobsAreRegistered(t *testing.T) {
	f := newFleet(t)
	f.job("work", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	if err := f.rdb.Set(t.Context(), f.key("def"), "not a hash", 0).Err(); err != nil {
		t.Fatal(err)
	}
	var log lines
	w := f.launch(func(o *worker.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	f.await("a registration to fail", func() bool { return log.contains(`call="register jobs"`) })
	if err := w.Unready(); err == nil || !strings.Contains(err.Error(), "registered") || log.contains("worker is ready") {
		t.Errorf("Unready() = %v, want an error about the registration, and no line that the worker is ready", err)
	}
	if err := f.rdb.Del(t.Context(), f.key("def")).Err(); err != nil {
		t.Fatal(err)
	}
	f.await("the worker to be ready", func() bool { return w.Unready() == nil })
	if _, err := f.ledger.Job(t.Context(), "work"); err != nil {
		t.Errorf("the worker is ready, and its job: %v", err)
	}
}

// TestAWorkerRegistersItsJobsThoughRepliesAreLost loses every second reply to a registered batch.
// Three batches are sent together, so no registration of all three gets its replies.
func TestAWorkerRegistersItsJobsThoughRepliesAreLost(t *testing.T) {
	f := newFleet(t)
	first := f.job("job0", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	for i := range 2 * ledger.RegisterBatch {
		job := *first
		job.Name = fmt.Sprint("job", i+1)
		f.jobs = append(f.jobs, &job)
	}
	var digest string // of the script that registers a batch
	for hash, name := range ledger.ScriptNames() {
		if name == "register" {
			digest = hash
		}
	}
	var calls, lost atomic.Int32
	f.start(f.lossy(func(request string) bool { return strings.Contains(request, digest) && calls.Add(1)%2 == 0 }, func() { lost.Add(1) }))
	if lost.Load() == 0 {
		t.Error("no reply was lost: the test proves nothing")
	}
	for _, job := range f.jobs {
		if _, err := f.ledger.Job(t.Context(), job.Name); err != nil {
			t.Errorf("the worker is ready, and a job of it is not registered: %v", err)
		}
	}
}

// TestFullRedisIsReportedOnceAndHarmsNoRun fills a Redis while runs are due, and makes room again.
func TestFullRedisIsReportedOnceAndHarmsNoRun(t *testing.T) {
	server := redistest.New(t, redistest.Options{})
	f := newFleetOn(t, server.Client(t))
	release := make(chan struct{})
	held := f.job("held", func(ctx context.Context, _ *jobs.Run[struct{}]) error {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	quick := f.job("quick", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	f.job("tick", func(context.Context, *jobs.Run[struct{}]) error { return nil }, func(j *jobs.Job) { j.Every = time.Second })
	for i := range 20 { // adopted tasks and deliveries of runs that exist already
		f.enqueue(quick, fmt.Sprint(i))
	}
	var log lines
	memory := func(limit string) {
		for _, setting := range [][2]string{{"maxmemory-policy", "noeviction"}, {"maxmemory", limit}} {
			if err := f.rdb.ConfigSet(t.Context(), setting[0], setting[1]).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	w := f.start(func(o *worker.Options) {
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		o.Concurrency = 8
	})
	running := f.enqueue(held, "x")
	f.awaitState(running, ledger.StateRunning)
	var due []jobs.RunID
	for i := range 200 {
		due = append(due, f.enqueue(quick, fmt.Sprint("due", i)))
	}
	memory("1")
	f.await("the worker not to be ready", func() bool { return w.Unready() != nil })
	if err := w.Unready(); !errors.Is(err, worker.ErrRedis) || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("Unready() = %v, want an ErrRedis that says OOM", err)
	}
	timer := time.NewTimer(4 * time.Second) // in which loops may write lines
	<-timer.C
	if lines := log.warnings(); len(lines) > 25 {
		t.Errorf("%d warnings in 4 s of a full Redis, want one for each kind:\n%s", len(lines), strings.Join(lines[:25], "\n"))
	}
	memory("0")
	close(release)
	f.await("the worker to be ready", func() bool { return w.Unready() == nil })
	f.awaitState(running, ledger.StateSucceeded)
	for _, run := range due {
		f.awaitState(run, ledger.StateSucceeded)
	}
	w.stop()
	if lines := log.warnings(); len(lines) > 40 {
		t.Errorf("%d warnings in all:\n%s", len(lines), strings.Join(lines, "\n"))
	}
}

// A signal may arrive while a worker starts. It has taken nothing yet, so it ends in order, without
// a failure.
func TestWorkerThatIsStoppedWhileItStartsEndsInOrder(t *testing.T) {
	f := newFleet(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := worker.Options{
		Locks: locks.Options{Namespace: f.namespace, Name: "w", Lease: 4 * time.Second}, Concurrency: 1, Queues: map[string]int{f.queue: 1},
		Expand: expandNothing, Executors: map[string]jobs.Executor{"handler": f.handlers}, Logger: slog.New(slog.DiscardHandler),
	}
	told := false
	f.broken(func(_ redis.Cmder, send func() error) error {
		told = true
		cancel()
		return send()
	})(&o)
	err := f.worker(o).Run(ctx)
	if !told {
		t.Fatal("the worker was never told to end")
	}
	if err != nil {
		t.Errorf("got %v, want no error", err)
	}
}
