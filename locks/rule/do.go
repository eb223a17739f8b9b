package rule

import (
	"context"
	"errors"
	"fmt"

	"lockstep/locks"
)

// Do runs work under the locks that the rule names for args, and releases them when work has ended,
// even by a panic. work gets the context of the hold, which ends with a cause while the lock is
// still held, and the hold itself for its token.
//
// The error is work's own, or says why work was not called, as from [locks.Client.Acquire] and
// [Rule.Items]: a [*locks.BusyError] if the locks could not be acquired in time. It is also
// [locks.ErrLost], whatever work returned, if the hold had ended before work did: the last part of
// the work may have overlapped with another holder's.
//
// Do is re-entrant: work that calls Do with its context asks only for resources that it does not
// have yet.
func Do[A any](ctx context.Context, c *locks.Client, rule *Rule[A], args A, work func(ctx context.Context, hold *locks.Hold) error) (err error) {
	parts, err := rule.parts(args)
	if err != nil {
		return fmt.Errorf("acquire: %w", err)
	}
	hold, err := c.Acquire(ctx, parts...)
	if err != nil {
		if rule.skip && errors.Is(err, locks.ErrBusy) && ctx.Err() == nil {
			return nil
		}
		return err
	}
	defer func() {
		released := hold.Release()
		switch {
		case released == nil || errors.Is(err, locks.ErrLost):
		case err == nil:
			err = released
		default:
			err = fmt.Errorf("%w; %w", err, released)
		}
	}()
	return work(hold.Context(), hold)
}

// Wrap returns a function that does work under the locks that the rule names for its arguments, as
// [Do] does. So the lock is declared once, beside the work, instead of being taken by each caller.
// In work, [locks.FromContext] returns the hold.
func Wrap[A any](c *locks.Client, rule *Rule[A], work func(ctx context.Context, args A) error) func(ctx context.Context, args A) error {
	return func(ctx context.Context, args A) error {
		return Do(ctx, c, rule, args, func(ctx context.Context, _ *locks.Hold) error { return work(ctx, args) })
	}
}
