package cmd

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/jobs"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

// The work that a soak does beside its ticks: requests, long runs that are interrupted by outages,
// and a backlog.

// soakHandlers are what withHandlers selects for the workers of a soak.
var soakHandlers = map[string]func() *jobs.Registry{
	"fleet": func() *jobs.Registry {
		reg := jobs.NewRegistry()
		jobs.Handle(reg, "bulk", traces)
		return reg
	},
	specialist: func() *jobs.Registry {
		reg := jobs.NewRegistry()
		jobs.Handle(reg, "bulk", traces)
		jobs.Handle(reg, "rare", traces)
		return reg
	},
}

// request is a request for a run that was answered.
type request struct {
	run string
	at  time.Time
}

// requester asks for runs as the command line does.
type requester struct {
	conn     *connection
	operator *admin.Operator
}

func (s *soak) requester() requester {
	conn := s.connection()
	return requester{conn, admin.NewOperator(conn.ledger, conn.queue, conn.pusher.Push, nil, nil)}
}

// ask asks for a run until it is answered or ctx ends. No worker may be up, or Redis may be away.
func (r requester) ask(ctx context.Context, job, id string, args json.RawMessage) (request, bool) {
	for {
		call, cancel := context.WithTimeout(ctx, time.Second)
		record, err := r.conn.ledger.Job(call, job)
		if err == nil {
			var run *ledger.Enqueued
			run, err = r.operator.Enqueue(call, ledger.Request{Job: record.Job, ID: id, Args: args, Trigger: ledger.TriggerEnqueue, Named: true}, admin.Actor{Who: "soak"})
			if err == nil {
				cancel()
				return request{string(run.Run), time.Now()}, true
			}
		}
		cancel()
		if !pause(ctx, 200*time.Millisecond) {
			return request{}, false
		}
	}
}

// ask asks for runs that lock bundles which overlap, and for runs that only the specialist can do,
// until ctx ends. It returns the requests that were answered.
func (s *soak) ask(ctx context.Context, seed uint64) (asked []request) {
	r := s.requester()
	random := rand.New(rand.NewPCG(seed, 3))
	for i := 0; pause(ctx, 700*time.Millisecond); i++ {
		bills := random.Perm(5)[:1+random.IntN(3)]
		args, err := json.Marshal(map[string]any{"bills": bills})
		if err != nil {
			s.t.Error(err)
		}
		for job, args := range map[string]json.RawMessage{"settle": args, "rare": nil} {
			if one, answered := r.ask(ctx, job, strconv.Itoa(i), args); answered {
				asked = append(asked, one)
			}
		}
	}
	return asked
}

// feed keeps more runs outstanding than the fleet has slots, until ctx ends. It returns the
// requests that were answered.
func (s *soak) feed(ctx context.Context) (asked []request) {
	if !s.fed {
		return nil
	}
	const most = 12 * (fleetSize + 1) // a worker has eight slots on a small machine
	r := s.requester()
	looks, idle := 0, 0
	for i := 0; pause(ctx, 100*time.Millisecond); {
		left, err := r.conn.ledger.CountOpen(ctx, []string{"fed"})
		if err != nil {
			continue
		}
		if looks++; i > 0 && left["fed"] == 0 {
			idle++
		}
		for range most - int(left["fed"]) {
			if one, answered := r.ask(ctx, "fed", strconv.Itoa(i), nil); answered {
				asked, i = append(asked, one), i+1
			}
		}
	}
	s.t.Logf("%d runs were fed to the fleet; none of them was left in %d of %d looks", len(asked), idle, looks)
	if idle > looks/10 {
		s.t.Error("the fleet was idle for a tenth of the time")
	}
	return asked
}

// checkReturns proves that runs which waited for the specialist ran soon after it had come back.
func (s *soak) checkReturns(runs []runJSON) {
	s.t.Helper()
	const soon = 30 * time.Second
	var waited []time.Duration
	for _, back := range s.returns {
		for _, run := range runs {
			if run.Job != "rare" || run.Created.After(back) || len(run.Attempts) == 0 {
				continue
			}
			i := slices.IndexFunc(run.Attempts, func(a attemptJSON) bool { return a.Started.After(back) })
			if i < 0 || i > 0 && run.Attempts[i-1].Finished.After(back) {
				continue // it had run before, or another return is the one that it waited for
			}
			next, took := run.Attempts[i].Started, run.Attempts[i].Started.Sub(back)
			if slices.ContainsFunc(s.returns, func(r time.Time) bool { return r.After(back) && r.Before(next) }) {
				continue
			}
			if slices.ContainsFunc(s.trouble, func(one trouble) bool { return one.from.Before(next) && one.to.After(back) }) {
				continue
			}
			waited = append(waited, took)
			if took > soon {
				s.t.Errorf("%s ran %s after the specialist had been started again, want %s at most", run.ID, took, soon)
			}
		}
	}
	_, _, text := quantiles(waited)
	s.t.Logf("%d runs waited for the specialist; they ran after its start within: %s", len(waited), text)
}

