package queue

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// errorPause is how long all fetchers pause after an error, or while no run can start.
const errorPause = 500 * time.Millisecond

// A gate decides when the fetchers of a server may fetch. They share it, so that four of them cost
// an idle Redis no more than one.
//
//	closed ──open──> idle ──found──> busy ──empty──> idle
//	                  one pass per interval,  every fetcher continues immediately
//	                  and one for each wake
//
// An error also leads to idle, with a longer pause, and so does a worker that cannot start runs.
type gate struct {
	interval time.Duration
	slots    Slots
	ready    func() bool // see Options.Ready; nil: always
	log      *slog.Logger
	once     sync.Once
	opened   chan struct{} // closed by open: the queues are known to belong to this namespace

	mu      sync.Mutex
	idle    bool          // the last pass found nothing; guarded by mu
	next    time.Time     // when the next pass may begin, while idle; guarded by mu
	busy    chan struct{} // closed and replaced when a turn may be available; guarded by mu
	failing bool          // the last reply was an error; guarded by mu
	changes int64         // how often a pass has found something, or a message came; guarded by mu
	since   time.Time     // since when it is idle; guarded by mu
	backlog bool          // two passes have found something, one after the other; guarded by mu
}

func newGate(interval time.Duration, slots Slots, log *slog.Logger) *gate {
	return &gate{
		interval: interval,
		slots:    slots,
		log:      log,
		opened:   make(chan struct{}),
		idle:     true,
		busy:     make(chan struct{}),
	}
}

// open lets fetchers pass from now on.
func (g *gate) open() { g.once.Do(func() { close(g.opened) }) }

// pass waits until a pass may begin and takes slots for the deliveries that it may find: one slot
// for an idle queue, which leaves the rest to others, and more while deliveries are waiting. The
// caller owns these slots. at is for the result of the pass. The error is that of ctx, and then
// there are no slots.
func (g *gate) pass(ctx context.Context) (n int, at int64, err error) {
	select {
	case <-g.opened:
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
	for {
		if err := g.turn(ctx); err != nil {
			return 0, 0, err
		}
		if err := g.slots.Acquire(ctx); err != nil {
			g.wake() // another fetcher takes the turn
			return 0, 0, err
		}
		if g.ready == nil || g.ready() { // after the wait for a slot, which may be long
			break
		}
		g.slots.Release(1)
		g.pause()
	}
	finds, at := g.finds()
	if finds {
		return 1 + g.slots.More(fetchMost-1), at, nil
	}
	return 1, at, nil
}

// turn waits for the caller's turn to poll.
func (g *gate) turn(ctx context.Context) error {
	for {
		wait, busy := g.take()
		if wait <= 0 {
			if err := ctx.Err(); err != nil {
				g.wake() // another fetcher takes the turn
				return err
			}
			return nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-busy:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// take takes the turn if it is available. Otherwise it returns the longest time to wait, and a
// channel that ends the wait.
func (g *gate) take() (wait time.Duration, busy <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.idle {
		return 0, nil
	}
	now := time.Now()
	if wait := g.next.Sub(now); wait > 0 {
		return wait, g.busy
	}
	g.next = now.Add(g.spread(g.interval)) // the others wait during this poll
	return 0, nil
}

// spread returns between half of d and one and a half of d, so that replicas that started together
// do not poll together.
func (g *gate) spread(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }

// found records that a pass has found something.
func (g *gate) found() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.recovered()
	g.changes++
	if g.idle || !g.backlog {
		g.backlog = !g.idle
		g.idle = false
		g.signal()
	}
}

// signal ends all waits for a turn. mu is held.
func (g *gate) signal() {
	close(g.busy)
	g.busy = make(chan struct{})
}

// wake lets one pass begin at once.
func (g *gate) wake() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.changes++
	if g.idle {
		g.next = time.Now()
		g.signal()
	}
}

// empty records that a pass has found nothing. Another one follows if a message has come since it
// began, or another pass has found something: Redis forgets then that this worker sleeps, and the
// reply may be older than that.
func (g *gate) empty(at int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.recovered()
	// While idle, take has already set the time, and wake a new one.
	if !g.idle && at == g.changes {
		g.idle, g.backlog, g.since = true, false, time.Now()
		g.next = g.since.Add(g.spread(g.interval))
	}
}

// pause keeps all fetchers from fetching for a moment.
func (g *gate) pause() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rest()
}

// rest leads to idle, with the pause after an error. mu is held.
func (g *gate) rest() {
	now := time.Now()
	if !g.idle {
		g.since = now
	}
	g.idle, g.backlog = true, false
	g.next = now.Add(g.spread(errorPause))
}

// failed records that Redis did not reply, or replied with an error.
func (g *gate) failed(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rest()
	if !g.failing {
		g.failing = true
		g.log.Warn("fetching deliveries failed, will retry", "error", err)
	}
}

// recovered records a reply. mu is held.
func (g *gate) recovered() {
	if g.failing {
		g.failing = false
		g.log.Info("fetching deliveries works again")
	}
}

// finds reports whether the last pass has found something, and how much has happened so far.
func (g *gate) finds() (finds bool, at int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.idle, g.changes
}

func (g *gate) fails() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failing
}

// awaitBacklog returns when a pass has left something for another one, or with the error of ctx.
func (g *gate) awaitBacklog(ctx context.Context) error {
	for {
		g.mu.Lock()
		backlog, changes := g.backlog, g.busy
		g.mu.Unlock()
		if backlog {
			return ctx.Err()
		}
		select {
		case <-changes:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// awaitIdle returns when nothing was found for [helpFor], or ctx has ended.
func (g *gate) awaitIdle(ctx context.Context) {
	timer := time.NewTicker(helpFor / 10)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		g.mu.Lock()
		idle := g.idle && time.Since(g.since) >= helpFor
		g.mu.Unlock()
		if idle {
			return
		}
	}
}
