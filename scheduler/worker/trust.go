package worker

import (
	"context"
	"errors"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// refuse is what becomes of a run whose definition cannot be trusted: nothing of it is expanded or executed, and the run
// has failed for good.
func (w *Worker) refuse(ctx context.Context, claimed *ledger.Claimed) error {
	kind, message := "wrong", "a run is refused: the signature of its definition is wrong"
	var untrusted *jobs.SignatureError
	if errors.As(claimed.Refused, &untrusted) && untrusted.Missing {
		kind, message = untrusted.Kind(), "a run is refused: its definition is not signed"
	}
	w.refused.Add(1)
	if w.o.OnRefused != nil {
		w.o.OnRefused(kind)
	}
	w.often.ErrorContext(ctx, message, "run", claimed.Record.ID, "error", claimed.Refused)
	return jobs.Permanent(claimed.Refused)
}
