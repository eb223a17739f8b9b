package locks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"lockstep/locks/space"
)

// release gives a hold back, for [Hold.Release]. That includes a hold that was revoked or ended by
// its limits, so that it passes on before its time.
func (s *session) release(ctx context.Context, h *Hold) error {
	request := h.request
	s.mu.Lock()
	lost := h.lost
	if h.done || s.cause != nil || request.state == over {
		s.mu.Unlock()
		if lost == nil {
			return nil // another script has freed it
		}
		return h.ended(lost)
	}
	h.done = true
	s.become(request, ending)
	args := make([]any, 0, 2+len(request.items))
	args = append(args, string(request.id))
	if request.plain && lost == nil && h.wanted == nil { // else the script decides how it has ended
		args = append(args, s.member(request))
		for _, item := range request.items {
			args = append(args, item.Name)
		}
	}
	s.mu.Unlock()
	h.cancel(errReleased)

	began := s.client.clock.now()
	r, resent, err := s.sendRelease(ctx, args)
	if lost == nil && (err != nil || r.At(0) == "gone") {
		lost = s.unreleased(h, began, r, resent, err)
	}
	s.forget(request)
	if lost != nil {
		return h.ended(lost)
	}
	return nil
}

// unreleased returns why a release gave nothing back: Redis did not have the hold, or sent no reply
// while the session was alive. It returns nil if the hold was valid when its release began, so that
// an earlier copy of the release, sent by this client or duplicated by the network, may have ended
// it.
func (s *session) unreleased(h *Hold, began time.Time, r space.Reply, resent bool, err error) error {
	s.mu.Lock()
	over := h.overdue(instant{at: began, boot: h.admitted.boot})
	s.mu.Unlock()
	gone := fmt.Errorf("%w: redis no longer had the hold", ErrLost)
	switch {
	case over != nil:
		return over
	// errEnded: another process has ended the session
	case err != nil && (!resent || s.why() == nil || errors.Is(err, errEnded)):
		return err
	case !s.dog.covered(began):
		return gone
	case resent:
		return nil
	}
	// The session is alive, so apart from a copy only lost data or a seizure can have ended the
	// hold. The message of a seizure arrives over another connection.
	if len(r) < 5 {
		return gone
	}
	unheard := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.received < uint64(r.NumberAt(4)) || s.compare
	}
	if unheard() {
		space.Sleep(settleTime, s.dead)
	}
	lost := unheard()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case h.wanted != nil && h.wanted.Force == Seize:
		return &RevokedError{h.wanted.Revocation}
	case lost, s.gen != generation{r.At(2), r.At(3)}:
		return gone
	}
	return nil
}

// abandon ends a request: everything that it has or will get is released in the background.
func (s *session) abandon(ctx context.Context, r *request) {
	s.mu.Lock()
	if r.state == ending || r.state == over {
		s.mu.Unlock()
		return
	}
	s.become(r, ending)
	asking := r.asking
	s.mu.Unlock()
	if asking {
		return // the asking goroutine cancels after the reply, so no command overtakes another
	}
	// It outlives the caller's context, which has ended. Every command in it has a timeout, and the
	// session bounds it.
	s.client.spawn(func() { s.cancel(context.WithoutCancel(ctx), r) })
}

// cancel releases or cancels everything that a request has.
func (s *session) cancel(ctx context.Context, r *request) {
	if _, _, err := s.sendRelease(ctx, []any{string(r.id)}); err != nil {
		s.client.log.Debug("canceling a lock request", slog.String("request", string(r.id)), slog.Any("error", err))
	}
	s.forget(r)
}

// sendRelease sends a release until it gets a reply or the session is dead.
func (s *session) sendRelease(ctx context.Context, args []any) (r space.Reply, resent bool, err error) {
	r, resent, err = s.untilAnswered(func() (space.Reply, error) { return s.client.sender.send(ctx, s.client.releaseScript, args) })
	if r.NumberAt(1) == 1 {
		s.client.reaper.now()
	}
	return r, resent, err
}
