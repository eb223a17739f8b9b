package space

import "time"

// Insist makes a call that may be repeated, until it is done. Without an error, a call that is not
// done has more to do, and is repeated at once. After an error, it is repeated after a growing
// pause, unless one of stop is closed, of which there are two at most. Insist returns the error of
// the last call. A call in flight is not interrupted, since its command may have been applied.
//
// Some loops do not end with one call, but follow a state: reaper, subscriber, reconciliation. They
// use a [Backoff] themselves.
func Insist(pause Backoff, call func() (done bool, err error), stop ...<-chan struct{}) error {
	for {
		if done, err := call(); done || err != nil && !pause.Wait(stop...) {
			return err
		}
	}
}

// Over reports whether a command needs no other attempt: it had a reply, or an error that does not
// pass.
func Over(err error) bool { return err == nil || !Passing(err) }

// A Backoff is a growing pause between two attempts to send a command.
type Backoff struct {
	First time.Duration // default 20 ms
	Most  time.Duration // default 500 ms

	last time.Duration
}

const (
	firstPause = 20 * time.Millisecond
	maxPause   = 500 * time.Millisecond
)

// Wait pauses. It returns false if one of stop is closed, of which there are two at most.
func (b *Backoff) Wait(stop ...<-chan struct{}) bool {
	first, most := b.First, b.Most
	if most == 0 {
		first, most = firstPause, maxPause
	}
	b.last = min(max(2*b.last, first), most)
	return Sleep(b.last, stop...)
}

// Sleep returns false if one of stop is closed before the time is over. There are two at most.
func Sleep(d time.Duration, stop ...<-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	stop = append(stop, nil, nil) // receiving from nil blocks
	select {
	case <-stop[0]:
		return false
	case <-stop[1]:
		return false
	case <-timer.C:
		return true
	}
}
