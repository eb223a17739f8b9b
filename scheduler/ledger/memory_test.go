package ledger_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// worker is a worker's view of the ledger: one with a memory, and its session.
type worker struct {
	*fixture
	client   *locks.Client
	revision int64
	lost     string // the last loss
	asked    int    // requests by ends
}

func (f *fixture) worker(name string) *worker {
	f.Helper()
	client := f.session(name)
	own := *f
	own.Ledger = ledger.New(client.Extension().Redis(), client.Space())
	own.Remember()
	return &worker{fixture: &own, client: client}
}

// hear polls, as a worker does once a second, and reads the outstanding runs if that is necessary.
func (w *worker) hear() {
	w.Helper()
	w.poll()
	w.mirror()
}

func (w *worker) poll() {
	w.Helper()
	poll, err := w.Poll(w.Context(), w.client.Session(), "config", w.revision)
	if err != nil {
		w.Fatal(err)
	}
	w.revision = poll.Revision
}

// mirror reads all pages of the outstanding runs, if that is necessary, and returns the number of
// calls.
func (w *worker) mirror() (pages int) {
	w.Helper()
	for more := true; more; pages++ {
		var err error
		if more, err = w.Mirror(w.Context()); err != nil {
			w.Fatal(err)
		}
	}
	return pages
}

// say makes the worker re-assert what Redis has lost.
func (w *worker) say() {
	w.Helper()
	if err := w.Assert(w.Context(), w.client.Session(), w.lost, "config", []*jobs.Job{w.job}); err != nil {
		w.Fatal(err)
	}
	w.sayMore()
}

// sayMore makes it re-assert what it has left, and returns the number of calls.
func (w *worker) sayMore() (calls int) {
	w.Helper()
	for more := true; more; calls++ {
		var err error
		if more, err = w.AssertMore(w.Context()); err != nil {
			w.Fatal(err)
		}
	}
	return calls
}

// lose empties the namespace, as if Redis had restarted without its data, and starts a grace
// period, in which these workers have re-asserted their holds.
func (f *fixture) lose(workers ...*worker) {
	f.Helper()
	keys, err := f.rdb.Keys(f.Context(), f.key("*")).Result()
	if err != nil {
		f.Fatal(err)
	}
	if err := f.rdb.Del(f.Context(), keys...).Err(); err != nil {
		f.Fatal(err)
	}
	f.grace(workers...)
}

// grace starts a grace period, in which these workers have re-asserted their holds.
func (f *fixture) grace(workers ...*worker) {
	f.Helper()
	id, err := f.rdb.HGet(f.Context(), f.key("meta"), "id").Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		f.Fatal(err)
	}
	epoch := strconv.FormatInt(time.Now().UnixMicro(), 10)
	pipe := f.rdb.TxPipeline()
	later := time.Now().Add(time.Hour).UnixMilli()
	pipe.HSet(f.Context(), f.key("meta"), "grace", strconv.FormatInt(later, 10), "lost", "1", "epoch", epoch)
	pipe.ZAdd(f.Context(), f.key("exp"), redis.Z{Member: "e"})
	for _, w := range workers {
		w.lost = id + " " + epoch
		pipe.ZAdd(f.Context(), f.key("exp"), redis.Z{Member: "s" + string(w.client.Session()), Score: float64(later)})
	}
	if _, err := pipe.Exec(f.Context()); err != nil {
		f.Fatal(err)
	}
}

// goOn ends the grace period.
func (f *fixture) goOn() {
	f.Helper()
	if err := f.rdb.HSet(f.Context(), f.key("meta"), "grace", 1).Err(); err != nil {
		f.Fatal(err)
	}
}

// ticks lets a worker create some ticks, of which the others hear, and returns their runs.
func (w *worker) ticks(n int, others ...*worker) []ledger.Due {
	w.Helper()
	for _, other := range append(others, w) {
		other.hear()
	}
	cursor := w.cursor(w.job, 5)
	created := w.tick(w.job, cursor, n, ledger.VerdictRun)
	if len(created.Due) != n {
		w.Fatalf("created %+v, want %d runs", created, n)
	}
	for _, other := range append(others, w) {
		other.hear()
	}
	return created.Due
}

func TestWhatOneWorkerKnowsSurvivesALossOfData(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Overlap = jobs.OverlapAllow
		a := f.worker("a")
		due := a.ticks(5)
		running, succeeded := a.claim(a.client, due[0], ledger.ClaimGranted), a.claim(a.client, due[1], ledger.ClaimGranted)
		failed, retried := a.claim(a.client, due[2], ledger.ClaimGranted), a.claim(a.client, due[3], ledger.ClaimGranted)
		a.finish(succeeded, ledger.OutcomeSuccess, ledger.FinishRecorded)
		a.finish(failed, ledger.OutcomeFailure, ledger.FinishRecorded)
		a.finish(retried, ledger.OutcomeRetry, ledger.FinishRecorded)

		f.lose(a)
		for range 2 { // a repetition changes nothing
			a.say()
		}
		now := f.wantState(running.Record.ID, ledger.StateRunning)
		if last := now.Last(); last.Token != running.token() || last.Number != 1 || last.Worker != a.client.Session() {
			t.Errorf("the running attempt is said to be %+v, want it as it was", last)
		}
		if got := f.wantState(succeeded.Record.ID, ledger.StateSucceeded); got.Last().Token != succeeded.token() {
			t.Errorf("the succeeded attempt is said to be %+v, want it as it was", got.Last())
		}
		f.wantState(failed.Record.ID, ledger.StateFailed)
		if got := f.wantState(retried.Record.ID, ledger.StateRetrying); got.Fails != 1 {
			t.Errorf("%d failures are counted, want 1", got.Fails)
		}
		f.wantState(due[4].Run, ledger.StateDue)
		a.claim(a.client, f.sweepAgain(due[4].Run), ledger.ClaimLater) // the grace period
		f.goOn()
		a.finish(running, ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantState(running.Record.ID, ledger.StateSucceeded)
		last := a.claim(a.client, f.sweepAgain(due[4].Run), ledger.ClaimGranted)
		a.finish(last, ledger.OutcomeSuccess, ledger.FinishRecorded)
	})
}

