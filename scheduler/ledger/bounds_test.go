package ledger_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
)

// alone returns a fixture with its own Redis, which has every command in its slow log.
func alone(t *testing.T) *fixture {
	t.Helper()
	rdb := redistest.New(t, redistest.Options{}).Client(t)
	for name, value := range map[string]string{"slowlog-log-slower-than": "0", "slowlog-max-len": "100000"} {
		if err := rdb.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	namespace := redistest.Namespace(t)
	space, err := locks.NewSpace(rdb, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{T: t, rdb: rdb, namespace: namespace, Ledger: ledger.New(rdb, space), job: newJob("j")}
}

// logged calls a function and returns how many commands of some names Redis ran for it, and how
// long the slowest took.
func (f *fixture) logged(call func(), names ...string) (n int, slowest time.Duration) {
	f.Helper()
	if err := f.rdb.Do(f.Context(), "SLOWLOG", "RESET").Err(); err != nil {
		f.Fatal(err)
	}
	call()
	entries, err := f.rdb.SlowLogGet(f.Context(), -1).Result()
	if err != nil {
		f.Fatal(err)
	}
	for _, entry := range entries {
		for _, name := range names {
			if strings.EqualFold(entry.Args[0], name) {
				n, slowest = n+1, max(slowest, entry.Duration)
			}
		}
	}
	return n, slowest
}

// TestASpanIsSkippedInShortSteps skips spans with many runs and with large ones. Runs that have
// started stay, and do not keep the steps from reaching those behind them.
func TestASpanIsSkippedInShortSteps(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ runs, size, steps int }{
		"many":  {480, 2, 480 / 25},
		"large": {60, 100 << 10, 60 / 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := alone(t)
			f.job.Overlap = jobs.OverlapAllow
			f.job.Args, _ = json.Marshal(strings.Repeat("x", test.size))
			cursor := f.cursor(f.job, test.runs+5)
			created := f.tick(f.job, cursor, test.runs, ledger.VerdictCatchUp)
			if len(created.Due) == 0 {
				t.Fatalf("%+v", created)
			}
			f.claim(f.session("web"), created.Due[0], ledger.ClaimGranted)
			records, err := f.Outstanding(t.Context(), f.job.Name, 0)
			if err != nil || len(records) != test.runs {
				t.Fatalf("%d outstanding runs, %v, want %d", len(records), err, test.runs)
			}
			act := ledger.Act{Who: "ann", What: "skip ticks", On: "j"}
			// loads the script
			if _, _, err := f.Skip(t.Context(), f.job, time.UnixMilli(1), time.UnixMilli(2), act); err != nil {
				t.Fatal(err)
			}
			var skipped int
			calls, slowest := f.logged(func() {
				skipped, _, err = f.Skip(t.Context(), f.job, cursor, cursor.Add(time.Hour), act)
			}, "EVALSHA", "EVAL")
			t.Logf("%d runs skipped in %d calls, the slowest took %s", skipped, calls, slowest)
			if err != nil || skipped != test.runs-1 || calls < test.steps {
				t.Errorf("skipped %d runs in %d calls, %v, want %d in at least %d", skipped, calls, err, test.runs-1, test.steps)
			}
			if records, err = f.Outstanding(t.Context(), f.job.Name, 0); err != nil || len(records) != 1 || records[0].State != ledger.StateRunning {
				t.Errorf("%d runs are left, %v, want the one that is running", len(records), err)
			}
		})
	}
}

