package locks

import (
	"context"
	"fmt"

	"lockstep/locks/space"
)

// EndSession ends a session from outside the process that opened it. That process, and everything
// that it started, must be dead: the session's holds pass on at once, or after their [CrashDelay],
// since a death counts as a crash. A caller that knows of the death for certain, such as a parent
// process, saves others the wait for the lease. The call is repeated until it gets a reply or ctx
// ends. A session that has ended, or never existed, is not an error. One that was being closed in
// order keeps that status.
//
// The ID stays refused: a request or renewal of that session that arrives later changes nothing. At
// the end, the session at the desk is notified as after an offer ([ExtensionOptions].OnOffer),
// because the packages above may have records of what ended. If the desk has ended too, all live
// sessions are notified.
func (s *Space) EndSession(ctx context.Context, id SessionID) error {
	if err := s.insist(ctx, func(ctx context.Context) (bool, error) {
		r, err := space.Run(ctx, s.rdb, space.Close, s.keys, string(id), "crashed")
		// without an error, there is more of it than one call ends
		return r.At(0) == "ended" || err != nil && space.Over(err), err
	}); err != nil {
		return fmt.Errorf("end session %s: %w", id, err)
	}
	if err := s.insist(ctx, func(ctx context.Context) (bool, error) {
		_, err := space.Run(ctx, s.rdb, space.Notify, s.keys)
		return space.Over(err), err
	}); err != nil {
		return fmt.Errorf("session %s has ended, but notifying the desk failed: %w", id, err)
	}
	return nil
}

// insist makes a call, with a deadline for each attempt, until it is done or ctx ends: see
// [space.Insist].
func (s *Space) insist(ctx context.Context, call func(context.Context) (done bool, err error)) error {
	return space.Insist(space.Backoff{}, func() (done bool, err error) {
		try, cancel := context.WithTimeout(ctx, minTry)
		defer cancel()
		return call(try)
	}, ctx.Done())
}
