package locks

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Revocation says who wants a lock back, and why.
type Revocation struct {
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Force is how hard a lock is wanted back.
type Force string

const (
	// Ask asks the holder, who learns it by [Hold.Asked] and decides himself.
	Ask Force = "a"
	// Take ends the context of the hold with the cause [ErrRevoked]. The lock passes on when its holder has released it, or
	// its session has ended.
	Take Force = "t"
	// Seize frees the lock at once, and then ends the context of the hold: until its holder has heard of it, two may
	// work. Its token is refused by whoever guards what it did. While a grace time goes on and the holder has not said
	// again what he holds, it is as Take, since nothing passes on.
	Seize Force = "f"
)

// Asked tells how a hold is wanted back.
type Asked struct {
	Force      Force
	Revocation Revocation
}

const maxReason = 1 << 10

// reapTime bounds how long a revoke that was applied continues with the grants that it made possible.
const reapTime = 5 * time.Second

// Revoke revokes a lock. token names the hold that is meant, as [Space.Read] or [Space.HeldBy] showed it: if another hold
// has the lock by now, or none, the error is [ErrStale] and nothing has happened. It returns the hold.
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
		return "", fmt.Errorf("revoke %s: %w: who and why take %d bytes of JSON; at most %d are kept", name, ErrInvalid, len(text), maxReason)
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
		if r.number(3) == 1 { // more waits than one call looks at; if this fails, a renewal of any session continues
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
		return "", fmt.Errorf("revoke %s: %w: nobody holds it", name, ErrStale)
	}
	return "", fmt.Errorf("revoke %s: %w", name, errReply("revoke", r))
}

// text is how a record has it.
func (a *Asked) text() string {
	why, err := json.Marshal(a.Revocation)
	if err != nil {
		return "" // two strings can always be written
	}
	return string(a.Force) + string(why)
}

// parseRevocation reads what Revoke wrote; JSON has no control characters, so it fits into a record.
func parseRevocation(text string) Revocation {
	var why Revocation
	if err := json.NewDecoder(strings.NewReader(text)).Decode(&why); err != nil {
		return Revocation{Reason: text}
	}
	return why
}
