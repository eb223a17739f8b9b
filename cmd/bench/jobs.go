package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
	"lockstep/scheduler/worker"
)

// Some goroutines enqueue a number of jobs, then one worker does them. Plain asynq is one server of
// the same concurrency and takes no locks; lockstep writes each run into the ledger, locks the run
// and its own record, and keeps the outcome. The time of doing begins with the end of the first
// job, so that it does not include the start of a worker.
const (
	askers      = 16
	concurrency = 64
)

// A system enqueues and does jobs.
type system interface {
	// ask enqueues job i; asked waits until all enqueued jobs are in their queue.
	ask(ctx context.Context, i int) error
	asked()
	// work does the enqueued jobs until ctx ends; each job calls done.
	work(ctx context.Context, done func()) error
}

// passing is how jobs pass through the systems.
type passing struct {
	n      int           // jobs
	delay  time.Duration // half of a round trip to Redis
	slots  int           // of the worker
	target float64       // of the rate at which jobs are done, relative to asynq
	adopt  bool          // lockstep's jobs are tasks of a plain asynq client
}

func measureJobs(ctx context.Context, set settings, r *result) error {
	return passing{n: 4000, slots: concurrency, target: 1}.measure(ctx, set, r)
}

func measureJobsDelayed(ctx context.Context, set settings, r *result) error {
	return passing{n: 2000, delay: 500 * time.Microsecond, slots: concurrency, target: 8}.measure(ctx, set, r)
}

func measureSlots(ctx context.Context, set settings, r *result) error {
	return passing{n: 4000, slots: 16, target: 1}.measure(ctx, set, r)
}

func measureSlotsDelayed(ctx context.Context, set settings, r *result) error {
	return passing{n: 2000, delay: 500 * time.Microsecond, slots: 16, target: 8}.measure(ctx, set, r)
}

func measureAdopt(ctx context.Context, set settings, r *result) error {
	return passing{n: 4000, slots: 16, target: 0.8, adopt: true}.measure(ctx, set, r)
}

func (pass passing) measure(ctx context.Context, set settings, r *result) error {
	n, target, delay := pass.n, pass.target, pass.delay
	if set.short {
		n /= 4
	}
	s, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	addr := s.addr
	if delay > 0 {
		proxy, err := redistest.NewProxy(ctx, "tcp", s.addr)
		if err != nil {
			return err
		}
		defer proxy.Close()
		proxy.Set(redistest.Faults{RequestDelay: delay, ReplyDelay: delay})
		if addr, err = addrOf(proxy.URL()); err != nil {
			return err
		}
		trip, err := roundTrip(ctx, addr)
		if err != nil {
			return err
		}
		r.note("round trip through the idle proxy: %.2f ms", trip.Seconds()*1000)
	}
	names := []string{"lockstep", "asynq"}
	passages := make([][]passage, len(names))
	for round := range set.rounds {
		set.step("jobs, round %d of %d", round+1, set.rounds)
		for k := range names {
			which := (round + k) % len(names) // the order rotates
			if err := s.admin.FlushAll(ctx).Err(); err != nil {
				return err
			}
			one, err := pass.through(ctx, s, names[which], addr, n)
			if err != nil {
				return fmt.Errorf("%s: %w", names[which], err)
			}
			passages[which] = append(passages[which], one)
		}
	}
	r.note("medians of %d rounds of %d jobs, enqueued by %d goroutines, then done by one worker of concurrency %d",
		set.rounds, n, askers, pass.slots)
	r.note("costs of a job, to enqueue and to do it: reads of Redis from its sockets (about one per round trip), scripts, µs in")
	r.note("them, µs of CPU of Redis' main thread and of this process")
	r.Columns = []string{"system", "phase", "jobs/s", "ratio", "reads", "scripts", "µs in scripts", "redis cpu", "client cpu"}
	for k, name := range names {
		for phase, what := range []string{"ask", "do", "both"} {
			of := func(what func(stretch) float64) float64 {
				return medianOf(passages[k], func(p passage) float64 { return what(p[phase]) })
			}
			r.row(name, what, of(stretch.rate), ratioOf(passages[k], passages[1], phase),
				of(func(s stretch) float64 { return s.redis.reads / s.jobs }), of(func(s stretch) float64 { return s.redis.scripts() / s.jobs }),
				of(func(s stretch) float64 { return s.redis.scriptTime() / s.jobs }),
				of(func(s stretch) float64 { return s.redis.cpu / s.jobs }), of(func(s stretch) float64 { return s.client / s.jobs }))
		}
	}
	r.atLeast(target, ratioOf(passages[0], passages[1], doing), "jobs done per second, relative to plain asynq")
	if !pass.adopt { // else plain asynq enqueues both
		r.atLeast(target, ratioOf(passages[0], passages[1], bothOf), "the same, including the time to enqueue them")
	}
	return nil
}

