package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
)

// wantMade checks which definition a run was made with; nil: Redis does not keep it.
func (f *fixture) wantMade(when string, run jobs.RunID, want *jobs.Job) {
	f.Helper()
	got, err := f.Made(f.Context(), f.find(run))
	switch {
	case want == nil && !errors.Is(err, ledger.ErrNotKept):
		f.Errorf("%s: %s was made with %+v, %v, want ErrNotKept", when, run, got, err)
	case want != nil && err != nil:
		f.Errorf("%s: the definition of %s: %v", when, run, err)
	case want != nil && got.Description != want.Description:
		f.Errorf("%s: %s was made with %q, want %q", when, run, got.Description, want.Description)
	}
}

// described returns a job with another definition than others of its name.
func described(job *jobs.Job, description string) *jobs.Job {
	own := *job
	own.Description = description
	return &own
}

// canceled makes a run with a definition, and ends it.
func (f *fixture) canceled(job *jobs.Job, id string) jobs.RunID {
	f.Helper()
	due := f.enqueues(f.Ledger, job, id)
	if _, err := f.Cancel(f.Context(), due.Run, job, ledger.Act{Who: "ann"}); err != nil {
		f.Fatal(err)
	}
	return due.Run
}

// TestAFinishedRunHasTheDefinitionItWasMadeWith in whatever way it ended, and after the job got
// others. Format 1 has no place for it.
func TestAFinishedRunHasTheDefinitionItWasMadeWith(t *testing.T) {
	each(t, func(f *fixture) {
		base := described(f.job, "")
		base.Overlap = jobs.OverlapAllow
		leave := f.older()
		f.job = described(base, "format 1")
		old := f.canceled(f.job, "old")
		leave()
		made := make(map[jobs.RunID]*jobs.Job)
		for i, e := range endings() {
			f.job = described(base, e.name)
			run := e.end(f, fmt.Sprint(i))
			if e.name == "skipped when its tick came" {
				run.job = nil // this run was never made
			}
			made[run.run] = run.job
			f.wantMade(e.name, run.run, run.job)
		}
		f.canceled(described(base, "the last one"), "last")
		for run, job := range made {
			f.wantMade("later", run, job)
		}
		f.wantMade("in format 1", old, nil)
		f.wantNothingLeft()
	})
}

// TestARunThatIsDoneAgainHasItsNewDefinition and the reference of its first end does not stay.
func TestARunThatIsDoneAgainHasItsNewDefinition(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.session("w")
		first, second := described(f.job, "first"), described(f.job, "second")
		run := f.canceled(first, "a")
		due, err := f.Reopen(f.Context(), ledger.Reopening{Run: run, Job: second, Any: true})
		if err != nil {
			f.Fatal(err)
		}
		f.wantMade("while it is outstanding", run, second)
		if fields := strings.Split(f.rdb.HGet(f.Context(), f.key("run"), string(run)).Val(), us); fields[9] != "" {
			f.Errorf("it has the hold %q", fields[9])
		}
		f.finish(f.claim(w, due[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantMade("done again", run, second)
	})
}

// manyDeploys is how many definitions a job has in the test of their bound. With LOCKSTEP_SOAK it
// gets a new one each minute for a week.
func manyDeploys() int {
	if os.Getenv("LOCKSTEP_SOAK") != "" {
		return 7 * 24 * 60
	}
	return 300
}

// TestTheDefinitionsOfAJobAreBounded: a job gets very many definitions, and has one run with each.
// It keeps those of the last 100, or fewer if they are long.
func TestTheDefinitionsOfAJobAreBounded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ deploys, size, kept int }{
		"many": {manyDeploys(), 300, 100},
		"long": {24, 100 << 10, 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := alone(t)
			f.session("w") // from then on, format 2 is written
			base := described(f.job, "")
			base.History.Runs = 20_000
			base.Command = []string{strings.Repeat("x", test.size)}
			job := func(i int) *jobs.Job { return described(base, fmt.Sprint(i)) }
			var runs []jobs.RunID
			var slowest time.Duration
			for i := 0; i < test.deploys; i += 1000 { // as many as the slow log has
				_, slow := f.logged(func() {
					for k := i; k < min(i+1000, test.deploys); k++ {
						runs = append(runs, f.canceled(job(k), fmt.Sprint(k)))
					}
				}, "EVALSHA")
				slowest = max(slowest, slow)
			}
			used := f.rdb.MemoryUsage(t.Context(), f.key("defs"), 0).Val() + f.rdb.MemoryUsage(t.Context(), f.key("made:j"), 0).Val()
			n, texts := f.rdb.ZCard(t.Context(), f.key("made:j")).Val(), f.rdb.HLen(t.Context(), f.key("defs")).Val()/2
			t.Logf("of %d definitions %d are kept, in %d bytes; the slowest script took %s", test.deploys, n, used, slowest)
			if int(n) != test.kept || texts != n {
				t.Errorf("%d definitions are kept, and %d texts, want %d", n, texts, test.kept)
			}
			for i, run := range runs[max(0, len(runs)-150):] {
				i += max(0, len(runs)-150)
				const sameMs = 10 // around the bound, several have the same last use
				switch oldest := test.deploys - test.kept; {
				case i >= oldest+min(sameMs, test.kept/2):
					f.wantMade("a late one", run, job(i))
				case i < oldest-sameMs:
					f.wantMade("an early one", run, nil)
				}
			}
			f.wantNothingLeft()
		})
	}
}

