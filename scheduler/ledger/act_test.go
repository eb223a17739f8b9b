package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/locks/space"
	"lockstep/scheduler/ledger"
)

func (f *fixture) reopen(id jobs.RunID, tick time.Time, anyState bool) ([]ledger.Due, error) {
	return f.Reopen(f.Context(), ledger.Reopening{Run: id, Tick: tick, Job: f.job, Any: anyState,
		Act: &ledger.Act{Who: "ann", What: "retry run", On: string(id)}})
}

func TestARunThatFailedIsDoneAgainUnderItsID(t *testing.T) {
	each(t, func(f *fixture) {
		w, due := f.session("w"), f.run()
		a := f.claim(w, due, ledger.ClaimGranted)
		if again, err := f.reopen(due.Run, time.Time{}, false); err != nil || len(again) != 0 {
			f.Errorf("%+v, %v, want an outstanding run left alone", again, err)
		}
		f.finish(a, ledger.OutcomeFailure, ledger.FinishRecorded)
		again, err := f.reopen(due.Run, time.Time{}, false)
		if err != nil || len(again) != 1 || again[0].N <= due.N {
			f.Fatalf("%+v, %v, want it due under a later n than %d", again, err, due.N)
		}
		if record := f.wantState(due.Run, ledger.StateDue); record.Fails != 0 || len(record.Attempts) != 1 || record.Reason != "" {
			f.Errorf("%+v, want its attempt kept and its failures counted anew", record)
		}
		if left := f.history("j"); len(left) != 0 {
			f.Errorf("history %+v, want it outstanding", left)
		}
		f.claim(w, due, ledger.ClaimStale)
		b := f.claim(w, again[0], ledger.ClaimGranted)
		if b.Record.Last().Number != 2 || b.token() <= a.token() {
			f.Errorf("attempt %+v, want the second, with a higher token", b.Record.Last())
		}
		f.finish(a, ledger.OutcomeSuccess, ledger.FinishFenced)
		f.finish(b, ledger.OutcomeSuccess, ledger.FinishRecorded)
		if _, err := f.reopen(due.Run, time.Time{}, false); !errors.Is(err, ledger.ErrRefused) {
			f.Errorf("%v, want a run that succeeded refused", err)
		}
		if _, err := f.reopen("j#nobody", time.Time{}, false); !errors.Is(err, ledger.ErrUnknown) {
			f.Errorf("%v, want a run that is not there refused", err)
		}
		f.wantNothingLeft()
	})
}

func TestALateSuccessCountsForAReopenedRunUnlessItHadSucceeded(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.OnCrash = jobs.CrashAbandon
		a := f.claim(f.session("w"), f.run(), ledger.ClaimGranted)
		f.crash(a.client)
		id := a.Record.ID
		if _, err := f.reopen(id, time.Time{}, false); err != nil {
			f.Fatal(err)
		}
		f.finish(a, ledger.OutcomeFailure, ledger.FinishCounted)
		// the worker was only cut off: the work is done
		f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantState(id, ledger.StateSucceeded)
		due, err := f.reopen(id, a.Record.Tick, true)
		if err != nil {
			f.Fatal(err)
		}
		// the finish is sent again: it belongs to the run before the reopening
		f.finish(a, ledger.OutcomeSuccess, ledger.FinishFenced)
		f.finish(f.claim(f.session("b"), due[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantNothingLeft()
	})
}

func TestATickIsReplayedWhateverIsKnownOfIt(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		created := f.tick(f.job, f.cursor(f.job, 50), 1, ledger.VerdictMissed)
		forgotten := created.Cursor.Add(-time.Hour)
		for _, tick := range []time.Time{created.Cursor, forgotten} {
			due, err := f.reopen(jobs.TickRunID("j", tick), tick, true)
			if err != nil || len(due) != 1 {
				f.Fatalf("%+v, %v, want the tick of %v due", due, err, tick)
			}
			a := f.claim(w, due[0], ledger.ClaimGranted)
			if !a.Record.Tick.Equal(tick) || a.Record.Trigger != ledger.TriggerSchedule {
				f.Errorf("%+v, want the tick %v", a.Record, tick)
			}
			f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
		}
		f.wantNothingLeft()
	})
}

func TestALineForManyTicksIsNotReplayed(t *testing.T) {
	each(t, func(f *fixture) {
		cursor := f.cursor(f.job, 50)
		line := ledger.Tick{At: cursor.Add(time.Second), Upto: cursor.Add(9 * time.Second), Verdict: ledger.VerdictMissed}
		created := f.Create(f.Context(), []ledger.Decision{{Job: f.job, Seen: cursor, Cursor: line.Upto, Ticks: []ledger.Tick{line}}})[0]
		if created.Err != nil {
			f.Fatal(created.Err)
		}
		if _, err := f.reopen(f.history("j")[0].ID, line.At, true); !errors.Is(err, ledger.ErrRefused) {
			f.Errorf("%v, want it refused", err)
		}
	})
}

