package scheduler

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
	"lockstep/scheduler/repeats"
	"lockstep/scheduler/trace"
)

const (
	pollEvery  = time.Second     // for every worker
	pauseEvery = time.Second     // between two looks of the worker on duty at the paused queues
	driftEvery = 5 * time.Second // between two registrations of definitions that have drifted
	// between two rounds that look for runs in queues that no worker serves
	unservedEvery  = 5 * time.Second
	unservedQueues = 64              // queues with due runs that are examined in a round
	unservedRuns   = 200             // due runs that are read together
	unservedWaits  = 100             // waiting runs that are read together
	unservedPages  = 5               // pages of either that are read of one queue in a round
	unservedAll    = 16              // and of all queues
	unservedTime   = 2 * time.Second // after which a round reads no further page

	// for reporting that this worker no longer carries its definitions
	leaveLimit = time.Second
	dutyEvery  = 500 * time.Millisecond // the worker on duty reads, and sweeps, more often
	// how late a tick must be before a worker without duty creates it
	overdue = 150 * time.Millisecond
	again   = 200 * time.Millisecond // until a failed call is repeated
	// until a tick is tried again that was early by the server's clock
	soon      = 5 * time.Millisecond
	batch     = 500             // jobs with ticks that are created in one round trip
	callLimit = 5 * time.Second // for one call of the ledger

	pageEvery = 100 * time.Millisecond // between two checks whether there are pages to handle
	// between two pages, so that they take a small part of Redis' time
	pagePause = 20 * time.Millisecond
)

// Options configure a [Scheduler]. All but Drift, OnRepeated and Logger are required.
type Options struct {
	Ledger  *ledger.Ledger
	Session func() locks.SessionID // this worker's
	Jobs    []*jobs.Job

	// Deliver brings due runs to a worker: it claims them at once or pushes their deliveries. The
	// sweep repeats what fails. Deliver must not wait for runs to end. Called from several
	// goroutines.
	Deliver func(ctx context.Context, due []ledger.Due)

	// Registered is called once, when the ledger has all of Jobs for the first time. It may be nil.
	Registered func()

	// Drift receives how many of Jobs have a definition that is not the active one of their job,
	// whenever that changes. It may be nil.
	Drift func(ctx context.Context, jobs int)

	// Pushes are the deliveries that Deliver does not claim and that this process has yet to push.
	// A sweep makes no more runs due than Room returns, and repeats no push that is pending.
	Pushes interface {
		Room() int
		Pending(due ledger.Due) bool
	}

	// Queue is where deliveries are looked up.
	Queue *queue.Client

	// OnRepeated receives how many deliveries are pushed again, and for which of the [Reasons].
	// Called from several goroutines; it may be nil.
	OnRepeated func(reason string, n int)

	// Served returns the queues from which some worker starts runs. If it is nil, no run is moved
	// to another queue.
	Served func(ctx context.Context) (map[string]bool, error)

	// Paused returns the queues that any client has paused: their runs are offered no locks.
	Paused func(ctx context.Context) ([]string, error)

	// Stop receives a run of this worker that must stop; Drain is called when all of them must.
	// Both are called repeatedly until that has happened. They must not block.
	Stop  func(run jobs.RunID, why string)
	Drain func()

	// Aside is called by each poll while runs are set aside for workers that can do them. It must
	// not block; it may be nil.
	Aside func()

	// Doubt is called when Redis may have lost data. The outcome arrives as a call of
	// [Scheduler.Recovered], or as another session.
	Doubt func()

	// MaxHistory is approximately how many bytes of Redis' memory all finished runs may take: see
	// [ledger.Ledger.TrimHistory]. 0: no bound. While this worker has duty, it checks every
	// HistoryEvery; the default is a minute, and ten minutes while they take less than half.
	MaxHistory   int64
	HistoryEvery time.Duration

	// Tracer makes the spans of runs that this scheduler creates, takes over or ends; nil: none are
	// made.
	Tracer *trace.Tracer

	Logger *slog.Logger // default: slog.Default
}

