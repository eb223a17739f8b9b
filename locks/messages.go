package locks

import (
	"log/slog"
	"time"

	"lockstep/locks/space"
)

// note records the revision of a message, and starts a comparison if earlier ones were lost. The
// caller holds mu.
func (s *session) note(revision uint64) {
	if revision > s.received+1 {
		s.compare = true // the messages in between were lost
		s.signal()
	}
	s.received = max(s.received, revision)
}

// revoked handles the message that a hold was revoked.
func (s *session) revoked(id HoldID, news space.Asked, revision uint64) {
	s.mu.Lock()
	s.note(revision)
	r := s.requests[id]
	if r != nil && r.hold == nil {
		keepRevocation(&r.revoked, &news) // the holder learns of it when it gets the hold
		r = nil
	}
	s.mu.Unlock()
	if r != nil {
		s.revoke(r, news)
	}
}

// revoke notifies a holder that the lock was asked for, or ends its work.
func (s *session) revoke(r *request, news space.Asked) {
	h := r.hold
	s.mu.Lock()
	first := h.wanted == nil
	if first && h.asked != nil {
		close(h.asked)
	}
	keepRevocation(&h.wanted, &news)
	ends := news.Force != Ask && h.valid()
	cause := &RevokedError{news.Revocation}
	if ends {
		h.lose(cause)
		s.become(r, ending)
	}
	s.mu.Unlock()
	if first {
		s.client.log.Info("lock is asked for", slog.String("hold", string(h.id)), slog.String("by", news.Revocation.By),
			slog.String("reason", news.Revocation.Reason))
	}
	if ends {
		h.cancel(cause)
		s.client.log.Warn("lock was revoked", slog.String("hold", string(h.id)), slog.Any("error", cause))
	}
}

// keepRevocation replaces the last revocation with another one where revoke.lua does. A comparison
// may have read the hold before the last message was sent, so its news are not always newer: it
// removes no revocation, and a lock that was taken does not become one that is only asked for. The
// caller holds mu.
func keepRevocation(last **space.Asked, news *space.Asked) {
	if news != nil && (*last == nil || (*last).Force == Ask || news.Force == Seize) {
		*last = news
	}
}

// granted handles the message that a request was granted.
func (s *session) granted(id HoldID, g grant, revision uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(revision)
	if r := s.requests[id]; r != nil {
		s.take(r, g)
		return
	}
	// The request was abandoned; its cancellation may have arrived too early.
	s.suspects[id] = time.Now()
	s.signal()
}

// unqueued handles the message that a wait was taken out of the queues: its request asks again. If
// the message is lost, the comparison with Redis has the same effect.
func (s *session) unqueued(id HoldID, revision uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(revision)
	if r := s.requests[id]; r != nil && r.state == waiting {
		s.askAgain(r)
	}
}

// askAgain makes a request ask again that no longer waits in Redis. The caller holds mu.
func (s *session) askAgain(r *request) {
	s.become(r, open)
	r.channels()
	select {
	case r.recheck <- struct{}{}:
	default:
	}
}

// take passes a grant to the request that waits for it. The caller holds mu.
func (s *session) take(r *request, g grant) {
	if r.state == open || r.state == waiting {
		s.become(r, held)
		r.channels()
		r.granted = g
		s.client.saw(g.token)
		r.grant <- g // has room: only the first grant of a request gets here
	}
}