func TestASpanOfTicksIsSkipped(t *testing.T) {
	each(t, func(f *fixture) {
		cursor := f.cursor(f.job, 50)
		at := func(n int) time.Time { return cursor.Add(time.Duration(n) * time.Second) }
		created := f.tick(f.job, cursor, 3, ledger.VerdictRun) // ticks 1 to 3
		a := f.claim(f.session("w"), created.Due[0], ledger.ClaimGranted)
		for range 2 { // sent again, it changes nothing
			n, _, err := f.Skip(f.Context(), f.job, at(1), at(5), ledger.Act{Who: "ann", What: "skip ticks", On: "j", Why: "holidays"})
			if err != nil {
				f.Fatal(err)
			}
			if n != 2 && n != 0 {
				f.Errorf("%d runs were skipped, want 2 at first", n)
			}
		}
		created = f.tick(f.job, created.Cursor, 3, ledger.VerdictRun) // ticks 4 to 6
		if len(created.Due) != 1 || created.Due[0].Run != jobs.TickRunID("j", at(6)) {
			f.Errorf("due %+v, want the tick after the span alone", created.Due)
		}
		f.wantState(a.Record.ID, ledger.StateRunning)
		for n := 2; n <= 5; n++ {
			if record := f.wantState(jobs.TickRunID("j", at(n)), ledger.StateSkipped); record.Reason != "skipped by ann: holidays" {
				f.Errorf("reason %q, want the user and the reason", record.Reason)
			}
		}
		if left, err := f.rdb.HExists(f.Context(), f.key("facts"), "sj").Result(); err != nil || left {
			f.Errorf("the span is still there, %v, want it forgotten once it is over", err)
		}
	})
}

func TestRefusedSkipDeclaresNoSpan(t *testing.T) {
	each(t, func(f *fixture) {
		cursor := f.cursor(f.job, 5)
		if err := f.rdb.Set(f.Context(), f.key("hist:j"), "x", 0).Err(); err != nil {
			f.Fatal(err)
		}
		from, to := cursor.Add(time.Minute), cursor.Add(time.Hour)
		if _, _, err := f.Skip(f.Context(), f.job, from, to, ledger.Act{Who: "ann", What: "skip ticks", On: "j"}); err == nil {
			f.Fatal("the ticks were skipped although the history of the job has the wrong type")
		}
		if declared, err := f.rdb.HExists(f.Context(), f.key("facts"), "sj").Result(); err != nil || declared {
			f.Errorf("span declared: %t, %v; want a refusal to change nothing", declared, err)
		}
	})
}

func TestActsExplainAnUnknownFormat(t *testing.T) {
	each(t, func(f *fixture) {
		if err := f.rdb.HSet(f.Context(), f.key("meta"), "format", space.Format+1, "least_format", space.Format+1).Err(); err != nil {
			f.Fatal(err)
		}
		ctx, act := f.Context(), ledger.Act{Who: "ann", What: "act", On: "j"}
		for what, do := range map[string]func() error{
			"enqueue": func() error {
				_, err := f.Enqueue(ctx, ledger.Request{Job: f.job, ID: "x", Trigger: ledger.TriggerEnqueue, Act: &act})
				return err
			},
			"cancel": func() error { _, err := f.Cancel(ctx, "j#x", f.job, act); return err },
			"reopen": func() error { _, err := f.reopen("j#x", time.Time{}, true); return err },
			"pause":  func() error { _, err := f.Pause(ctx, "j", act); return err },
			"resume": func() error { _, err := f.Resume(ctx, "j", act); return err },
			"skip":   func() error { _, _, err := f.Skip(ctx, f.job, time.Now(), time.Now(), act); return err },
			"drain":  func() error { _, err := f.Drain(ctx, "w.12345678", act); return err },
			"audit":  func() error { return f.Audit(ctx, act) },
		} {
			if err := do(); !errors.Is(err, locks.ErrFormat) {
				f.Errorf("%s: got %v, want ErrFormat", what, err)
			}
		}
	})
}

