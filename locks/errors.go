package locks

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

var (
	// ErrBusy says that a bundle was not granted within the limit of [Wait], or at once where that was asked for. The
	// error that carries it is a [*BusyError], which names what is in the way. A wait that its context has ended is not
	// ErrBusy, but the cause of that; [errors.As] finds the *BusyError in it, too.
	ErrBusy = errors.New("lock is busy")

	// ErrNoSession says that the client has no session at this time, so that nothing was asked of Redis: it cannot reach
	// Redis, or is about to open the next session. Nothing was lost by that.
	ErrNoSession = errors.New("no lock session is open")

	// ErrLost says that a hold, or the session it stands on, is no longer certain or has ended: the lease could not
	// be renewed in time, or Redis no longer knows it. It is the cause of the contexts of the holds that it ends.
	ErrLost = errors.New("lock is lost")

	// ErrExpired says that a hold reached its [MaxHold]. It is an [ErrLost].
	ErrExpired = errors.New("lock was held for longer than its max hold")

	// ErrStalled says that the work under a hold made no progress within the time of [ProgressWithin]. It is an
	// [ErrLost].
	ErrStalled = errors.New("work under the lock made no progress")

	// ErrRevoked says that somebody had the hold given up, see [Space.Revoke]. It is an [ErrLost], and the error that
	// carries it is a [*RevokedError].
	ErrRevoked = errors.New("lock was revoked")

	// ErrStale says that a hold that was named by its token is not there any more: another one has the lock, or nobody.
	ErrStale = errors.New("lock has moved on")

	// ErrDeadlock says that a nested request would wait for itself. The error that carries it is a [*DeadlockError].
	ErrDeadlock = errors.New("deadlock")

	// ErrGrace says that Redis has lost data a moment ago, and that nothing is granted until every holder has had the
	// time to say what it holds.
	ErrGrace = errors.New("lock space is in its grace time")

	// ErrClosed says that the client was closed.
	ErrClosed = errors.New("lock client is closed")

	// ErrInvalid says that a request cannot be granted whatever others do: a bad name, no resource or too many, more
	// permits than there are, a mode that the resource does not have. Nothing has changed.
	ErrInvalid = errors.New("invalid lock request")
)

// BusyError tells what stood in the way of a bundle when the space last looked. errors.Is(err, [ErrBusy]) is true.
type BusyError struct {
	Bundle    []string      // what was asked for
	Resource  string        // the first resource of it that was not free
	Holder    SessionID     // who holds it; "" when nobody does: see Hold and LeaseLeft
	Hold      HoldID        // the hold, or the request of an older wait that it is reserved for; "" for a limit
	Info      string        // what the holder told about it, see [Info]
	Token     Token         // the hold's fencing token; 0 for a wait
	HeldFor   time.Duration // since it was granted, or, for a wait, since it was queued; by the server's clock
	LeaseLeft time.Duration // until the holder's session ends unless it is renewed; without a holder, until a hold that was
	// released, or whose holder died, stops keeping the resource taken (MinHold, CrashDelay)
	Queue  int           // how many bundles wait for the resource
	Waited time.Duration // how long this request waited
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
		b.WriteString("limited to less than is asked for, or is held in another mode for good")
	default:
		fmt.Fprintf(&b, "reserved for an older wait (%s, for %s)", e.Hold, e.HeldFor.Round(time.Second))
	}
	if e.Waited > 0 {
		fmt.Fprintf(&b, "; gave up after %s", e.Waited.Round(time.Millisecond))
	}
	return b.String()
}

// Is reports whether target is [ErrBusy].
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// endedError is why a wait has ended without an answer, with what was in its way. It is the cause alone to errors.Is.
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

// RevokedError tells who had a hold given up, and why. errors.Is(err, [ErrRevoked]) and errors.Is(err, [ErrLost]) are
// true.
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

// DeadlockError names the circle in which a nested request would have waited for itself. errors.Is(err, [ErrDeadlock]) is
// true. The request is over; the caller should release what it holds, so that the others can continue. Where a lowered
// limit ([Client.Declare]) closed the circle, it is the youngest of the waiting requests that gets the error.
type DeadlockError struct {
	Circle []DeadlockEdge
	// Cut is true when more requests wait for each other than one search looks at. Then the request may or may not have
	// closed a circle; it was refused because one that waits in a circle waits until something else ends it. Circle leads
	// as far as the search came.
	Cut bool
}

// DeadlockEdge is one step of a circle: somebody waits for a resource that a hold has. The first one is the request
// itself; each later one is a request nested in the hold before; the last hold is one that the request is nested in.
type DeadlockEdge struct {
	Resource string
	Hold     HoldID
	Info     string // what the holder told about it, see [Info]
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
		b.WriteString(", and so on through more requests than are searched; it was refused lest they wait for each other")
		return b.String()
	}
	b.WriteString(", in which this request is nested")
	return b.String()
}

// Is reports whether target is [ErrDeadlock].
func (e *DeadlockError) Is(target error) bool { return target == ErrDeadlock }
