package worker

import (
	"context"
	"errors"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// refuse fails a run permanently because its definition cannot be trusted. Nothing of it is
// expanded or executed.
func (w *Worker) refuse(ctx context.Context, claimed *ledger.Claimed) error {
	kind := "wrong"
	if untrusted, ok := errors.AsType[*jobs.SignatureError](claimed.Refused); ok {
		kind = untrusted.Kind()
	}
	w.refused.Add(1)
	if w.o.OnRefused != nil {
		w.o.OnRefused(kind)
	}
	w.often.ErrorContext(ctx, "a run is refused: its definition is not signed with a key that is configured here",
		"signature", kind, "run", claimed.Record.ID, "error", claimed.Refused)
	return jobs.Permanent(claimed.Refused)
}