func TestAWorkerIsAskedToDrain(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		if f.asked(w).Drain {
			f.Error("asked before anybody did")
		}
		for _, want := range []bool{true, false} {
			if news, err := f.Drain(f.Context(), w.Session(), ledger.Act{Who: "ann", What: "drain worker"}); err != nil || news != want {
				f.Errorf("%v, %v, want %v", news, err, want)
			}
		}
		if !f.asked(w).Drain {
			f.Error("not asked")
		}
		f.end(w)
		f.sweep()
		if n, err := f.rdb.ZCard(f.Context(), f.key("ask")).Result(); err != nil || n != 0 {
			f.Errorf("%d are asked, %v, want none that has ended", n, err)
		}
		if _, err := f.Drain(f.Context(), w.Session(), ledger.Act{Who: "ann"}); !errors.Is(err, ledger.ErrUnknown) {
			f.Errorf("%v, want a worker that has ended unknown", err)
		}
	})
}

func TestTheAuditNamesEachActor(t *testing.T) {
	each(t, func(f *fixture) {
		f.cursor(f.job, 5)
		act := ledger.Act{Who: "ann@desk", What: "pause job", On: "j", Why: "\"no\"\n", Detail: "a"}
		if _, err := f.Pause(f.Context(), "j", act); err != nil {
			f.Fatal(err)
		}
		// it changes nothing, so nothing is recorded
		if _, err := f.Pause(f.Context(), "j", act); err != nil {
			f.Fatal(err)
		}
		for i := range 5 {
			if err := f.Audit(f.Context(), ledger.Act{Who: "bob", What: "pause queue", On: fmt.Sprint(i)}); err != nil {
				f.Fatal(err)
			}
		}
		acts, err := f.Acts(f.Context(), "", 0)
		if err != nil || len(acts) != 6 {
			f.Fatalf("%d acts, %v, want 6", len(acts), err)
		}
		act.Times = 1
		if last := acts[5]; last.Act != act || last.At.IsZero() || !last.First.Equal(last.At) {
			f.Errorf("%+v, want %+v", last, act)
		}
		some, err := f.Acts(f.Context(), acts[1].ID, 2)
		if err != nil || len(some) != 2 || some[0].ID != acts[2].ID || !strings.HasPrefix(some[0].On, "2") {
			f.Errorf("%+v, %v, want the third and the fourth", some, err)
		}
	})
}

// TestActsOnANewServerGrantNothing ends a run that has reserved a lock, as the first script on a
// server that may lack the last writes: a waiter behind it must not get the lock before every
// worker has re-asserted its holds.
func TestActsOnANewServerGrantNothing(t *testing.T) {
	t.Parallel()
	act := ledger.Act{Who: "ann"}
	for name, end := range map[string]func(f *fixture, run *ledger.Record) error{
		"cancel": func(f *fixture, run *ledger.Record) error {
			_, err := f.Cancel(f.Context(), run.ID, f.job, act)
			return err
		},
		"skip": func(f *fixture, run *ledger.Record) error {
			n, _, err := f.Skip(f.Context(), f.job, run.Tick, run.Tick, act)
			if err == nil && n != 1 {
				return fmt.Errorf("%d runs were skipped, want 1", n)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, namespace := redistest.Client(t), redistest.Namespace(t)
			space, err := locks.NewSpace(rdb, namespace)
			if err != nil {
				t.Fatal(err)
			}
			f := &fixture{T: t, rdb: rdb, namespace: namespace, Ledger: ledger.New(rdb, space), job: newJob("j"), lease: time.Minute}
			w := f.session("w")
			if _, err := w.Acquire(t.Context(), locks.Exclusive("taken")); err != nil {
				t.Fatal(err)
			}
			f.job.Lock.Exclusive = []string{"taken", "reserved"}
			due := f.run()
			f.claim(w, due, ledger.ClaimWaiting)
			ctx, cancel := context.WithCancel(t.Context())
			granted := make(chan error, 1)
			queued := make(chan struct{})
			go func() {
				_, err := w.Acquire(ctx, locks.Exclusive("reserved"), locks.OnWait(func(*locks.BusyError) { close(queued) }))
				granted <- err
			}()
			<-queued
			if err := rdb.HSet(t.Context(), f.key("meta"), "server", "another").Err(); err != nil {
				t.Fatal(err)
			}
			if err := end(f, f.find(due.Run)); err != nil {
				t.Fatal(err)
			}
			if lock, err := space.HeldBy(t.Context(), "reserved"); err != nil || lock.Mode != "" {
				t.Errorf("it is held by %+v, %v", lock.Holds, err)
			}
			if listing, err := space.Read(t.Context()); err != nil || len(listing.Waits) != 1 {
				t.Errorf("got %+v, %v; want the one wait behind the run", listing, err)
			}
			if grace := rdb.HExists(t.Context(), f.key("meta"), "grace").Val(); !grace {
				t.Error("no grace time has begun")
			}
			cancel()
			if err := <-granted; !errors.Is(err, context.Canceled) {
				t.Errorf("the wait ended with %v", err)
			}
		})
	}
}

