package worker

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
	"lockstep/scheduler/repeats"
	"lockstep/scheduler/trace"
)

const (
	decline   = 10 * time.Second // how long a run that this worker cannot do stays away
	callLimit = 5 * time.Second  // for one call of Redis

	// what a card has of handlers, in at most 12 KiB
	namedHandlers  = 64
	hashedHandlers = 1000 // after these
)

// Options configure a [Worker]. Redis, Ledger, Queue, Pusher, Jobs, Expand and at least one
// executor are required.
type Options struct {
	Redis redis.UniversalClient // the lock client copies its options
	// Ledger has the limits and the keys of this process: with keys, a run is refused if its
	// definition is not signed and this worker does not carry the definition itself. The worker
	// derives its own by [ledger.Ledger.Through].
	Ledger *ledger.Ledger
	Queue  *queue.Client
	// Pusher pushes deliveries; [Worker.Run] calls its Run. Its own ledger confirms them, through
	// another client than the worker's. That is safe: Redis ignores a confirmation of a run or an n
	// that it does not have.
	Pusher *Pusher

	// Locks configure the worker's session. The worker sets Card, Logger and Extension itself.
	Locks locks.Options

	Concurrency  int            // attempts at a time; default 8
	DrainTimeout time.Duration  // how long running attempts may continue in a drain; default 50 s
	Queues       map[string]int // queues served, with their weights; default {"default": 1}
	// Fetchers is how many deliveries are fetched side by side; default queue.DefaultFetchers, at
	// most Concurrency.
	Fetchers int

	Jobs []*jobs.Job

	// MaxHistory and HistoryEvery are those of [scheduler.Options].
	MaxHistory   int64
	HistoryEvery time.Duration

	// Permits are declared before any claim: the limits of the permits that Jobs may take.
	Permits map[string]locks.PermitLimit

	// OnRefused receives the kind of each refusal (see [jobs.SignatureError.Kind]). Called from
	// many goroutines; it may be nil.
	OnRefused func(kind string)

	// Expand replaces the ${...} of a definition, in memory, right before an attempt. The
	// substituted values are kept out of the attempt's output and errors.
	Expand func(*jobs.Job) (*jobs.Job, []jobs.Secret, error)

	// LogOutput makes the worker log each line that an attempt prints, after secrets were removed.
	LogOutput bool

	// Executors do the work of jobs, by the name of its kind: see [jobs.KindNames]. This worker
	// declines jobs of other kinds. It shows others the names of a [jobs.Registry].
	Executors map[string]jobs.Executor

	Version string // shown to others
	Config  string // a digest of the configuration, shown to others
	Admin   string // address of this worker's API and page, shown to others; "" for none
	// Pass lets any client that reads Redis request a reload of the config from that API; "" for
	// none.
	Pass string

	// Abort, when closed, ends the drain at once: running attempts are canceled and handed back.
	Abort <-chan struct{}

	// OnSession receives each session of this worker before any claim under it, some of them more
	// than once. A process that outlives this one can end the session in its place
	// ([locks.Space.EndSession]). Called from several goroutines; it may be nil.
	OnSession func(locks.SessionID)

	// OnAttempt receives each attempt that begins here. The function that it returns is called at
	// the end of the attempt, with the ledger's reply, or nil when the end was not recorded. Called
	// from many goroutines; it may be nil.
	OnAttempt func(*ledger.Claimed) (ended func(*ledger.Finished))

	// OnStuck receives the number of attempts here that are stuck ([Stuck]) whenever it changes.
	// Calls do not overlap; it may be nil.
	OnStuck func(n int)

	// OnRejected receives the name of each call for a run that Redis rejected permanently: claim or
	// finish. Called from many goroutines; it may be nil.
	OnRejected func(call string)

	// Hook observes the commands for locks and the ledger that this worker sends to Redis, except
	// those that renew its lease. Commands for the queues go through Redis, the client. It may be
	// nil.
	Hook redis.Hook

	// OnRepeated receives how many deliveries this worker pushes again, and for which of the
	// [scheduler.Reasons]. Called from several goroutines; it may be nil.
	OnRepeated func(reason string, n int)

	// Tracer makes the spans of runs; nil: none are made, and attempts pass on the trace contexts
	// of their requesters.
	Tracer *trace.Tracer

	Logger *slog.Logger // default: slog.Default
}

