package worker

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// TestAnOfferThatIsRepeatedStaysUntilASlotIsFree adds a run each time the worker asks for it.
func TestAnOfferThatIsRepeatedStaysUntilASlotIsFree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var o offers
		for range 10 {
			o.add(ledger.Due{Run: "settle#1", N: 1})
			time.Sleep(ledger.FlowEvery)
		}
		if due, ok := o.take(); !ok || !due.Offered {
			t.Errorf("got %+v, %t, want the run", due, ok)
		}
		o.add(ledger.Due{Run: "settle#1", N: 1})
		o.add(ledger.Due{Run: "settle#1", N: 2})
		if due, ok := o.take(); !ok || due.N != 2 {
			t.Errorf("got %+v, %t, want the last offer", due, ok)
		}
		if due, ok := o.take(); ok {
			t.Errorf("got %+v, want nothing: the run was taken", due)
		}
	})
}

func TestOffersAreForgottenAndBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var o offers
		for i := range 2 * offersMost {
			o.add(ledger.Due{Run: jobs.RunID(fmt.Sprint(i))})
		}
		if len(o.some) != offersMost {
			t.Errorf("%d are kept, want %d", len(o.some), offersMost)
		}
		if due, ok := o.take(); !ok || due.Run != "0" {
			t.Errorf("got %+v, %t, want the first one", due, ok)
		}
		time.Sleep(offerKept + time.Millisecond)
		if due, ok := o.take(); ok {
			t.Errorf("got %+v after %s, want nothing", due, offerKept)
		}
	})
}
