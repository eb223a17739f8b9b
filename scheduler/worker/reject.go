package worker

import (
	"context"
	"fmt"
	"time"

	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// reject ends a run after a permanent error: Redis, or the state of the run's record, refused a
// call for it with an error that is [ledger.Final], and would do so again. what names the call.
// reject returns false when the end could not be recorded; then the run is put off until a sweep
// delivers it again.
func (w *Worker) reject(what string, refusal ledger.Refusal) bool {
	w.o.OnRejected(what)
	w.often.WarnContext(w.calls, "Redis refuses a call for a run, which ends as failed", "call", what, "run", refusal.Run,
		"error", refusal.Cause)
	const tries = 3
	for try := 1; ; try++ {
		call, cancel := context.WithTimeout(w.calls, callLimit)
		outcome, due, err := w.ledger.Refuse(call, refusal)
		cancel()
		if err == nil {
			w.often.InfoContext(w.calls, "a refused run was ended", "call", what, "run", refusal.Run, "outcome", outcome)
			w.deliver(w.calls, due)
			return true
		}
		if ledger.Final(err) || try == tries || !wait(w.calls, ledger.ResendMost) {
			w.often.ErrorContext(w.calls, "a refused run could not be ended, it stays unchanged", "call", what, "run", refusal.Run,
				"error", err)
			return false
		}
	}
}

// rejectClaim is reject for a claim.
func (w *Worker) rejectClaim(request *locks.Request, due ledger.Due, cause error) {
	w.reject("claim", ledger.Refusal{Run: due.Run, Queue: due.Queue, N: due.N, Hold: request.ID(),
		Cause: fmt.Errorf("it could not be started: %w", cause)})
}

// rejectFinish is reject for the end of an attempt. It returns the reply to its finish, or nil
// without one.
func (w *Worker) rejectFinish(finish ledger.Finish, cause error) *ledger.Finished {
	text := fmt.Errorf("its attempt ended (%s), which could not be recorded: %w", finish.Outcome, cause)
	if finish.Error != "" {
		text = fmt.Errorf("%w; the error of the attempt: %s", text, finish.Error)
	}
	if !w.reject("finish", ledger.Refusal{Run: finish.Run, Hold: finish.Hold, Cause: text}) {
		return nil
	}
	return &ledger.Finished{Verdict: ledger.FinishRefused, State: ledger.StateFailed}
}

// wait waits for d. It returns false when ctx ends earlier.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