// Scheduler turns the ticks of a set of jobs into runs, and ensures that no run is forgotten. Every
// worker has one; the ledger keeps them from interfering with each other.
type Scheduler struct {
	o     Options
	often *repeats.Logger // for lines that a loop may repeat

	// for lines about deliveries that are pushed again: one kind for each reason
	againLog *repeats.Logger
	// deliveries that were pushed again since the start, by reason; the map is not changed
	againCount map[string]*atomic.Int64

	// Used only by the goroutine of ticks.
	set *jobSet
	// the session under which the whole set was last registered, or the ledger was found to know
	// everything
	under       locks.SessionID
	revision    int64         // up to which polls have read; negative: nothing was registered yet
	registering *registration // nil: none is in progress
	told        int           // the number of drifted definitions that Options.Drift last received
	// when failed steps of a registration or of changes may be tried again
	deployAfter time.Time
	step        int // batches in the next step
	// Of jobs that returned: they have no line for their ticks yet. They are also in Redis, and
	// every worker that registers such a job settles its absence; the first one writes the line.
	absences map[string]*ledger.Absence
	carried  []string  // configs that were carried at the last check for drift
	asked    time.Time // when drifted definitions were last registered again
	carries  time.Time // by the server: the last poll that kept the definitions carried
	unsure   bool      // they must be registered once more

	unserved unserved                 // used only by the goroutine of moves
	paused   atomic.Pointer[[]string] // the paused queues at the last read, sorted; nil before that

	duty atomic.Bool   // whether this worker creates first and sweeps
	wake chan struct{} // requests a sweep; buffer of one: wake-ups may merge

	next    atomic.Pointer[jobSet] // the set of SetJobs that ticks has not taken over yet
	changed chan struct{}          // signals a change of next or left; buffer of one
	anew    atomic.Bool            // everything must be registered again
	left    atomic.Bool            // another worker has left
}

// New checks the jobs' triggers. It starts nothing; see [Scheduler.Run].
func New(o Options) (*Scheduler, error) {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	set, err := newJobSet(o.Jobs)
	if err != nil {
		return nil, err
	}
	s := &Scheduler{o: o, often: repeats.New(o.Logger, "call"), againLog: repeats.New(o.Logger, "reason"), againCount: make(map[string]*atomic.Int64),
		set: set, revision: -1, step: stepLeast, absences: make(map[string]*ledger.Absence), wake: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		unserved: unserved{due: make(map[string]string), waiting: make(map[string]string)}}
	for _, reason := range Reasons {
		s.againCount[reason] = new(atomic.Int64)
	}
	return s, nil
}

// Duty reports whether this worker creates ticks first and sweeps, as the last poll found.
func (s *Scheduler) Duty() bool { return s.duty.Load() }

// Wake makes the scheduler sweep at once: the lock space has offered a bundle to a waiting run, or
// the session of a crashed worker was ended. It does not block.
func (s *Scheduler) Wake() {
	signal(s.wake)
}

