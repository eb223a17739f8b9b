package locks

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// reaper has Redis do what is due while requests of this client wait, so that the lock of a worker that died passes on
// although nobody else calls. There is one timer for all of them, set to what the last reply told.
type reaper struct {
	wake chan struct{} // buffer 1

	mu      sync.Mutex
	waiting int       // requests that wait
	forced  bool      // a reply said that there is work left
	at      time.Time // when the next entry of the timer wheel is due; zero when there is none
}

// reapSlack is added to what Redis told: time for the entry to be surely due, and a little dice, so that workers that
// wait for the same entry do not all come at once.
func reapSlack() time.Duration { return 2*time.Millisecond + rand.N(8*time.Millisecond) }

// waits counts requests that begin or stop waiting.
func (r *reaper) waits(n int) {
	r.mu.Lock()
	first := r.waiting == 0
	r.waiting += n
	r.mu.Unlock()
	if first {
		r.rouse()
	}
}

// due takes what a reply told: the time to the next due entry, negative when there is none. Replies come in any order,
// so the earliest time stands until a call was made for it; what has been renewed since then costs one call too many.
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
		r.rouse()
	}
}

// now has the work done that a reply told of.
func (r *reaper) now() {
	r.mu.Lock()
	r.forced = true
	r.mu.Unlock()
	r.rouse()
}

func (r *reaper) rouse() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// next returns how long to wait before the next call, and false when nothing has to be done.
func (r *reaper) next() (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.forced:
		return 0, true
	case r.waiting == 0 || r.at.IsZero():
		return 0, false
	}
	return max(0, time.Until(r.at)), true
}

// run calls call, which does what is due and returns the time to the next entry, whenever something is due.
func (r *reaper) run(ctx context.Context, log *slog.Logger, call func(context.Context) (time.Duration, error)) {
	var pause backoff
	for {
		var timer <-chan time.Time // nil: nothing to wait for but a wake-up
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
		forced := r.forced
		r.forced, r.at = false, time.Time{}
		r.mu.Unlock()
		in, err := call(ctx)
		if err != nil {
			log.Debug("doing what is due in the lock space", slog.Any("error", err))
			if !pause.wait(ctx.Done()) {
				return
			}
			in = 0
		} else {
			pause = backoff{}
		}
		r.due(in)
		if forced && in == 0 {
			r.now() // there is more left; each call does some of it
		}
	}
}
