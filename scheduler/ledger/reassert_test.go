package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// ends lets a worker end some requests, and returns their runs.
func (w *worker) ends(n int, change func(*jobs.Job)) (runs []jobs.RunID) {
	w.Helper()
	for range n {
		w.asked++
		due := w.ask(fmt.Sprintf("r%d", w.asked), change)
		w.finish(w.claim(w.client, due, ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		runs = append(runs, due.Run)
	}
	return runs
}

func (f *fixture) wantForgotten(run jobs.RunID) {
	f.Helper()
	if _, _, err := f.Find(f.Context(), run); !errors.Is(err, ledger.ErrUnknown) {
		f.Errorf("%s: %v, want it forgotten", run, err)
	}
}

// TestWhatEndedLastIsAssertedFirst empties Redis after more ends than are asserted before the
// session is renewed: a worker with many must not lose its session over the older ones.
func TestWhatEndedLastIsAssertedFirst(t *testing.T) {
	large(t, func(f *fixture) {
		a := f.worker("a")
		runs := a.ends(340, func(*jobs.Job) {})
		f.lose(a)
		if err := a.Assert(f.Context(), a.client.Session(), a.lost, "config", []*jobs.Job{a.job}); err != nil {
			t.Fatal(err)
		}
		for _, run := range runs[40:] {
			f.wantState(run, ledger.StateSucceeded)
		}
		for _, run := range runs[:40] {
			f.wantForgotten(run)
		}
		a.sayMore()
		for _, run := range runs {
			f.wantState(run, ledger.StateSucceeded)
		}
	})
}

// TestAFailoverWritesOnlyWhatItLost rewinds Redis by some ends of many.
func TestAFailoverWritesOnlyWhatItLost(t *testing.T) {
	t.Parallel()
	f := alone(t)
	a, b := f.worker("a"), f.worker("b")
	kept := a.ends(400, func(*jobs.Job) {})
	ticks := a.ticks(5, b)
	for _, due := range ticks {
		a.finish(a.claim(a.client, due, ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		b.hear()
	}
	f.mark()
	lost := a.ends(3, func(*jobs.Job) {})
	f.rewind(a, b)
	before := f.calls("exec")
	b.say()
	if n := f.calls("exec") - before; n > 0 {
		t.Errorf("%d transactions for ends that Redis has kept, want none", n)
	}
	a.say()
	if n := f.calls("exec") - before; n != 1 {
		t.Errorf("%d transactions for three lost ends, want one", n)
	}
	for _, run := range append(lost, kept...) {
		f.wantState(run, ledger.StateSucceeded)
	}
}

// TestEndsThatAHistoryDoesNotKeepAreNotAsserted rewinds and empties Redis after more ends than the
// history keeps: it must have the same ones afterward, and each end must have counted once.
func TestEndsThatAHistoryDoesNotKeepAreNotAsserted(t *testing.T) {
	each(t, func(f *fixture) {
		a := f.worker("a")
		f.job.Name, f.job.Every, f.job.History.Runs = "asked", 0, 20
		a.job = f.job
		runs := a.ends(70, func(job *jobs.Job) { job.History.Runs = 20 })
		check := func(when string) {
			t.Helper()
			const kept = 20
			for _, run := range runs[:70-kept] {
				f.wantForgotten(run)
			}
			for _, run := range runs[70-kept:] {
				f.wantState(run, ledger.StateSucceeded)
			}
			if f.Failed() {
				f.Fatal(when)
			}
		}
		check("before")
		f.mark()
		f.rewind(a)
		a.say()
		check("after a failover")
		f.lose(a)
		a.say()
		check("without its data")
	})
}

// TestAnEndThatIsOlderThanTheHistoryStillEndsItsRun rewinds Redis to before the end of a run, with
// a history that is full of younger ends.
func TestAnEndThatIsOlderThanTheHistoryStillEndsItsRun(t *testing.T) {
	each(t, func(f *fixture) {
		short := func(job *jobs.Job) { job.History.Runs = 5 }
		a, b := f.worker("a"), f.worker("b")
		f.job.Name, f.job.Every, f.job.History.Runs = "asked", 0, 5
		a.job, b.job = f.job, f.job
		b.asked = 1000
		due := a.ask("old", short)
		old := a.claim(a.client, due, ledger.ClaimGranted)
		f.mark()
		a.finish(old, ledger.OutcomeSuccess, ledger.FinishRecorded)
		b.ends(8, short)
		f.rewind(a, b)
		b.say()
		a.say()
		f.goOn()
		for _, again := range f.sweep().Due {
			if again.Run == due.Run {
				t.Errorf("%s is due again after it had succeeded", due.Run)
			}
		}
		f.wantNothingLeft()
	})
}

// TestOlderEndsAreNotAssertedAfterTheGracePeriod ends the grace period before a worker has asserted
// all.
func TestOlderEndsAreNotAssertedAfterTheGracePeriod(t *testing.T) {
	large(t, func(f *fixture) {
		a := f.worker("a")
		runs := a.ends(310, func(*jobs.Job) {})
		f.lose(a)
		if err := a.Assert(f.Context(), a.client.Session(), a.lost, "config", []*jobs.Job{a.job}); err != nil {
			t.Fatal(err)
		}
		f.goOn()
		if more, err := a.AssertMore(f.Context()); more || !errors.Is(err, ledger.ErrLate) {
			t.Errorf("%v, %v, want that it is too late", more, err)
		}
		if more, err := a.AssertMore(f.Context()); more || err != nil {
			t.Errorf("%v, %v, want nothing to remain", more, err)
		}
		f.wantForgotten(runs[0])
	})
}

// around does something before each command or pipeline is sent and after its reply has come. A nil
// function does nothing.
type around struct{ before, after func(ctx context.Context) }

func (a around) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a around) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return a.call(ctx, func() error { return next(ctx, cmd) })
	}
}

func (a around) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return a.call(ctx, func() error { return next(ctx, cmds) })
	}
}