// signal sends a signal that may merge with an earlier one.
func signal(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// Recovered makes the scheduler register the jobs again: Redis had lost data, and the workers have
// re-asserted what they know of it.
func (s *Scheduler) Recovered() {
	s.anew.Store(true)
	signal(s.changed)
}

// Left makes the scheduler take over at once what a worker has left that ended in order:
// definitions, and duty.
func (s *Scheduler) Left() {
	s.left.Store(true)
	signal(s.changed)
}

// Run registers the jobs, then creates and sweeps until ctx ends, and returns nil. It logs errors
// of Redis and repeats the call.
func (s *Scheduler) Run(ctx context.Context) error {
	var group sync.WaitGroup
	for _, loop := range []func(context.Context){s.ticks, s.sweeps, s.lookUps, s.lists, s.pauses, s.moves, s.mirrors, s.reasserts, s.histories} {
		group.Go(func() { loop(ctx) })
	}
	defer s.often.Flush(context.WithoutCancel(ctx), true)
	defer s.againLog.Flush(context.WithoutCancel(ctx), true)
	group.Wait()
	return nil
}

// ticks registers the jobs and then repeatedly waits for the next alarm or poll, whichever comes
// first. In between, it registers large sets of jobs, and changes their triggers, step by step.
func (s *Scheduler) ticks(ctx context.Context) {
	var now serverTime
	s.begin(s.set, s.set.definitions)
	defer s.leave(ctx)
	// by this machine's clock: the last poll; when creating may be tried again
	var polled, notBefore time.Time
	for {
		s.takeOverJobs(ctx)
		if s.anew.Swap(false) {
			s.beginAnew()
		}
		next := s.deploy(ctx, &now)
		if s.revision < 0 { // not even one job could be registered
			if !sleepUnless(ctx, pollEvery, s.changed) {
				return
			}
			continue
		}
		if s.left.Swap(false) {
			polled, s.asked, s.unsure = time.Time{}, time.Time{}, true
		}
		every := pollEvery
		if s.duty.Load() || next < dutyEvery {
			every = dutyEvery
		}
		// Polling at a fixed interval, and never sleeping longer, keeps a suspend or a jump of this
		// machine's clock from delaying a tick by more than that: the next poll brings the server's
		// time.
		more := false
		if time.Since(polled) >= every {
			began := time.Now()
			// else the next part is read at once, with ticks in between
			if more = s.poll(ctx, &now); !more {
				polled = began
			}
			if s.returned(ctx) {
				more = true // the first step follows at once
			}
		}
		if !s.duty.Load() {
			s.create(ctx, now.now(), overdue)
		}
		wait := min(next, time.Until(polled.Add(every)))
		if s.duty.Load() {
			if !time.Now().Before(notBefore) {
				notBefore = time.Now().Add(s.create(ctx, now.now(), 0))
			}
			wait = min(wait, max(s.set.alarms.until(now.now()), time.Until(notBefore)))
		}
		if more {
			wait = 0
		}
		if !sleepUnless(ctx, wait, s.changed) {
			return
		}
	}
}

// stands notes whether this worker's definition of a job is the active one.
func (s *Scheduler) stands(ctx context.Context, set *jobSet, job string, active bool) {
	if set.drift[job] == !active {
		return
	}
	set.alarms.turn(job, !active)
	if active {
		delete(set.drift, job)
	} else {
		set.drift[job] = true
		s.unsure = true
	}
	s.o.Logger.DebugContext(ctx, "definition of a job", "job", job, "active", active)
}

// tellDrift reports how many definitions have drifted, if that has changed. While many change, it
// waits for the final count.
func (s *Scheduler) tellDrift(ctx context.Context) {
	if len(s.set.drift) == s.told || s.registering != nil || len(s.set.pending) > 0 {
		return
	}
	s.told = len(s.set.drift)
	s.o.Logger.InfoContext(ctx, "jobs of which another definition is active", "drifted", len(s.set.drift), "jobs", len(s.set.own))
	if s.o.Drift != nil {
		s.o.Drift(ctx, len(s.set.drift))
	}
}

// returned checks whether drifted definitions may become active again: when some config is no
// longer carried, and once after a definition has drifted. If so, it starts to register them and
// returns true.
func (s *Scheduler) returned(ctx context.Context) bool {
	if s.registering != nil || len(s.set.drift) == 0 {
		return false
	}
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	carried, err := s.o.Ledger.Carried(call)
	if err != nil {
		s.failed(ctx, "read carried configs", err)
		return false
	}
	gone := slices.ContainsFunc(s.carried, func(digest string) bool { return !slices.Contains(carried, digest) })
	s.carried = carried
	if !gone && (!s.unsure || time.Since(s.asked) < driftEvery) {
		return false
	}
	s.asked, s.unsure = time.Now(), false
	definitions := make([]*ledger.Encoded, 0, len(s.set.drift))
	for name := range s.set.drift {
		if s.set.pending[name] == nil {
			definitions = append(definitions, s.set.own[name])
		}
	}
	if len(definitions) > 0 {
		s.begin(s.set, definitions)
	}
	return len(definitions) > 0
}

// leave reports, when this worker ends, that it no longer carries its definitions and has no duty.
// The ledger knows the config of the last poll. It does not know one that this worker has
// registered since, or has begun to register.
func (s *Scheduler) leave(ctx context.Context) {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveLimit)
	defer cancel()
	digests := []string{"", s.set.digest} // with the first one, duty passes on
	if r := s.registering; r != nil && r.set != s.set {
		digests = append(digests, r.set.digest)
	}
	for _, digest := range digests {
		if err := s.o.Ledger.Leave(call, s.o.Session(), digest, 0); err != nil {
			s.o.Logger.DebugContext(ctx, "the definitions of this worker seem carried for a while", "error", err)
		}
	}
}

