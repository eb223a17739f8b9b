package worker

import (
	"sync/atomic"
	"time"

	"lockstep/scheduler/ledger"
)

// brief is how long attempts here take at most, on average, while their slots are given away early.
// A slot is then free again soon.
const brief = 10 * time.Millisecond

// A slot is the one in which an attempt runs.
type slot struct {
	w     *Worker
	done  func([]ledger.Due) // passes it on
	kept  bool               // until the end is recorded
	given bool
}

// giveAway passes the slot on while the end of the attempt is on its way to Redis, for the next run
// need not wait for the reply. took: by the attempt. It does nothing while attempts here take long:
// if the reply makes a run due, that run waits for the next free slot, with its locks reserved. The
// number of ends without a reply is limited to that of the slots.
func (s *slot) giveAway(took time.Duration) {
	if !s.w.pace.isBrief(took) || s.kept || !s.w.unrecorded.TryAcquire(1) {
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

// isBrief adds an attempt, and reports whether all of them are [brief] on average.
func (p *pace) isBrief(took time.Duration) bool {
	for {
		before := p.ns.Load()
		after := before + (int64(took)-before)/8
		if p.ns.CompareAndSwap(before, after) {
			return time.Duration(after) <= brief
		}
	}
}
