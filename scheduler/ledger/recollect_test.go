package ledger_test

import (
	"errors"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// requested makes a run for a request, and returns its delivery.
func (f *fixture) requested(id string) ledger.Due {
	f.Helper()
	enqueued, err := f.Enqueue(f.Context(), ledger.Request{Job: f.job, ID: id, Trigger: ledger.TriggerEnqueue})
	if err != nil {
		f.Fatal(err)
	}
	return enqueued.Due[0]
}

// TestAFinishedRunDoesNotRunAgainAfterALoss has runs that fail, or are handed back, at one worker
// and succeed at another one. The first worker hears of that half a second later. Between two of
// its polls both become too old to be remembered.
func TestAFinishedRunDoesNotRunAgainAfterALoss(t *testing.T) {
	for name, lose := range map[string]func(f *fixture, a *worker){
		"Redis is emptied": func(f *fixture, a *worker) { f.lose(a) },
		"a failover loses nothing, after the runs have left the history": func(f *fixture, a *worker) {
			if err := f.rdb.Del(f.Context(), f.key("hist:j"), f.key("done:j")).Err(); err != nil {
				f.Fatal(err)
			}
			f.grace(a)
		},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(f *fixture) {
				f.job.Overlap = jobs.OverlapAllow
				a, b := f.worker("a"), f.worker("b")
				var elapsed time.Duration
				began := time.Now()
				a.SetClock(func() time.Time { return began.Add(elapsed) })
				first := map[jobs.RunID]ledger.Outcome{}
				for i, due := range append(a.ticks(2, b), a.requested("retried"), a.requested("handed-back")) {
					first[due.Run] = []ledger.Outcome{ledger.OutcomeRetry, ledger.OutcomeHandBack}[i%2]
					a.finish(a.claim(a.client, due, ledger.ClaimGranted), first[due.Run], ledger.FinishRecorded)
					b.finish(b.claim(b.client, f.await()[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
				}
				for _, elapsed = range []time.Duration{500 * time.Millisecond, 599_900 * time.Millisecond, 600_900 * time.Millisecond} {
					a.poll()
				}

				lose(f, a)
				a.say()
				f.goOn()
				for _, due := range f.sweep().Due {
					again := a.claim(a.client, due, ledger.ClaimGranted).Record
					f.Errorf("%s (%s at first) had succeeded and runs again, as attempt %d", again.ID, first[again.ID], again.Last().Number)
				}
				for run := range first {
					record, _, err := f.Find(f.Context(), run)
					if !errors.Is(err, ledger.ErrUnknown) && (err != nil || record.State != ledger.StateSucceeded) {
						f.Errorf("%s had succeeded; after the loss: %+v, %v", run, record, err)
					}
				}
			})
		})
	}
}

// TestAnAttemptThatOutlivesItsRunIsNotReasserted has a handler that ignores the end of its locks
// for more than ten minutes, while another worker finishes its run.
func TestAnAttemptThatOutlivesItsRunIsNotReasserted(t *testing.T) {
	each(t, func(f *fixture) {
		a, b := f.worker("a"), f.worker("b")
		var elapsed time.Duration
		began := time.Now()
		a.SetClock(func() time.Time { return began.Add(elapsed) })
		a.poll()
		job := newJob("asked")
		job.Retry.Initial = time.Millisecond
		due := a.ask("x", func(j *jobs.Job) { j.Lock.MaxHold, j.Retry = time.Minute, job.Retry })
		stuck := a.claim(a.client, due, ledger.ClaimGranted)
		f.expireHold(stuck.request.ID())
		dead := f.sweep().Dead
		if len(dead) != 1 {
			f.Fatalf("found %+v, want the attempt without its locks", dead)
		}
		if _, err := f.Crash(f.Context(), dead[0], job); err != nil {
			f.Fatal(err)
		}
		b.finish(b.claim(b.client, f.await()[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		for _, elapsed = range []time.Duration{time.Second, 602 * time.Second} {
			a.poll()
		}
		f.lose(a)
		a.say()
		f.wantState(due.Run, ledger.StateSucceeded)
	})
}

// TestARequestThatWaitsForItsNextAttemptSurvivesALoss: no worker but that of its last attempt knows
// of it.
func TestARequestThatWaitsForItsNextAttemptSurvivesALoss(t *testing.T) {
	twice := func(outcome ledger.Outcome) func(f *fixture, a *worker, claimed attempt) {
		return func(_ *fixture, a *worker, claimed attempt) {
			a.finish(claimed, outcome, ledger.FinishRecorded)
			a.finish(claimed, outcome, ledger.FinishCounted) // the first reply was lost
		}
	}
	for name, test := range map[string]struct {
		ends  func(f *fixture, a *worker, claimed attempt)
		want  ledger.State
		fails int
	}{
		"a retry that was sent twice":     {twice(ledger.OutcomeRetry), ledger.StateRetrying, 1},
		"a hand-back that was sent twice": {twice(ledger.OutcomeHandBack), ledger.StateScheduled, 0},
		"a failure after a sweep has closed the attempt": {func(f *fixture, a *worker, claimed attempt) {
			f.loseLease(a.client)
			if got := a.finish(claimed, ledger.OutcomeFailure, ledger.FinishCounted); got.State != ledger.StateDue {
				f.Fatalf("%+v, want it to be due", got)
			}
			a.client = f.session("a")
		}, ledger.StateDue, 0},
		"a lost lease that was reported": {func(f *fixture, a *worker, claimed attempt) {
			f.end(a.client)
			a.client = f.session("a")
			if closed := a.report(claimed, a.client); closed == nil || closed.State != ledger.StateDue {
				f.Fatalf("%+v, want it to be due", closed)
			}
		}, ledger.StateDue, 0},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(f *fixture) {
				a := f.worker("a")
				due := a.requested("x")
				claimed := a.claim(a.client, due, ledger.ClaimGranted)
				test.ends(f, a, claimed)
				f.wantState(due.Run, test.want)
				f.lose(a)
				a.say()
				if got := f.wantState(due.Run, test.want); got.Fails != test.fails || len(got.Attempts) != 1 {
					f.Errorf("%+v, want %d failures in one attempt", got, test.fails)
				}
			})
		})
	}
}

// TestAnAttemptWhoseRunASweepEndsIsNotReasserted: no news report the end of a request at its first
// attempt.
func TestAnAttemptWhoseRunASweepEndsIsNotReasserted(t *testing.T) {
	each(t, func(f *fixture) {
		a := f.worker("a")
		f.job.OnCrash = jobs.CrashAbandon
		due := a.requested("x")
		claimed := a.claim(a.client, due, ledger.ClaimGranted)
		f.end(a.client)
		dead := f.sweep().Dead
		if len(dead) != 1 {
			f.Fatalf("found %+v, want the attempt of the ended session", dead)
		}
		if got := a.finish(claimed, ledger.OutcomeFailure, ledger.FinishCounted); got.State != ledger.StateRunning {
			f.Fatalf("%+v, want it left to the sweep", got)
		}
		if _, err := f.Crash(f.Context(), dead[0], claimed.Job); err != nil {
			f.Fatal(err)
		}
		f.wantState(due.Run, ledger.StateLost)
		a.client = f.session("a")
		f.lose(a)
		a.say()
		if record, _, err := f.Find(f.Context(), due.Run); !errors.Is(err, ledger.ErrUnknown) && (err != nil || !record.State.Final()) {
			f.Errorf("%+v, %v, want that it does not run again", record, err)
		}
	})
}