// poll reads the time, the duty, and how far others have decided. It returns true when more can be
// read at once.
func (s *Scheduler) poll(ctx context.Context, now *serverTime) (more bool) {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	session := s.o.Session()
	read := s.o.Ledger.Poll
	if len(s.set.drift) > 0 {
		read = s.o.Ledger.PollDrifted
	}
	poll, err := read(call, session, s.set.digest, s.revision)
	if err != nil {
		s.failed(ctx, "poll", err)
		s.duty.Store(false) // by now another worker may have it
		return false
	}
	now.set(poll.Now)
	if poll.Revision >= s.revision { // else it has lost some
		s.under = session
	}
	if s.duty.Swap(poll.Duty) != poll.Duty {
		s.o.Logger.DebugContext(ctx, "duty changed", "duty", poll.Duty)
		s.Wake()
	}
	for run, why := range poll.Stop {
		s.o.Stop(run, why)
	}
	if poll.Drain {
		s.o.Drain()
	}
	if poll.Aside && s.o.Aside != nil {
		s.o.Aside()
	}
	for job, moved := range poll.Moved {
		s.moved(ctx, job, moved)
	}
	s.absent(ctx, poll)
	s.tellDrift(ctx)
	s.revision = poll.Revision
	return poll.More
}

// absent registers all jobs again if some of its definitions may have been dropped since the last
// poll, as its config was not carried for a while: this worker was absent, or a twin left while its
// session was over. The active ones among them may be carried by other workers at the moment, and
// must not give way when those leave.
func (s *Scheduler) absent(ctx context.Context, poll *ledger.Poll) {
	if !poll.Carries {
		return
	}
	if !s.carries.IsZero() && poll.Since.After(s.carries) && poll.Dropped.After(s.carries) {
		s.o.Logger.InfoContext(ctx, "this worker was absent while definitions changed: it registers its jobs again", "jobs", len(s.set.own))
		s.beginAgain()
	}
	s.carries = poll.Now
}

// create records the ticks that have come, of one batch of jobs, and has their runs delivered. It
// leaves ticks that are less than late overdue to others. It returns how long to wait before
// creating again.
func (s *Scheduler) create(ctx context.Context, now time.Time, late time.Duration) time.Duration {
	var decisions []ledger.Decision
	for _, one := range s.set.alarms.due(now.Add(-late), batch) {
		decisions = append(decisions, decide(one.job, one.next, one.cursor, now, s.o.Session())...)
	}
	if len(decisions) == 0 {
		return 0
	}
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	var (
		wait      time.Duration
		runs      []ledger.Due
		forgotten string
	)
	began := time.Now()
	for i, created := range s.o.Ledger.Create(call, decisions) {
		s.traceMade(ctx, &decisions[i], &created, began)
		switch job := decisions[i].Job.Name; {
		case created.Err != nil:
			s.failed(ctx, "create ticks", created.Err)
			wait = max(wait, again)
		case created.Early:
			wait = max(wait, soon)
		case created.Grace > 0:
			wait = max(wait, created.Grace)
		case created.More: // the next call of create continues
			runs = append(runs, created.Due...)
		case created.Inactive:
			s.stands(ctx, s.set, job, false)
			s.tellDrift(ctx)
		case created.Moved && created.Cursor.IsZero():
			forgotten = job
			wait = max(wait, again)
		default:
			s.set.alarms.move(job, created.Cursor)
			runs = append(runs, created.Due...)
		}
	}
	if forgotten != "" {
		s.forgotten(ctx, forgotten)
	}
	if len(runs) > 0 {
		s.o.Deliver(ctx, runs)
	}
	return wait
}

