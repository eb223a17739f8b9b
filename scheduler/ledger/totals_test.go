package ledger_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// wantTotals checks all totals: "run succeeded schedule j: 2", without a trigger for ticks and
// attempts.
func (f *fixture) wantTotals(want ...string) {
	f.Helper()
	totals, err := f.Totals(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	got := []string{}
	for _, total := range slices.Collect(maps.Keys(totals.Counts)) {
		words := strings.Fields(fmt.Sprint(total.Of, " ", total.Outcome, " ", total.Trigger, " ", total.Job))
		got = append(got, fmt.Sprintf("%s: %d", strings.Join(words, " "), totals.Counts[total]))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		f.Errorf("totals:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestEveryEndIsCountedOnce ends runs and ticks in every way that there is.
func TestEveryEndIsCountedOnce(t *testing.T) {
	act := ledger.Act{Who: "ann", What: "act", On: "j", Why: "test"}
	for name, test := range map[string]struct {
		play func(f *fixture)
		want []string
	}{
		"a success": {func(f *fixture) {
			a := f.claim(f.session("w"), f.run(), ledger.ClaimGranted)
			f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
			f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded) // sent again
		}, []string{"run succeeded schedule j: 1", "tick succeeded j: 1", "attempt succeeded j: 1"}},
		"a retry that succeeds": {func(f *fixture) {
			w := f.session("w")
			f.finish(f.claim(w, f.run(), ledger.ClaimGranted), ledger.OutcomeRetry, ledger.FinishRecorded)
			f.finish(f.claim(w, f.await()[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		}, []string{"run succeeded schedule j: 1", "tick succeeded j: 1", "attempt succeeded j: 1", "attempt failed j: 1"}},
		"a failed request": {func(f *fixture) {
			f.register(f.job)
			due := f.enqueues(f.Ledger, f.job, "x")
			f.finish(f.claim(f.session("w"), due, ledger.ClaimGranted), ledger.OutcomeFailure, ledger.FinishRecorded)
		}, []string{"run failed enqueue j: 1", "attempt failed j: 1"}},
		"an abandoned crash": {func(f *fixture) {
			f.job.OnCrash = jobs.CrashAbandon
			f.crash(f.claim(f.session("w"), f.run(), ledger.ClaimGranted).client)
		}, []string{"run lost schedule j: 1", "tick lost j: 1", "attempt crashed j: 1"}},
		"a success after the attempt was closed": {func(f *fixture) {
			a := f.claim(f.session("w"), f.run(), ledger.ClaimGranted)
			f.loseLease(a.client)
			f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
		}, []string{"run succeeded schedule j: 1", "tick succeeded j: 1", "attempt lost lease j: 1"}},
		"a wait that is over": {func(f *fixture) {
			f.job.Lock.Wait, f.job.Lock.OnBusy = time.Minute, jobs.BusySkip
			a := f.claim(f.session("w"), f.run(), ledger.ClaimGranted)
			second := f.tick(f.job, a.Record.Tick, 1, ledger.VerdictRun).Due[0]
			f.claim(a.client, second, ledger.ClaimWaiting)
			f.over(second.Run, fieldWaitBy)
			f.expire()
		}, []string{"run skipped schedule j: 1", "tick skipped j: 1"}},
		"a start deadline": {func(f *fixture) {
			f.job.StartDeadline = time.Hour
			due := f.run()
			f.over(due.Run, fieldDeadline)
			f.claim(f.session("w"), due, ledger.ClaimOver)
		}, []string{"run missed schedule j: 1", "tick missed j: 1"}},
		"a cancel": {func(f *fixture) {
			due := f.run()
			for _, want := range []error{nil, ledger.ErrRefused} {
				if _, err := f.Cancel(f.Context(), due.Run, f.job, act); !errors.Is(err, want) {
					f.Fatalf("cancel: %v, want %v", err, want)
				}
			}
		}, []string{"run canceled schedule j: 1", "tick canceled j: 1"}},
		"a skipped span": {func(f *fixture) {
			tick, _ := f.run().Run.Tick()
			if _, _, err := f.Skip(f.Context(), f.job, tick, tick.Add(time.Second), act); err != nil {
				f.Fatal(err)
			}
			f.tick(f.job, tick, 1, ledger.VerdictRun) // in the span: no run
		}, []string{"run skipped schedule j: 1", "tick skipped j: 2"}},
		"a refusal": {func(f *fixture) {
			due := f.run()
			if _, _, err := f.Refuse(f.Context(), ledger.Refusal{Run: due.Run, N: due.N, Cause: errors.New("no")}); err != nil {
				f.Fatal(err)
			}
		}, []string{"run failed schedule j: 1", "tick failed j: 1"}},
		"missed ticks and a line for many": {func(f *fixture) {
			cursor := f.cursor(f.job, 100)
			f.register(f.job)
			line := ledger.Tick{At: cursor.Add(time.Second), Upto: cursor.Add(50 * time.Second), Count: 50, Verdict: ledger.VerdictMissed}
			one := ledger.Tick{At: cursor.Add(51 * time.Second), Verdict: ledger.VerdictMissed}
			d := []ledger.Decision{{Job: f.job, Seen: cursor, Cursor: one.At, Ticks: []ledger.Tick{line, one}, By: "me.1"}}
			for range 2 { // the second one finds that the cursor has moved
				if err := f.Create(f.Context(), d)[0].Err; err != nil {
					f.Fatal(err)
				}
			}
		}, []string{"tick missed j: 51"}},
		"an adopted request that cannot run": {func(f *fixture) {
			f.register(f.job)
			a := f.given(f.session("w"), "x")
			a.Payload = []byte("{")
			f.adopt(a)
			f.adopt(a)
		}, []string{"run failed enqueue j: 1"}},
		"a run that ends again": {func(f *fixture) {
			w, due := f.session("w"), f.run()
			f.finish(f.claim(w, due, ledger.ClaimGranted), ledger.OutcomeFailure, ledger.FinishRecorded)
			again, err := f.reopen(due.Run, time.Time{}, false)
			if err != nil {
				f.Fatal(err)
			}
			f.finish(f.claim(w, again[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		}, []string{"run failed schedule j: 1", "run succeeded schedule j: 1", "tick failed j: 1", "tick succeeded j: 1",
			"attempt failed j: 1", "attempt succeeded j: 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(f *fixture) {
				test.play(f)
				f.wantTotals(test.want...)
			})
		})
	}
}

func TestTotalsOfAForgottenJobAreRemoved(t *testing.T) {
	each(t, func(f *fixture) {
		f.finish(f.claim(f.session("w"), f.run(), ledger.ClaimGranted), ledger.OutcomeRetry, ledger.FinishRecorded)
		f.finish(f.claim(f.session("v"), f.await()[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.left("config", time.Hour)
		if err := f.Forget(f.Context(), "j", ledger.Act{Who: "ann", What: "forget job", On: "j"}); err != nil {
			f.Fatal(err)
		}
		f.wantTotals()
	})
}

// TestNoForeignWriteToTheTotalsHindersAnEnd: counting is not worth a run.
func TestNoForeignWriteToTheTotalsHindersAnEnd(t *testing.T) {
	each(t, func(f *fixture) {
		if err := f.rdb.Set(f.Context(), f.key("totals"), "x", 0).Err(); err != nil {
			f.Fatal(err)
		}
		w := f.session("w")
		f.asked(w)
		f.finish(f.claim(w, f.run(), ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantNothingLeft()
	})
}

func TestTheWorkerOnDutyNotesSinceWhenItCounts(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		for i := range 2 {
			before, err := f.Totals(f.Context())
			if err != nil {
				f.Fatal(err)
			}
			f.nextMillisecond()
			if poll := f.asked(w); !poll.Duty {
				f.Fatal("the only session has no duty")
			}
			after, err := f.Totals(f.Context())
			if err != nil {
				f.Fatal(err)
			}
			if after.Since.IsZero() || i > 0 && !after.Since.Equal(before.Since) {
				f.Errorf("poll %d: since %v, then %v, want one instant", i, before.Since, after.Since)
			}
		}
		if duty, err := f.Duty(f.Context()); duty != w.Session() || err != nil {
			f.Errorf("%q, %v has duty, want %q", duty, err, w.Session())
		}
	})
}

// TestAnEndThatAFailoverLostIsCountedAgain: its count was lost with it.
func TestAnEndThatAFailoverLostIsCountedAgain(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Overlap = jobs.OverlapAllow
		a := f.worker("a")
		due := a.ticks(3)
		a.finish(a.claim(a.client, due[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.mark()
		a.finish(a.claim(a.client, due[1], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		a.finish(a.claim(a.client, due[2], ledger.ClaimGranted), ledger.OutcomeFailure, ledger.FinishRecorded)
		want := []string{"run succeeded schedule j: 2", "tick succeeded j: 2", "attempt succeeded j: 2", "run failed schedule j: 1",
			"tick failed j: 1", "attempt failed j: 1"}
		f.wantTotals(want...)
		f.rewind(a)
		f.wantTotals("run succeeded schedule j: 1", "tick succeeded j: 1", "attempt succeeded j: 1")
		for range 2 {
			a.say()
		}
		f.wantTotals(want...)
	})
}

func TestTheRestOfTheGracePeriodCanBeRead(t *testing.T) {
	each(t, func(f *fixture) {
		left := func() time.Duration {
			left, err := f.Space().GraceLeft(f.Context())
			if err != nil {
				f.Fatal(err)
			}
			return left
		}
		if got := left(); got != 0 {
			t.Errorf("before any: %s", got)
		}
		f.grace() // an hour
		if got := left(); got <= 50*time.Minute || got > time.Hour+time.Minute {
			t.Errorf("%s are left of an hour", got)
		}
		f.goOn()
		if got := left(); got != 0 {
			t.Errorf("when it is over: %s", got)
		}
	})
}