// TestManyOutstandingDefinitionsAreBoundedWhenTheyEnd: the bound holds for the definitions of runs
// that were outstanding together, too.
func TestManyOutstandingDefinitionsAreBoundedWhenTheyEnd(t *testing.T) {
	each(t, func(f *fixture) {
		f.session("w")
		const n = 120
		for i := range n {
			f.enqueues(f.Ledger, described(f.job, fmt.Sprint(i)), fmt.Sprint(i))
		}
		if kept := f.rdb.ZCard(f.Context(), f.key("made:j")).Val(); kept != 100 {
			f.Errorf("%d definitions are kept, want 100", kept)
		}
		f.wantDefinitions("all are outstanding", n)
		for i := range n {
			if _, err := f.Cancel(f.Context(), jobs.RequestRunID("j", fmt.Sprint(i)), f.job, ledger.Act{Who: "ann"}); err != nil {
				f.Fatal(err)
			}
		}
		if kept, texts := f.rdb.ZCard(f.Context(), f.key("made:j")).Val(), f.rdb.HLen(f.Context(), f.key("defs")).Val()/2; kept != 100 || texts != 100 {
			f.Errorf("at last %d definitions are kept, and %d texts, want 100", kept, texts)
		}
		f.wantNothingLeft()
	})
}

// tidies is what a worker on duty does with histories.
func (f *fixture) tidies() {
	f.Helper()
	size, err := f.HistorySize(f.Context(), without)
	if err != nil {
		f.Fatal(err)
	}
	if err := f.TidyHistories(f.Context(), size, without); err != nil {
		f.Fatal(err)
	}
}

// TestADefinitionGoesWithTheLastRunThatHasIt: neither earlier nor much later, whatever trims the
// history.
func TestADefinitionGoesWithTheLastRunThatHasIt(t *testing.T) {
	for name, trims := range map[string]func(f *fixture, job *jobs.Job, first, last *ledger.Record){
		"a new definition": func(f *fixture, job *jobs.Job, _, _ *ledger.Record) { f.canceled(described(job, "new"), "new") },
		"the worker on duty": func(f *fixture, job *jobs.Job, _, _ *ledger.Record) {
			f.canceled(job, "again")
			f.tidies()
		},
		"limits.history": func(f *fixture, job *jobs.Job, first, _ *ledger.Record) {
			size, err := f.HistorySize(f.Context(), without)
			if err != nil {
				f.Fatal(err)
			}
			if _, _, err := f.TrimHistory(f.Context(), size, size.Bytes/2, without); err != nil {
				f.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(f *fixture) {
				f.session("w")
				job := described(f.job, "second")
				job.History.Runs = 2
				old := described(job, "first")
				f.register(job)
				run := f.canceled(old, "a")
				f.nextMillisecond()
				second := f.canceled(job, "b")
				f.nextMillisecond()
				f.tidies()
				f.wantMade("a run has it", run, old)
				third := f.canceled(job, "c") // the first run leaves the history
				f.nextMillisecond()
				trims(f, job, f.find(second), f.find(third))
				if name, texts := nameOf(f, old), f.rdb.HGetAll(f.Context(), f.key("defs")).Val(); texts["@"+name] != "" || texts["@"+nameOf(f, job)] == "" {
					f.Errorf("stored are %q, want the first definition dropped", texts)
				}
				f.wantMade("the others stay", third, job)
				f.wantNothingLeft()
			})
		})
	}
}

