package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/trace"
)

// claim is one of the ledger's methods that claim a run.
type claim func(context.Context, *locks.Request, ledger.Due, time.Duration, []string) (*ledger.Claimed, error)

// claim tries to start an attempt without a delivery in a slot that the caller has taken, and
// releases the slot if none starts. before: see [ledger.Ledger.Claim].
func (w *Worker) claim(due ledger.Due, before []string) {
	request, err := w.begin()
	if err != nil { // no session now: the run is for a worker that has one
		w.slots.Free(1)
		w.pusher.Add(due)
		return
	}
	w.follow(request, due, before, w.sendClaim(request, due, before, w.ledger.ClaimSound))
}

// claimAll is claim for several runs whose turn it is, each with its slot. Claims that need
// further calls of Redis are settled in the background, since granted runs must not wait for them:
// those without a reply, and those of runs that have crashed or that this worker cannot do.
// claimAll returns how many these are, and each of them puts something into the channel when it is
// settled.
func (w *Worker) claimAll(due []ledger.Due) (unsettled int, settled <-chan struct{}) {
	claims := make([]ledger.Claim, 0, len(due))
	for _, d := range due {
		request, err := w.begin()
		if err != nil {
			w.slots.Free(1)
			w.putBack(d)
			continue
		}
		claims = append(claims, ledger.Claim{Request: request, Due: d})
	}
	call, cancel := context.WithTimeout(w.calls, callLimit)
	claimed := w.ledger.ClaimAll(call, claims, w.locks.Extension().ReserveAfter())
	cancel()
	done := make(chan struct{}, len(claims))
	for i, c := range claims {
		reply := claimed[i]
		if reply != nil && reply.Outcome != ledger.ClaimCrashed && reply.Outcome != ledger.ClaimUnable {
			w.follow(c.Request, c.Due, nil, reply)
			continue
		}
		unsettled++
		w.attempt.Go(func() {
			if reply == nil { // it may have been granted
				reply = w.sendClaim(c.Request, c.Due, nil, w.ledger.ClaimSound)
			}
			w.follow(c.Request, c.Due, nil, reply)
			done <- struct{}{}
		})
	}
	return unsettled, done
}

// follow acts on the reply to a claim. before is nil for a run that a delivery brought. claimed is
// nil when the session ended before a reply.
func (w *Worker) follow(request *locks.Request, due ledger.Due, before []string, claimed *ledger.Claimed) {
	done := w.handOn
	var crashed *guest
	if claimed != nil && claimed.Outcome == ledger.ClaimCrashed {
		if crashed = w.admit(due.Run, claimed); crashed != nil {
			done = func(next []ledger.Due) { w.suspects.end(crashed); w.handOn(next) }
			claimed = w.sendClaim(request, due, before, w.ledger.Claim)
		}
	}
	if claimed == nil || claimed.Outcome != ledger.ClaimGranted {
		request.Drop()
		var first []ledger.Due
		if claimed != nil && claimed.First != nil {
			first = []ledger.Due{*claimed.First}
		}
		done(first)
	}
	switch {
	case claimed == nil:
	case claimed.Outcome == ledger.ClaimUnable:
		w.setAside(due, claimed.Need)
	case claimed.Outcome == ledger.ClaimCrashed:
		w.putOff(due, w.suspects.pause())
	case claimed.Outcome == ledger.ClaimGranted:
		hold := request.Granted(w.attempts, claimed.Grant())
		ended := make(chan struct{})
		w.busy.Add(1)
		w.began.add(due.Queue)
		slot := &slot{w: w, done: done, kept: crashed != nil || due.Offered, attempt: w.slots.Begin()}
		w.attempt.Go(func() {
			var next []ledger.Due
			defer func() { slot.end(next) }()
			defer close(ended)
			next = w.run(hold, claimed, slot)
		})
		if crashed != nil {
			w.attempt.Go(func() { w.leavePlace(crashed, claimed, ended) })
		}
	case claimed.Outcome == ledger.ClaimSessionEnded:
		// Otherwise this worker fetches and pushes runs until its next renewal.
		w.locks.Extension().Doubt()
		due.PutBack = before == nil
		w.pusher.Add(due) // for a worker that has a session
	case claimed.Outcome == ledger.ClaimLater && claimed.First != nil && w.o.Queues[claimed.First.Queue] < w.o.Queues[due.Queue]:
		// It gave way in a turn of all queues, and is still the first of its own. Its delivery goes
		// to the end of that queue.
		for i := range claimed.Due {
			claimed.Due[i].Offered = true
		}
	case claimed.Outcome == ledger.ClaimLater:
		w.pusher.Add(claimed.Due...)
		return
	case claimed.Outcome == ledger.ClaimOver:
		w.log.InfoContext(w.attempts, "run has ended without an attempt", "run", due.Run)
	case claimed.Outcome == ledger.ClaimWaiting:
		w.log.DebugContext(w.attempts, "run waits for its locks", "run", due.Run, "lock", claimed.Busy.Resource, "held_by", claimed.Busy.Holder)
	}
	if claimed != nil {
		w.deliver(w.attempts, claimed.Due)
	}
}

