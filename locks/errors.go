package locks

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

var (
	// ErrBusy means that a bundle was not granted within the limit of [Wait], or not at once when
	// that was requested. The error that carries it is a [*BusyError], which names what is in the
	// way. A wait that ended with its context is not ErrBusy but the context's cause; [errors.As]
	// finds the *BusyError in it, too.
	ErrBusy = errors.New("lock is busy")

	// ErrNoSession means that the client has no session at this time, so it sent nothing to Redis:
	// it cannot reach Redis, or is about to open the next session. That alone loses nothing.
	ErrNoSession = errors.New("no lock session is open")

	// ErrLost means that a hold, or the session it belongs to, is no longer certain or has ended:
	// the lease could not be renewed in time, or Redis no longer knows it. It is the cause of the
	// contexts of the holds that it ends.
	ErrLost = errors.New("lock is lost")

	// ErrExpired means that a hold reached its [MaxHold]. It is an [ErrLost].
	ErrExpired = errors.New("lock was held for longer than its max hold")

	// ErrRevoked means that a hold was revoked, see [Space.Revoke]. It is an [ErrLost], and the
	// error that carries it is a [*RevokedError].
	ErrRevoked = errors.New("lock was revoked")

	// ErrStale means that the hold named by a token no longer exists: the lock has another holder
	// or none.
	ErrStale = errors.New("lock has moved on")

	// ErrDeadlock means that a nested request would wait for itself. The error that carries it is a
	// [*DeadlockError].
	ErrDeadlock = errors.New("deadlock")

	// ErrGrace means that Redis has just lost data, and that nothing is granted until every holder
	// has had time to re-assert what it holds.
	ErrGrace = errors.New("lock space is in its grace period")

	// ErrClosed means that the client was closed.
	ErrClosed = errors.New("lock client is closed")
)

// BusyError reports what blocked a bundle when the space last checked. errors.Is(err, [ErrBusy]) is
// true.
type BusyError struct {
	Bundle   []string  // what the request asked for
	Resource string    // the first resource that was not free
	Holder   SessionID // the holder's session; "" without a holder: see Hold and LeaseLeft
	// Hold is the hold, or the older wait that the resource is reserved for; "" for a limit.
	Hold    HoldID
	Info    string        // the holder's description of its work, see [Info]
	Token   Token         // the hold's fencing token; 0 for a wait
	HeldFor time.Duration // since its grant, or since a wait was queued; by the server's clock
	// LeaseLeft is the time until the holder's session ends unless renewed. Without a holder, it is
	// the time until a resting hold frees the resource (MinHold, CrashDelay).
	LeaseLeft time.Duration
	Queue     int           // how many bundles wait for the resource
	Waited    time.Duration // how long this request waited
}

func (e *BusyError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s is ", e.Resource)
	switch {
	case e.Holder != "":
		fmt.Fprintf(&b, "held by %s (for %s)", e.Holder, e.HeldFor.Round(time.Second))
	case e.Token != 0:
		fmt.Fprintf(&b, "kept for another %s after the hold %s", e.LeaseLeft.Round(time.Millisecond), e.Hold)
	case e.Hold == "":
		b.WriteString("limited to less than the request, or permanently in another mode")
	default:
		fmt.Fprintf(&b, "reserved for an older wait (%s, for %s)", e.Hold, e.HeldFor.Round(time.Second))
	}
	if e.Waited > 0 {
		fmt.Fprintf(&b, "; stopped waiting after %s", e.Waited.Round(time.Millisecond))
	}
	return b.String()
}

// Is reports whether target is [ErrBusy].
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// endedError is why a wait ended without a grant, with what was in its way. For errors.Is, it is
// only the cause.
type endedError struct {
	cause error
	busy  *BusyError
}

func (e *endedError) Error() string { return e.cause.Error() + "; " + e.busy.Error() }

func (e *endedError) Unwrap() error { return e.cause }

// As finds the [*BusyError].
func (e *endedError) As(target any) bool {
	busy, ok := target.(**BusyError)
	if ok {
		*busy = e.busy
	}
	return ok
}

// RevokedError carries the author of a revocation and its reason. errors.Is(err, [ErrRevoked]) and
// errors.Is(err, [ErrLost]) are true.
type RevokedError struct{ Revocation Revocation }

func (e *RevokedError) Error() string {
	text := ErrRevoked.Error()
	if e.Revocation.By != "" {
		text += " by " + e.Revocation.By
	}
	if e.Revocation.Reason != "" {
		text += ": " + e.Revocation.Reason
	}
	return text
}

// Is reports whether target is [ErrRevoked] or [ErrLost].
func (e *RevokedError) Is(target error) bool { return target == ErrRevoked || target == ErrLost }

// DeadlockError names the circle in which a nested request would have waited for itself.
// errors.Is(err, [ErrDeadlock]) is true. The request is over. The caller should release what it
// holds, so that the others can continue. If a lowered limit ([Client.Declare]) closed the circle,
// the youngest of the waiting requests gets the error.
type DeadlockError struct {
	Circle []DeadlockEdge
	// Cut is true if more requests wait for each other than one search examines. Then the request
	// may or may not have closed a circle. It was refused because a request that waits in a circle
	// waits until something else ends it. Circle contains the part that the search covered.
	Cut bool
}

// DeadlockEdge is one step of a circle: a request waits for a resource that a hold has. The first
// edge is the request itself; each later one is a request nested in the previous edge's hold; the
// last hold is one that the request is nested in.
type DeadlockEdge struct {
	Resource string
	Hold     HoldID
	Info     string // the holder's description of its work, see [Info]
}

func (e *DeadlockError) Error() string {
	var b strings.Builder
	b.WriteString("deadlock: this request waits for ")
	for i, edge := range e.Circle {
		if i > 0 {
			b.WriteString(", which waits for ")
		}
		fmt.Fprintf(&b, "%s of %s", edge.Resource, edge.Hold)
	}
	if e.Cut {
		b.WriteString(", and so on through more requests than one search examines; it was refused because they may wait for each other")
		return b.String()
	}
	b.WriteString(", in which this request is nested")
	return b.String()
}

// Is reports whether target is [ErrDeadlock].
func (e *DeadlockError) Is(target error) bool { return target == ErrDeadlock }