// sweepAgain pushes a run's delivery again, and returns it.
func (f *fixture) sweepAgain(run jobs.RunID) ledger.Due {
	f.Helper()
	sweep, err := f.Sweep(f.Context(), ledger.SweepLimits{Most: 100})
	if err != nil {
		f.Fatal(err)
	}
	for _, due := range sweep.Due {
		if due.Run == run {
			return due
		}
	}
	f.Fatalf("the sweep pushes %+v, want %s", sweep.Due, run)
	return ledger.Due{}
}

func TestNewsOfOtherWorkersSurvivesThem(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Overlap = jobs.OverlapAllow
		a, b := f.worker("a"), f.worker("b")
		due := a.ticks(3, b)
		a.finish(a.claim(a.client, due[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		running := a.claim(a.client, due[1], ledger.ClaimGranted)
		b.hear()

		f.lose(b) // and a has exited
		b.say()
		ended := f.wantState(due[0].Run, ledger.StateSucceeded)
		if !strings.Contains(ended.Reason, "re-asserted") || !ended.Tick.Equal(tickOf(t, due[0].Run)) {
			t.Errorf("the end that was heard is kept as %+v", ended)
		}
		f.wantState(due[1].Run, ledger.StateDue) // no worker asserts that it runs
		f.wantState(due[2].Run, ledger.StateDue)

		a.say() // it had not exited, after all
		f.wantState(due[0].Run, ledger.StateSucceeded)
		if got := f.find(due[0].Run); got.Last() == nil || got.Reason != "" {
			t.Errorf("a worker that knows the cause reports it, and %+v is kept", got)
		}
		if last := f.wantState(due[1].Run, ledger.StateRunning).Last(); last.Token != running.token() {
			t.Errorf("it runs as %+v, want what its worker says", last)
		}
	})
}

// TestARequestWithATickInItsIDIsNoTick lets Redis lose a request of which no worker knows more than
// its ID.
func TestARequestWithATickInItsIDIsNoTick(t *testing.T) {
	each(t, func(f *fixture) {
		a := f.worker("a")
		tick := a.cursor(f.job, 100).Add(10 * time.Second) // decided long ago
		name := "x@" + tick.UTC().Format(time.RFC3339)
		request, err := f.Enqueue(t.Context(), ledger.Request{Job: f.job, ID: name, Trigger: ledger.TriggerEnqueue})
		if err != nil {
			t.Fatal(err)
		}
		a.hear()

		f.lose(a)
		a.say()
		for _, id := range []jobs.RunID{request.Run, jobs.TickRunID(f.job.Name, tick)} {
			if record, _, err := f.Find(t.Context(), id); !errors.Is(err, ledger.ErrUnknown) {
				t.Errorf("%s: got %+v, %v, want no run: a request that no worker had claimed is lost", id, record, err)
			}
		}
	})
}

func tickOf(t *testing.T, run jobs.RunID) time.Time {
	t.Helper()
	tick, ok := run.Tick()
	if !ok {
		t.Fatalf("%s is no tick's", run)
	}
	return tick
}

// TestTheFurthestAssertionWinsInAnyOrder lets a run fail at one worker and continue at a second
// one.
func TestTheFurthestAssertionWinsInAnyOrder(t *testing.T) {
	for name, order := range map[string]func(a, b *worker) []*worker{
		"old news first": func(a, b *worker) []*worker { return []*worker{a, b, a} },
		"old news last":  func(a, b *worker) []*worker { return []*worker{b, a, b} },
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(f *fixture) {
				f.job.Overlap = jobs.OverlapAllow
				a, b := f.worker("a"), f.worker("b")
				due := a.ticks(2, b)
				var second [2]attempt
				for i := range due {
					a.finish(a.claim(a.client, due[i], ledger.ClaimGranted), ledger.OutcomeRetry, ledger.FinishRecorded)
					second[i] = b.claim(b.client, f.await()[0], ledger.ClaimGranted)
				}
				b.finish(second[1], ledger.OutcomeSuccess, ledger.FinishRecorded)

				f.lose(a, b)
				for _, w := range order(a, b) {
					w.say()
				}
				if got := f.wantState(due[0].Run, ledger.StateRunning); got.Last().Token != second[0].token() || got.Last().Number != 2 {
					t.Errorf("it runs as %+v, want the second attempt", got.Last())
				}
				if got := f.wantState(due[1].Run, ledger.StateSucceeded); got.Last().Token != second[1].token() {
					t.Errorf("it ended with %+v, want the second attempt", got.Last())
				}
			})
		})
	}
}

