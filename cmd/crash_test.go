package cmd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/configs"
	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
)

// Crashes of workers: rows of the failure table, with real processes.

// With withHandlers in its environment, the test binary is the tool, with the handlers below or
// those of a soak. burialFault replaces the burial in its parents: noBurial does not look for what
// a dead child left behind and reports that all of it is dead; doubtfulBurial reports that it
// cannot be certain.
const (
	withHandlers   = "LOCKSTEP_CMD_TEST_HANDLERS"
	burialFault    = "LOCKSTEP_CMD_TEST_BURIAL"
	noBurial       = "none"
	doubtfulBurial = "doubtful"
)

// crashArgs tells a handler where to leave its traces.
type crashArgs struct {
	Effects string        `json:"effects"`
	Gate    string        `json:"gate"`  // a file; stubborn waits for it
	Takes   time.Duration `json:"takes"` // of traces, between its effects
}

// note appends a line to the effect log, as effectLine does for commands.
func note(r *jobs.Run[crashArgs], what string) {
	up, err := os.ReadFile("/proc/uptime")
	if err != nil {
		panic(err)
	}
	held, err := json.Marshal(r.Locks())
	if err != nil {
		panic(err)
	}
	line := fmt.Sprintf("%s %s %d %s %s %s\n", what, r.ID(), r.Attempt(), r.Token(), strings.Fields(string(up))[0], held)
	f, err := os.OpenFile(r.Args.Effects, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(line)
		_ = f.Close()
	}
	if err != nil {
		panic(err)
	}
}

// traces is a handler that has both its effects at once, unless its args say how long it takes.
func traces(ctx context.Context, r *jobs.Run[crashArgs]) error {
	note(r, "start")
	pause(ctx, r.Args.Takes)
	note(r, "end")
	return nil
}

