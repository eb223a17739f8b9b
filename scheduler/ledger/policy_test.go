package ledger_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// The numbers of some fields of a run's record, in the order of layout.go, from 0.
const (
	fieldState, fieldSession, fieldFirst, fieldCrashes = 0, 10, 13, 15
	fieldDeadline, fieldWaitBy, fieldStop              = 24, 27, 30
)

// set changes one field of an outstanding run's record, as if time had passed.
func (f *fixture) set(id jobs.RunID, field int, value string) {
	f.Helper()
	record, err := f.rdb.HGet(f.Context(), f.key("run"), string(id)).Result()
	if err != nil {
		f.Fatal(err)
	}
	fields := strings.Split(record, us)
	fields[field] = value
	if err := f.rdb.HSet(f.Context(), f.key("run"), string(id), strings.Join(fields, us)).Err(); err != nil {
		f.Fatal(err)
	}
}

// over makes a time of a run expire: its start deadline, or its wait.
func (f *fixture) over(id jobs.RunID, field int) {
	f.Helper()
	f.set(id, field, "1")
	if err := f.rdb.ZAddXX(f.Context(), f.key("late"), redis.Z{Score: 1, Member: string(id)}).Err(); err != nil {
		f.Fatal(err)
	}
}

// expire gives the late runs of a sweep to Expire.
func (f *fixture) expire() (due []ledger.Due) {
	f.Helper()
	for _, id := range f.sweep().Late {
		job, err := f.Definition(f.Context(), id)
		if err != nil {
			f.Fatal(err)
		}
		some, err := f.Expire(f.Context(), id, job)
		if err != nil {
			f.Fatal(err)
		}
		due = append(due, some...)
	}
	return due
}

func (f *fixture) asked(client *locks.Client) *ledger.Poll {
	f.Helper()
	poll, err := f.Poll(f.Context(), client.Session(), "config", 0)
	if err != nil {
		f.Fatal(err)
	}
	return poll
}

func (f *fixture) history(job string) []*ledger.Record {
	f.Helper()
	history, err := f.History(f.Context(), job, 0)
	if err != nil {
		f.Fatal(err)
	}
	return history
}

func TestRunsOfAJobThatMayOverlapWorkSideBySide(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Overlap = jobs.OverlapAllow
		created := f.tick(f.job, f.cursor(f.job, 9), 3, ledger.VerdictRun)
		w := f.session("w")
		var attempts []attempt
		for i := range 3 { // in the order in which deliveries happen to come
			attempts = append(attempts, f.claim(w, created.Due[2-i], ledger.ClaimGranted))
		}
		for _, a := range attempts {
			f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
		}
		f.wantNothingLeft()
	})
}

func TestMissedTicksOfAJobThatMayOverlapRunOneAfterTheOther(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Overlap = jobs.OverlapAllow
		created := f.tick(f.job, f.cursor(f.job, 9), 2, ledger.VerdictCatchUp)
		w := f.session("w")
		a := f.claim(w, created.Due[0], ledger.ClaimGranted)
		f.claim(w, created.Due[1], ledger.ClaimWaiting)
		next := f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded).Due
		f.finish(f.claim(w, next[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantNothingLeft()
	})
}

// TestAReplacingTickPassesARunThatCannotBeRead: the tick must not be lost because of it.
func TestAReplacingTickPassesARunThatCannotBeRead(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Overlap = jobs.OverlapReplace
		created := f.tick(f.job, f.cursor(f.job, 9), 1, ledger.VerdictRun)
		f.rdb.HSet(f.Context(), f.key("run"), string(created.Due[0].Run), "garbage")
		created = f.tick(f.job, created.Cursor, 1, ledger.VerdictRun)
		f.wantState(jobs.TickRunID("j", created.Cursor), ledger.StateDue)
	})
}