// Worker is one replica: it takes deliveries, holds each run's bundle, executes the attempt and
// records how it ended; and it runs a [scheduler.Scheduler]. Make one with [New], then call
// [Worker.Run] once.
type Worker struct {
	o       Options
	log     *slog.Logger
	started time.Time
	slots   slots
	offers  offers        // runs that were offered their locks while no slot was free
	began   flows         // attempts that began here, by queue
	aside   chan struct{} // requests a look at runs that are set aside; buffer of one
	busy    atomic.Int64  // slots in which an attempt runs
	handed  atomic.Int64  // how many times a slot was passed on to a run: see turnEvery
	pace    pace          // of attempts here
	// deliveries that have waited for a slot and got one, to be claimed together
	seated space.Commit[*fetched]
	// one for each attempt that gave its slot away before its end was recorded
	unrecorded *semaphore.Weighted

	suspects suspects // runs here that have crashed before

	queue  *queue.Client
	pusher *Pusher

	// Made by Run, before anything else runs.
	locks   *locks.Client
	ledger  *ledger.Ledger
	ends    *ledger.Finisher // of attempts that have succeeded
	attempt sync.WaitGroup   // every claim, and every attempt that it starts

	setting sync.Mutex // guards changes of jobs and loop, but not reads
	jobs    atomic.Pointer[definitions]
	loop    atomic.Pointer[scheduler.Scheduler] // nil until Run has made it
	server  atomic.Pointer[queue.Server]        // also

	showing sync.Mutex // one card at a time, so that the last one written is the latest
	shown   load       // of the last written card; guarded by showing

	begun    atomic.Bool // Run has opened the session and built everything that works under it
	ready    atomic.Bool // and all of the jobs are registered
	draining atomic.Bool
	paused   atomic.Pointer[map[string]bool]

	refused atomic.Int64          // runs with an untrusted definition
	older   atomic.Pointer[older] // nil until a run was set aside

	olderReading sync.Mutex // one caller at a time reads older anew

	olderAfter ledger.Shelf // used only by the goroutine of watchOlder: the next shelves follow it
	// a poll has found runs that are set aside, and watchOlder has not yet looked at them
	polled atomic.Bool
	// served queues that belong to another namespace, and to which
	disputed atomic.Pointer[map[string]string]

	told    atomic.Pointer[locks.SessionID] // the last session that OnSession received
	drifted atomic.Int64                    // jobs with another active definition
	// a time.Duration: by how much this host's clock is ahead of Redis'
	clock   atomic.Int64
	stuck   stuckAttempts
	live    *live         // passes on what attempts print
	leave   chan struct{} // closed when the drain stops waiting for handlers
	running sync.Map      // jobs.RunID -> *stopper of the attempt that began last

	work context.Context // ends when the drain begins; set before any claim
	// parent of all attempts' contexts; ends with a cause when the drain is over
	attempts context.Context
	cancel   context.CancelCauseFunc // of attempts
	// of claims and of ends; it ends a lease after attempts, so that a drain is bounded
	calls context.Context

	often   *repeats.Logger       // for lines that a loop may repeat
	refusal atomic.Pointer[error] // why Redis takes no writes; nil while it does
	// when watchRedis began its last round; nil before the first one
	round atomic.Pointer[time.Time]
}

// definitions are the jobs of a worker and the permits they take, under the digest of their config.
type definitions struct {
	jobs    []*jobs.Job
	named   map[string]*jobs.Job
	permits map[string]locks.PermitLimit
	config  string
}

func newDefinitions(list []*jobs.Job, permits map[string]locks.PermitLimit, config string) *definitions {
	d := &definitions{jobs: list, named: make(map[string]*jobs.Job, len(list)), permits: permits, config: config}
	for _, job := range list {
		d.named[job.Name] = job
	}
	return d
}

// ErrPermits means that permits cannot be declared as the config has them: see [PermitsError].
var ErrPermits = errors.New("the permits cannot be declared")

// PermitsError is an [ErrPermits] that names the permits.
type PermitsError struct {
	Permits string
	reason  string
}

func (e *PermitsError) Error() string {
	return fmt.Sprintf("%s: permits.%s%s", ErrPermits, e.Permits, e.reason)
}

// Is reports whether target is [ErrPermits].
func (e *PermitsError) Is(target error) bool { return target == ErrPermits }