func crashHandlers() *jobs.Registry {
	reg := jobs.NewRegistry()
	// A goroutine of the first attempt panics, which no code can recover.
	jobs.Handle(reg, "panics", func(ctx context.Context, r *jobs.Run[crashArgs]) error {
		note(r, "start")
		if r.Attempt() == 1 {
			go func() { panic("in a goroutine of its own") }()
			<-ctx.Done()
		}
		note(r, "end")
		return nil
	})
	jobs.Handle(reg, "nothing", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	jobs.Handle(reg, "waits", func(ctx context.Context, _ *jobs.Run[struct{}]) error { <-ctx.Done(); return ctx.Err() })
	jobs.Handle(reg, "naps", func(ctx context.Context, _ *jobs.Run[struct{}]) error { pause(ctx, 20*time.Millisecond); return nil })
	jobs.Handle(reg, "traces", traces)
	// The first attempt continues after its context has ended, until the gate exists, and then
	// reports success.
	jobs.Handle(reg, "stubborn", func(ctx context.Context, r *jobs.Run[crashArgs]) error {
		note(r, "start")
		if r.Attempt() == 1 {
			<-ctx.Done()
			note(r, "canceled")
			for !exists(r.Args.Gate) {
				pause(context.WithoutCancel(ctx), 10*time.Millisecond)
			}
		}
		note(r, "end")
		return nil
	})
	// The first attempt starts a daemon that keeps working for it.
	jobs.Handle(reg, "spawns", func(ctx context.Context, r *jobs.Run[crashArgs]) error {
		if r.Attempt() > 1 {
			note(r, "start")
			pause(ctx, time.Second)
			note(r, "end")
			return nil
		}
		script := fmt.Sprintf(`(setsid sh -c 'while :; do echo "start %s 1 %s 0 []" >> %s; sleep 0.02; done' &)`, r.ID(), r.Token(), r.Args.Effects)
		if err := exec.Command("sh", "-c", script).Run(); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	})
	jobs.Handle(reg, "transfer", transfer)
	addHooks(reg)
	return reg
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// newPack makes a fleet without workers yet. In the config, it replaces EFFECTS with the effect
// log, EFFECT with the shell function e that writes to it, and HOLD with a script. The script's
// first attempt stops before, during or after its effect, as $AT or else the name of its job says;
// it then leaves a file with its process ID, named after the run.
func newPack(t *testing.T, config string, more ...string) (*fleet, *redistest.Server) {
	t.Helper()
	return newPackOn(t, nil, config, more...)
}

// newPackOn is newPack with lines of configuration for Redis.
func newPackOn(t *testing.T, redis []string, config string, more ...string) (*fleet, *redistest.Server) {
	t.Helper()
	f := newFleet(t, redis, nil, more...)
	hold := filepath.Join(t.TempDir(), "hold.sh")
	script := fmt.Sprintf(effectLine, f.effects) + fmt.Sprintf(`
hold() {
	[ "${AT:-$LOCKSTEP_JOB} $LOCKSTEP_ATTEMPT" = "$1 1" ] || return 0
	echo $$ > %[1]s/$LOCKSTEP_RUN_ID.new; mv %[1]s/$LOCKSTEP_RUN_ID.new %[1]s/$LOCKSTEP_RUN_ID
	setsid sleep 1000 & # gone with the rest
	wait
}
hold before; e start; hold during; e end; hold after
`, filepath.Dir(f.effects))
	write(t, hold, script)
	write(t, f.config, strings.NewReplacer("EFFECTS", f.effects, "EFFECT", fmt.Sprintf(effectLine, f.effects), "HOLD", "[sh, "+hold+"]").Replace(config))
	return f, f.server
}

// startAll adds workers and waits until they are up.
func (f *fleet) startAll(n int) {
	f.t.Helper()
	for range n {
		f.start()
	}
	eventually(f.t, 30*time.Second, "all workers are up and have registered their jobs", func() bool {
		return len(f.up()) >= len(f.workers) && !slices.ContainsFunc(f.workers, func(w *process) bool {
			return !strings.Contains(w.stderr.String(), "worker is ready")
		})
	})
}

func (f *fleet) enqueue(job, id string) string {
	f.t.Helper()
	if _, stderr, code := runTool(f.t, f.env, "enqueue", job, "--id", id); code != 0 {
		f.t.Fatal(stderr)
	}
	return job + "#" + id
}

func (f *fleet) show(run string) runJSON {
	f.t.Helper()
	return ask[runJSON](f.t, f.env, "run", "show", run)
}

// await waits until a run is in a state, and returns the run.
func (f *fleet) await(run, state string) runJSON {
	f.t.Helper()
	var got runJSON
	eventually(f.t, 2*time.Minute, run+" is "+state, func() bool {
		got = f.show(run)
		return got.State == state
	})
	return got
}

// held waits until the first attempt of a run of HOLD has stopped at its place, and returns its
// process.
func (f *fleet) held(run string) int {
	f.t.Helper()
	pid := 0
	eventually(f.t, 30*time.Second, run+" has got to its place", func() bool {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(f.effects), run))
		if err != nil {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	return pid
}

// runner returns the worker that runs a run, with its index.
func (f *fleet) runner(run string) (*process, int) {
	f.t.Helper()
	attempts := f.show(run).Attempts
	for _, w := range ask[[]workerJSON](f.t, f.env, "worker", "ls") {
		i := slices.IndexFunc(f.workers, func(p *process) bool { return p.worker() == w.PID })
		if i >= 0 && len(attempts) > 0 && w.ID == attempts[len(attempts)-1].Worker {
			return f.workers[i], i
		}
	}
	f.t.Fatalf("no worker runs %s: %+v", run, attempts)
	return nil, 0
}

// killChild kills the working child of a worker, and returns when.
func (p *process) killChild() time.Time {
	p.t.Helper()
	at, child := time.Now(), p.worker()
	if child == 0 { // a signal to 0 is one to this process and its relatives
		p.t.Fatalf("%s (pid %d) has no working child", p.name, p.Process.Pid)
	}
	if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
		p.t.Fatal(err)
	}
	return at
}

// The outcome of a first attempt that was followed by a successful second one.
const (
	crashed   = "crashed"    // the process of its worker died, and the parent reported that
	lostLease = "lost lease" // no parent reported a death
)

// takenOver waits until a run has succeeded in its second attempt after the first one ended with
// the outcome first. It returns the time from an instant to the start of the second attempt.
func (f *fleet) takenOver(run, first string, from time.Time) time.Duration {
	f.t.Helper()
	got := f.await(run, "succeeded")
	crashes := map[string]int{crashed: 1, lostLease: 0}[first]
	if got.Crashes != crashes || len(got.Attempts) != 2 || *got.Attempts[0].Outcome != first || got.Attempts[1].token() <= got.Attempts[0].token() {
		f.t.Fatalf("%s: %+v, want %q, %d crashes, then success under a higher token", run, got, first, crashes)
	}
	return got.Attempts[1].Started.Sub(from)
}

// soon tries a death until it has its effect at once, and not at the end of a lease of a minute:
// a parent that stalls may leave that to the lease, but not each time. try makes a run with this id
// and kills the child that runs it. It returns how long the effect took.
func (f *fleet) soon(try func(id string) time.Duration) {
	f.t.Helper()
	var all []time.Duration
	for i := range 3 {
		took := try(fmt.Sprint("soon-", i))
		if took < 20*time.Second {
			return
		}
		all = append(all, took)
	}
	f.t.Errorf("it took %s; want at once, not at the end of the lease", all)
}

// healed ends an outage. It checks that the run then moves on and that nothing overlaps.
func (f *fleet) healed(server *redistest.Server, run, first string, since time.Time) {
	f.t.Helper()
	if err := server.Resume(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Logf("the next attempt began %s after the first was struck", f.takenOver(run, first, since))
	f.checkOverlap()
	f.drain()
}

// checkOverlap proves that no attempt acted under a run's lock after the next attempt had.
func (f *fleet) checkOverlap() {
	f.t.Helper()
	c := new(checker)
	c.locks(f.readEffects(), nil)
	c.report(f.t)
}

const anyLock = `{exclusive: [desk]}`

// long is a lease that no test waits for.
const long = "LOCKSTEP_LOCKS__LEASE=60s"

func TestRunOfAKilledChildContinuesElsewhere(t *testing.T) {
	t.Parallel()
	f, _ := newPack(t, `
jobs:
  before: {command: HOLD, lock: `+anyLock+`}
  during: {command: HOLD, lock: `+anyLock+`}
  after: {command: HOLD, lock: `+anyLock+`}
`, long)
	f.startAll(3)
	for _, job := range []string{"before", "during", "after"} {
		f.soon(func(id string) time.Duration {
			run := f.enqueue(job, id)
			command := f.held(run)
			worker, _ := f.runner(run)
			took := f.takenOver(run, crashed, worker.killChild())
			t.Logf("killed %s its effect: the next attempt began after %s", job, took)
			if goesOn(command) {
				t.Errorf("killed %s its effect: the command continues", job)
			}
			return took
		})
	}
	f.checkOverlap()
}

// TestCrashDelayHoldsWhenTheParentEndsTheSession kills a child that runs a job with a crash_delay.
// The parent ends the session at once, and that must count as a crash.
func TestCrashDelayHoldsWhenTheParentEndsTheSession(t *testing.T) {
	t.Parallel()
	const delay = 3 * time.Second
	f, _ := newPack(t, `
jobs:
  during: {command: HOLD, lock: {exclusive: ["bill:1"], crash_delay: `+delay.String()+`}}
`, long)
	f.startAll(2)
	f.soon(func(id string) time.Duration {
		run := f.enqueue("during", id)
		f.held(run)
		worker, _ := f.runner(run)
		took := f.takenOver(run, crashed, worker.killChild())
		t.Logf("with a crash delay of %s the next attempt began after %s", delay, took)
		if took < delay-time.Second/2 {
			t.Errorf("the next attempt began after %s, want the crash delay of %s", took, delay)
		}
		return took
	})
	f.checkOverlap()
}

func TestAbandonedRunIsLostAtOnce(t *testing.T) {
	t.Parallel()
	f, _ := newPack(t, `jobs: {once: {command: HOLD, env: {AT: during}, on_crash: abandon}}`, long)
	f.startAll(2)
	f.soon(func(id string) time.Duration {
		run := f.enqueue("once", id)
		f.held(run)
		worker, _ := f.runner(run)
		killed := worker.killChild()
		got := f.await(run, "lost")
		took := time.Since(killed)
		t.Logf("it was lost within %s", took)
		if len(got.Attempts) != 1 || got.Crashes != 1 {
			t.Errorf("%+v, want one attempt", got)
		}
		return took
	})
	f.drain()
}

// TestUncertainBurialLeavesTheSessionToTheLease: a process that could not be killed may still act
// under the lock.
func TestUncertainBurialLeavesTheSessionToTheLease(t *testing.T) {
	t.Parallel()
	const lease = 4 * time.Second
	f, _ := newPack(t, `jobs: {during: {command: HOLD}}`, "LOCKSTEP_LOCKS__LEASE="+lease.String(), withHandlers+"=1", burialFault+"="+doubtfulBurial)
	f.startAll(2)
	run := f.enqueue("during", "x")
	f.held(run)
	worker, _ := f.runner(run)
	took := f.takenOver(run, crashed, worker.killChild())
	t.Logf("with a lease of %s the next attempt began after %s", lease, took)
	// the last renewal was at most a third of the lease ago
	if least := lease - lease/3; took < least-time.Second {
		t.Errorf("the next attempt began after %s; want the lease waited for", took)
	}
	f.checkOverlap()
	f.drain() // both parents have children that work
}

// TestTakeoverTime measures how long the run of a killed child is stuck.
func TestTakeoverTime(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes many kills")
	}
	t.Parallel()
	const kills = 12
	f, _ := newPack(t, `
jobs:
  during: {command: HOLD}
`, long)
	f.startAll(3)
	// On a busy machine, a stalled parent leaves the end of a session to the lease, and reports
	// that.
	const leaseDecides = "pass on when"
	var took []time.Duration
	byLease := 0
	for i := range kills {
		run := f.enqueue("during", strconv.Itoa(i))
		f.held(run)
		worker, at := f.runner(run)
		said := strings.Count(worker.stderr.String(), leaseDecides)
		after := f.takenOver(run, crashed, worker.killChild())
		if strings.Count(worker.stderr.String(), leaseDecides) > said {
			byLease++
		} else {
			took = append(took, after)
		}
		// the next crash would end the parent
		if strings.Count(worker.stderr.String(), "worker crashed") >= maxCrashes-1 {
			worker.signal(syscall.SIGTERM)
			worker.code(30 * time.Second)
			f.workers = slices.Delete(f.workers, at, at+1)
		}
		f.startAll(3 - len(f.workers))
	}
	f.checkOverlap()
	if byLease > kills/4 {
		t.Fatalf("%d of %d takeovers waited for the end of a lease", byLease, kills)
	}
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)*99/100]
	t.Logf("takeover of %d killed children, from the kill to the next attempt: p50 %s, p99 %s, most %s; %d waited for the end of a lease",
		kills, p50, p99, took[len(took)-1], byLease)
	// On a quiet machine, p50 is a fraction of a second.
	if p50 > 5*time.Second || p99 > 20*time.Second {
		t.Errorf("p50 %s, p99 %s; want at once, and never the lease of a minute", p50, p99)
	}
}

