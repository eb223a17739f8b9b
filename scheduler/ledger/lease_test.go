package ledger_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// lost is an attempt, as its worker reports it after it has lost its lease.
func (a attempt) lost() ledger.Dead {
	return ledger.Dead{Run: a.Record.ID, Token: a.token(), Job: a.Record.Job, Fails: a.Record.Fails}
}

// report reports, as a worker under another session of its own does, that an attempt has lost its
// lease.
func (f *fixture) report(a attempt, session *locks.Client) *ledger.Closed {
	f.Helper()
	closed, err := f.LostLease(f.Context(), session.Session(), a.lost(), a.Job)
	if err != nil {
		f.Fatal(err)
	}
	return closed
}

// ask enqueues a run of a job without a schedule.
func (f *fixture) ask(id string, change func(*jobs.Job)) ledger.Due {
	f.Helper()
	job := newJob("asked")
	job.Every = 0
	change(job)
	enqueued, err := f.Enqueue(f.Context(), ledger.Request{Job: job, ID: id, Trigger: ledger.TriggerEnqueue})
	if err != nil {
		f.Fatal(err)
	}
	return enqueued.Due[0]
}

func (f *fixture) suspected(run jobs.RunID, want bool) {
	f.Helper()
	if record := f.find(run); record.Suspect() != want {
		f.Errorf("%s is suspected: %v, want %v: %+v", run, record.Suspect(), want, record.Attempts)
	}
}

func TestALostLeaseIsNeitherACrashNorAFailure(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.MaxCrashes, f.job.Retry.Max = 1, 0
		due := f.run()
		for i := range 3 {
			a := f.claim(f.session("a"), due, ledger.ClaimGranted)
			again := f.loseLease(a.client)
			if len(again) != 1 || again[0].Run != due.Run {
				f.Fatalf("due after the lost lease: %+v, want the run", again)
			}
			due = again[0]
			record := f.wantState(due.Run, ledger.StateDue)
			if last := record.Last(); record.Crashes != 0 || record.Fails != 0 || len(record.Attempts) != i+1 ||
				last.Outcome != ledger.AttemptLostLease || !strings.Contains(last.Error, "lost its lease") {
				f.Errorf("%+v, want an attempt that lost its lease, and nothing counted", record)
			}
			f.suspected(due.Run, false)
			// its later result no longer counts
			f.finish(a, ledger.OutcomeFailure, ledger.FinishCounted)
		}
		sound, err := f.ClaimSound(f.Context(), f.request(f.session("b")), due, 0, nil)
		if err != nil || sound.Outcome != ledger.ClaimGranted {
			f.Fatalf("claim of a run that never crashed: %+v, %v, want it granted", sound, err)
		}
	})
}

// TestAnAbandonedRunSaysWhatHappenedToItsWorker: on_crash: abandon ends it after a death and after
// a lost lease alike.
func TestAnAbandonedRunSaysWhatHappenedToItsWorker(t *testing.T) {
	each(t, func(f *fixture) {
		for reason, end := range map[string]func(a attempt) []ledger.Due{
			" died (on_crash: abandon)":                       func(a attempt) []ledger.Due { return f.crash(a.client) },
			" lost its lease (on_crash: abandon)":             func(a attempt) []ledger.Due { return f.loseLease(a.client) },
			" lost its lease (on_crash: abandon), it says so": func(a attempt) []ledger.Due { return f.report(a, f.session("next")).Due },
		} {
			due := f.ask(fmt.Sprint(len(reason)), func(job *jobs.Job) { job.OnCrash = jobs.CrashAbandon })
			a := f.claim(f.session("a"), due, ledger.ClaimGranted)
			if due := end(a); len(due) != 0 {
				f.Errorf("due: %+v, want nothing", due)
			}
			reason, _, _ = strings.Cut(reason, ", ")
			if record := f.wantState(a.Record.ID, ledger.StateLost); record.Reason != "its worker "+string(a.client.Session())+reason {
				f.Errorf("lost because %q, want %q", record.Reason, reason)
			}
		}
		f.wantNothingLeft()
	})
}

