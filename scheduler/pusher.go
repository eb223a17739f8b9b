package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
	"lockstep/scheduler/repeats"
)

// pushMost is how many deliveries are pushed and confirmed together.
const pushMost = 200

// A Pusher brings deliveries to their queues and confirms them in the ledger: by [Pusher.Push], which waits for that, or by
// [Pusher.Add], which does not, and sends in batches what has come meanwhile. What it does not manage to push or to confirm,
// the sweep repeats under the next n. It is safe for concurrent use.
type Pusher struct {
	queue  *queue.Client
	ledger *ledger.Ledger

	mu      sync.Mutex
	pending []ledger.Due
	wake    chan struct{} // buffer of one: wake-ups may merge
}

// NewPusher returns a pusher. It starts nothing: for [Pusher.Add], somebody has to call [Pusher.Run].
func NewPusher(q *queue.Client, l *ledger.Ledger) *Pusher {
	return &Pusher{queue: q, ledger: l, wake: make(chan struct{}, 1)}
}

// Add takes deliveries to be pushed by [Pusher.Run].
func (p *Pusher) Add(due ...ledger.Due) {
	p.mu.Lock()
	p.pending = append(p.pending, due...)
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *Pusher) take() []ledger.Due {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(len(p.pending), pushMost)
	some := p.pending[:n:n]
	p.pending = p.pending[n:]
	return some
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
		deliveries[i] = queue.Delivery{Run: string(d.Run), N: d.N, Queue: d.Queue}
	}
	pushed, err := p.queue.Push(ctx, deliveries...)
	confirm := make([]ledger.Due, len(pushed))
	for i, d := range pushed {
		confirm[i] = ledger.Due{Run: jobs.RunID(d.Run), N: d.N, Queue: d.Queue}
	}
	return errors.Join(err, p.ledger.Confirm(ctx, confirm))
}