func TestLoneWorkerHeals(t *testing.T) {
	t.Parallel()
	f, _ := newPack(t, `jobs: {during: {command: HOLD}}`, long)
	f.startAll(1)
	f.soon(func(id string) time.Duration {
		run := f.enqueue("during", id)
		f.held(run)
		took := f.takenOver(run, crashed, f.workers[0].killChild())
		t.Logf("the next child began the next attempt after %s", took)
		return took
	})
	f.checkOverlap()
	f.drain()
}

// TestRunOfAKilledHostContinuesAfterTheLease: no process is left that could end the session.
func TestRunOfAKilledHostContinuesAfterTheLease(t *testing.T) {
	t.Parallel()
	for name, kill := range map[string]func(*process){
		"worker alone":    func(p *process) { p.killPair() }, // its guards survive
		"with all it has": func(p *process) { killTree(p.Process.Pid) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := newPack(t, `jobs: {during: {command: HOLD}}`, "LOCKSTEP_LOCKS__LEASE=2s")
			f.startAll(2)
			run := f.enqueue("during", "x")
			command := f.held(run)
			worker, _ := f.runner(run)
			killed := time.Now()
			kill(worker)
			took := f.takenOver(run, lostLease, killed)
			t.Logf("with a lease of 2s the next attempt began after %s", took)
			if took > 20*time.Second {
				t.Errorf("the next attempt began after %s, want the lease and a second", took)
			}
			if goesOn(command) {
				t.Error("the command continues")
			}
			f.checkOverlap()
		})
	}
}