func TestRepeatsAreOneEntryOfTheAudit(t *testing.T) {
	each(t, func(f *fixture) {
		f.cursor(f.job, 5)
		if err := f.Audit(f.Context(), ledger.Act{Who: "ann", What: "release lock", On: "bill:1", Why: "it was stuck"}); err != nil {
			f.Fatal(err)
		}
		const rounds = 300
		for i := range rounds {
			act := ledger.Act{Who: "eve", What: "pause job", On: "j", Why: fmt.Sprint("why ", i)}
			if news, err := f.Pause(f.Context(), "j", act); err != nil || !news {
				f.Fatal(news, err)
			}
			act.What = "resume job"
			if news, err := f.Resume(f.Context(), "j", act); err != nil || !news {
				f.Fatal(news, err)
			}
		}
		if err := f.Audit(f.Context(), ledger.Act{Who: "bob", What: "resume job", On: "j", Times: 7}); err != nil {
			f.Fatal(err)
		}
		acts, err := f.Acts(f.Context(), "", 0)
		if err != nil {
			f.Fatal(err)
		}
		var got []string
		for _, act := range acts {
			got = append(got, fmt.Sprintf("%s %s %d %s", act.Who, act.What, act.Times, act.Why))
			if act.First.After(act.At) || act.Times == 1 && !act.First.Equal(act.At) {
				f.Errorf("%s: the first at %s, the last at %s", act.What, act.First, act.At)
			}
		}
		want := []string{"bob resume job 7 ", "eve resume job 300 why 299", "eve pause job 300 why 299", "ann release lock 1 it was stuck"}
		if !slices.Equal(got, want) {
			f.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestRepeatsAfterAWhileAreAnEntryOfTheirOwn(t *testing.T) {
	each(t, func(f *fixture) {
		act := ledger.Act{Who: "ann", What: "pause queue", On: "q", Span: time.Nanosecond}
		for range 3 {
			if err := f.Audit(f.Context(), act); err != nil {
				f.Fatal(err)
			}
		}
		if acts, err := f.Acts(f.Context(), "", 0); err != nil || len(acts) != 3 {
			f.Errorf("%d acts, %v, want 3", len(acts), err)
		}
	})
}

// The audit is bounded by age, by number, and, for the counts of repeats, also by number.
func TestTheAuditIsBounded(t *testing.T) {
	large(t, func(f *fixture) {
		ctx := f.Context()
		now := f.now()
		old := func(days int) string {
			return fmt.Sprintf("%d-0", now.Add(-time.Duration(days)*24*time.Hour).UnixMilli())
		}
		for _, days := range []int{200, 91, 89} { // as an older build has recorded them
			err := f.rdb.XAdd(ctx, &redis.XAddArgs{Stream: f.key("audit"), ID: old(days), Values: []any{"e", fmt.Sprintf(`{"who":"w","what":"x","on":"%d"}`, days)}}).Err()
			if err != nil {
				f.Fatal(err)
			}
		}
		for i := range 1100 {
			if err := f.Audit(ctx, ledger.Act{Who: "ann", What: "cancel run", On: fmt.Sprint(i), Why: strings.Repeat("é", 4000)}); err != nil {
				f.Fatal(err)
			}
		}
		acts, err := f.Acts(ctx, "", 0)
		if err != nil || len(acts) != 1101 || acts[1100].On != "89" || acts[1100].Times != 1 {
			f.Fatalf("%d acts, %v, want those of 90 days", len(acts), err)
		}
		if n := len(acts[0].Why); n > 1<<10 || n < 1000 {
			f.Errorf("%d bytes of a reason are kept", n)
		}
		if n, err := f.rdb.HLen(ctx, f.key("acts")).Result(); err != nil || n > 1000 || n < 1 {
			f.Errorf("%d repeats are counted, %v, want at most 1000", n, err)
		}
		for range 51 {
			pipe := f.rdb.Pipeline()
			for range 1000 {
				pipe.XAdd(ctx, &redis.XAddArgs{Stream: f.key("audit"), Values: []any{"e", `{"who":"w","what":"x","on":"y"}`}})
			}
			if _, err := pipe.Exec(ctx); err != nil {
				f.Fatal(err)
			}
		}
		if err := f.Audit(ctx, ledger.Act{Who: "ann", What: "drain worker", On: "w"}); err != nil {
			f.Fatal(err)
		}
		if n, err := f.rdb.XLen(ctx, f.key("audit")).Result(); err != nil || n > 50_200 || n < 50_000 {
			f.Errorf("%d entries are kept, %v, want about 50,000", n, err)
		}
	})
}
