package ledger_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
)

// carried returns the definition that an outstanding run was made with, as Redis has it.
func (f *fixture) carried(run jobs.RunID) string {
	f.Helper()
	_, definition, _ := strings.Cut(f.rdb.HGet(f.Context(), f.key("body"), string(run)).Val(), us)
	if strings.HasPrefix(definition, "@") {
		definition = f.rdb.HGet(f.Context(), f.key("defs"), definition).Val()
	}
	return definition
}

// keptDefinitions returns the names of the definitions that the histories keep, with the server ms
// of their last use, by job.
func keptDefinitions(ctx context.Context, rdb *redis.Client, namespace string) (map[string]map[string]int64, error) {
	prefix := "{" + namespace + "}:made:"
	keys, err := rdb.Keys(ctx, prefix+"*").Result()
	if err != nil {
		return nil, err
	}
	kept := make(map[string]map[string]int64)
	for _, key := range keys {
		members, err := rdb.ZRangeWithScores(ctx, key, 0, -1).Result()
		if err != nil {
			return nil, err
		}
		uses := make(map[string]int64)
		for _, z := range members {
			uses[z.Member.(string)] = int64(z.Score)
		}
		kept[strings.TrimPrefix(key, prefix)] = uses
	}
	return kept, nil
}

// wrongDefinitions returns what is wrong with the definitions that are stored by their names, or
// "": each one that a body names, or that a history keeps, is stored under its name, with the
// number of these bodies, and no other one is.
func wrongDefinitions(bodies, defs map[string]string, kept map[string]map[string]int64) string {
	count := make(map[string]int)
	for _, uses := range kept {
		for name := range uses {
			count[name] = 0
		}
	}
	for run, body := range bodies {
		_, definition, found := strings.Cut(body, us)
		name, byName := strings.CutPrefix(definition, "@")
		switch {
		case !found:
			return fmt.Sprintf("run %s has no definition: %q", run, body)
		case byName:
			count[name]++
		}
	}
	for name, n := range count {
		if text := defs["@"+name]; text == "" || ledger.NameOf(text) != name {
			return fmt.Sprintf("the definition %s is stored as %q", name, text)
		}
		if defs["#"+name] != strconv.Itoa(n) {
			return fmt.Sprintf("%d runs have the definition %s, and %q are counted", n, name, defs["#"+name])
		}
	}
	if len(defs) != 2*len(count) {
		return fmt.Sprintf("%d definitions are in use, and stored are %q", len(count), defs)
	}
	return ""
}

// wrongMade returns what is wrong with the definitions of finished runs, or "": each run that
// refers to one finds it, and it was used last when the run ended, or later, unless a body still
// names it. Each definition that is stored is kept. This holds where no job has had more
// definitions than it keeps.
func wrongMade(records map[jobs.RunID]*ledger.Record, defs map[string]string, kept map[string]map[string]int64) string {
	for id, record := range records {
		if !record.State.Final() || record.Made == "" {
			continue
		}
		found := false
		for name, used := range kept[record.Job] {
			if strings.HasPrefix(name, record.Made) {
				found = found || defs["#"+name] != "0" || used >= record.Finished.UnixMilli()
			}
		}
		if !found {
			return fmt.Sprintf("%s ended at %d with the definition %q, and its job keeps %v, counted are %v",
				id, record.Finished.UnixMilli(), record.Made, kept[record.Job], defs)
		}
	}
	all := make(map[string]bool)
	for _, uses := range kept {
		for name := range uses {
			all["@"+name] = true
		}
	}
	for name := range defs {
		if strings.HasPrefix(name, "@") && !all[name] {
			return fmt.Sprintf("the definition %s is stored, and the histories keep %v", name, kept)
		}
	}
	return ""
}

