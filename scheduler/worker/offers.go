package worker

import (
	"sync"
	"time"

	"lockstep/scheduler/ledger"
)

const (
	offersMost = 64
	offerKept  = 1500 * time.Millisecond // less than locks are reserved for a run
)

// offers are runs with reserved locks while no slot is free here. Their deliveries are also
// pushed, for any worker; the first slot that becomes free here may be faster. The zero value is
// ready.
type offers struct {
	mu   sync.Mutex
	some []offer // the oldest first; guarded by mu
}

type offer struct {
	due  ledger.Due
	upto time.Time
}

// add keeps a run for the next free slot. Beyond offersMost it leaves the run to its delivery.
func (o *offers) add(due ledger.Due) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forget()
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
