package locks

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"lockstep/locks/space"
)

const maxReason = 1 << 10

// reapTime bounds the time that a revoke spends, after it was applied, on the grants that it made
// possible.
const reapTime = 5 * time.Second

// Revoke revokes a lock. token names the intended hold, as returned by [space.Space.Read] or
// [space.Space.HeldBy]: if the lock has another holder by now, or none, the error is [ErrStale] and
// nothing has happened. It returns the hold.
func (s *Space) Revoke(ctx context.Context, name string, token Token, force Force, why Revocation) (HoldID, error) {
	if err := CheckName(name); err != nil {
		return "", fmt.Errorf("revoke: %w", err)
	}
	if force != Ask && force != Take && force != Seize {
		return "", fmt.Errorf("revoke %s: %w: force %q", name, ErrInvalid, string(force))
	}
	text, err := json.Marshal(why)
	if err != nil {
		return "", fmt.Errorf("revoke %s: %w", name, err)
	}
	if len(text) > maxReason {
		return "", fmt.Errorf("revoke %s: %w: actor and reason take %d bytes of JSON; at most %d are kept", name, ErrInvalid, len(text), maxReason)
	}
	var r space.Reply
	other := ""
	for from := ""; ; {
		r, err = space.Run(ctx, s.rdb, space.Revoke, s.keys, name, token.String(), string(force), string(text), from)
		if err != nil {
			return "", fmt.Errorf("revoke %s: %w", name, err)
		}
		if r.At(0) != "more" {
			break
		}
		from = r.At(1)
		other = cmp.Or(other, r.At(2))
	}
	if other != "" && (r.At(0) == "stale" || r.At(0) == "free") {
		r = space.Reply{"stale", other}
	}
	switch r.At(0) {
	case "done":
		// More waits than one call examines. If this fails, a renewal of any session continues.
		if r.NumberAt(3) == 1 {
			bounded, cancel := context.WithTimeout(ctx, reapTime)
			defer cancel()
			_ = s.insist(bounded, func(ctx context.Context) (bool, error) {
				left, err := space.Run(ctx, s.rdb, space.Reap, s.keys)
				return left.At(0) != "0" && space.Over(err), err
			})
		}
		return HoldID(r.At(1)), nil
	case "stale":
		return "", fmt.Errorf("revoke %s: %w: it is held under token %s, not %s", name, ErrStale, r.At(1), token)
	case "free":
		return "", fmt.Errorf("revoke %s: %w: it is free", name, ErrStale)
	}
	return "", fmt.Errorf("revoke %s: %w", name, space.Unexpected("revoke", r))
}