// outage is one that the whole fleet shares.
type outage struct {
	runs   []request
	before map[jobs.RunID]*ledger.Record // those that ran when it began
	froze  time.Time
	took   time.Duration // from its end until all of them ran again; 0: they did not
}

// outageRuns is how many long runs are interrupted by a shared outage: some of each worker's.
const outageRuns = 4 * fleetSize

// outageBound is how long it takes at most until all long runs continue. On a quiet machine it
// takes a few seconds. Workers that ran one of them at a time would begin the last ones after 60 s.
const outageBound = 50 * time.Second

// beginOutage has long runs run on all workers, and then makes Redis unreachable.
func (s *soak) beginOutage(f fault) {
	s.t.Helper()
	r := s.requester()
	o := outage{before: make(map[jobs.RunID]*ledger.Record)}
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	for i := range outageRuns {
		if one, answered := r.ask(ctx, "long", fmt.Sprintf("%d-%d", len(s.outages), i), nil); answered {
			o.runs = append(o.runs, one)
		}
	}
	for len(o.before) < len(o.runs) && pause(ctx, 100*time.Millisecond) {
		s.tend()
		records, err := r.conn.ledger.OpenRecords(ctx, o.ids())
		for _, record := range records {
			if err == nil && record != nil && record.State == ledger.StateRunning {
				o.before[record.ID] = record
			}
		}
	}
	if f.slot%2 == 0 {
		if err := s.server.Pause(); err != nil {
			s.t.Error(err)
		}
	} else {
		s.server.Kill()
	}
	o.froze = time.Now()
	s.outages = append(s.outages, o)
}

func (o *outage) ids() []jobs.RunID {
	ids := make([]jobs.RunID, len(o.runs))
	for i, one := range o.runs {
		ids[i] = jobs.RunID(one.run)
	}
	return ids
}

// endOutage makes Redis reachable again, and waits until the fleet is at full concurrency.
func (s *soak) endOutage(f fault) {
	s.t.Helper()
	o := &s.outages[len(s.outages)-1]
	pause(s.t.Context(), f.lasts-time.Since(o.froze))
	if f.slot%2 == 0 {
		if err := s.server.Resume(); err != nil {
			s.t.Error(err)
		}
	} else if err := s.server.Restart(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	conn, over := s.connection(), time.Now()
	var idle, why []string
	for time.Since(over) < outageBound && pause(s.t.Context(), 100*time.Millisecond) {
		s.tend()
		ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Second)
		records, err := conn.ledger.OpenRecords(ctx, o.ids())
		cancel()
		if err != nil {
			idle = []string{err.Error()}
			continue
		}
		idle = nil
		for _, record := range records {
			if record == nil {
				continue // it has ended
			}
			before := o.before[record.ID]
			if before != nil && record.Crashes > before.Crashes {
				s.t.Errorf("%s has %d crashes after an outage that no worker died of", record.ID, record.Crashes)
				before.Crashes = record.Crashes
			}
			// The attempts that the outage interrupted are running until their sessions end.
			if record.State != ledger.StateRunning || before != nil && record.Last().Token == before.Last().Token {
				idle = append(idle, fmt.Sprintf("%s is %s", record.ID, record.State))
			}
		}
		if len(idle) == 0 {
			o.took = time.Since(over)
			return
		}
	}
	for _, id := range o.ids() {
		if run, _, err := conn.reader.Run(s.t.Context(), id); err == nil && run.WaitingFor != nil {
			why = append(why, fmt.Sprintf("%s: %s", id, run.WaitingFor.Text))
		}
	}
	s.t.Errorf("%s after an outage of %s, %d of %d long runs do not run: %s\n%s", outageBound, f.lasts, len(idle), len(o.runs), strings.Join(slices.Concat(idle, why), "; "), s.scene(s.t.Context()))
}

// occupied are the requests for long runs.
func (s *soak) occupied() (asked []request) {
	for _, o := range s.outages {
		asked = append(asked, o.runs...)
	}
	return asked
}

// checkOutages reports how long it took until the fleet was at full concurrency again.
func (s *soak) checkOutages() {
	s.t.Helper()
	var took []time.Duration
	interrupted := 0
	for _, o := range s.outages {
		took, interrupted = append(took, o.took), interrupted+len(o.before)
	}
	_, _, text := quantiles(took)
	s.t.Logf("%d shared outages interrupted %d long runs; after each, all of them ran again within: %s", len(took), interrupted, text)
}

// backlog is many quick runs that become due at one instant.
type backlog struct {
	size int
	busy atomic.Bool // from its start until all its runs have ended and were read
	wait sync.WaitGroup

	due, asked, drained time.Time
	runs                []runJSON
	numbers             int   // of the deliveries of all runs
	fetched             int64 // tasks that workers took from its queue
}

// backlogSize is 100,000 for a soak of five minutes or more, and falls with the square of the time
// for shorter ones: a busy machine does some hundred runs per second.
func backlogSize(total time.Duration) int {
	const most, from = 100_000, 5 * time.Minute
	if total >= from {
		return most
	}
	part := total.Seconds() / from.Seconds()
	return int(most * part * part)
}