// wantDefinitions checks how many definitions the bodies of outstanding runs name, and that those
// and the ones that histories keep are stored.
func (f *fixture) wantDefinitions(when string, named int) {
	f.Helper()
	bodies, err := f.rdb.HGetAll(f.Context(), f.key("body")).Result()
	if err != nil {
		f.Fatal(err)
	}
	defs, err := f.rdb.HGetAll(f.Context(), f.key("defs")).Result()
	if err != nil {
		f.Fatal(err)
	}
	kept, err := keptDefinitions(f.Context(), f.rdb, f.namespace)
	if err != nil {
		f.Fatal(err)
	}
	used := 0
	for field, n := range defs {
		if strings.HasPrefix(field, "#") && n != "0" {
			used++
		}
	}
	if wrong := wrongDefinitions(bodies, defs, kept); wrong != "" || used != named {
		f.Errorf("%s: runs have %d definitions, want %d; %s", when, used, named, wrong)
	}
}

func TestADefinitionIsStoredOnceForAllItsRuns(t *testing.T) {
	each(t, func(f *fixture) {
		client := f.session("w")
		other := newJob("other")
		f.job.Overlap = jobs.OverlapAllow
		var due []ledger.Due
		for i := range 5 {
			due = append(due, f.enqueues(f.Ledger, f.job, fmt.Sprint(i)))
		}
		single := f.enqueues(f.Ledger, other, "x")
		f.wantDefinitions("five runs of one and one of another", 2)
		if body := f.rdb.HGet(f.Context(), f.key("body"), string(single.Run)).Val(); len(body) > 30 {
			t.Errorf("a body is %q, want the args and a name", body)
		}
		f.finish(f.claim(client, single, ledger.ClaimGranted), ledger.OutcomeSuccess, ledger.FinishRecorded)
		f.wantDefinitions("the other one has ended", 1)

		// Each way out of the outstanding runs.
		f.finish(f.claim(client, due[0], ledger.ClaimGranted), ledger.OutcomeFailure, ledger.FinishRecorded)
		if _, err := f.Cancel(f.Context(), due[1].Run, f.job, ledger.Act{Who: "ann"}); err != nil {
			t.Fatal(err)
		}
		var finishes []ledger.Finish
		for _, d := range due[2:4] {
			a := f.claim(client, d, ledger.ClaimGranted)
			finishes = append(finishes, ledger.Finish{Run: d.Run, Job: a.Job, Token: a.token(), Hold: a.request.ID(), Outcome: ledger.OutcomeSuccess})
		}
		f.wantDefinitions("two of five have ended", 1)
		for _, finished := range f.FinishAll(f.Context(), finishes) {
			if finished == nil || finished.Verdict != ledger.FinishRecorded {
				t.Errorf("%+v, want it recorded", finished)
			}
		}
		f.wantDefinitions("four of five have ended", 1)
		if _, err := f.Reopen(f.Context(), ledger.Reopening{Run: due[0].Run, Job: f.job}); err != nil {
			t.Fatal(err)
		}
		if outcome, _, err := f.Refuse(f.Context(), ledger.Refusal{Run: due[4].Run, N: due[4].N, Cause: errors.New("no")}); err != nil || outcome != ledger.RefusalEnded {
			t.Fatalf("%v, %v, want it ended", outcome, err)
		}
		f.wantDefinitions("one is done again", 1)
		if _, err := f.Cancel(f.Context(), due[0].Run, f.job, ledger.Act{Who: "ann"}); err != nil {
			t.Fatal(err)
		}
		f.wantDefinitions("all have ended", 0)
		f.wantNothingLeft()
	})
}

