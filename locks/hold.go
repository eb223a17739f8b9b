package locks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"lockstep/locks/space"
)

// errReleased is the cause of the context of a hold that was released.
var errReleased = errors.New("lock was released")

// A Hold is a granted bundle. Work under [Hold.Context], pass [Hold.Token] to every system that can
// check it, and call [Hold.Release] when the work has ended.
//
// A request with the context of a hold is nested in it: it does not ask for resources that the hold
// already has. If such a request uses the hold, the hold is freed when the last of them is
// released, itself included.
type Hold struct {
	client *Client
	// request is the granted one; nil for a hold that only re-enters others, or was joined.
	request  *request
	joined   *joined // set for a hold that was joined
	id       HoldID
	session  SessionID
	token    Token
	since    time.Time
	outer    *Hold           // the hold of the request's context, or nil
	covers   []cover         // the outer holds that have a part of the bundle
	ctx      context.Context // handed to the holder; no code in here waits on it
	cancel   context.CancelCauseFunc
	once     sync.Once // of the release
	result   error     // of the release, written in once
	limits   limits
	admitted instant       // when it was created here
	spent    time.Duration // how much of its time had passed then, at most

	mu *sync.Mutex // guards the following fields; the session's, or its own

	items []Item // the whole bundle, including what is covered; sorted
	users int    // the hold and the holds that use it; freed when none is left
	// inner counts, by resource, the holds that use it and have that resource exclusively by it.
	inner      map[string]int
	downgraded *downgrade    // the one in flight, or nil
	lost       error         // why the hold ended before it was released
	done       bool          // a release has begun
	wanted     *space.Asked  // the last revocation
	asked      chan struct{} // created by Asked, closed by a revocation
	killBy     time.Duration // boot clock, set when a limit or a revocation ends the hold; 0 before
}

// valid reports whether the hold is valid, so that work may continue. The caller holds mu.
func (h *Hold) valid() bool { return h.lost == nil && !h.done }

type holdKey struct{}

// newHold creates the hold of a bundle. Its context is the parent's plus the hold itself, for
// requests nested in it.
func newHold(c *Client, parent context.Context, mu *sync.Mutex, items []Item) *Hold {
	h := &Hold{client: c, mu: mu, items: items, users: 1}
	h.outer, _ = parent.Value(holdKey{}).(*Hold)
	ctx, cancel := context.WithCancelCause(parent)
	h.ctx, h.cancel = context.WithValue(ctx, holdKey{}, h), cancel
	return h
}

// Context ends with the cause [ErrLost] before the lock can pass to another client, or with another
// cause once the hold is released. It is derived from the context of the request: if that ends,
// this one does too, and the hold stays until it is released. Requests with this context, or one
// derived from it, are nested in the hold.
func (h *Hold) Context() context.Context { return h.ctx }

// Token returns the fencing token of the grant. For a hold that re-enters others, it is the highest
// of their tokens.
func (h *Hold) Token() Token { return h.token }

// ID returns the ID of this grant. For a hold that re-enters others, it is the innermost one's.
func (h *Hold) ID() HoldID { return h.id }

// Names returns the resources, sorted.
func (h *Hold) Names() []string { return space.NamesOf(h.Items()) }

// Items returns the resources and how they are held, sorted by name.
func (h *Hold) Items() []Item {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Item(nil), h.items...)
}

// Since returns when the bundle was granted, by the server's clock.
func (h *Hold) Since() time.Time { return h.since }

// Session returns the session that the hold belongs to.
func (h *Hold) Session() SessionID { return h.session }

// Lost returns why the hold ended before it was released, an error that is [ErrLost], or nil. The
// cause of the context is the same error only if the loss of the hold ended the context first.
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

