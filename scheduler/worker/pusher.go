package worker

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
)

const (
	pushMost  = 200             // deliveries pushed and confirmed together
	callLimit = 5 * time.Second // for one call of Redis
)

// pusher brings deliveries to their queues and confirms them in the ledger, in batches, so that nobody who makes a run
// due waits for that. What it does not manage to push or to confirm, the sweep repeats under the next n.
type pusher struct {
	queue  *queue.Client
	ledger *ledger.Ledger
	log    *slog.Logger

	mu      sync.Mutex
	pending []ledger.Due
	wake    chan struct{} // buffer of one: wake-ups may merge
}

func newPusher(q *queue.Client, l *ledger.Ledger, log *slog.Logger) *pusher {
	return &pusher{queue: q, ledger: l, log: log, wake: make(chan struct{}, 1)}
}

// add takes deliveries to be pushed; it does not wait.
func (p *pusher) add(due ...ledger.Due) {
	p.mu.Lock()
	p.pending = append(p.pending, due...)
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *pusher) take() []ledger.Due {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(len(p.pending), pushMost)
	some := p.pending[:n:n]
	p.pending = p.pending[n:]
	return some
}

// run pushes until ctx ends, then once more what is left.
func (p *pusher) run(ctx context.Context) {
	for ended := false; !ended; {
		select {
		case <-p.wake:
		case <-ctx.Done():
			ended = true
		}
		for some := p.take(); len(some) > 0; some = p.take() {
			p.push(ctx, some)
		}
	}
}

func (p *pusher) push(ctx context.Context, due []ledger.Due) {
	// What is to be pushed when everything ends would only wait for the sweep: two calls more do no harm.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer cancel()
	deliveries := make([]queue.Delivery, len(due))
	for i, d := range due {
		deliveries[i] = queue.Delivery{Run: string(d.Run), N: d.N, Queue: d.Queue}
	}
	pushed, err := p.queue.Push(ctx, deliveries...)
	if err != nil {
		p.log.WarnContext(ctx, "deliveries are not pushed, the sweep will repeat them", "error", err)
	}
	confirm := make([]ledger.Due, len(pushed))
	for i, d := range pushed {
		confirm[i] = ledger.Due{Run: jobs.RunID(d.Run), N: d.N, Queue: d.Queue}
	}
	if err := p.ledger.Confirm(ctx, confirm); err != nil {
		p.log.WarnContext(ctx, "deliveries are not confirmed, the sweep will repeat them", "error", err)
	}
}
