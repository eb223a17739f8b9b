package worker

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/repeats"
)

func dueRun(run int, n int64) ledger.Due {
	return ledger.Due{Run: jobs.RunID(fmt.Sprintf("j#%d", run)), N: n, Queue: "q"}
}

func TestAPusherKeepsTheNewestDeliveryOfARun(t *testing.T) {
	t.Parallel()
	p := NewPusher(nil, nil)
	p.Add(dueRun(1, 1), dueRun(2, 1), dueRun(1, 3), dueRun(1, 2))
	if some := p.take(); len(some) != 2 || some[0] != dueRun(1, 3) || some[1] != dueRun(2, 1) {
		t.Fatalf("to push: %+v, want run 1 under n 3, then run 2", some)
	}
	if p.Waiting([]string{"q"}) {
		t.Error("nothing waits behind what is under way")
	}
	p.Add(dueRun(1, 3), dueRun(2, 2)) // one is being pushed, the other is newer
	for d, want := range map[ledger.Due]bool{dueRun(1, 3): true, dueRun(1, 4): false, dueRun(2, 1): true, dueRun(2, 2): true, dueRun(3, 1): false} {
		if got := p.Pending(d); got != want {
			t.Errorf("%+v: pending is %v, want %v", d, got, want)
		}
	}
	if !p.Waiting([]string{"p", "q"}) || p.Waiting([]string{"p"}) {
		t.Error("a delivery of queue q alone waits")
	}
	p.done()
	if p.Pending(dueRun(1, 3)) {
		t.Error("what was pushed is still pending")
	}
	if some := p.take(); len(some) != 1 || some[0] != dueRun(2, 2) {
		t.Errorf("to push: %+v, want run 2 under n 2", some)
	}
}

// TestADeliveryThatComesBackWhileItIsConfirmedIsPushedAgain: a worker fetches it before the reply
// to its confirmation, and cannot start its run.
func TestADeliveryThatComesBackWhileItIsConfirmedIsPushedAgain(t *testing.T) {
	t.Parallel()
	p := NewPusher(nil, nil)
	p.Add(dueRun(1, 3), dueRun(2, 3))
	p.take()
	back, old := dueRun(1, 3), dueRun(2, 2)
	back.PutBack, old.PutBack = true, true
	p.Add(back, old)
	p.Add(back)
	p.done()
	if some := p.take(); len(some) != 1 || some[0] != back {
		t.Errorf("to push: %+v, want run 1 under n 3, at the head", some)
	}
}

// TestAPusherIsBounded: deliveries that do not fit are left to the sweep, and counted. A newer
// delivery of a run always fits.
func TestAPusherIsBounded(t *testing.T) {
	t.Parallel()
	p := NewPusher(nil, nil)
	var left int
	p.OnLeft = func(n int) { left += n }
	for i := range pendingMost + 50 {
		p.Add(dueRun(i, 1))
	}
	p.Add(dueRun(7, 2))
	if p.Room() != 0 {
		t.Errorf("room for %d, want none", p.Room())
	}
	var log bytes.Buffer
	often := repeats.New(slog.New(slog.NewTextHandler(&log, nil)), "")
	p.tellLeft(t.Context(), often)
	p.tellLeft(t.Context(), often)
	if left != 50 || strings.Count(log.String(), "deliveries=50 since_start=50") != 1 {
		t.Errorf("%d were left, and the log is %q; want 50, and one line", left, log.String())
	}
	pushed := 0
	for some := p.take(); len(some) > 0; some = p.take() {
		pushed += len(some)
		if some[0] == dueRun(7, 1) {
			t.Error("an older delivery is pushed")
		}
		p.done()
	}
	if pushed != pendingMost || p.Room() != sweptMost {
		t.Errorf("%d were pushed and there is room for %d, want %d and %d", pushed, p.Room(), pendingMost, sweptMost)
	}
}
