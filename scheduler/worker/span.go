package worker

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"path/filepath"
	"strconv"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/trace"
)

// traced begins the spans of an attempt that has begun at this instant. The ctx that it returns has
// them, or what the requester of the run gave.
func (w *Worker) traced(ctx context.Context, hold *locks.Hold, claimed *ledger.Claimed, began time.Time) (context.Context, *trace.Attempt) {
	record, last := claimed.Record, claimed.Record.Last()
	try := trace.Try{Number: last.Number, Worker: string(last.Worker), Token: last.Token.String(), Began: began, Claimed: last.Started}
	if w.o.Tracer.On() {
		try.Locks, try.ArgsBytes = hold.Names(), len(claimed.Args)
		// The record has the first wait of the run. Before a later attempt than the second, that
		// may have been the wait of an earlier one.
		if last.Number == 1 || last.Number == 2 && record.Waited.After(record.Started) {
			try.Waited = record.Waited
		}
		if record.Blocker != nil {
			try.Blocker = record.Blocker.Resource
		}
	}
	return w.o.Tracer.Begin(ctx, record.Traced(), try)
}

// endSpans ends the spans of an attempt. finish has no outcome if the attempt lost its lease, and
// finished is nil if its end was not recorded.
func endSpans(spans *trace.Attempt, finish ledger.Finish, finished *ledger.Finished) {
	outcome, failed := "", false
	switch finish.Outcome {
	case ledger.OutcomeSuccess:
		outcome = string(ledger.StateSucceeded)
	case ledger.OutcomeCanceled:
		outcome = string(ledger.StateCanceled)
	case ledger.OutcomeHandBack, ledger.OutcomeLeft:
		outcome = ledger.AttemptHandedBack
	case ledger.OutcomeFailure, ledger.OutcomeRetry:
		outcome, failed = string(ledger.StateFailed), true
	default:
		outcome, failed = ledger.AttemptLostLease, true
	}
	var end *trace.End
	if finished != nil && finished.Verdict == ledger.FinishRecorded && finished.State.Final() {
		end = &trace.End{State: string(finished.State), Reason: finish.Error, At: time.Now()}
	}
	spans.End(outcome, finish.Error, failed, end)
}

// work describes, for a span, what a definition with its ${...} replaced does, without args, words
// of commands, and paths of URLs.
func work(job *jobs.Job) trace.Work {
	described := trace.Work{Kind: job.Kind().Name, Handler: job.Handler}
	if len(job.Command) > 0 {
		described.Program = filepath.Base(job.Command[0])
	}
	if job.HTTP != nil {
		described.Method = cmp.Or(job.HTTP.Method, "POST")
		if target, err := url.Parse(job.HTTP.URL); err == nil {
			described.Host = target.Hostname()
			described.Port, _ = strconv.Atoi(target.Port()) // 0 for the port of the scheme
		}
	}
	return described
}

// endWork ends the span of the work.
func endWork(span *trace.Execution, job *jobs.Job, redactor *jobs.Redactor, err error) {
	if span == nil {
		return
	}
	if len(job.Command) > 0 {
		if exited, ok := errors.AsType[interface {
			error
			ExitCode() int
		}](err); ok {
			span.Note("process.exit.code", exited.ExitCode())
		} else if err == nil {
			span.Note("process.exit.code", 0)
		}
	}
	reason := ""
	if err != nil {
		reason = jobs.Cut(redactor.Text(err.Error()), jobs.MaxReason)
	}
	span.End(err, reason)
}

// endElsewhere sends the span of a run that a report of a lost lease has ended.
func (w *Worker) endElsewhere(run jobs.RunID, state ledger.State) {
	if !state.Final() || !w.o.Tracer.On() {
		return
	}
	call, cancel := context.WithTimeout(w.calls, callLimit)
	defer cancel()
	w.ledger.TraceEnd(call, w.o.Tracer, run, 0)
}