func TestCursorsSurviveALossOfData(t *testing.T) {
	each(t, func(f *fixture) {
		a, b, c := f.worker("a"), f.worker("b"), f.worker("c")
		cursor := f.cursor(f.job, 60) // without a memory: it is set back by hand
		a.tick(a.job, cursor, 10, ledger.VerdictMissed)
		b.hear()
		mine := cursor.Add(10 * time.Second)
		a.tick(a.job, mine, 10, ledger.VerdictMissed) // b does not hear of this
		highest := mine.Add(10 * time.Second)

		f.lose(a, b, c)
		if got := c.register(c.job).Jobs["j"]; got.Cursor.Before(highest) {
			t.Errorf("a job that is new to a worker begins at %v, want now", got.Cursor)
		}
		b.say()
		if got := b.register(b.job).Jobs["j"]; !got.Cursor.Equal(mine) {
			t.Errorf("the cursor is at %v, want %v, which somebody knew", got.Cursor, mine)
		}
		a.say()
		b.say()
		if got := b.register(b.job).Jobs["j"]; !got.Cursor.Equal(highest) {
			t.Errorf("the cursor is at %v, want the highest, %v", got.Cursor, highest)
		}
		f.goOn()
		if created := a.tick(a.job, highest, 1, ledger.VerdictRun); len(created.Due) != 1 {
			t.Errorf("the next tick: %+v, want a run", created)
		}
	})
}

func TestOneLineRecordsTheTicksThatWereLost(t *testing.T) {
	each(t, func(f *fixture) {
		a, b := f.worker("a"), f.worker("b")
		cursor := f.cursor(f.job, 60) // without a memory: it is set back by hand
		a.tick(a.job, cursor, 10, ledger.VerdictMissed)
		b.hear()
		f.lose(a, b)
		a.say()
		b.say()
		history, err := f.History(f.Context(), "j", 0)
		if err != nil {
			t.Fatal(err)
		}
		lines := 0
		for _, record := range history {
			if record.State == ledger.StateLost {
				lines++
				if upto := cursor.Add(10 * time.Second); !record.Upto.Equal(upto) || !record.Tick.Before(cursor) {
					t.Errorf("%+v, want a line for what came until %v", record, upto)
				}
			}
		}
		if lines != 1 {
			t.Errorf("%d lines, want one", lines)
		}
	})
}

func TestNothingIsReassertedAfterTheGracePeriod(t *testing.T) {
	each(t, func(f *fixture) {
		a := f.worker("a")
		due := a.ticks(1)
		a.claim(a.client, due[0], ledger.ClaimGranted)
		f.lose(a)
		f.goOn()
		err := a.Assert(f.Context(), a.client.Session(), "loss", "config", []*jobs.Job{a.job})
		if !errors.Is(err, ledger.ErrLate) {
			t.Errorf("got %v, want %v", err, ledger.ErrLate)
		}
		if _, _, err := f.Find(f.Context(), due[0].Run); !errors.Is(err, ledger.ErrUnknown) {
			t.Errorf("the run: %v, want %v", err, ledger.ErrUnknown)
		}
	})
}

// TestAFinishWithoutAReplyIsAnEnd loses the data between a finish and its reply.
func TestAFinishWithoutAReplyIsAnEnd(t *testing.T) {
	each(t, func(f *fixture) {
		a := f.worker("a")
		done := a.claim(a.client, a.ticks(1)[0], ledger.ClaimGranted)
		ctx, cancel := context.WithCancel(f.Context())
		cancel()
		finish := ledger.Finish{Run: done.Record.ID, Job: done.Job, Token: done.token(), Hold: done.request.ID(), Outcome: ledger.OutcomeSuccess}
		if _, err := a.Finish(ctx, finish); err == nil {
			t.Fatal("a finish that was not sent is answered")
		}
		f.lose(a)
		a.say()
		f.wantState(done.Record.ID, ledger.StateSucceeded)
		if finished, err := a.Finish(f.Context(), finish); err != nil || finished.Verdict != ledger.FinishRecorded {
			t.Errorf("sent again: %+v, %v, want it recorded", finished, err)
		}
	})
}

// TestAnEndBetweenALossAndItsDetectionIsReasserted: a Redis that has lost everything
// replies to a finish.
func TestAnEndBetweenALossAndItsDetectionIsReasserted(t *testing.T) {
	each(t, func(f *fixture) {
		a := f.worker("a")
		done := a.claim(a.client, a.ticks(1)[0], ledger.ClaimGranted)
		f.lose(a)
		a.finish(done, ledger.OutcomeSuccess, ledger.FinishFenced)
		a.say()
		f.wantState(done.Record.ID, ledger.StateSucceeded)
	})
}

// TestTheWorkerThatDecidesTicksKnowsThemAtOnce: Redis loses ticks of which the worker that decided
// them has heard nothing since.
func TestTheWorkerThatDecidesTicksKnowsThemAtOnce(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Overlap = jobs.OverlapSkip
		a := f.worker("a")
		a.hear()
		cursor := a.cursor(a.job, 5)
		f.mark()
		created := a.tick(a.job, cursor, 2, ledger.VerdictRun)
		skipped := jobs.TickRunID("j", created.Cursor)
		f.wantState(skipped, ledger.StateSkipped)
		f.rewind(a)
		a.say()
		f.wantState(created.Due[0].Run, ledger.StateDue)
		f.wantState(skipped, ledger.StateSkipped)
		if job, err := a.Job(f.Context(), "j"); err != nil || job.Cursor.Before(created.Cursor) {
			t.Errorf("%+v, %v, want the cursor behind both ticks", job, err)
		}
	})
}