// New checks the options. It starts nothing and dials nothing.
func New(o Options) (*Worker, error) {
	if o.Redis == nil || o.Ledger == nil || o.Queue == nil || o.Pusher == nil || o.Expand == nil {
		return nil, errors.New("worker: Options.Redis, Ledger, Queue, Pusher and Expand are required")
	}
	if o.Concurrency < 0 || o.DrainTimeout < 0 || o.Fetchers < 0 {
		return nil, errors.New("worker: concurrency, drain timeout and fetchers must not be negative")
	}
	o.Concurrency = cmp.Or(o.Concurrency, 8)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 50*time.Second)
	if len(o.Queues) == 0 {
		o.Queues = map[string]int{"default": 1}
	}
	o.Fetchers = min(cmp.Or(o.Fetchers, queue.DefaultFetchers), o.Concurrency)
	if o.OnAttempt == nil {
		o.OnAttempt = func(*ledger.Claimed) func(*ledger.Finished) { return func(*ledger.Finished) {} }
	}
	if o.OnRejected == nil {
		o.OnRejected = func(string) {}
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if err := scheduler.CheckJobs(o.Jobs); err != nil {
		return nil, err
	}
	w := &Worker{o: o, log: o.Logger, queue: o.Queue, pusher: o.Pusher, often: repeats.New(o.Logger, "call"), aside: make(chan struct{}, 1), unrecorded: semaphore.NewWeighted(endsPerSlot * int64(o.Concurrency)), leave: make(chan struct{}), live: newLive()}
	w.stuck.tell = o.OnStuck
	w.slots.free, w.slots.seat = o.Concurrency, w.seat
	w.seated.Flights, w.seated.Near, w.seated.Most, w.seated.Send = seatedFlights, space.Near, ledger.MaxTogether, w.sendSeated
	w.seated.Spawn = func(f func()) bool { w.attempt.Go(f); return true }
	w.began.serve(o.Queues)
	w.disputed.Store(new(map[string]string))
	w.jobs.Store(newDefinitions(o.Jobs, o.Permits, o.Config))
	return w, nil
}

// SetJobs replaces all jobs while the worker runs: see [scheduler.Scheduler.SetJobs]. config is the
// digest that others see. SetJobs declares permits first, and returns an [ErrPermits] when that is
// impossible. An error leaves the jobs unchanged, but some of several permits may have been
// declared. A call waits for the end of an earlier one.
func (w *Worker) SetJobs(ctx context.Context, list []*jobs.Job, permits map[string]locks.PermitLimit, config string) error {
	if err := scheduler.CheckJobs(list); err != nil {
		return err
	}
	w.setting.Lock()
	defer w.setting.Unlock()
	next := newDefinitions(list, permits, config)
	loop := w.loop.Load()
	if loop == nil { // Run takes them over once it has made the scheduler
		w.jobs.Store(next)
		return nil
	}
	return w.replaceJobs(ctx, loop, next)
}

// replaceJobs gives other definitions to this worker and its scheduler. The caller holds setting.
func (w *Worker) replaceJobs(ctx context.Context, loop *scheduler.Scheduler, next *definitions) error {
	if err := w.declare(ctx, next.permits); err != nil {
		return err
	}
	before := w.jobs.Swap(next)
	if err := loop.SetJobs(next.jobs); err != nil {
		w.jobs.Store(before)
		return err
	}
	w.show(ctx)
	return nil
}

// schedule makes a scheduler for the jobs begun that of this worker, and gives it those that
// SetJobs has brought since.
func (w *Worker) schedule(ctx context.Context, loop *scheduler.Scheduler, begun *definitions) error {
	w.setting.Lock()
	defer w.setting.Unlock()
	w.loop.Store(loop)
	if now := w.jobs.Load(); now != begun {
		return w.replaceJobs(ctx, loop, now)
	}
	return nil
}

// declare declares the limits of permits.
func (w *Worker) declare(ctx context.Context, permits map[string]locks.PermitLimit) error {
	for _, name := range slices.Sorted(maps.Keys(permits)) {
		limit := permits[name]
		call, cancel := context.WithTimeout(ctx, callLimit)
		stands, err := w.locks.Declare(call, name, limit)
		cancel()
		switch {
		case err != nil && stands.Permits > 0:
			return &PermitsError{name, fmt.Sprintf(".limit is %d, and version %d of it has been declared with %d: raise permits.%s.version to change it",
				limit.Permits, stands.Version, stands.Permits, name)}
		case errors.Is(err, locks.ErrBusy):
			return &PermitsError{name, ": it is held as a lock, exclusive or shared: wait until it is free, or take another name"}
		case errors.Is(err, locks.ErrInvalid):
			return &PermitsError{name, ": " + err.Error()}
		case err != nil:
			return err
		case stands.Version > limit.Version:
			w.log.InfoContext(ctx, "a newer version of permits is declared", "permits", name, "limit", stands.Permits, "version", stands.Version,
				"limit_here", limit.Permits, "version_here", limit.Version)
		}
	}
	return nil
}

