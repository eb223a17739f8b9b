package scheduler

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

const (
	pollEvery = time.Second            // every worker reads what it has to know
	dutyEvery = 500 * time.Millisecond // who has duty reads, and sweeps, more often
	overdue   = 150 * time.Millisecond // so late a tick is created by who has no duty
	again     = 200 * time.Millisecond // until a call that failed is made again
	soon      = 5 * time.Millisecond   // until a tick is tried again that the server called early
	batch     = 500                    // jobs whose ticks are created in one round trip
	callLimit = 5 * time.Second        // for one call of the ledger
)

// Options are what a [Scheduler] works with. All but Logger are required.
type Options struct {
	Ledger  *ledger.Ledger
	Session func() locks.SessionID // this worker's
	Jobs    []*jobs.Job

	// Deliver brings runs that are due to a worker: it claims them at once or pushes their deliveries. What it does not
	// manage, the sweep makes good for. It must not wait for runs to end. Called from two goroutines.
	Deliver func(ctx context.Context, due []ledger.Due)

	// Delivered tells whether a delivery that was pushed is still on its way.
	Delivered func(ctx context.Context, delivery ledger.Due) (bool, error)

	Logger *slog.Logger // default: slog.Default
}

// Scheduler makes the ticks of a set of jobs into runs, and sees to it that no run is forgotten. Every worker has one;
// that they do not get in each other's way is the ledger's doing.
type Scheduler struct {
	o      Options
	alarms alarms        // of the jobs with a trigger; only the goroutine of ticks uses it
	duty   atomic.Bool   // whether this worker creates first and sweeps
	wake   chan struct{} // asks for a sweep; buffer of one: wake-ups may merge

	next    atomic.Pointer[jobSet] // what SetJobs gave and ticks has not taken over yet
	changed chan struct{}          // tells of it; buffer of one
}

// New checks the jobs' triggers. It starts nothing; see [Scheduler.Run].
func New(o Options) (*Scheduler, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	set, err := newJobSet(o.Jobs)
	if err != nil {
		return nil, err
	}
	return &Scheduler{o: o, alarms: set.alarms, wake: make(chan struct{}, 1), changed: make(chan struct{}, 1)}, nil
}

// Wake makes the scheduler look at once for what has come due: the lock space has offered something to a waiting run, or
// the session of a crashed worker was ended.
// It does not wait.
func (s *Scheduler) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run registers the jobs, then creates and sweeps until ctx ends, and returns nil. Errors of Redis are logged and the
// call is made again.
func (s *Scheduler) Run(ctx context.Context) error {
	var group errgroup.Group
	group.Go(func() error { s.ticks(ctx); return nil })
	group.Go(func() error { s.sweeps(ctx); return nil })
	return group.Wait()
}

// ticks registers the jobs and then, for ever, waits for the next alarm or poll, whichever comes first.
func (s *Scheduler) ticks(ctx context.Context) {
	var now serverTime
	revision, ok := s.register(ctx, &now)
	for !ok {
		if !sleep(ctx, pollEvery) {
			return
		}
		revision, ok = s.register(ctx, &now)
	}
	var polled, notBefore time.Time // by this machine's clock: the last poll; when creating may be tried again
	for {
		s.takeOverJobs(ctx, &now)
		every := pollEvery
		if s.duty.Load() {
			every = dutyEvery
		}
		// Polling on a fixed beat, and never sleeping longer, keeps a suspend or a jump of this machine's clock from
		// delaying a tick by more than that: the next poll brings the server's time.
		if time.Since(polled) >= every {
			polled = time.Now()
			s.poll(ctx, &now, &revision)
			if !s.duty.Load() {
				s.create(ctx, now.now(), overdue)
			}
		}
		wait := time.Until(polled.Add(every))
		if s.duty.Load() {
			if !time.Now().Before(notBefore) {
				notBefore = time.Now().Add(s.create(ctx, now.now(), 0))
			}
			wait = min(wait, max(s.alarms.until(now.now()), time.Until(notBefore)))
		}
		if !sleepUnless(ctx, wait, s.changed) {
			return
		}
	}
}

// register makes the jobs known and sets the alarms by their cursors.
func (s *Scheduler) register(ctx context.Context, now *serverTime) (revision int64, ok bool) {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	registered, err := s.o.Ledger.Register(call, s.o.Jobs)
	if err != nil {
		s.failed(ctx, "register jobs", err)
		return 0, false
	}
	now.set(registered.Now)
	for job, cursor := range registered.Cursors {
		s.alarms.move(job, cursor)
	}
	return registered.Revision, true
}

// poll reads the time, the duty, and how far others have decided.
func (s *Scheduler) poll(ctx context.Context, now *serverTime, revision *int64) {
	for more := true; more; {
		call, cancel := context.WithTimeout(ctx, callLimit)
		poll, err := s.o.Ledger.Poll(call, s.o.Session(), *revision)
		cancel()
		if err != nil {
			s.failed(ctx, "poll", err)
			s.duty.Store(false) // by now somebody else may have it
			return
		}
		now.set(poll.Now)
		if s.duty.Swap(poll.Duty) != poll.Duty {
			s.o.Logger.DebugContext(ctx, "duty changed", "duty", poll.Duty)
			s.Wake()
		}
		for job, cursor := range poll.Cursors {
			s.alarms.move(job, cursor)
		}
		*revision, more = poll.Revision, poll.More
	}
}

// create records the ticks that have come, of one batch of jobs, and has their runs delivered. late: leave ticks that
// came less than so long ago to others. It returns how long to wait before creating again.
func (s *Scheduler) create(ctx context.Context, now time.Time, late time.Duration) time.Duration {
	var decisions []ledger.Decision
	for _, one := range s.alarms.due(now.Add(-late), batch) {
		decisions = append(decisions, decide(one.job, one.next, one.cursor, now, s.o.Session())...)
	}
	if len(decisions) == 0 {
		return 0
	}
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	var (
		wait time.Duration
		runs []ledger.Due
	)
	for i, created := range s.o.Ledger.Create(call, decisions) {
		switch job := decisions[i].Job.Name; {
		case created.Err != nil:
			s.failed(ctx, "create ticks", created.Err)
			wait = max(wait, again)
		case created.Early:
			wait = max(wait, soon)
		case created.Moved && created.Cursor.IsZero():
			// Redis has forgotten this job, and with it perhaps more than we know.
			s.o.Logger.ErrorContext(ctx, "the ledger has lost the cursor of a job: it starts at now", "job", job)
			s.register(ctx, new(serverTime))
			wait = max(wait, again)
		default:
			s.alarms.move(job, created.Cursor)
			runs = append(runs, created.Due...)
		}
	}
	if len(runs) > 0 {
		s.o.Deliver(ctx, runs)
	}
	return wait
}

// failed logs an error of a call that will be made again, unless it failed because everything ends.
func (s *Scheduler) failed(ctx context.Context, call string, err error) {
	if ctx.Err() == nil {
		s.o.Logger.WarnContext(ctx, "call failed, it is made again", "call", call, "error", err)
	}
}

// sleep waits, and tells whether it waited to the end.
func sleep(ctx context.Context, d time.Duration) bool { return sleepUnless(ctx, d, nil) }

// sleepUnless waits until there is something in a channel, at most so long. It returns false when ctx has ended.
func sleepUnless(ctx context.Context, d time.Duration, woken <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-woken:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
