package ledger

import (
	"context"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/trace"
)

// TraceEnd sends the span of a run that the caller has ended without an attempt, and, if token is
// not 0, that of its attempt with this token, if the attempt has crashed. It reads the record of
// the run, which is cheap enough for rare events, and only if the tracer makes spans. It is best
// effort: a missing span is no reason for an error.
func (l *Ledger) TraceEnd(ctx context.Context, t *trace.Tracer, id jobs.RunID, token locks.Token) {
	if !t.On() {
		return
	}
	record, err := l.FindRecord(ctx, id)
	if err != nil {
		return
	}
	run := record.Traced()
	for _, a := range record.Attempts {
		if token != 0 && a.Token == token && a.Outcome == AttemptCrashed {
			t.Crashed(ctx, run, trace.Try{Number: a.Number, Worker: string(a.Worker), Token: a.Token.String(), Claimed: a.Started},
				a.Outcome, a.Error, a.Finished)
		}
	}
	if record.State.Final() {
		reason := record.Reason
		if last := record.Last(); reason == "" && last != nil {
			reason = last.Error
		}
		t.Ended(ctx, run, trace.End{State: string(record.State), Reason: reason, At: record.Finished})
	}
}

// Made returns the runs that a decision has made of its ticks, as the spans of them need them.
func (c *Created) Made(d *Decision) []trace.Run {
	if c.Err != nil || c.ended == nil { // nothing was recorded
		return nil
	}
	var made []trace.Run
	for _, tick := range d.Ticks {
		id, _ := tick.line(d.Job.Name)
		if _, ended := c.ended[id]; ended || tick.Verdict != VerdictRun && tick.Verdict != VerdictCatchUp {
			continue
		}
		record := Record{ID: id, Job: d.Job.Name, Queue: d.Job.Queue, Trigger: TriggerSchedule, Tick: tick.At, By: d.By}
		made = append(made, record.Traced())
	}
	return made
}
