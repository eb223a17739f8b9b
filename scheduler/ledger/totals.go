package ledger

import (
	"context"
	"fmt"
	"strings"
	"time"

	"lockstep/locks"
	"lockstep/locks/space"
)

// Ended is what a [Total] counts the ends of.
type Ended string

const (
	// EndedRun is a run that became final. A run that was reopened ends again.
	EndedRun Ended = "run"
	// EndedTick is a tick that has its outcome: that of its run, or one without a run. Each tick of
	// a line for many counts.
	EndedTick Ended = "tick"
	// EndedAttempt is an attempt that was closed.
	EndedAttempt Ended = "attempt"
)

// Total names one of the [Totals].
type Total struct {
	Of      Ended
	Job     string
	Outcome string  // a final [State], or the outcome of an attempt
	Trigger Trigger // only of runs
}

// Totals are how many ends there were of each kind. See "Totals" in the package's doc.
type Totals struct {
	// Since is when the counts began, of which Redis has lost nothing since then but, after a
	// failover, its last moments. Zero: no worker has noted it yet.
	Since  time.Time
	Counts map[Total]int64
}

// lateSuccess is the outcome in a field of the success of a run whose attempt was counted with
// another outcome before.
const lateSuccess = "late"

// Totals reads all totals, in pages: each count is exact, but they are of slightly different times.
// A count that was read before is never higher than when it is read again.
func (l *Ledger) Totals(ctx context.Context) (*Totals, error) {
	fields, err := l.scan(ctx, "totals")
	if err != nil {
		return nil, fmt.Errorf("read totals: %w", l.space.Explain(err))
	}
	totals := &Totals{Counts: make(map[Total]int64)}
	for field, value := range fields {
		r := space.Read([]any{value}, nil)
		n := r.Number()
		if r.Err != nil {
			continue // another program's: it must not hide the others
		}
		parts := strings.Split(field, "\x1f")
		switch {
		case field == "since":
			totals.Since = millis(n)
		case parts[0] == "r" && len(parts) == 4:
			totals.addRuns(parts[3], parts[1], Trigger(parts[2]), n)
		case parts[0] == "t" && len(parts) == 3:
			totals.Counts[Total{Of: EndedTick, Job: parts[2], Outcome: parts[1]}] += n
		case parts[0] == "a" && len(parts) == 3:
			totals.Counts[Total{Of: EndedAttempt, Job: parts[2], Outcome: parts[1]}] += n
		}
	}
	return totals, nil
}

// addRuns adds ends of runs, which are also those of their ticks and of attempts that succeeded.
// Nothing is ever subtracted here, so no count falls, although its parts are read at different
// times.
func (t *Totals) addRuns(job, outcome string, trigger Trigger, n int64) {
	switch outcome {
	case string(StateSucceeded):
		t.Counts[Total{Of: EndedAttempt, Job: job, Outcome: outcome}] += n
	case lateSuccess:
		outcome = string(StateSucceeded)
	}
	t.Counts[Total{EndedRun, job, outcome, trigger}] += n
	if trigger == TriggerSchedule {
		t.Counts[Total{Of: EndedTick, Job: job, Outcome: outcome}] += n
	}
}

// totalFields returns the fields that a job may have in the key totals, without the job.
func totalFields() (fields []string) {
	for _, facts := range states {
		if !facts.Final {
			continue
		}
		for _, trigger := range []Trigger{TriggerSchedule, TriggerEnqueue, TriggerHand} {
			fields = append(fields, "r\x1f"+string(facts.State)+"\x1f"+string(trigger))
		}
		fields = append(fields, "t\x1f"+string(facts.State))
	}
	for _, trigger := range []Trigger{TriggerSchedule, TriggerEnqueue, TriggerHand} {
		fields = append(fields, "r\x1f"+lateSuccess+"\x1f"+string(trigger))
	}
	for _, outcome := range AttemptOutcomes() {
		fields = append(fields, "a\x1f"+outcome)
	}
	return fields
}

// Duty returns the session on duty, or "" if none is.
func (l *Ledger) Duty(ctx context.Context) (locks.SessionID, error) {
	fields, err := l.rdb.HMGet(ctx, l.prefix+"ledger", "duty").Result()
	if err != nil {
		return "", fmt.Errorf("read which worker has duty: %w", l.space.Explain(err))
	}
	duty, _ := fields[0].(string) // nil: none
	return locks.SessionID(duty), nil
}

// CountAllOpen returns how many runs are outstanding.
func (l *Ledger) CountAllOpen(ctx context.Context) (int, error) {
	n, err := l.rdb.ZCard(ctx, l.prefix+"open").Result()
	if err != nil {
		return 0, fmt.Errorf("count outstanding runs: %w", l.space.Explain(err))
	}
	return int(n), nil
}