// show updates this worker's card. While Redis does not reply, others still see the old card;
// nothing depends on it.
func (w *Worker) show(ctx context.Context) {
	w.showing.Lock()
	defer w.showing.Unlock()
	state := "ready"
	if w.draining.Load() {
		state = "draining"
	}
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	now := w.load()
	var err error
	for most := shownStuck; ; most /= 2 {
		err = w.locks.Extension().SetCard(call, w.card(state, now, most))
		if most == 0 || !errors.Is(err, locks.ErrInvalid) { // else it is too large
			break
		}
	}
	switch {
	case errors.Is(err, locks.ErrInvalid):
		w.often.WarnContext(ctx, "the worker's card is too large and stays as it was", "call", "card", "state", state, "error", err)
	case err != nil:
		w.log.DebugContext(ctx, "could not update the worker's card", "state", state, "error", err)
	default:
		w.shown = now
	}
}

// load is the part of a card that changes with each attempt.
type load struct {
	busy    int
	suspect jobs.RunID
	alone   bool
	beside  int
	refused int
	stuck   int // version of the stuck attempts
}

func (w *Worker) load() load {
	run, alone, beside := w.suspects.now()
	return load{int(w.busy.Load()), run, alone, beside, int(w.refused.Load()), w.stuck.version()}
}

// watchLoad updates the card until ctx ends, at most once a second: how many slots are taken here
// and which run is in the suspects' place, from which other processes derive why a run does not
// start; how many runs were refused; and which attempts are stuck.
func (w *Worker) watchLoad(ctx context.Context) {
	repeat(ctx, time.Second, func(call context.Context) {
		w.showing.Lock()
		changed := w.shown != w.load()
		w.showing.Unlock()
		if changed {
			w.show(call)
		}
	})
}

// Run works until ctx ends, or until a drain is requested ([ledger.Ledger.Drain]). Then it drains:
// it takes nothing new, waits for running attempts up to the drain timeout, cancels the others,
// hands their runs back, and returns nil when everything has stopped and the session is ended. An
// error means that it could not start, or that it cannot continue because a newer build has raised
// the format of the stored data ([locks.ErrFormat]). A [StuckError] means that handlers have
// ignored the end of their contexts for a cutoff ([locks.Client.Cutoff]): the process must end, and
// the session has not.
func (w *Worker) Run(ctx context.Context) (err error) {
	told := ctx
	ctx, end := context.WithCancel(ctx)
	defer end()
	defer func() {
		if told.Err() != nil && errors.Is(err, context.Canceled) {
			err = nil // it was still starting, and has taken no run
		}
	}()
	w.started = time.Now()
	// Attempts, and the records of their ends, outlive ctx: the drain decides when they end.
	running := context.WithoutCancel(ctx)
	w.attempts, w.cancel = context.WithCancelCause(running)
	defer w.cancel(nil)
	var stopCalls context.CancelFunc
	w.calls, stopCalls = context.WithCancel(running)
	defer stopCalls()
	defer w.often.Flush(running, true)

	options := w.o.Locks
	options.Card, options.Logger = w.card("ready", load{}, 0), w.log
	options.Extension = locks.ExtensionOptions{Recover: w.recover, OnNotice: w.notice, OnOffer: func() {
		if s := w.loop.Load(); s != nil {
			s.Wake()
		}
	}}
	if w.locks, err = locks.Open(ctx, w.o.Redis, options); err != nil {
		return fmt.Errorf("start worker: %w", err)
	}
	defer func() {
		if stuck := new(StuckError); !errors.As(err, &stuck) {
			w.close(running)
		}
	}()
	w.tell(w.locks.Session())
	if w.o.Hook != nil {
		w.locks.Extension().Redis().AddHook(w.o.Hook)
	}
	w.ledger = w.o.Ledger.Through(w.locks, w.own, w.can)
	w.ends = w.ledger.Finisher(callLimit, w.attempt.Go)
	if err := w.queue.Own(ctx, slices.Collect(maps.Keys(w.o.Queues))); err != nil {
		return fmt.Errorf("start worker: %w", err)
	}
	begun := w.jobs.Load()
	if err := w.declare(ctx, begun.permits); err != nil {
		return fmt.Errorf("start worker: %w", err)
	}
	server, err := queue.NewServer(w.queue, queue.Options{
		Queues: w.o.Queues, Fetchers: w.o.Fetchers, Session: func() string { return string(w.locks.Session()) }, Slots: &w.slots, Ready: w.canBegin, Handle: w.handle, Adopt: w.adopt,
		Disputed: func(owners map[string]string) {
			w.disputed.Store(&owners)
			w.show(ctx)
		},
		Logger: w.log,
	})
	if err != nil {
		return fmt.Errorf("start worker: %w", err)
	}
	w.server.Store(server)
	ticks, err := scheduler.New(scheduler.Options{
		Ledger: w.ledger, Session: w.locks.Session, Jobs: begun.jobs, Deliver: w.deliver, Pushes: w.pusher, Queue: w.queue,
		Registered: func() {
			w.ready.Store(true)
			w.log.InfoContext(ctx, "worker is ready", "worker", w.locks.Session(), "slots", w.o.Concurrency, "jobs", len(begun.jobs))
		},
		OnRepeated: w.o.OnRepeated, Served: w.served, Paused: w.queue.AllPaused, Stop: w.stop, Drain: end, Aside: w.someAside, Drift: w.drift, Doubt: w.locks.Extension().Doubt, Logger: w.log,
		MaxHistory: w.o.MaxHistory, HistoryEvery: w.o.HistoryEvery, Tracer: w.o.Tracer,
	})
	if err != nil {
		return fmt.Errorf("start worker: %w", err)
	}
	if err := w.schedule(ctx, ticks, begun); err != nil {
		return fmt.Errorf("start worker: %w", err)
	}
	// The pusher outlives the rest: a run that is handed back is pushed again.
	pushing, stop := context.WithCancel(running)
	var pushes sync.WaitGroup
	pushes.Go(func() { w.pusher.Run(pushing, w.log) })
	pushes.Go(func() { w.passOutputs(pushing) })
	defer pushes.Wait()
	defer stop()

	group, work := errgroup.WithContext(ctx)
	w.work = work
	w.begun.Store(true)
	group.Go(func() error { return ticks.Run(work) })
	group.Go(func() error { return server.Run(work) })
	for _, watch := range []func(context.Context){w.watchPauses, w.watchClock, w.watchLoad, w.watchAside, w.watchOlder, w.watchRedis, w.sendFlows} {
		group.Go(func() error {
			watch(work)
			return nil
		})
	}
	group.Go(func() error {
		select {
		case <-work.Done():
			return nil
		case <-w.locks.Failed():
			return fmt.Errorf("worker has lost its session: %w", w.locks.Err())
		}
	})
	group.Go(func() error { // begins when the others end, possibly because of an error
		<-work.Done()
		w.draining.Store(true)
		return nil
	})
	err = group.Wait()
	w.drain(running, stopCalls)
	return w.stuck.ended(err)
}

