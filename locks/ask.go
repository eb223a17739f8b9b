package locks

import (
	"cmp"
	"context"

	"lockstep/locks/space"
)

// errorReply returns the error reply that made the acquire be sent again last, or nil.
func (s *session) errorReply(r *request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if space.CodeOf(r.last) == "" {
		return nil
	}
	return r.last
}

// untilAnswered sends a script until it gets a reply or the session is dead. resent means that an
// earlier copy got no reply and may be the one that was applied.
func (s *session) untilAnswered(send func() (space.Reply, error)) (r space.Reply, resent bool, err error) {
	err = space.Insist(space.Backoff{}, func() (done bool, err error) {
		r, err = send()
		done = space.Over(err)
		resent = resent || !done && !space.Unsent(err)
		return done, err
	}, s.dead)
	if err != nil {
		return nil, resent, cmp.Or(s.why(), err)
	}
	return r, resent, nil
}

// outcome is that of one attempt to send an acquire.
type outcome struct {
	reply space.Reply
	err   error
}

// ask sends an acquire until it gets a reply, is abandoned, or the session is dead. It runs in its
// own goroutine, since a command in flight cannot be interrupted and the caller's context may end
// meanwhile.
func (s *session) ask(ctx context.Context, r *request, args []any) (a outcome) {
	var final bool
	_ = space.Insist(space.Backoff{}, func() (bool, error) {
		reply, err := s.client.sender.send(ctx, s.client.acquireScript, args)
		final, a = s.answered(ctx, r, outcome{reply, err})
		return final, err
	}, s.dead)
	if !final {
		s.mu.Lock()
		r.asking = false
		s.mu.Unlock()
		a = outcome{err: s.why()}
	}
	return a
}

// answered records the outcome of one attempt to send an acquire. If that is final, it returns the
// outcome to act on. Otherwise the same acquire must be sent again.
func (s *session) answered(ctx context.Context, r *request, a outcome) (final bool, _ outcome) {
	s.mu.Lock()
	if a.err != nil && !space.Unsent(a.err) {
		r.doubt = true
	}
	if a.err == nil && a.reply.At(0) == "waiting" && r.state == open {
		s.become(r, waiting)
	}
	dropped := r.state == ending && r.hold == nil
	late := !dropped && (r.state == ending || r.state == over)
	final = a.err == nil || !space.Passing(a.err) || r.once && space.Lasting(a.err) || dropped || late
	r.last = a.err
	if final {
		r.asking = false
	}
	if late {
		// The grant arrived by a message, and the hold was released meanwhile. This copy may have
		// been applied before or after that release.
		r.late = true
		if r.state == over {
			s.suspect(r)
		}
	}
	s.mu.Unlock()
	if dropped {
		s.cancel(ctx, r)
		return true, outcome{err: s.why()}
	}
	return final, a
}
