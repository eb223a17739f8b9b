package cmd

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Fleets of workers that differ: in their configs, their handlers or the queues that they serve.

// startWith adds a worker with its own config and these variables.
func (f *fleet) startWith(config string, more ...string) *process {
	f.t.Helper()
	env := slices.Concat(f.env, []string{"LOCKSTEP_CONFIG=" + writeFile(f.t, "lockstep.yaml", config)}, more)
	p := launch(f.t, env, "start")
	eventually(f.t, 30*time.Second, "the worker has registered its jobs", func() bool { return strings.Contains(p.stderr.String(), "worker is ready") })
	return p
}

// outcomes counts the ticks of a job by outcome, and returns the longest time between a tick and
// its decision.
func (f *fleet) outcomes(job string) (count map[string]int, slowest time.Duration) {
	f.t.Helper()
	count = make(map[string]int)
	for _, tick := range ask[[]tickJSON](f.t, f.env, "job", "history", job) {
		count[tick.Outcome]++
		slowest = max(slowest, tick.Decided.Sub(tick.Tick))
	}
	return count, slowest
}

// A worker with a newer definition comes and leaves: it drains, or its child crashes while its
// parent is told to end. The older definition decides again, and no tick is skipped or missed.
func TestFaultCanaryLeaves(t *testing.T) {
	t.Parallel()
	t.Run("drained", func(t *testing.T) {
		t.Parallel()
		testCanaryLeaves(t, func(canary *process) { canary.signal(syscall.SIGTERM) })
	})
	t.Run("crashed", func(t *testing.T) {
		t.Parallel()
		testCanaryLeaves(t, func(canary *process) {
			canary.killChild()
			canary.signal(syscall.SIGTERM)
		})
	})
}

func testCanaryLeaves(t *testing.T, leave func(canary *process)) {
	t.Helper()
	// It takes seconds. The definition of a host that is lost stays for 45 s.
	const bound = 25 * time.Second
	f := newFleet(t, nil, nil)
	const config = `jobs: {tick: {every: 1s, overlap: queue, description: %s, command: ["true"]}}`
	f.startWith(fmt.Sprintf(config, "old"))
	eventually(t, 30*time.Second, "the job is registered", func() bool {
		_, _, code := runTool(t, f.env, "job", "show", "tick")
		return code == 0
	})
	ran := func(more int) {
		t.Helper()
		before, _ := f.outcomes("tick")
		eventually(t, 30*time.Second, "more ticks", func() bool {
			now, _ := f.outcomes("tick")
			return now["succeeded"] >= before["succeeded"]+more
		})
	}
	ran(2)
	active := func() string { return ask[struct{ Description string }](t, f.env, "job", "show", "tick").Description }
	canary := f.startWith(fmt.Sprintf(config, "new"))
	eventually(t, 30*time.Second, "the newer definition is active", func() bool { return active() == "new" })
	ran(2)
	began := time.Now()
	leave(canary)
	eventually(t, 30*time.Second, "the older definition is active", func() bool { return active() == "old" })
	took := time.Since(began)
	ran(3)
	count, slowest := f.outcomes("tick")
	t.Logf("the older definition was active %s after the canary was struck; ticks %v, the slowest decided after %s", took, count, slowest)
	if took > bound || slowest > bound {
		t.Errorf("it took %s until the older definition was active, and %s until a tick was decided, want %s at most", took, slowest, bound)
	}
	if count["skipped"]+count["missed"]+count["failed"] > 0 {
		t.Errorf("ticks %v, want all to have run", count)
	}
}