func nameOf(f *fixture, job *jobs.Job) string {
	f.Helper()
	text, _, err := job.Definition()
	if err != nil {
		f.Fatal(err)
	}
	return ledger.NameOf(string(text))
}

// TestADefinitionInUseIsKept although no run with it has ended for longer than the history is:
// there always was one that is outstanding.
func TestADefinitionInUseIsKept(t *testing.T) {
	each(t, func(f *fixture) {
		f.session("w")
		f.register(f.job)
		used := described(f.job, "used")
		f.enqueues(f.Ledger, used, "outstanding")
		f.nextMillisecond()
		run := f.canceled(used, "ended")
		f.tidies()
		f.canceled(described(f.job, "other"), "other")
		f.wantMade("the first use was before the end of every run", run, used)
		f.wantDefinitions("one is outstanding", 1)
	})
}

// TestOlderBuildsBesideThisOneLoseAndLeakNoDefinition: an older build of the same format knows no
// definitions of finished runs.
func TestOlderBuildsBesideThisOneLoseAndLeakNoDefinition(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	rdb, namespace := server.Client(t), redistest.Namespace(t)
	f := &fixture{T: t, rdb: rdb, namespace: namespace, job: newJob("j")}
	fixtureOf := func(rdb *redis.Client) *fixture {
		space, err := locks.NewSpace(rdb, namespace)
		if err != nil {
			t.Fatal(err)
		}
		own := *f
		own.Ledger = ledger.New(rdb, space)
		return &own
	}
	f = fixtureOf(rdb)
	before := server.Client(t)
	before.AddHook(newOlderScripts(t, server.Client(t)))
	older := fixtureOf(before)

	f.session("w")
	f.register(f.job)
	a, b := described(f.job, "a"), described(f.job, "b")
	first := f.canceled(a, "1")
	f.wantMade("new", first, a)

	// It removes the text with its last body, and its own record has no reference.
	second := older.canceled(a, "2")
	f.wantMade("ended by an older build", second, nil)
	f.wantMade("its text was removed", first, nil)
	third := f.canceled(a, "3") // brings it back
	f.wantMade("made again", third, a)
	f.wantMade("made again, the first one", first, a)

	// Made by one, ended by the other, and the other way around.
	due := older.enqueues(older.Ledger, b, "4")
	if _, err := f.Cancel(t.Context(), due.Run, b, ledger.Act{Who: "ann"}); err != nil {
		t.Fatal(err)
	}
	f.wantMade("made by an older build", due.Run, nil)
	due = f.enqueues(f.Ledger, b, "5")
	if _, err := older.Cancel(t.Context(), due.Run, b, ledger.Act{Who: "ann"}); err != nil {
		t.Fatal(err)
	}
	f.wantMade("ended by an older build", due.Run, nil)

	// It reopens a run. The reference in its record must not become a hold.
	reopened, err := older.Reopen(t.Context(), ledger.Reopening{Run: first, Job: a, Any: true})
	if err != nil {
		t.Fatal(err)
	}
	f.finish(f.claim(f.session("y"), reopened[0], ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
	f.wantMade("reopened by an older build", first, a)
	reopened, err = older.Reopen(t.Context(), ledger.Reopening{Run: third, Job: a, Any: true})
	if err != nil {
		t.Fatal(err)
	}
	if outcome, _, err := older.Refuse(t.Context(), ledger.Refusal{Run: third, N: reopened[0].N, Cause: errors.New("no")}); err != nil || outcome != ledger.RefusalEnded {
		t.Errorf("refused: %v, %v", outcome, err)
	}

	// It forgets the job and leaves what this build keeps of it to the worker on duty.
	f.canceled(a, "6")
	f.left("config", 50*time.Second)
	if err := older.Forget(t.Context(), "j", ledger.Act{Who: "ann", What: "forget job", On: "j"}); err != nil {
		t.Fatal(err)
	}
	f.tidies()
	if defs, made := f.rdb.HLen(t.Context(), f.key("defs")).Val(), f.rdb.Exists(t.Context(), f.key("made:j")).Val(); defs != 0 || made != 0 {
		t.Errorf("%d definitions are left of a job that was forgotten, %v", defs/2, f.rdb.HGetAll(t.Context(), f.key("defs")).Val())
	}
}

// olderScripts is a hook that sends the scripts of a build from before definitions of finished
// runs.
type olderScripts struct {
	rdb   *redis.Client
	texts map[string]*redis.Script // by the digest of the present script
}

func newOlderScripts(t *testing.T, rdb *redis.Client) *olderScripts {
	t.Helper()
	h := &olderScripts{rdb, make(map[string]*redis.Script)}
	changes := 0
	for digest, text := range ledger.AllScripts() {
		for _, change := range [][2]string{
			{"keepMade(name, #text)", ""},
			{"if not usedMade(sub(name, 2)) then", "if true then"},
			{"if not kept then", "if true then"},
			{"sub(name or '', 2, 7)", "''"},
			{"sub(name, 1, 6)", "''"},
			{"\ntidyMade()\n", "\n"},
			{"call('DEL', MADE)", ""},
			{"run[R_HOLDER] = ''", ""},
		} {
			old := ledger.Expand(change[0])
			changes += strings.Count(text, old)
			text = strings.ReplaceAll(text, old, ledger.Expand(change[1]))
		}
		h.texts[digest] = redis.NewScript(text)
	}
	if changes < 8 {
		t.Fatalf("only %d places were changed", changes)
	}
	return h
}

func (h *olderScripts) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *olderScripts) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *olderScripts) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		script := h.texts[fmt.Sprint(cmd.Args()[min(1, len(cmd.Args())-1)])]
		reply, is := cmd.(*redis.Cmd)
		if cmd.Name() != "evalsha" || script == nil || !is {
			return next(ctx, cmd)
		}
		n := cmd.Args()[2].(int)
		keys := make([]string, n)
		for i := range keys {
			keys[i] = cmd.Args()[3+i].(string)
		}
		value, err := script.Run(ctx, h.rdb, keys, cmd.Args()[3+n:]...).Result()
		if err != nil {
			reply.SetErr(err)
			return err
		}
		reply.SetVal(value)
		return nil
	}
}