// TestAWorkerThatAssertsLateForgetsNothingMeanwhile: it polls, and reads the outstanding runs,
// while others have begun to re-assert what they know.
func TestAWorkerThatAssertsLateForgetsNothingMeanwhile(t *testing.T) {
	for name, test := range map[string]func(f *fixture){
		"others assert more news than one poll reads": func(f *fixture) {
			a, b := f.worker("a"), f.worker("b")
			cursor := b.cursor(b.job, 1200)
			for range 11 {
				cursor = b.tick(b.job, cursor, 100, ledger.VerdictMissed).Cursor
			}
			a.hear()
			a.hear()
			due := a.tick(a.job, cursor, 3, ledger.VerdictRun).Due
			f.lose(a, b)
			b.say()
			a.hear()
			a.hear()
			a.say()
			for _, one := range due {
				f.wantState(one.Run, ledger.StateDue)
			}
		},
		"another worker knows less": func(f *fixture) {
			a, b, c := f.worker("a"), f.worker("b"), f.worker("c")
			due := c.ticks(1, a, b)[0]
			c.finish(c.claim(c.client, due, ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
			a.hear()
			f.lose(a, b)
			b.say()
			f.wantState(due.Run, ledger.StateDue)
			a.hear()
			a.say()
			f.wantState(due.Run, ledger.StateSucceeded)
		},
		"the job is new to another worker": func(f *fixture) {
			a := f.worker("a")
			last := a.tick(a.job, f.cursor(f.job, 5), 1, ledger.VerdictRun).Cursor
			f.lose(a)
			f.register(f.job) // by a worker that has just been started
			a.hear()
			created := a.Create(f.Context(), []ledger.Decision{{Job: a.job, Seen: last, Cursor: last.Add(time.Second), By: "me.1"}})[0]
			if created.Err != nil || !created.Moved {
				f.Errorf("created %+v, want the cursor moved by the registration", created)
			}
			a.say()
			if job, err := a.Job(f.Context(), "j"); err != nil || !job.Cursor.Equal(last) {
				f.Errorf("%+v, %v, want the cursor at the last tick that was decided", job, err)
			}
		},
		"Redis is emptied again before that is noticed": func(f *fixture) {
			a := f.worker("a")
			last := a.tick(a.job, f.cursor(f.job, 5), 1, ledger.VerdictRun).Cursor
			f.lose(a)
			f.goOn()
			a.register(a.job)
			f.grace(a)
			a.say()
			if job, err := a.Job(f.Context(), "j"); err != nil || !job.Cursor.Equal(last) {
				f.Errorf("%+v, %v, want the cursor at the last tick that was decided", job, err)
			}
		},
		"Redis is emptied again during its reading": func(f *fixture) {
			f.job.Overlap = jobs.OverlapAllow
			a := f.worker("a")
			cursor, first := f.cursor(f.job, 1200), jobs.RunID("")
			for range 11 {
				created := f.tick(f.job, cursor, 100, ledger.VerdictRun)
				cursor, first = created.Cursor, cmp.Or(first, created.Due[0].Run)
			}
			a.poll()
			if more, err := a.Mirror(f.Context()); err != nil || !more {
				f.Fatalf("%t, %v, want another page", more, err)
			}
			f.lose(a)
			a.say()
			f.wantState(first, ledger.StateDue)
			a.hear()
			f.lose(a)
			a.say()
			f.wantState(first, ledger.StateDue)
		},
		"a cursor moves before all have asserted": func(f *fixture) {
			a, b := f.worker("a"), f.worker("b")
			cursor := b.tick(b.job, f.cursor(f.job, 5), 1, ledger.VerdictMissed).Cursor
			a.hear()
			last := b.tick(b.job, cursor, 1, ledger.VerdictMissed).Cursor
			f.lose(a, b)
			a.say()
			a.revision = a.register(a.job).Revision // as after each recovery
			b.say()
			a.hear()
			f.goOn()
			a.hear()
			f.lose(a) // b has exited
			a.say()
			if job, err := a.Job(f.Context(), "j"); err != nil || !job.Cursor.Equal(last) {
				f.Errorf("%+v, %v, want the cursor at the last tick that was decided", job, err)
			}
		},
		"it has asserted, and another worker has not": func(f *fixture) {
			a, b := f.worker("a"), f.worker("b")
			a.hear()
			unheard := b.tick(b.job, b.cursor(b.job, 5), 1, ledger.VerdictRun).Due[0].Run
			f.lose(a, b)
			b.say()
			a.say()
			a.revision = a.register(a.job).Revision // as after each recovery
			a.hear()
			f.lose(a) // b has exited
			a.say()
			f.wantState(unheard, ledger.StateDue)
		},
		"Redis is emptied after it has asserted": func(f *fixture) {
			a := f.worker("a")
			due := f.requested("asked")
			a.finish(a.claim(a.client, due, ledger.ClaimGranted), ledger.OutcomeRetry, ledger.FinishRecorded)
			a.hear()
			f.lose(a)
			a.say()
			a.hear()
			f.lose()
			f.goOn() // nobody has detected this loss yet
			a.hear()
			f.grace(a)
			a.say()
			f.wantState(due.Run, ledger.StateRetrying)
		},
		"it was reading the outstanding runs": func(f *fixture) {
			a := f.worker("a")
			due := a.ticks(2)
			a.finish(a.claim(a.client, due[0], ledger.ClaimGranted), ledger.OutcomeRetry, ledger.FinishRecorded)
			f.lose(a)
			a.say()
			a.poll() // the reading begins
			f.lose(a)
			f.goOn() // nobody has detected this loss yet
			a.mirror()
			f.lose(a)
			a.mirror()
			a.say()
			f.wantState(due[0].Run, ledger.StateRetrying)
			f.wantState(due[1].Run, ledger.StateDue)
		},
	} {
		t.Run(name, func(t *testing.T) { each(t, test) })
	}
}

// TestAWorkerWithOlderEndsToAssertForgetsNothing: Redis is emptied again before it has asserted
// them.
func TestAWorkerWithOlderEndsToAssertForgetsNothing(t *testing.T) {
	large(t, func(f *fixture) {
		a := f.worker("a")
		runs := a.ends(310, func(*jobs.Job) {})
		retried := f.requested("retried")
		a.finish(a.claim(a.client, retried, ledger.ClaimGranted), ledger.OutcomeRetry, ledger.FinishRecorded)
		more := a.ends(310, func(*jobs.Job) {})
		f.lose(a)
		if err := a.Assert(f.Context(), a.client.Session(), a.lost, "config", []*jobs.Job{a.job}); err != nil {
			f.Fatal(err)
		}
		a.hear()
		f.lose(a)
		a.say()
		f.wantState(retried.Run, ledger.StateRetrying)
		for _, run := range slices.Concat(runs, more) {
			f.wantState(run, ledger.StateSucceeded)
		}
	})
}

func TestCursorsSurviveOneLossAfterAnother(t *testing.T) {
	each(t, func(f *fixture) {
		a := f.worker("a")
		cursor := a.ticks(2)[1].Run
		tick, _ := cursor.Tick()
		for range 2 {
			f.lose(a)
			a.say()
			if job, err := a.Job(f.Context(), "j"); err != nil || job.Cursor.Before(tick) {
				t.Fatalf("%+v, %v, want the job with its cursor", job, err)
			}
		}
	})
}

// TestTheWorkerOfAnAttemptDecidesHowItsRunEnded: another worker asserts first that a run has ended
// that Redis takes for running.
func TestTheWorkerOfAnAttemptDecidesHowItsRunEnded(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Retry.Max = 0
		a, b := f.worker("a"), f.worker("b")
		claimed := a.claim(a.client, a.ticks(1, b)[0], ledger.ClaimGranted)
		f.mark()
		a.finish(claimed, ledger.OutcomeFailure, ledger.FinishRecorded)
		b.hear()
		f.rewind(a, b)
		for _, w := range []*worker{b, a, b, a} {
			w.say()
		}
		got := f.wantState(claimed.Record.ID, ledger.StateFailed)
		if len(got.Attempts) != 1 || got.Last().Token != claimed.token() || got.Last().Outcome != "failed" || got.Fails != 1 {
			t.Errorf("%+v, want the attempt as it was", got)
		}
		f.goOn()
		f.wantNothingLeft()
	})
}

