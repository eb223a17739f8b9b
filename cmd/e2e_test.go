package cmd

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/locks/redistest"
)

// These tests run whole workers as processes on a real Redis. Their commands append to one file, the effect log; the
// order of its lines is the order in which things happened. At the end the log and the ledger have to agree, and the
// ticks are computed once more, in a simpler way than the program does.

// fleet is five workers that share 20 jobs.
type fleet struct {
	t       *testing.T
	env     []string
	config  string
	effects string
	steps   map[string]int64    // seconds between two ticks, by job
	locks   map[string][]string // what the job's attempts hold beside their run, by job
	workers []*process
}

const fleetSize = 5

func newFleet(t *testing.T, hold time.Duration) *fleet {
	t.Helper()
	server := redistest.New(t, redistest.Options{})
	f := &fleet{
		t: t, effects: filepath.Join(t.TempDir(), "effects"), steps: make(map[string]int64), locks: make(map[string][]string),
		env: toolEnv(t, "REDIS_URL="+server.URL(), "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:0", "LOCKSTEP_LOCKS__LEASE=2s"),
	}
	var b strings.Builder
	b.WriteString("worker: {drain_timeout: 20s}\n")
	b.WriteString("defaults: {overlap: queue, max_queued: 10000, on_missed: all, max_crashes: 1000, retry: {max: 0}}\njobs:\n")
	for i := range 20 {
		name := fmt.Sprintf("job-%02d", i)
		trigger, step, lock := `schedule: "* * * * * *"`, int64(1), ""
		f.locks[name] = []string{"job:" + name}
		switch i % 4 {
		case 1:
			trigger, step = `schedule: "*/2 * * * * *"`, 2
		case 2:
			trigger, step = "every: 3s", 3
		case 3: // these five compete for one lock, too
			trigger, step, lock = `schedule: "*/5 * * * * *"`, 5, "\n    lock: {exclusive: [desk]}"
			f.locks[name] = append(f.locks[name], "desk")
		}
		f.steps[name] = step
		fmt.Fprintf(&b, "  %s:\n    %s%s\n", name, trigger, lock)
		fmt.Fprintf(&b, "    command: [sh, -c, 'e() { echo \"$1 $LOCKSTEP_RUN_ID $LOCKSTEP_ATTEMPT $LOCKSTEP_TOKEN\" >> %s; }; e start; sleep %g; e end']\n",
			f.effects, hold.Seconds())
	}
	f.config = writeFile(t, "lockstep.yaml", b.String())
	return f
}

// start adds a worker.
func (f *fleet) start() {
	f.t.Helper()
	f.workers = append(f.workers, launch(f.t, f.env, "start", "-c", f.config))
}

// busiest returns the worker with the most runs at this moment, or else the given one.
func (f *fleet) busiest(otherwise int) int {
	f.t.Helper()
	best, most := otherwise, 0
	for _, w := range ask[[]workerJSON](f.t, f.env, "worker", "ls") {
		i := slices.IndexFunc(f.workers, func(p *process) bool { return p.worker() == w.PID })
		if i >= 0 && w.Busy > most {
			best, most = i, w.Busy
		}
	}
	return best
}

// drain tells the workers to end, once they are up, and waits for it.
func (f *fleet) drain() {
	f.t.Helper()
	eventually(f.t, 30*time.Second, "all workers are up", func() bool {
		f.workers = slices.DeleteFunc(f.workers, (*process).hasEnded) // those that have crashed too often
		up := ask[[]workerJSON](f.t, f.env, "worker", "ls")
		return !slices.ContainsFunc(f.workers, func(p *process) bool {
			return !slices.ContainsFunc(up, func(w workerJSON) bool { return w.PID == p.worker() })
		})
	})
	for _, w := range f.workers {
		w.signal(syscall.SIGTERM)
	}
	for _, w := range f.workers {
		if code := w.code(30 * time.Second); code != 0 {
			f.t.Errorf("%s (pid %d) exits with %d after SIGTERM, want 0", w.name, w.Process.Pid, code)
		}
	}
	f.workers = nil
}

