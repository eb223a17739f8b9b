package ledger_test

import (
	"strings"
	"testing"
	"time"

	"lockstep/scheduler/ledger"
	"lockstep/scheduler/trace"
)

var requester = trace.Parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=a b,other=1")

// traced requests a run in a trace, and returns it as due.
func (f *fixture) traced(c trace.Context, request ledger.Request) ledger.Due {
	f.Helper()
	request.Job, request.Trigger = f.job, ledger.TriggerEnqueue
	enqueued, err := f.Enqueue(c.In(f.Context()), request)
	if err != nil {
		f.Fatal(err)
	}
	if len(enqueued.Due) == 0 {
		return ledger.Due{Run: enqueued.Run}
	}
	return enqueued.Due[0]
}

func (f *fixture) wantTrace(when string, got, want trace.Context) {
	f.Helper()
	if got != want {
		f.Errorf("%s, it has the trace context %+v, want %+v", when, got, want)
	}
}

func TestARunKeepsTheTraceContextOfItsRequest(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		run := f.traced(requester, ledger.Request{ID: "a"})
		f.wantTrace("before its first attempt", f.find(run.Run).Trace, requester)
		a := f.claim(w, run, ledger.ClaimGranted)
		f.wantTrace("in its attempt", a.Record.Trace, requester)
		f.finish(a, ledger.OutcomeRetry, ledger.FinishRecorded)
		again := f.await()
		b := f.claim(f.session("other"), again[0], ledger.ClaimGranted)
		f.wantTrace("in an attempt of another worker", b.Record.Trace, requester)
		f.finish(b, ledger.OutcomeFailure, ledger.FinishRecorded)
		record := f.find(run.Run)
		f.wantTrace("after its end", record.Trace, requester)
		if record.Parent != "" || record.By != "" {
			f.Errorf("its parent is %q, and %q decided its tick, want none", record.Parent, record.By)
		}
		before := record.Traced()
		f.nextMillisecond()
		due, err := f.reopen(run.Run, time.Time{}, false)
		if err != nil {
			f.Fatal(err)
		}
		c := f.claim(w, due[0], ledger.ClaimGranted)
		f.wantTrace("when it is run again", c.Record.Trace, requester)
		if got := c.Record.Traced(); got.Key != before.Key || got.Again == before.Again {
			f.Errorf("when it is run again, its span follows from %q, %q, want another span in the same trace as %q, %q", got.Key, got.Again, before.Key, before.Again)
		}
		f.finish(c, ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantTrace("after its success", f.find(run.Run).Trace, requester)
		f.wantNothingLeft()
	})
}

func TestATraceContextStandsBesideTheParent(t *testing.T) {
	each(t, func(f *fixture) {
		parent := f.requested("parent")
		plain := trace.Context{Parent: requester.Parent}
		for id, c := range map[string]trace.Context{"with-state": requester, "without-state": plain, "none": {}} {
			record := f.find(f.traced(c, ledger.Request{ID: id, Parent: parent.Run}).Run)
			f.wantTrace(id, record.Trace, c)
			if record.Parent != parent.Run {
				f.Errorf("%s: got the parent %q, want %s", id, record.Parent, parent.Run)
			}
		}
		// of a parent that does not exist, only the trace is kept
		record := f.find(f.traced(requester, ledger.Request{ID: "unknown", Parent: "j#nothing"}).Run)
		f.wantTrace("unknown parent", record.Trace, requester)
		if record.Parent != "" {
			f.Errorf("got the parent %q", record.Parent)
		}
		later := f.find(f.traced(requester, ledger.Request{ID: "later", In: time.Hour}).Run)
		f.wantTrace("scheduled", later.Trace, requester)
	})
}

func TestAnAdoptedRunKeepsTheTraceContextOfItsTask(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		for id, broken := range map[string]bool{"good": false, "bad": true} {
			a := f.given(w, id)
			if broken {
				a.Payload = []byte("no JSON")
			}
			a.Trace = requester
			f.wantTrace(id, f.find(f.adopt(a).Run).Trace, requester)
		}
		f.wantTrace("without one", f.find(f.adopt(f.given(w, "none")).Run).Trace, trace.Context{})
	})
}

// A run without a trace context is stored as before, byte by byte, so it costs nothing, and an
// older build reads it.
func TestARunWithoutATraceDoesNotGrow(t *testing.T) {
	each(t, func(f *fixture) {
		none := f.rdb.HGet(f.Context(), f.key("run"), string(f.traced(trace.Context{}, ledger.Request{ID: "a"}).Run)).Val()
		with := f.rdb.HGet(f.Context(), f.key("run"), string(f.traced(requester, ledger.Request{ID: "b"}).Run)).Val()
		kept := " " + requester.Parent + " " + requester.State
		if !strings.Contains(with, "\x1f"+kept+"\x1f") {
			f.Errorf("got %q, want the context in a field of its own", with)
		}
		if want := len(with) - len(kept); len(none) != want {
			f.Errorf("a run without one has %d bytes, want %d", len(none), want)
		}
	})
}

func TestAReassertedRunKeepsItsTraceContext(t *testing.T) {
	each(t, func(f *fixture) {
		a := f.worker("a")
		run := a.traced(requester, ledger.Request{ID: "a"})
		a.claim(a.client, run, ledger.ClaimGranted)
		f.lose(a)
		a.say()
		f.wantTrace("after a loss of data", f.wantState(run.Run, ledger.StateRunning).Trace, requester)
	})
}