// mark keeps a copy of all keys, as a replica has it, for rewind.
func (f *fixture) mark() {
	f.Helper()
	for _, key := range f.allKeys() {
		if err := f.rdb.Copy(f.Context(), key, key+"|copy", 0, true).Err(); err != nil {
			f.Fatal(err)
		}
	}
}

func (f *fixture) allKeys() []string {
	f.Helper()
	keys, err := f.rdb.Keys(f.Context(), f.key("*")).Result()
	if err != nil {
		f.Fatal(err)
	}
	return slices.DeleteFunc(keys, func(key string) bool { return strings.HasSuffix(key, "|copy") })
}

// rewind loses the writes since mark, as a failover to that replica does, and starts a grace
// period, as lose does.
func (f *fixture) rewind(workers ...*worker) {
	f.Helper()
	copies, err := f.rdb.Keys(f.Context(), f.key("*|copy")).Result()
	if err != nil {
		f.Fatal(err)
	}
	if err := f.rdb.Del(f.Context(), f.allKeys()...).Err(); err != nil {
		f.Fatal(err)
	}
	for _, key := range copies {
		if err := f.rdb.Copy(f.Context(), key, strings.TrimSuffix(key, "|copy"), 0, true).Err(); err != nil {
			f.Fatal(err)
		}
	}
	f.grace(workers...)
}

// TestAnEndThatARolledBackRedisDoesNotKnowIsReasserted lets workers assert their ends while Redis
// knows the runs as they were before these attempts: in any order, and even when the assertion that
// the attempt runs follows the refusal of its end.
func TestAnEndThatARolledBackRedisDoesNotKnowIsReasserted(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Overlap = jobs.OverlapAllow
		a := f.worker("a")
		due := a.ticks(3)
		f.mark()
		first, second, third := a.claim(a.client, due[0], ledger.ClaimGranted), a.claim(a.client, due[1], ledger.ClaimGranted), a.claim(a.client, due[2], ledger.ClaimGranted)
		a.finish(second, ledger.OutcomeRetry, ledger.FinishRecorded)
		f.rewind(a)
		if got := a.finish(first, ledger.OutcomeSuccess, ledger.FinishFenced); got.State != ledger.StateDue {
			t.Errorf("%+v, want it to be due", got)
		}
		a.finish(third, ledger.OutcomeFailure, ledger.FinishFenced)
		a.say()
		f.wantState(first.Record.ID, ledger.StateSucceeded)
		if got := f.wantState(second.Record.ID, ledger.StateRetrying); got.Fails != 1 {
			t.Errorf("%+v, want one failure counted", got)
		}
		f.wantState(third.Record.ID, ledger.StateFailed)
		f.goOn()
		a.finish(a.claim(a.client, a.await()[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
	})
}

// A worker asserts that an attempt has run, and then how it ended. A sweep in between finds a run
// without its hold.
func TestNoAttemptIsClosedWhileItIsReasserted(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Retry.Max = 0
		a := f.worker("a")
		claimed := a.claim(a.client, a.ticks(1)[0], ledger.ClaimGranted)
		f.lose(a)
		a.say() // its hold does not exist, like that of an attempt that has ended
		found := f.sweep().Dead
		if len(found) != 1 {
			f.Fatalf("the sweep has found %+v: this test shows nothing", found)
		}
		if _, err := f.Crash(f.Context(), found[0], f.job); err != nil {
			f.Fatal(err)
		}
		f.wantState(claimed.Record.ID, ledger.StateRunning)
		a.finish(claimed, ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantState(claimed.Record.ID, ledger.StateSucceeded)
	})
}