// Nothing that a build reads which can only write format 1 changes while such a build lives; what
// it made is done after the raise.
func TestDefinitionsAreStoredInFormatOneBesideAnOlderBuild(t *testing.T) {
	each(t, func(f *fixture) {
		leave := f.older()
		client := f.session("w")
		definition, _, err := f.job.Definition()
		if err != nil {
			t.Fatal(err)
		}
		tick, request := f.run(), f.enqueues(f.Ledger, f.job, "a")
		adopted, err := f.Adopt(f.Context(), f.given(client, "b"))
		if err != nil {
			t.Fatal(err)
		}
		again := f.enqueues(f.Ledger, f.job, "c")
		f.finish(f.claim(client, again, ledger.ClaimGranted), ledger.OutcomeFailure, ledger.FinishRecorded)
		reopened, err := f.Reopen(f.Context(), ledger.Reopening{Run: again.Run, Job: f.job})
		if err != nil {
			t.Fatal(err)
		}
		due := append([]ledger.Due{tick, request}, append(adopted.Due, reopened...)...)
		if len(due) != 4 {
			t.Fatalf("%v are due, want four", due)
		}
		for _, d := range due {
			body := f.rdb.HGet(f.Context(), f.key("body"), string(d.Run)).Val()
			if args, got, _ := strings.Cut(body, us); got != string(definition) || !json.Valid([]byte(args)) {
				t.Errorf("the body of %s is %q, want its args and %s", d.Run, body, definition)
			}
		}
		f.wantDefinitions("in format 1", 0)
		running := f.claim(client, due[0], ledger.ClaimGranted)

		leave()
		f.enqueues(f.Ledger, f.job, "d")
		f.wantDefinitions("after the raise", 1)
		f.finish(running, ledger.OutcomeSuccess, ledger.FinishRecorded)
		limited := *f
		limited.Ledger = ledger.New(client.Extension().Redis(), client.Space())
		limited.Limit(func(ledger.Need) bool { return true })
		for _, d := range append(due[1:], ledger.Due{Run: "j#d", N: 1, Queue: "default"}) {
			a := limited.claim(client, d, ledger.ClaimGranted)
			if got, _, err := a.Job.Definition(); err != nil || string(got) != string(definition) {
				t.Errorf("the claim of %s brings %s, %v", d.Run, got, err)
			}
			f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
		}
		f.wantNothingLeft()
	})
}

// A claim that is sent again may come from a process that has forgotten the definition which the
// first one named.
func TestAGrantThatIsRepeatedBringsTheDefinition(t *testing.T) {
	each(t, func(f *fixture) {
		client := f.session("w")
		limited := func() *fixture {
			own := *f
			own.Ledger = ledger.New(client.Extension().Redis(), client.Space())
			own.Limit(func(ledger.Need) bool { return true })
			return &own
		}
		due := f.enqueues(f.Ledger, f.job, "a")
		a := limited().claim(client, due, ledger.ClaimGranted)
		again, err := limited().Claim(f.Context(), a.request, due, 0, nil)
		if err != nil || again.Outcome != ledger.ClaimGranted || again.Record.Last().Token != a.token() || again.Job.Name != "j" {
			t.Errorf("sent again: %+v, %v, want the grant", again, err)
		}
	})
}