// recover re-asserts the state that Redis has lost.
func (w *Worker) recover(ctx context.Context, session locks.SessionID, loss string) error {
	ticks := w.loop.Load()
	if ticks == nil {
		return nil // nothing is known yet
	}
	carried := w.jobs.Load().jobs
	digest, _, err := ledger.Digest(carried)
	if err != nil {
		return err
	}
	err = w.ledger.Assert(ctx, session, loss, digest, carried)
	if err == nil && w.draining.Load() {
		// Other workers with this config may not have polled yet: they get the time to do so.
		err = w.ledger.Leave(ctx, session, digest, ledger.RestartTime)
	}
	if err != nil {
		w.log.WarnContext(ctx, "re-asserting lost state failed, will retry", "worker", session, "error", err)
		return err
	}
	w.log.WarnContext(ctx, "Redis has lost data; re-asserted the jobs and runs known here", "worker", session)
	ticks.Recovered()
	return nil
}

// begin opens a request, on a session that OnSession has received.
func (w *Worker) begin() (*locks.Request, error) {
	request, err := w.locks.Extension().Begin()
	if err == nil {
		w.tell(request.Session())
	}
	return request, err
}

// canBegin reports whether the client has a session, under which a claim can begin. From the time
// when a session is cut off until the next one is open, each fetched delivery could only be put
// back.
func (w *Worker) canBegin() bool {
	_, err := w.locks.Extension().Certain()
	return !errors.Is(err, locks.ErrNoSession) // a doubt about a session does not refuse a claim
}

// tell reports a session to OnSession, unless it was the last one reported.
func (w *Worker) tell(session locks.SessionID) {
	if told := w.told.Load(); w.o.OnSession == nil || told != nil && *told == session {
		return
	}
	w.o.OnSession(session)
	// after the call: a goroutine that finds the session here may rely on OnSession knowing it
	w.told.Store(&session)
}

