package locks

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"lockstep/locks/space"
)

// reaper makes Redis handle due entries while requests of this client wait, so that the lock of a
// dead worker passes on even if no other client calls. One timer serves all requests. It is set to
// the time in the last reply.
type reaper struct {
	wake chan struct{} // buffer 1

	mu      sync.Mutex
	waiting int       // the number of requests that wait
	forced  bool      // a reply said that there is work left
	owed    time.Time // when the last announced entry is due; zero after a call then
	at      time.Time // when the next entry of the timer wheel is due; zero when there is none
}

// reapSlack is added to the time in a reply. It makes sure that the entry is due by then, and
// spreads the calls of workers that wait for the same entry.
func reapSlack() time.Duration { return 2*time.Millisecond + rand.N(8*time.Millisecond) }

// waits counts requests that begin or stop waiting.
func (r *reaper) waits(n int) {
	r.mu.Lock()
	first := r.waiting == 0
	r.waiting += n
	r.mu.Unlock()
	if first {
		r.signal()
	}
}

// due handles the time to the next due entry in a reply; negative means none. Replies arrive in any
// order, so the earliest time counts until the call for it was made. If the entry was renewed since
// then, that costs one extra call.
func (r *reaper) due(in time.Duration) {
	if in < 0 {
		return
	}
	at := time.Now().Add(in + reapSlack())
	r.mu.Lock()
	earlier := r.at.IsZero() || at.Before(r.at)
	if earlier {
		r.at = at
	}
	waiting := r.waiting > 0
	r.mu.Unlock()
	if earlier && waiting {
		r.signal()
	}
}

// announced handles the message about an entry that begins behind a wait. A call is made then even
// if the wait has ended by that time, since no other client knows of the entry.
func (r *reaper) announced(in time.Duration) {
	at := time.Now().Add(in + reapSlack())
	r.mu.Lock()
	if at.After(r.owed) {
		r.owed = at
	}
	r.mu.Unlock()
	r.due(in)
	r.signal()
}

// now starts the work that a reply reported.
func (r *reaper) now() {
	r.mu.Lock()
	r.forced = true
	r.mu.Unlock()
	r.signal()
}

func (r *reaper) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// next returns how long to wait before the next call, and false if no call is needed.
func (r *reaper) next() (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.forced:
		return 0, true
	case r.waiting == 0 && r.owed.IsZero():
		return 0, false
	}
	at := r.at
	if at.IsZero() || !r.owed.IsZero() && r.owed.Before(at) {
		at = r.owed
	}
	return max(0, time.Until(at)), !at.IsZero()
}

// called notes that a call has succeeded that began at this time.
func (r *reaper) called(began time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !began.Before(r.owed) {
		r.owed = time.Time{}
	}
}

// run calls call, which handles due entries and returns the time to the next one, whenever an entry
// is due.
func (r *reaper) run(ctx context.Context, log *slog.Logger, call func(context.Context) (time.Duration, error)) {
	var pause space.Backoff
	for {
		var timer <-chan time.Time // nil: only a wake-up ends the wait
		if in, ok := r.next(); ok {
			timer = time.After(in)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
			continue
		case <-timer:
		}
		r.mu.Lock()
		forced, began := r.forced, time.Now()
		r.forced, r.at = false, time.Time{}
		r.mu.Unlock()
		in, err := call(ctx)
		if err != nil {
			log.Debug("reaping due entries of the lock space", slog.Any("error", err))
			if !pause.Wait(ctx.Done()) {
				return
			}
			in = 0
		} else {
			pause = space.Backoff{}
			r.called(began)
		}
		r.due(in)
		if forced && in == 0 {
			r.now() // more is left; each call handles some of it
		}
	}
}
