package scheduler

import (
	"fmt"
	"math"
	"slices"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/cronspec"
	"lockstep/scheduler/ledger"
)

const (
	catchUpMost = 100   // missed ticks that `on_missed: all` runs
	missedLines = 1_000 // missed ticks with a line of their own; older ones share one
	// How many ticks of an absence are counted one by one, and after how many of several absences a
	// step ends. They take some 10 ms.
	countMost = 20_000
)

// Trigger returns the schedule of a job, or nil for a job that has none.
func Trigger(job *jobs.Job) (*cronspec.Schedule, error) {
	if !job.Scheduled() {
		return nil, nil
	}
	if job.Every > 0 {
		return cronspec.Every(job.Every)
	}
	zone, err := cronspec.LoadZone(job.Timezone)
	if err != nil {
		return nil, err
	}
	return cronspec.Parse(job.Schedule, zone)
}

// leave reports whether to leave these ticks, which this worker cannot decide, to another worker
// that may still decide them: until the oldest has been due for [jobs.MissedAfter]. Without ticks
// it returns false.
func leave(decisions []ledger.Decision, now time.Time) bool {
	return len(decisions) > 0 && now.Sub(decisions[0].Ticks[0].At) <= jobs.MissedAfter
}

// missAll records the ticks of all decisions as missed, for this reason.
func missAll(decisions []ledger.Decision, reason error) {
	for _, decision := range decisions {
		for i := range decision.Ticks {
			decision.Ticks[i].Verdict, decision.Ticks[i].Reason = ledger.VerdictMissed, reason.Error()
		}
	}
}

// spread returns how long after a tick its run becomes due.
func spread(job *jobs.Job, next func(time.Time) time.Time, tick time.Time) time.Duration {
	if job.Jitter <= 0 {
		return 0
	}
	gap := time.Duration(math.MaxInt64)
	if after := next(tick); !after.IsZero() {
		gap = after.Sub(tick) // may be shorter than any gap that was checked: clocks change
	}
	return job.Spread(tick, gap)
}

// decide accounts for every tick of a job after its cursor and not after now. It returns the
// records to write, oldest first, in as many decisions as the ledger's bound requires; each
// continues from the one before. Without due ticks it returns none.
//
// A tick more than [jobs.MissedAfter] late was missed, and the job's policy selects the missed
// ticks that run all the same. Of very many missed ticks only the newest get a line each; the older
// ones share one that names the first and the last.
func decide(job *jobs.Job, next func(time.Time) time.Time, cursor, now time.Time, by locks.SessionID) []ledger.Decision {
	var (
		ticks         []ledger.Tick
		missed        []time.Time // a ring of the newest once it is full
		dropped       int         // older ones, from oldest to newestDropped
		oldest, newer time.Time
	)
	for tick := next(cursor); !tick.IsZero() && !tick.After(now); tick = next(tick) {
		if now.Sub(tick) <= jobs.MissedAfter {
			ticks = append(ticks, ledger.Tick{At: tick, After: spread(job, next, tick), Verdict: ledger.VerdictRun})
			continue
		}
		if len(missed) < missedLines {
			missed = append(missed, tick)
			continue
		}
		slot := &missed[dropped%missedLines] // the oldest of those kept
		if dropped == 0 {
			oldest = *slot
		}
		newer, *slot = *slot, tick
		dropped++
	}
	var lines []ledger.Tick
	if dropped > 0 {
		reason := fmt.Sprintf("no worker was up for %d ticks", dropped)
		lines = append(lines, ledger.Tick{At: oldest, Upto: newer, Count: dropped, Verdict: ledger.VerdictMissed, Reason: reason})
	}
	run := map[jobs.OnMissed]int{jobs.MissedLast: 1, jobs.MissedAll: catchUpMost}[job.OnMissed]
	for i := range missed {
		line := ledger.Tick{At: missed[(dropped+i)%len(missed)], Verdict: ledger.VerdictCatchUp}
		if i < len(missed)-run {
			line.Verdict, line.Reason = ledger.VerdictMissed, fmt.Sprintf("no worker was up (on_missed: %s)", job.OnMissed)
		}
		lines = append(lines, line)
	}
	ticks = append(lines, ticks...)

	var decisions []ledger.Decision
	for some := range slices.Chunk(ticks, ledger.MaxTicks) {
		last := some[len(some)-1]
		upto := last.At
		if !last.Upto.IsZero() {
			upto = last.Upto
		}
		decisions = append(decisions, ledger.Decision{Job: job, Seen: cursor, Cursor: upto, Ticks: some, By: by})
		cursor = upto
	}
	return decisions
}

// absent returns the line for the ticks of an absence, by the trigger that the job had, or nil if
// there are none; and how many were counted for it.
//
// If this build cannot compute the trigger (wrong), for example because it no longer knows the time
// zone, the line covers the whole time, without a number. Another worker might know better, but
// none may ever come, and the time must not stay without a line.
func absent(absence *ledger.Absence, trigger *cronspec.Schedule, wrong error) (line *ledger.Tick, counted int) {
	reason := "no worker carried it"
	switch {
	case wrong != nil:
		first, last := absence.From.Truncate(time.Second).Add(time.Second), absence.Upto.Truncate(time.Second)
		if first.After(last) {
			return nil, 0
		}
		return rangeOf(first, last, 0, fmt.Sprintf("%s; its ticks cannot be computed: %v", reason, wrong)), 0
	case trigger == nil:
		return nil, 0
	}
	span := trigger.Between(absence.From, absence.Upto, countMost)
	if counted = span.Ticks; absence.Old.Every > 0 {
		counted = 0 // the number for an interval is a division
	}
	switch {
	case span.Ticks == 0:
		return nil, 0
	case span.Ticks == 1:
	case span.More:
		reason += fmt.Sprintf(" for more than %d ticks", span.Ticks)
	default:
		reason += fmt.Sprintf(" for %d ticks", span.Ticks)
	}
	return rangeOf(span.First, span.Last, span.Ticks, reason), counted
}

// rangeOf returns a line for missed ticks from one to another, or for a single one. count: how many
// they are, or 0.
func rangeOf(first, last time.Time, count int, reason string) *ledger.Tick {
	line := &ledger.Tick{At: first, Count: count, Verdict: ledger.VerdictMissed, Reason: reason}
	if last.After(first) {
		line.Upto = last
	}
	return line
}
