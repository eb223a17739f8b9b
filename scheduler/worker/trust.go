package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// refusals counts the runs that this worker did not work at because their definition could not be trusted. The zero value
// is ready.
type refusals struct {
	mu   sync.Mutex
	all  int
	kind map[string]*refused // by the kind of the fault
}

// refused is what the log knows of one kind.
type refused struct {
	untold int       // since the last line
	last   time.Time // of that line
}

// tellAgain is how long refusals of one kind are only counted after a line about them.
const tellAgain = time.Minute

// add counts a refusal. It returns how many a line is due about; 0: none yet.
func (r *refusals) add(kind string, now time.Time) (tell int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kind == nil {
		r.kind = make(map[string]*refused)
	}
	k := r.kind[kind]
	if k == nil {
		k = new(refused)
		r.kind[kind] = k
	}
	r.all++
	k.untold++
	if !k.last.IsZero() && now.Sub(k.last) < tellAgain {
		return 0
	}
	tell, k.untold, k.last = k.untold, 0, now
	return tell
}

func (r *refusals) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all
}

// refuse is what becomes of a run whose definition cannot be trusted: nothing of it is expanded or executed, and the run
// has failed for good.
func (w *Worker) refuse(ctx context.Context, claimed *ledger.Claimed) error {
	kind := "wrong"
	var wrong *jobs.SignatureError
	if errors.As(claimed.Refused, &wrong) {
		kind = wrong.Kind()
	}
	if w.o.OnRefused != nil {
		w.o.OnRefused(kind)
	}
	if n := w.refused.add(kind, time.Now()); n > 0 {
		w.log.ErrorContext(ctx, "runs are refused: their definitions cannot be trusted", slog.Int("runs", n), slog.String("signature", kind),
			slog.String("last_run", string(claimed.Record.ID)), slog.Any("error", claimed.Refused))
		w.show(ctx)
	}
	return jobs.Permanent(claimed.Refused)
}
