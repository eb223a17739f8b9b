package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// present makes a worker with a config appear to have polled without a long pause, from one moment
// to another.
func (f *fixture) present(config string, from, to time.Duration) {
	f.Helper()
	now := f.now()
	if err := f.rdb.HSet(f.Context(), f.key("ledger"), "since:"+config, now.Add(-from).UnixMilli(), "config:"+config, now.Add(-to).UnixMilli()).Err(); err != nil {
		f.Fatal(err)
	}
}

// TestARemovedJobBeginsAnewWhenItReturns: while others were present, no worker carried it. A fleet
// that was down as a whole continues where it stopped.
func TestARemovedJobBeginsAnewWhenItReturns(t *testing.T) {
	for name, test := range map[string]struct {
		carried  time.Duration // ago
		from, to time.Duration // when others were present
		as       string        // the config with which it returns
		removed  bool
	}{
		"others were present":                             {100 * time.Second, 90 * time.Second, 0, "back", true},
		"others were present before and after":            {100 * time.Second, time.Hour, 0, "back", true},
		"others were present for a while, long ago":       {time.Hour, 50 * time.Minute, 49 * time.Minute, "back", true},
		"the fleet was down":                              {time.Hour, 2 * time.Hour, time.Hour, "back", false},
		"the fleet was down, others came a bit sooner":    {time.Hour, 3 * time.Second, 0, "back", false},
		"it stopped for a moment":                         {10 * time.Second, time.Hour, 0, "back", false},
		"others replaced it, and the change is reverted":  {100 * time.Second, 90 * time.Second, 0, "config", true},
		"others replaced it slowly, and that is reverted": {time.Hour, 65 * time.Minute, 0, "config", true},
		"it was down beside others that never had it":     {100 * time.Second, time.Hour, 0, "config", false},
		"the fleet was down, and returns as it was":       {time.Hour, 2 * time.Hour, time.Hour, "config", false},
		"it stopped for a moment, and returns as it was":  {10 * time.Second, 9 * time.Second, 0, "config", false},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(f *fixture) {
				cursor := f.cursor(f.job, 5000)
				f.left("config", test.carried)
				f.present("other", test.from, test.to)
				got := f.carries(test.as, f.job, ledger.StandingActive).Cursor
				if removed := got.After(cursor.Add(time.Minute)); removed != test.removed {
					f.Errorf("cursor %v after %v; want it to begin anew: %v", got, cursor, test.removed)
				}
			})
		})
	}
}

// TestAJobWhoseOnlyWorkerRestartsIsNotRemoved, also with a config in which another job has changed:
// its definition gives way when the worker leaves in order, or crashes. Other workers were present,
// but it was absent only for a moment.
func TestAJobWhoseOnlyWorkerRestartsIsNotRemoved(t *testing.T) {
	for name, kept := range map[string]time.Duration{"after a drain": 0, "after a crash": ledger.RestartTime} {
		t.Run(name, func(t *testing.T) {
			each(t, func(f *fixture) {
				cursor := f.cursor(f.job, 5000)
				w := f.session("w")
				if _, err := f.Poll(f.Context(), w.Session(), "config", 0); err != nil {
					f.Fatal(err)
				}
				for range 2 { // it may be sent again
					if err := f.Leave(f.Context(), w.Session(), "config", kept); err != nil {
						f.Fatal(err)
					}
				}
				f.present("other", time.Hour, -5*time.Second) // and polls once more
				if got := f.carries("changed", f.job, ledger.StandingActive).Cursor; !got.Equal(cursor) {
					f.Errorf("cursor %v, want it to continue at %v", got, cursor)
				}
			})
		})
	}
}

// TestAPollRecordsSinceWhenItsConfigIsCarried continues after a long pause.
func TestAPollRecordsSinceWhenItsConfigIsCarried(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		since := func() string {
			if _, err := f.Poll(f.Context(), w.Session(), "config", 0); err != nil {
				f.Fatal(err)
			}
			return f.rdb.HGet(f.Context(), f.key("ledger"), "since:config").Val()
		}
		first := since()
		f.left("config", 30*time.Second)
		if again := since(); again != first || first == "" {
			t.Errorf("since %q, then %q, want the same", first, again)
		}
		f.left("config", 50*time.Second)
		if err := f.rdb.HSet(f.Context(), f.key("ledger"), "since:config", 1).Err(); err != nil {
			t.Fatal(err)
		}
		if again := since(); again < first {
			t.Errorf("since %q after a long pause, want later than %q", again, first)
		}
	})
}

