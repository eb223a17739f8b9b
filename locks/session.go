package locks

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"
)

// session is one lease, with a table of everything that Redis may hold for it. A request enters the
// table before it is sent, and leaves it only when Redis surely has nothing of it anymore. So
// anything in Redis beyond the table has no owner.
type session struct {
	id     SessionID
	client *Client
	dog    *watchdog
	card   []byte        // the card it was opened with
	dead   chan struct{} // closed by end
	wake   chan struct{} // buffer 1: reconcile has work
	cutOne sync.Once     // makes cut work once; a second caller waits until the first is done

	asserting sync.Mutex // held while a page of an assertion is under way

	// guards the following fields, and those fields of its requests that say so
	mu        sync.Mutex
	requests  map[HoldID]*request
	drawn     uint64 // the number of the last request
	cause     error  // why no work may begin on it anymore; nil while it is alive
	counts    counts
	received  uint64 // the highest revision of a grant that was received
	published uint64 // the highest revision that a renewal returned
	compare   bool   // the table must be compared with Redis
	// inconclusive counts renewals in a row that proved nothing, because requests were in flight.
	inconclusive int
	// suspects are requests that are over but may have a late copy that is applied later, and until
	// when they are suspected.
	suspects map[HoldID]time.Time
	clock    serverClock
	gen      generation    // of the space that it knows
	renewed  chan struct{} // closed and replaced when a renewal got its reply
	// limited has the holds with limits, which lookAtLimits checks; true: ended, and released later
	// if its holder does not release it first.
	limited map[*Hold]bool
}

func newSession(c *Client, id SessionID) *session {
	s := &session{
		id: id, client: c, dead: make(chan struct{}), wake: make(chan struct{}, 1),
		requests: make(map[HoldID]*request), suspects: make(map[HoldID]time.Time), limited: make(map[*Hold]bool),
		renewed: make(chan struct{}),
	}
	s.dog = &watchdog{
		lease: c.lease, clock: c.clock, renew: s.renew, cut: s.cut, end: s.end, each: s.lookAtLimits,
		soon: make(chan struct{}, 1),
	}
	return s
}

// begin enters a new request into the table. The error says why none may begin.
func (s *session) begin(items []Item) (*request, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return nil, s.cause
	}
	s.drawn++
	r := &request{
		id: HoldID(string(s.id) + "." + strconv.FormatUint(s.drawn, 10)), session: s, items: items,
	}
	s.requests[r.id] = r
	s.counts.added++
	s.counts.listed++
	return r, nil
}

// become moves a request to another state. The caller holds mu.
func (s *session) become(r *request, state requestState) {
	was, is := r.state == waiting || r.state == held, state == waiting || state == held
	switch {
	case is && !was:
		s.counts.stored++
	case was && !is:
		s.counts.stored--
		s.counts.unstored++
	}
	if r.state == waiting {
		s.client.reaper.waits(-1)
	}
	if state == waiting {
		s.client.reaper.waits(1)
	}
	if state == over && r.state != over {
		delete(s.requests, r.id)
		s.counts.listed--
		if r.doubt || r.late {
			s.suspect(r)
		}
	}
	r.state = state
}

func (s *session) forget(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.become(r, over)
}

// cut stops all work on the session: it is about to lose its holds, or has lost them.
func (s *session) cut(cause error) { s.cutOne.Do(func() { s.cutAll(cause) }) }

func (s *session) cutAll(cause error) {
	// First, so that a caller that finds this session dead looks for the next one.
	s.client.retire(s)
	s.mu.Lock()
	s.cause = cause
	var holds []*Hold
	for _, r := range s.requests {
		if h := r.hold; h != nil && h.valid() {
			h.lost = cause
			holds = append(holds, h)
		}
	}
	s.mu.Unlock()
	for _, h := range holds {
		h.cancel(cause)
	}
	if errors.Is(cause, ErrClosed) {
		return
	}
	// The goroutine that reads the clocks must not wait for a log to be written.
	s.client.spawn(func() {
		s.client.log.Error("lock session cut off", slog.String("session", string(s.id)), slog.Int("holds", len(holds)),
			slog.Any("error", cause))
	})
}

// end marks the session dead in this process: from now on others may hold what it held.
func (s *session) end(cause error) {
	s.cut(cause)
	close(s.dead)
}

func (s *session) why() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// ended returns why the session can no longer grant a request that had nothing yet.
func (s *session) ended() error {
	why := s.why()
	switch {
	case errors.Is(why, ErrClosed):
		return ErrClosed
	case why == nil:
		return ErrNoSession // the watchdog is about to set the cause
	}
	return fmt.Errorf("%w: the last one has ended: %v", ErrNoSession, why) //nolint:errorlint // an ErrLost, but nothing was lost here
}
