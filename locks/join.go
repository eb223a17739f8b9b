package locks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"lockstep/locks/space"
)

// joined keeps track of whether a hold of another process is still valid. It renews nothing: it
// asks how long the lease of that hold's session still lasts, and a watchdog ends the work here if
// no reply arrives in time.
type joined struct {
	client *Client
	hold   *Hold
	dog    *watchdog
	stop   context.CancelFunc
}

// Join returns the hold of another process, so that requests of this process can be nested in it.
// Typically, that process started this one and passed it the ID in the environment variable
// LOCKSTEP_HOLD, as a job's worker and `lockstep lock exec` do. A request with the context of the
// joined hold re-enters it as a request of its own process would.
//
// The context of the hold ends with the cause [ErrLost] before the lease of the other process ends,
// and when that process releases the hold. Release ends the joining and frees nothing: the lock
// still belongs to the other process. If the hold is not valid, the error is [ErrLost]. ctx bounds
// the joining, and is the parent of the hold's context.
func (c *Client) Join(ctx context.Context, id HoldID) (*Hold, error) {
	if _, _, err := c.current(); err != nil {
		return nil, fmt.Errorf("join hold %s: %w", id, err)
	}
	local := c.clock.read()
	r, err := c.call(ctx, space.Valid, string(id))
	if err != nil {
		return nil, fmt.Errorf("join hold %s: %w", id, err)
	}
	left, err := leftOf(r)
	if err != nil {
		return nil, fmt.Errorf("join hold %s: %w", id, err)
	}
	token, err := ParseToken(r.At(2))
	if err != nil {
		return nil, fmt.Errorf("join hold %s: %w", id, err)
	}
	h := newHold(c, ctx, new(sync.Mutex), space.ParseItems(space.FieldsOf(r.At(5))))
	h.id, h.session, h.token, h.since = id, space.SessionOf(id), token, space.Time(r.NumberAt(3))
	h.admitted = local
	j := &joined{client: c, hold: h}
	h.joined = j
	lose := func(cause error) {
		h.mu.Lock()
		first := h.valid()
		if first {
			h.lost = cause
		}
		h.mu.Unlock()
		if first {
			h.cancel(cause)
		}
	}
	// The other session's lease is unknown, but its remaining time is at most that.
	lease := max(time.Second, min(c.lease, left))
	j.dog = &watchdog{lease: lease, clock: c.clock, renew: j.ask, cut: lose, end: lose, each: func() {}}
	j.dog.renewed(local, left)
	var work context.Context
	// It runs as long as the hold exists, not only during the joining.
	work, j.stop = context.WithCancel(context.WithoutCancel(ctx))
	if !c.spawn(func() { j.run(work) }) {
		j.stop()
		return nil, fmt.Errorf("join hold %s: %w", id, ErrClosed)
	}
	return h, nil
}

// run returns when the hold, work or the client ends.
func (j *joined) run(work context.Context) {
	defer j.stop()
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { defer j.stop(); j.dog.run(work) })
	select {
	case <-j.client.closing:
		j.dog.lose(ended, ErrClosed)
	case <-work.Done():
	}
}

// ask returns the remaining lease of the hold's session.
func (j *joined) ask(ctx context.Context) (time.Duration, error) {
	r, err := space.Run(ctx, j.client.beat, space.Valid, j.client.space.keys, string(j.hold.id))
	if err != nil {
		return 0, err
	}
	left, err := leftOf(r)
	if errors.Is(err, ErrLost) {
		return 0, errEnded
	}
	return left, err
}

func leftOf(r space.Reply) (time.Duration, error) {
	switch r.At(0) {
	case "valid":
		return space.Millis(r.NumberAt(4)), nil
	case "gone":
		return 0, fmt.Errorf("%w: it is no longer valid", ErrLost)
	case "unsure":
		return 0, fmt.Errorf("%w: it may still be re-asserted", ErrGrace)
	}
	return 0, space.Unexpected("valid", r)
}

// leave stops tracking a joined hold.
func (j *joined) leave(h *Hold) {
	h.mu.Lock()
	h.done = true
	h.mu.Unlock()
	j.stop()
	h.cancel(errReleased)
}

func (j *joined) killBy(h *Hold) time.Duration {
	h.mu.Lock()
	done, lost := h.done, h.lost != nil
	h.mu.Unlock()
	if done || lost && j.dog.now() != cutOff {
		return 0
	}
	return j.dog.killBy()
}
