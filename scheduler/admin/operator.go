package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"time"

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
	// for which the requests of one actor for one job are counted before they are recorded
	requestSpan  = 10 * time.Second
	requestKinds = 1000      // actors and jobs that are counted; more are recorded one by one
	requestEntry = time.Hour // for which such requests are one entry of the audit

	stopLimit = time.Second // for the last step of an interrupted act; a command line has two
)

// Operator carries out the acts of people, requested over HTTP or on the command line: it changes
// the state in Redis, records the actor in the audit, and pushes what becomes due to its queue. An
// unknown name gives an error that is [ledger.ErrUnknown] or [queue.ErrNoQueue]; an impossible act
// gives one that is [ledger.ErrRefused], [locks.ErrStale], [locks.ErrInvalid] or [ErrInvalid]. An
// Operator is safe for concurrent use.
type Operator struct {
	// Tracer makes the spans of requests for runs; nil: none are made. A run keeps the context of
	// its request's span, or else that of the span that the ctx of the request has. Set it before
	// the first act.
	Tracer *trace.Tracer

	ledger *ledger.Ledger
	queue  *queue.Client
	push   func(context.Context, ...ledger.Due) error
	take   func(context.Context, []ledger.Due) bool
	told   func(error)

	requests *repeats.Counter[ledger.Act] // for runs; thousands a second may arrive
}

// NewOperator returns an operator. It pushes the runs that become due to their queue by push, a
// [worker.Pusher.Push], before the act returns. If take is not nil, the operator first offers it
// these runs, to have them run in the background, and pushes them when take returns false. If
// undelivered is not nil, the operator calls it when it has recorded a run but could not push its
// delivery: a worker will do that within seconds.
func NewOperator(l *ledger.Ledger, q *queue.Client, push func(context.Context, ...ledger.Due) error, take func(context.Context, []ledger.Due) bool, undelivered func(error)) *Operator {
	if take == nil {
		take = func(context.Context, []ledger.Due) bool { return false }
	}
	if undelivered == nil {
		undelivered = func(error) {}
	}
	return &Operator{ledger: l, queue: q, push: push, take: take, told: undelivered, requests: repeats.NewCounter[ledger.Act](requestSpan, requestKinds)}
}

// actPauseQueue is the word for an act by which [Reader.Queues] finds the reason of a pause.
const actPauseQueue = "pause queue"

// Actor is the requester of an act, and the reason.
type Actor struct {
	Who string
	Why string // "" when none was given
}

func (a Actor) act(what, on, detail string) ledger.Act {
	return ledger.Act{Who: a.Who, What: what, On: on, Why: a.Why, Detail: detail}
}

// deliver hands due runs to take or pushes their deliveries.
func (o *Operator) deliver(ctx context.Context, due []ledger.Due) {
	if len(due) == 0 || o.take(ctx, due) {
		return
	}
	if err := o.push(ctx, due...); err != nil {
		o.undelivered(err)
	}
}

func (o *Operator) undelivered(err error) {
	o.told(fmt.Errorf("the run is recorded, a worker will push it to its queue within seconds: %w", err))
}

// Enqueue asks for a run. Arguments that do not fit give an error that is [jobs.IsPermanent].
func (o *Operator) Enqueue(ctx context.Context, request ledger.Request, by Actor) (*ledger.Enqueued, error) {
	return o.enqueue(ctx, request, by.act("enqueue", request.Job.Name, string(jobs.RequestRunID(request.Job.Name, request.ID))))
}

// ForgetJob removes the remaining data of a job that no worker carries.
func (o *Operator) ForgetJob(ctx context.Context, job string, by Actor) error {
	return o.ledger.Forget(ctx, job, by.act("forget job", job, ""))
}

// PauseJob makes a job skip its ticks from now on. It returns false if the job was paused already.
func (o *Operator) PauseJob(ctx context.Context, job string, by Actor) (bool, error) {
	return o.ledger.Pause(ctx, job, by.act("pause job", job, ""))
}

// ResumeJob lets the ticks of a job run again. It returns false if the job was not paused. If the
// job's definition pauses it, ResumeJob refuses.
func (o *Operator) ResumeJob(ctx context.Context, job string, by Actor) (bool, error) {
	record, err := o.ledger.Job(ctx, job)
	if err != nil {
		return false, err
	}
	if record.Job.Paused {
		return false, fmt.Errorf("resume job %s: %w: its definition says paused: true; change that", job, ledger.ErrRefused)
	}
	return o.ledger.Resume(ctx, job, by.act("resume job", job, ""))
}