// handOn passes a slot that the caller has taken to the first of some runs that became due here and
// may start here, and delivers the others. Without such a run, the slot is for a run that was
// recently offered its locks and found no slot, else for the next delivery.
//
// So an attempt passes its slot to the run that its finish made due. That run must not look for a
// slot itself: behind a backlog no slot is free, and its locks would be reserved without use while
// its delivery waits at the end of the queue. Its claim still gives way to runs that were due
// earlier.
func (w *Worker) handOn(due []ledger.Due) {
	for i, d := range due {
		d.Offered = true
		if !w.passOn(d) {
			w.pusher.Add(d)
			continue
		}
		rest := due[i+1:]
		for j := range rest {
			rest[j].Offered = true
		}
		w.deliver(w.attempts, rest)
		return
	}
	if d, ok := w.offers.take(); ok && w.passOn(d) {
		return
	}
	w.slots.Free(1)
}

// turnEvery is how many times slots are passed on here until a run of any queue goes first, if it
// was due earlier. The runs of one hot lock may follow each other in a slot without end, and all
// other deliveries would wait. A turn costs the lock the time of one other run, so turns are few.
const turnEvery = 16

// passOn claims a run in a slot that the caller has taken, and returns false if it may not start
// here.
func (w *Worker) passOn(d ledger.Due) bool {
	before, ok := w.direct(d, w.o.Queues[d.Queue])
	if ok && w.handed.Add(1)%turnEvery == 0 {
		before, ok = w.direct(d, 0)
	}
	if ok {
		w.attempt.Go(func() { w.claim(d, before) })
	}
	return ok
}

// putOff leaves a run to another worker, or to a later time.
func (w *Worker) putOff(due ledger.Due, pause time.Duration) {
	call, cancel := context.WithTimeout(w.attempts, callLimit)
	defer cancel()
	// Under the next n: that one is unconfirmed, so the sweep pushes it if this worker ends during
	// the pause.
	next, err := w.ledger.Repush(call, due)
	if err != nil {
		w.often.WarnContext(w.attempts, "could not pass a run on, the sweep will do it", "run", due.Run, "error", err)
		return
	}
	time.AfterFunc(pause, func() { w.pusher.Add(next...) })
}

// sendClaim sends a claim until a reply arrives, since the claim may have been granted. It returns
// nil when nothing remains to be done for it: the session is over, or is about to end with the
// drain, and with it any grant; or the claim was refused, and the run has been ended for that.
func (w *Worker) sendClaim(request *locks.Request, due ledger.Due, before []string, send claim) *ledger.Claimed {
	var claimed *ledger.Claimed
	_ = ledger.Insist(func() (done bool, err error) {
		call, cancel := context.WithTimeout(w.calls, callLimit)
		defer cancel()
		claimed, err = send(call, request, due, w.locks.Extension().ReserveAfter(), before)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, locks.ErrFormat): // the session is about to end
			return true, err
		case ledger.Final(err):
			w.rejectClaim(request, due, err)
			return true, err
		}
		w.often.WarnContext(w.attempts, "no reply to a claim, will retry", "run", due.Run, "error", err)
		return false, err
	}, request.Done(), w.calls.Done())
	return claimed // nil with an error
}

// failed reports whether the hold ended for a reason that makes its attempt a failed one: it
// exceeded its max hold, or was revoked.
func failed(hold *locks.Hold) bool {
	lost := hold.Lost()
	return errors.Is(lost, locks.ErrExpired) || errors.Is(lost, locks.ErrRevoked)
}

