package ledger_test

import (
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/ledger"
)

// waits returns the states of all waits by their runs.
func (f *fixture) waits() map[jobs.RunID]space.WaitState {
	f.Helper()
	listing, err := f.Space().Read(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	states := make(map[jobs.RunID]space.WaitState)
	for _, wait := range listing.Waits {
		states[jobs.RunID(wait.Request[1:])] = wait.State
	}
	return states
}

func TestARunOfAPausedQueueIsOfferedNothingUntilItIsResumed(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		hold, err := w.TryAcquire(f.Context(), locks.Exclusive("bill"))
		if err != nil {
			f.Fatal(err)
		}
		first, second := f.billed("first", "bill"), f.billed("second", "bill")
		f.claim(w, first, ledger.ClaimWaiting)
		if err := f.QueuePaused(f.Context(), first.Queue); err != nil {
			f.Fatal(err)
		}
		// it comes while the queue is paused: it had been fetched before
		f.claim(w, second, ledger.ClaimWaiting)
		if waits := f.waits(); waits[first.Run] != space.Kept || waits[second.Run] != space.Kept {
			f.Errorf("%v, want both kept back", waits)
		}
		if err := hold.Release(); err != nil {
			f.Fatal(err)
		}
		if due := f.sweep().Due; len(due) != 0 {
			f.Errorf("offered %v, want nothing offered to a paused queue", due)
		}
		hold, err = w.TryAcquire(f.Context(), locks.Exclusive("bill"))
		if err != nil {
			f.Fatalf("%v, want others to have what nobody is offered", err)
		}
		if due, err := f.QueuesPaused(f.Context(), []string{"another", first.Queue}); err != nil || len(due) != 0 {
			f.Errorf("%v, %v, want nothing due while the queue is paused", due, err)
		}
		if due, err := f.QueueResumed(f.Context(), first.Queue); err != nil || len(due) != 0 {
			f.Errorf("%v, %v, want nothing due while the bill is held", due, err)
		}
		if waits := f.waits(); waits[first.Run] != space.Waiting || waits[second.Run] != space.Waiting {
			f.Errorf("%v, want both in their places again", waits)
		}

		// Once more, with the bill free when the queue is resumed: by asynq's tools, as the worker
		// on duty sees it.
		if _, err := f.QueuesPaused(f.Context(), []string{first.Queue}); err != nil {
			f.Fatal(err)
		}
		if err := hold.Release(); err != nil {
			f.Fatal(err)
		}
		due, err := f.QueuesPaused(f.Context(), nil)
		if err != nil || len(due) != 1 || due[0].Run != first.Run {
			f.Fatalf("%v, %v, want the run that has waited longest due in this step", due, err)
		}
		due = f.finish(f.claim(w, due[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded).Due
		f.finish(f.claim(w, due[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantNothingLeft()
	})
}

// TestPauseStopsTheClockOfAWait lets a run wait for a bill for at most as long as its job allows,
// not counting the time in which its queue was paused.
func TestPauseStopsTheClockOfAWait(t *testing.T) {
	each(t, func(f *fixture) {
		const patience, pause = 3 * time.Second, 4 * time.Second
		w := f.session("w")
		if _, err := w.TryAcquire(f.Context(), locks.Exclusive("bill")); err != nil {
			f.Fatal(err)
		}
		job := newJob("waits")
		job.Lock = jobs.Lock{Exclusive: []string{"bill"}, Wait: patience, OnBusy: jobs.BusyFail}
		enqueued, err := f.Enqueue(f.Context(), ledger.Request{Job: job, ID: "1", Trigger: ledger.TriggerEnqueue})
		if err != nil {
			f.Fatal(err)
		}
		expire := func() ledger.State {
			f.Helper()
			if _, err := f.Expire(f.Context(), enqueued.Run, job); err != nil {
				f.Fatal(err)
			}
			record, _, err := f.Find(f.Context(), enqueued.Run)
			if err != nil {
				f.Fatal(err)
			}
			return record.State
		}
		began := time.Now()
		f.claim(w, enqueued.Due[0], ledger.ClaimWaiting)
		if err := f.QueuePaused(f.Context(), job.Queue); err != nil {
			f.Fatal(err)
		}
		for paused := time.Now(); time.Since(paused) < pause; { // the clock is under test
			if state := expire(); state != ledger.StateWaiting {
				f.Fatalf("the run is %s %s after it began to wait, while its queue is paused", state, time.Since(began))
			}
			time.Sleep(100 * time.Millisecond)
		}
		if _, err := f.QueueResumed(f.Context(), job.Queue); err != nil {
			f.Fatal(err)
		}
		for expire() == ledger.StateWaiting {
			if time.Since(began) > time.Minute {
				f.Fatal("the wait does not end")
			}
			time.Sleep(20 * time.Millisecond)
		}
		if took := time.Since(began); took < patience+pause-50*time.Millisecond {
			f.Errorf("the wait ended after %s, want at least %s beside a pause of %s", took, patience, pause)
		}
		if state := expire(); state != ledger.StateFailed {
			f.Errorf("the run is %s, want failed", state)
		}
	})
}

func TestTheStartOfAPauseIsKnownUntilItEnds(t *testing.T) {
	each(t, func(f *fixture) {
		since := func() map[string]time.Time {
			f.Helper()
			since, err := f.PausedSince(f.Context(), []string{"one", "two"})
			if err != nil {
				f.Fatal(err)
			}
			return since
		}
		if got := since(); len(got) != 0 {
			f.Errorf("%v, want nothing before the first pause", got)
		}
		for range 2 { // the second one changes nothing
			if err := f.QueuePaused(f.Context(), "one"); err != nil {
				f.Fatal(err)
			}
		}
		first := since()
		if at := first["one"]; len(first) != 1 || at.IsZero() {
			f.Errorf("%v, want the start of the pause of one", first)
		}
		if _, err := f.QueueResumed(f.Context(), "one"); err != nil {
			f.Fatal(err)
		}
		if got := since(); len(got) != 0 {
			f.Errorf("%v, want nothing after the end", got)
		}
		if err := f.QueuePaused(f.Context(), "one"); err != nil {
			f.Fatal(err)
		}
		if again := since(); again["one"].Before(first["one"]) {
			f.Errorf("%v, want the present pause, not that of %v", again, first)
		}
	})
}
