package worker_test

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// TestARollingDeployLosesAndDoublesNoTick starts a worker with a new trigger beside one with the old, and then ends it.
func TestARollingDeployLosesAndDoublesNoTick(t *testing.T) {
	f := newFleet(t)
	job := f.job("tick", func(context.Context, *jobs.Run[struct{}]) error { return nil }, func(j *jobs.Job) { j.Every = time.Second })
	old := f.start()
	ticks := func() []*ledger.Record {
		history, err := f.ledger.History(t.Context(), job.Name, 0)
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(history, func(a, b *ledger.Record) int { return a.Tick.Compare(b.Tick) })
		return history
	}
	f.await("two ticks by the old trigger", func() bool { return len(ticks()) >= 2 })
	changed := *job
	changed.Every = 3 * time.Second
	began := time.Now()
	f.start(func(o *worker.Options) { o.Jobs = []*jobs.Job{&changed} })
	f.await("the old worker to show as drifted", func() bool { return f.card(old.ID()).Drifted == 1 })
	f.await("two ticks by the new trigger", func() bool {
		n := 0
		for _, record := range ticks() {
			if record.Tick.After(began.Add(2 * time.Second)) {
				n++
			}
		}
		return n >= 2
	})
	history := ticks()
	since := -1 // the first tick by the new trigger
	for i, record := range history {
		if i > 0 && record.Tick.Sub(history[i-1].Tick) != time.Second && since < 0 {
			since = i
		}
		if since >= 0 && (record.Tick.Unix()%3 != 0 || i > since && record.Tick.Sub(history[i-1].Tick) != 3*time.Second) {
			t.Errorf("tick %v after %v, want one each three seconds", record.Tick, history[i-1].Tick)
		}
		if record.State != ledger.Succeeded {
			t.Errorf("tick %v %s (%s), want it to have run", record.Tick, record.State, record.Reason)
		}
	}
	if since < 0 {
		t.Fatal("no tick by the new trigger")
	}
	if gap := history[since].Tick.Sub(history[since-1].Tick); gap > 3*time.Second {
		t.Errorf("%v between the last tick by the old trigger and the first by the new one", gap)
	}
}

// card returns what a worker shows of itself.
func (f *fleet) card(id locks.SessionID) (card worker.Card) {
	f.Helper()
	sessions, _, err := f.ledger.Space().Sessions(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	for _, session := range sessions {
		if session.ID == id {
			if err := json.Unmarshal(session.Card, &card); err != nil {
				f.Fatal(err)
			}
		}
	}
	return card
}
