package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
)

// Final reports whether an error of the ledger is a permanent reply to a call, so that sending it
// again is useless: Redis refused the call (see [space.Refused]), or the record that it is about
// cannot be read.
func Final(err error) bool { return space.Refused(err) || errors.Is(err, ErrUnreadable) }

// A Refusal names a run that cannot be processed.
type Refusal struct {
	Run   jobs.RunID
	Queue string       // of its delivery; "" where that is not known
	N     int64        // of the delivery of the refused claim; 0 for none
	Hold  locks.HoldID // of that claim, or of the attempt; "" for none
	Token locks.Token  // of the attempt, where its hold is not known; 0 for none
	Cause error
}

// RefusalOutcome is how [Ledger.Refuse] ended a run.
type RefusalOutcome string

const (
	RefusalEnded RefusalOutcome = "ended" // it has failed, with the cause as its reason
	// it has failed and stays outstanding, since its job's history cannot be written
	RefusalParked RefusalOutcome = "parked"
	// the refusal does not match the run, or no longer; nothing changed
	RefusalNone RefusalOutcome = "no"
)

// Refuse permanently ends a run after a call for it had an error that is [Final]: it fails with
// that as its reason, and its locks are free. Where the history of its job cannot be written, the
// run is parked: it shows as failed among the outstanding runs until the history can be written
// again, or until it is canceled. Sent again it changes nothing more.
func (l *Ledger) Refuse(ctx context.Context, refusal Refusal) (RefusalOutcome, []Due, error) {
	reason := jobs.Cut(plain(refusal.Cause.Error()), jobs.MaxReason)
	quoted, err := json.Marshal(reason)
	if err != nil {
		return "", nil, fmt.Errorf("refuse %s: %w", refusal.Run, err)
	}
	n, hold := "", string(refusal.Hold)
	if refusal.N != 0 {
		n = fmt.Sprint(refusal.N)
	}
	if hold == "" && refusal.Token != 0 {
		hold = refusal.Token.String()
	}
	r := space.Read(l.run(ctx, "refuse", refusal.Run.Job(), string(refusal.Run), n, hold, reason, quoted, tickOf(refusal.Run),
		refusal.Queue))
	refused := RefusalOutcome(r.Text())
	r.Text()
	due := dueOf(r)
	if r.Err != nil {
		return "", nil, fmt.Errorf("refuse %s: %w", refusal.Run, r.Err)
	}
	if refused != RefusalNone {
		l.memory.refused(refusal.Run)
	}
	return refused, due, nil
}