// CancelRun ends a run, or asks its worker to stop it; then asked is true.
func (o *Operator) CancelRun(ctx context.Context, id jobs.RunID, by Actor) (asked bool, err error) {
	canceled, err := o.cancel(ctx, id, by.act("cancel run", string(id), ""))
	if err != nil {
		return false, err
	}
	o.deliver(ctx, canceled.Due)
	if !canceled.Asked {
		o.ledger.TraceEnd(ctx, o.Tracer, id, 0)
	}
	return canceled.Asked, nil
}

func (o *Operator) cancel(ctx context.Context, id jobs.RunID, act ledger.Act) (*ledger.Cancellation, error) {
	job, err := o.ledger.Definition(ctx, id)
	if errors.Is(err, ledger.ErrUnknown) {
		job = new(jobs.Job) // the run has ended, or it does not exist: the ledger says which
	} else if errors.Is(err, ledger.ErrUnreadable) {
		// The bounds of the job's history are those of the active definition; without one, nothing
		// must be trimmed.
		record, unknown := o.ledger.Job(ctx, id.Job())
		if job = record.Job; unknown != nil {
			job = &jobs.Job{Name: id.Job(), History: jobs.History{Runs: math.MaxInt32, For: 365 * 24 * time.Hour}}
		}
	} else if err != nil {
		return nil, err
	}
	return o.ledger.Cancel(ctx, id, job, act)
}

// RetryRun makes a run that ended without success run again, under its id and by the job's present
// definition.
func (o *Operator) RetryRun(ctx context.Context, id jobs.RunID, by Actor) error {
	due, err := o.retry(ctx, id, by.act("retry run", string(id), ""))
	if err != nil {
		return err
	}
	o.deliver(ctx, due)
	return nil
}

func (o *Operator) retry(ctx context.Context, id jobs.RunID, act ledger.Act) ([]ledger.Due, error) {
	record, err := o.ledger.FindRecord(ctx, id)
	if err != nil {
		return nil, err
	}
	if !record.State.Final() {
		return nil, fmt.Errorf("retry %s: %w: it is %s", id, ledger.ErrRefused, record.State)
	}
	job, err := o.ledger.Job(ctx, id.Job())
	if err != nil {
		return nil, err
	}
	act.Detail = "it was " + string(record.State)
	return o.ledger.Reopen(ctx, ledger.Reopening{Run: id, Tick: record.Tick, Job: job.Job, Args: record.Args, Templated: record.Templated, Act: &act})
}

// ReplayMost bounds the ticks of one replay.
const ReplayMost = 1000

// ReplayKeys selects the idempotency keys of the runs of a replay.
type ReplayKeys bool

// The choices for [ReplayKeys].
const (
	// each tick's run is done again under its id: an effect recorded under its key is not made
	// again
	SameKeys ReplayKeys = false
	// each tick gets a run of its own beside the record of the tick, see [jobs.ReplayRunID]
	NewKeys ReplayKeys = true
)

// Replay runs the ticks of a job in a span (again), both ends included, whatever their outcome;
// outstanding ones stay as they are. It returns the number of runs. The span must be decided: later
// ticks run by schedule. An error between two ticks says how many of them run again, and from which
// one to continue; the runs that are due by then are counted and delivered.
func (o *Operator) Replay(ctx context.Context, job string, from, to time.Time, keys ReplayKeys, by Actor) (int, error) {
	record, ticks, err := o.replayed(ctx, job, from, to)
	if err != nil {
		return 0, err
	}
	act := by.act("replay ticks", job, TickTime{from}.String()+" to "+TickTime{to}.String())
	act.Apart = act.Detail
	if keys == NewKeys {
		act.Detail += ", under new keys"
	}
	late, cancel := outlast(ctx)
	defer cancel()
	var due []ledger.Due
	defer func() {
		if len(due) > 0 && !attempt(late, func() { o.deliver(late, due) }) {
			o.undelivered(ctx.Err())
		}
	}()
	for _, tick := range ticks {
		stopped := func(more string, err error) (int, error) {
			return len(due), fmt.Errorf("replay %s: %d of %d ticks run again%s; to continue, replay from %s: %w", job, len(due), len(ticks), more, TickTime{tick}, err)
		}
		if err := ctx.Err(); err != nil {
			return stopped("", err)
		}
		re := ledger.Reopening{Run: jobs.TickRunID(job, tick), Tick: tick, Job: record.Job, Args: record.Job.Args, Any: true}
		if len(due) == 0 { // recorded once, with the first tick that runs
			re.Act = &act
		}
		var some []ledger.Due
		var doubt bool
		var err error
		if !attempt(late, func() { some, doubt, err = o.replayTick(late, re, keys) }) {
			return stopped(perhaps(tick), ctx.Err())
		}
		if err != nil && doubt {
			return stopped(perhaps(tick), err)
		}
		if err != nil {
			return stopped("", err)
		}
		due = append(due, some...)
	}
	return len(due), nil
}