// TestStoppedWorkerIsFenced stops a child for longer than its lease, and continues it after another
// worker has done its runs.
func TestStoppedWorkerIsFenced(t *testing.T) {
	t.Parallel()
	gate := filepath.Join(t.TempDir(), "gate")
	f, _ := newPack(t, `
jobs:
  during: {command: HOLD}
  stubborn: {handler: stubborn, args: {effects: EFFECTS, gate: `+gate+`}}
`, "LOCKSTEP_LOCKS__LEASE=2s", withHandlers+"=1")
	f.startAll(1)
	runs := []string{f.enqueue("during", "x"), f.enqueue("stubborn", "x")}
	command := f.held(runs[0])
	f.await(runs[1], "running")
	stopped := f.workers[0].worker()
	f.startAll(1)
	at := time.Now()
	if err := syscall.Kill(stopped, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for _, run := range runs {
		took := f.takenOver(run, lostLease, at)
		t.Logf("%s: with a lease of 2s the next attempt began after %s", run, took)
		if took > 20*time.Second {
			t.Errorf("%s: the next attempt began after %s, want the lease and a second", run, took)
		}
	}
	if goesOn(command) {
		t.Error("the stopped worker's command continues")
	}
	if err := syscall.Kill(stopped, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "the old attempt is canceled", func() bool {
		text, err := os.ReadFile(f.effects)
		return err == nil && strings.Contains(string(text), "canceled "+runs[1]+" 1 ")
	})
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "the old attempt's success is refused", func() bool {
		return strings.Contains(f.workers[0].stderr.String(), `"outcome":"succeeded","recorded":"fenced"`)
	})
	f.takenOver(runs[1], lostLease, at) // still the same outcome
	eventually(t, 30*time.Second, "both workers work", func() bool { return len(ask[[]workerJSON](t, f.env, "worker", "ls")) == 2 })
	if child := f.workers[0].worker(); child != stopped {
		t.Errorf("the parent has child %d, was %d: it must leave one alone that is only stopped", child, stopped)
	}
	f.drain()
}

