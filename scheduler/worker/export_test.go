package worker

import (
	"context"
	"time"
)

// CloseSession ends the session of a worker after its Run has returned a [StuckError], as the end
// of its process does.
func (w *Worker) CloseSession(ctx context.Context) { w.close(ctx) }

// KnowsPaused reports whether a worker knows that one of its queues is paused.
func (w *Worker) KnowsPaused(queue string) bool {
	paused := w.paused.Load()
	return paused != nil && (*paused)[queue]
}

// ShelfPages is how many pages of places a look for runs that are set aside reads.
const ShelfPages = shelfPages

// WalkShelves is one such look.
var WalkShelves = walkShelves

// Round returns when a worker began its last check of Redis, or the zero time.
func (w *Worker) Round() time.Time {
	if round := w.round.Load(); round != nil {
		return *round
	}
	return time.Time{}
}

// SetRound changes what Round returns.
func (w *Worker) SetRound(at time.Time) { w.round.Store(&at) }

// StallLimit is how old the last round may become.
const StallLimit = stallLimit

// Slow is how long an attempt takes that is certainly not brief.
const Slow = slow

// Ahead returns how many deliveries a worker may have in hand beyond its free slots.
func (w *Worker) Ahead() int {
	w.slots.mu.Lock()
	defer w.slots.mu.Unlock()
	return w.slots.ahead
}

// FreeSlots returns how many slots of a worker are free.
func (w *Worker) FreeSlots() int {
	w.slots.mu.Lock()
	defer w.slots.mu.Unlock()
	return w.slots.free
}
