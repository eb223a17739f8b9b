package worker

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
	"lockstep/scheduler/repeats"
)

const (
	pushMost = 500 // deliveries that are pushed and confirmed together

	// lingerFor is how long a pusher collects deliveries after a push of several: a push and its
	// confirmation cost Redis much more for each of a few than for each of many.
	lingerFor = 2 * time.Millisecond

	// pendingMost is how many runs a pusher keeps. Pushing them takes about a second, less than a
	// push may stay unconfirmed, and they need a few megabytes.
	pendingMost = 10_000
	// how many of those may be of sweeps; the others are for runs that become due in other ways
	sweptMost = 2000
)

// A Pusher pushes deliveries to their queues and confirms them in the ledger: by [Pusher.Push],
// which waits for that, or by [Pusher.Add], which does not: what it collects is sent in batches. A
// Pusher keeps one delivery per run, the newest, and a bounded number of runs. The sweep repeats,
// under the next n, the deliveries that the pusher could not push or confirm, and those that it did
// not take. A Pusher is safe for concurrent use.
type Pusher struct {
	queue  *queue.Client
	ledger *ledger.Ledger
	wake   chan struct{} // buffer of one: wake-ups may merge

	mu sync.Mutex
	// the runs in pending, the first to be pushed first; guarded by mu
	order   []jobs.RunID
	pending map[jobs.RunID]ledger.Due // the newest delivery of each run; guarded by mu
	waiting map[string]int            // number of pending deliveries per queue; guarded by mu
	pushing map[jobs.RunID]int64      // the n of deliveries that are being pushed; guarded by mu
	// deliveries that were not taken, since the start; guarded by mu
	left int64
	told int64 // how many of left were already logged and reported to OnLeft; guarded by mu

	// OnLeft receives how many deliveries were left to the sweep since the last call, because the
	// pusher was full. Set it before Run; it may be nil.
	OnLeft func(n int)
}

// NewPusher returns a pusher. It starts nothing: [Pusher.Add] needs a running [Pusher.Run].
func NewPusher(q *queue.Client, l *ledger.Ledger) *Pusher {
	return &Pusher{queue: q, ledger: l, wake: make(chan struct{}, 1), pending: make(map[jobs.RunID]ledger.Due),
		waiting: make(map[string]int), pushing: make(map[jobs.RunID]int64)}
}

// Add hands deliveries to [Pusher.Run] to be pushed. A delivery replaces an older one of its run.
// One that is being pushed is not pushed again, unless it is put back: a worker may fetch it before
// it is confirmed. Those that do not fit are left to the sweep, which repeats what stays
// unconfirmed.
func (p *Pusher) Add(due ...ledger.Due) {
	p.mu.Lock()
	for _, d := range due {
		before, known := p.pending[d.Run]
		n, underWay := p.pushing[d.Run]
		switch {
		case known && before.N >= d.N, underWay && (n > d.N || n == d.N && !d.PutBack):
		case known:
			p.waiting[before.Queue]--
			p.waiting[d.Queue]++
			p.pending[d.Run] = d
		case len(p.pending)+len(p.pushing) >= pendingMost:
			p.left++
		default:
			p.waiting[d.Queue]++
			p.pending[d.Run] = d
			p.order = append(p.order, d.Run)
		}
	}
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Room returns for how many deliveries a sweep may make runs due.
func (p *Pusher) Room() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, sweptMost-len(p.pending)-len(p.pushing))
}

// Waiting reports whether deliveries of any of these queues wait behind those that are being
// pushed.
func (p *Pusher) Waiting(queues []string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(queues, func(q string) bool { return p.waiting[q] > 0 })
}

// Pending reports whether this delivery, or a newer one of its run, is waiting or being pushed.
func (p *Pusher) Pending(d ledger.Due) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	newest, known := p.pending[d.Run]
	n, underWay := p.pushing[d.Run]
	return known && newest.N >= d.N || underWay && n >= d.N
}

// take returns the deliveries to push next. They count as being pushed until done is called.
func (p *Pusher) take() []ledger.Due {
	p.mu.Lock()
	defer p.mu.Unlock()
	some := make([]ledger.Due, min(len(p.order), pushMost))
	for i := range some {
		some[i] = p.pending[p.order[i]]
		delete(p.pending, p.order[i])
		p.waiting[some[i].Queue]--
		p.pushing[some[i].Run] = some[i].N
	}
	if p.order = p.order[len(some):]; len(p.order) == 0 {
		p.order = nil
	}
	return some
}

// done notes that no delivery is being pushed.
func (p *Pusher) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.pushing)
}

// tellLeft logs and counts the deliveries that were left to the sweep since the last call.
func (p *Pusher) tellLeft(ctx context.Context, often *repeats.Logger) {
	p.mu.Lock()
	left, total := p.left-p.told, p.left
	p.told = p.left
	p.mu.Unlock()
	if left == 0 {
		return
	}
	often.WarnContext(ctx, "more deliveries wait to be pushed than this process keeps, the sweep will push the others", "deliveries", left, "since_start", total)
	if p.OnLeft != nil {
		p.OnLeft(int(left))
	}
}

// Run pushes added deliveries until ctx ends, then once more the remaining ones.
func (p *Pusher) Run(ctx context.Context, log *slog.Logger) {
	often := repeats.New(log, "")
	defer often.Flush(context.WithoutCancel(ctx), true)
	for ended := false; !ended; {
		often.Flush(ctx, false)
		select {
		case <-p.wake:
			runtime.Gosched() // goroutines that were waked together add together
		case <-ctx.Done():
			ended = true
		}
		if !p.pushAll(ctx, often, ended) {
			return
		}
	}
}

// pushAll pushes the pending deliveries. The last time, all of them together have the time of one
// call: the sweep pushes the remaining ones. It returns false when that time was over.
func (p *Pusher) pushAll(ctx context.Context, often *repeats.Logger, last bool) bool {
	ended := ctx.Done()
	// most of the deliveries that remain at the end should still be pushed
	ctx = context.WithoutCancel(ctx)
	if last {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callLimit)
		defer cancel()
	}
	for some := p.take(); len(some) > 0; some = p.take() {
		call, cancel := context.WithTimeout(ctx, callLimit)
		err := p.Push(call, some...)
		cancel()
		p.done()
		p.tellLeft(ctx, often)
		if err != nil {
			often.WarnContext(ctx, "deliveries are not pushed or not confirmed, the sweep will repeat them", "error", err)
		}
		if ctx.Err() != nil {
			return false
		}
		if len(some) > 1 && len(some) < pushMost && !last {
			linger := time.NewTimer(lingerFor)
			select {
			case <-linger.C:
			case <-ended:
			}
			linger.Stop()
		}
	}
	return true
}

// Push pushes deliveries and confirms those that were pushed.
func (p *Pusher) Push(ctx context.Context, due ...ledger.Due) error {
	pushed, err := p.queue.Push(ctx, due...)
	for some := range slices.Chunk(pushed, pushMost) {
		err = errors.Join(err, p.ledger.Confirm(ctx, some))
	}
	return err
}