// TestADefinitionComesBackWithWhatIsReasserted: a loss of data loses what histories keep. A run
// that a worker ends or re-asserts has its definition again.
func TestADefinitionComesBackWithWhatIsReasserted(t *testing.T) {
	each(t, func(f *fixture) {
		w := f.worker("w")
		w.job.Overlap, w.job.Description = jobs.OverlapAllow, "before"
		w.cursor(w.job, 5)
		w.hear()
		ended := w.claim(w.client, w.enqueues(w.Ledger, w.job, "ended"), ledger.ClaimGranted)
		w.finish(ended, ledger.OutcomeSuccess, ledger.FinishRecorded)
		running := w.claim(w.client, w.enqueues(w.Ledger, w.job, "running"), ledger.ClaimGranted)
		f.lose(w)
		if err := f.rdb.HSet(f.Context(), f.key("meta"), "format", 2, "least_format", 1).Err(); err != nil {
			f.Fatal(err)
		}
		w.say()
		f.finish(running, ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantMade("it ran", running.Record.ID, w.job)
		f.wantMade("it had ended", ended.Record.ID, w.job)
		f.wantDefinitions("all have ended", 0)
	})
}

// TestOnlyTheJobsOwnDefinitionIsFound: a foreign write under a name, and a reference without a
// definition, give none.
func TestOnlyTheJobsOwnDefinitionIsFound(t *testing.T) {
	each(t, func(f *fixture) {
		f.session("w")
		run := f.canceled(f.job, "a")
		name := nameOf(f, f.job)
		for _, damage := range []struct {
			what string
			do   func() error
		}{ // in this order: the last two leave nothing of the definition
			{"another text", func() error { return f.rdb.HSet(f.Context(), f.key("defs"), "@"+name, `{"name":"j"}`).Err() }},
			{"no text", func() error { return f.rdb.HDel(f.Context(), f.key("defs"), "@"+name).Err() }},
			{"no name", func() error { return f.rdb.Del(f.Context(), f.key("made:j")).Err() }},
		} {
			if err := damage.do(); err != nil {
				f.Fatal(err)
			}
			f.wantMade(damage.what, run, nil)
		}
		f.register(f.job)
		f.wantMade("it is the active one", run, f.job)

		run = f.canceled(f.job, "b")
		f.wantMade("it is kept", run, f.job)
		if err := f.rdb.ZAdd(f.Context(), f.key("made:j"), redis.Z{Score: 1, Member: name[:6] + "another-name----"}).Err(); err != nil {
			f.Fatal(err)
		}
		f.wantMade("two names begin alike", run, nil)
	})
}