func TestPanicInAGoroutineIsACrash(t *testing.T) {
	t.Parallel()
	f, _ := newPack(t, `jobs: {panics: {handler: panics, args: {effects: EFFECTS}}}`, long, withHandlers+"=1")
	f.startAll(2)
	run := f.enqueue("panics", "x")
	first := f.await(run, "succeeded").Attempts[0].Started
	took := f.takenOver(run, crashed, first)
	t.Logf("the next attempt began %s after the one that panicked", took)
	if took > 20*time.Second {
		t.Errorf("the next attempt began after %s; want at once", took)
	}
	f.checkOverlap()
	f.drain() // exits with 0, although one of them lost a child that exited with 2
}

// TestOrphansAreDeadBeforeTheSessionEnds: by the start of the next attempt, no process that a
// handler started does anything any more, even if it left every group and session it was in.
// Without a burial it does, and the checker finds it.
func TestOrphansAreDeadBeforeTheSessionEnds(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]string{"buried": "", "not buried": noBurial} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := newPack(t, `jobs: {spawns: {handler: spawns, args: {effects: EFFECTS}}}`, long, withHandlers+"=1", burialFault+"="+fault)
			f.startAll(2)
			run := f.enqueue("spawns", "x")
			eventually(t, 30*time.Second, "the orphan works", func() bool { return exists(f.effects) })
			worker, _ := f.runner(run)
			took := f.takenOver(run, crashed, worker.killChild())
			t.Logf("the next attempt began after %s", took)
			later := 0 // lines of the first attempt after a line of the second
			effects := f.readEffects()
			second := slices.IndexFunc(effects, func(e effect) bool { return e.attempt == 2 })
			for _, e := range effects[second:] {
				if e.attempt == 1 {
					later++
				}
			}
			switch {
			case fault == "" && later > 0:
				t.Errorf("the orphan has worked %d times after the next attempt had begun", later)
			case fault != "" && later == 0:
				t.Error("no problem was found without a burial: this test cannot fail")
			}
		})
	}
}

