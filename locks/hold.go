package locks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// errReleased is the cause of the context of a hold that was released.
var errReleased = errors.New("lock was released")

// A Hold is a granted bundle. Work under [Hold.Context], pass [Hold.Token] to whatever can check it, and call
// [Hold.Release] when the work has ended.
//
// A request with the context of a hold is nested in it: what the hold has already is not asked for again. A hold of
// which such a request makes use is freed when the last of them is released, itself included.
type Hold struct {
	client   *Client
	request  *Request // that was granted; nil for a hold that only re-enters others, or was joined
	joint    *joint   // of a hold that was joined, else nil
	id       HoldID
	session  SessionID
	token    Token
	since    time.Time
	outer    *Hold           // the hold whose context the request had, or nil
	covers   []*Hold         // the outer holds that have a part of the bundle
	ctx      context.Context // the holder's, handed out; nothing in here waits on it
	cancel   context.CancelCauseFunc
	once     sync.Once // of the release
	result   error     // of it; written in once
	limits   limits
	admitted instant       // when it was made here
	spent    time.Duration // how much of its time had passed then, at most

	mu *sync.Mutex // the session's, or its own; guards:

	items    []Item        // the whole bundle, also what is covered; sorted
	users    int           // it and the holds that make use of it; freed when none is left
	lost     error         // why the hold ended before it was released
	done     bool          // it is being or was released
	wanted   *Asked        // how it was wanted back last
	asked    chan struct{} // made by who wants to know, closed when somebody asks for the lock
	progress instant       // of the last sign of it
	killBy   time.Duration // boot clock, once a limit or a revocation has ended it; 0 before
}

// stands tells whether work may go on under the hold. The caller holds mu.
func (h *Hold) stands() bool { return h.lost == nil && !h.done }

type holdKey struct{}

// newHold makes the hold of a bundle. Its context is the parent's, with the hold in it for the requests nested in it.
func newHold(c *Client, parent context.Context, mu *sync.Mutex, items []Item) *Hold {
	h := &Hold{client: c, mu: mu, items: items, users: 1}
	h.outer, _ = parent.Value(holdKey{}).(*Hold)
	ctx, cancel := context.WithCancelCause(parent)
	h.ctx, h.cancel = context.WithValue(ctx, holdKey{}, h), cancel
	return h
}

// Context ends with the cause [ErrLost] before the lock can pass on to somebody else, or with another cause once the
// hold is released. It is derived from the context of the request: when that ends, this one does too, and the hold
// stays until it is released. Requests with this context, or one derived from it, are nested in the hold.
func (h *Hold) Context() context.Context { return h.ctx }

// Token returns the fencing token of the grant; of a hold that re-enters others, the highest one of theirs.
func (h *Hold) Token() Token { return h.token }

// ID returns the id of this grant; of a hold that re-enters others, the innermost one's.
func (h *Hold) ID() HoldID { return h.id }

// Names returns the resources, sorted.
func (h *Hold) Names() []string { return namesOf(h.Items()) }

// Items returns the resources and how they are held, sorted by name.
func (h *Hold) Items() []Item {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Item(nil), h.items...)
}

// Since returns when the bundle was granted, by the server's clock.
func (h *Hold) Since() time.Time { return h.since }

// Session returns the session that the hold stands on.
func (h *Hold) Session() SessionID { return h.session }

// Lost returns why the hold ended before it was released, an error that is [ErrLost], or nil. The cause of the context
// tells the same only when the hold was what ended it first.
func (h *Hold) Lost() error {
	h.mu.Lock()
	lost := h.lost
	h.mu.Unlock()
	for _, outer := range h.covers {
		if lost == nil {
			lost = outer.Lost()
		}
	}
	return lost
}

// KillBy returns the reading of [BootTime] at which no process that works under the hold may live any more. It moves
// on with every renewal of the lease, stays as it is when the context ends because none succeeds, and has passed once the
// hold is released or lost in another way.
func (h *Hold) KillBy() time.Duration {
	by := time.Duration(-1)
	switch {
	case h.joint != nil:
		by = h.joint.killBy(h)
	case h.request != nil:
		by = h.request.session.killBy(h)
	}
	for _, outer := range h.covers {
		if at := outer.KillBy(); by < 0 || at < by {
			by = at
		}
	}
	return by
}

