package worker

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"time"

	"lockstep/scheduler/ledger"
)

const (
	// seatPatience is how long a delivery waits for a slot after its fetch. Then it goes back to
	// its queue, for another worker, if an attempt runs in each slot.
	seatPatience = 100 * time.Millisecond

	// long is how long an attempt has run that keeps the worker from fetching ahead.
	long = 5 * brief

	aheadOfSlots = 64 // deliveries that are fetched ahead at most
)

// A fetched is a delivery that was fetched ahead of its slot, or a run that was adopted ahead of
// its slot.
type fetched struct {
	due     ledger.Due
	settled chan struct{} // closed when its claim is settled
}

// slots are the slots of a worker, one for each attempt, and the deliveries that it may have in
// hand: as many as slots are free, and some more ahead of their slots while attempts here are brief
// (see [slots.SetAhead]). So a slot need not wait for a fetch. A delivery takes no lock before it
// has a slot. Slots that become free are for the deliveries that wait for one, then for the callers
// of Acquire and Take, in the order of their calls.
//
//	inHand <= free + ahead    free >= 0    free > 0 only while no delivery waits
//
// The first one may be violated while ahead falls. It implements [queue.Slots], for the fetches.
type slots struct {
	// seat claims the runs of deliveries that have waited for a slot and got one. It must not
	// block.
	seat func([]*fetched)

	mu    sync.Mutex
	free  int // slots; guarded by mu
	ahead int // guarded by mu
	// deliveries without a slot, including those that are being fetched; guarded by mu
	inHand int
	ready  []*fetched  // those that wait for a slot, the oldest first; guarded by mu
	calls  []*slotCall // of Acquire and Take that wait, the oldest first; guarded by mu
	// when each attempt that runs now began, the first one first: time.Time; guarded by mu
	attempts list.List
}

// A slotCall waits for a slot, or for a fetch.
type slotCall struct {
	fetch   bool
	granted chan struct{} // closed when it is
}

// mayFetch reports whether one more delivery may be fetched. The caller holds mu.
func (s *slots) mayFetch() bool {
	return s.inHand < s.free || s.inHand < s.free+s.ahead && !s.anyLong()
}

// anyLong reports whether an attempt has run for [long]. The caller holds mu.
func (s *slots) anyLong() bool {
	first := s.attempts.Front()
	return first != nil && time.Since(first.Value.(time.Time)) > long
}

// Begin adds an attempt that runs from now on.
func (s *slots) Begin() *list.Element {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attempts.PushBack(time.Now())
}

// End removes an attempt.
func (s *slots) End(attempt *list.Element) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts.Remove(attempt)
	s.wake()
}

// Running returns how many attempts run, and whether one of them has run for [long].
func (s *slots) Running() (n int, anyLong bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attempts.Len(), s.anyLong()
}

// HasFree reports whether a slot is free and not needed for a delivery in hand.
func (s *slots) HasFree() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inHand < s.free
}

// grant grants a call if it can. The caller holds mu.
func (s *slots) grant(fetch bool) bool {
	switch {
	case !s.mayFetch(), !fetch && s.free == 0:
		return false
	case fetch:
		s.inHand++
	default:
		s.free--
	}
	return true
}

// wake grants calls that wait. The caller holds mu.
func (s *slots) wake() {
	for len(s.calls) > 0 && s.grant(s.calls[0].fetch) {
		close(s.calls[0].granted)
		s.calls = s.calls[1:]
	}
}

// wait waits until a call is granted, or until ctx ends.
func (s *slots) wait(ctx context.Context, fetch bool) error {
	s.mu.Lock()
	if len(s.calls) == 0 && s.grant(fetch) {
		s.mu.Unlock()
		return nil
	}
	call := &slotCall{fetch: fetch, granted: make(chan struct{})}
	s.calls = append(s.calls, call)
	s.mu.Unlock()
	select {
	case <-call.granted:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	if i := slices.Index(s.calls, call); i >= 0 {
		s.calls = slices.Delete(s.calls, i, i+1)
		s.wake()
		s.mu.Unlock()
		return ctx.Err()
	}
	s.mu.Unlock()
	return nil // it was granted meanwhile
}

// Acquire waits until one delivery may be fetched.
func (s *slots) Acquire(ctx context.Context) error { return s.wait(ctx, true) }

// More returns how many further deliveries may be fetched now, up to most.
func (s *slots) More(most int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for n < most && len(s.calls) == 0 && s.grant(true) {
		n++
	}
	return n
}

// Release returns that n deliveries were not fetched, or that n tasks need no slot.
func (s *slots) Release(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inHand -= n
	s.wake()
}

// Take waits for a slot, for a run without a delivery.
func (s *slots) Take(ctx context.Context) error { return s.wait(ctx, false) }

// TryTake takes a slot if one is free.
func (s *slots) TryTake() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls) == 0 && s.grant(false)
}

// Free returns slots.
func (s *slots) Free(n int) {
	s.mu.Lock()
	s.free += n
	some := s.seats()
	s.wake()
	s.mu.Unlock()
	if len(some) > 0 {
		s.seat(some)
	}
}

// seats takes free slots for the deliveries that wait. The caller holds mu.
func (s *slots) seats() []*fetched {
	n := min(s.free, len(s.ready))
	some := s.ready[:n:n]
	s.ready = s.ready[n:]
	s.free, s.inHand = s.free-n, s.inHand-n
	return some
}

// Arrive adds deliveries that were fetched, and returns those that have a slot now. The others wait
// for one.
func (s *slots) Arrive(some []*fetched) []*fetched {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = append(s.ready, some...)
	return s.seats()
}

// Withdraw removes those of some deliveries that wait for a slot, and returns them.
func (s *slots) Withdraw(some []*fetched) (waited []*fetched) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rest []*fetched
	for _, f := range s.ready {
		if slices.Contains(some, f) {
			waited = append(waited, f)
		} else {
			rest = append(rest, f)
		}
	}
	s.ready, s.inHand = rest, s.inHand-len(waited)
	s.wake()
	return waited
}

// SetAhead sets how many deliveries may be in hand beyond the free slots.
func (s *slots) SetAhead(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead = n
	s.wake()
}