// A run with a missing definition, or with another text than it names, is never executed: no lock
// is taken for it, and it fails.
func TestNoRunBeginsWithoutItsDefinition(t *testing.T) {
	each(t, func(f *fixture) {
		client := f.session("w")
		limited := *f
		limited.Ledger = ledger.New(client.Extension().Redis(), client.Space())
		limited.Limit(func(ledger.Need) bool { return true })
		n := 0
		for name, damage := range map[string]func(key string) error{
			"missing": func(key string) error { return f.rdb.HDel(f.Context(), f.key("defs"), key).Err() },
			"empty":   func(key string) error { return f.rdb.HSet(f.Context(), f.key("defs"), key, "").Err() },
			"another": func(key string) error {
				return f.rdb.HSet(f.Context(), f.key("defs"), key, `{"name":"j","command":["rm"]}`).Err()
			},
		} {
			for who, by := range map[string]*fixture{"any": f, "limited": &limited} {
				if name == "another" && who == "any" {
					continue // a worker that takes all texts relies on their signatures alone
				}
				n++
				job := newJob("j")
				job.Description = strconv.Itoa(n) // not known to the process
				due := f.enqueues(f.Ledger, job, fmt.Sprint(n))
				_, key, _ := strings.Cut(f.rdb.HGet(f.Context(), f.key("body"), string(due.Run)).Val(), us)
				if err := damage(key); err != nil {
					t.Fatal(err)
				}
				before := f.snapshot()
				request := f.request(client)
				_, err := by.Claim(f.Context(), request, due, 0, nil)
				if !ledger.Final(err) || !strings.Contains(err.Error(), "its definition is missing") {
					t.Errorf("%s, %s: %v, want a permanent error about the missing definition", name, who, err)
				}
				if all := by.ClaimAll(f.Context(), []ledger.Claim{{Request: request, Due: due}, {Request: request, Due: ledger.Due{Run: "j#none", N: 1}}}, 0); all[0] != nil {
					t.Errorf("%s, %s: of several %+v, want it to be sent again", name, who, all[0])
				}
				if after := f.snapshot(); !maps.Equal(before, after) {
					t.Errorf("%s, %s: the claim made %v of %v", name, who, after, before)
				}
				if _, err := f.Definition(f.Context(), due.Run); name != "another" && !errors.Is(err, ledger.ErrUnreadable) {
					t.Errorf("%s: its definition is %v, want ErrUnreadable", name, err)
				}
				if _, _, err := f.Refuse(f.Context(), ledger.Refusal{Run: due.Run, N: due.N, Hold: request.ID(), Cause: err}); err != nil {
					t.Error(err)
				}
				request.Drop()
				f.wantState(due.Run, ledger.StateFailed)
			}
		}
		// The history keeps the damaged ones.
		if err := f.rdb.Del(f.Context(), f.key("defs"), f.key("made:j")).Err(); err != nil {
			t.Fatal(err)
		}
		f.wantNothingLeft()
	})
}

// A lost definition comes back with its run, in the format that is written then.
func TestALostDefinitionComesBackWithItsRun(t *testing.T) {
	each(t, func(f *fixture) {
		for _, format := range []int{1, 2} {
			w := f.worker(fmt.Sprint("w", format))
			w.job = newJob(fmt.Sprint("job", format))
			w.job.Overlap = jobs.OverlapAllow
			w.Limit(func(ledger.Need) bool { return true })
			w.hear()
			cursor := w.cursor(w.job, 5)
			created := w.tick(w.job, cursor, 3, ledger.VerdictRun)
			w.hear()
			running := []attempt{w.claim(w.client, created.Due[0], ledger.ClaimGranted)}
			running = append(running, w.claim(w.client, w.enqueues(w.Ledger, w.job, "a"), ledger.ClaimGranted))
			f.lose(w)
			if err := f.rdb.HSet(f.Context(), f.key("meta"), "format", format, "least_format", 1).Err(); err != nil {
				t.Fatal(err)
			}
			w.say()
			w.say() // once more, as after an error
			f.wantDefinitions(fmt.Sprintf("format %d", format), format-1)
			definition, _, err := w.job.Definition()
			if err != nil {
				t.Fatal(err)
			}
			for _, run := range []jobs.RunID{running[0].Record.ID, running[1].Record.ID, created.Due[1].Run, created.Due[2].Run} {
				if got := f.carried(run); got != string(definition) {
					t.Errorf("format %d: %s has the definition %q, want %s", format, run, got, definition)
				}
			}
			for _, a := range running {
				f.finish(a, ledger.OutcomeSuccess, ledger.FinishRecorded)
			}
			f.wantDefinitions(fmt.Sprintf("format %d, two have ended", format), format-1)
			f.lose()
			f.goOn()
		}
	})
}