// Progress tells that the work under the hold gets on, see [ProgressWithin].
func (h *Hold) Progress() {
	now := h.client.clock.read()
	h.mu.Lock()
	h.progress = now
	h.mu.Unlock()
	for _, outer := range h.covers {
		outer.Progress()
	}
}

// Asked is closed when somebody asks for the lock, see [Space.Revoke]: the holder should come to an end and release it.
// [Hold.Why] tells who asks. Nothing else happens if it does not.
func (h *Hold) Asked() <-chan struct{} {
	if h.request == nil && h.joint == nil {
		return h.covers[0].Asked()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.asked == nil {
		h.asked = make(chan struct{})
		if h.wanted != nil {
			close(h.asked)
		}
	}
	return h.asked
}

// Why returns what was said with the last revocation, or nil when there was none.
func (h *Hold) Why() *Revocation {
	if h.request == nil && h.joint == nil {
		return h.covers[0].Why()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.wanted == nil {
		return nil
	}
	return &h.wanted.Revocation
}

// Release frees the bundle and passes it on to who waits for it. It is sent again until Redis has answered or the
// session has ended, which bounds its time by the lease. It returns nil when the hold was given back, also when the answer
// to that was lost and it is only known to be gone, or to be bound to go with the session; and an error that is [ErrLost]
// when it had ended before. Calling it again returns the same and does nothing. While other holds make use of this one, the
// last of them frees it.
func (h *Hold) Release() error {
	h.once.Do(func() { h.result = h.leave() })
	return h.result
}

// enter counts one more user of a hold, unless it does not stand any more.
func (h *Hold) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.stands() || h.users == 0 {
		return false
	}
	h.users++
	return true
}

// leave counts one user less; the last one frees the hold.
func (h *Hold) leave() error {
	h.mu.Lock()
	h.users--
	last := h.users == 0
	h.mu.Unlock()
	if !last {
		return nil
	}
	var err error
	switch {
	case h.joint != nil:
		h.joint.leave(h)
	case h.request != nil:
		err = h.request.session.release(context.WithoutCancel(h.ctx), h)
	default:
		h.cancel(errReleased)
	}
	for _, outer := range h.covers {
		if outerErr := outer.leave(); err == nil {
			err = outerErr // what is inside is lost because of what is outside
		}
	}
	return err
}

// Freeing says that a script of another package is about to free the hold: from now on Redis may lack it without its being
// lost. Released follows, or Release when the script did not free it. The context stays valid until then. A hold that only
// re-enters others, or was joined, has nothing of its own in Redis that a script could free: then Freeing does nothing.
func (h *Hold) Freeing() {
	if h.request != nil {
		h.request.session.freeing(h)
	}
}

// Released forgets a hold that another script has freed, without asking Redis, and ends its use of the holds that it is
// nested in. A later Release returns the same as if it had freed the hold. For a hold that only re-enters others, or was
// joined, Released is Release.
func (h *Hold) Released() {
	if h.request != nil {
		h.request.session.released(h)
	}
	_ = h.Release() // its error is returned by the next call, too
}

// ended returns the result of releasing a hold that is no more.
func (h *Hold) ended(cause error) error {
	if errors.Is(cause, ErrClosed) {
		return nil // closing the client has released it
	}
	return fmt.Errorf("release %s: %w", brief(h.Items()), cause)
}

// overdue returns why a hold has to end by its limits, or nil. The caller holds mu.
func (h *Hold) overdue(now instant) error {
	if most := h.limits.most; most > 0 && h.spent+now.since(h.admitted) >= most {
		return fmt.Errorf("%w: %w of %s", ErrLost, ErrExpired, most)
	}
	if within := h.limits.progress; within > 0 && now.since(h.progress) >= within {
		return fmt.Errorf("%w: %w for %s", ErrLost, ErrStalled, within)
	}
	return nil
}

// lose ends the work under a hold. The caller holds mu, and cancels the context after it.
func (h *Hold) lose(cause error) {
	h.lost = cause
	h.killBy = h.client.clock.read().boot + h.client.Cutoff()*2/3
}