// start makes the backlog, which needs some time.
func (b *backlog) start(s *soak) {
	b.busy.Store(true)
	b.wait.Go(func() {
		defer b.busy.Store(false)
		if err := b.run(s.t.Context(), s); err != nil {
			s.t.Errorf("backlog: %v", err)
		}
	})
}

// run asks for the runs, all for the same instant, waits until they have ended, and reads them.
func (b *backlog) run(ctx context.Context, s *soak) error {
	conn := s.connection()
	// insist repeats what Redis does not answer.
	insist := func(what string, within time.Duration, do func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		for {
			call, end := context.WithTimeout(ctx, 10*time.Second)
			err := do(call)
			end()
			if err == nil {
				return nil
			}
			if !pause(ctx, 200*time.Millisecond) {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
	}
	const patience = 2 * time.Minute
	var job *jobs.Job
	err := insist("read its job", patience, func(ctx context.Context) error {
		record, err := conn.ledger.Job(ctx, "bulk")
		if err != nil {
			return err
		}
		job = record.Job
		now, err := conn.rdb.Time(ctx).Result()
		b.due = now.Add(5*time.Second + time.Duration(b.size)*time.Millisecond).Truncate(time.Millisecond)
		return err
	})
	if err != nil {
		return err
	}
	// Those that are asked for only after that instant, since Redis was unreachable, are due at
	// once.
	group, asking := errgroup.WithContext(ctx)
	group.SetLimit(32)
	for i := range b.size {
		group.Go(func() error {
			if asking.Err() != nil {
				return nil // another one has failed
			}
			return insist("ask for a run", patience, func(ctx context.Context) error {
				_, err := conn.ledger.Enqueue(ctx, ledger.Request{Job: job, ID: strconv.Itoa(i + 1), Trigger: ledger.TriggerEnqueue, At: b.due})
				return err
			})
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	b.asked = time.Now()
	within := patience + time.Duration(b.size)*10*time.Millisecond
	if s.fed {
		within *= 5 // it shares slots with runs of four seconds
	}
	err = insist("wait until its runs have ended", within, func(ctx context.Context) error {
		left, err := conn.ledger.CountOpen(ctx, []string{"bulk"})
		if err == nil && left["bulk"] > 0 {
			err = fmt.Errorf("%d of %d are left", left["bulk"], b.size)
		}
		return err
	})
	if err != nil {
		return err
	}
	b.drained = time.Now()
	return insist("read its runs", patience, func(ctx context.Context) error {
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		runs, err := conn.reader.Runs(call, admin.RunFilter{Job: "bulk"})
		if err != nil {
			return err
		}
		b.runs = as[[]runJSON](s.t, runs)
		b.numbers = 0
		const page = 1000
		for from := 0; from < len(b.runs); from += page {
			var ids []string
			for _, run := range b.runs[from:min(len(b.runs), from+page)] {
				ids = append(ids, run.ID)
			}
			records, err := conn.rdb.HMGet(call, "{lockstep}:hist:bulk", ids...).Result()
			if err != nil {
				return err
			}
			for i, record := range records {
				text, _ := record.(string)
				fields := strings.Split(text, "\x1f")
				if len(fields) < 2 {
					return fmt.Errorf("%s has the record %q", ids[i], text)
				}
				n, err := strconv.Atoi(fields[1])
				if err != nil {
					return fmt.Errorf("%s has the record %q", ids[i], text)
				}
				b.numbers += n
			}
		}
		b.fetched, err = conn.rdb.Get(call, "asynq:{bulk}:processed").Int64()
		return err
	})
}

// await waits until the backlog has drained.
func (b *backlog) await(s *soak) {
	s.t.Helper()
	for b.busy.Load() && pause(s.t.Context(), 100*time.Millisecond) {
		s.tend()
	}
	b.wait.Wait()
}

// check proves that each run of the backlog was done once.
func (b *backlog) check(s *soak) {
	s.t.Helper()
	if b.drained.IsZero() {
		s.t.Error("there was no backlog")
		return
	}
	job := s.jobs["bulk"]
	h := &history{jobs: map[string]spec{job.name: job}, runs: b.runs, effects: readEffects(s.t, s.logOf(job))}
	for i := range b.size {
		h.asked = append(h.asked, fmt.Sprintf("bulk#%d", i+1))
	}
	s.check(h)
	attempts := 0
	for _, run := range b.runs {
		attempts += len(run.Attempts)
	}
	took := b.drained.Sub(b.due)
	s.t.Logf("a backlog of %d runs was done %s after it had become due, %.0f/s: %d attempts, %d changes of a state, %d deliveries fetched; the last was asked for %s before",
		b.size, took.Round(time.Millisecond), float64(b.size)/took.Seconds(), attempts, b.numbers, b.fetched, b.due.Sub(b.asked).Round(time.Millisecond))
	if len(b.runs) != b.size {
		s.t.Errorf("the backlog had %d runs, and %d have ended", b.size, len(b.runs))
	}
}