// TestFaultsInTheCountOfDefinitionsAreFound plants faults in the scripts that write or remove
// bodies. Random histories must show that a definition is missing which a run names, or that one is
// stored which no run names.
func TestFaultsInTheCountOfDefinitionsAreFound(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	for what, fault := range map[string][2]string{
		"none": {"", ""},
		"the end of a run removes a definition that is kept": {"if not usedMade(sub(name, 2)) then", "if true then"},
		"the end of a run does not note the last use":        {"redis.pcall('ZADD', MADE, 'XX', 'CH', ms, name) == 1 or", ""},
		"a history does not keep a new definition":           {"keepMade(name, #text)", ""},
		"the end of a run is not counted":                    {"'#' .. sub(name, 2), -1)", "'#' .. sub(name, 2), 0)"},
		"several ends are counted as one":                    {"'#' .. name, -n)", "'#' .. name, -1)"},
		"a run that becomes outstanding is not counted":      {"call('HINCRBY', DEFS, '#' .. name, 1) == 1 or", "call('HSET', DEFS, '#' .. name, '1') == 1 or"},
		"a definition is stored with the second of its runs": {"'#' .. name, 1) == 1 or", "'#' .. name, 1) == 2 and"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			seeds := uint64(40)
			if what == "none" {
				seeds = 3
			}
			for seed := range historiesFor(what, seeds) {
				wrong := playFaulty(t, server, seed, fault[0], fault[1])
				if what == "none" && wrong != "" {
					t.Fatalf("history %d without a fault: %s", seed, wrong)
				}
				if what != "none" && wrong != "" {
					t.Logf("found in history %d", seed)
					return
				}
			}
			if what != "none" {
				t.Error("no history shows it")
			}
		})
	}
}

// playFaulty plays one history. Each script that has the fault runs with it on a copy of all keys.
// There, the definitions must match the bodies, and the records of runs what they were before. The
// history continues without the fault. playFaulty returns what was wrong.
func playFaulty(t *testing.T, server *redistest.Server, seed uint64, old, fault string) string {
	t.Helper()
	old, fault = ledger.Expand(old), ledger.Expand(fault)
	h := &faulty{plain: server.Client(t), namespace: redistest.Namespace(t), copy: redistest.Namespace(t), texts: make(map[string]*redis.Script)}
	for digest, text := range ledger.BodyScripts() {
		if strings.Contains(text, old) {
			h.texts[digest] = redis.NewScript(strings.ReplaceAll(text, old, fault))
		}
	}
	if len(h.texts) == 0 {
		t.Fatalf("the fault is not in the scripts: %q is not there", old)
	}
	rdb := server.Client(t)
	space, err := locks.NewSpace(rdb, h.namespace)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, rdb: rdb, namespace: h.namespace, Ledger: ledger.New(rdb, space), job: newJob("j"), lease: 10 * time.Minute}
	p := newPlay(f, seed)
	rdb.AddHook(h)
	for range 100 {
		if p.step(); h.wrong != "" {
			break
		}
	}
	return h.wrong
}

// faulty is a hook that runs scripts with a fault on a copy of the keys.
type faulty struct {
	plain           *redis.Client
	namespace, copy string
	texts           map[string]*redis.Script // by digest

	wrong string // the first that was found
}

func (h *faulty) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *faulty) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.try(ctx, cmd)
		return next(ctx, cmd)
	}
}

func (h *faulty) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h.try(ctx, cmd)
		}
		return next(ctx, cmds)
	}
}