func TestAJobShowsThatNoWorkerCarriesIt(t *testing.T) {
	each(t, func(f *fixture) {
		f.carries("config", f.job, ledger.StandingActive)
		f.carries("other", newJob("k"), ledger.StandingActive)
		for _, want := range []bool{false, true} {
			records, err := f.Jobs(f.Context())
			if err != nil || len(records) != 2 || records[0].Uncarried != want || records[1].Uncarried {
				t.Errorf("%+v, %v, want j not to be carried: %v", records, err, want)
			}
			if record, err := f.Job(f.Context(), "j"); err != nil || record.Uncarried != want {
				t.Errorf("%+v, %v, want it not to be carried: %v", record, err, want)
			}
			f.left("config", 20*time.Second)
		}
	})
}

func TestARemovedJobIsForgotten(t *testing.T) {
	each(t, func(f *fixture) {
		due, act := f.run(), ledger.Act{Who: "ann", What: "forget job", On: "j"}
		f.carries("other", newJob("k"), ledger.StandingActive)
		refused := func(why string) {
			f.Helper()
			if err := f.Forget(f.Context(), "j", act); !errors.Is(err, ledger.ErrRefused) {
				t.Errorf("%s: %v, want it refused", why, err)
			}
		}
		refused("it is carried")
		f.left("config", 50*time.Second)
		refused("a run is outstanding")
		f.finish(f.claim(f.session("w"), due, ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		if _, err := f.Pause(f.Context(), "j", act); err != nil {
			t.Fatal(err)
		}
		if err := f.Forget(f.Context(), "j", act); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Job(f.Context(), "j"); !errors.Is(err, ledger.ErrUnknown) {
			t.Errorf("it is still known: %v", err)
		}
		if err := f.Forget(f.Context(), "j", act); !errors.Is(err, ledger.ErrUnknown) {
			t.Errorf("forgotten twice: %v, want it unknown", err)
		}
		for _, key := range []string{"hist:j", "done:j", "output:j", "made:j"} {
			if f.rdb.Exists(f.Context(), f.key(key)).Val() != 0 {
				t.Errorf("%s is left", key)
			}
		}
		if record, err := f.Job(f.Context(), "k"); err != nil || record.Job.Name != "k" {
			t.Errorf("%+v, %v, want the other job to stay", record, err)
		}
		before := time.Now().Add(-time.Minute)
		if got := f.carries("back", f.job, ledger.StandingActive).Cursor; got.Before(before) {
			t.Errorf("cursor %v, want it to begin now", got)
		}
	})
}

// TestPollsReportAForgottenJob until it is registered again, or for a week.
func TestPollsReportAForgottenJob(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		f.register(f.job)
		revision := func() string { return f.rdb.ZScore(f.Context(), f.key("rev"), "j").String() }
		for _, returns := range []bool{true, false} {
			before, err := f.Poll(f.Context(), w.Session(), "config", 0)
			if err != nil {
				f.Fatal(err)
			}
			for _, config := range []string{"config", "back"} {
				f.left(config, 50*time.Second)
			}
			if err := f.Forget(f.Context(), "j", ledger.Act{Who: "ann", What: "forget job", On: "j"}); err != nil {
				f.Fatal(err)
			}
			poll, err := f.Poll(f.Context(), w.Session(), "config", before.Revision)
			if moved, reported := poll.Moved["j"]; err != nil || !reported || moved != (ledger.Moved{}) {
				f.Errorf("got %+v, %v, want the job without cursor and definition", poll.Moved, err)
			}
			if returns {
				f.carries("back", f.job, ledger.StandingActive)
			}
			was := revision()
			if err := f.rdb.ZAddXX(f.Context(), f.key("ids"), redis.Z{Score: 1, Member: "\x01j"}).Err(); err != nil {
				f.Fatal(err)
			}
			f.sweep()
			if now := revision(); (now == was) != returns {
				f.Errorf("revision %q, then %q, want it kept: %v", was, now, returns)
			}
		}
	})
}

// replies runs something once, after a script has replied with a word.
type replies struct {
	word string
	then func()
	once *sync.Once
}

func (r replies) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r replies) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (r replies) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if script, is := cmd.(*redis.Cmd); is {
			if words, _ := script.Slice(); len(words) == 1 && words[0] == r.word {
				r.once.Do(r.then)
			}
		}
		return err
	}
}