// finish lets a worker that creates no ticks, as it has none of the jobs, do what is left.
func (f *fleet) finish() {
	f.t.Helper()
	f.config = writeFile(f.t, "empty.yaml", `jobs: {other: {command: ["true"]}}`)
	f.start()
	eventually(f.t, time.Minute, "all runs have ended", func() bool {
		for _, run := range f.runs() {
			if run.State != "succeeded" && run.State != "failed" {
				return false
			}
		}
		return true
	})
	f.drain()
}

func (f *fleet) runs() []runJSON {
	f.t.Helper()
	return ask[[]runJSON](f.t, f.env, "run", "ls")
}

// effect is one line of the effect log.
type effect struct {
	end     bool
	run     string
	attempt int
	token   int64
}

func (e effect) job() string {
	job, _, _ := strings.Cut(e.run, "@")
	return job
}

func (f *fleet) readEffects() []effect {
	f.t.Helper()
	text, err := os.ReadFile(f.effects)
	if err != nil {
		f.t.Fatal(err)
	}
	var effects []effect
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) != 4 {
			f.t.Fatalf("effect %q", line)
		}
		attempt, err1 := strconv.Atoi(fields[2])
		token, err2 := strconv.ParseInt(fields[3], 10, 64)
		if err1 != nil || err2 != nil {
			f.t.Fatalf("effect %q: %v, %v", line, err1, err2)
		}
		effects = append(effects, effect{fields[0] == "end", fields[1], attempt, token})
	}
	return effects
}

// checker collects what is wrong.
type checker struct{ problems []string }

