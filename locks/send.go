package locks

import (
	"context"

	"lockstep/locks/space"
)

// errorReply returns the error reply that made the acquire be sent again last, or nil.
func (s *session) errorReply(r *Request) error {
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
	var pause space.Backoff
	for {
		r, err := send()
		if err == nil {
			return r, resent, nil
		}
		if why := s.why(); why != nil && !space.Passing(err) {
			return nil, resent, why
		}
		if !space.Passing(err) {
			return nil, resent, err
		}
		resent = resent || !space.Unsent(err)
		if !pause.Wait(s.dead) {
			return nil, resent, s.why()
		}
	}
}

// outcome is that of one attempt to send an acquire.
type outcome struct {
	reply space.Reply
	err   error
}

// ask sends an acquire until it gets a reply, is abandoned, or the session is dead. It runs in its
// own goroutine, since a command in flight cannot be interrupted and the caller's context may end
// meanwhile.
func (s *session) ask(ctx context.Context, r *Request, args []any) outcome {
	var pause space.Backoff
	for {
		reply, err := s.client.post.wait(ctx, s.client.acquireScript, args)
		if final, a := s.answered(ctx, r, outcome{reply, err}); final {
			return a
		}
		if !pause.Wait(s.dead) {
			s.mu.Lock()
			r.asking = false
			s.mu.Unlock()
			return outcome{err: s.why()}
		}
	}
}

// answered records the outcome of one attempt to send an acquire. If that is final, it returns the
// outcome to act on. Otherwise the same acquire must be sent again.
func (s *session) answered(ctx context.Context, r *Request, a outcome) (final bool, _ outcome) {
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
