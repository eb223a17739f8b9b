package ledger_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// asks enqueues a run of a job that takes these locks.
func (f *fixture) asks(id string, lock jobs.Lock) ledger.Due {
	f.Helper()
	job := newJob("asks")
	job.Every, job.Lock = 0, lock
	enqueued, err := f.Enqueue(f.Context(), ledger.Request{Job: job, ID: id, Trigger: ledger.TriggerEnqueue})
	if err != nil {
		f.Fatal(err)
	}
	return enqueued.Due[0]
}

func TestRunsShareWhatTheyOnlyRead(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		reads := jobs.Lock{Shared: []string{"rates"}}
		first, second := f.claim(w, f.asks("a", reads), ledger.ClaimGranted), f.claim(w, f.asks("b", reads), ledger.ClaimGranted)
		writer := f.asks("c", jobs.Lock{Exclusive: []string{"rates"}})
		f.claim(w, writer, ledger.ClaimWaiting)
		f.finish(first, ledger.OutcomeSuccess, ledger.FinishRecorded)
		next := f.finish(second, ledger.OutcomeSuccess, ledger.FinishRecorded).Due
		if len(next) != 1 || next[0].Run != writer.Run {
			f.Fatalf("due %+v, want the one that writes", next)
		}
		f.finish(f.claim(w, next[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantNothingLeft()
	})
}

func TestRunsTakePermits(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		some := func(n int) jobs.Lock { return jobs.Lock{Permits: map[string]int{"api": n}} }
		undeclared := f.asks("undeclared", some(1))
		f.claim(w, undeclared, ledger.ClaimOver)
		if record := f.wantState(undeclared.Run, ledger.StateFailed); !strings.Contains(record.Reason, "no permits of api are declared") {
			f.Errorf("it failed for %q", record.Reason)
		}
		if _, err := w.Declare(f.Context(), "api", locks.PermitLimit{Permits: 3}); err != nil {
			f.Fatal(err)
		}
		many := f.asks("many", some(4))
		f.claim(w, many, ledger.ClaimOver)
		if record := f.wantState(many.Run, ledger.StateFailed); !strings.Contains(record.Reason, "api has 3 permits in all") {
			f.Errorf("it failed for %q", record.Reason)
		}
		two, one := f.claim(w, f.asks("two", some(2)), ledger.ClaimGranted), f.claim(w, f.asks("one", some(1)), ledger.ClaimGranted)
		last := f.asks("last", some(2))
		if busy := f.claim(w, last, ledger.ClaimWaiting).Busy; busy.Resource != "api" {
			f.Errorf("it waits for %q", busy.Resource)
		}
		if next := f.finish(one, ledger.OutcomeSuccess, ledger.FinishRecorded).Due; len(next) != 0 {
			f.Errorf("due %+v with one permit free of two that it needs", next)
		}
		next := f.finish(two, ledger.OutcomeSuccess, ledger.FinishRecorded).Due
		f.finish(f.claim(w, next[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
	})
}

func TestSoManyRunsOfAJobWorkSideBySide(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Concurrency = 2
		created := f.tick(f.job, f.cursor(f.job, 9), 3, ledger.VerdictRun)
		w := f.session("w")
		first, second := f.claim(w, created.Due[0], ledger.ClaimGranted), f.claim(w, created.Due[1], ledger.ClaimGranted)
		f.claim(w, created.Due[2], ledger.ClaimWaiting)
		next := f.finish(first, ledger.OutcomeSuccess, ledger.FinishRecorded).Due
		f.finish(f.claim(w, next[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.finish(second, ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantNothingLeft()
	})
}

// expireHold makes a hold's max hold expire.
func (f *fixture) expireHold(id locks.HoldID) {
	f.Helper()
	if n, err := f.rdb.ZAddXX(f.Context(), f.key("exp"), redis.Z{Score: 1, Member: "m" + string(id)}).Result(); err != nil || n != 0 {
		f.Fatal(n, err)
	}
	if score, err := f.rdb.ZScore(f.Context(), f.key("exp"), "m"+string(id)).Result(); err != nil || score != 1 {
		f.Fatalf("the hold has no end on the timer wheel: %v", err)
	}
}

// TestAnAttemptThatExceedsItsMaxHoldHasFailed ends a hold under an attempt that continues: the
// sweep counts a failure, and the attempt's own later finish counts only if it is a success and no
// other attempt has begun.
func TestAnAttemptThatExceedsItsMaxHoldHasFailed(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		lock := jobs.Lock{Exclusive: []string{"bill"}, MaxHold: time.Minute}
		stuck := f.claim(w, f.asks("a", lock), ledger.ClaimGranted)
		next := f.asks("b", lock)
		f.claim(w, next, ledger.ClaimWaiting)
		f.expireHold(stuck.request.ID())
		sweep := f.sweep()
		if len(sweep.Due) != 1 || sweep.Due[0].Run != next.Run || len(sweep.Dead) != 1 || sweep.Dead[0].Run != stuck.Record.ID {
			f.Fatalf("got %+v, want the bill passed on, and the stuck attempt found", sweep)
		}
		job, err := f.Definition(f.Context(), stuck.Record.ID)
		if err != nil {
			f.Fatal(err)
		}
		for range 2 { // sent twice it counts once
			if _, err := f.Crash(f.Context(), sweep.Dead[0], job); err != nil {
				f.Fatal(err)
			}
		}
		record := f.wantState(stuck.Record.ID, ledger.StateRetrying)
		if record.Fails != 1 || record.Crashes != 0 || !strings.Contains(record.Attempts[0].Error, "held them for too long") {
			f.Errorf("got %+v", record)
		}
		f.finish(stuck, ledger.OutcomeRetry, ledger.FinishCounted)
		f.finish(stuck, ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.finish(f.claim(w, sweep.Due[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantNothingLeft()
	})
}

// TestFailureAfterItsHoldWasTakenAwayCountsAtOnce: the worker lives, so the sweep does not count
// it.
func TestFailureAfterItsHoldWasTakenAwayCountsAtOnce(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		a := f.claim(w, f.asks("a", jobs.Lock{Exclusive: []string{"bill"}}), ledger.ClaimGranted)
		if _, err := w.Space().Revoke(f.Context(), "bill", a.token(), locks.Seize, locks.Revocation{By: "ann"}); err != nil {
			f.Fatal(err)
		}
		f.finish(a, ledger.OutcomeRetry, ledger.FinishRecorded)
		if record := f.wantState(a.Record.ID, ledger.StateRetrying); record.Fails != 1 || len(record.Attempts) != 1 {
			f.Errorf("got %+v", record)
		}
		if dead := f.sweep().Dead; len(dead) != 0 {
			f.Errorf("the sweep finds %+v", dead)
		}
	})
}

func TestLocksOfARunRestAfterItsEnd(t *testing.T) {
	each(t, func(f *fixture) {
		w, dying := f.session("w"), f.session("dying")
		busy := func(name string) bool {
			f.Helper()
			hold, err := w.TryAcquire(f.Context(), locks.Exclusive(name))
			if err == nil {
				f.Error(hold.Release())
			} else if !errors.Is(err, locks.ErrBusy) {
				f.Fatal(err)
			}
			return err != nil
		}
		short := f.claim(w, f.asks("a", jobs.Lock{Exclusive: []string{"short"}, MinHold: time.Hour}), ledger.ClaimGranted)
		f.finish(short, ledger.OutcomeSuccess, ledger.FinishRecorded)
		if !busy("short") {
			t.Error("a short job's lock is free at once")
		}
		lock := jobs.Lock{Exclusive: []string{"crashed"}, CrashDelay: time.Hour}
		f.claim(dying, f.asks("b", lock), ledger.ClaimGranted)
		if due := f.crash(dying); len(due) != 1 {
			f.Fatalf("due %+v, want the run that crashed", due)
		}
		if !busy("crashed") {
			t.Error("the lock of a run that crashed is free at once")
		}
	})
}

// TestLoweredLimitEndsRunsThatWaitForMorePermits has runs that wait for more permits than a lowered
// limit allows, one of them in a paused queue. They fail with a reason that names the limit.
func TestLoweredLimitEndsRunsThatWaitForMorePermits(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		declare := func(permits int, version int64) {
			f.Helper()
			if _, err := w.Declare(f.Context(), "api", locks.PermitLimit{Permits: permits, Version: version}); err != nil {
				f.Fatal(err)
			}
		}
		lock := func(n int) jobs.Lock { return jobs.Lock{Permits: map[string]int{"api": n}} }
		fails := func(due []ledger.Due, run jobs.RunID, reason string) {
			f.Helper()
			if len(due) != 1 || due[0].Run != run {
				f.Fatalf("due %+v, want %s, for which there are not enough permits", due, run)
			}
			f.claim(w, due[0], ledger.ClaimOver)
			if record := f.wantState(run, ledger.StateFailed); !strings.Contains(record.Reason, reason) {
				f.Errorf("it failed for %q, want %q", record.Reason, reason)
			}
		}
		declare(4, 1)
		two := f.claim(w, f.asks("two", lock(2)), ledger.ClaimGranted)
		four, fits := f.asks("four", lock(4)), f.asks("fits", lock(3))
		f.claim(w, four, ledger.ClaimWaiting)
		f.claim(w, fits, ledger.ClaimWaiting)
		declare(3, 2)
		fails(f.sweep().Due, four.Run, "api has 3 permits in all")
		f.wantState(fits.Run, ledger.StateWaiting)

		if err := f.QueuePaused(f.Context(), fits.Queue); err != nil {
			f.Fatal(err)
		}
		declare(2, 3)
		if due := f.sweep().Due; len(due) != 0 {
			f.Fatalf("due %+v in a paused queue", due)
		}
		due, err := f.QueueResumed(f.Context(), fits.Queue)
		if err != nil {
			f.Fatal(err)
		}
		fails(due, fits.Run, "api has 2 permits in all")
		f.finish(two, ledger.OutcomeSuccess, ledger.FinishRecorded)
		if err := w.Undeclare(f.Context(), "api", 3); err != nil {
			f.Error(err)
		}
		f.wantNothingLeft()
	})
}