// passage has the stretches that n jobs took through a system.
type passage [3]stretch

// The parts of a passage.
const (
	asking = iota
	doing
	bothOf
)

// stretch is one part of a passage.
type stretch struct {
	jobs   float64
	took   time.Duration
	redis  usage
	client float64 // µs of CPU time of this process
}

func (s stretch) rate() float64 { return s.jobs / s.took.Seconds() }

func medianOf(all []passage, what func(passage) float64) float64 {
	values := make([]float64, len(all))
	for i, p := range all {
		values[i] = what(p)
	}
	return median(values)
}

// ratioOf returns the median, over the rounds, of the ratio of the rates in each round.
func ratioOf(all, base []passage, phase int) float64 {
	values := make([]float64, len(all))
	for i := range all {
		values[i] = all[i][phase].rate() / base[i][phase].rate()
	}
	return median(values)
}

// between returns the part between two readings.
func between(before, after sight, n int, took time.Duration) stretch {
	return stretch{jobs: float64(n), took: took, redis: after.redis.since(before.redis), client: after.client - before.client}
}

// through takes n jobs through a system.
func (pass passing) through(ctx context.Context, server *server, name, addr string, n int) (p passage, err error) {
	rdb := dial(addr)
	defer rdb.Close()
	asynqs := &plain{rdb: rdb, client: asynq.NewClientFromRedisClient(rdb), slots: pass.slots}
	var s system = asynqs
	if name != "asynq" {
		ours, err := newWhole(ctx, rdb, pass.slots)
		if err != nil {
			return p, err
		}
		if s = ours; pass.adopt {
			s = adopting{ours, asynqs}
		}
	}
	before, err := look(ctx, server, nil)
	if err != nil {
		return p, err
	}
	began := time.Now()
	err = each16(ctx, 0, n, s.ask)
	s.asked()
	if err != nil {
		return p, err
	}
	took := time.Since(began)
	middle, err := look(ctx, server, nil)
	if err != nil {
		return p, err
	}

	working, stop := context.WithCancel(ctx)
	defer stop()
	var (
		count       atomic.Int64
		first, last time.Time // each written by one job, before stop or the return of work
	)
	var fetched time.Time
	var watching sync.WaitGroup
	if pass.adopt {
		watching.Go(func() { fetched = firstFetch(working, server, n) })
	}
	err = s.work(working, func() {
		switch count.Add(1) {
		case 1:
			first = time.Now()
		case int64(n):
			last = time.Now()
			stop()
		}
	})
	stop()
	watching.Wait()
	if err == nil && count.Load() < int64(n) {
		err = fmt.Errorf("%d of %d jobs were done", count.Load(), n)
	}
	if err != nil {
		return p, err
	}
	if pass.adopt { // many tasks may become runs before the first of these ends
		first = fetched
	}
	done, err := look(ctx, server, nil)
	p[asking], p[doing] = between(before, middle, n, took), between(middle, done, n, last.Sub(first))
	p[bothOf] = between(before, done, n, took+last.Sub(first))
	return p, err
}

// firstFetch returns when a worker has fetched the first of n tasks.
func firstFetch(ctx context.Context, server *server, n int) time.Time {
	for ctx.Err() == nil && server.admin.LLen(ctx, "asynq:{default}:pending").Val() >= int64(n) {
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}
	return time.Now()
}

// plain is asynq alone.
type plain struct {
	rdb    *redis.Client
	client *asynq.Client
	slots  int
}

func (p *plain) ask(ctx context.Context, i int) error {
	_, err := p.client.EnqueueContext(ctx, asynq.NewTask("work", []byte(fmt.Sprintf(`{"record":%d}`, i))))
	return err
}