func TestAReplacingTickCancelsWhatHasNotStartedAndAsksWhatRuns(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Overlap = jobs.OverlapReplace
		w := f.session("w")
		created := f.tick(f.job, f.cursor(f.job, 9), 1, ledger.VerdictRun)
		first := f.claim(w, created.Due[0], ledger.ClaimGranted)
		created = f.tick(f.job, created.Cursor, 1, ledger.VerdictRun)
		if len(created.Due) != 0 {
			f.Errorf("due %+v, want the new run to wait for the one that it replaces", created.Due)
		}
		second := jobs.TickRunID("j", created.Cursor)
		f.wantState(second, ledger.StateWaiting)
		created = f.tick(f.job, created.Cursor, 1, ledger.VerdictRun)
		third := jobs.TickRunID("j", created.Cursor)
		if record := f.wantState(second, ledger.StateCanceled); record.Reason != "overlap: replace; by "+string(third) {
			f.Errorf("reason %q, want the run named that replaces it", record.Reason)
		}
		if why := f.asked(w).Stop[first.Record.ID]; why != "overlap: replace; by "+string(third) {
			f.Errorf("the worker is asked to stop for %q, want the reason", why)
		}
		// A later run goes behind it.
		hand, err := f.Enqueue(f.Context(), ledger.Request{Job: f.job, ID: "x", Trigger: ledger.TriggerHand})
		if err != nil {
			f.Fatal(err)
		}
		f.claim(w, hand.Due[0], ledger.ClaimWaiting)
		due := f.finish(first, ledger.OutcomeCanceled, ledger.FinishRecorded).Due
		if record := f.wantState(first.Record.ID, ledger.StateCanceled); record.Last().Outcome != "canceled" || record.Fails != 0 {
			f.Errorf("%+v, want its attempt canceled and no failure counted", record)
		}
		if len(due) != 1 || due[0].Run != third {
			f.Fatalf("due %+v, want %s", due, third)
		}
		if left := f.asked(w).Stop; len(left) != 0 {
			f.Errorf("the worker is still asked to stop %v", left)
		}
		due = f.finish(f.claim(w, due[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded).Due
		f.finish(f.claim(w, due[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantNothingLeft()
	})
}

func TestARunThatWasAskedToStopIsNotTriedAgain(t *testing.T) {
	for name, end := range map[string]func(f *fixture, a attempt){
		"it failed":        func(f *fixture, a attempt) { f.finish(a, ledger.OutcomeRetry, ledger.FinishRecorded) },
		"it was handed":    func(f *fixture, a attempt) { f.finish(a, ledger.OutcomeHandBack, ledger.FinishRecorded) },
		"its worker ended": func(f *fixture, a attempt) { f.crash(a.client) },
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(f *fixture) {
				a := f.claim(f.session("w"), f.run(), ledger.ClaimGranted)
				canceled, err := f.Cancel(f.Context(), a.Record.ID, f.job, ledger.Act{Who: "ann", What: "cancel run", Why: "wrong day"})
				if err != nil || !canceled.Asked {
					f.Fatalf("%+v, %v, want its worker asked", canceled, err)
				}
				end(f, a)
				if record := f.wantState(a.Record.ID, ledger.StateCanceled); record.Reason != "canceled by ann: wrong day" {
					f.Errorf("reason %q, want the user and the reason", record.Reason)
				}
				f.wantNothingLeft()
			})
		})
	}
}

func TestASuccessCountsAlsoWhenTheRunWasToStop(t *testing.T) {
	each(t, func(f *fixture) {
		a := f.claim(f.session("w"), f.run(), ledger.ClaimGranted)
		if _, err := f.Cancel(f.Context(), a.Record.ID, f.job, ledger.Act{Who: "ann"}); err != nil {
			f.Fatal(err)
		}
		f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantState(a.Record.ID, ledger.StateSucceeded)
		f.wantNothingLeft()
	})
}

func TestACanceledRunIsNeverClaimed(t *testing.T) {
	each(t, func(f *fixture) {
		w, due := f.session("w"), f.run()
		canceled, err := f.Cancel(f.Context(), due.Run, f.job, ledger.Act{Who: "ann"})
		if err != nil || canceled.Asked {
			f.Fatalf("%+v, %v, want it ended at once", canceled, err)
		}
		f.claim(w, due, ledger.ClaimStale)
		if _, err := f.Cancel(f.Context(), due.Run, f.job, ledger.Act{Who: "ann"}); err == nil || !strings.Contains(err.Error(), "canceled") {
			f.Errorf("canceled twice: %v, want it refused", err)
		}
		f.wantNothingLeft()
	})
}

// A sweep that cannot read the definition of an expired run cannot know the bounds of the history.
func TestAnExpiredRunWithoutADefinitionRemovesNoHistory(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.StartDeadline = time.Hour
		ended := f.enqueues(f.Ledger, f.job, "ended")
		f.finish(f.claim(f.session("w"), ended, ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		due := f.run()
		f.over(due.Run, fieldDeadline)
		if _, err := f.Expire(f.Context(), due.Run, new(jobs.Job)); err != nil {
			f.Fatal(err)
		}
		f.wantState(due.Run, ledger.StateMissed)
		f.wantState(ended.Run, ledger.StateSucceeded)
	})
}

