package locks

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"lockstep/locks/space"
)

// Acquire asks for a bundle, all or none, and waits until it is granted, the limit of [Wait] has
// passed, or ctx ends. At the limit the error is an [ErrBusy]. If ctx ends, the error is its cause,
// not ErrBusy. With any error, everything the request has is released in the background. That
// includes an outer hold that was released during the wait. While Redis does not reply, Acquire
// retries. If the session is lost meanwhile, the request queues again in the next one, at the end.
//
// ctx bounds the work, too: [Hold.Context] is derived from it. So do not bound the wait by
// [context.WithTimeout]: its cancel ends the work, and its timeout cuts the work off while the lock
// is held. Use [Wait], which bounds only the wait, as the example shows.
func (c *Client) Acquire(ctx context.Context, parts ...Part) (*Hold, error) {
	o, err := newSpec(parts)
	if err != nil {
		return nil, fmt.Errorf("acquire: %w", err)
	}
	return c.acquire(ctx, o)
}

// TryAcquire asks for a bundle, all or none, and returns at once when it is not free: the error is
// a [*BusyError]. It also returns at once when there is no live session, with an error that is
// [ErrNoSession]. It waits only on a space that was just created by a server that may have lost
// another one, for a second at most.
func (c *Client) TryAcquire(ctx context.Context, parts ...Part) (*Hold, error) {
	o, err := newSpec(append(parts[:len(parts):len(parts)], Wait(0)))
	if err != nil {
		return nil, fmt.Errorf("acquire: %w", err)
	}
	return c.acquire(ctx, o)
}

// acquire sends the request in one session after another until one returns a final reply.
func (c *Client) acquire(ctx context.Context, o *spec) (*Hold, error) {
	acq := &acquisition{client: c, spec: o, began: time.Now()}
	if o.bounded && o.limit > 0 {
		timer := time.NewTimer(o.limit)
		defer timer.Stop()
		acq.limit = timer.C
	}
	for {
		hold, err := acq.attempt(ctx)
		if err == nil {
			return hold, nil
		}
		if !errors.Is(err, errAgain) {
			return nil, fmt.Errorf("acquire %s: %w", o, err)
		}
	}
}

// errAgain means that the session ended under a request: ask again in the next one.
var errAgain = errors.New("the session has ended")

// acquisition is one call of Acquire or TryAcquire.
type acquisition struct {
	client   *Client
	spec     *spec
	nest     *nest // its relation to the holds of its context
	began    time.Time
	limit    <-chan time.Time // nil without a limit
	late     bool             // the limit has passed
	busy     *BusyError       // what blocked it when Redis last replied
	notified bool             // OnWait was called
	reply    error            // the error reply that made the acquire be sent again last
}

// tries reports whether the request must be granted at once or not at all.
func (acq *acquisition) tries() bool { return acq.late || acq.spec.bounded && acq.spec.limit == 0 }

// args returns the arguments of the script.
func (acq *acquisition) args(r *request) []any {
	wait := int64(0)
	switch {
	case acq.tries():
		wait = -1
	case acq.spec.bounded:
		wait = max(1, (acq.spec.limit - time.Since(acq.began)).Milliseconds())
	}
	how := strconv.FormatInt(wait, 10) + "\x1f" + strconv.FormatInt(acq.client.patience.Milliseconds(), 10) +
		"\x1f" + acq.nest.text() + "\x1f" + acq.spec.limits.text(acq.client.Cutoff())
	args := make([]any, 0, 5+len(r.items))
	args = append(args, string(r.session.id), string(r.id), how, string(acq.spec.info), space.JoinItems(r.items))
	if r.plain {
		for _, item := range r.items {
			args = append(args, item.Name)
		}
	}
	return args
}

// stopped returns the error of a request that ends without a grant.
func (acq *acquisition) stopped(cause error) error {
	switch {
	case cause == nil && acq.busy == nil && acq.reply != nil:
		return fmt.Errorf("not possible within %s: %w", acq.spec.limit, acq.reply)
	case cause == nil && acq.busy == nil:
		return fmt.Errorf("no reply within %s", acq.spec.limit)
	case acq.busy == nil && acq.reply != nil:
		return fmt.Errorf("%w; redis said: %w", cause, acq.reply)
	case acq.busy == nil:
		return cause
	}
	busy := *acq.busy // OnWait received the other one
	if !(acq.spec.bounded && acq.spec.limit == 0) {
		busy.Waited = time.Since(acq.began)
	}
	if cause == nil {
		return &busy
	}
	return &endedError{cause, &busy}
}