// TestATickReplacesManyRunsInShortSteps: the cursor moves only with the last step. One of the runs
// has started and is asked to stop, and the new run waits for its end.
func TestATickReplacesManyRunsInShortSteps(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ runs, size, steps int }{
		"many":  {480, 2, 480 / 50},
		"large": {60, 100 << 10, 60 / 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := alone(t)
			f.job.Overlap = jobs.OverlapReplace
			f.job.Args, _ = json.Marshal(strings.Repeat("x", test.size))
			piled := f.tick(f.job, f.cursor(f.job, test.runs+5), test.runs, ledger.VerdictCatchUp)
			web := f.session("web")
			first := f.claim(web, piled.Due[0], ledger.ClaimGranted)
			at := []time.Time{piled.Cursor.Add(time.Second), piled.Cursor.Add(2 * time.Second)}
			decision := ledger.Decision{Job: f.job, Seen: piled.Cursor, Cursor: at[1], By: "me.1"}
			for _, tick := range at {
				decision.Ticks = append(decision.Ticks, ledger.Tick{At: tick, Verdict: ledger.VerdictRun})
			}
			created := ledger.Created{More: true}
			calls, slowest := f.logged(func() {
				for created.More {
					if cursor := f.rdb.HGet(t.Context(), f.key("cursor"), "j").Val(); cursor != fmt.Sprint(piled.Cursor.UnixMilli()) {
						t.Fatalf("the cursor is %s before the last step", cursor)
					}
					if created = f.Create(t.Context(), []ledger.Decision{decision})[0]; created.Err != nil {
						t.Fatal(created.Err)
					}
				}
			}, "EVALSHA", "EVAL")
			t.Logf("%d runs were replaced in %d calls, the slowest took %s", test.runs, calls, slowest)
			if calls < test.steps || !created.Cursor.Equal(at[1]) || len(created.Due) != 0 {
				t.Errorf("%d calls, the last %+v, want at least %d, and a run that waits", calls, created, test.steps)
			}
			records, err := f.Outstanding(t.Context(), f.job.Name, 0)
			if err != nil || len(records) != 2 {
				t.Fatalf("%d runs are outstanding, %v, want the one that is running and the last one", len(records), err)
			}
			why := "overlap: replace; by " + string(jobs.TickRunID("j", at[0]))
			if stop := f.asked(web).Stop[first.Record.ID]; stop != why {
				t.Errorf("the running run is asked to stop for %q, want %q", stop, why)
			}
			if record := f.wantState(piled.Due[test.runs-1].Run, ledger.StateCanceled); record.Reason != why {
				t.Errorf("reason %q, want %q", record.Reason, why)
			}
			f.wantState(jobs.TickRunID("j", at[0]), ledger.StateCanceled)
			last := jobs.TickRunID("j", at[1])
			f.wantState(last, ledger.StateWaiting)
			if due := f.finish(first, ledger.OutcomeCanceled, ledger.FinishRecorded).Due; len(due) != 1 || due[0].Run != last {
				t.Errorf("due after the end of the running run: %+v, want %s", due, last)
			}
		})
	}
}

// calls returns how often Redis has run these commands, also in scripts.
func (f *fixture) calls(names ...string) (n int) {
	f.Helper()
	info, err := f.rdb.Info(f.Context(), "commandstats").Result()
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(info) {
		for _, name := range names {
			if text, found := strings.CutPrefix(line, "cmdstat_"+name+":calls="); found {
				var calls int
				if _, err := fmt.Sscanf(text, "%d,", &calls); err != nil {
					f.Fatal(err)
				}
				n += calls
			}
		}
	}
	return n
}

// TestTicksBehindManyRunsThatWaitReadFewOfThem decides as many ticks together as a worker that was
// suspended for a minute.
func TestTicksBehindManyRunsThatWaitReadFewOfThem(t *testing.T) {
	t.Parallel()
	f := alone(t)
	piled := f.tick(f.job, f.cursor(f.job, 2100), 2000, ledger.VerdictCatchUp)
	before := f.calls("hget", "hmget")
	created := f.tick(f.job, piled.Cursor, 60, ledger.VerdictRun)
	reads := f.calls("hget", "hmget") - before
	t.Logf("60 ticks behind 2,000 runs made %d reads", reads)
	if len(created.Due) != 0 || reads > 100 {
		t.Errorf("%d runs, %d reads, want none and a few", len(created.Due), reads)
	}
	if why := f.history("j")[0].Reason; why != "overlap: queue; 10 runs wait already" {
		t.Errorf("reason %q", why)
	}
}