// TestAWorkerHandsBackWhatItCutOff: it need not wait until its old lease ends in Redis, and its
// report counts once.
func TestAWorkerHandsBackWhatItCutOff(t *testing.T) {
	each(t, func(f *fixture) {
		old, next := f.session("w"), f.session("w")
		a := f.claim(old, f.run(), ledger.ClaimGranted)
		closed := f.report(a, next)
		if closed == nil || len(closed.Due) != 1 || closed.State != ledger.StateDue || closed.Outcome != ledger.AttemptLostLease {
			f.Fatalf("%+v, want the run due", closed)
		}
		if record := f.find(a.Record.ID); !record.Last().Confirmed || record.Crashes != 0 || record.Fails != 0 {
			f.Errorf("%+v, want a lost lease that its worker has confirmed", record)
		}
		if again := f.report(a, next); again != nil {
			f.Errorf("the same report once more: %+v, want nothing", again)
		}
		b := f.claim(next, closed.Due[0], ledger.ClaimGranted)
		if late := f.report(a, f.session("third")); late != nil {
			f.Errorf("a late report closed the next attempt: %+v", late)
		}
		f.finish(a, ledger.OutcomeFailure, ledger.FinishFenced)
		f.finish(b, ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantNothingLeft()
	})
}

// TestAWorkerConfirmsALostLeaseThatASweepHasRecorded: the report closes nothing more, and a session
// that has also ended reports nothing.
func TestAWorkerConfirmsALostLeaseThatASweepHasRecorded(t *testing.T) {
	each(t, func(f *fixture) {
		a := f.claim(f.session("a"), f.run(), ledger.ClaimGranted)
		due := f.loseLease(a.client)
		if f.find(a.Record.ID).Last().Confirmed {
			f.Error("the lost lease is confirmed before the worker has said anything")
		}
		ended := f.session("ended")
		f.end(ended)
		if _, err := f.LostLease(f.Context(), ended.Session(), a.lost(), a.Job); !errors.Is(err, ledger.ErrNotYet) {
			f.Errorf("the report of a session that has ended: %v, want ErrNotYet", err)
		}
		b := f.claim(f.session("b"), due[0], ledger.ClaimGranted)
		if closed := f.report(a, f.session("next")); closed != nil {
			f.Errorf("%+v, want nothing closed", closed)
		}
		if record := f.find(a.Record.ID); !record.Attempts[0].Confirmed || record.State != ledger.StateRunning {
			f.Errorf("%+v, want the first attempt confirmed and the second one running", record)
		}
		f.finish(b, ledger.OutcomeSuccess, ledger.FinishRecorded)
	})
}

// TestARunWhoseHostsNeverComeBackEnds: a run that brings its whole host down leaves no process that
// could report a crash. Outages that the workers survive do not count.
func TestARunWhoseHostsNeverComeBackEnds(t *testing.T) {
	each(t, func(f *fixture) {
		due := f.run()
		lose := func(confirm bool) {
			f.Helper()
			a := f.claim(f.session("a"), due, ledger.ClaimGranted)
			again := f.loseLease(a.client)
			if confirm {
				f.report(a, f.session("next"))
			}
			if len(again) == 1 {
				due = again[0]
			}
		}
		for range ledger.MaxLostLeases {
			lose(true)
		}
		for range ledger.MaxLostLeases - 2 {
			lose(false)
		}
		lose(true) // the sweep comes first, and is one short of the end
		for range ledger.MaxLostLeases - 1 {
			lose(false)
		}
		f.wantState(due.Run, ledger.StateDue)
		lose(false)
		if record := f.wantState(due.Run, ledger.StateFailed); record.Crashes != 0 || !strings.Contains(record.Reason, "lost its lease 10 times in a row") {
			f.Errorf("%+v, want it failed for its lost leases", record)
		}
		f.wantNothingLeft()
	})
}

// TestTheSuspectThatDiesAgainClearsTheOthers: three runs crash together. The one that runs when the
// next worker dies is to blame, whatever else that death takes down.
func TestTheSuspectThatDiesAgainClearsTheOthers(t *testing.T) {
	each(t, func(f *fixture) {
		dues := make(map[jobs.RunID]ledger.Due)
		var runs []jobs.RunID
		for i := range 5 {
			due := f.ask(fmt.Sprint(i), func(job *jobs.Job) { job.MaxCrashes = 5 })
			dues[due.Run] = due
			runs = append(runs, due.Run)
		}
		die := func(together ...jobs.RunID) {
			f.Helper()
			w := f.session("w")
			for _, run := range together {
				f.claim(w, dues[run], ledger.ClaimGranted)
			}
			for _, due := range f.crash(w) {
				dues[due.Run] = due
			}
		}
		poison, a, b, c, d := runs[0], runs[1], runs[2], runs[3], runs[4]
		die(a, poison, b)
		for _, run := range []jobs.RunID{poison, a, b} {
			f.suspected(run, true)
		}
		die(c, poison, d)
		f.suspected(poison, true)
		for _, run := range []jobs.RunID{a, b, c, d} {
			f.suspected(run, false)
		}
		die(a, b) // neither of them is suspected any more, so each becomes a suspect again
		for _, run := range []jobs.RunID{poison, a, b} {
			f.suspected(run, true)
		}
		die(a, b) // against the rule, both of them again: it is as unclear as before
		for _, run := range []jobs.RunID{poison, a, b} {
			f.suspected(run, true)
		}
		for _, run := range runs {
			f.finish(f.claim(f.session("w"), dues[run], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		}
		f.wantNothingLeft()
	})
}

// TestADeathIsForgottenWhenItsAttemptsAreClosed, also if not the sweep closes them; a death of a
// session without attempts is not recorded at all.
func TestADeathIsForgottenWhenItsAttemptsAreClosed(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		a := f.claim(w, f.run(), ledger.ClaimGranted)
		idle := f.session("idle")
		for _, session := range []locks.SessionID{w.Session(), idle.Session()} {
			if err := f.Died(f.Context(), session); err != nil {
				f.Fatal(err)
			}
		}
		f.end(w)
		f.end(idle)
		f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded) // sent before the death
		f.sweep()
		f.wantNothingLeft()
	})
}

// TestSuspectsThatAnOlderBuildHasEndedAreForgotten: it does not know suspects, nor their key.
func TestSuspectsThatAnOlderBuildHasEndedAreForgotten(t *testing.T) {
	each(t, func(f *fixture) {
		left := redis.Z{Member: "w.00000000\x00j#ended"}
		if err := f.rdb.ZAdd(f.Context(), f.key("died"), left).Err(); err != nil {
			f.Fatal(err)
		}
		w := f.session("w")
		a := f.claim(w, f.run(), ledger.ClaimGranted)
		b := f.claim(f.session("v"), f.crash(w)[0], ledger.ClaimGranted)
		if died, err := f.rdb.ZRange(f.Context(), f.key("died"), 0, -1).Result(); err != nil || len(died) != 1 ||
			died[0] != string(w.Session())+"\x00"+string(a.Record.ID) {
			f.Errorf("%q, %v; want the run that has crashed alone", died, err)
		}
		f.finish(b, ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantNothingLeft()
	})
}
