package worker

import (
	"context"
	"sync/atomic"
	"time"

	"lockstep/scheduler/ledger"
)

// lastFlow is how long a drain waits for Redis to take the last counts.
const lastFlow = time.Second

// flows counts the attempts that begin in this process, by the queues that it serves.
type flows map[string]*atomic.Int64

// serve begins the counts of some queues. It is called before any add.
func (f *flows) serve(queues map[string]int) {
	*f = make(flows, len(queues))
	for queue := range queues {
		(*f)[queue] = new(atomic.Int64)
	}
}

// add counts an attempt. A worker that is started again with other queues may get a run of one that
// it does not serve any more; that one is not counted.
func (f flows) add(queue string) {
	if n := f[queue]; n != nil {
		n.Add(1)
	}
}

// take returns the counts since the last call.
func (f flows) take() map[string]int64 {
	counts := make(map[string]int64, len(f))
	for queue, n := range f {
		counts[queue] = n.Swap(0)
	}
	return counts
}

// sendFlows sends the counts until ctx ends, and then the last ones. Counts that could not be sent
// are dropped: they may have arrived, and the flow of a queue is for people to see. A run with a
// lapsed offer gets the next slot that becomes free here.
func (w *Worker) sendFlows(ctx context.Context) {
	send := func(call context.Context) {
		first, err := w.ledger.Began(call, w.began.take())
		for _, d := range first {
			w.offers.add(d)
		}
		if err != nil && ctx.Err() == nil {
			w.often.WarnContext(ctx, "could not count the attempts that began here", "call", "flow", "error", err)
		}
	}
	repeat(ctx, ledger.FlowEvery, send)
	if _, err := w.locks.Extension().Certain(); err != nil {
		return
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastFlow)
	defer cancel()
	send(call)
}
