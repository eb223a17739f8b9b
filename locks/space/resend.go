package space

import "time"

// Backoff is a growing pause between two attempts to send a command.
type Backoff struct{ last time.Duration }

const (
	firstPause = 20 * time.Millisecond
	maxPause   = 500 * time.Millisecond
)

// Wait pauses. It returns false if dead is closed.
func (b *Backoff) Wait(dead <-chan struct{}) bool {
	b.last = min(max(2*b.last, firstPause), maxPause)
	return Sleep(b.last, dead)
}

// Sleep returns false if done is closed before the time is over.
func Sleep(d time.Duration, done <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return false
	case <-timer.C:
		return true
	}
}