// TestCursorsOfJobsNoLongerCarriedSurviveALossOfData: only the worker that removed a job from
// its config knows its last tick.
func TestCursorsOfJobsNoLongerCarriedSurviveALossOfData(t *testing.T) {
	for name, order := range map[string][2]int{"known first": {0, 1}, "known last": {1, 0}} {
		t.Run(name, func(t *testing.T) {
			each(t, func(f *fixture) {
				a, b := f.worker("a"), f.worker("b")
				cursor := f.cursor(f.job, 60)
				b.register(b.job)
				a.register(a.job)
				for _, w := range []*worker{a, b} {
					w.hear()
				}
				due := a.tick(a.job, cursor, 1, ledger.VerdictRun).Due // b does not hear of it
				a.finish(a.claim(a.client, due[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)

				f.lose(a, b)
				for _, i := range order {
					w := []*worker{a, b}[i]
					carried := []*jobs.Job{w.job}
					if w == a {
						carried = nil
					}
					if err := w.Assert(f.Context(), w.client.Session(), "loss", "config", carried); err != nil {
						t.Fatal(err)
					}
				}
				f.goOn()
				if got, want := b.register(b.job).Jobs["j"].Cursor, cursor.Add(time.Second); !got.Equal(want) {
					t.Errorf("the cursor is at %v, want %v", got, want)
				}
			})
		})
	}
}

// TestATickWhoseEndIsKnownIsNotDecidedAgain: the cursor went back behind it, since no live worker
// knew better.
func TestATickWhoseEndIsKnownIsNotDecidedAgain(t *testing.T) {
	each(t, func(f *fixture) {
		a := f.worker("a")
		due := a.ticks(1)
		a.finish(a.claim(a.client, due[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.lose(a)
		a.say()
		f.goOn()
		cursor := f.cursor(f.job, 5)
		before := tickOf(t, due[0].Run).Add(-time.Second)
		if err := f.rdb.HSet(f.Context(), f.key("cursor"), "j", before.UnixMilli()).Err(); err != nil {
			t.Fatal(err)
		}
		if created := a.tick(a.job, before, 2, ledger.VerdictRun); len(created.Due) != 1 || created.Due[0].Run == due[0].Run {
			t.Errorf("%+v (cursor %v), want the second tick alone", created, cursor)
		}
		f.wantState(due[0].Run, ledger.StateSucceeded)
	})
}

// TestReassertingManyEndsContinuesWhereItStopped interrupts an assertion, and repeats it.
func TestReassertingManyEndsContinuesWhereItStopped(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Overlap = jobs.OverlapAllow
		a := f.worker("a")
		due := a.ticks(5)
		for _, d := range due {
			a.finish(a.claim(a.client, d, ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		}
		f.lose(a)
		ended, cancel := context.WithCancel(f.Context())
		cancel()
		if err := a.Assert(ended, a.client.Session(), a.lost, "config", []*jobs.Job{a.job}); err == nil {
			t.Error("an assertion that could not be sent is answered")
		}
		a.say()
		for _, d := range due {
			f.wantState(d.Run, ledger.StateSucceeded)
		}
		// Asserted facts are not asserted again after this loss, but they are after the next one.
		before := a.lost
		f.lose(a)
		a.lost = before
		a.say()
		if _, _, err := f.Find(f.Context(), due[0].Run); !errors.Is(err, ledger.ErrUnknown) {
			t.Errorf("said twice after one loss: %v", err)
		}
		f.lose(a)
		a.say()
		f.wantState(due[0].Run, ledger.StateSucceeded)
	})
}

// TestAnEndThatWasDecidedOtherwiseStays has attempts whose outcomes differ from those of their
// runs, and Redis loses both.
func TestAnEndThatWasDecidedOtherwiseStays(t *testing.T) {
	each(t, func(f *fixture) {
		f.job.Overlap, f.job.MaxCrashes = jobs.OverlapAllow, 1
		a := f.worker("a")
		due := a.ticks(2)
		canceled, crashed := a.claim(a.client, due[0], ledger.ClaimGranted), a.claim(a.client, due[1], ledger.ClaimGranted)
		if _, err := a.Cancel(f.Context(), due[0].Run, a.job, ledger.Act{Who: "ann", What: "cancel run"}); err != nil {
			t.Fatal(err)
		}
		a.finish(canceled, ledger.OutcomeFailure, ledger.FinishRecorded)
		b := f.worker("b")
		if err := b.Died(f.Context(), a.client.Session()); err != nil {
			t.Fatal(err)
		}
		if err := a.client.Space().EndSession(f.Context(), a.client.Session()); err != nil {
			t.Fatal(err)
		}
		if closed, err := b.Crash(f.Context(), ledger.Dead{Run: due[1].Run, Job: "j", Token: crashed.token()}, f.job); err != nil || closed == nil {
			t.Fatalf("the attempt of a dead session is not closed: %v", err)
		}
		// a paused process that continues: the reply is that this attempt was closed
		a.finish(crashed, ledger.OutcomeSuccess, ledger.FinishRecorded)

		f.lose(b)
		a.client = b.client // its next session
		a.lost = b.lost
		a.say()
		f.wantState(due[0].Run, ledger.StateCanceled)
		f.wantState(due[1].Run, ledger.StateFailed)
	})
}

// dying lets a worker send a number of commands, and then nothing any more.
type dying struct{ left *atomic.Int64 }

func (d dying) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d dying) send() error {
	if d.left.Add(-1) < 0 {
		return errors.New("the worker is dead")
	}
	return nil
}

func (d dying) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := d.send(); err != nil {
			return err
		}
		return next(ctx, cmd)
	}
}

func (d dying) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := d.send(); err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		return next(ctx, cmds)
	}
}

