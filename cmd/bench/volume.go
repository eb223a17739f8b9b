package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
	"lockstep/scheduler/worker"
)

// far returns a client with a round trip of twice the delay, and a function that closes it.
func (s *server) far(ctx context.Context, delay time.Duration) (*redis.Client, func(), error) {
	proxy, err := redistest.NewProxy(ctx, "tcp", s.addr)
	if err != nil {
		return nil, nil, err
	}
	proxy.Set(redistest.Faults{RequestDelay: delay, ReplyDelay: delay})
	addr, err := addrOf(proxy.URL())
	if err != nil {
		proxy.Close()
		return nil, nil, err
	}
	rdb := dial(addr)
	return rdb, func() { _ = rdb.Close(); proxy.Close() }, nil
}

// begin starts a worker with these jobs, whose handler calls done, and returns a function that
// stops it.
func begin(ctx context.Context, rdb *redis.Client, list []*jobs.Job, done func()) (w *worker.Worker, stop func() error, err error) {
	handlers := jobs.NewRegistry()
	jobs.Handle(handlers, "work", func(context.Context, *jobs.Run[record]) error { done(); return nil })
	return beginWith(ctx, rdb, list, map[string]jobs.Executor{"handler": handlers})
}

// beginWith is begin for other executors.
func beginWith(ctx context.Context, rdb *redis.Client, list []*jobs.Job, executors map[string]jobs.Executor) (w *worker.Worker, stop func() error, err error) {
	records, deliveries, err := parts(rdb)
	if err != nil {
		return nil, nil, err
	}
	w, err = worker.New(worker.Options{
		Redis: rdb, Ledger: records, Queue: deliveries, Pusher: worker.NewPusher(deliveries, records), Locks: locks.Options{Namespace: "bench", Name: "bench"}, Concurrency: concurrency, Queues: map[string]int{"default": 1}, Jobs: list,
		Expand: func(job *jobs.Job) (*jobs.Job, []jobs.Secret, error) { return job, nil, nil }, Executors: executors,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }() // stop waits for it
	return w, func() error { cancel(); return <-ended }, nil
}

// parts returns the ledger and the queues of the benchmarks.
func parts(rdb *redis.Client) (*ledger.Ledger, *queue.Client, error) {
	space, err := locks.NewSpace(rdb, "bench")
	if err != nil {
		return nil, nil, err
	}
	deliveries, err := queue.New(rdb, "bench")
	return ledger.New(rdb, space), deliveries, err
}

// until waits until a condition holds, checking it a hundred times a second.
func until(ctx context.Context, holds func() (bool, error)) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := holds(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// beat is a job with a tick every second.
func beat() *jobs.Job {
	return &jobs.Job{
		Name: "beat", Handler: "work", Queue: "default", Every: time.Second, Overlap: jobs.OverlapAllow, OnMissed: jobs.MissedLast,
		OnCrash: jobs.CrashRerun, MaxCrashes: 3, History: jobs.History{Runs: 1000, For: time.Hour}, Args: []byte(`{"record":0}`),
	}
}

// latest returns the greatest delay between a tick of beat and its decision since an instant.
func latest(ctx context.Context, l *ledger.Ledger, since time.Time) (late time.Duration, err error) {
	ticks, err := l.History(ctx, "beat", 0)
	for _, tick := range ticks {
		if tick.Tick.Before(since) { // no worker may have been up
			continue
		}
		if tick.State == ledger.StateMissed {
			err = errors.Join(err, fmt.Errorf("%s was missed", tick.ID))
		}
		late = max(late, tick.Created.Sub(tick.Tick))
	}
	return late, err
}

// measureOutstanding starts a worker in a namespace where very many runs are outstanding. Its first
// poll, its first sweep and the first page of each view must not depend on them.
func measureOutstanding(ctx context.Context, set settings, r *result) error {
	n := set.volume()
	s, near, stop, err := startWithClient(ctx)
	if err != nil {
		return err
	}
	defer stop()
	w, err := newWhole(ctx, near, concurrency)
	if err != nil {
		return err
	}
	defer w.stop()
	if err := enlarge(w.job, definitionBytes); err != nil {
		return err
	}
	set.step("size-outstanding: %d runs end", endedRuns)
	ended, err := w.ended(ctx, s, endedRuns)
	if err != nil {
		return fmt.Errorf("measure ended runs: %w", err)
	}
	r.note("the definition has %d bytes; a run that has ended without output takes %.0f bytes of Redis", definitionBytes, ended)
	r.atMost(500, ended, "bytes of Redis for a run that has ended")
	r.Columns = []string{"outstanding", "bytes of Redis a run", "first run after, ms", "ticks late, ms", "jobs read in, ms", "50 runs read in, ms"}
	var first []float64
	for _, runs := range []int{0, n} {
		set.step("size-outstanding: %d runs are recorded", runs)
		before, err := s.memory(ctx)
		if err != nil {
			return err
		}
		if err := w.schedule(ctx, runs); err != nil {
			return err
		}
		after, err := s.memory(ctx)
		if err != nil {
			return err
		}
		set.step("size-outstanding: a worker beside them")
		seen, err := w.beside(ctx, s)
		if err != nil {
			return fmt.Errorf("beside %d outstanding runs: %w", runs, err)
		}
		r.row(runs, (after-before)/float64(runs), seen.first, seen.late, seen.jobs, seen.runs)
		first = append(first, seen.first)
		if runs > 0 {
			r.atMost(1200, (after-before)/float64(runs), "bytes of Redis for an outstanding run")
			r.atMost(1000, seen.late, "ms that a tick is late")
			r.atMost(1000, seen.jobs, "ms to read the jobs and count their runs")
			r.atMost(1000, seen.runs, "ms to read 50 runs")
		}
	}
	r.atMost(first[0]+1000, first[1], "ms from the start of a worker until a run that it has to make due has run")
	return nil
}

const (
	definitionBytes = 672    // that of a job with a command, some locks, retries and a description
	endedRuns       = 20_000 // whose history is measured
)

// enlarge gives a job a description that makes its definition so long.
func enlarge(job *jobs.Job, bytes int) error {
	job.Description = "d"
	text, _, err := job.Definition()
	if err != nil {
		return err
	}
	job.Description = strings.Repeat("d", 1+max(0, bytes-len(text)))
	return nil
}

// ended has so many runs of a job succeed, and returns how many bytes of Redis each of them takes
// then, without the entry of its hold (admin.keep), whose number has a bound of its own.
func (w *whole) ended(ctx context.Context, s *server, n int) (bytes float64, err error) {
	client, err := locks.Open(ctx, w.rdb, locks.Options{Namespace: "bench", Name: "bench", Keep: locks.Keep{Entries: -1}})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, client.Close(context.WithoutCancel(ctx))) }()
	job := *w.job
	job.Name, job.History.Runs = "ended", n
	before, err := s.memory(ctx)
	if err != nil {
		return 0, err
	}
	for done := 0; done < n; done += ledger.MaxTogether {
		if err := w.succeed(ctx, client, &job, min(ledger.MaxTogether, n-done)); err != nil {
			return 0, err
		}
	}
	after, err := s.memory(ctx)
	return (after - before) / float64(n), err
}