// TestPoisonJobFailsAlone: a job that kills its worker fails after three takeovers, and the runs
// that crashed with it the first time do not crash with it again.
func TestPoisonJobFailsAlone(t *testing.T) {
	t.Parallel()
	f, _ := newPack(t, `
worker: {concurrency: 4}
jobs:
  neighbour: {command: [sleep, "1"]}
  poison:
    max_crashes: 3
    command: [sh, -c, 'sleep 0.3; kill -9 $(sed -n "s/^PPid:[^0-9]*//p" /proc/$PPID/status); sleep 1000']
`, long)
	f.startAll(1) // so that all runs share one worker
	var neighbours []string
	for i := range 3 {
		neighbours = append(neighbours, f.enqueue("neighbour", strconv.Itoa(i)))
	}
	poison := f.enqueue("poison", "x")
	f.startAll(2)
	got := f.await(poison, "failed")
	if got.Crashes != 3 || len(got.Attempts) != 3 || got.Reason == nil || !strings.Contains(*got.Reason, "max_crashes") {
		t.Errorf("poison: %+v, want three crashes, and max_crashes as the reason", got)
	}
	if n := len(got.Attempts); n > 0 {
		t.Logf("it failed %s after its first attempt began", got.Finished.Sub(got.Attempts[0].Started))
	}
	for _, run := range neighbours {
		if got := f.await(run, "succeeded"); got.Crashes > 1 {
			t.Errorf("%s crashed %d times, want once at most", run, got.Crashes)
		}
	}
	f.drain()
}

func TestFiveCrashesInAMinuteEndTheParent(t *testing.T) {
	t.Parallel()
	f, _ := newPack(t, `jobs: {a: {command: ["true"]}}`, long)
	f.startAll(1)
	worker := f.workers[0]
	for i := range maxCrashes {
		eventually(t, 30*time.Second, "another child works", func() bool { return strings.Count(worker.stderr.String(), "worker is ready") == i+1 })
		worker.killChild()
	}
	if got := worker.code(20 * time.Second); got != exitFailed {
		t.Errorf("exit code %d, want %d", got, exitFailed)
	}
	if want := "the worker crashed 5 times within 1m, most recently: signal: killed"; !strings.Contains(worker.stderr.String(), want) {
		t.Errorf("stderr ends with %q, want %q", tail(worker.stderr.String()), want)
	}
	if up := ask[[]workerJSON](t, f.env, "worker", "ls"); len(up) != 0 {
		t.Errorf("workers %+v are left", up)
	}
}