// sayAndDie makes the worker re-assert what Redis has lost, and die after so many sendings.
func (w *worker) sayAndDie(sent int) error {
	left := new(atomic.Int64)
	left.Store(int64(sent))
	w.client.Extension().Redis().AddHook(dying{left})
	err := w.Assert(w.Context(), w.client.Session(), w.lost, "config", []*jobs.Job{w.job})
	left.Store(1000) // to close its session
	return err
}

// TestAnEndIsAssertedWholeOrNotAtAll lets a worker die while it asserts that a run has succeeded:
// after each of the commands that it sends. No other worker knows of the end. The run may be
// forgotten then, for its tick is decided, but must not run again.
func TestAnEndIsAssertedWholeOrNotAtAll(t *testing.T) {
	each(t, func(f *fixture) {
		for sent := 0; ; sent++ {
			a := f.worker("a")
			run := a.ticks(1)[0]
			a.finish(a.claim(a.client, run, ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
			f.lose(a)
			err := a.sayAndDie(sent)
			record, _, found := f.Find(f.Context(), run.Run)
			switch {
			case errors.Is(found, ledger.ErrUnknown) && err != nil:
			case found != nil || record.State != ledger.StateSucceeded:
				t.Errorf("after %d sendings the run is %+v (%v), want it succeeded or forgotten", sent, record, found)
			}
			if err == nil {
				if sent < 2 {
					t.Errorf("all is said in %d sendings: the test proves nothing", sent)
				}
				return
			}
			f.lose()
			f.goOn()
		}
	})
}

// TestATickIsAssertedBeforeItsCursor lets the only worker that knows of a run die while it asserts
// that: after each of the commands that it sends. The tick must not count as decided without the
// run.
func TestATickIsAssertedBeforeItsCursor(t *testing.T) {
	for state, begin := range map[ledger.State]func(a *worker, due ledger.Due){
		ledger.StateDue:     func(*worker, ledger.Due) {},
		ledger.StateRunning: func(a *worker, due ledger.Due) { a.claim(a.client, due, ledger.ClaimGranted) },
		ledger.StateRetrying: func(a *worker, due ledger.Due) {
			a.finish(a.claim(a.client, due, ledger.ClaimGranted), ledger.OutcomeRetry, ledger.FinishRecorded)
		},
	} {
		t.Run(string(state), func(t *testing.T) {
			each(t, func(f *fixture) {
				f.job.Overlap = jobs.OverlapAllow
				for sent := 0; ; sent++ {
					a := f.worker("a")
					cursor := a.ticks(1)[0].Run
					last := a.tick(a.job, tickOf(f.T, cursor), 1, ledger.VerdictRun).Due[0]
					begin(a, last)
					f.lose(a)
					err := a.sayAndDie(sent)
					job, jobErr := f.Job(f.Context(), "j")
					decided := jobErr == nil && !job.Cursor.Before(tickOf(f.T, last.Run))
					if record, _, found := f.Find(f.Context(), last.Run); decided && (found != nil || record.State != state) {
						f.Errorf("after %d sendings the tick is decided, and its run is %+v (%v), want it %s", sent, record, found, state)
					}
					if err == nil {
						if sent < 2 {
							f.Errorf("all is said in %d sendings: the test proves nothing", sent)
						}
						return
					}
					f.lose()
					f.goOn()
				}
			})
		})
	}
}

// TestATickWhoseReplyWasUnderWayIsAsserted empties Redis after it has created a run, and before
// its worker has the reply. The reply comes while the worker asserts what it knew before.
func TestATickWhoseReplyWasUnderWayIsAsserted(t *testing.T) {
	each(t, func(f *fixture) {
		a := f.worker("a")
		seen := a.tick(a.job, a.cursor(a.job, 5), 1, ledger.VerdictMissed).Cursor
		made, resume, read := make(chan struct{}), make(chan struct{}), make(chan struct{})
		type creates struct{}
		var asserting atomic.Bool
		a.client.Extension().Redis().AddHook(around{
			after: func(ctx context.Context) {
				if ctx.Value(creates{}) != nil {
					close(made)
					<-resume
				}
			},
			before: func(ctx context.Context) {
				if ctx.Value(creates{}) == nil && asserting.CompareAndSwap(true, false) {
					close(resume)
					<-read
				}
			},
		})
		tick := ledger.Tick{At: seen.Add(time.Second), Verdict: ledger.VerdictRun}
		go func() {
			defer close(read)
			a.Create(context.WithValue(f.Context(), creates{}, true), []ledger.Decision{{Job: a.job, Seen: seen, Cursor: tick.At, Ticks: []ledger.Tick{tick}, By: "me.1"}})
		}()
		<-made
		f.lose(a)
		asserting.Store(true)
		a.say()
		f.wantState(jobs.TickRunID("j", tick.At), ledger.StateDue)
	})
}

// TestAPollUnderWayKeepsNoPositionInLostNews empties Redis after the reply to each command of a
// poll, and restarts the numbers of its news below those before, as under a clock that was set
// back. The worker must hear of what comes next.
func TestAPollUnderWayKeepsNoPositionInLostNews(t *testing.T) {
	for name, polled := range map[string]bool{"the first poll": false, "a later poll": true} {
		t.Run(name, func(t *testing.T) {
			each(t, func(f *fixture) {
				a, b := f.worker("a"), f.worker("b")
				future := redis.XAddArgs{Stream: f.key("news"), ID: "99999999999999-0", Values: []any{"r", "j@x", "s", "skipped"}}
				if err := f.rdb.XAdd(f.Context(), &future).Err(); err != nil {
					f.Fatal(err)
				}
				if polled {
					a.hear()
				}
				type polls struct{}
				var lost atomic.Bool
				a.client.Extension().Redis().AddHook(around{after: func(ctx context.Context) {
					if ctx.Value(polls{}) != nil && lost.CompareAndSwap(false, true) {
						f.lose(a)
						a.say()
					}
				}})
				if _, err := a.Poll(context.WithValue(f.Context(), polls{}, true), a.client.Session(), "config", 0); err != nil {
					f.Fatal(err)
				}
				f.goOn()
				a.hear()
				run := b.tick(b.job, b.cursor(b.job, 5), 1, ledger.VerdictRun).Due[0].Run
				a.hear()
				f.lose(a) // b has exited
				a.say()
				f.wantState(run, ledger.StateDue)
			})
		})
	}
}

// TestManyAttemptsThatEndDuringAnAssertionAreAssertedAsEnded: Redis has lost the attempts, so that
// their ends do not count before they are asserted.
func TestManyAttemptsThatEndDuringAnAssertionAreAssertedAsEnded(t *testing.T) {
	large(t, func(f *fixture) {
		f.job.Overlap = jobs.OverlapAllow
		a := f.worker("a")
		var attempts []attempt
		for i := range 310 {
			attempts = append(attempts, a.claim(a.client, f.requested(fmt.Sprint("r", i)), ledger.ClaimGranted))
		}
		f.lose(a)
		var ended atomic.Bool
		a.client.Extension().Redis().AddHook(around{before: func(context.Context) {
			if ended.CompareAndSwap(false, true) {
				for _, one := range attempts {
					a.finish(one, ledger.OutcomeSuccess, ledger.FinishFenced)
				}
			}
		}})
		a.say()
		for _, one := range attempts {
			f.wantState(one.Record.ID, ledger.StateSucceeded)
		}
	})
}

// TestACursorReturnsAlthoughASuccessOfItsJobIsKnown: a worker that has just been started registers
// the job before each command of the assertion by the worker that knows both.
func TestACursorReturnsAlthoughASuccessOfItsJobIsKnown(t *testing.T) {
	each(t, func(f *fixture) {
		for before := 0; ; before++ {
			a := f.worker("a")
			last := a.tick(a.job, f.cursor(f.job, 60), 1, ledger.VerdictMissed).Cursor
			a.finish(a.claim(a.client, f.requested(fmt.Sprint("r", before)), ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
			f.lose(a)
			sent, registered := 0, false
			a.client.Extension().Redis().AddHook(around{before: func(context.Context) {
				if sent++; sent > before && !registered {
					registered = true
					f.register(f.job)
				}
			}})
			a.say()
			during := registered
			registered = true
			if job, err := a.Job(f.Context(), "j"); err != nil || !job.Cursor.Equal(last) {
				f.Errorf("registered after %d commands of the assertion: %+v, %v, want the cursor at %v", before, job, err, last)
			}
			f.lose()
			f.goOn()
			if !during {
				return
			}
		}
	})
}

// TestEarlierAttemptsSurviveARewindBeforeTheLast rewinds Redis to a moment before the end of the
// last attempt at a run is recorded. Another worker, which has only heard of that end, asserts it
// first.
func TestEarlierAttemptsSurviveARewindBeforeTheLast(t *testing.T) {
	for name, between := range map[string]func(f *fixture, a *worker, last attempt, ended func()){
		"within the last one": func(f *fixture, _ *worker, _ attempt, ended func()) {
			f.mark()
			ended()
		},
		"after its lease was lost, before its late success": func(f *fixture, a *worker, _ attempt, ended func()) {
			f.loseLease(a.client)
			f.mark()
			ended()
		},
		"after its success, which is done once more": func(f *fixture, a *worker, last attempt, ended func()) {
			ended()
			if _, err := f.Reopen(f.Context(), ledger.Reopening{Run: last.Record.ID, Job: f.job, Any: true}); err != nil {
				f.Fatal(err)
			}
			f.mark()
		},
		"before it": nil,
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(f *fixture) {
				f.job.Retry.Max = 3
				a, b := f.worker("a"), f.worker("b")
				due := a.ticks(1, b)[0]
				for range 2 {
					b.finish(b.claim(b.client, due, ledger.ClaimGranted), ledger.OutcomeRetry, ledger.FinishRecorded)
					due = a.await()[0]
				}
				if between == nil {
					f.mark()
				}
				last := a.claim(a.client, due, ledger.ClaimGranted)
				ended := func() {
					a.finish(last, ledger.OutcomeSuccess, ledger.FinishRecorded)
					b.hear()
				}
				if between == nil {
					ended()
				} else {
					between(f, a, last, ended)
				}
				a.client = b.client // a session of its own may be over
				f.rewind(a, b)
				b.say()
				a.say()
				got := f.wantState(due.Run, ledger.StateSucceeded)
				for i, attempt := range got.Attempts {
					if attempt.Number != i+1 {
						t.Errorf("attempt %d has the number %d", i+1, attempt.Number)
					}
				}
				if len(got.Attempts) != 3 || got.Last().Token != last.token() || got.Last().Outcome != "succeeded" {
					t.Errorf("the attempts are %+v, want all three", got.Attempts)
				}
			})
		})
	}
}
