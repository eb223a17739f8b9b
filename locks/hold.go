package locks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// errReleased is the cause of the context of a hold that was released.
var errReleased = errors.New("lock was released")

// A Hold is a granted bundle. Work under [Hold.Context], pass [Hold.Token] to whatever can check it, and call
// [Hold.Release] when the work has ended.
type Hold struct {
	request *Request
	token   Token
	since   time.Time
	ctx     context.Context // the holder's, handed out; nothing in here waits on it
	cancel  context.CancelCauseFunc
	release func() error // once

	// Guarded by session.mu:
	lost error // why the hold ended before it was released
	done bool  // it is being or was released
}

// stands tells whether work may go on under the hold. The caller holds session.mu.
func (h *Hold) stands() bool { return h.lost == nil && !h.done }

func newHold(parent context.Context, r *Request, token Token, since time.Time) *Hold {
	h := &Hold{request: r, token: token, since: since}
	h.ctx, h.cancel = context.WithCancelCause(parent)
	h.release = sync.OnceValue(func() error { return r.session.release(context.WithoutCancel(h.ctx), h) })
	return h
}

// Context ends with the cause [ErrLost] before the lock can pass on to somebody else, or with another cause once the
// hold is released. It is derived from the context of the request: when that ends, this one does too, and the hold
// stays until it is released.
func (h *Hold) Context() context.Context { return h.ctx }

// Token returns the fencing token of the grant.
func (h *Hold) Token() Token { return h.token }

// ID returns the id of this grant.
func (h *Hold) ID() HoldID { return h.request.id }

// Names returns the resources, sorted.
func (h *Hold) Names() []string { return slices.Clone(h.request.names) }

// Since returns when the bundle was granted, by the server's clock; for a hold that [Request.Granted] made, by this
// machine's.
func (h *Hold) Since() time.Time { return h.since }

// Session returns the session that the hold stands on.
func (h *Hold) Session() SessionID { return h.request.session.id }

// Lost returns why the hold ended before it was released, an error that is [ErrLost], or nil. The cause of the context
// tells the same only when the hold was what ended it first.
func (h *Hold) Lost() error {
	h.request.session.mu.Lock()
	defer h.request.session.mu.Unlock()
	return h.lost
}

// KillBy returns the reading of [BootTime] at which no process that works under the hold may live any more. It moves
// on with every renewal of the lease, stays as it is when the context ends because none succeeds, and has passed once the
// hold is released or lost in another way.
func (h *Hold) KillBy() time.Duration { return h.request.session.killBy(h) }

// Release frees the bundle and passes it on to who waits for it. It is sent again until Redis has answered or the
// session has ended, which bounds its time by the lease. It returns nil when the hold was given back, and an error that
// is [ErrLost] when it had ended before. Calling it again returns the same and does nothing.
func (h *Hold) Release() error { return h.release() }

// Freeing says that a script of another package is about to free the hold: from now on Redis may lack it without its
// being lost. Released follows, or Release when the script did not do it. The context goes on until then.
func (h *Hold) Freeing() { h.request.session.freeing(h) }

// Released forgets a hold that another script has freed, without asking Redis. A later Release returns nil.
func (h *Hold) Released() { h.request.session.released(h) }

// ended returns the result of releasing a hold that is no more.
func (h *Hold) ended(cause error) error {
	if errors.Is(cause, ErrClosed) {
		return nil // closing the client has released it
	}
	return fmt.Errorf("release %s: %w", brief(h.request.names), cause)
}
