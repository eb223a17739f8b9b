package admin

import (
	"context"
	"fmt"
	"slices"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// Output returns the end of the output of one attempt at a run. Attempt 0 is the last one that has
// printed something; without one, the output is empty. For any other attempt without an output, the
// error is that of [NoOutput], and a [ledger.ErrUnknown].
func (r *Reader) Output(ctx context.Context, id jobs.RunID, attempt int) (ledger.Output, error) {
	if attempt < 0 {
		return ledger.Output{}, fmt.Errorf("%w: attempt %d: attempts count from 1", ErrInvalid, attempt)
	}
	record, output, err := r.book.FindOutput(ctx, id, attempt)
	if err == nil && attempt > 0 && output.Attempt == 0 {
		err = NoOutput(record, attempt)
	}
	return output, err
}

// NoOutput returns the error for an attempt that has no output, which says why.
func NoOutput(record *ledger.Record, attempt int) error {
	because := "it printed nothing, or those of later attempts have taken its place: a run keeps its last 8, up to 1MiB"
	at := slices.IndexFunc(record.Attempts, func(a ledger.AttemptRecord) bool { return a.Number == attempt })
	switch last := record.Last(); {
	case last == nil:
		because = "the run has not started"
	case attempt > last.Number:
		because = fmt.Sprintf("the last one is attempt %d", last.Number)
	case at >= 0 && record.Attempts[at].Finished.IsZero():
		because = "it is running, and its output is stored when it ends"
	case at >= 0 && record.Attempts[at].Outcome == ledger.AttemptCrashed:
		because = "its worker died before it ended"
	case at >= 0 && record.Attempts[at].Outcome == ledger.AttemptLostLease:
		because = "its worker lost its lease before it ended"
	}
	return unknownError(fmt.Sprintf("attempt %d of run %s has no output: %s", attempt, record.ID, because))
}