// TestARefusalToForgetNamesWhatIsRemovedAlready: a worker returns while a long history is removed
// step by step.
func TestARefusalToForgetNamesWhatIsRemovedAlready(t *testing.T) {
	each(t, func(f *fixture) {
		f.carries("config", f.job, ledger.StandingActive)
		f.left("config", 50*time.Second)
		ended := make([]redis.Z, 600)
		for i := range ended {
			ended[i] = redis.Z{Score: float64(i), Member: fmt.Sprintf("j#%d", i)}
		}
		if err := f.rdb.ZAdd(f.Context(), f.key("done:j"), ended...).Err(); err != nil {
			f.Fatal(err)
		}
		f.rdb.AddHook(replies{word: "more", then: func() { f.left("config", 0) }, once: new(sync.Once)})
		err := f.Forget(f.Context(), "j", ledger.Act{Who: "ann", What: "forget job", On: "j"})
		if !errors.Is(err, ledger.ErrRefused) || !strings.Contains(err.Error(), "a part of its history has been removed already") {
			f.Errorf("got %v, want a refusal that names what is removed", err)
		}
	})
}

// TestAForgottenJobThatReturnsWasNotLost, in a process that remembers its cursor. A later loss of
// data is recorded as one.
func TestAForgottenJobThatReturnsWasNotLost(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.worker("w")
		f.Ledger = w.Ledger
		forget := func() {
			f.Helper()
			f.left("config", 50*time.Second)
			f.left("back", 50*time.Second)
			if err := f.Forget(f.Context(), "j", ledger.Act{Who: "ann", What: "forget job", On: "j"}); err != nil {
				f.Fatal(err)
			}
		}
		lost := func() (lines int) {
			f.Helper()
			history, err := f.History(f.Context(), "j", 0)
			if err != nil {
				f.Fatal(err)
			}
			for _, record := range history {
				if record.State == ledger.StateLost {
					lines++
				}
			}
			return lines
		}
		before := time.Now().Add(-time.Minute)
		f.register(f.job)
		for range 2 {
			forget()
			if got := f.carries("back", f.job, ledger.StandingActive).Cursor; got.Before(before) || lost() != 0 {
				f.Errorf("cursor %v, %d lines of lost ticks, want it to begin now, without any", got, lost())
			}
		}
		f.lose(w)
		w.say()
		if n := lost(); n != 1 {
			f.Errorf("%d lines of lost ticks after a loss, want one", n)
		}
	})
}

// reassertsUncarried lets Redis lose all data, and a worker that no longer carries any job
// re-assert what it knows.
func (w *worker) reassertsUncarried(session locks.SessionID) {
	w.Helper()
	w.lose(w)
	if err := w.Assert(w.Context(), session, w.lost, "other", nil); err != nil {
		w.Fatal(err)
	}
	w.goOn()
}

// TestAJobThatReturnsAfterALossBeginsAnewIfItWasRemoved: another worker, which does not carry the
// job, re-asserts its cursor and is present until the job returns.
func TestAJobThatReturnsAfterALossBeginsAnewIfItWasRemoved(t *testing.T) {
	for name, test := range map[string]struct {
		absent time.Duration
		anew   bool
	}{
		"it was absent for an hour": {time.Hour, true},
		"it was absent shortly":     {20 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(f *fixture) {
				cursor := f.cursor(f.job, 5000)
				w := f.worker("w")
				w.register(w.job)
				w.reassertsUncarried(w.client.Session())
				f.present("other", test.absent, 0)
				if err := f.rdb.ZIncrBy(f.Context(), f.key("ids"), -float64(test.absent.Milliseconds()), "\x02j").Err(); err != nil {
					f.Fatal(err)
				}
				got := f.carries("back", f.job, ledger.StandingActive).Cursor
				if anew := got.After(cursor.Add(time.Minute)); anew != test.anew || !anew && !got.Equal(cursor) {
					f.Errorf("cursor %v after %v; want it to begin anew: %v", got, cursor, test.anew)
				}
			})
		})
	}
}