// attempt asks in the current session. It waits until there is one.
func (acq *acquisition) attempt(ctx context.Context) (*Hold, error) {
	var s *session
	for s == nil {
		if ctx.Err() != nil {
			return nil, acq.stopped(context.Cause(ctx))
		}
		var changed <-chan struct{}
		var err error
		if s, changed, err = acq.client.current(); err == nil {
			break
		}
		if changed == nil || acq.tries() {
			return nil, acq.stopped(err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
		case <-acq.client.closing:
		case <-acq.limit:
			return nil, acq.stopped(err)
		}
	}
	var last <-chan time.Time // for a try, and past the limit
	for {
		acq.nest = acq.client.nesting(ctx, acq.spec.items)
		downgraded, err := acq.nest.enter()
		if err != nil {
			return nil, err
		}
		if downgraded == nil {
			break
		}
		if acq.tries() && last == nil {
			last = time.After(acq.patience())
		}
		select {
		case <-downgraded:
		case <-ctx.Done():
			return nil, acq.stopped(context.Cause(ctx))
		case <-acq.limit:
			return nil, acq.stopped(nil)
		case <-last:
			return nil, acq.stopped(nil)
		}
	}
	if len(acq.nest.rest) == 0 {
		return acq.client.reenter(ctx, acq.spec, acq.nest), nil
	}
	r, err := s.begin(acq.nest.rest)
	if err != nil {
		acq.nest.leave()
		return nil, acq.again(s)
	}
	r.plain = acq.spec.plain(acq.nest)
	r.under, r.info, r.limits = acq.nest.text(), acq.spec.info, acq.spec.limits.text(acq.client.Cutoff())
	hold, err := acq.follow(ctx, s, r)
	if err != nil {
		acq.nest.leave()
	}
	return hold, err
}

// again returns errAgain. A try does not wait for the next session, so it gets the reason why this
// one has ended.
func (acq *acquisition) again(s *session) error {
	if !(acq.spec.bounded && acq.spec.limit == 0) {
		return errAgain
	}
	return s.ended()
}

// follow sends the request and attends to it until it is granted, refused or abandoned. This
// goroutine sends it first, alone or together with the requests of others. Only a retry or a later
// question needs its own goroutine.
func (acq *acquisition) follow(ctx context.Context, s *session, r *request) (*Hold, error) {
	s.mu.Lock()
	r.asking, r.once = true, acq.tries()
	s.mu.Unlock()
	args := acq.args(r)
	reply, err, own := acq.client.sender.sendNow(ctx, acq.client.acquireScript, args, true)
	if !own {
		return acq.await(ctx, s, r, acq.client.sender.enqueue(ctx, acq.client.acquireScript, args), nil)
	}
	final, a := s.answered(ctx, r, outcome{reply, err})
	if final {
		if hold, err := acq.judge(ctx, s, r, a); hold != nil || err != nil {
			return hold, err
		}
		return acq.await(ctx, s, r, nil, nil)
	}
	answers, ok := acq.ask(ctx, s, r)
	if !ok {
		s.forget(r)
		return nil, ErrClosed
	}
	return acq.await(ctx, s, r, nil, answers)
}

// judge handles a reply to the request. It returns neither hold nor error if the request continues.
func (acq *acquisition) judge(ctx context.Context, s *session, r *request, a outcome) (*Hold, error) {
	switch {
	case a.err != nil && s.why() != nil:
		s.forget(r)
		return nil, acq.sessionEnded(s)
	case a.err != nil:
		s.abandon(ctx, r)
		return nil, acq.stopped(a.err)
	}
	return acq.take(ctx, s, r, a.reply)
}

// await attends to a request that was sent with others, or by a goroutine that puts its outcome
// into answers, or that waits in Redis if both are nil.
func (acq *acquisition) await(ctx context.Context, s *session, r *request, posted *call, answers <-chan outcome) (*Hold, error) {
	s.mu.Lock()
	r.channels()
	grants, recheck := r.grant, r.recheck
	s.mu.Unlock()
	var sent <-chan struct{}
	if posted != nil {
		sent = posted.done
	}
	defer func() {
		if sent != nil {
			acq.cleanUp(ctx, s, r, posted)
		}
	}()
	var hurry <-chan time.Time // bounds the last question after the limit
	if acq.late {
		hurry = time.After(acq.patience())
	}
	// again sends the request again, unless it is still in flight.
	again := func() bool {
		if sent != nil || answers != nil {
			return true
		}
		var ok bool
		if answers, ok = acq.ask(ctx, s, r); !ok {
			s.abandon(ctx, r)
		}
		return ok
	}
	for {
		// The reply to a question in flight comes first: if it says that the request waits, that
		// may be the wait that has ended since.
		requeue := recheck
		if sent != nil || answers != nil {
			requeue = nil
		}
		select {
		case <-sent:
			sent = nil
			final, a := s.answered(ctx, r, outcome{posted.Reply, posted.Err})
			if final {
				if hold, err := acq.judge(ctx, s, r, a); hold != nil || err != nil {
					return hold, err
				}
			}
			if (!final || acq.late) && !again() {
				return nil, ErrClosed
			}
		case a := <-answers:
			answers = nil
			if hold, err := acq.judge(ctx, s, r, a); hold != nil || err != nil {
				return hold, err
			}
			if acq.late && !again() {
				return nil, ErrClosed
			}
		case g := <-grants:
			// If the release overtook a question that is still in flight, that would be granted
			// again, without a holder.
			if sent != nil || answers != nil {
				select {
				case <-sent:
					sent = nil
					s.answered(ctx, r, outcome{posted.Reply, posted.Err})
				case <-answers:
				case <-time.After(maxInline):
				case <-ctx.Done():
				case <-s.dead:
				}
			}
			return acq.admit(ctx, s, r, g)
		case <-requeue:
			if !again() {
				return nil, ErrClosed
			}
		case <-acq.limit:
			acq.late = true
			hurry = time.After(acq.patience())
			if !again() {
				return nil, ErrClosed
			}
		case <-hurry:
			acq.reply = s.errorReply(r)
			s.abandon(ctx, r)
			return nil, acq.stopped(nil)
		case <-ctx.Done():
			acq.reply = s.errorReply(r)
			s.abandon(ctx, r)
			return nil, acq.stopped(context.Cause(ctx))
		case <-s.dead:
			s.forget(r)
			return nil, acq.sessionEnded(s)
		}
	}
}

// cleanUp handles a call that its caller no longer waits for.
func (acq *acquisition) cleanUp(ctx context.Context, s *session, r *request, posted *call) {
	ctx = context.WithoutCancel(ctx) // the caller's has ended; the session bounds it
	acq.client.spawn(func() {
		<-posted.done
		if final, _ := s.answered(ctx, r, outcome{posted.Reply, posted.Err}); !final {
			s.ask(ctx, r, posted.Args)
		}
	})
}

// patience returns how long the last question after the limit may take.
func (acq *acquisition) patience() time.Duration { return min(time.Second, acq.client.try) }

// sessionEnded returns the consequence of the end of a session.
func (acq *acquisition) sessionEnded(s *session) error {
	why := s.why()
	if errors.Is(why, ErrClosed) {
		return ErrClosed
	}
	return acq.again(s)
}

// ask sends the request in a goroutine that puts its outcome into the channel. It returns false if
// the client is closed.
func (acq *acquisition) ask(ctx context.Context, s *session, r *request) (<-chan outcome, bool) {
	s.mu.Lock()
	r.asking = true
	s.mu.Unlock()
	args := acq.args(r)
	answers := make(chan outcome, 1)
	// It continues when the caller's context ends, to clean up after the reply. Every command in it
	// has a timeout, and the session bounds it.
	ctx = context.WithoutCancel(ctx)
	return answers, acq.client.spawn(func() { answers <- s.ask(ctx, r, args) })
}

// take handles a reply. It returns neither hold nor error if the request continues.
func (acq *acquisition) take(ctx context.Context, s *session, r *request, reply space.Reply) (*Hold, error) {
	switch reply.At(0) {
	case "granted":
		token, err := ParseToken(reply.At(1))
		if err != nil {
			s.abandon(ctx, r)
			return nil, err
		}
		return acq.admit(ctx, s, r, grant{token, space.Time(reply.NumberAt(2))})
	case "busy":
		acq.blocked(reply)
		s.forget(r)
		return nil, acq.stopped(nil)
	case "waiting":
		acq.blocked(reply)
		// The limit passed while the reply was in flight; the last question ends the wait.
		if acq.late {
			return nil, nil
		}
		acq.client.reaper.due(space.Millis(reply.NumberAt(1)))
		if acq.spec.onWait != nil && acq.busy != nil && !acq.notified {
			acq.notified = true
			acq.spec.onWait(acq.busy)
		}
		return nil, nil
	case "grace":
		s.forget(r)
		return nil, acq.grace(ctx, s, space.Millis(reply.NumberAt(1)))
	case "mode", "limit":
		s.forget(r)
		return nil, acq.unfit(reply)
	case "lost":
		s.forget(r)
		return nil, fmt.Errorf("%w: the hold %s that the request is nested in is no longer valid", ErrLost, reply.At(1))
	case "deadlock":
		s.forget(r)
		e := &DeadlockError{Cut: len(reply)%3 == 2}
		for i := 1; i+2 < len(reply); i += 3 {
			e.Circle = append(e.Circle, DeadlockEdge{reply.At(i), HoldID(reply.At(i + 1)), reply.At(i + 2)})
		}
		return nil, e
	case "dead":
		s.forget(r)
		limit := acq.limit
		if acq.tries() {
			limit = time.After(acq.patience())
		}
		switch {
		case s.doubt(ctx, limit):
			return nil, errAgain
		case ctx.Err() != nil:
			return nil, acq.stopped(context.Cause(ctx))
		case s.why() == nil:
			return nil, acq.stopped(s.ended())
		}
		return nil, acq.sessionEnded(s)
	}
	s.abandon(ctx, r)
	return nil, space.Unexpected("acquire", reply)
}

// unfit returns the error of a request that can never be granted as it is.
func (acq *acquisition) unfit(r space.Reply) error {
	name := r.At(1)
	switch {
	case r.At(0) == "limit":
		return fmt.Errorf("%w: %q has %d permits in all", ErrInvalid, name, r.NumberAt(2))
	case r.NumberAt(2) == 1:
		return fmt.Errorf("%w: %q is declared as permits; ask for it with locks.Permits", ErrInvalid, name)
	}
	return fmt.Errorf("%w: no permits of %q are declared; declare them with Client.Declare, or under permits: in the config of a worker", ErrInvalid, name)
}

// grace waits until the space grants again. A try waits, too, but no longer than a new space does.
// Otherwise the first one would always be refused.
func (acq *acquisition) grace(ctx context.Context, s *session, left time.Duration) error {
	busy := fmt.Errorf("%w for another %s", ErrGrace, left)
	if acq.tries() && left > newborn {
		return acq.stopped(busy)
	}
	timer := time.NewTimer(left + reapSlack())
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.dead:
	case <-ctx.Done():
		return acq.stopped(context.Cause(ctx))
	case <-acq.limit:
		if acq.busy != nil {
			return fmt.Errorf("%w; %w", busy, acq.stopped(nil))
		}
		return busy
	}
	return errAgain
}

// blocked keeps what a reply says about the hold or wait in the way.
func (acq *acquisition) blocked(r space.Reply) {
	if len(r) < 10 {
		return
	}
	token, _ := ParseToken(r.At(6))
	acq.busy = &BusyError{
		Bundle: space.NamesOf(acq.spec.items), Resource: r.At(2), Holder: SessionID(r.At(3)), Hold: HoldID(r.At(4)), Info: r.At(5),
		Token: token, HeldFor: space.Millis(r.NumberAt(7)), LeaseLeft: space.Millis(r.NumberAt(8)), Queue: int(r.NumberAt(9)),
	}
}

// admit creates the hold, unless the session was cut off before.
func (acq *acquisition) admit(ctx context.Context, s *session, r *request, g grant) (*Hold, error) {
	hold, lost := s.admit(ctx, r, g, acq.spec, acq.nest)
	if lost != nil {
		return nil, acq.sessionEnded(s)
	}
	return hold, nil
}