// TestOnlySoManyTicksEverWait: a definition that was made before max_queued had a limit may have
// any number.
func TestOnlySoManyTicksEverWait(t *testing.T) {
	t.Parallel()
	f := alone(t)
	f.job.MaxQueued = 20_000
	piled := f.tick(f.job, f.cursor(f.job, 1100), jobs.QueuedMost, ledger.VerdictCatchUp)
	f.claim(f.session("web"), piled.Due[0], ledger.ClaimGranted)
	if created := f.tick(f.job, piled.Cursor, 3, ledger.VerdictRun); len(created.Due) != 1 {
		t.Errorf("%d runs are due, want 1: as many as have started", len(created.Due))
	}
}

// TestManyRunsAreAskedToStopAtATime has one worker run 1,000 runs of large bundles, all of which
// must stop.
func TestManyRunsAreAskedToStopAtATime(t *testing.T) {
	t.Parallel()
	f := alone(t)
	ctx := t.Context()
	due := f.run()
	web := f.session("web")
	f.claim(web, due, ledger.ClaimGranted)
	record, err := f.rdb.HGet(ctx, f.key("run"), string(due.Run)).Result()
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Split(record, "\x1f")
	fields[30] = "canceled by ann: enough"
	for i := range 1000 {
		fields = append(fields, fmt.Sprintf("xbill:%050d", i))
	}
	record = strings.Join(fields, "\x1f")
	for i := range 10 {
		_, err := f.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for k := range 100 {
				id := fmt.Sprintf("j#%06d", 100*i+k)
				pipe.HSet(ctx, f.key("run"), id, record)
				pipe.ZAdd(ctx, f.key("ask"), redis.Z{Member: string(web.Session()) + "\x00" + id})
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	poll, err := f.Poll(ctx, web.Session(), "config", 0) // loads the script
	if err != nil {
		t.Fatal(err)
	}
	_, slowest := f.logged(func() { poll, err = f.Poll(ctx, web.Session(), "config", 0) }, "EVALSHA", "EVAL")
	t.Logf("a poll with 1,000 runs of %d KiB to stop took %s", len(record)>>10, slowest)
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	for _, why := range poll.Stop {
		if why != "" {
			told++
		}
	}
	if most := 1<<20/len(record) + 1; len(poll.Stop) != 1000 || told == 0 || told > most {
		t.Errorf("%d runs are to stop, %d of them with a reason, want 1000 and at most %d", len(poll.Stop), told, most)
	}
}

// TestFactsAreAssertedInShortSteps lets a worker assert 200 attempts with large arguments and
// bundles.
func TestFactsAreAssertedInShortSteps(t *testing.T) {
	t.Parallel()
	f := alone(t)
	f.job.Every = 0
	f.register(f.job)
	w := f.worker("web")
	args, _ := json.Marshal(strings.Repeat("x", 60<<10))
	const n = 200
	for i := range n {
		enqueued, err := w.Enqueue(t.Context(), ledger.Request{Job: f.job, ID: fmt.Sprint(i), Args: args, Trigger: ledger.TriggerEnqueue})
		if err != nil {
			t.Fatal(err)
		}
		w.claim(w.client, enqueued.Due[0], ledger.ClaimGranted)
	}
	f.lose(w)
	calls, slowest := f.logged(w.say, "EVAL") // of one job: one in each transaction
	f.goOn()
	t.Logf("%d attempts of %d KiB were asserted in %d transactions, the slowest took %s", n, len(args)>>10, calls, slowest)
	if calls < n*len(args)/(1<<20) {
		t.Errorf("%d transactions, want at most 1 MiB in each", calls)
	}
	records, err := f.Outstanding(t.Context(), "", 0)
	if err != nil || len(records) != n {
		t.Errorf("%d runs are outstanding, %v, want %d", len(records), err, n)
	}
}