// perhaps adds a tick to those that run again.
func perhaps(tick time.Time) string { return ", and perhaps that of " + (TickTime{tick}).String() }

// replayTick runs a tick (again). doubt reports whether it may run despite the error.
func (o *Operator) replayTick(ctx context.Context, re ledger.Reopening, keys ReplayKeys) (due []ledger.Due, doubt bool, err error) {
	if keys == NewKeys {
		there, err := o.ledger.FindRecord(ctx, re.Run)
		if err != nil && !errors.Is(err, ledger.ErrUnknown) {
			return nil, false, err
		}
		if err == nil && !there.State.Final() {
			return nil, false, nil
		}
		re.Run, re.Tick, re.Parent = jobs.ReplayRunID(re.Job.Name, re.Tick, time.Now()), time.Time{}, re.Run
	}
	due, err = o.ledger.Reopen(ctx, re)
	return due, err != nil && !space.Unsent(err) && !isRefusal(err), err
}

// attempt calls f and reports whether it returned before ctx ended. Otherwise f continues for as
// long as Redis may take for a reply, since a command in flight cannot be canceled, and its results
// must not be read.
func attempt(ctx context.Context, f func()) bool {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// outlast returns a context that ends a moment after ctx: an act of many steps that is interrupted
// gets the reply to the step that it has begun, and delivers the runs that are due.
func outlast(ctx context.Context) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(stopLimit, cancel) })
	return late, func() {
		stop()
		cancel()
	}
}

// ToReplay returns the number of ticks that [Operator.Replay] would look at, or its refusal.
func (o *Operator) ToReplay(ctx context.Context, job string, from, to time.Time) (int, error) {
	_, ticks, err := o.replayed(ctx, job, from, to)
	return len(ticks), err
}

func (o *Operator) replayed(ctx context.Context, job string, from, to time.Time) (ledger.JobRecord, []time.Time, error) {
	record, ticks, err := o.span(ctx, job, from, to)
	switch {
	case err != nil:
	case to.After(record.Cursor):
		err = fmt.Errorf("replay %s: %w: its ticks are decided up to %s; later ones come by themselves", job, ErrInvalid,
			TickTime{record.Cursor})
	case len(ticks) > ReplayMost:
		err = fmt.Errorf("replay %s: %w: there are more than %d ticks from %s to %s", job, ErrInvalid, ReplayMost,
			TickTime{from}, TickTime{to})
	}
	return record, ticks, err
}

// ToSkip returns the number of ticks that [Operator.Skip] would declare skipped, at most one more
// than a replay takes, or its refusal.
func (o *Operator) ToSkip(ctx context.Context, job string, from, to time.Time) (int, error) {
	_, ticks, err := o.skipped(ctx, job, from, to)
	return len(ticks), err
}

func (o *Operator) skipped(ctx context.Context, job string, from, to time.Time) (ledger.JobRecord, []time.Time, error) {
	record, ticks, err := o.span(ctx, job, from, to)
	if err == nil && len(ticks) == 0 {
		err = fmt.Errorf("skip ticks of %s: %w: it has none from %s to %s", job, ErrInvalid, TickTime{from}, TickTime{to})
	}
	return record, ticks, err
}

// Skip declares that the ticks of a job in a span, both ends included, do not run: future ticks,
// and those with runs that have not started. It returns the number of such runs.
func (o *Operator) Skip(ctx context.Context, job string, from, to time.Time, by Actor) (int, error) {
	record, _, err := o.skipped(ctx, job, from, to)
	if err != nil {
		return 0, err
	}
	act := by.act("skip ticks", job, TickTime{from}.String()+" to "+TickTime{to}.String())
	act.Apart = act.Detail
	n, due, err := o.ledger.Skip(ctx, record.Job, from, to, act)
	o.deliver(ctx, due)
	return n, err
}

// Span returns the ticks of a job from one instant to another, both included: at most one more than
// a replay takes.
func (o *Operator) Span(ctx context.Context, job string, from, to time.Time) ([]time.Time, error) {
	_, ticks, err := o.span(ctx, job, from, to)
	return ticks, err
}