func TestARunIsMissedWhenItsStartDeadlineIsOver(t *testing.T) {
	over := func(f *fixture, due ledger.Due) { f.over(due.Run, fieldDeadline) }
	for name, test := range map[string]struct {
		state  string
		happen func(f *fixture, due ledger.Due)
	}{
		"seen by its claim": {"due", func(f *fixture, due ledger.Due) {
			over(f, due)
			f.claim(f.session("w"), due, ledger.ClaimOver)
		}},
		"seen by the sweep": {"due", func(f *fixture, due ledger.Due) {
			over(f, due)
			f.expire()
		}},
		"seen by the sweep while it waits": {"waiting", func(f *fixture, due ledger.Due) {
			w := f.session("w")
			hold, err := w.TryAcquire(f.Context(), locks.Exclusive("job:j"))
			if err != nil {
				f.Fatal(err)
			}
			f.claim(w, due, ledger.ClaimWaiting)
			over(f, due)
			f.expire()
			if err := hold.Release(); err != nil {
				f.Fatal(err)
			}
		}},
		"seen at its offer": {"due", func(f *fixture, due ledger.Due) {
			w := f.session("w")
			next := f.billed("behind", "job:j")
			hold, err := w.TryAcquire(f.Context(), locks.Exclusive("job:j"))
			if err != nil {
				f.Fatal(err)
			}
			f.claim(w, due, ledger.ClaimWaiting)
			f.claim(w, next, ledger.ClaimWaiting)
			over(f, due)
			if err := hold.Release(); err != nil {
				f.Fatal(err)
			}
			// The lock passes to the next one at once.
			offered := f.sweep().Due
			if len(offered) != 2 || offered[0].Run != due.Run || offered[1].Run != next.Run {
				f.Fatalf("offered %+v, want both due", offered)
			}
			f.finish(f.claim(w, offered[1], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
			f.claim(w, offered[0], ledger.ClaimOver)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(f *fixture) {
				f.job.StartDeadline = time.Hour
				due := f.run()
				test.happen(f, due)
				if record := f.wantState(due.Run, ledger.StateMissed); record.Reason != "start_deadline: it was "+test.state {
					f.Errorf("reason %q, want it to have been %s", record.Reason, test.state)
				}
				f.wantNothingLeft()
			})
		})
	}
}

func TestATickDecidedAfterItsStartDeadlineIsMissed(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.StartDeadline = 10 * time.Second
		if created := f.tick(f.job, f.cursor(f.job, 3000), 2, ledger.VerdictCatchUp); len(created.Due) != 0 {
			f.Errorf("due %+v, want none", created.Due)
		}
		for _, record := range f.history("j") {
			if record.State != ledger.StateMissed || !strings.HasPrefix(record.Reason, "start_deadline") {
				f.Errorf("%s (%s), want missed for the start deadline", record.State, record.Reason)
			}
		}
	})
}