// drain waits for the attempts, and cancels those that take too long. It then leaves behind
// handlers that do not return within a cutoff. Calls without a reply are repeated for a lease:
// after that the session is over, and with it every hold that it was granted.
func (w *Worker) drain(ctx context.Context, stopCalls context.CancelFunc) {
	var showing sync.WaitGroup // beside the timer: a Redis that does not reply takes callLimit
	showing.Go(func() { w.show(ctx) })
	defer showing.Wait()
	w.log.InfoContext(ctx, "worker drains", "worker", w.locks.Session(), "for_at_most", w.o.DrainTimeout)
	ended := make(chan struct{})
	go func() { // ends when the attempts have; this function waits for that
		w.attempt.Wait()
		close(ended)
	}()
	timer := time.NewTimer(w.o.DrainTimeout)
	defer timer.Stop()
	ask := time.NewTicker(time.Second)
	defer ask.Stop()
	for waiting := true; waiting; {
		select {
		case <-ended:
			return
		case <-ask.C: // the scheduler, which otherwise does this, has ended
			w.stopAsked(ctx)
		case <-timer.C:
			waiting = false
		case <-w.o.Abort:
			waiting = false
		}
	}
	w.cancel(jobs.ErrDrain)
	for _, step := range []struct {
		after time.Duration
		do    func()
	}{{w.locks.Cutoff(), func() { close(w.leave) }}, {w.locks.Lease() - w.locks.Cutoff(), stopCalls}} {
		timer.Reset(step.after)
		select {
		case <-ended:
			return
		case <-timer.C:
			step.do()
		}
	}
	<-ended
}

// stopAsked ends the attempts that were requested to stop.
func (w *Worker) stopAsked(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	stop, err := w.ledger.Asked(call, w.locks.Session())
	if err != nil {
		w.log.DebugContext(ctx, "could not read which runs must stop", "error", err)
	}
	for run, why := range stop {
		w.stop(run, why)
	}
}

// close ends the session, which frees any remaining locks.
func (w *Worker) close(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if err := w.locks.Close(call); err != nil {
		w.log.WarnContext(ctx, "the session could not be ended, its lease will end it", "error", err)
	}
	w.log.InfoContext(ctx, "worker has stopped")
}

// handle claims the runs of fetched deliveries. It returns when all claims are settled, or ctx
// ends: until then the deliveries are on record as this worker's, see [queue.Options].Handle. One
// that gets no slot in time goes back to its queue, and stays on record until it is there.
func (w *Worker) handle(ctx context.Context, some []ledger.Due) { w.seatOr(ctx, some, w.pushBack) }

// seatOr claims runs, each of which is in hand: at once those that have a slot now, together, and
// the others when they get one. Those that get none in time go to back. seatOr returns when all
// claims are settled, or ctx ends.
func (w *Worker) seatOr(ctx context.Context, some []ledger.Due, back func(context.Context, []ledger.Due)) {
	all := make([]*fetched, len(some))
	for i, d := range some {
		all[i] = &fetched{d, make(chan struct{})}
	}
	now := w.slots.Arrive(all)
	unsettled, settled := w.claimAll(some[:len(now)])
	late := time.NewTimer(seatPatience)
	defer late.Stop()
	for waiting := all[len(now):]; len(waiting) > 0; {
		select {
		case <-waiting[0].settled:
			waiting = waiting[1:]
		case <-late.C:
			if n, _ := w.slots.Running(); n < w.o.Concurrency { // slots wait for Redis, too
				late.Reset(seatPatience)
				continue
			}
			w.paced(slow)
			back(ctx, w.unseat(waiting))
		case <-ctx.Done(): // a drain begins no run, and must not wait for Redis
			w.pusher.Add(w.unseat(waiting)...)
			return
		}
	}
	for range unsettled {
		select {
		case <-settled:
		case <-ctx.Done(): // a drain must not wait for Redis
			return
		}
	}
}

// putBack has a delivery that was fetched pushed to the head of its queue.
func (w *Worker) putBack(d ledger.Due) {
	d.PutBack = true
	w.pusher.Add(d)
}

// unseat returns those of some deliveries that still wait for a slot, to put them back. They are no
// longer in hand.
func (w *Worker) unseat(some []*fetched) []ledger.Due {
	waited := w.slots.Withdraw(some)
	due := make([]ledger.Due, len(waited))
	for i, f := range waited {
		due[i] = f.due
		due[i].PutBack = true
		close(f.settled)
	}
	return due
}

// pushBack returns deliveries to their queues, until they are there or ctx ends.
func (w *Worker) pushBack(ctx context.Context, due []ledger.Due) {
	err := ledger.Insist(func() (done bool, err error) {
		call, cancel := context.WithTimeout(ctx, callLimit)
		defer cancel()
		_, err = w.queue.Push(call, due...)
		return err == nil, err
	}, ctx.Done())
	if err != nil {
		w.pusher.Add(due...)
	}
}