func (h *faulty) try(ctx context.Context, cmd redis.Cmder) {
	if cmd.Name() != "evalsha" || h.wrong != "" {
		return
	}
	script, ok := h.texts[cmd.Args()[1].(string)]
	if !ok {
		return
	}
	if err := h.plain.Eval(ctx, copyKeys, nil, h.namespace, h.copy).Err(); err != nil {
		h.wrong = err.Error()
		return
	}
	before, err := recordsOf(ctx, h.plain, h.copy, playedJobs...)
	if err != nil {
		h.wrong = err.Error()
		return
	}
	n, err := strconv.Atoi(fmt.Sprint(cmd.Args()[2]))
	if err != nil {
		h.wrong = err.Error()
		return
	}
	keys := make([]string, n)
	for i := range keys {
		keys[i] = strings.Replace(cmd.Args()[3+i].(string), "{"+h.namespace+"}", "{"+h.copy+"}", 1)
	}
	if err := script.Run(ctx, h.plain, keys, cmd.Args()[3+n:]...).Err(); err != nil {
		h.wrong = err.Error()
		return
	}
	bodies, err1 := h.plain.HGetAll(ctx, "{"+h.copy+"}:body").Result()
	defs, err2 := h.plain.HGetAll(ctx, "{"+h.copy+"}:defs").Result()
	after, err3 := recordsOf(ctx, h.plain, h.copy, playedJobs...)
	kept, err4 := keptDefinitions(ctx, h.plain, h.copy)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		h.wrong = err.Error()
		return
	}
	h.wrong = cmp.Or(wrongDefinitions(bodies, defs, kept), wrongRecords(before, after), wrongMade(after, defs, kept))
}

// TestARefusedBodyChangesNothing damages the keys of bodies or of definitions, or how many bodies
// have one, so that no run can become outstanding. Scripts that try return an error before they
// change anything: once the keys are repaired, the same call works. Ends of runs need no such key,
// so they are recorded meanwhile.
func TestARefusedBodyChangesNothing(t *testing.T) {
	for _, name := range []string{"tick", "request", "later request", "adopted request", "reopened run", "re-asserted run"} {
		for _, key := range []string{"defs", "body", "count"} {
			t.Run(name+", "+key, func(t *testing.T) {
				each(t, func(f *fixture) {
					w := f.worker("w")
					w.job.Overlap = jobs.OverlapAllow
					cursor := w.cursor(w.job, 5)
					w.hear()
					ran, other := w.enqueues(w.Ledger, w.job, "ran"), w.enqueues(w.Ledger, w.job, "other")
					running := w.claim(w.client, ran, ledger.ClaimGranted)
					if name == "reopened run" {
						f.finish(running, ledger.OutcomeFailure, ledger.FinishRecorded)
					}
					given := f.given(w.client, "given")
					request := func(r ledger.Request) error {
						r.Job, r.Trigger, r.Named = w.job, ledger.TriggerEnqueue, true
						_, err := w.Enqueue(f.Context(), r)
						return err
					}
					try, run := func() error { return nil }, jobs.RunID("j#new")
					switch name {
					case "tick":
						tick := cursor.Add(time.Second)
						run = jobs.TickRunID("j", tick)
						try = func() error {
							return w.Create(f.Context(), []ledger.Decision{{Job: w.job, Seen: cursor, Cursor: tick, Ticks: []ledger.Tick{{At: tick, Verdict: ledger.VerdictRun}}, By: "me.1"}})[0].Err
						}
					case "request":
						try = func() error { return request(ledger.Request{ID: "new"}) }
					case "later request":
						try = func() error { return request(ledger.Request{ID: "new", In: time.Hour}) }
					case "adopted request":
						run = "j#low/given"
						try = func() error { _, err := w.Adopt(f.Context(), given); return err }
					case "reopened run":
						run = ran.Run
						try = func() error {
							_, err := w.Reopen(f.Context(), ledger.Reopening{Run: ran.Run, Job: w.job})
							return err
						}
					case "re-asserted run":
						run = ran.Run
						f.lose(w)
						if err := f.rdb.HSet(f.Context(), f.key("meta"), "format", 2, "least_format", 1).Err(); err != nil {
							f.Fatal(err)
						}
						f.register(w.job)
						// Its body and definition exist.
						other = w.enqueues(w.Ledger, w.job, "other")
						try = func() error {
							return w.Assert(f.Context(), w.client.Session(), w.lost, "config", []*jobs.Job{w.job})
						}
					}

					repair := f.damage(key)
					before := f.snapshot()
					if err := try(); err == nil || key != "count" && !strings.Contains(err.Error(), "WRONGTYPE") {
						f.Fatalf("%v, want it refused", err)
					}
					// A re-asserted run also re-asserts its cursor.
					if after := f.snapshot(); name != "re-asserted run" && !maps.Equal(before, after) {
						f.Errorf("it was refused, and %q has become %q", before, after)
					}
					if name == "request" && key == "defs" {
						// Its body was removed, because the end does not read the key.
						f.finish(running, ledger.OutcomeSuccess, ledger.FinishRecorded)
					}
					repair()
					if err := try(); err != nil {
						f.Fatalf("after the repair: %v", err)
					}
					if f.find(run).State.Final() || f.carried(run) == "" || f.carried(other.Run) == "" {
						f.Errorf("after the repair %s is %s with the definition %q", run, f.find(run).State, f.carried(run))
					}
					if name != "request" {
						f.wantDefinitions("after the repair", 1)
					}
				})
			})
		}
	}
}