// run executes one attempt under its hold, in a slot, and records how it ended. It returns the runs
// that became due by that.
func (w *Worker) run(hold *locks.Hold, claimed *ledger.Claimed, slot *slot) []ledger.Due {
	record := claimed.Record
	number := record.Last().Number
	began := time.Now()
	traced, spans := w.traced(hold.Context(), hold, claimed, began)
	ids := spans.LogAttrs()
	log := w.log.With("job", record.Job, "run", record.ID, "attempt", number, "token", hold.Token(), "worker", hold.Session()).With(ids...)
	log.InfoContext(hold.Context(), "attempt begins", "locks", hold.Names())
	var finish ledger.Finish
	var finished *ledger.Finished
	defer func() { endSpans(spans, finish, finished) }()
	ended := w.o.OnAttempt(claimed)
	defer func() { ended(finished) }()

	ctx, cancel := context.WithCancelCause(traced)
	defer cancel(nil)
	printed := newPrinted(record, claimed.Job.Output.Size())
	own := &stopper{cancel, printed}
	w.running.Store(record.ID, own)
	// From here on no value of a ${...} or of a secret arg must get into Redis or into a log.
	job, secrets, err := w.expand(claimed)
	var executor jobs.Executor
	if err == nil {
		secrets = append(secrets, job.ArgSecrets(argsOf(claimed, job))...)
		executor, err = w.executor(job)
	}
	redactor := jobs.NewRedactor(secrets)
	// The error of a Go handler may wrap any of the errors that mean something here, for example
	// the locks.ErrLost of a lock that it has acquired itself. Such an error is a failure.
	declined := errors.Is(err, jobs.ErrUnknownHandler) || errors.Is(err, jobs.ErrUnknownKeys)
	if err == nil {
		to, closeLog := io.Writer(printed), func() {}
		if w.o.LogOutput {
			logged := newLines(w.log.With("job", record.Job, "run", record.ID, "attempt", number).With(ids...))
			to, closeLog = io.MultiWriter(printed, logged), logged.close
		}
		output := redactor.Writer(to)
		err = w.execute(ctx, executor, hold, claimed, job, redactor, output, spans, log)
		_ = output.Close() // both accept everything
		closeLog()
	}
	abandoned := errors.Is(err, jobs.ErrAbandoned) && w.abandons()
	terminated := errors.Is(err, jobs.ErrTerminated) && context.Cause(ctx) == nil && !errors.Is(err, jobs.ErrTimeout) && w.drainsSoon()
	if terminated {
		err = fmt.Errorf("%w (%w)", jobs.ErrDrain, err)
	}
	reason := ""
	if err != nil {
		reason = redactor.Text(err.Error())
	}
	w.running.CompareAndDelete(record.ID, own)
	w.endOutput(printed)
	slot.worked(time.Since(began))
	finish = ledger.Finish{
		Run: record.ID, Job: claimed.Job, Token: hold.Token(), Hold: hold.ID(), Output: printed.String(), Error: reason,
	}
	switch delay, asked := jobs.RetryDelay(err); {
	case err == nil:
		finish.Outcome = ledger.OutcomeSuccess
	case hold.Lost() != nil && !failed(hold):
		// Another worker may have the run already.
		log.WarnContext(hold.Context(), "attempt lost its locks", "error", reason)
		if abandoned {
			w.abandon(finish, log) // no hand-back: it still runs
			return nil
		}
		_ = hold.Release() // ErrLost again
		w.handBack(hold, claimed)
		return nil
	case errors.Is(context.Cause(ctx), jobs.ErrCanceled):
		finish.Outcome = ledger.OutcomeCanceled
	case declined:
		finish.Outcome, finish.Pause = ledger.OutcomeHandBack, decline
	case len(claimed.Job.Command) > 0 && errors.Is(err, locks.ErrLost) && !failed(hold):
		// The guard killed the command because of a lease that continued after all: this process
		// was starved of time. That is not a failure of the run.
		finish.Outcome = ledger.OutcomeHandBack
	case terminated, errors.Is(context.Cause(w.attempts), jobs.ErrDrain) && !errors.Is(err, jobs.ErrTimeout) && !failed(hold):
		finish.Outcome = ledger.OutcomeHandBack
	case jobs.IsPermanent(err) || record.Fails >= claimed.Job.Retry.Max:
		finish.Outcome = ledger.OutcomeFailure
	default:
		finish.Outcome, finish.Pause = ledger.OutcomeRetry, claimed.Job.Retry.Pause(record.ID, record.Fails+1)
		if asked {
			finish.Pause = delay
		}
	}
	finish.Error = jobs.Cut(finish.Error, jobs.MaxReason)
	if abandoned {
		w.abandon(finish, log)
		return nil
	}
	// From here on Redis may no longer have the hold although it was not revoked.
	w.locks.Extension().Freeing(hold)
	if finish.Outcome == ledger.OutcomeSuccess {
		slot.giveAway()
		finished = w.ends.Finish(w.calls, finish)
	}
	if finished == nil {
		finished = w.sendFinish(finish, hold)
	}
	if finished == nil {
		log.ErrorContext(w.attempts, "the end of an attempt could not be recorded", "outcome", finish.Outcome)
		_ = hold.Release() // release what is left of the hold; the error was just logged
		if hold.Lost() != nil && !failed(hold) {
			w.handBack(hold, claimed)
		}
		return nil
	}
	w.locks.Extension().Released(hold)
	level := slog.LevelInfo
	if finished.State == ledger.StateFailed {
		level = slog.LevelWarn
	}
	log.Log(w.attempts, level, "attempt ended", "outcome", finish.Outcome, "recorded", finished.Verdict,
		"state", finished.State, "took", time.Since(began).Round(time.Millisecond), "error", finish.Error)
	return finished.Due
}

