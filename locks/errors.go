package locks

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

var (
	// ErrBusy says that a bundle was not granted in time, or at once where that was asked for. The error that
	// carries it is a [*BusyError], which names who is in the way.
	ErrBusy = errors.New("lock is busy")

	// ErrLost says that a hold, or the session it stands on, is no longer certain or has ended: the lease could not
	// be renewed in time, or Redis no longer knows it. It is the cause of the contexts of the holds that it ends.
	ErrLost = errors.New("lock is lost")

	// ErrClosed says that the client was closed.
	ErrClosed = errors.New("lock client is closed")

	// ErrInvalid says that a request cannot be granted whatever the state of the space: a bad name, no resource or
	// too many. Nothing was sent.
	ErrInvalid = errors.New("invalid lock request")
)

// BusyError tells what stood in the way of a bundle when the space last looked. errors.Is(err, [ErrBusy]) is true.
type BusyError struct {
	Bundle    []string      // what was asked for
	Resource  string        // the first resource of it that was not free
	Holder    SessionID     // who holds it; "" when it is reserved for an older wait
	Hold      HoldID        // the hold, or the request of the older wait
	Info      string        // what the holder told about it, see [Info]
	Token     Token         // the hold's fencing token; 0 for a wait
	HeldFor   time.Duration // since it was granted, or, for a wait, since it was queued; by the server's clock
	LeaseLeft time.Duration // until the holder's session ends unless it is renewed
	Queue     int           // how many bundles wait for the resource
	Waited    time.Duration // how long this request waited
}

func (e *BusyError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s is ", e.Resource)
	if e.Holder != "" {
		fmt.Fprintf(&b, "held by %s (for %s)", e.Holder, e.HeldFor.Round(time.Second))
	} else {
		fmt.Fprintf(&b, "reserved for an older wait (%s, for %s)", e.Hold, e.HeldFor.Round(time.Second))
	}
	if e.Waited > 0 {
		fmt.Fprintf(&b, "; gave up after %s", e.Waited.Round(time.Millisecond))
	}
	return b.String()
}

// Is reports whether target is [ErrBusy].
func (e *BusyError) Is(target error) bool { return target == ErrBusy }