// damage makes a key one of the wrong type, or with "count" the number of bodies that have a
// definition one that is no number. It returns a function that repairs that.
func (f *fixture) damage(key string) (repair func()) {
	f.Helper()
	must := func(err error) {
		f.Helper()
		if err != nil {
			f.Fatal(err)
		}
	}
	if key != "count" {
		must(f.rdb.Rename(f.Context(), f.key(key), f.key("away")).Err())
		must(f.rdb.Set(f.Context(), f.key(key), "damaged", 0).Err())
		return func() { must(f.rdb.Rename(f.Context(), f.key("away"), f.key(key)).Err()) }
	}
	counts := f.rdb.HGetAll(f.Context(), f.key("defs")).Val()
	maps.DeleteFunc(counts, func(field, _ string) bool { return !strings.HasPrefix(field, "#") })
	if len(counts) != 1 {
		f.Fatalf("%d definitions are counted, want one", len(counts))
	}
	for field := range counts {
		must(f.rdb.HSet(f.Context(), f.key("defs"), field, "many").Err())
	}
	return func() { must(f.rdb.HSet(f.Context(), f.key("defs"), counts).Err()) }
}

// TestTheNextRunRestoresALostDefinition: a foreign write may have removed it, or replaced it with a
// text of another length. Then the runs that have it already can be claimed as well.
func TestTheNextRunRestoresALostDefinition(t *testing.T) {
	each(t, func(f *fixture) {
		client := f.session("w")
		limited := *f
		limited.Ledger = ledger.New(client.Extension().Redis(), client.Space())
		limited.Limit(func(ledger.Need) bool { return true })
		f.job.Overlap = jobs.OverlapAllow
		definition, _, err := f.job.Definition()
		if err != nil {
			f.Fatal(err)
		}
		name := "@" + ledger.NameOf(string(definition))
		n := 0
		for damage, do := range map[string]func() error{
			"removed":  func() error { return f.rdb.HDel(f.Context(), f.key("defs"), name).Err() },
			"replaced": func() error { return f.rdb.HSet(f.Context(), f.key("defs"), name, `{"name":"j"}`).Err() },
		} {
			for how, in := range map[string]time.Duration{"at once": 0, "later": time.Hour} {
				n++
				due := f.enqueues(f.Ledger, f.job, fmt.Sprint("first", n))
				if err := do(); err != nil {
					f.Fatal(err)
				}
				if _, err := f.Enqueue(f.Context(), ledger.Request{Job: f.job, ID: fmt.Sprint("next", n), Trigger: ledger.TriggerEnqueue, In: in}); err != nil {
					f.Fatal(err)
				}
				if got := f.carried(due.Run); got != string(definition) {
					f.Errorf("%s, and a run %s: the definition is %q, want it restored", damage, how, got)
					continue
				}
				f.claim(client, due, ledger.ClaimGranted)
				limited.claim(client, f.enqueues(f.Ledger, f.job, fmt.Sprint("last", n)), ledger.ClaimGranted)
			}
		}
		if !f.Failed() {
			f.wantDefinitions("at last", 1)
		}
	})
}