// forgotten handles a job with a cursor that Redis has lost, and with it perhaps more than is known
// here. The session finds out: it either re-asserts what it knows, or, when that is too late, ends.
// Then the job begins anew under the next session. If Redis has lost nothing, a person has removed
// the job, and the next poll reports that.
func (s *Scheduler) forgotten(ctx context.Context, job string) {
	if s.o.Session() == s.under {
		s.o.Doubt()
		return
	}
	s.o.Logger.ErrorContext(ctx, "the ledger has lost the cursor of a job: it starts at now", "job", job)
	s.anew.Store(true)
}

// failed logs an error of a call that will be repeated, unless the call failed because ctx has
// ended.
func (s *Scheduler) failed(ctx context.Context, call string, err error) {
	if ctx.Err() == nil {
		s.often.WarnContext(ctx, "call failed, will retry", "call", call, "error", err)
	}
}

// mirrors reads which runs are outstanding.
func (s *Scheduler) mirrors(ctx context.Context) {
	s.pages(ctx, "read outstanding runs", s.o.Ledger.Mirror)
}

// reasserts re-asserts older ends after a loss of data.
func (s *Scheduler) reasserts(ctx context.Context) {
	s.pages(ctx, "re-assert older ends", s.o.Ledger.AssertMore)
}

// pages makes a call that handles one page and returns whether more remain, again and again. It is
// a loop of its own, so that neither ticks nor duty wait for it, however many pages there are.
func (s *Scheduler) pages(ctx context.Context, name string, page func(context.Context) (more bool, err error)) {
	for wait := pageEvery; sleep(ctx, wait); {
		call, cancel := context.WithTimeout(ctx, callLimit)
		more, err := page(call)
		cancel()
		wait = pageEvery
		switch {
		case errors.Is(err, ledger.ErrLate):
			s.o.Logger.WarnContext(ctx, "Redis has lost data, and not all that is known here could be re-asserted in time", "error", err)
		case err != nil:
			s.failed(ctx, name, err)
		case more:
			wait = pagePause
		}
	}
}

// pauses updates the ledger, while this worker has duty, with the paused queues: other tools may
// pause them.
func (s *Scheduler) pauses(ctx context.Context) {
	for sleep(ctx, pauseEvery) {
		s.often.Flush(ctx, false)
		s.againLog.Flush(ctx, false)
		if s.duty.Load() {
			s.comparePauses(ctx)
		}
	}
}

// moves looks, while this worker has duty, for runs in queues that no worker serves. It is a loop
// of its own, so that pauses do not wait for it.
func (s *Scheduler) moves(ctx context.Context) {
	if s.o.Served == nil {
		return
	}
	for wait := pauseEvery; sleep(ctx, wait); {
		wait = pauseEvery
		if s.duty.Load() {
			s.moveUnserved(ctx)
			wait = unservedEvery
		}
	}
}

// An unserved is where the search for runs in queues that no worker serves continues. Only the
// goroutine of moves uses it.
type unserved struct {
	queue, waitQueue string            // the next queues follow these, for due and for waiting runs
	due, waiting     map[string]string // by queue: the next runs follow this place
}

// A round is what moveUnserved may still read of due runs, or of waiting ones.
type round struct {
	pages int
	until time.Time
}

func newRound() *round { return &round{unservedAll, time.Now().Add(unservedTime)} }

// over reports whether a round must read no more pages.
func (r *round) over() bool { return r.pages == 0 || time.Now().After(r.until) }

// moveUnserved looks for runs in queues that no worker serves, because the queue of their job was
// renamed, or is no longer served. Those that never started move to the present queue of the job,
// except adopted ones whose senders chose their queue. A waiting run becomes due by an offer and
// moves then; in a paused queue it gets none, so it moves while it waits.
//
// It reads a bounded number of pages, and the next round continues behind its last queue. So
// neither a queue with many runs that stay, nor one whose runs cannot be read in time, holds up the
// others.
func (s *Scheduler) moveUnserved(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, callLimit)
	served, err := s.o.Served(call)
	cancel()
	if err != nil {
		s.failed(ctx, "read served queues", err)
		return
	}
	s.moveDue(ctx, served)
	s.moveWaiting(ctx, served)
}