// seat claims the runs of deliveries that have waited for a slot and got one.
func (w *Worker) seat(some []*fetched) {
	for _, f := range some {
		w.seated.Add(w.attempts, f)
	}
}

func (w *Worker) sendSeated(_ context.Context, some []*fetched) {
	due := make([]ledger.Due, 0, len(some))
	for _, f := range some {
		if w.draining.Load() {
			w.slots.Free(1)
			w.putBack(f.due)
			continue
		}
		due = append(due, f.due)
	}
	unsettled, settled := w.claimAll(due)
	w.attempt.Go(func() {
		for range unsettled {
			<-settled
		}
		for _, f := range some {
			close(f.settled)
		}
	})
}

// Deliver takes runs that another part of this process has made due, and has them run in the
// background. It returns false when it does not take them: the worker has not started, or drains.
func (w *Worker) Deliver(ctx context.Context, due []ledger.Due) bool {
	if !w.begun.Load() || w.draining.Load() {
		return false
	}
	w.deliver(ctx, due)
	return true
}

// deliver hands over runs that became due here: to this worker when it has a free slot and serves
// the queue, else to the queue, in their order. It does not block.
func (w *Worker) deliver(_ context.Context, due []ledger.Due) {
	var push []ledger.Due
	for _, d := range due {
		before, ok := w.direct(d, w.o.Queues[d.Queue])
		behind := func(other ledger.Due) bool { return slices.Contains(before, other.Queue) }
		if !ok || w.pusher.Waiting(before) || slices.ContainsFunc(push, behind) || !w.slots.TryTake() {
			if ok && d.Offered {
				w.offers.add(d)
			}
			push = append(push, d)
			continue
		}
		w.attempt.Go(func() { w.claim(d, before) })
	}
	// All at once: of two that go to the head of a queue, the one pushed later is the first.
	if len(push) > 0 {
		w.pusher.Add(push...)
	}
}

// direct reports whether this worker may claim a run without a delivery, if it has a slot. before
// names the queues of at least this weight, in which a run that was due earlier goes first; runs in
// paused ones do not start.
func (w *Worker) direct(d ledger.Due, weight int) (before []string, ok bool) {
	paused := w.paused.Load()
	_, served := w.o.Queues[d.Queue]
	if !served || w.draining.Load() || paused == nil || (*paused)[d.Queue] {
		return nil, false
	}
	for name, other := range w.o.Queues {
		if other >= weight && !(*paused)[name] {
			before = append(before, name)
		}
	}
	return before, true
}

// drift publishes how many definitions here are not the active ones of their jobs.
func (w *Worker) drift(ctx context.Context, jobs int) {
	w.drifted.Store(int64(jobs))
	w.show(ctx)
}

// A stopper ends one attempt, and has what that prints. Several attempts of a run may be in
// progress here: one that has lost its locks, with a handler that ignores its context, and the next
// one. Each of them removes only its own stopper.
type stopper struct {
	cancel  context.CancelCauseFunc
	printed *printed
}

// stop ends the last attempt at a run, if it is in progress here. Earlier ones have ended, or have
// lost their locks.
func (w *Worker) stop(run jobs.RunID, why string) {
	if attempt, ok := w.running.Load(run); ok {
		attempt.(*stopper).cancel(fmt.Errorf("%w: %s", jobs.ErrCanceled, why))
	}
}

// watchPauses reads the pause flags of the queues, which other tools may also set, until ctx ends.
func (w *Worker) watchPauses(ctx context.Context) {
	repeat(ctx, time.Second, func(call context.Context) {
		paused, err := w.queue.Paused(call, slices.Collect(maps.Keys(w.o.Queues)))
		if err != nil {
			w.paused.Store(nil) // no direct claims while the flags are unknown
		} else {
			w.paused.Store(&paused)
		}
	})
}

// repeat calls do at once, and again a pause after each call, until ctx ends. Each call has
// callLimit.
func repeat(ctx context.Context, pause time.Duration, do func(call context.Context)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		call, cancel := context.WithTimeout(ctx, callLimit)
		do(call)
		cancel()
		timer.Reset(pause)
	}
}

// watchClock compares this host's clock with Redis' until ctx ends, for people to see. Nothing here
// depends on it.
func (w *Worker) watchClock(ctx context.Context) {
	// a smaller change is not worth an update: replies take time
	const tells = 100 * time.Millisecond
	repeat(ctx, time.Minute, func(call context.Context) {
		before := time.Now()
		now, err := w.o.Redis.Time(call).Result()
		off := before.Add(time.Since(before) / 2).Sub(now)
		if err == nil && (off-time.Duration(w.clock.Load())).Abs() >= tells {
			w.clock.Store(int64(off))
			w.show(ctx)
		}
	})
}