// KillBy returns the reading of the boot clock ([lockstep/locks/bootclock.Now]) by which every
// process that works under the hold must have exited. It advances with every renewal of the lease.
// It stays as it is when the context ends because no renewal succeeded. Once the hold is released
// or lost in another way, it is in the past.
func (h *Hold) KillBy() time.Duration {
	by := time.Duration(-1)
	switch {
	case h.joined != nil:
		by = h.joined.killBy(h)
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

// Asked returns a channel that is closed when the lock is asked for, see [Space.Revoke]: the holder
// should finish and release it. [Hold.Why] names the caller and the reason. If the holder ignores
// it, nothing else happens.
func (h *Hold) Asked() <-chan struct{} {
	if h.request == nil && h.joined == nil {
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

// Why returns the details of the last revocation, or nil without one.
func (h *Hold) Why() *Revocation {
	if h.request == nil && h.joined == nil {
		return h.covers[0].Why()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.wanted == nil {
		return nil
	}
	return &h.wanted.Revocation
}

// Release frees the bundle and passes it on to the waiters. It is sent again until Redis replies or
// the session has ended, which bounds its time by the lease. It returns nil if the hold was given
// back. That includes a release with a lost reply, if the hold is known to have ended, or to end
// with the session. It returns an error that is [ErrLost] if the hold had ended before. Calling it
// again returns the same and does nothing. While other holds or requests use this one, the last of
// them frees it.
func (h *Hold) Release() error {
	h.once.Do(func() { h.result = h.leave(nil) })
	return h.result
}

// enter counts one more user of a hold, which has these resources exclusively by it. It counts none
// if the hold is no longer valid. Neither does it while one of them is downgraded, or if that has
// happened since the nesting was determined: it returns a channel that is closed when that is over.
func (h *Hold) enter(exclusive []string) (valid bool, downgraded <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.valid() || h.users == 0 {
		return false, nil
	}
	for _, name := range exclusive {
		if h.downgraded != nil && slices.Contains(h.downgraded.names, name) {
			return true, h.downgraded.over
		}
		if !slices.ContainsFunc(h.own(), func(item Item) bool { return item.Name == name && item.Mode == ModeExclusive }) {
			over := make(chan struct{})
			close(over)
			return true, over
		}
	}
	h.users++
	for _, name := range exclusive {
		if h.inner == nil {
			h.inner = make(map[string]int)
		}
		h.inner[name]++
	}
	return true, nil
}

// leave removes one user, which had these resources exclusively by the hold. The last one frees the
// hold.
func (h *Hold) leave(exclusive []string) error {
	if !h.unused(exclusive) {
		return nil
	}
	return h.free()
}

// unused removes one user, as leave does, and returns whether it was the last one. Then the caller
// must free the hold.
func (h *Hold) unused(exclusive []string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.users--
	for _, name := range exclusive {
		h.inner[name]--
	}
	return h.users == 0
}

// free gives the hold back, for its last user.
func (h *Hold) free() error {
	var err error
	switch {
	case h.joined != nil:
		h.joined.leave(h)
	case h.request != nil:
		err = h.request.session.release(context.WithoutCancel(h.ctx), h)
	default:
		h.cancel(errReleased)
	}
	for _, outer := range h.covers {
		if outerErr := outer.leave(outer.exclusive); err == nil {
			err = outerErr // the inner hold is lost because the outer one is
		}
	}
	return err
}

// ended returns the result of releasing a hold that has already ended.
func (h *Hold) ended(cause error) error {
	if errors.Is(cause, ErrClosed) {
		return nil // closing the client has released it
	}
	return fmt.Errorf("release %s: %w", brief(h.Items()), cause)
}

// overdue returns why a hold must end by its limits, or nil. The caller holds mu.
func (h *Hold) overdue(now instant) error {
	if most := h.limits.most; most > 0 && h.spent+now.since(h.admitted) >= most {
		return fmt.Errorf("%w: %w of %s", ErrLost, ErrExpired, most)
	}
	return nil
}

// lose ends the work under a hold. The caller holds mu, and cancels the context afterward.
func (h *Hold) lose(cause error) {
	h.lost = cause
	h.killBy = h.client.clock.read().boot + killAfter(h.client.Cutoff())
}

// FromContext returns the innermost hold that ctx comes from, or nil without one. The hold may have
// ended meanwhile.
func FromContext(ctx context.Context) *Hold {
	hold, _ := ctx.Value(holdKey{}).(*Hold)
	return hold
}