// succeed records runs of a job that succeed.
func (w *whole) succeed(ctx context.Context, client *locks.Client, job *jobs.Job, n int) error {
	return w.endAs(ctx, client, job, n, ledger.OutcomeSuccess)
}

// endAs records runs of a job and ends them.
func (w *whole) endAs(ctx context.Context, client *locks.Client, job *jobs.Job, n int, outcome ledger.Outcome) error {
	claims := make([]ledger.Claim, n)
	for i := range claims {
		enqueued, err := w.ledger.Enqueue(ctx, ledger.Request{Job: job, ID: jobs.NewRunName(time.Now()), Trigger: ledger.TriggerEnqueue,
			Args: fmt.Appendf(nil, `{"record":%d}`, i)})
		if err != nil {
			return err
		}
		request, err := client.Extension().Begin()
		if err != nil {
			return err
		}
		claims[i] = ledger.Claim{Request: request, Due: enqueued.Due[0]}
	}
	finishes := make([]ledger.Finish, n)
	for i, claimed := range w.ledger.ClaimAll(ctx, claims, time.Second) {
		if claimed == nil || claimed.Outcome != ledger.ClaimGranted {
			return fmt.Errorf("claim of %s: %+v", claims[i].Due.Run, claimed)
		}
		hold := claims[i].Request.Granted(ctx, claimed.Grant())
		client.Extension().Freeing(hold)
		defer client.Extension().Released(hold)
		finishes[i] = ledger.Finish{Run: claims[i].Due.Run, Job: job, Token: hold.Token(), Hold: hold.ID(), Outcome: outcome}
	}
	if outcome != ledger.OutcomeSuccess {
		for _, finish := range finishes {
			if _, err := w.ledger.Finish(ctx, finish); err != nil {
				return err
			}
		}
		return nil
	}
	for i, finished := range w.ledger.FinishAll(ctx, finishes) {
		if finished == nil {
			return fmt.Errorf("finish of %s was not answered", finishes[i].Run)
		}
	}
	return nil
}

// memory returns how much memory Redis uses.
func (s *server) memory(ctx context.Context) (float64, error) {
	fields, err := s.info(ctx, "memory")
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(fields["used_memory"], 64)
}

// seen has the figures of a worker, in ms.
type seen struct{ first, late, jobs, runs float64 }