func (o *Operator) span(ctx context.Context, job string, from, to time.Time) (ledger.JobRecord, []time.Time, error) {
	record, err := o.ledger.Job(ctx, job)
	if err != nil {
		return record, nil, err
	}
	trigger, err := scheduler.Trigger(record.Job)
	switch {
	case err != nil:
		return record, nil, fmt.Errorf("job %s: %w", job, err)
	case trigger == nil:
		return record, nil, fmt.Errorf("job %s: %w: it has no schedule", job, ErrInvalid)
	case to.Before(from):
		return record, nil, fmt.Errorf("job %s: %w: the span ends before it begins", job, ErrInvalid)
	}
	var ticks []time.Time
	for tick := trigger.Next(from.Add(-time.Nanosecond)); !tick.IsZero() && !tick.After(to); tick = trigger.Next(tick) {
		if ticks = append(ticks, tick); len(ticks) > ReplayMost {
			break
		}
	}
	return record, ticks, nil
}

// PauseQueue holds back the deliveries of a queue, and makes its runs that wait for locks step
// back. It returns false if the queue was paused already.
func (o *Operator) PauseQueue(ctx context.Context, name string, by Actor) (bool, error) {
	return o.audited(ctx, by.act(actPauseQueue, name, ""), func() (bool, error) {
		news, err := o.queue.Pause(ctx, name)
		if err != nil {
			return false, err
		}
		return news, o.ledger.QueuePaused(ctx, name)
	})
}

// ResumeQueue delivers from a queue again, and lets its runs wait in their old places again. It
// returns false if the queue was not paused.
func (o *Operator) ResumeQueue(ctx context.Context, name string, by Actor) (bool, error) {
	return o.audited(ctx, by.act("resume queue", name, ""), func() (bool, error) {
		news, err := o.queue.Resume(ctx, name)
		if err != nil {
			return false, err
		}
		due, err := o.ledger.QueueResumed(ctx, name)
		o.deliver(ctx, due)
		return news, err
	})
}

// audited records an act if it changed something.
func (o *Operator) audited(ctx context.Context, act ledger.Act, do func() (bool, error)) (bool, error) {
	if err := jobs.CheckReason(act.Why); err != nil {
		return false, err
	}
	news, err := do()
	if !news {
		return false, err
	}
	return true, errors.Join(err, o.ledger.Audit(ctx, act))
}

// Audit records an act that another package has carried out.
func (o *Operator) Audit(ctx context.Context, what, on, detail string, by Actor) error {
	return o.ledger.Audit(ctx, by.act(what, on, detail))
}

// DrainWorker asks a worker to take nothing new, and to exit when its runs have ended. It returns
// false if the worker was asked already.
func (o *Operator) DrainWorker(ctx context.Context, id locks.SessionID, by Actor) (bool, error) {
	return o.ledger.Drain(ctx, id, by.act("drain worker", string(id), ""))
}

// ReleaseLock makes the holder of a lock release it: its work is canceled, and the lock passes on
// after the holder's reply or the end of its session. With force the lock passes on at once, and
// until the holder learns of it, two may work under it. token names the hold to release: the error
// is [locks.ErrStale] when another hold has the lock, or none. The holder receives the actor's name
// and reason.
func (o *Operator) ReleaseLock(ctx context.Context, name string, token locks.Token, force bool, by Actor) (locks.HoldID, error) {
	if by.Why == "" {
		return "", fmt.Errorf("release lock %s: %w: give a reason: its holder receives it", name, ErrInvalid)
	}
	if err := jobs.CheckReason(by.Why); err != nil {
		return "", fmt.Errorf("release lock %s: %w", name, err)
	}
	space := o.ledger.Space()
	how, detail := locks.Take, "token "+token.String()
	if force {
		how, detail = locks.Seize, detail+", by force"
	} else if lock, err := space.HeldBy(ctx, name); err != nil {
		return "", fmt.Errorf("release lock: %w", err)
	} else if hold := lock.Holder(token); hold != nil && hold.Resting {
		return "", fmt.Errorf("release lock %s: %w: no work runs under it any more; it stays taken for another %s; only force ends that, and then two holders may be at work",
			name, ledger.ErrRefused, hold.LeaseLeft.Round(time.Second))
	}
	id, err := space.Revoke(ctx, name, token, how, locks.Revocation{By: by.Who, Reason: by.Why})
	if err != nil {
		return "", fmt.Errorf("release lock: %w", err)
	}
	act := by.act("release lock", name, detail)
	act.Apart = detail // a release of another hold is a separate entry
	return id, o.ledger.Audit(ctx, act)
}