// TestRemainsOfAJobCanBeForgotten: after a loss of data, a worker has re-asserted a cursor although
// no worker carries the job.
func TestRemainsOfAJobCanBeForgotten(t *testing.T) {
	each(t, func(f *fixture) {
		f.cursor(f.job, 5)
		w := f.worker("w")
		w.register(w.job)
		w.reassertsUncarried(w.client.Session())
		act := ledger.Act{Who: "ann", What: "forget job", On: "j"}
		if err := f.Forget(f.Context(), "j", act); err != nil {
			f.Errorf("%v, want its cursor removed", err)
		}
		if left := f.rdb.HGetAll(f.Context(), f.key("cursor")).Val(); len(left) > 0 {
			f.Errorf("cursors %v are left", left)
		}
		if err := f.Forget(f.Context(), "j", act); !errors.Is(err, ledger.ErrUnknown) {
			f.Errorf("forgotten twice: %v, want it unknown", err)
		}
		w.poll()
		w.reassertsUncarried(w.client.Session())
		if left := f.rdb.HGetAll(f.Context(), f.key("cursor")).Val(); len(left) > 0 {
			f.Errorf("after another loss the cursors %v are back", left)
		}
	})
}

// TestRunsThatNeverStartedMoveToTheQueueOfTheirJob leaves alone a run that has started, and one
// whose job has no other queue.
func TestRunsThatNeverStartedMoveToTheQueueOfTheirJob(t *testing.T) {
	each(t, func(f *fixture) {
		f.carries("config", f.job, ledger.StandingActive)
		ask := func(id string) ledger.Due {
			enqueued, err := f.Enqueue(f.Context(), ledger.Request{Job: f.job, ID: id, Trigger: ledger.TriggerEnqueue})
			if err != nil {
				t.Fatal(err)
			}
			return enqueued.Due[0]
		}
		web := f.session("w")
		started := f.claim(web, ask("started"), ledger.ClaimGranted)
		f.finish(started, ledger.OutcomeHandBack, ledger.FinishRecorded)
		due := ask("fresh")
		records := []*ledger.Record{f.wantState(due.Run, ledger.StateDue)}
		if _, moved, err := f.Requeue(f.Context(), records); err != nil || len(moved) != 0 {
			t.Errorf("moved %+v, %v, want none while the queue is the job's", moved, err)
		}
		renamed := *f.job
		renamed.Queue = "renamed"
		f.carries("new", &renamed, ledger.StandingActive)
		f.await()
		records = append(records, f.wantState("j#started", ledger.StateDue))
		_, moved, err := f.Requeue(f.Context(), records)
		if err != nil || len(moved) != 1 || moved[0].Run != due.Run || moved[0].Queue != "renamed" || moved[0].N <= due.N {
			t.Fatalf("moved %+v, %v, want %s to the queue renamed", moved, err, due.Run)
		}
		f.claim(web, due, ledger.ClaimStale)
		f.claim(web, moved[0], ledger.ClaimGranted)
	})
}

// TestAdoptedRunsMoveOnlyWhenTheQueueOfTheirJobDoes has a run that came through another queue, one
// that came through the job's queue, and one whose id only looks adopted. A run that has moved
// moves again.
func TestAdoptedRunsMoveOnlyWhenTheQueueOfTheirJobDoes(t *testing.T) {
	each(t, func(f *fixture) {
		first := f.job.Queue
		f.carries("config", f.job, ledger.StandingActive)
		web := f.session("w")
		adopt := func(queue, id string) jobs.RunID {
			adopted, err := f.Adopt(f.Context(), ledger.Adoption{Job: f.job, Queue: queue, ID: id, Payload: []byte("{}"),
				Session: web.Session(), Giving: "g" + id})
			if err != nil {
				f.Fatal(err)
			}
			return adopted.Run
		}
		stay := []jobs.RunID{adopt("chosen", "a"), adopt("cho/sen", "b"), adopt("chosen", strings.Repeat("long", 50))}
		asked, err := f.Enqueue(f.Context(), ledger.Request{Job: f.job, ID: first + "/c", Trigger: ledger.TriggerEnqueue})
		if err != nil {
			f.Fatal(err)
		}
		move := []jobs.RunID{adopt(first, "a"), adopt(first, strings.Repeat("long", 50)), asked.Run}
		requeue := func(to string) (moved []jobs.RunID) {
			job := *f.job
			job.Queue = to
			f.carries("to "+to, &job, ledger.StandingActive)
			var records []*ledger.Record
			for _, run := range slices.Concat(stay, move) {
				records = append(records, f.wantState(run, ledger.StateDue))
			}
			_, due, err := f.Requeue(f.Context(), records)
			if err != nil {
				f.Fatal(err)
			}
			for _, one := range due {
				moved = append(moved, one.Run)
				if one.Queue != to {
					f.Errorf("%s moved to %s, want %s", one.Run, one.Queue, to)
				}
			}
			return moved
		}
		if moved := requeue("second"); !slices.Equal(moved, move) {
			f.Errorf("moved %q, want %q", moved, move)
		}
		if moved := requeue("third"); !slices.Contains(moved, move[0]) || !slices.Contains(moved, asked.Run) {
			f.Errorf("moved %q, want %q and %q again", moved, move[0], asked.Run)
		}
		for _, run := range stay {
			if record := f.wantState(run, ledger.StateDue); !strings.HasPrefix(record.Queue, "cho") {
				f.Errorf("%s is in the queue %s", run, record.Queue)
			}
		}
	})
}