func TestAStartDeadlineEndsWithTheFirstStart(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.StartDeadline = time.Hour
		w := f.session("w")
		a := f.claim(w, f.run(), ledger.ClaimGranted)
		if n, err := f.rdb.ZCard(f.Context(), f.key("late")).Result(); err != nil || n != 0 {
			f.Errorf("%d runs are watched, %v, want none", n, err)
		}
		f.finish(a, ledger.OutcomeRetry, ledger.FinishRecorded)
		f.set(a.Record.ID, fieldDeadline, "1")
		f.finish(f.claim(w, f.await()[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantNothingLeft()
	})
}

func TestJitterDelaysTheRunAndNotItsRecord(t *testing.T) {
	each(t, func(f *fixture) {
		cursor := f.cursor(f.job, 5)
		tick := cursor.Add(time.Second)
		created := f.Create(f.Context(), []ledger.Decision{{Job: f.job, Seen: cursor, Cursor: tick, By: "me.1",
			Ticks: []ledger.Tick{{At: tick, After: time.Hour, Verdict: ledger.VerdictRun}}}})[0]
		if created.Err != nil || len(created.Due) != 0 {
			f.Fatalf("%+v, want nothing due", created)
		}
		record := f.wantState(jobs.TickRunID("j", tick), ledger.StateScheduled)
		if !record.At.Equal(tick.Add(time.Hour)) || !record.Tick.Equal(tick) {
			f.Errorf("due at %v for tick %v, want an hour after it", record.At, record.Tick)
		}
		// The next tick finds it outstanding.
		f.job.Overlap = jobs.OverlapSkip
		if created := f.tick(f.job, tick, 1, ledger.VerdictRun); len(created.Due) != 0 {
			f.Errorf("due %+v, want the tick skipped", created.Due)
		}
		if err := f.rdb.ZAdd(f.Context(), f.key("timer"), redis.Z{Score: 1, Member: string(record.ID)}).Err(); err != nil {
			f.Fatal(err)
		}
		f.finish(f.claim(f.session("w"), f.await()[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantNothingLeft()
	})
}

func TestTicksOfAPausedJobAreSkipped(t *testing.T) {
	each(t, func(f *fixture) {
		cursor := f.cursor(f.job, 20)
		act := ledger.Act{Who: "ann", What: "pause job", On: "j", Why: "the partner is down"}
		for _, want := range []bool{true, false} {
			if news, err := f.Pause(f.Context(), "j", act); err != nil || news != want {
				f.Errorf("pause: %v, %v, want %v", news, err, want)
			}
		}
		created := f.tick(f.job, cursor, 1, ledger.VerdictRun)
		created = f.tick(f.job, created.Cursor, 1, ledger.VerdictCatchUp)
		for _, record := range f.history("j") {
			if record.State != ledger.StateSkipped || record.Reason != "paused by ann: the partner is down" {
				f.Errorf("%s (%s), want it skipped with the user and the reason", record.State, record.Reason)
			}
		}
		if f.billed("x").Run == "" {
			f.Error("a requested run continues")
		}
		if news, err := f.Resume(f.Context(), "j", ledger.Act{Who: "ann", What: "resume job"}); err != nil || !news {
			f.Errorf("resume: %v, %v, want it done", news, err)
		}
		f.job.Paused = true // its definition has the same effect
		created = f.tick(f.job, created.Cursor, 1, ledger.VerdictRun)
		f.job.Paused, f.job.Description = false, "continues"
		if created = f.tick(f.job, created.Cursor, 1, ledger.VerdictRun); len(created.Due) != 1 {
			f.Errorf("due %+v, want the tick after the pause", created.Due)
		}
		if history := f.history("j"); len(history) != 3 {
			f.Errorf("%d ticks are skipped, want 3", len(history))
		}
		if _, err := f.Pause(f.Context(), "no-such-job", act); err == nil {
			f.Error("a job that is not there was paused")
		}
	})
}

func TestAWaitForLocksEnds(t *testing.T) {
	for _, onBusy := range []jobs.OnBusy{jobs.BusyRequeue, jobs.BusySkip, jobs.BusyFail} {
		t.Run(string(onBusy), func(t *testing.T) {
			each(t, func(f *fixture) {
				f.job.Every = 0
				f.job.Lock = jobs.Lock{Exclusive: []string{"bill:1"}, Wait: 90 * time.Second, OnBusy: onBusy}
				w := f.session("w")
				hold, err := w.TryAcquire(f.Context(), locks.Exclusive("bill:1"))
				if err != nil {
					f.Fatal(err)
				}
				var runs []ledger.Due
				for _, id := range []string{"a", "b"} {
					enqueued, err := f.Enqueue(f.Context(), ledger.Request{Job: f.job, ID: id, Trigger: ledger.TriggerEnqueue})
					if err != nil {
						f.Fatal(err)
					}
					runs = append(runs, enqueued.Due[0])
					f.claim(w, enqueued.Due[0], ledger.ClaimWaiting)
				}
				if due := f.expire(); len(due) != 0 {
					f.Errorf("due %+v before the time is over", due)
				}
				f.over(runs[0].Run, fieldWaitBy)
				f.expire()
				if onBusy == jobs.BusyRequeue {
					if record := f.wantState(runs[0].Run, ledger.StateWaiting); record.Blocker == nil || record.Blocker.Resource != "bill:1" || record.Blocker.Session != w.Session() {
						f.Errorf("%+v, want what was in its way first", record.Blocker)
					}
				} else {
					want := map[jobs.OnBusy]ledger.State{jobs.BusySkip: ledger.StateSkipped, jobs.BusyFail: ledger.StateFailed}[onBusy]
					reason := fmt.Sprintf("lock.wait: its locks were not free for 90s (on_busy: %s); first in the way: bill:1", onBusy)
					if record := f.wantState(runs[0].Run, want); record.Reason != reason {
						f.Errorf("reason %q, want %q", record.Reason, reason)
					}
				}
				if err := hold.Release(); err != nil {
					f.Fatal(err)
				}
				order := []jobs.RunID{runs[1].Run}
				if onBusy == jobs.BusyRequeue {
					order = append(order, runs[0].Run)
				}
				due := f.sweep().Due
				for _, want := range order {
					if len(due) != 1 || due[0].Run != want {
						f.Fatalf("due %+v, want %s", due, want)
					}
					due = f.finish(f.claim(w, due[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded).Due
				}
				f.wantNothingLeft()
			})
		})
	}
}