// A service manager sends its signals to every process of a service.
func TestSignalThatComesBothWaysCountsOnce(t *testing.T) {
	t.Parallel()
	gate := filepath.Join(t.TempDir(), "gate")
	f, _ := newPack(t, `
worker: {drain_timeout: 5m}
jobs: {short: {command: [sh, -c, "until [ -e `+gate+` ]; do sleep 0.05; done"]}}
`, long)
	f.startAll(1)
	run := f.enqueue("short", "x")
	f.await(run, "running")
	worker := f.workers[0]
	if err := syscall.Kill(worker.worker(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	worker.signal(syscall.SIGTERM)
	eventually(t, 30*time.Second, "it drains", func() bool {
		w := ask[[]workerJSON](t, f.env, "worker", "ls")
		return len(w) == 1 && w[0].State == "draining"
	})
	write(t, gate, "")
	if got := worker.code(30 * time.Second); got != 0 {
		t.Errorf("exit code %d, want 0", got)
	}
	if got := f.show(run); got.State != "succeeded" || len(got.Attempts) != 1 {
		t.Errorf("%+v, want the run to have ended in peace", got)
	}
}

// TestOrphanedChildHandsBack: after the parent is killed, the worker counts as dead.
func TestOrphanedChildHandsBack(t *testing.T) {
	t.Parallel()
	f, _ := newPack(t, `
worker: {drain_timeout: 5m}
jobs: {during: {command: HOLD}}
`, long)
	f.startAll(2)
	run := f.enqueue("during", "x")
	command := f.held(run)
	worker, i := f.runner(run)
	child := worker.worker()
	worker.signal(syscall.SIGKILL)
	got := f.await(run, "succeeded")
	if got.Crashes != 0 || len(got.Attempts) != 2 || *got.Attempts[0].Outcome != "handed back" {
		t.Errorf("%+v, want it handed back, with nothing counted", got)
	}
	eventually(t, 20*time.Second, "the child has ended", func() bool { return !goesOn(child) })
	if goesOn(command) {
		t.Error("its command continues")
	}
	f.checkOverlap()
	f.workers = slices.Delete(f.workers, i, i+1)
	f.drain()
}

func TestCrashWhileDrainingIsAFailure(t *testing.T) {
	t.Parallel()
	f, _ := newPack(t, `
worker: {drain_timeout: 5m}
jobs: {during: {command: HOLD}}
`, long)
	f.startAll(1)
	f.soon(func(id string) time.Duration {
		run := f.enqueue("during", id)
		f.held(run)
		worker := f.workers[0]
		worker.signal(syscall.SIGTERM)
		eventually(t, 30*time.Second, "it drains", func() bool {
			up := ask[[]workerJSON](t, f.env, "worker", "ls")
			return len(up) == 1 && up[0].State == "draining"
		})
		killed := worker.killChild()
		if got := worker.code(30 * time.Second); got != exitFailed || !strings.Contains(worker.stderr.String(), "crashed during its drain") {
			t.Errorf("exit code %d, %s; want %d and why", got, tail(worker.stderr.String()), exitFailed)
		}
		f.workers = nil
		f.startAll(1)
		return f.takenOver(run, crashed, killed)
	})
}

// TestCrashDuringAnOutageHeals: until Redis is back, the parent can neither report the death nor
// end the session, and the next child cannot start. It still counts as a crash.
func TestCrashDuringAnOutageHeals(t *testing.T) {
	t.Parallel()
	f, server := newPack(t, `jobs: {during: {command: HOLD}}`, "LOCKSTEP_LOCKS__LEASE=4s")
	f.startAll(1)
	run := f.enqueue("during", "x")
	f.held(run)
	worker := f.workers[0]
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	killed := worker.killChild()
	eventually(t, 30*time.Second, "the next child finds no Redis", func() bool {
		return strings.Contains(worker.stderr.String(), "could not be ended") && strings.Contains(worker.stderr.String(), "no Redis answers")
	})
	f.healed(server, run, crashed, killed)
}

// TestCrashIsReportedWhenRedisAnswersAfterTheNextStart: Redis is unreachable while the parent
// reports a death, and back in time for the next child. The lease outlasts the wait by far.
func TestCrashIsReportedWhenRedisAnswersAfterTheNextStart(t *testing.T) {
	t.Parallel()
	const lease = 45 * time.Second
	f, server := newPack(t, `jobs: {during: {command: HOLD}}`, "LOCKSTEP_LOCKS__LEASE="+lease.String())
	f.startAll(1)
	run := f.enqueue("during", "x")
	f.held(run)
	worker := f.workers[0]
	dead := worker.worker()
	must(t, server.Pause())
	killed := worker.killChild()
	eventually(t, 30*time.Second, "the next child has started", func() bool {
		next := worker.worker()
		return next != 0 && next != dead && strings.Contains(worker.stderr.String(), "could not be ended")
	})
	must(t, server.Resume())
	took := f.takenOver(run, crashed, killed)
	t.Logf("with a lease of %s the next attempt began %s after the crash", lease, took)
	// the last renewal was at most a third of the lease before the crash
	if most := lease - lease/3; took > most {
		t.Errorf("the next attempt began after %s; want within %s, before the lease has ended", took, most)
	}
	f.checkOverlap()
	f.drain()
}

// A child that has lost its lease often had many sessions. Only the newest can have holds.
func TestReportOfACrashBeginsWithTheNewestSession(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	proxy := server.Proxy(t)
	client, err := locks.Open(t.Context(), server.Client(t), locks.Options{Namespace: "ns", Lease: time.Minute})
	must(t, err)
	t.Cleanup(func() { _ = client.Close(context.WithoutCancel(t.Context())) })
	_, err = client.Acquire(t.Context(), locks.Exclusive("desk"))
	must(t, err)

	const delay = 15 * time.Millisecond
	proxy.Set(redistest.Faults{RequestDelay: delay, ReplyDelay: delay})
	dead := death{redis: configs.Redis{URL: proxy.URL(), Namespace: "ns"}, alone: true}
	for i := range 100 {
		dead.sessions = append(dead.sessions, locks.SessionID(fmt.Sprintf("old-%d", i)))
	}
	dead.sessions = append(dead.sessions, client.Session())
	reported := dead.report(t.Context(), time.Second)
	next, err := locks.Open(t.Context(), server.Client(t), locks.Options{Namespace: "ns"})
	must(t, err)
	t.Cleanup(func() { must(t, next.Close(context.WithoutCancel(t.Context()))) })
	if _, err := next.Acquire(t.Context(), locks.Exclusive("desk"), locks.Wait(0)); err != nil {
		t.Errorf("within the time for 10 of 101 sessions (%v), the lock of the newest was not freed: %v", reported, err)
	}

	var p parent
	c := new(child)
	for _, id := range dead.sessions {
		p.note(c, news{Session: id})
	}
	if len(c.sessions) > 10 || c.sessions[len(c.sessions)-1] != client.Session() {
		t.Errorf("the parent remembers %v, want the last few sessions", c.sessions)
	}
}

// TestRefusedConfigAndACrash: the worker's config died with it, and the files hold one that was
// refused. Whether the fault lies in the files or in what is declared in Redis, the worker comes
// back once it is fixed.
func TestRefusedConfigAndACrash(t *testing.T) {
	t.Parallel()
	const good = "permits: {api: {limit: 1}}\njobs: {a: {command: [\"true\"]}}\n"
	f, _ := newPack(t, good, long)
	f.startAll(1)
	worker := f.workers[0]
	config := value(f.env, "LOCKSTEP_CONFIG")
	for i, bad := range []string{"jobs: {a: {comand: [a]}}\n", strings.Replace(good, "limit: 1", "limit: 2", 1)} {
		write(t, config, bad)
		if stdout, stderr, code := runTool(t, f.env, "config", "reload"); code != exitConfig {
			t.Fatalf("config reload exits with %d: %q, %q; want %d", code, stdout, stderr, exitConfig)
		}
		worker.killChild()
		eventually(t, 30*time.Second, "the parent logs the cause", func() bool {
			said := worker.stderr.String()
			return strings.Count(said, "no worker is running after a crash") > i && strings.Contains(said, "the config has errors, and the previous config was lost")
		})
		write(t, config, good)
		worker.signal(syscall.SIGHUP) // so that the parent does not wait
		eventually(t, 60*time.Second, "another child works", func() bool {
			up := ask[[]workerJSON](t, f.env, "worker", "ls")
			return len(up) == 1 && up[0].PID == worker.worker() && strings.Count(worker.stderr.String(), "worker is ready") == i+2
		})
	}
	f.drain()
}

// TestOtherChildrenAreLeftAlone: a script starts a process and then becomes the parent. That
// process is not an orphan of the worker.
func TestOtherChildrenAreLeftAlone(t *testing.T) {
	t.Parallel()
	f, _ := newPack(t, `jobs: {during: {command: HOLD}}`, "LOCKSTEP_LOCKS__LEASE=15s")
	companion := filepath.Join(t.TempDir(), "pid")
	script := writeFile(t, "entry.sh", `sleep 1000 & echo $! > `+companion+`; exec "$@"`)
	f.workers = append(f.workers, launchProgram(t, "sh", f.env, script, toolPath, "start"))
	f.startAll(0)
	run := f.enqueue("during", "x")
	f.held(run)
	t.Logf("with a lease of 15s the next attempt began after %s", f.takenOver(run, crashed, f.workers[0].killChild()))
	f.checkOverlap()
	text, err := os.ReadFile(companion)
	if err != nil {
		t.Fatal(err)
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || !goesOn(pid) {
		t.Errorf("the process that was there before was killed (%v)", err)
	} else if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	f.drain()
}

func TestChildIsNotStartedByHand(t *testing.T) {
	t.Parallel()
	_, stderr, code := runTool(t, toolEnv(t), childWord, "start")
	if code != exitUsage || !strings.Contains(stderr, "by hand: lockstep start") {
		t.Errorf("exit code %d, %q; want %d and how to start a worker", code, stderr, exitUsage)
	}
}