// handBack reports, in the background, an attempt that has lost its lease and of which nothing runs
// here any more: under the next session of this worker, as soon as it has one. The run is then due
// at once, and the ledger knows that this process survived. A sweep closes an attempt that is not
// reported.
func (w *Worker) handBack(hold *locks.Hold, claimed *ledger.Claimed) {
	record := claimed.Record
	lost := ledger.Dead{Run: record.ID, Token: hold.Token(), Job: record.Job, Fails: record.Fails}
	w.attempt.Go(func() {
		pause := ledger.ResendFirst
		for { // not by ledger.Insist: the pause grows only while Redis does not reply
			session, err := w.locks.Extension().Certain()
			if err == nil && session == hold.Session() {
				return // the session lives, and only the hold has ended: the sweep decides
			}
			if err == nil {
				call, cancel := context.WithTimeout(w.calls, callLimit)
				closed, err := w.ledger.LostLease(call, session, lost, claimed.Job)
				cancel()
				switch {
				case err == nil && closed != nil:
					w.log.InfoContext(w.attempts, "a run that had lost its lease was handed back", "job", record.Job, "run", record.ID,
						"token", lost.Token, "state", closed.State)
					w.endElsewhere(record.ID, closed.State)
					w.deliver(w.attempts, closed.Due)
					return
				// a sweep has closed it, or will report why it cannot
				case err == nil, ledger.Final(err):
					return
				}
				w.often.WarnContext(w.attempts, "could not report a lost lease yet, will retry", "run", record.ID, "error", err)
				pause = min(2*pause, ledger.ResendMost)
			}
			if !wait(w.work, pause) {
				return // a drain must not wait until Redis is reachable again
			}
		}
	})
}

// terminationLimit is how long a SIGTERM to all processes of a service may take to reach this
// process after it has killed a command.
const terminationLimit = time.Second

// drainsSoon reports whether the worker drains, or starts to drain within [terminationLimit].
func (w *Worker) drainsSoon() bool {
	return !wait(w.work, terminationLimit)
}

// expand returns the definition of an attempt with its ${...} replaced, unless the definition
// cannot be trusted, or has keys that this build does not know.
func (w *Worker) expand(claimed *ledger.Claimed) (*jobs.Job, []jobs.Secret, error) {
	if claimed.Refused != nil {
		return nil, nil, w.refuse(w.attempts, claimed)
	}
	if err := claimed.Job.CheckKeys(); err != nil {
		w.often.WarnContext(w.attempts, "runs are left to workers of a newer build", "run", claimed.Record.ID, "error", err)
		return nil, nil, err
	}
	return w.o.Expand(claimed.Job)
}

// abandons reports whether the drain has stopped waiting for handlers.
func (w *Worker) abandons() bool {
	select {
	case <-w.leave:
		return true
	default:
		return false
	}
}

