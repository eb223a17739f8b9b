package admin

import (
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

func TestADueRunSaysWhyItDoesNotRun(t *testing.T) {
	t.Parallel()
	has := func(change func(*worker.Card)) worker.Card {
		card := worker.Card{State: "ready", Handlers: []string{"h"}}
		change(&card)
		return card
	}
	idle, full := has(func(*worker.Card) {}), has(func(c *worker.Card) { c.Busy = 2 })
	crash := []ledger.AttemptRecord{{Number: 1, Started: fakes.Noon, Finished: fakes.Noon.Add(time.Second), Outcome: "crashed"}}
	failed := append(crash, ledger.AttemptRecord{Number: 2, Started: fakes.Noon, Finished: fakes.Noon.Add(time.Second), Outcome: "failed"})
	handed := append(crash, ledger.AttemptRecord{Number: 2, Started: fakes.Noon, Finished: fakes.Noon.Add(time.Second), Outcome: "handed back"})
	lost := append(crash, ledger.AttemptRecord{Number: 2, Started: fakes.Noon, Finished: fakes.Noon.Add(time.Second), Outcome: "lost lease"})
	cleared := []ledger.AttemptRecord{{Number: 1, Started: fakes.Noon, Finished: fakes.Noon.Add(time.Second), Outcome: "crashed", Cleared: true}}
	place := has(func(c *worker.Card) { c.Suspect = "poison#1" })
	for name, test := range map[string]struct {
		cards  []worker.Card
		change func(*fakes.Fake, *ledger.Record)
		reason WaitReason
		text   string // a part
	}{
		"nothing is in its way": {[]worker.Card{idle}, nil, WaitsStart, "about to start"},
		"its queue is paused": {[]worker.Card{idle}, func(f *fakes.Fake, _ *ledger.Record) { f.PausedQueues = []string{"default"} },
			WaitsPaused, "lockstep queue resume default"},
		"no worker": {nil, nil, WaitsWorker, "no worker serves its queue default"},
		"no worker for its queue": {[]worker.Card{idle}, func(_ *fakes.Fake, r *ledger.Record) { r.Queue = "night" },
			WaitsWorker, "no worker serves its queue night"},
		"the only worker drains": {[]worker.Card{has(func(c *worker.Card) { c.State = "draining" })}, nil, WaitsWorker, "no worker serves"},
		"the only worker has left": {[]worker.Card{idle}, func(f *fakes.Fake, _ *ledger.Record) { f.Live[0].LeaseLeft = 0 },
			WaitsWorker, "no worker serves"},
		"no worker has its handler": {[]worker.Card{has(func(c *worker.Card) { c.Handlers = []string{} })}, nil,
			WaitsHandler, "no worker has handler h, of those that serve its queue default"},
		"a card does not name all handlers": {[]worker.Card{has(func(c *worker.Card) { c.Handlers, c.MoreHandlers = []string{"a"}, 1 })}, nil,
			WaitsStart, ""},
		"a card has a hash of its handler": {[]worker.Card{has(func(c *worker.Card) {
			c.Handlers, c.MoreHandlers, c.HandlerHashes = []string{"a"}, 1, []byte{0xaa, 0xa9, 0x40, 0x26}
		})}, nil, WaitsStart, ""},
		"a card has hashes of other handlers": {[]worker.Card{has(func(c *worker.Card) {
			c.Handlers, c.MoreHandlers, c.HandlerHashes = []string{"a"}, 1, []byte{1, 2, 3, 4}
		})}, nil, WaitsHandler, "no worker has handler h"},
		"the card of an older build": {[]worker.Card{has(func(c *worker.Card) { c.Handlers = nil })}, nil, WaitsStart, ""},
		"set aside, and no worker runs commands": {[]worker.Card{has(func(c *worker.Card) { c.Picks = true })},
			func(f *fakes.Fake, _ *ledger.Record) { f.Needs = map[jobs.RunID]ledger.Need{"j#x": "command"} },
			WaitsHandler, "no worker runs jobs of its kind, command"},
		"set aside, and a worker of an older build may run commands": {[]worker.Card{has(func(c *worker.Card) { c.Picks = true }), idle},
			func(f *fakes.Fake, _ *ledger.Record) { f.Needs = map[jobs.RunID]ledger.Need{"j#x": "command"} }, WaitsStart, ""},
		"no slot": {[]worker.Card{full, full}, func(f *fakes.Fake, _ *ledger.Record) { f.AheadOf = map[jobs.RunID]int{"j#x": 3} },
			WaitsSlot, "no slot is free: 4 of 4 are busy on the 2 workers that could run it; 3 runs of its queue default have been due for longer"},
		"a slot of a worker that lacks the handler": {[]worker.Card{full, has(func(c *worker.Card) { c.Handlers = []string{} })}, nil,
			WaitsSlot, "2 of 2 are busy on the one worker"},
		"others are in front": {[]worker.Card{idle, full}, func(f *fakes.Fake, _ *ledger.Record) { f.AheadOf = map[jobs.RunID]int{"j#x": 1} },
			WaitsBehind, "1 run of its queue default has been due for longer"},
		"the suspects' place is taken": {[]worker.Card{place}, func(_ *fakes.Fake, r *ledger.Record) { r.Crashes, r.Attempts = 1, crash },
			WaitsSuspect, "it has crashed once, and a worker runs one such run at a time; the place is taken by poison#1 on w1"},
		"another place is free": {[]worker.Card{place, idle}, func(_ *fakes.Fake, r *ledger.Record) { r.Crashes, r.Attempts = 1, crash },
			WaitsStart, ""},
		"it was handed back after its crash": {[]worker.Card{place}, func(_ *fakes.Fake, r *ledger.Record) { r.Crashes, r.Attempts = 1, handed },
			WaitsSuspect, ""},
		"it is a suspect no more": {[]worker.Card{place}, func(_ *fakes.Fake, r *ledger.Record) { r.Crashes, r.Attempts = 1, failed },
			WaitsStart, ""},
		"it was cleared, and the run in the place must be alone": {[]worker.Card{has(func(c *worker.Card) { c.Suspect, c.Alone = "poison#1", true })},
			func(_ *fakes.Fake, r *ledger.Record) { r.Crashes, r.Attempts = 1, cleared },
			WaitsSuspect, "it has crashed once, and no worker runs it beside a crashed run that must run alone; the place is taken by poison#1 on w1"},
		"it was cleared": {[]worker.Card{place}, func(_ *fakes.Fake, r *ledger.Record) { r.Crashes, r.Attempts = 1, cleared }, WaitsStart, ""},
		"it must be alone": {[]worker.Card{has(func(c *worker.Card) { c.Beside = 2 })}, func(_ *fakes.Fake, r *ledger.Record) { r.Crashes, r.Attempts = 2, crash },
			WaitsSuspect, "it has crashed 2 times, and a worker runs it beside no other run that has crashed; the place is taken by 2 runs on w1"},
		"another crash ends it": {[]worker.Card{has(func(c *worker.Card) { c.Beside = 2 })},
			func(f *fakes.Fake, r *ledger.Record) {
				r.Crashes, r.Attempts, f.Registered[0].Job.MaxCrashes = 1, crash, 2
			},
			WaitsSuspect, "it has crashed once, and a worker runs it beside no other run that has crashed; the place is taken by 2 runs on w1"},
		"it was cleared, but another crash ends it": {[]worker.Card{place},
			func(f *fakes.Fake, r *ledger.Record) {
				r.Crashes, r.Attempts, f.Registered[0].Job.MaxCrashes = 1, cleared, 2
			},
			WaitsSuspect, "it has crashed once, and a worker runs it beside no other run that has crashed; the place is taken by poison#1 on w1"},
		"it was cleared after two crashes, and survives a third": {[]worker.Card{place, has(func(c *worker.Card) { c.Beside = 2 })},
			func(f *fakes.Fake, r *ledger.Record) {
				r.Crashes, r.Attempts, f.Registered[0].Job.MaxCrashes = 2, cleared, 10
			}, WaitsStart, ""},
		"it lost its lease after its crash": {[]worker.Card{place}, func(_ *fakes.Fake, r *ledger.Record) { r.Crashes, r.Attempts = 1, lost },
			WaitsSuspect, ""},
		"it has lost its lease": {[]worker.Card{place}, func(_ *fakes.Fake, r *ledger.Record) { r.Attempts = lost[1:] }, WaitsStart, ""},
		"it is scheduled": {[]worker.Card{idle}, func(_ *fakes.Fake, r *ledger.Record) {
			r.State, r.At = ledger.StateScheduled, fakes.Noon.Add(time.Hour)
		},
			WaitsTime, "it is scheduled for 2026-11-21T13:00:00Z"},
		"it was handed back for lack of its handler": {[]worker.Card{has(func(c *worker.Card) { c.Handlers = []string{} })},
			func(_ *fakes.Fake, r *ledger.Record) {
				r.State, r.At, r.Attempts = ledger.StateScheduled, fakes.Noon, handed
			}, WaitsHandler, "no worker has handler h, of those that serve its queue default"},
		"it was handed back and waits a moment": {[]worker.Card{idle},
			func(_ *fakes.Fake, r *ledger.Record) {
				r.State, r.At, r.Attempts = ledger.StateScheduled, fakes.Noon, handed
			}, WaitsTime, "2026-11-21T12:00:00Z"},
		"it is tried again later": {[]worker.Card{idle}, func(_ *fakes.Fake, r *ledger.Record) { r.State, r.At = ledger.StateRetrying, fakes.Noon.Add(time.Hour) },
			WaitsTime, "the next one is due at 2026-11-21T13:00:00Z"},
		"its locks": {[]worker.Card{idle}, func(_ *fakes.Fake, r *ledger.Record) {
			r.State, r.Blocker = ledger.StateWaiting, &ledger.Blocker{Resource: "disk", Session: "w1", Run: "k#1"}
		}, WaitsLocks, "disk was held by k#1 on w1"},
		"it is parked": {[]worker.Card{idle}, func(_ *fakes.Fake, r *ledger.Record) { r.State, r.Parked = ledger.StateFailed, true },
			WaitsParked, "is parked"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fakes.Crew(test.cards...)
			record := &ledger.Record{ID: "j#x", Job: "j", Queue: "default", State: ledger.StateDue, Created: fakes.Noon, DueSince: fakes.Noon}
			if test.change != nil {
				test.change(f, record)
			}
			f.Open = []*ledger.Record{record}
			run, _, err := readerOf(f).Run(t.Context(), record.ID)
			if err != nil {
				t.Fatal(err)
			}
			if w := run.WaitingFor; w == nil || w.Reason != test.reason || !strings.Contains(w.Text, test.text) {
				t.Errorf("got %+v, want %s, %q", w, test.reason, test.text)
			}
			e, err := readerOf(f).ExplainRun(t.Context(), record.ID)
			if err != nil {
				t.Fatal(err)
			}
			if e.WaitingFor == nil || *e.WaitingFor != *run.WaitingFor {
				t.Errorf("explained is %+v, shown %+v", e.WaitingFor, run.WaitingFor)
			}
			if record.State == ledger.StateDue && test.reason != WaitsPaused && e.Conclusion != "due: "+run.WaitingFor.Text {
				t.Errorf("conclusion %q, want why it does not run", e.Conclusion)
			}
		})
	}
}

