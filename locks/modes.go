package locks

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lockstep/locks/space"
)

// Declare sets the number of permits of a resource, for [Permits]. The limit is stored in Redis, so
// every client finds the same one. It has a version: a higher version replaces it, a lower one
// changes nothing. Declare returns the limit in force, so a worker with an older configuration
// cannot set it back. The same version with another number is an error. Raising the limit grants to
// waiting requests. Lowering it revokes nothing, but nothing is granted until enough permits have
// been returned, and waiting requests for more permits than the new limit end with [ErrInvalid].
//
// A declared resource has no other mode until [Client.Undeclare] removes the limit. While a hold
// has it in another mode, the error is [ErrBusy].
func (c *Client) Declare(ctx context.Context, name string, limit PermitLimit) (PermitLimit, error) {
	err := CheckName(name)
	switch {
	case err != nil:
	case limit.Permits < 1 || limit.Permits > MaxPermits:
		err = fmt.Errorf("%w: %d permits; use 1 to %d", ErrInvalid, limit.Permits, MaxPermits)
	case limit.Version < 0 || limit.Version >= 1<<53:
		err = fmt.Errorf("%w: version %d; use 0 to 2^53", ErrInvalid, limit.Version)
	}
	if err != nil {
		return PermitLimit{}, fmt.Errorf("declare permits: %w", err)
	}
	r, err := c.call(ctx, space.Declare, name, limit.Permits, limit.Version)
	if err != nil {
		return PermitLimit{}, fmt.Errorf("declare permits of %s: %w", name, err)
	}
	inForce := PermitLimit{Permits: int(r.NumberAt(1)), Version: r.NumberAt(2)}
	switch r.At(0) {
	case "ok":
		c.mu.Lock()
		c.declared[name] = inForce
		c.mu.Unlock()
		if r.NumberAt(3) == 1 {
			c.reaper.now()
		}
		return inForce, nil
	case "differs":
		return inForce, fmt.Errorf("declare permits of %s: %w: version %d has %d permits, not %d; take a higher version to change it",
			name, ErrInvalid, inForce.Version, inForce.Permits, limit.Permits)
	case "mode":
		return PermitLimit{}, fmt.Errorf("declare permits of %s: %w: it is held in another mode", name, ErrBusy)
	}
	return PermitLimit{}, fmt.Errorf("declare permits of %s: %w", name, space.Unexpected("declare", r))
}

// Undeclare removes the permits of a resource. After that it can be locked in the other modes, and
// requests for its permits are refused. version is the one that the caller knows. If a higher one
// is declared, that stays, and the error is [ErrInvalid]. While permits are in use or requests wait
// for some, nothing changes and the error is [ErrBusy]. Removing permits that are not declared is
// not an error.
//
// Another client that still has the limit in its configuration declares it again when it starts, or
// when Redis has lost its data: change the configuration of all clients first.
func (c *Client) Undeclare(ctx context.Context, name string, version int64) error {
	if err := c.space.Undeclare(ctx, name, version); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.declared[name].Version <= version {
		delete(c.declared, name)
	}
	return nil
}

// Undeclare is [Client.Undeclare] for callers without a session.
func (s *Space) Undeclare(ctx context.Context, name string, version int64) error {
	if err := CheckName(name); err != nil {
		return fmt.Errorf("undeclare permits: %w", err)
	}
	r, err := space.Run(ctx, s.rdb, space.Undeclare, s.keys, name, version)
	if err != nil {
		return fmt.Errorf("undeclare permits of %s: %w", name, err)
	}
	switch r.At(0) {
	case "ok", "none":
		return nil
	case "newer":
		return fmt.Errorf("undeclare permits of %s: %w: version %d is declared, with %d permits, and not %d",
			name, ErrInvalid, r.NumberAt(2), r.NumberAt(1), version)
	case "used":
		return fmt.Errorf("undeclare permits of %s: %w: %d permits are in use, and %d requests wait; try again when there are none",
			name, ErrBusy, r.NumberAt(1), r.NumberAt(2))
	}
	return fmt.Errorf("undeclare permits of %s: %w", name, space.Unexpected("undeclare", r))
}

// MaxPermits bounds the permits of a resource, and how many may share one. Scripts print numbers up
// to it without an exponent.
const MaxPermits = 1_000_000

// A downgrade is a call of [Hold.Downgrade] in flight.
type downgrade struct {
	names []string
	over  chan struct{} // closed at its end
}

// Downgrade turns exclusive resources of the hold into shared ones without releasing them in
// between. To get one back exclusively, acquire it again under the hold's context. That waits until
// no other hold shares it, and releasing that inner hold leaves the share as it was.
//
// Downgrade is sent again until Redis replies or the session has ended. Once it is in flight, only
// the reply shows what the hold has, so the end of ctx no longer stops it. A resource that the hold
// already shares stays as it is. A resource that the hold's own request did not get, or of which it
// has permits, is an error; then nothing changes. So is one that a hold or a request under this
// one's context re-enters exclusively: it must end first. Downgrade does not know of those in a
// process that has joined this hold.
func (h *Hold) Downgrade(ctx context.Context, names ...string) error {
	if h.request == nil {
		return fmt.Errorf("downgrade: %w: the hold re-enters another one; downgrade that", ErrInvalid)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("downgrade: %w", context.Cause(ctx))
	}
	ctx = context.WithoutCancel(ctx)
	s := h.request.session
	args := []any{string(h.id)}
	for _, name := range names {
		args = append(args, name)
	}
	s.mu.Lock()
	for h.downgraded != nil { // another call
		before := h.downgraded.over
		s.mu.Unlock()
		<-before
		s.mu.Lock()
	}
	err := h.lost
	if h.done {
		err = errors.Join(err, errReleased)
	}
	for _, name := range names {
		if err == nil && h.inner[name] > 0 {
			err = fmt.Errorf("%w: a hold or a request under this one's context re-enters %q exclusively; it must end first", ErrInvalid, name)
		}
	}
	if err != nil {
		s.mu.Unlock()
		return fmt.Errorf("downgrade: %w", err)
	}
	running := &downgrade{names, make(chan struct{})}
	h.downgraded = running
	h.request.plain = false // from now on, whatever the reply
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		h.downgraded = nil
		s.mu.Unlock()
		close(running.over)
	}()
	r, _, err := s.untilAnswered(func() (space.Reply, error) { return h.client.call(ctx, space.Downgrade, args...) })
	switch {
	case err != nil:
		return fmt.Errorf("downgrade %s: %w", names, err)
	case r.At(0) == "gone":
		return fmt.Errorf("downgrade %s: %w: redis no longer has the hold", names, ErrLost)
	case r.At(0) == "mode":
		return fmt.Errorf("downgrade: %w: the hold does not have %q exclusively", ErrInvalid, r.At(1))
	}
	if r.NumberAt(1) == 1 {
		h.client.reaper.now()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, items := range [][]Item{h.items, h.request.items} {
		for i := range items {
			if slices.Contains(names, items[i].Name) {
				items[i].Mode = ModeShared
			}
		}
	}
	return nil
}
