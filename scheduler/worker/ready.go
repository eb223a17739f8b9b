package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lockstep/locks"
)

// ErrRedis means that Redis keeps this worker from starting runs: it does not reply, or refuses
// writes, for example because its memory is full. It is part of the errors of [Worker.Unready].
var ErrRedis = errors.New("redis is not usable")

// probeEvery is how often a worker checks whether Redis takes writes.
const probeEvery = 2 * time.Second

// Unready returns why the worker is not ready, or nil if it is: it has registered all of its jobs,
// so that a client that waits for it can enqueue them, it is not draining, its session is certain,
// and Redis took its last write.
func (w *Worker) Unready() error {
	switch {
	case !w.begun.Load():
		return errors.New("the worker has not started")
	case !w.ready.Load():
		return errors.New("the worker has not registered all of its jobs")
	case w.draining.Load():
		return errors.New("the worker drains")
	}
	if _, err := w.locks.Extension().Certain(); err != nil {
		return fmt.Errorf("%w: %w", ErrRedis, err)
	}
	if err := w.refusal.Load(); err != nil {
		return fmt.Errorf("%w: %w", ErrRedis, *err)
	}
	return nil
}

// stallLimit is how old the last round of watchRedis may become. Redis cannot delay a round by more
// than callLimit.
const stallLimit = 30 * time.Second

// Stalled returns an error if the worker does not recover by itself: the loop that finds out
// whether it is ready has not come around for a long time, although no outage of Redis can hold it
// up. A worker that is only not ready has not stalled. Nor has one that drains, which its
// DrainTimeout bounds.
func (w *Worker) Stalled() error {
	round := w.round.Load()
	if round == nil || w.draining.Load() {
		return nil
	}
	if age := time.Since(*round); age > stallLimit {
		return fmt.Errorf("the worker has not checked Redis for %s, and each check takes at most %s", age.Round(time.Second), callLimit)
	}
	return nil
}

// Draining reports whether the worker has begun to drain.
func (w *Worker) Draining() bool { return w.draining.Load() }

// ID returns the ID of the worker, which is its session's; "" before the worker has started and
// while no session is certain.
func (w *Worker) ID() locks.SessionID {
	if !w.begun.Load() {
		return ""
	}
	id, err := w.locks.Extension().Certain()
	if err != nil {
		return ""
	}
	return id
}

// watchRedis checks until ctx ends whether Redis takes writes: a session may be renewed while
// nothing can start, because renewals need no memory. It also flushes the repeated log lines that
// were only counted.
func (w *Worker) watchRedis(ctx context.Context) {
	repeat(ctx, probeEvery, func(call context.Context) {
		now := time.Now()
		w.round.Store(&now)
		w.often.Flush(ctx, false)
		err := w.ledger.Writable(call)
		if ctx.Err() != nil {
			return
		}
		before := w.refusal.Load()
		switch {
		case err == nil && before != nil:
			w.refusal.Store(nil)
			w.log.InfoContext(ctx, "Redis takes writes again")
		case err != nil:
			w.refusal.Store(&err)
			if before == nil {
				w.log.WarnContext(ctx, "Redis refuses writes; no run can start", "error", err)
			}
		}
	})
}