// TestAMovedRunObeysThePauseOfItsNewQueue, whether it moves while it waits for its locks or while
// it is due after an offer. It keeps its ticket.
func TestAMovedRunObeysThePauseOfItsNewQueue(t *testing.T) {
	for name, test := range map[string]struct {
		offered bool   // it has been offered its locks, and is due when it moves
		paused  string // the queue that is paused, from before the move
		starts  bool
	}{
		"while it waits in a paused queue":            {false, "old", true},
		"while it waits, to a paused queue":           {false, "new", false},
		"after an offer, from a queue paused since":   {true, "old", true},
		"after an offer, to a queue that is paused":   {true, "new", false},
		"while it waits, and neither queue is paused": {false, "other", true},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(f *fixture) {
				web := f.session("w")
				take := func() *locks.Hold {
					f.Helper()
					hold, err := web.TryAcquire(f.Context(), locks.Exclusive("bill"))
					if err != nil {
						f.Fatal(err)
					}
					return hold
				}
				release := func(hold *locks.Hold) {
					f.Helper()
					if err := hold.Release(); err != nil {
						f.Fatal(err)
					}
				}
				pause := func(queue string) {
					f.Helper()
					if _, err := f.QueuesPaused(f.Context(), []string{queue}); err != nil {
						f.Fatal(err)
					}
				}
				job := newJob("billed")
				job.Every, job.Queue, job.Lock.Exclusive, job.Lock.Wait = 0, "old", []string{"bill"}, time.Hour
				renamed := *job
				renamed.Queue = "new"
				f.carries("config", &renamed, ledger.StandingActive)
				wait := func(job *jobs.Job, id string) ledger.Due {
					f.Helper()
					enqueued, err := f.Enqueue(f.Context(), ledger.Request{Job: job, ID: id, Trigger: ledger.TriggerEnqueue})
					if err != nil {
						f.Fatal(err)
					}
					f.claim(web, enqueued.Due[0], ledger.ClaimWaiting)
					return enqueued.Due[0]
				}
				hold := take()
				due := wait(job, "moves")
				if test.offered {
					release(hold)
					due = f.sweep().Due[0]
				} else {
					pause(test.paused)
				}
				page, err := f.WaitingRuns(f.Context(), "old", "", 10)
				if test.offered {
					page, err = f.DueRuns(f.Context(), "old", "", 10)
				}
				if err != nil || len(page.Runs) != 1 || page.Runs[0].ID != due.Run || page.Next != "" {
					f.Fatalf("%+v, %v, want %s", page, err, due.Run)
				}
				moved, again, err := f.Requeue(f.Context(), page.Runs)
				if err != nil || len(moved) != 1 || moved[0] != (ledger.Requeued{Run: due.Run, Queue: "new"}) || (len(again) == 1) != test.offered {
					f.Fatalf("moved %+v, due %+v, %v", moved, again, err)
				}
				// the offer lapses, other work takes the bill, and the run is blocked again
				if test.offered {
					if err := f.rdb.ZAddXX(f.Context(), f.key("exp"), redis.Z{Score: 1, Member: "o+" + string(due.Run)}).Err(); err != nil {
						f.Fatal(err)
					}
					f.sweep()
					hold = take()
					f.claim(web, again[0], ledger.ClaimWaiting)
					pause(test.paused)
				}
				younger := wait(&renamed, "younger")
				if page, err := f.WaitingRuns(f.Context(), "new", "", 1); err != nil || len(page.Runs) != 1 || page.Runs[0].ID != due.Run || page.Next == "" {
					f.Errorf("%+v, %v, want %s in front", page, err, due.Run)
				}
				release(hold)
				runs := f.sweep().Due
				switch {
				case !test.starts && len(runs) > 0:
					f.Errorf("%+v are offered their locks in a paused queue", runs)
				case test.starts && (len(runs) != 1 || runs[0].Run != due.Run || runs[0].Queue != "new"):
					f.Errorf("%+v are offered their locks, want %s in front of %s", runs, due.Run, younger.Run)
				}
				if !test.starts {
					if _, err := f.QueuesPaused(f.Context(), nil); err != nil {
						f.Fatal(err)
					}
					runs = append(runs, f.sweep().Due...)
				}
				if state := f.find(due.Run); state.State != ledger.StateDue || state.Queue != "new" {
					f.Errorf("it is %s in the queue %s after %+v, want it to be due in the new queue", state.State, state.Queue, runs)
				}
			})
		})
	}
}