func (p *plain) asked() {}

func (p *plain) work(ctx context.Context, done func()) error {
	server := asynq.NewServerFromRedisClient(p.rdb, asynq.Config{
		Concurrency: p.slots, TaskCheckInterval: 50 * time.Millisecond, LogLevel: asynq.FatalLevel,
	})
	err := server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { done(); return nil }))
	if err != nil {
		return err
	}
	<-ctx.Done()
	server.Shutdown()
	return nil
}

// whole is lockstep: ledger, queue, locks, worker.
type whole struct {
	rdb    *redis.Client
	ledger *ledger.Ledger
	queue  *queue.Client
	pusher *worker.Pusher
	stop   func() // ends the pusher and waits for it
	job    *jobs.Job
	slots  int
}

// adopting is lockstep with tasks of a plain asynq client.
type adopting struct {
	*whole
	client *plain
}

func (a adopting) ask(ctx context.Context, i int) error { return a.client.ask(ctx, i) }

type record struct {
	Record int `json:"record"`
}

func newWhole(ctx context.Context, rdb *redis.Client, slots int) (*whole, error) {
	if err := settleSpace(ctx, rdb); err != nil {
		return nil, err
	}
	space, err := locks.NewSpace(rdb, "bench")
	if err != nil {
		return nil, err
	}
	client, err := queue.New(rdb, "bench")
	if err != nil {
		return nil, err
	}
	job := &jobs.Job{
		Name: "work", Handler: "work", Queue: "default", Overlap: jobs.OverlapSkip, OnMissed: jobs.MissedLast,
		OnCrash: jobs.CrashRerun, MaxCrashes: 3, History: jobs.History{Runs: 1000, For: time.Hour},
		Lock: jobs.Lock{Exclusive: []string{"record:{record}"}},
	}
	records := ledger.New(rdb, space)
	w := &whole{rdb: rdb, ledger: records, queue: client, pusher: worker.NewPusher(client, records), job: job, slots: slots}
	ctx, stop := context.WithCancel(ctx)
	var pushing sync.WaitGroup
	pushing.Go(func() { w.pusher.Run(ctx, slog.New(slog.DiscardHandler)) })
	w.stop = func() { stop(); pushing.Wait() }
	return w, nil
}

// settleSpace creates the lock space and waits for its first grant: a new space on a new server
// grants nothing for a second, and runs that are claimed in that second would wait.
func settleSpace(ctx context.Context, rdb *redis.Client) error {
	client, err := locks.Open(ctx, rdb, locks.Options{Namespace: "bench"})
	if err != nil {
		return err
	}
	hold, err := client.Acquire(ctx, locks.Exclusive("first"))
	if err == nil {
		err = hold.Release()
	}
	return errors.Join(err, client.Close(ctx))
}

func (w *whole) ask(ctx context.Context, i int) error {
	enqueued, err := w.ledger.Enqueue(ctx, w.request(i))
	if err != nil {
		return err
	}
	w.pusher.Add(enqueued.Due...)
	return nil
}

func (w *whole) request(i int) ledger.Request {
	return ledger.Request{Job: w.job, ID: fmt.Sprint(i), Trigger: ledger.TriggerEnqueue, Args: []byte(fmt.Sprintf(`{"record":%d}`, i))}
}

func (w *whole) asked() { w.stop() }

func (w *whole) work(ctx context.Context, done func()) error {
	handlers := jobs.NewRegistry()
	jobs.Handle(handlers, "work", func(context.Context, *jobs.Run[record]) error { done(); return nil })
	worker, err := worker.New(worker.Options{
		Redis: w.rdb, Ledger: w.ledger, Queue: w.queue, Pusher: worker.NewPusher(w.queue, w.ledger), Locks: locks.Options{Namespace: "bench", Name: "bench"}, Concurrency: w.slots, Queues: map[string]int{"default": 1},
		Jobs: []*jobs.Job{w.job}, Expand: func(job *jobs.Job) (*jobs.Job, []jobs.Secret, error) { return job, nil, nil }, Executors: map[string]jobs.Executor{"handler": handlers},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	return worker.Run(ctx)
}
