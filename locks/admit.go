package locks

import (
	"context"
	"log/slog"
	"time"
)

// admit gives a granted request its hold. n is nil, or says which part of the bundle the outer
// holds have. The error is the cause if the hold is lost already.
func (s *session) admit(parent context.Context, r *request, g grant, o *spec, n *nest) (*Hold, error) {
	s.dog.inspect() // a process that was stopped may get here before the watchdog checks
	h := newHold(s.client, parent, &s.mu, o.items)
	h.request, h.id, h.session, h.token, h.since = r, r.id, s.id, g.token, g.since
	h.limits, h.admitted = o.limits, s.client.clock.read()
	if n != nil {
		h.covers = n.covers
	}
	s.mu.Lock()
	r.hold, r.granted = h, g
	s.client.saw(g.token)
	if h.lost = s.cause; h.lost == nil && r.refused != nil {
		h.lost = r.refused
		s.become(r, over)
	} else {
		s.become(r, held)
	}
	if h.limits.most > 0 {
		s.limited[h] = false
		h.spent = max(0, s.clock.server.Add(s.client.clock.since(s.clock.local)).Sub(h.since))
	}
	revoked := r.revoked
	lost := h.lost
	overdue := h.limits.most > 0 && h.spent >= h.limits.most
	s.mu.Unlock()
	if lost != nil {
		h.cancel(lost)
	}
	if overdue { // the grant took long to arrive
		s.lookAtLimits()
	}
	if revoked != nil {
		s.revoke(r, *revoked)
	}
	return h, lost
}

// lookAtLimits ends holds that have used up their own time. The watchdog calls it whenever it reads
// the clocks.
func (s *session) lookAtLimits() {
	var over, stuck []*Hold
	now := s.client.clock.read()
	s.mu.Lock()
	for h, ended := range s.limited {
		switch why := h.overdue(now); {
		case h.done || s.cause != nil:
			delete(s.limited, h)
		case ended && now.boot >= h.killBy:
			stuck = append(stuck, h)
			delete(s.limited, h)
		case h.lost == nil && why != nil:
			h.lose(why)
			s.become(h.request, ending)
			s.limited[h] = true
			over = append(over, h)
		}
	}
	s.mu.Unlock()
	for _, h := range over {
		h.cancel(h.Lost())
	}
	if len(over) > 0 {
		// The goroutine that reads the clocks must not wait for a log to be written.
		s.client.spawn(func() {
			for _, h := range over {
				s.client.log.Warn("lock reached its limit", slog.String("hold", string(h.id)), slog.Any("error", h.Lost()))
			}
		})
	}
	// Their holders had time to end. Waiters must not wait for a holder that does not.
	for _, h := range stuck {
		// Every command of the release has a timeout, and the session bounds all of them.
		s.client.spawn(func() { _ = s.release(context.WithoutCancel(h.ctx), h) })
	}
}

// killBy returns the boot clock's reading for [Hold.KillBy]. A hold with a lease that is only about
// to run out keeps its time: its processes have been asked to end, and may do so in order.
func (s *session) killBy(h *Hold) time.Duration {
	s.mu.Lock()
	done, lost, own := h.done, h.lost != nil, h.killBy
	if most := h.limits.most; most > 0 && own == 0 {
		own = h.admitted.boot + most - h.spent + killAfter(s.client.Cutoff())
	}
	s.mu.Unlock()
	switch {
	case done, lost && own == 0 && s.dog.now() != cutOff:
		return 0
	case own == 0:
		return s.dog.killBy()
	}
	return min(own, s.dog.killBy())
}
