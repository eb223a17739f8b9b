package locks

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// PermitLimit is a number of permits as it was declared.
type PermitLimit struct {
	Permits int
	Version int64
}

// Declare sets how many permits a resource has, for [Permits]. The limit lives in Redis, where every client finds the same
// one, and it has a version: a higher one replaces it, a lower one changes nothing, and the limit that stands is
// returned, so that a worker with an older configuration cannot set it back. The same version with another number is
// an error. Raising it grants to waiting requests. Lowering it revokes nothing, but nothing is granted until enough has come
// back, and waiting requests for more permits than there are now end with [ErrInvalid].
//
// A declared resource has no other mode until [Client.Undeclare] removes the limit. While a hold has it in another mode the
// error is [ErrBusy].
func (c *Client) Declare(ctx context.Context, name string, limit PermitLimit) (PermitLimit, error) {
	err := CheckName(name)
	switch {
	case err != nil:
	case limit.Permits < 1 || limit.Permits > maxPermits:
		err = fmt.Errorf("%w: %d permits; let it be 1 to %d", ErrInvalid, limit.Permits, maxPermits)
	case limit.Version < 0 || limit.Version >= 1<<53:
		err = fmt.Errorf("%w: version %d; let it be 0 to 2^53", ErrInvalid, limit.Version)
	}
	if err != nil {
		return PermitLimit{}, fmt.Errorf("declare permits: %w", err)
	}
	r, err := c.call(ctx, declareScript, name, limit.Permits, limit.Version)
	if err != nil {
		return PermitLimit{}, fmt.Errorf("declare permits of %s: %w", name, err)
	}
	stands := PermitLimit{int(r.number(1)), r.number(2)}
	switch r.text(0) {
	case "ok":
		c.mu.Lock()
		c.declared[name] = stands
		c.mu.Unlock()
		if r.number(3) == 1 {
			c.reaper.now()
		}
		return stands, nil
	case "differs":
		return stands, fmt.Errorf("declare permits of %s: %w: version %d has %d permits, not %d; take a higher version to change it",
			name, ErrInvalid, stands.Version, stands.Permits, limit.Permits)
	case "mode":
		return PermitLimit{}, fmt.Errorf("declare permits of %s: %w: it is held in another mode", name, ErrBusy)
	}
	return PermitLimit{}, fmt.Errorf("declare permits of %s: %w", name, errReply("declare", r))
}

// Undeclare removes the permits of a resource: then it can be locked in the other modes, and requests for permits of it are
// refused. version is the one that the caller knows; a higher one that is declared stays, and the error is [ErrInvalid].
// While permits are in use or requests wait for some, nothing changes and the error is [ErrBusy]. Removing what is not
// declared is no error.
//
// Another client that still has the limit in its configuration declares it again when it starts, or when Redis has lost its
// data: change the configuration of all clients first.
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
	r, err := runScript(ctx, s.rdb, undeclareScript, s.keys, name, version)
	if err != nil {
		return fmt.Errorf("undeclare permits of %s: %w", name, err)
	}
	switch r.text(0) {
	case "ok", "none":
		return nil
	case "newer":
		return fmt.Errorf("undeclare permits of %s: %w: version %d is declared, with %d permits, and not %d",
			name, ErrInvalid, r.number(2), r.number(1), version)
	case "used":
		return fmt.Errorf("undeclare permits of %s: %w: %d permits are in use, and %d requests wait; try again when there are none",
			name, ErrBusy, r.number(1), r.number(2))
	}
	return fmt.Errorf("undeclare permits of %s: %w", name, errReply("undeclare", r))
}

const maxPermits = 1_000_000 // also of those who may share a resource: scripts print such numbers without an exponent

// Downgrade shares with others what the hold has exclusively, without giving it up in between. To get it back
// exclusively, acquire it again under the hold's context: that waits until nobody else shares it, and releasing that
// inner hold leaves the share as it was.
//
// It is sent again until Redis has answered or the session has ended: once it is on its way, only the answer tells what the
// hold has, so that the end of ctx does not stop it any more. What the hold shares already stays as it is. A resource
// that it does not have by its own request, or of which it has permits, is an error; nothing is changed then.
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
	s.mu.Lock()
	lost := h.lost
	if h.done {
		lost = errors.Join(lost, errReleased)
	}
	for _, name := range names {
		args = append(args, name)
	}
	h.request.plain = false // from now on, whatever the answer
	s.mu.Unlock()
	if lost != nil {
		return fmt.Errorf("downgrade: %w", lost)
	}
	r, _, err := s.untilAnswered(func() (reply, error) { return h.client.call(ctx, downScript, args...) })
	switch {
	case err != nil:
		return fmt.Errorf("downgrade %s: %w", names, err)
	case r.text(0) == "gone":
		return fmt.Errorf("downgrade %s: %w: redis does not have the hold any more", names, ErrLost)
	case r.text(0) == "mode":
		return fmt.Errorf("downgrade: %w: the hold does not have %q exclusively", ErrInvalid, r.text(1))
	}
	if r.number(1) == 1 {
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
