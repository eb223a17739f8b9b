package locks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
)

// Do does work under the locks that the rule names for args, and gives them back when it has ended, also by a panic. work
// gets the context of the hold, which ends with a cause while the lock is still ours, and the hold itself for its token.
//
// The error is work's own; or why it was not called, as [Client.Acquire] and [Rule.Items] say it: a [*BusyError] when the
// locks were not to be had in time. It is [ErrLost] as well, whatever work returned, when the hold had ended before work
// did: what was done last may have been done beside somebody else.
//
// It is re-entrant: work that calls Do with its context again asks only for what it does not have already.
func Do[A any](ctx context.Context, c *Client, rule *Rule[A], args A, work func(ctx context.Context, hold *Hold) error) (err error) {
	o, err := rule.order(args)
	if err != nil {
		return fmt.Errorf("acquire: %w", err)
	}
	hold, err := c.acquire(ctx, o)
	if err != nil {
		if rule.skip && errors.Is(err, ErrBusy) && ctx.Err() == nil {
			c.log.Debug("skipped work whose locks are busy", slog.Any("error", err))
			return nil
		}
		return err
	}
	defer func() {
		released := hold.Release()
		switch {
		case released == nil || errors.Is(err, ErrLost):
		case err == nil:
			err = released
		default:
			err = fmt.Errorf("%w; %w", err, released)
		}
	}()
	return work(hold.Context(), hold)
}

// Wrap returns a function that does work under the locks that the rule names for its arguments, as [Do] does: a lock that
// is declared once, beside the work, instead of taken in each of its callers. In work, [FromContext] has the hold.
func Wrap[A any](c *Client, rule *Rule[A], work func(ctx context.Context, args A) error) func(ctx context.Context, args A) error {
	return func(ctx context.Context, args A) error {
		return Do(ctx, c, rule, args, func(ctx context.Context, _ *Hold) error { return work(ctx, args) })
	}
}

// FromContext returns the hold that ctx comes from, the innermost one, or nil when there is none. It may have ended
// meanwhile.
func FromContext(ctx context.Context) *Hold {
	hold, _ := ctx.Value(holdKey{}).(*Hold)
	return hold
}
