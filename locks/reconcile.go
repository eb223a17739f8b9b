package locks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"lockstep/locks/space"
)

// counts has the numbers that the number of holds and waits in a renewal's reply is compared with.
type counts struct {
	added    uint64 // requests that ever entered the table
	unstored uint64 // requests that are no longer surely stored
	listed   int    // requests in the table: an upper bound of what Redis has
	stored   int    // of these, those that Redis surely has: waiting or held
}

// suspectFor is how long a request is suspected of a late copy. It is roughly how long a system's
// network keeps trying to deliver the bytes of an abandoned connection. A copy that arrives even
// later shows in the count of a renewal.
const suspectFor = 2 * time.Minute

// compareEvery is the number of renewals without proof after which the table is compared with
// Redis.
const compareEvery = renewalsPerLease

// maxSuspects is the number of suspects above which reading the session's table is cheaper than
// releasing each of them.
const maxSuspects = 64

// suspect makes reconcile release a request that is over once more, since a copy of its acquire may
// have been applied late. While another copy may still arrive, that is repeated at every renewal.
// The caller holds mu.
func (s *session) suspect(r *request) {
	s.suspects[r.id] = time.Now()
	if r.doubt {
		s.suspects[r.id] = time.Now().Add(suspectFor)
	}
	s.signal()
}

// check compares the count in a renewal's reply with the table. Commands were in flight meanwhile,
// so the count must lie between the requests that were surely stored all the time and those that
// were in the table at any time.
func (s *session) check(before counts, revision uint64, count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	atLeast := before.stored - int(s.counts.unstored-before.unstored)
	atMost := before.listed + int(s.counts.added-before.added)
	switch {
	case count < atLeast || count > atMost:
		s.compare = true
	case atLeast == atMost:
		s.inconclusive = 0
	default:
		// A late copy of an acquire that got its reply is no suspect. While the session is busy, it
		// may hide between the two bounds.
		if s.inconclusive++; s.inconclusive >= compareEvery {
			s.compare = true
		}
	}
	if s.compare {
		s.inconclusive = 0
	}
	s.published = max(s.published, revision)
	if s.compare || s.published > s.received || len(s.suspects) > 0 {
		s.signal()
	}
}

// signal wakes reconcile.
func (s *session) signal() {
	select {
	case s.wake <- struct{}{}:
	default: // the pending wake-up covers everything
	}
}

// recompare starts a comparison of the table with Redis, because messages may have been lost.
func (s *session) recompare() {
	s.mu.Lock()
	s.compare = true
	s.mu.Unlock()
	s.signal()
}

// reconcile handles doubtful cases until the session ends: requests that may have been applied
// late, and differences between the table and Redis.
func (s *session) reconcile(ctx context.Context) {
	var pause space.Backoff
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.dead:
			return
		case <-s.wake:
		}
		if err := s.reconcileOnce(ctx); err != nil {
			s.client.log.Debug("comparing a lock session with redis", slog.String("session", string(s.id)), slog.Any("error", err))
			s.signal()
			if !pause.Wait(s.dead) {
				return
			}
			continue
		}
		pause = space.Backoff{}
	}
}

// settleTime is how long the message of a grant, or the reply to a release, may be in flight after
// a renewal has already counted it.
const settleTime = 50 * time.Millisecond

func (s *session) reconcileOnce(ctx context.Context) error {
	s.mu.Lock()
	behind := !s.compare && s.published > s.received
	s.mu.Unlock()
	if behind {
		space.Sleep(settleTime, s.dead)
	}
	s.mu.Lock()
	compare := s.compare || s.published > s.received
	upto := s.published
	s.compare = false
	var suspects []HoldID
	for id, until := range s.suspects {
		suspects = append(suspects, id)
		if time.Now().After(until) {
			delete(s.suspects, id)
		}
	}
	if len(suspects) > maxSuspects {
		suspects, compare = nil, true
	}
	s.mu.Unlock()
	if compare {
		orphans, err := s.compareTable(ctx, upto)
		if err != nil {
			s.mu.Lock()
			s.compare = true
			s.mu.Unlock()
			return err
		}
		suspects = append(suspects, orphans...)
	}
	for _, id := range suspects {
		r, err := s.client.call(ctx, space.Release, string(id))
		if err != nil {
			s.recompare()
			return err
		}
		if r.At(0) != "gone" {
			s.client.log.Warn("released a lock without a request", slog.String("hold", string(id)))
		}
	}
	return nil
}

// compareTable reads what Redis has for the session. It delivers grants with a lost message,
// ends holds that are missing, makes requests with missing waits ask again, and returns what
// this client does not know.
func (s *session) compareTable(ctx context.Context, upto uint64) (orphans []HoldID, err error) {
	before := make(map[HoldID]requestState)
	s.mu.Lock()
	gen := s.gen
	for id, r := range s.requests {
		if r.state == held || r.state == waiting {
			before[id] = r.state
		}
	}
	s.mu.Unlock()
	listing, err := s.client.readSession(ctx, s.id)
	if err != nil {
		return nil, err
	}
	// A listing of a space that has lost data proves nothing: the session must re-assert first.
	r, err := s.client.call(ctx, space.Generation, string(s.id))
	if err != nil {
		return nil, err
	}
	if gen != (generation{r.At(0), r.At(1)}) || r.NumberAt(2) != 1 {
		s.dog.hurry()
		return nil, errors.New("the space has lost data")
	}
	s.mu.Lock()
	var asked []func()
	for _, h := range listing.Holds {
		delete(before, h.ID)
		if r := s.requests[h.ID]; r != nil {
			s.take(r, grant{h.Token, h.Since})
			if h.Asked != nil && r.hold != nil {
				asked = append(asked, func() { s.revoke(r, *h.Asked) })
			} else {
				keepRevocation(&r.revoked, h.Asked)
			}
		} else {
			orphans = append(orphans, h.ID)
		}
	}
	for _, w := range listing.Waits {
		delete(before, w.Request)
		if s.requests[w.Request] == nil {
			orphans = append(orphans, w.Request)
		}
	}
	var missing []*Hold
	for id, state := range before { // it was in Redis before the read, and the listing lacks it
		r := s.requests[id]
		switch {
		case r == nil || r.state != state:
		case state == waiting:
			s.askAgain(r)
		case r.hold != nil:
			missing = append(missing, r.hold)
		}
	}
	s.received = max(s.received, upto)
	s.mu.Unlock()
	for _, tell := range asked {
		tell()
	}
	s.lose(missing)
	return orphans, nil
}

// lose ends holds that Redis no longer has.
func (s *session) lose(missing []*Hold) {
	if len(missing) == 0 {
		return
	}
	space.Sleep(settleTime, s.dead) // a message that explains the release may be on its way
	cause := fmt.Errorf("%w: redis no longer has the hold", ErrLost)
	s.mu.Lock()
	missing = slices.DeleteFunc(missing, func(h *Hold) bool { return h.request.state != held || !h.valid() })
	for _, h := range missing {
		h.lost = cause
		s.become(h.request, over)
		delete(s.limited, h)
	}
	s.mu.Unlock()
	for _, h := range missing {
		h.cancel(cause)
		s.client.log.Warn("redis no longer has a lock", slog.String("hold", string(h.request.id)),
			slog.Any("locks", h.Names()))
	}
}
