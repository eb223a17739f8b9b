package space

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Near is for [Commit.Near]: an attempt within a machine takes less, and one between machines may
// take less too.
const Near = 700 * time.Microsecond

// nearFor is how many attempts in a row must take longer than [Commit.Near] before Redis counts as
// far away. Under load, one may take long even if it is near.
const nearFor = 16

// While Redis is near, calls wait for one attempt for stalled times [Commit.Near]. If it has not
// returned by then, Redis counts as far away for farFor: the attempt may hang for much longer.
const (
	stalled = 16
	farFor  = time.Second
)

// A Commit sends the calls of many goroutines (group commit). While few attempts are in flight, a
// caller sends its own call at once: see [Commit.Enter]. Calls that arrive meanwhile are collected
// and sent together: see [Commit.Add]. So the more callers there are, the fewer round trips each of
// them needs. The automatic pipelining of go-redis keeps no deadlines and sends for callers that
// have stopped waiting, so it is not used here.
type Commit[T any] struct {
	Flights int // attempts in flight at once before calls are collected
	// Near makes it one attempt while an attempt takes less than this. Then more of them would only
	// make each one smaller: they gain nothing but the way to Redis and back. 0 means never.
	Near   time.Duration
	Most   int                        // calls in one attempt
	Send   func(context.Context, []T) // makes one attempt, and answers these calls
	Spawn  func(func()) bool          // starts a goroutine, unless its owner is closed
	Refuse func([]T)                  // answers calls for which Spawn has started none
	// Once makes each goroutine that Spawn starts make one attempt, and Spawn start the next one.
	Once bool

	mu       sync.Mutex
	inFlight int       // attempts; guarded by mu
	near     int       // how many more attempts that are not near change nothing; guarded by mu
	far      time.Time // until then, Redis does not count as near; guarded by mu
	began    time.Time // the last attempt; guarded by mu
	watched  bool      // a look is planned, see watch; guarded by mu
	queue    []T       // waits until one of these has returned; guarded by mu
}

// Enter reports whether the caller may send its call by itself. If so, the caller must call
// [Commit.Leave] afterward.
func (c *Commit[T]) Enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inFlight >= c.flights() {
		return false
	}
	c.inFlight++
	c.began = time.Now()
	return true
}

// Leave ends an attempt. The calls that were collected during it are sent in a goroutine, with ctx.
func (c *Commit[T]) Leave(ctx context.Context) {
	c.mu.Lock()
	if len(c.queue) == 0 {
		c.inFlight--
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	if c.Spawn(func() { c.flush(ctx) }) {
		return
	}
	c.mu.Lock()
	refused := c.queue
	c.queue = nil
	c.inFlight--
	c.mu.Unlock()
	c.Refuse(refused)
}

// Add queues a call to be sent with others, in the order of the calls of Add. ctx is for the
// attempt, if that begins at once.
func (c *Commit[T]) Add(ctx context.Context, call T) {
	c.mu.Lock()
	c.queue = append(c.queue, call)
	idle := c.inFlight < c.flights()
	if idle {
		c.inFlight++
	} else {
		c.watch(ctx)
	}
	c.mu.Unlock()
	if idle {
		c.Leave(ctx)
	}
}

// Withdraw removes the first call for which is returns true, unless it is being sent. It reports
// whether it has removed one.
func (c *Commit[T]) Withdraw(is func(T) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.queue, is)
	if i < 0 {
		return false
	}
	// The array also holds the calls that are being sent.
	c.queue = slices.Concat(c.queue[:i], c.queue[i+1:])
	return true
}

// flush sends calls until none are left, or are left to other attempts, or once.
func (c *Commit[T]) flush(ctx context.Context) {
	for {
		c.mu.Lock()
		n := 0
		if c.inFlight <= c.flights() {
			n = min(len(c.queue), c.Most)
		}
		batch := c.queue[:n:n]
		if c.queue = c.queue[n:]; len(c.queue) == 0 {
			c.queue = nil
		}
		if n == 0 {
			c.inFlight--
			c.watch(ctx)
			c.mu.Unlock()
			return
		}
		began := time.Now()
		c.began = began
		c.mu.Unlock()
		c.Send(ctx, batch)
		c.took(time.Since(began))
		if c.Once {
			c.Leave(ctx)
			return
		}
	}
}

// flights returns how many attempts may be in flight now. The caller holds mu.
func (c *Commit[T]) flights() int {
	if c.near > 0 {
		return 1
	}
	return c.Flights
}

// took notes how long an attempt took.
func (c *Commit[T]) took(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case d >= c.Near:
		c.near = max(0, c.near-1)
	case !time.Now().Before(c.far):
		c.near = nearFor
	}
}

// watch plans a look at the calls that wait because Redis is near, for its attempt may not return.
// The caller holds mu.
func (c *Commit[T]) watch(ctx context.Context) {
	if c.near > 0 && len(c.queue) > 0 && !c.watched {
		c.watched = true
		time.AfterFunc(stalled*c.Near, func() { c.look(ctx) })
	}
}

// look lets further attempts begin if none has begun for long while calls wait: then Redis is not
// near.
func (c *Commit[T]) look(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watched = false
	if c.near > 0 && len(c.queue) > 0 && time.Since(c.began) >= stalled*c.Near {
		c.near, c.far = 0, time.Now().Add(farFor)
		// The owner waits for the attempt in flight, which cannot end before this one has begun.
		if c.inFlight < c.Flights && c.Spawn(func() { c.flush(ctx) }) {
			c.inFlight++
		}
	}
	c.watch(ctx)
}

// Outstanding returns how many attempts are in flight, and how many calls wait for them.
func (c *Commit[T]) Outstanding() (inFlight, queued int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inFlight, len(c.queue)
}