// argsOf returns the args of an attempt. job is the definition with its ${...} replaced. The locks
// are those of the record's args: even in the run of a tick they differ from the definition's, if
// the run was retried after its job had changed.
func argsOf(claimed *ledger.Claimed, job *jobs.Job) json.RawMessage {
	if jobs.SameArgs(claimed.Args, claimed.Job.Args) {
		return job.Args
	}
	return claimed.Args
}

// executor returns what does the work of a job. The error is [jobs.ErrUnknownHandler] if this
// worker cannot do it.
func (w *Worker) executor(job *jobs.Job) (jobs.Executor, error) {
	if kind := job.Kind(); kind != nil {
		if executor := w.executorOf(kind.Name, kind.Need(job)); executor != nil {
			return executor, nil
		}
	}
	return nil, fmt.Errorf("job %s: %w", job.Name, jobs.ErrUnknownHandler)
}

// execute hands the attempt to its executor. job is the definition with its ${...} replaced.
func (w *Worker) execute(ctx context.Context, executor jobs.Executor, hold *locks.Hold, claimed *ledger.Claimed, job *jobs.Job, redactor *jobs.Redactor, output io.Writer, spans *trace.Attempt, log *slog.Logger) (err error) {
	record, began := claimed.Record, time.Now()
	if job.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, job.Timeout, jobs.ErrTimeout)
		defer cancel()
	}
	if ctx.Err() != nil { // a drain no longer waits for a handler that starts now
		return context.Cause(ctx)
	}
	allowed := w.locks.Cutoff()
	if !job.Kind().InProcess {
		allowed += endingLimit
	}
	defer w.stuck.watch(ctx, record, began, allowed, log)()
	tick := record.Tick
	if again, is := record.ID.Replays(); is {
		tick = again
	}
	ctx, span := spans.Execute(ctx, work(job))
	defer func() { endWork(span, job, redactor, err) }()
	passed, note := trace.Of(ctx), span.Note
	if span == nil {
		note = nil
	}
	return executor.Execute(ctx, &jobs.Attempt{
		Job: job, Run: record.ID, Number: record.Last().Number, Tick: tick, Args: argsOf(claimed, job),
		Token: hold.Token(), Hold: hold.ID(), Locks: hold.Names(), Worker: string(hold.Session()),
		TraceParent: passed.Parent, TraceState: passed.State, Note: note, Output: output, Redactor: redactor, KillBy: hold.KillBy,
		Abandon: w.leave,
	})
}

// sendFinish sends a finish until a reply arrives. If the finish counts only while its hold is
// valid, sendFinish stops when the hold has ended.
func (w *Worker) sendFinish(finish ledger.Finish, hold *locks.Hold) *ledger.Finished {
	// A success counts even when the lease has expired in the meantime, as long as no other attempt
	// has begun. patience is how long to wait for an unreachable Redis; the slot is kept.
	const patience = 10 * time.Minute
	deadline := time.Now().Add(patience)
	drained := w.attempts.Done()
	for pause := ledger.ResendFirst; ; pause = min(2*pause, ledger.ResendMost) {
		// Not under the attempts' context: it has ended when the worker hands its runs back.
		call, cancel := context.WithTimeout(context.WithoutCancel(w.attempts), min(callLimit, max(time.Until(deadline), ledger.ResendFirst)))
		finished, err := w.ledger.Finish(call, finish)
		cancel()
		switch {
		case err == nil:
			return finished
		case errors.Is(err, locks.ErrFormat):
			w.log.ErrorContext(w.attempts, "the end of an attempt is refused", "run", finish.Run, "error", err)
			return nil
		case ledger.Final(err):
			return w.rejectFinish(finish, err)
		}
		if finish.Outcome != ledger.OutcomeSuccess && hold.Lost() != nil && !failed(hold) || time.Now().After(deadline) {
			return nil
		}
		w.often.WarnContext(w.attempts, "could not record the end of an attempt yet, will retry", "run", finish.Run, "error", err)
		timer := time.NewTimer(pause)
		select {
		case <-drained: // an operator who ends a worker does not wait for ten minutes
			drained, deadline = nil, time.Now().Add(w.locks.Lease())
			<-timer.C
		case <-w.o.Abort:
			if pause == ledger.ResendMost { // it was tried for a while, and an operator waits
				timer.Stop()
				return nil
			}
			<-timer.C
		case <-timer.C:
		}
	}
}