// UndeclarePermits removes the limit of permits that no config declares any more. The error is
// [locks.ErrBusy] while permits are in use or runs wait for some, and [ledger.ErrUnknown] when none
// are declared.
func (o *Operator) UndeclarePermits(ctx context.Context, name string, by Actor) error {
	if err := jobs.CheckReason(by.Why); err != nil {
		return fmt.Errorf("undeclare permits of %s: %w", name, err)
	}
	space := o.ledger.Space()
	declared, err := space.Permits(ctx, name)
	if err != nil {
		return err
	}
	record, is := declared[name]
	if !is {
		return fmt.Errorf("undeclare permits of %s: %w: none are declared", name, ledger.ErrUnknown)
	}
	if err := space.Undeclare(ctx, name, record.Version); err != nil {
		return err
	}
	return o.ledger.Audit(ctx, by.act("undeclare permits", name, fmt.Sprintf("limit %d, version %d", record.Permits, record.Version)))
}

// RunNow asks for a run of a job by hand. named reports that the client chose the id; args nil are
// the definition's.
func (o *Operator) RunNow(ctx context.Context, job, id string, args json.RawMessage, named bool, by Actor) (*ledger.Enqueued, error) {
	record, err := o.ledger.Job(ctx, job)
	if err != nil {
		return nil, err
	}
	return o.RunJob(ctx, ledger.Request{Job: record.Job, ID: id, Args: args, Named: named, Trigger: ledger.TriggerHand}, by)
}

// RunJob is [Operator.Enqueue] of a run that is made by hand.
func (o *Operator) RunJob(ctx context.Context, request ledger.Request, by Actor) (*ledger.Enqueued, error) {
	return o.enqueue(ctx, request, by.act("run job", request.Job.Name, string(jobs.RequestRunID(request.Job.Name, request.ID))))
}

// enqueue asks for a run and records that in the audit: an actor's first request for a job at once,
// in the same step, those that follow within a few seconds as one.
func (o *Operator) enqueue(ctx context.Context, request ledger.Request, act ledger.Act) (*ledger.Enqueued, error) {
	if err := request.Job.CheckShown(request.Args); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	act.Span = requestEntry
	kind := act.Who + "\x00" + act.What + "\x00" + act.On
	first, _ := o.requests.First(kind, time.Now())
	if first {
		request.Act = &act
	}
	ctx, publication := o.Tracer.Enqueue(ctx, trace.Run{
		ID: string(jobs.RequestRunID(request.Job.Name, request.ID)), Job: request.Job.Name, Queue: request.Job.Queue, Trigger: string(request.Trigger),
	})
	enqueued, err := o.ledger.Enqueue(ctx, request)
	if err != nil {
		publication.Failed(err)
		return nil, err
	}
	publication.Recorded(string(enqueued.Run), enqueued.Exists)
	if !first && !enqueued.Exists {
		o.requests.Count(kind, act, time.Now())
	}
	o.deliver(ctx, enqueued.Due)
	return enqueued, nil
}

// EnqueueAll asks for many runs, see [ledger.Ledger.EnqueueAll]. The audit has one entry for them.
// of names the whole that the list is a part of, for one entry of all its parts; "" for none.
func (o *Operator) EnqueueAll(ctx context.Context, list ledger.List, of string, by Actor) ([]ledger.Replied, error) {
	if len(list.Items) > ledger.MaxRequests { // its items may be incomplete
		return o.ledger.EnqueueAll(ctx, list)
	}
	list.Refused = maps.Clone(list.Refused)
	var first *ledger.Request
	for i := range list.Items {
		if list.Refused[i] != nil {
			continue
		}
		request := &list.Items[i]
		if first == nil {
			first = request
		}
		if err := request.Job.CheckShown(request.Args); err != nil {
			if list.Refused == nil {
				list.Refused = make(map[int]error)
			}
			list.Refused[i] = fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	if first != nil {
		run := string(jobs.RequestRunID(first.Job.Name, first.ID))
		act := by.act("enqueue", first.Job.Name, "a list, from "+run)
		act.Apart, act.Span = cmp.Or(of, run), requestEntry
		list.Act = &act
	}
	replies, err := o.ledger.EnqueueAll(ctx, list)
	var due []ledger.Due
	for _, r := range replies {
		if r.Enqueued != nil {
			due = append(due, r.Due...)
		}
	}
	o.deliver(ctx, due)
	return replies, err
}

// Flush records the counted requests that are due, or all of them. It keeps counting those that it
// could not record.
func (o *Operator) Flush(ctx context.Context, now time.Time, all bool) error {
	var failed []error
	for _, counted := range o.requests.Due(now, all) {
		act := counted.Last
		act.Times = counted.Times
		if err := o.ledger.Audit(ctx, act); err != nil {
			failed = append(failed, err)
			o.requests.Again(act.Who+"\x00"+act.What+"\x00"+act.On, counted)
		}
	}
	return errors.Join(failed...)
}