func (a around) call(ctx context.Context, send func() error) error {
	if a.before != nil {
		a.before(ctx)
	}
	err := send()
	if a.after != nil {
		a.after(ctx)
	}
	return err
}

// TestALossDuringAnAssertionForgetsItsReplies has Redis lose all data after it has replied that it
// still has some ends: they must be asserted after the second loss.
func TestALossDuringAnAssertionForgetsItsReplies(t *testing.T) {
	large(t, func(f *fixture) {
		a := f.worker("a")
		runs := a.ends(310, func(*jobs.Job) {})
		f.grace(a) // nothing is lost
		if err := a.Assert(f.Context(), a.client.Session(), a.lost, "config", []*jobs.Job{a.job}); err != nil {
			t.Fatal(err)
		}
		var lost atomic.Bool
		a.client.Extension().Redis().AddHook(around{after: func(context.Context) {
			if !lost.CompareAndSwap(false, true) {
				return
			}
			f.lose(a)
			ended, cancel := context.WithCancel(f.Context())
			cancel()
			// It learns of the loss, and can assert nothing yet.
			if err := a.Assert(ended, a.client.Session(), a.lost, "config", []*jobs.Job{a.job}); err == nil {
				t.Error("an assertion that could not be sent is answered")
			}
		}})
		if _, err := a.AssertMore(f.Context()); err != nil {
			t.Fatal(err)
		}
		a.say()
		for _, run := range runs {
			f.wantState(run, ledger.StateSucceeded)
		}
	})
}

// TestARunThatIsReopenedAfterItsSuccessStaysDueWhenRedisLosesNothing fails over to a replica that
// has everything. The worker of the success still knows its end, but the run must do its work once
// more.
func TestARunThatIsReopenedAfterItsSuccessStaysDueWhenRedisLosesNothing(t *testing.T) {
	for name, forgotten := range map[string]bool{"kept": false, "forgotten": true} {
		t.Run(name, func(t *testing.T) {
			each(t, func(f *fixture) {
				a := f.worker("a")
				due := a.ticks(1)[0]
				a.finish(a.claim(a.client, due, ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
				tick, attempts := f.find(due.Run).Tick, 1
				if forgotten {
					if err := f.rdb.Del(f.Context(), f.key("hist:"+a.job.Name), f.key("done:"+a.job.Name)).Err(); err != nil {
						f.Fatal(err)
					}
					attempts = 0
				}
				if _, err := f.Reopen(f.Context(), ledger.Reopening{Run: due.Run, Tick: tick, Job: a.job, Any: true}); err != nil {
					f.Fatal(err)
				}
				a.hear()
				f.mark()
				f.rewind(a)
				a.say()
				if record := f.wantState(due.Run, ledger.StateDue); len(record.Attempts) != attempts {
					f.Errorf("%d attempts, want %d: %+v", len(record.Attempts), attempts, record)
				}
			})
		})
	}
}
