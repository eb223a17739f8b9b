package ledger

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
)

// Absence is a time in which no worker carried a job. Its ticks have no line in the history yet.
// The ledger knows no cron, so it keeps the absence, and each registration of the job returns it,
// until [Ledger.Settle] writes the line or [Ledger.Forget] removes the job.
type Absence struct {
	Job string
	// Its ticks are after From, the last cursor before, and not after Upto, the first one after it.
	// Both are zero if the entry in Redis cannot be read.
	From, Upto time.Time
	// Old has the trigger that the job had, and nothing else: Schedule and Timezone, or Every.
	Old *jobs.Job

	entry string // as it is stored
}

// readAbsence reads what register.lua writes. No registration fails because of an entry that
// another program wrote: that is an absence without ticks.
func readAbsence(job, entry string) *Absence {
	a := &Absence{Job: job, Old: new(jobs.Job), entry: entry}
	parts := strings.SplitN(entry, "\x1e", 3)
	if len(parts) < 3 {
		return a
	}
	from, wrongFrom := strconv.ParseInt(parts[0], 10, 64)
	upto, wrongUpto := strconv.ParseInt(parts[1], 10, 64)
	if wrongFrom == nil && wrongUpto == nil {
		a.From, a.Upto, a.Old = millis(from), millis(upto), readTrigger(parts[2])
	}
	return a
}

// readTrigger returns a job with the trigger that [trigger] has written, and nothing else.
func readTrigger(text string) *jobs.Job {
	if interval, is := strings.CutPrefix(text, "every "); is {
		if every, err := time.ParseDuration(interval); err == nil {
			return &jobs.Job{Every: every}
		}
	}
	zone := strings.LastIndexByte(text, ' ') + 1
	return &jobs.Job{Schedule: text[:max(0, zone-1)], Timezone: text[zone:]}
}

// Settlement is what [Ledger.Settle] records about an absence.
type Settlement struct {
	Absence *Absence
	Line    *Tick // its ticks: one, or a range; nil: it has none, and gets no line
	By      locks.SessionID
}

// Settled is the reply to a [Settlement].
type Settled struct {
	Written bool  // this call has written the line
	Err     error // only this absence is not settled; it may be sent again
}

// Settle writes the lines for the ticks of absences into the histories of the jobs, and forgets the
// absences: each in one step. An absence that another worker has settled, or that was forgotten
// with its job, gets no line: so it has one line at most, also when this is sent again.
func (l *Ledger) Settle(ctx context.Context, settlements []Settlement) []Settled {
	steps := make([]step, len(settlements))
	for i, s := range settlements {
		job := s.Absence.Job
		args := []any{job, "", 0, "", string(StateMissed), "", string(s.By), s.Absence.entry, 1}
		if s.Line != nil {
			id, upto := s.Line.line(job)
			args[1], args[2], args[3], args[5], args[8] = string(id), s.Line.At.UnixMilli(), upto, plain(s.Line.Reason), s.Line.count()
		}
		steps[i] = step{job, args}
	}
	settled := make([]Settled, len(settlements))
	for i, call := range l.runAll(ctx, "line", steps) {
		r := call.Read()
		outcome := r.Text()
		if r.Err == nil && outcome != "ok" && outcome != "settled" {
			r.Err = r.Unknown(outcome)
		}
		if r.Err != nil {
			settled[i].Err = fmt.Errorf("write a line for the ticks that %s has missed: %w", steps[i].job, r.Err)
			continue
		}
		settled[i].Written = outcome == "ok" && settlements[i].Line != nil
	}
	return settled
}
