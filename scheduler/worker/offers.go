package worker

import (
	"slices"
	"sync"
	"time"

	"lockstep/scheduler/ledger"
)

const (
	offersMost = 64
	// By then a worker has asked for runs with a lapsed offer.
	offerKept = ledger.FlowEvery + time.Second
)

// offers are runs that were offered their locks while no slot was free here. Their deliveries are
// also in the queue, for any worker; the first slot that becomes free here may be faster. If the
// run has another worker by then, its claim is stale, and costs a round trip. The zero value is
// ready.
type offers struct {
	mu   sync.Mutex
	some []offer // the oldest first; guarded by mu
}

type offer struct {
	due  ledger.Due
	upto time.Time
}

// add keeps a run for the next free slot, in place of an earlier offer of the same run. Beyond
// offersMost it leaves the run to its delivery.
func (o *offers) add(due ledger.Due) {
	due.Offered = true
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forget()
	o.some = slices.DeleteFunc(o.some, func(other offer) bool { return other.due.Run == due.Run })
	if len(o.some) < offersMost {
		o.some = append(o.some, offer{due, time.Now().Add(offerKept)})
	}
}

// forget drops the runs that were kept for too long. The caller holds mu.
func (o *offers) forget() {
	now := time.Now()
	for len(o.some) > 0 && now.After(o.some[0].upto) {
		o.some = o.some[1:]
	}
	if len(o.some) == 0 {
		o.some = nil
	}
}

// take returns the run that was kept first, unless none was kept recently.
func (o *offers) take() (ledger.Due, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forget()
	if len(o.some) == 0 {
		return ledger.Due{}, false
	}
	first := o.some[0]
	o.some = o.some[1:]
	return first.due, true
}