// One of five workers has the handler of a job. Its runs start there at once, with one attempt
// each. Without that worker, they stay due, with the reason.
func TestFaultOneWorkerHasTheHandler(t *testing.T) {
	t.Parallel()
	f := newFleet(t, nil, nil)
	const config = `jobs: {bill: {handler: nothing, lock: {exclusive: [till]}}, other: {command: ["true"]}}`
	write(t, f.config, config)
	for range 4 {
		f.startWith(config)
	}
	first := f.enqueue("bill", "early")
	eventually(t, 30*time.Second, "the run has the reason that no worker has its handler", func() bool {
		waits := ask[struct {
			State      string
			Attempts   []attemptJSON
			WaitingFor *struct{ Reason, Text string } `json:"waiting_for"`
		}](t, f.env, "run", "show", first)
		return waits.State == "due" && len(waits.Attempts) == 0 && waits.WaitingFor != nil && waits.WaitingFor.Reason == "handler" &&
			waits.WaitingFor.Text == "no worker has handler nothing, of those that serve its queue default"
	})
	f.await(f.enqueue("other", "x"), "succeeded")
	began := time.Now()
	f.startWith(config, withHandlers+"=1")
	f.await(first, "succeeded")
	t.Logf("the run had ended %s after a worker with its handler was started", time.Since(began))

	const n = 20
	for i := range n {
		f.enqueue("bill", fmt.Sprint(i))
	}
	var delays []time.Duration
	for i := range n {
		id := fmt.Sprintf("bill#%d", i)
		f.await(id, "succeeded")
		run := f.show(id)
		if len(run.Attempts) != 1 {
			t.Errorf("%s has %d attempts, want 1", id, len(run.Attempts))
		}
		delays = append(delays, run.Attempts[0].Started.Sub(run.Created))
	}
	slices.Sort(delays)
	t.Logf("%d runs started %s after they were asked for, in the median, and %s at most", n, delays[n/2], delays[n-1])
	if delays[n/2] > 3*time.Second || delays[n-1] > 20*time.Second {
		t.Errorf("runs started up to %s after they were asked for, want about a second: %s", delays[n-1], delays)
	}
}

// A queue is renamed while a run is due in it. The run moves to the job's new queue, and the ticks
// continue.
func TestFaultRenamedQueue(t *testing.T) {
	t.Parallel()
	f := newFleet(t, nil, nil)
	const config = `
worker: {queues: {%[1]s: 1}}
jobs: {tick: {every: 1s, overlap: skip, on_missed: all, queue: %[1]s, command: ["true"]}}`
	old := f.startWith(fmt.Sprintf(config, "before"))
	eventually(t, 30*time.Second, "a tick has run", func() bool { count, _ := f.outcomes("tick"); return count["succeeded"] > 0 })
	if _, stderr, code := runTool(t, f.env, "queue", "pause", "before"); code != 0 {
		t.Fatal(stderr)
	}
	var stuck string
	eventually(t, 30*time.Second, "a run is due in the old queue", func() bool {
		runs := ask[[]runJSON](t, f.env, "run", "ls", "--state", "due")
		if len(runs) > 0 {
			stuck = runs[0].ID
		}
		return stuck != ""
	})
	old.signal(syscall.SIGTERM)
	if code := old.code(30 * time.Second); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	began := time.Now()
	f.startWith(fmt.Sprintf(config, "after"))
	f.await(stuck, "succeeded")
	t.Logf("a run of the renamed queue had run %s after the start of the new worker", time.Since(began))
	before, _ := f.outcomes("tick")
	eventually(t, 30*time.Second, "more ticks run", func() bool {
		now, _ := f.outcomes("tick")
		return now["succeeded"] >= before["succeeded"]+2
	})
}

// A removed job is shown as removed and can be forgotten; then nothing of it is left.
func TestRemovedJobIsShownAndForgotten(t *testing.T) {
	t.Parallel()
	f := newFleet(t, nil, nil)
	old := f.startWith(`jobs: {gone: {every: 1h, command: ["true"]}, stays: {command: ["true"]}}`)
	f.startWith(`jobs: {stays: {command: ["true"]}}`)
	if _, _, code := runTool(t, f.env, "job", "forget", "gone", "--yes", "--reason", "a test"); code != exitUsage {
		t.Errorf("job forget of a job that is carried: exit code %d, want %d", code, exitUsage)
	}
	old.signal(syscall.SIGTERM)
	if code := old.code(30 * time.Second); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	type job struct{ Job string }
	noted := func() []job { return ask[[]job](t, f.env, "job", "ls", "--note", "no worker carries it") }
	eventually(t, time.Minute, "the job shows that no worker carries it", func() bool { return slices.Equal(noted(), []job{{"gone"}}) })
	if stdout, stderr, code := runTool(t, f.env, "job", "forget", "gone", "--yes", "--reason", "a test"); code != 0 {
		t.Fatalf("job forget: %s%s", stdout, stderr)
	}
	if jobs := ask[[]job](t, f.env, "job", "ls"); !slices.Equal(jobs, []job{{"stays"}}) {
		t.Errorf("jobs %v, want the other one alone", jobs)
	}
}
