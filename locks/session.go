package locks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"lockstep/locks/space"
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

	mu        sync.Mutex // guards the following fields, and those fields of its requests that say so
	requests  map[HoldID]*Request
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

// serverClock pairs the server's clock with a reading of the local clocks from before the server was
// asked. Since then the server's clock has advanced by no more than the local ones.
type serverClock struct {
	server time.Time
	local  instant
}

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

func newSession(c *Client, id SessionID) *session {
	s := &session{
		id: id, client: c, dead: make(chan struct{}), wake: make(chan struct{}, 1),
		requests: make(map[HoldID]*Request), suspects: make(map[HoldID]time.Time), limited: make(map[*Hold]bool),
		renewed: make(chan struct{}),
	}
	s.dog = &watchdog{
		lease: c.lease, clock: c.clock, renew: s.renew, cut: s.cut, end: s.end, each: s.lookAtLimits,
		soon: make(chan struct{}, 1),
	}
	return s
}

// begin enters a new request into the table. The error says why none may begin.
func (s *session) begin(items []Item) (*Request, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return nil, s.cause
	}
	s.drawn++
	r := &Request{
		id: HoldID(string(s.id) + "." + strconv.FormatUint(s.drawn, 10)), session: s, items: items,
	}
	s.requests[r.id] = r
	s.counts.added++
	s.counts.listed++
	return r, nil
}

// become moves a request to another state. The caller holds mu.
func (s *session) become(r *Request, state requestState) {
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

// suspect makes reconcile release a request that is over once more, since a copy of its acquire may
// have been applied late. While another copy may still arrive, that is repeated at every renewal.
// The caller holds mu.
func (s *session) suspect(r *Request) {
	s.suspects[r.id] = time.Now()
	if r.doubt {
		s.suspects[r.id] = time.Now().Add(suspectFor)
	}
	s.signal()
}

func (s *session) forget(r *Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.become(r, over)
}

// admit gives a granted request its hold. n is nil, or says which part of the bundle the outer
// holds have. The error is the cause if the hold is lost already.
func (s *session) admit(parent context.Context, r *Request, g grant, o *spec, n *nest) (*Hold, error) {
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
func (s *session) revoked(id HoldID, news Asked, revision uint64) {
	s.mu.Lock()
	s.note(revision)
	r := s.requests[id]
	if r != nil && r.hold == nil {
		r.revoked = &news // the holder learns of it when it gets the hold
		r = nil
	}
	s.mu.Unlock()
	if r != nil {
		s.revoke(r, news)
	}
}

// revoke notifies a holder that the lock was asked for, or ends its work.
func (s *session) revoke(r *Request, news Asked) {
	h := r.hold
	s.mu.Lock()
	first := h.wanted == nil
	if first && h.asked != nil {
		close(h.asked)
	}
	if first || news.Force != Ask {
		h.wanted = &news
	}
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

// killBy returns the boot clock's reading for [Hold.KillBy]. A hold with a lease that is only about
// to run out keeps its time: its processes have been asked to end, and may do so in order.
func (s *session) killBy(h *Hold) time.Duration {
	s.mu.Lock()
	done, lost, own := h.done, h.lost != nil, h.killBy
	if most := h.limits.most; most > 0 && own == 0 {
		own = h.admitted.boot + most - h.spent + s.client.Cutoff()*2/3
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

// renew sends one renewal, for the watchdog.
func (s *session) renew(ctx context.Context) (time.Duration, error) {
	s.mu.Lock()
	before, gen := s.counts, s.gen
	s.mu.Unlock()
	c := s.client
	local := c.clock.read()
	least, margin := c.recovery.args()
	r, err := space.Run(ctx, c.beat, space.Renew, c.space.keys, string(s.id), c.lease.Milliseconds(), gen.id, gen.epoch,
		least, margin)
	if err != nil {
		return 0, err
	}
	switch r.At(0) {
	case "dead":
		return 0, errEnded
	case "assert":
		if err := s.reclaim(ctx, generation{r.At(1), r.At(2)}); err != nil {
			return 0, err
		}
	case "ok":
		s.setClock(serverClock{space.Time(r.NumberAt(1)), local})
		s.check(before, uint64(r.NumberAt(2)), int(r.NumberAt(3)))
		c.reaper.due(space.Millis(r.NumberAt(4)))
		if r.NumberAt(4) == 0 { // more was due than one call handles
			c.reaper.now()
		}
		c.recovery.noteLease(r.NumberAt(5), c.lease)
		c.written.Store(r.NumberAt(6))
		c.identity.shows(r.At(7) != "hidden", r.At(8))
	default:
		return 0, space.Unexpected("renew", r)
	}
	s.mu.Lock()
	close(s.renewed)
	s.renewed = make(chan struct{})
	s.mu.Unlock()
	return c.lease, nil
}

func (s *session) setClock(seen serverClock) {
	s.mu.Lock()
	s.clock = seen
	s.mu.Unlock()
}

// check compares the count in a renewal's reply with the table. Commands were in flight meanwhile,
// so the count must lie between the requests that were surely stored all the time and those that were in
// the table at any time.
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
func (s *session) askAgain(r *Request) {
	s.become(r, open)
	r.channels()
	select {
	case r.recheck <- struct{}{}:
	default:
	}
}

// take passes a grant to the request that waits for it. The caller holds mu.
func (s *session) take(r *Request, g grant) {
	if r.state == open || r.state == waiting {
		s.become(r, held)
		r.channels()
		r.granted = g
		s.client.saw(g.token)
		r.grant <- g // has room: only the first grant of a request gets here
	}
}

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
	if request.plain && lost == nil {
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

// freeing prepares for another script to free a hold.
func (s *session) freeing(h *Hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.valid() {
		s.become(h.request, ending)
	}
}

// released forgets a hold that another script has freed.
func (s *session) released(h *Hold) {
	s.mu.Lock()
	h.done = true
	s.become(h.request, over)
	s.mu.Unlock()
	h.cancel(errReleased)
}

// abandon ends a request: everything that it has or will get is released in the background.
func (s *session) abandon(ctx context.Context, r *Request) {
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

// errorReply returns the error reply that made the acquire be sent again last, or nil.
func (s *session) errorReply(r *Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if space.CodeOf(r.last) == "" {
		return nil
	}
	return r.last
}

// cancel releases or cancels everything that a request has.
func (s *session) cancel(ctx context.Context, r *Request) {
	if _, _, err := s.sendRelease(ctx, []any{string(r.id)}); err != nil {
		s.client.log.Debug("canceling a lock request", slog.String("request", string(r.id)), slog.Any("error", err))
	}
	s.forget(r)
}

// sendRelease sends a release until it gets a reply or the session is dead.
func (s *session) sendRelease(ctx context.Context, args []any) (r space.Reply, resent bool, err error) {
	r, resent, err = s.untilAnswered(func() (space.Reply, error) { return s.client.post.wait(ctx, s.client.releaseScript, args) })
	if r.NumberAt(1) == 1 {
		s.client.reaper.now()
	}
	return r, resent, err
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

// reconcile handles doubtful cases until the session ends: requests that may have been applied late,
// and differences between the table and Redis.
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
	r, err := s.client.call(ctx, space.Place, string(s.id))
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
				r.revoked = h.Asked
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