func (c *checker) found(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// check holds the ledger's runs and the effects against each other.
func (f *fleet) check(runs []runJSON, effects []effect, from, to time.Time) {
	f.t.Helper()
	c := new(checker)
	c.ticks(runs, f.steps, from, to)
	c.locks(effects, f.locks)
	c.runs(runs, effects)
	for i, problem := range c.problems {
		if i == 20 {
			f.t.Errorf("and %d more", len(c.problems)-i)
			break
		}
		f.t.Error(problem)
	}
}

// ticks proves that each job has a run for every one of its ticks between its first and its last one, each once, and
// that these cover the time that the fleet was up, but for its start and its end.
func (c *checker) ticks(runs []runJSON, steps map[string]int64, from, to time.Time) {
	const slack = 5 * time.Second // a worker starts, is killed, has its successor decide
	ticks := make(map[string][]int64)
	for _, run := range runs {
		if run.Tick == nil || run.ID != run.Job+"@"+run.Tick.UTC().Format(time.RFC3339) {
			c.found("run %s has the tick %v", run.ID, run.Tick)
			continue
		}
		ticks[run.Job] = append(ticks[run.Job], run.Tick.Unix())
	}
	for job, step := range steps {
		have := ticks[job]
		slices.Sort(have)
		if len(have) == 0 {
			c.found("%s has no runs", job)
			continue
		}
		for i, tick := range have {
			if want := have[0] - have[0]%step + int64(i)*step; tick != want {
				c.found("%s: run %d is for tick %d, want %d", job, i, tick, want)
				break
			}
		}
		first, last := time.Unix(have[0], 0), time.Unix(have[len(have)-1], 0)
		every := time.Duration(step) * time.Second
		if first.Sub(from) > every+slack || to.Sub(last) > every+slack {
			c.found("%s: ticks from %s to %s; the fleet was up from %s to %s", job, first, last, from, to)
		}
	}
}

// locks proves that nobody acts under a lock once somebody else has begun to: with the first line of a later token,
// whoever had an earlier one is silent for ever.
func (c *checker) locks(effects []effect, held map[string][]string) {
	latest := make(map[string]effect) // by lock
	for i, e := range effects {
		for _, lock := range append([]string{e.run}, held[e.job()]...) {
			before, seen := latest[lock]
			switch {
			case seen && e.token < before.token:
				c.found("line %d: %+v acts under %s although %+v has it since", i+1, e, lock, before)
			case seen && e.token == before.token && (e.run != before.run || !e.end || before.end):
				c.found("line %d: %+v and %+v under one token of %s", i+1, before, e, lock)
			case (!seen || e.token > before.token) && e.end:
				c.found("line %d: %+v ends what did not begin under %s", i+1, e, lock)
			}
			latest[lock] = e
		}
	}
}

// runs proves that the ledger and the effects tell the same: each run succeeded, once, in its last attempt; what has an
// effect is an attempt of the ledger with this token; tokens grow from attempt to attempt.
func (c *checker) runs(runs []runJSON, effects []effect) {
	byID := make(map[string]runJSON)
	for _, run := range runs {
		if _, twice := byID[run.ID]; twice {
			c.found("run %s is listed twice", run.ID)
		}
		byID[run.ID] = run
		if run.State != "succeeded" {
			why := "no attempt"
			if n := len(run.Attempts); n > 0 && run.Attempts[n-1].Error != nil {
				why = *run.Attempts[n-1].Error
			}
			c.found("run %s is %s: %s", run.ID, run.State, why)
			continue
		}
		last := int64(0)
		for i, a := range run.Attempts {
			if a.token() <= last {
				c.found("run %s: token %s of attempt %d is not higher than %d", run.ID, a.Token, a.Attempt, last)
			}
			last = a.token()
			if a.Outcome == nil || (*a.Outcome == "succeeded") != (i == len(run.Attempts)-1) || a.Attempt != i+1 {
				c.found("run %s: attempt %d is %+v", run.ID, i+1, a)
			}
		}
	}
	ends := make(map[string]int64) // the token of the last end
	for _, e := range effects {
		run, ok := byID[e.run]
		if !ok || e.attempt > len(run.Attempts) || run.Attempts[e.attempt-1].token() != e.token {
			c.found("the effect %+v is of no attempt in the ledger: %+v", e, run.Attempts)
			continue
		}
		if e.end {
			ends[e.run] = e.token
		}
	}
	for _, run := range runs {
		if n := len(run.Attempts); n > 0 && ends[run.ID] != run.Attempts[n-1].token() {
			c.found("run %s succeeded under token %s, but its effect ended under %d", run.ID, run.Attempts[n-1].Token, ends[run.ID])
		}
	}
}

// TestCheckerFindsPlantedFaults holds the checker against small histories that are wrong in one way each.
func TestCheckerFindsPlantedFaults(t *testing.T) {
	t.Parallel()
	done := "succeeded"
	at := func(second int) time.Time { return time.Date(2027, 1, 1, 0, 0, second, 0, time.UTC) }
	run := func(second int, tokens ...string) runJSON {
		tick := at(second)
		r := runJSON{ID: "a@" + tick.Format(time.RFC3339), Job: "a", Tick: &tick, State: done}
		for i, token := range tokens {
			outcome := "crashed"
			if i == len(tokens)-1 {
				outcome = done
			}
			r.Attempts = append(r.Attempts, attemptJSON{Attempt: i + 1, Token: token, Outcome: &outcome})
		}
		return r
	}
	line := func(end bool, r runJSON, attempt int, token int64) effect { return effect{end, r.ID, attempt, token} }
	type history struct {
		runs    []runJSON
		effects []effect
	}
	good := func() history {
		one, two, three := run(1, "10"), run(2, "20", "30"), run(3, "40")
		return history{[]runJSON{one, two, three}, []effect{
			line(false, one, 1, 10), line(true, one, 1, 10), line(false, two, 1, 20), line(false, two, 2, 30), line(true, two, 2, 30),
			line(false, three, 1, 40), line(true, three, 1, 40),
		}}
	}
	for _, test := range []struct {
		name  string
		wrong func(h *history)
		want  string // "": nothing is wrong
	}{
		{"nothing", func(*history) {}, ""},
		{"lost tick", func(h *history) { h.runs = slices.Delete(h.runs, 1, 2); h.effects = slices.Delete(h.effects, 2, 5) }, "run 1 is for tick"},
		{"double tick", func(h *history) { h.runs = append(h.runs, h.runs[2]) }, "listed twice"},
		{"failed run", func(h *history) { h.runs[0].State = "failed" }, "is failed"},
		{"finished twice", func(h *history) { h.runs[1].Attempts[0].Outcome = &done }, "attempt 1 is"},
		{"token shrinks", func(h *history) { h.runs[1].Attempts[0].Token = "31" }, "is not higher than 31"},
		{"effect of nobody", func(h *history) { h.effects[2].attempt = 3 }, "is of no attempt"},
		{"effect twice", func(h *history) { h.effects = append(h.effects[:2:2], h.effects[1:]...) }, "under one token"},
		{"no effect", func(h *history) { h.effects = h.effects[:6] }, "its effect ended under 0"},
		{"overlap", func(h *history) { h.effects[1], h.effects[2] = h.effects[2], h.effects[1] }, "although"},
		{"zombie", func(h *history) { h.effects[2], h.effects[3] = h.effects[3], h.effects[2] }, "although"},
	} {
		h := good()
		test.wrong(&h)
		c := new(checker)
		c.ticks(h.runs, map[string]int64{"a": 1}, at(0), at(4))
		c.locks(h.effects, map[string][]string{"a": {"job:a"}})
		c.runs(h.runs, h.effects)
		found := strings.Join(c.problems, "\n")
		if test.want == "" && found != "" || !strings.Contains(found, test.want) {
			t.Errorf("%s: found %q, want %q", test.name, found, test.want)
		}
	}
}

// fleetTime is how long a fleet works: long with LOCKSTEP_TEST_ALL=1.
func fleetTime() time.Duration {
	if os.Getenv("LOCKSTEP_TEST_ALL") == "1" {
		return 30 * time.Second
	}
	return 10 * time.Second
}

func TestEveryTickRunsExactlyOnceOnFiveWorkers(t *testing.T) {
	if testing.Short() {
		t.Skip("a fleet of workers takes its time")
	}
	t.Parallel()
	f := newFleet(t, 50*time.Millisecond)
	from := time.Now()
	for range fleetSize {
		f.start()
	}
	pause(t.Context(), fleetTime())
	to := time.Now()
	f.drain()
	f.finish()

	runs, effects := f.runs(), f.readEffects()
	f.check(runs, effects, from, to)
	if got, want := len(effects), 2*len(runs); got != want {
		t.Errorf("%d lines of effects of %d runs, want %d: each run once", got, len(runs), want)
	}
	for _, run := range runs {
		if len(run.Attempts) != 1 {
			t.Errorf("run %s took %d attempts, though nobody was killed", run.ID, len(run.Attempts))
		}
	}
	t.Logf("%d runs of %d jobs on %d workers", len(runs), len(f.steps), fleetSize)
}

func TestNoTickIsLostOrFinishedTwiceWhenWorkersAreKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("a fleet of workers takes its time")
	}
	t.Parallel()
	f := newFleet(t, 500*time.Millisecond)
	from := time.Now()
	for range fleetSize {
		f.start()
	}
	seed := uint64(from.UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	kills := 0
	for time.Since(from) < fleetTime() {
		pause(t.Context(), time.Duration(500+random.IntN(1000))*time.Millisecond)
		i := random.IntN(len(f.workers))
		if random.IntN(3) > 0 { // most often one that is at work
			i = f.busiest(i)
		}
		kills++
		victim := f.workers[i]
		if child := victim.worker(); child != 0 && random.IntN(2) == 0 {
			_ = syscall.Kill(child, syscall.SIGKILL) // its parent sees to the rest, unless that was once too often
			continue
		}
		victim.killPair()
		victim.code(10 * time.Second)
		f.workers = slices.Delete(f.workers, i, i+1)
		if random.IntN(2) == 0 { // the others are alone for a while
			pause(t.Context(), time.Duration(random.IntN(500))*time.Millisecond)
		}
		f.start()
	}
	to := time.Now()
	f.drain()
	f.finish()

	runs, effects := f.runs(), f.readEffects()
	f.check(runs, effects, from, to)
	crashes := 0
	for _, run := range runs {
		crashes += run.Crashes
	}
	t.Logf("%d runs, %d workers killed, %d attempts crashed", len(runs), kills, crashes)
	if crashes == 0 {
		t.Error("no attempt crashed: the test has shown nothing")
	}
}