// TestTimeInAPausedQueueDoesNotCountAfterAMove: of the time that lock.wait gives a run, only the
// time in line counts.
func TestTimeInAPausedQueueDoesNotCountAfterAMove(t *testing.T) {
	each(t, func(f *fixture) {
		const patience = 400 * time.Millisecond
		web := f.session("w")
		if _, err := web.TryAcquire(f.Context(), locks.Exclusive("bill")); err != nil {
			f.Fatal(err)
		}
		job := newJob("billed")
		job.Every, job.Queue = 0, "old"
		job.Lock = jobs.Lock{Exclusive: []string{"bill"}, Wait: patience, OnBusy: jobs.BusyFail}
		renamed := *job
		renamed.Queue = "new"
		f.carries("config", &renamed, ledger.StandingActive)
		if err := f.QueuePaused(f.Context(), "old"); err != nil {
			f.Fatal(err)
		}
		enqueued, err := f.Enqueue(f.Context(), ledger.Request{Job: job, ID: "moves", Trigger: ledger.TriggerEnqueue})
		if err != nil {
			f.Fatal(err)
		}
		f.claim(web, enqueued.Due[0], ledger.ClaimWaiting)
		time.Sleep(patience + 100*time.Millisecond) // the clock is what is tested
		page, err := f.WaitingRuns(f.Context(), "old", "", 10)
		if err != nil {
			f.Fatal(err)
		}
		began := time.Now()
		if moved, _, err := f.Requeue(f.Context(), page.Runs); err != nil || len(moved) != 1 {
			f.Fatalf("moved %+v, %v, want %s", moved, err, enqueued.Run)
		}
		for {
			if _, err := f.Expire(f.Context(), enqueued.Run, job); err != nil {
				f.Fatal(err)
			}
			record := f.find(enqueued.Run)
			if record.State == ledger.StateFailed {
				break
			}
			if record.State != ledger.StateWaiting || time.Since(began) > time.Minute {
				f.Fatalf("it is %s after %v, want it to fail in time", record.State, time.Since(began))
			}
			time.Sleep(20 * time.Millisecond)
		}
		if took := time.Since(began); took < patience-150*time.Millisecond {
			f.Errorf("the wait ended %v after the move, want about %v", took, patience)
		}
	})
}

// TestLongArgumentsCostFewCalls moves adopted runs with long arguments. Their definitions are
// short.
func TestLongArgumentsCostFewCalls(t *testing.T) {
	t.Parallel()
	f := alone(t)
	f.lease = 10 * time.Minute // no renewal is counted
	web := f.session("w")
	f.carries("config", f.job, ledger.StandingActive)
	payload := []byte(`"` + strings.Repeat("x", 100<<10) + `"`)
	var records []*ledger.Record
	for i := range 16 {
		a := f.given(web, fmt.Sprint(i))
		a.Payload = payload
		records = append(records, f.find(f.adopt(a).Run))
	}
	renamed := *f.job
	renamed.Queue = "new"
	f.carries("new", &renamed, ledger.StandingActive)
	// The server must know the script.
	if _, err := f.Definition(f.Context(), records[0].ID); err != nil {
		t.Fatal(err)
	}
	calls, _ := f.logged(func() {
		if _, _, err := f.Requeue(f.Context(), records); err != nil {
			t.Fatal(err)
		}
	}, "evalsha")
	if calls > 2 {
		t.Errorf("%d calls read the definitions of 16 runs with 100 KiB of arguments each, want 2", calls)
	}
}