// TestEachStateSaysWhyARunInItDoesNotRun, unless it runs or is over.
func TestEachStateSaysWhyARunInItDoesNotRun(t *testing.T) {
	t.Parallel()
	f := fakes.Crew()
	for _, facts := range ledger.States() {
		f.Open = []*ledger.Record{{ID: "j#x", Job: "j", Queue: "default", State: facts.State, At: fakes.Noon, DueSince: fakes.Noon}}
		run, _, err := readerOf(f).Run(t.Context(), "j#x")
		if err != nil {
			t.Fatal(err)
		}
		if waits := !facts.Final && facts.State != ledger.StateRunning; waits != (run.WaitingFor != nil) {
			t.Errorf("%s: waits for %+v, want a reason: %v", facts.State, run.WaitingFor, waits)
		}
	}
}

func TestParkedRunsAreFound(t *testing.T) {
	t.Parallel()
	f := fakes.Crew()
	f.Open = []*ledger.Record{
		{ID: "j#a", Job: "j", State: ledger.StateDue}, {ID: "j#b", Job: "j", State: ledger.StateFailed, Parked: true},
	}
	if parked, all, err := readerOf(f).Parked(t.Context()); err != nil || !all || len(parked) != 1 || parked[0] != "j#b" {
		t.Errorf("got %v, %v, %v, want j#b of all", parked, all, err)
	}
}

func TestARunIsExplainedByItsID(t *testing.T) {
	t.Parallel()
	f := fakes.Crew(worker.Card{State: "ready", Handlers: []string{"h"}, Busy: 2})
	f.Open = []*ledger.Record{{ID: "j#x", Job: "j", Queue: "default", Trigger: ledger.TriggerEnqueue, State: ledger.StateDue, Created: fakes.Noon, DueSince: fakes.Noon}}
	e, err := readerOf(f).ExplainRun(t.Context(), "j#x")
	if err != nil {
		t.Fatal(err)
	}
	const want = "ok made: by a request at Sat 2026-11-21 12:00:00.000, for the queue default\n" +
		"no slot: no slot is free: 2 of 2 are busy on the one worker that could run it\n" +
		"=> due: no slot is free: 2 of 2 are busy on the one worker that could run it"
	if got := told(e); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
