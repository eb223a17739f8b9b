package locks

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Revocation names the actor that wants a lock back, and its reason.
type Revocation struct {
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Force is how forcefully a lock is revoked.
type Force string

const (
	// Ask asks the holder, which learns of it through [Hold.Asked] and decides by itself.
	Ask Force = "a"
	// Take ends the context of the hold with the cause [ErrRevoked]. The lock passes on when its
	// holder has released it, or when the holder's session has ended.
	Take Force = "t"
	// Seize frees the lock at once, and then ends the context of the hold. Until the holder has
	// received that, two holders may work. Guards refuse the token of the seized hold once they
	// have seen a newer one. During a grace period, before the holder has re-asserted the hold,
	// Seize acts like Take, since nothing passes on.
	Seize Force = "f"
)

// Asked is a revocation of a hold, with its force.
type Asked struct {
	Force      Force
	Revocation Revocation
}

const maxReason = 1 << 10

// reapTime bounds the time that a revoke spends, after it was applied, on the grants that it made
// possible.
const reapTime = 5 * time.Second

// Revoke revokes a lock. token names the intended hold, as returned by [Space.Read] or
// [Space.HeldBy]: if the lock has another holder by now, or none, the error is [ErrStale] and
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
	var r reply
	other := ""
	for from := ""; ; {
		r, err = runScript(ctx, s.rdb, revokeScript, s.keys, name, token.String(), string(force), string(text), from)
		if err != nil {
			return "", fmt.Errorf("revoke %s: %w", name, err)
		}
		if r.text(0) != "more" {
			break
		}
		from = r.text(1)
		other = cmp.Or(other, r.text(2))
	}
	if other != "" && (r.text(0) == "stale" || r.text(0) == "free") {
		r = reply{"stale", other}
	}
	switch r.text(0) {
	case "done":
		// More waits than one call examines. If this fails, a renewal of any session continues.
		if r.number(3) == 1 {
			bounded, cancel := context.WithTimeout(ctx, reapTime)
			defer cancel()
			_ = s.insist(bounded, func(ctx context.Context) (bool, error) {
				left, err := runScript(ctx, s.rdb, reapScript, s.keys)
				return left.text(0) != "0", err
			})
		}
		return HoldID(r.text(1)), nil
	case "stale":
		return "", fmt.Errorf("revoke %s: %w: it is held under token %s, not %s", name, ErrStale, r.text(1), token)
	case "free":
		return "", fmt.Errorf("revoke %s: %w: it is free", name, ErrStale)
	}
	return "", fmt.Errorf("revoke %s: %w", name, errReply("revoke", r))
}

// text returns the revocation as it is stored in a record.
func (a *Asked) text() string {
	why, err := json.Marshal(a.Revocation)
	if err != nil {
		return "" // two strings can always be encoded
	}
	return string(a.Force) + string(why)
}

// parseRevocation reads what Revoke wrote. JSON has no control characters, so it fits into a
// record.
func parseRevocation(text string) Revocation {
	var why Revocation
	if err := json.NewDecoder(strings.NewReader(text)).Decode(&why); err != nil {
		return Revocation{Reason: text}
	}
	return why
}