// beside starts a worker far from Redis, makes a run due with its help, and reads the first pages.
func (w *whole) beside(ctx context.Context, s *server) (seen seen, err error) {
	rdb, closed, err := s.far(ctx, 5*time.Millisecond)
	if err != nil {
		return seen, err
	}
	defer closed()
	ran := make(chan struct{}, 1)
	tick := beat()
	began := time.Now()
	enqueued, err := w.ledger.Enqueue(ctx, ledger.Request{Job: w.job, ID: fmt.Sprint("soon", began.UnixNano()), Trigger: ledger.TriggerEnqueue,
		Args: []byte(`{"record":-1}`), In: time.Millisecond})
	if err != nil {
		return seen, err
	}
	_, stop, err := begin(ctx, rdb, []*jobs.Job{w.job, tick}, func() {
		select {
		case ran <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return seen, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	limit, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	err = until(limit, func() (bool, error) {
		run, _, err := w.ledger.Find(limit, enqueued.Run)
		return err == nil && run.State.Final(), err
	})
	if err != nil {
		return seen, err
	}
	seen.first = ms(time.Since(began))
	up := time.Now()
	far := ledger.New(rdb, w.ledger.Space())
	asked := time.Now()
	if _, err := far.Jobs(limit); err != nil {
		return seen, err
	}
	if _, err := far.CountOpen(limit, []string{w.job.Name, tick.Name}); err != nil {
		return seen, err
	}
	seen.jobs, asked = ms(time.Since(asked)), time.Now()
	entries, err := far.OpenEntries(limit, ledger.IndexJob, "", "", 50)
	if err != nil {
		return seen, err
	}
	ids := make([]jobs.RunID, len(entries))
	for i, entry := range entries {
		ids[i] = entry.Run
	}
	if _, err := far.OpenRecords(limit, ids); err != nil {
		return seen, err
	}
	seen.runs = ms(time.Since(asked))
	if err := until(limit, func() (bool, error) { return time.Since(up) > 4*time.Second, nil }); err != nil {
		return seen, err
	}
	late, err := latest(ctx, w.ledger, up)
	seen.late = ms(late)
	return seen, err
}

// ms is a duration in milliseconds.
func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// measureTriggers changes the triggers of very many jobs in one reload, while one more job has
// ticks.
func measureTriggers(ctx context.Context, set settings, r *result) error {
	n := set.volume()
	s, near, stop, err := startWithClient(ctx)
	if err != nil {
		return err
	}
	defer stop()
	whole, err := newWhole(ctx, near, concurrency)
	if err != nil {
		return err
	}
	defer whole.stop()
	rdb, closed, err := s.far(ctx, 500*time.Microsecond)
	if err != nil {
		return err
	}
	defer closed()
	list := func(every time.Duration) []*jobs.Job {
		all := []*jobs.Job{beat()}
		for i := range n {
			job := *beat()
			job.Name, job.Every = fmt.Sprint("job", i), every
			all = append(all, &job)
		}
		return all
	}
	// How often a cursor has moved: once for each change, and once for each tick.
	changed := func() (int, error) {
		text, err := near.HGet(ctx, "{bench}:ledger", "rev").Result()
		if errors.Is(err, redis.Nil) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(text)
	}
	set.step("size-triggers: %d jobs are registered", n)
	began := time.Now()
	w, end, err := begin(ctx, rdb, list(30*24*time.Hour), func() {})
	if err != nil {
		return err
	}
	defer func() { _ = end() }()
	limit, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	var last int
	err = until(limit, func() (bool, error) { last, err = changed(); return last > n+2, err })
	if err != nil {
		return fmt.Errorf("register %d jobs: %w", n, err)
	}
	registered := time.Since(began)
	set.step("size-triggers: all triggers change")
	began = time.Now()
	if err := w.SetJobs(limit, list(60*24*time.Hour), nil, "two"); err != nil {
		return err
	}
	ticks := 0
	err = until(limit, func() (bool, error) {
		now, err := changed()
		ticks = int(time.Since(began)/time.Second) + 1
		return now >= last+n+ticks, err
	})
	if err != nil {
		return fmt.Errorf("change %d triggers: %w", n, err)
	}
	took := time.Since(began)
	records, err := whole.ledger.Jobs(limit)
	if err != nil {
		return err
	}
	for _, record := range records {
		if record.Job.Name != "beat" && record.Job.Name != "work" && record.Job.Every != 60*24*time.Hour {
			return fmt.Errorf("%s has its old trigger", record.Job.Name)
		}
	}
	late, err := latest(limit, whole.ledger, began)
	if err != nil {
		return err
	}
	r.Columns = []string{"jobs", "registered, ms", "changed, ms", "ticks late, ms"}
	r.row(n, ms(registered), ms(took), ms(late))
	r.atMost(10_000, ms(took), "ms until %d triggers have changed", n)
	r.atMost(1000, ms(late), "ms that a tick is late meanwhile")
	return nil
}