// card returns this worker's card as others see it, with the names of at most most stuck attempts.
func (w *Worker) card(state string, now load, most int) json.RawMessage {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	handlers := []string{}
	for _, executor := range w.o.Executors {
		if registry, ok := executor.(*jobs.Registry); ok {
			handlers = append(handlers, registry.Names()...)
		}
	}
	names := min(len(handlers), namedHandlers)
	var hashes []byte
	for _, name := range handlers[names:min(len(handlers), names+hashedHandlers)] {
		hashes = append(hashes, handlerHash(name)...)
	}
	card, err := json.Marshal(Card{
		Host: host, PID: os.Getpid(), Version: w.o.Version, Config: w.jobs.Load().config, State: state,
		Slots: w.o.Concurrency, Queues: w.o.Queues, StartedAt: w.started.UTC(), Admin: w.o.Admin, Pass: w.o.Pass, Drifted: int(w.drifted.Load()),
		Clock: time.Duration(w.clock.Load()), Disputed: *w.disputed.Load(),
		Key: w.o.Ledger.SignKeys().ID(), Refused: now.refused,
		Stuck: w.stuck.shown(most), Busy: now.busy, Suspect: now.suspect, Alone: now.alone, Beside: now.beside, Handlers: handlers[:names], MoreHandlers: len(handlers) - names,
		HandlerHashes: hashes, Picks: true,
	})
	if err != nil {
		panic("worker: a card is plain data: " + err.Error())
	}
	return card
}

// own returns this worker's definition of a job, or nil.
func (w *Worker) own(job string) *jobs.Job { return w.jobs.Load().named[job] }

// Card is a worker's description of itself for others, in addition to its session's id and lease.
type Card struct {
	Host      string         `json:"host"`
	PID       int            `json:"pid"`
	Version   string         `json:"version"`
	Config    string         `json:"config"`
	State     string         `json:"state"` // ready or draining
	Slots     int            `json:"slots"`
	Queues    map[string]int `json:"queues"`
	StartedAt time.Time      `json:"started_at"`
	Admin     string         `json:"admin,omitempty"` // host:port of its API and page; "" for none
	// lets the command line request a reload of its config there
	Pass    string `json:"ticket,omitempty"`
	Drifted int    `json:"drifted,omitempty"` // jobs with another active definition
	// ns by which its host's clock is ahead of Redis'; 0 for next to nothing
	Clock time.Duration `json:"clock,omitempty"`

	// The runs that the worker can start now. A card changes at most once a second for these.
	Stuck []Stuck `json:"stuck,omitempty"` // the first of the stuck attempts
	Busy  int     `json:"busy,omitempty"`  // slots in which an attempt runs
	// the run in the suspects' place; "" while that is free
	Suspect jobs.RunID `json:"suspect,omitempty"`
	Alone   bool       `json:"alone,omitempty"` // Suspect runs beside no other run that has crashed
	// runs here that have crashed before, except Suspect
	Beside int `json:"beside,omitempty"`
	// the first ones by name; nil: unknown, the card is of an older build
	Handlers     []string `json:"handlers"`
	MoreHandlers int      `json:"more_handlers,omitempty"`
	// of the next ones, 4 bytes each; see [Card.Has]
	HandlerHashes []byte `json:"handler_hashes,omitempty"`
	// it looks for runs that were set aside; false: the card is of an older build
	Picks bool `json:"picks,omitempty"`

	// the id of the key with which it signs definitions; "" for none
	Key     string `json:"key,omitempty"`
	Refused int    `json:"refused,omitempty"` // runs with an untrusted definition
	// queues that it serves although they belong to another namespace: which one
	Disputed map[string]string `json:"disputed,omitempty"`
}

// Has reports whether the worker has a handler, as far as its card shows. It is true if the card
// leaves that open: the card is of an older build, or it has neither names nor hashes of some
// handlers.
func (c *Card) Has(handler string) bool {
	if handler == "" || c.Handlers == nil || slices.Contains(c.Handlers, handler) || len(c.HandlerHashes) < c.MoreHandlers*hashSize {
		return true
	}
	hash := handlerHash(handler)
	for some := range slices.Chunk(c.HandlerHashes, hashSize) {
		if bytes.Equal(some, hash) {
			return true
		}
	}
	return false
}

const hashSize = 4 // bytes

// handlerHash returns the first bytes of the SHA-256 hash of a name.
func handlerHash(name string) []byte {
	hash := sha256.Sum256([]byte(name))
	return hash[:hashSize]
}
