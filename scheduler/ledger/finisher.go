package ledger

import (
	"context"
	"time"

	"lockstep/locks/space"
)

// finishes is how many calls of a Finisher are in flight at most, far from Redis: with one, an end
// would wait for half a round trip before its own.
const finishes = 3

// A Finisher records the ends of attempts that succeeded. While few calls are in flight, it sends
// an end at once; the ends that arrive meanwhile are recorded together (see [space.Commit]).
type Finisher struct {
	ledger *Ledger
	limit  time.Duration
	ends   space.Commit[*ending]
}

// An ending is an end that waits to be recorded with others.
type ending struct {
	finish   Finish
	finished *Finished     // nil when no reply arrived
	done     chan struct{} // closed when finished is final
}

// Finisher returns a Finisher. Each of its calls takes at most limit. spawn starts a goroutine that
// the caller waits for.
func (l *Ledger) Finisher(limit time.Duration, spawn func(func())) *Finisher {
	f := &Finisher{ledger: l, limit: limit}
	f.ends.Flights, f.ends.Near, f.ends.Most, f.ends.Send = finishes, space.Near, MaxTogether, f.send
	f.ends.Spawn = func(f func()) bool { spawn(f); return true }
	return f
}

// Finish records the end of an attempt that succeeded. It returns nil when no reply arrived: then
// the caller must send it again, by [Ledger.Finish].
func (f *Finisher) Finish(ctx context.Context, finish Finish) *Finished {
	if !f.ends.Enter() {
		one := &ending{finish: finish, done: make(chan struct{})}
		f.ends.Add(ctx, one)
		<-one.done // each call before its own ends within the limit
		return one.finished
	}
	defer f.ends.Leave(ctx)
	call, cancel := context.WithTimeout(ctx, f.limit)
	defer cancel()
	finished, _ := f.ledger.Finish(call, finish) // nil with an error
	return finished
}

func (f *Finisher) send(ctx context.Context, some []*ending) {
	call, cancel := context.WithTimeout(ctx, f.limit)
	defer cancel()
	batch := make([]Finish, len(some))
	for i, one := range some {
		batch[i] = one.finish
	}
	for i, finished := range f.ledger.FinishAll(call, batch) {
		some[i].finished = finished
		close(some[i].done)
	}
}
