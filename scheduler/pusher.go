package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
	"lockstep/scheduler/repeats"
)

const (
	pushMost = 500 // deliveries that are pushed and confirmed together

	// pendingMost is how many runs a pusher keeps. Pushing them takes about a second, less than a push may stay
	// unconfirmed, and they need a few megabytes.
	pendingMost = 10_000
)

// A Pusher brings deliveries to their queues and confirms them in the ledger: by [Pusher.Push], which waits for that, or by
// [Pusher.Add], which does not, and sends in batches what has come meanwhile. It keeps one delivery per run, the newest,
// and a bounded number of runs. The sweep repeats, under the next n, the deliveries that the pusher could not push or
// confirm, and those that it did not take. It is safe for concurrent use.
type Pusher struct {
	queue  *queue.Client
	ledger *ledger.Ledger
	wake   chan struct{} // buffer of one: wake-ups may merge

	mu      sync.Mutex
	order   []jobs.RunID              // the runs in pending, the first to be pushed first; guarded by mu
	pending map[jobs.RunID]ledger.Due // the newest delivery of each run; guarded by mu
	waiting map[string]int            // how many of pending are in a queue; guarded by mu
	pushing map[jobs.RunID]int64      // the n of deliveries under way; guarded by mu
	left    int64                     // deliveries that were not taken, since the start; guarded by mu
	told    int64                     // those of left that the log and OnLeft know of; guarded by mu

	// OnLeft receives how many deliveries were left to the sweep since the last call, because the pusher was full. Set it
	// before Run; it may be nil.
	OnLeft func(n int)
}

// NewPusher returns a pusher. It starts nothing: [Pusher.Add] needs a running [Pusher.Run].
func NewPusher(q *queue.Client, l *ledger.Ledger) *Pusher {
	return &Pusher{queue: q, ledger: l, wake: make(chan struct{}, 1), pending: make(map[jobs.RunID]ledger.Due),
		waiting: make(map[string]int), pushing: make(map[jobs.RunID]int64)}
}

// Add takes deliveries to be pushed by [Pusher.Run]. A delivery replaces an older one of its run. Those that do not fit are
// left to the sweep, which repeats what stays unconfirmed.
func (p *Pusher) Add(due ...ledger.Due) {
	p.mu.Lock()
	for _, d := range due {
		before, known := p.pending[d.Run]
		n, underWay := p.pushing[d.Run]
		switch {
		case known && before.N >= d.N, underWay && n >= d.N:
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

// Room returns how many further deliveries fit in.
func (p *Pusher) Room() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, pendingMost-len(p.pending)-len(p.pushing))
}

// Waiting reports whether deliveries of any of these queues wait behind those that are under way.
func (p *Pusher) Waiting(queues []string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(queues, func(q string) bool { return p.waiting[q] > 0 })
}

// Pending reports whether this delivery, or a newer one of its run, is still to be pushed or under way.
func (p *Pusher) Pending(d ledger.Due) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	newest, known := p.pending[d.Run]
	n, underWay := p.pushing[d.Run]
	return known && newest.N >= d.N || underWay && n >= d.N
}

// take returns what is to be pushed next. It is under way until done is called.
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

// done notes that nothing is under way.
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

// Run pushes what is added until ctx ends, then once more what is left.
func (p *Pusher) Run(ctx context.Context, log *slog.Logger) {
	often := repeats.New(log, "")
	defer often.Flush(context.WithoutCancel(ctx), true)
	for ended := false; !ended; {
		often.Flush(ctx, false)
		select {
		case <-p.wake:
		case <-ctx.Done():
			ended = true
		}
		if !p.pushAll(ctx, often, ended) {
			return
		}
	}
}

// pushAll pushes what is pending. The last time, all of it has the time of one call: what is left waits for the sweep. It
// returns false when that time was over.
func (p *Pusher) pushAll(ctx context.Context, often *repeats.Logger, last bool) bool {
	ctx = context.WithoutCancel(ctx) // most of what is still unpushed at the end should be pushed
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
	}
	return true
}

// Push pushes deliveries and confirms those that were pushed.
func (p *Pusher) Push(ctx context.Context, due ...ledger.Due) error {
	deliveries := make([]queue.Delivery, len(due))
	for i, d := range due {
		deliveries[i] = delivery(d)
	}
	pushed, err := p.queue.Push(ctx, deliveries...)
	confirm := make([]ledger.Due, len(pushed))
	for i, d := range pushed {
		confirm[i] = dueOf(d)
	}
	return errors.Join(err, p.ledger.Confirm(ctx, confirm))
}

func delivery(d ledger.Due) queue.Delivery {
	return queue.Delivery{Run: string(d.Run), N: d.N, Queue: d.Queue}
}

func dueOf(d queue.Delivery) ledger.Due {
	return ledger.Due{Run: jobs.RunID(d.Run), N: d.N, Queue: d.Queue}
}