// moveDue moves due runs in a round of its own.
func (s *Scheduler) moveDue(ctx context.Context, served map[string]bool) {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	at, r := &s.unserved, newRound()
	for n := 0; n < unservedQueues && !r.over(); n++ {
		names, err := s.o.Ledger.DueNames(call, at.queue, 1)
		if err != nil {
			s.failed(ctx, "find runs in queues that no worker serves", err)
			return
		}
		if len(names) == 0 {
			at.queue = ""
			return
		}
		// Even after an error, the next round continues with another queue.
		at.queue = names[0]
		if !served[at.queue] && !s.moveFrom(ctx, at.queue, at.due, unservedRuns, r, s.o.Ledger.DueRuns) {
			return
		}
	}
}

// moveWaiting moves waiting runs of paused queues in a round of its own.
func (s *Scheduler) moveWaiting(ctx context.Context, served map[string]bool) {
	paused := s.paused.Load()
	if paused == nil {
		return
	}
	at, r := &s.unserved, newRound()
	from := 0
	for from < len(*paused) && (*paused)[from] <= at.waitQueue {
		from++
	}
	for _, queue := range (*paused)[from:] {
		if r.over() {
			return
		}
		at.waitQueue = queue
		if !served[queue] && !s.moveFrom(ctx, queue, at.waiting, unservedWaits, r, s.o.Ledger.WaitingRuns) {
			return
		}
	}
	at.waitQueue = ""
}

// moveFrom moves runs of a queue that no worker serves. It reads page after page, a bounded number
// of them, until one has runs that move, and continues after these the next time: runs that cannot
// move delay no others. It returns false after an error.
func (s *Scheduler) moveFrom(ctx context.Context, queue string, places map[string]string, most int, r *round,
	read func(ctx context.Context, queue, after string, most int) (ledger.RunPage, error),
) bool {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	left := 0
	var oldest jobs.RunID
	for n := 0; n < unservedPages && !r.over(); n++ {
		r.pages--
		first := places[queue] == ""
		page, err := read(call, queue, places[queue], most)
		if err != nil {
			s.failed(ctx, "find runs in queues that no worker serves", err)
			return false
		}
		if first && len(page.Runs) > 0 {
			oldest = page.Runs[0].ID
		}
		moved, due, err := s.o.Ledger.Requeue(call, page.Runs)
		if len(due) > 0 {
			s.o.Deliver(ctx, due)
		}
		if err != nil {
			s.failed(ctx, "move runs to another queue", err)
			return false
		}
		if len(moved) > 0 {
			s.often.InfoContext(ctx, "runs were moved from a queue that no worker serves to that of their job", "call", "move from "+queue,
				"queue", queue, "runs", len(moved), "run", moved[0].Run, "to", moved[0].Queue)
		}
		left = page.All - len(moved)
		if places[queue] = page.Next; page.Next == "" {
			delete(places, queue)
		}
		if len(moved) > 0 || page.Next == "" {
			break
		}
	}
	if left > 0 && oldest != "" {
		s.often.WarnContext(ctx, "runs are due in a queue that no worker serves", "call", "unserved "+queue, "queue", queue, "runs", left,
			"oldest", oldest)
	}
	return true
}

func (s *Scheduler) comparePauses(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	paused, err := s.o.Paused(call)
	if err != nil {
		s.failed(ctx, "read paused queues", err)
		return
	}
	inOrder := slices.Sorted(slices.Values(paused))
	s.paused.Store(&inOrder)
	due, err := s.o.Ledger.QueuesPaused(call, paused)
	if err != nil {
		s.failed(ctx, "keep back runs of paused queues", err)
	}
	if len(due) > 0 {
		s.o.Deliver(ctx, due)
	}
}

// sleep waits for d. It returns false when ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool { return sleepUnless(ctx, d, nil) }

// sleepUnless waits for d, or until a value arrives in woken. It returns false when ctx has ended.
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

// traceMade sends the spans of the creation of runs that a decision has made.
func (s *Scheduler) traceMade(ctx context.Context, decision *ledger.Decision, created *ledger.Created, began time.Time) {
	if !s.o.Tracer.On() {
		return
	}
	for _, run := range created.Made(decision) {
		s.o.Tracer.Created(ctx, run, began, time.Now())
	}
}
