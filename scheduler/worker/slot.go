package worker

import (
	"container/list"
	"sync/atomic"
	"time"

	"lockstep/scheduler/ledger"
)

// brief is how long attempts here take at most, on average, while their slots are given away early.
// A slot is then free again soon.
const brief = 10 * time.Millisecond

const (
	// endsPerSlot is how many ends are without a reply at most, for each slot.
	endsPerSlot = 2

	// seatedFlights is how many scripts at a time claim the runs of deliveries that have waited for
	// a slot, far from Redis.
	seatedFlights = 4

	// slow is as long as attempts that make the average of those before it, which were brief, too
	// long.
	slow = 16 * brief
)

// paced adds an attempt to the pace, by which the worker fetches ahead of its slots.
func (w *Worker) paced(took time.Duration) {
	w.pace.add(took)
	ahead := 0
	if w.pace.brief() {
		ahead = min(w.o.Concurrency, aheadOfSlots)
	}
	w.slots.SetAhead(ahead)
}

// A slot is the one in which an attempt runs.
type slot struct {
	w       *Worker
	done    func([]ledger.Due) // passes it on
	kept    bool               // until the end is recorded
	given   bool
	attempt *list.Element // in slots
}

// worked ends the work of the attempt.
func (s *slot) worked(took time.Duration) {
	s.w.slots.End(s.attempt)
	s.w.paced(took)
}

// giveAway passes the slot on while the end of the attempt is on its way to Redis, for the next run
// need not wait for the reply. It does nothing while attempts here take long: if the reply makes a
// run due, that run waits for the next free slot, with its locks reserved. For that reason an
// attempt that has itself waited for its locks keeps its slot: others may wait for them too. The
// number of ends without a reply is limited, see endsPerSlot.
func (s *slot) giveAway() {
	if _, anyLong := s.w.slots.Running(); anyLong || !s.w.pace.brief() || s.kept || !s.w.unrecorded.TryAcquire(1) {
		return
	}
	s.given = true
	s.w.busy.Add(-1)
	s.done(nil)
}

// end passes the slot on to one of the runs that the end of the attempt made due. If the slot was
// given away, they get the next ones that become free here, before all deliveries.
func (s *slot) end(next []ledger.Due) {
	if !s.given {
		s.w.busy.Add(-1)
		s.done(next)
		return
	}
	s.w.unrecorded.Release(1)
	for i := range next {
		next[i].Offered = true
	}
	s.w.deliver(s.w.attempts, next)
}

// A pace is the average time of the last attempts, weighted by 7/8 for each later one. The zero
// value is ready.
type pace struct{ ns atomic.Int64 }

// add adds an attempt.
func (p *pace) add(took time.Duration) {
	for {
		before := p.ns.Load()
		if p.ns.CompareAndSwap(before, before+(int64(took)-before)/8) {
			return
		}
	}
}

// brief reports whether attempts take no longer than [brief].
func (p *pace) brief() bool { return time.Duration(p.ns.Load()) <= brief }
