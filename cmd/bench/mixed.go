package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// The measurement mixed has these at once.
const (
	mixedWorkers = 4
	mixedSlots   = 16
	mixedBills   = 200
	mixedQueued  = 400 // requests that are never done all
)

// A mix is what happens in the measurement mixed.
type mix struct {
	job *jobs.Job // of the requests

	mu     sync.Mutex
	delays []time.Duration // from a tick to the start of its run; guarded by mu
	counts atomic.Bool     // the measurement has begun

	asked, done atomic.Int64 // requests
	runs        atomic.Int64 // all that ended while it counts
}

// measureMixed measures everything at once: jobs with ticks of seconds and minutes, a tenth of them
// with bundles, and a queue that is never empty.
func measureMixed(ctx context.Context, set settings, r *result) error {
	d, n := 5*time.Minute, 10_000
	if set.short {
		d, n = 15*time.Second, 1000
	}
	alone, err := passing{n: 4000, slots: mixedSlots}.alone(ctx, set)
	if err != nil {
		return err
	}
	s, rdb, stop, err := startWithClient(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if err := settleSpace(ctx, rdb); err != nil {
		return err
	}
	m := &mix{}
	list := m.jobs(n)
	running, end := context.WithCancel(ctx)
	group, running := errgroup.WithContext(running)
	defer func() { end(); _ = group.Wait() }()
	for range mixedWorkers {
		if err := m.start(running, group, dial(s.addr), list); err != nil {
			return err
		}
	}
	group.Go(func() error { return m.feed(running, rdb) })
	set.step("mixed: %d jobs are registered", len(list))
	if err := until(running, func() (bool, error) { return m.runs.Load() > 0 || m.done.Load() > mixedQueued, nil }); err != nil {
		return err
	}
	if !pause(running, max(5*time.Second, d/10)) { // the first ticks after the start are over
		return context.Cause(running)
	}
	set.step("mixed: %s", d)
	before, err := look(ctx, s, nil)
	if err != nil {
		return err
	}
	m.counts.Store(true)
	began, ran := time.Now(), m.runs.Load()
	free, reserved, err := idleWaits(running, rdb, d)
	took := time.Since(began)
	if err != nil {
		return err
	}
	after, err := look(ctx, s, nil)
	if err != nil {
		return err
	}
	all := between(before, after, int(m.runs.Load()-ran), took)
	end()
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	again, err := passing{n: 4000, slots: mixedSlots}.alone(ctx, set)
	if err != nil {
		return err
	}
	m.report(r, all, (alone+again)/2, free, reserved, d, len(list))
	return nil
}

func (m *mix) report(r *result, all stretch, alone, free, reserved float64, d time.Duration, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	slices.Sort(m.delays)
	p99 := 0.0
	if len(m.delays) > 0 {
		p99 = float64(m.delays[len(m.delays)*99/100]) / float64(time.Millisecond)
	}
	r.note("%s with %d jobs and %d workers of %d slots in one process; a request is always queued", d, n, mixedWorkers, mixedSlots)
	r.Columns = []string{"runs/s", "ticks/s", "µs in scripts a run", "row slots", "redis cpu", "start delay p99, ms", "free but waiting, ms", "reserved, ms"}
	server := all.redis.scriptTime() / all.jobs
	r.row(all.rate(), float64(len(m.delays))/all.took.Seconds(), server, alone, all.redis.cpu/all.jobs, p99, free, reserved)
	r.atMost(1.3, server/alone, "server time of a run, relative to that of a run in slots")
	r.atMost(1000, p99, "ms from a tick to the start of its run, p99")
	r.atMost(1000, free, "ms that a run waits at most while all of its bundle is free")
}

// alone returns the server's µs in scripts for a run, to request it and to do it, with no other
// work.
func (pass passing) alone(ctx context.Context, set settings) (float64, error) {
	set.step("mixed: runs alone")
	s, err := startServer(ctx)
	if err != nil {
		return 0, err
	}
	defer s.stop()
	one, err := pass.through(ctx, s, "lockstep", s.addr, pass.n)
	return one[bothOf].redis.scriptTime() / one[bothOf].jobs, err
}

// jobs returns n jobs with ticks and one without: a tenth with three of the bills and a tick every
// 30 s, 2 % with a tick every two seconds, the others with one every minute.
func (m *mix) jobs(n int) []*jobs.Job {
	list := make([]*jobs.Job, n, n+1)
	for i := range list {
		job := beat()
		job.Name, job.Every, job.Overlap = fmt.Sprint("minute", i), time.Minute, jobs.OverlapSkip
		switch {
		case i%10 == 0:
			job.Name, job.Every = fmt.Sprint("bundle", i), 30*time.Second
			for k := range 3 {
				job.Lock.Exclusive = append(job.Lock.Exclusive, fmt.Sprint("bill", (i/10*7+k*61)%mixedBills))
			}
		case i%50 == 1:
			job.Name, job.Every = fmt.Sprint("second", i), 2*time.Second
		}
		list[i] = job
	}
	m.job = beat()
	m.job.Name, m.job.Every = "fed", 0
	return append(list, m.job)
}

// start starts a worker.
func (m *mix) start(ctx context.Context, group *errgroup.Group, rdb *redis.Client, list []*jobs.Job) error {
	handlers := jobs.NewRegistry()
	jobs.Handle(handlers, "work", func(_ context.Context, run *jobs.Run[record]) error {
		m.runs.Add(1)
		if run.Job() == m.job.Name {
			m.done.Add(1)
		} else if tick := run.Tick(); m.counts.Load() && !tick.IsZero() {
			delay := time.Since(tick)
			m.mu.Lock()
			m.delays = append(m.delays, delay)
			m.mu.Unlock()
		}
		return nil
	})
	records, deliveries, err := parts(rdb)
	if err != nil {
		return err
	}
	w, err := worker.New(worker.Options{
		Redis: rdb, Ledger: records, Queue: deliveries, Pusher: worker.NewPusher(deliveries, records),
		Locks: locks.Options{Namespace: "bench", Name: "bench"}, Concurrency: mixedSlots, Queues: map[string]int{"default": 1}, Jobs: list,
		Expand: func(job *jobs.Job) (*jobs.Job, []jobs.Secret, error) { return job, nil, nil }, Executors: map[string]jobs.Executor{"handler": handlers},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	group.Go(func() error { defer rdb.Close(); return w.Run(ctx) })
	return nil
}

// feed keeps requests in the queue.
func (m *mix) feed(ctx context.Context, rdb *redis.Client) error {
	records, deliveries, err := parts(rdb)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		if m.asked.Load()-m.done.Load() >= mixedQueued {
			pause(ctx, time.Millisecond)
			continue
		}
		var some ledger.List
		for range 100 {
			some.Items = append(some.Items, ledger.Request{Job: m.job, ID: fmt.Sprint(m.asked.Add(1)), Trigger: ledger.TriggerEnqueue})
		}
		replies, err := records.EnqueueAll(ctx, some)
		if err != nil {
			return err
		}
		var due []ledger.Due
		for _, one := range replies {
			if one.Err != nil {
				return one.Err
			}
			due = append(due, one.Due...)
		}
		if _, err := deliveries.Push(ctx, due...); err != nil {
			return err
		}
	}
	return nil
}

// idleWaits looks at the waits of runs for d, and returns for how many ms at most one waited while
// all of its bundle was free, neither held, nor reserved, nor wanted by an older wait; and for how
// many ms at most a bundle was reserved for a run before it began.
func idleWaits(ctx context.Context, rdb *redis.Client, d time.Duration) (free, reserved float64, err error) {
	view, err := locks.NewSpace(rdb, "bench")
	if err != nil {
		return 0, 0, err
	}
	type idle struct {
		request locks.HoldID
		state   space.WaitState
	}
	since := make(map[idle]time.Time) // when its bundle was first seen free, or reserved
	for end := time.Now().Add(d); time.Now().Before(end); {
		listing, err := view.Read(ctx)
		if err != nil {
			return 0, 0, err
		}
		taken := make(map[string]bool)
		take := func(names []string) {
			for _, name := range names {
				taken[name] = true
			}
		}
		for _, hold := range listing.Holds {
			take(hold.Names)
		}
		for _, wait := range listing.Waits {
			if wait.State == space.Offered {
				take(wait.Names)
			}
		}
		now, seen := time.Now(), make(map[idle]time.Time)
		for _, wait := range listing.Waits { // the older one goes first
			longest := &reserved
			switch wait.State {
			case space.Offered:
			case space.Waiting:
				longest = &free
				isTaken := slices.ContainsFunc(wait.Names, func(name string) bool { return taken[name] })
				if take(wait.Names); isTaken {
					continue
				}
			default:
				continue
			}
			key := idle{wait.Request, wait.State}
			if seen[key] = now; !since[key].IsZero() {
				seen[key] = since[key]
			}
			*longest = max(*longest, float64(now.Sub(seen[key]))/float64(time.Millisecond))
		}
		since = seen
		pause(ctx, 100*time.Millisecond)
	}
	return free, reserved, ctx.Err()
}
