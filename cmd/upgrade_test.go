package cmd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/locks/space"
	"lockstep/scheduler/admin"
)

// Upgrades: the program of the last release and this one share a Redis. A fleet of the last release
// is replaced by this build worker by worker, then back, then again, while workers are killed and
// runs are requested. `make upgrade` does it for a minute in each direction.

// lastReleaseFile has the commit of the last release and the format that it writes. After a release
// it is updated: see "Releasing" in the README.
const lastReleaseFile = "release/last"

// release is the program of an earlier release.
type release struct {
	commit  string
	program string
	format  int // 0: not known
	// leaves reports whether it leaves a job with a key that it does not know to newer builds. The
	// first builds with a format number execute the job without that key.
	leaves bool
}

// readLastRelease reads lastReleaseFile. LOCKSTEP_UPGRADE_FROM names another commit instead.
func readLastRelease(t *testing.T) release {
	t.Helper()
	text, err := os.ReadFile(lastReleaseFile)
	must(t, err)
	var r release
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 2 && !strings.HasPrefix(line, "#") {
			r.commit = fields[0]
			r.format, err = strconv.Atoi(fields[1])
			must(t, err)
		}
	}
	if from := os.Getenv("LOCKSTEP_UPGRADE_FROM"); from != "" {
		r = release{commit: from}
	}
	if r.commit == "" {
		t.Fatalf("%s names no commit", lastReleaseFile)
	}
	return r
}

// buildLastRelease builds the last release from the history of this checkout, which it does not
// change. Where the history is missing, the test is skipped.
func buildLastRelease(t *testing.T) release {
	t.Helper()
	r := readLastRelease(t)
	folder := t.TempDir()
	var said bytes.Buffer
	archive := exec.Command("git", "-C", "..", "archive", "--format=tar", "--output="+filepath.Join(folder, "source.tar"), r.commit)
	archive.Stderr = &said
	if err := archive.Run(); err != nil {
		t.Skipf("this checkout lacks the commit of the last release, %s, so nothing can be upgraded from it (a shallow clone, or no git): %v %s",
			r.commit, err, strings.TrimSpace(said.String()))
	}
	source := filepath.Join(folder, "source")
	must(t, os.Mkdir(source, 0o700))
	if out, err := exec.Command("tar", "-xf", filepath.Join(folder, "source.tar"), "-C", source).CombinedOutput(); err != nil {
		t.Fatalf("unpack the last release: %v\n%s", err, out)
	}
	if text, err := os.ReadFile(filepath.Join(source, "jobs", "definition.go")); err == nil {
		r.leaves = bytes.Contains(text, []byte("UnknownKeysError"))
	}
	// With -trimpath, the cache of builds does not depend on the folder.
	r.program = filepath.Join(folder, "lockstep")
	began := time.Now()
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", r.program, "./cmd/lockstep")
	build.Dir, build.Env = source, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the last release, %s: %v\n%s", r.commit, err, out)
	}
	t.Logf("built the last release, %.12s, in %s", r.commit, time.Since(began).Round(time.Millisecond))
	return r
}

// rollout is a fleet in which workers of another build replace the others.
type rollout struct {
	*fleet
	last   release
	config string // of this build's workers: it also has a job with keys that older builds lack
	random *rand.Rand
	r      requester
	newer  []bool // which of f.workers are of this build
	asked  []string
	told   []string // the runs among them that send messages
	killed map[string]int
	n      int  // requests so far
	raised bool // the last release cannot read the format any more
}

// rolloutSize is the number of workers, each of which is replaced in its turn.
const rolloutSize = 3

// upgradeJobs are jobs that both builds know.
func upgradeJobs() []spec {
	skips := []string{"skipped"}
	return []spec{
		{name: "beat", trigger: "every: 1s", work: "sleep 0.1", more: "overlap: skip", ends: skips},
		{name: "queue", trigger: `schedule: "* * * * * *"`, work: "sleep 0.2", more: "overlap: queue"},
		{name: "pair", trigger: "every: 1s", work: "sleep 1.2", more: "overlap: queue, concurrency: 2", modes: map[string]int{"job:pair": 2}},
		{name: "desk-one", trigger: "every: 2s", work: "sleep 0.3", more: "overlap: queue, lock: {exclusive: [desk]}"},
		{
			name: "desk-reader", trigger: "every: 2s", work: "sleep 0.3", more: "overlap: allow, lock: {shared: [desk]}",
			modes: map[string]int{"desk": readers},
		},
		{name: "gate", trigger: "every: 2s", work: "sleep 0.5", more: "overlap: allow, lock: {permits: {gate: 1}}", modes: map[string]int{"gate": 2}},
		{name: "once", trigger: "every: 3s", work: "sleep 1", more: "overlap: queue, on_crash: abandon", abandon: true, ends: []string{"lost"}},
		{
			name: "flaky", trigger: "every: 3s", work: "[ $LOCKSTEP_ATTEMPT -ge 3 ] || exit 1",
			more: "overlap: queue, retry: {max: 2, backoff: fixed, initial: 200ms}", retries: 2,
		},
		{
			name: "broken", trigger: "every: 4s", work: "exit 1", more: "overlap: queue, retry: {max: 1, backoff: fixed, initial: 200ms}", retries: 1,
			ends: []string{"failed"},
		},
		{name: "settle", work: "sleep 0.2", more: `lock: {exclusive: ["bill:{bills[*]}"], shared: [rates]}, args: {bills: []}`, modes: map[string]int{"rates": readers}},
		{name: "waits", work: "sleep 0.1", more: "lock: {exclusive: [till]}", ends: []string{"canceled"}},
		{name: "later", work: "sleep 0.1"},
		{name: "aside", work: "sleep 0.1", queue: "aside"},
		{
			name: "patient", work: "[ $LOCKSTEP_ATTEMPT -ge 2 ] || exit 1", more: "retry: {max: 1, backoff: fixed, initial: 10s}", retries: 1,
		},
	}
}

func newRollout(t *testing.T, last release, seed uint64, hook *receiver) *rollout {
	t.Helper()
	// A lease that outlives the stalls of a busy machine.
	f := newFleet(t, nil, upgradeJobs(), "LOCKSTEP_LOCKS__LEASE=4s", "LOCKSTEP_WORKER__DRAIN_TIMEOUT=3s")
	o := &rollout{fleet: f, last: last, random: rand.New(rand.NewPCG(seed, 20)), killed: make(map[string]int)}
	text, err := os.ReadFile(f.config)
	must(t, err)
	o.config = writeFile(t, "newer.yaml", strings.Replace(string(text), "jobs:\n", fmt.Sprintf(`notify: {hook: {webhook: "%s", secret_file: %s, on: [failed]}}
jobs:
  told: {notify: [hook], retry: {max: 0}, command: ["false"]}
`, hook.url, hook.key), 1))
	f.jobs["told"] = spec{name: "told", ends: []string{"failed"}}
	conn := o.connection()
	o.r = requester{conn, admin.NewOperator(conn.ledger, conn.queue, conn.pusher.Push, nil, nil)}
	for range rolloutSize {
		o.workers, o.newer = append(o.workers, o.launch(false)), append(o.newer, false)
	}
	o.settled()
	return o
}

// launch starts a worker of this build or of the last release.
func (o *rollout) launch(newer bool) *process {
	o.t.Helper()
	if newer {
		return launchProgram(o.t, toolPath, append(slices.Clone(o.env), "LOCKSTEP_CONFIG="+o.config), "start")
	}
	return launchProgram(o.t, o.last.program, o.env, "start")
}

// older runs a command of the last release, which must succeed.
func (o *rollout) older(args ...string) {
	o.t.Helper()
	p := launchProgram(o.t, o.last.program, o.env, args...)
	p.told = true
	if code := p.code(time.Minute); code != 0 {
		o.t.Fatalf("%s of the last release: exit code %d: %s", p.name, code, p.stderr)
	}
}

// ask requests a run by this build, and every fourth one by the last release, while that can read
// the format.
func (o *rollout) ask(job string, args any) string {
	o.t.Helper()
	o.n++
	id, text := strconv.Itoa(o.n), json.RawMessage(nil)
	if args != nil {
		var err error
		text, err = json.Marshal(args)
		must(o.t, err)
	}
	if o.n%4 == 0 && !o.raised && (job != "told" || o.last.leaves) {
		line := []string{"enqueue", job, "--id", id}
		if text != nil {
			line = append(line, "--args", string(text))
		}
		o.older(line...)
	} else {
		ctx, cancel := context.WithTimeout(o.t.Context(), time.Minute)
		defer cancel()
		if _, answered := o.r.ask(ctx, job, id, text); !answered {
			o.t.Fatalf("the request for %s was not answered", job)
		}
	}
	o.asked = append(o.asked, job+"#"+id)
	return job + "#" + id
}

// askSome requests runs that lock bundles which overlap, and some that fail with a message.
func (o *rollout) askSome() {
	o.t.Helper()
	o.ask("settle", map[string]any{"bills": o.random.Perm(5)[:1+o.random.IntN(3)]})
	switch {
	case o.last.leaves && slices.Contains(o.newer, true):
		o.told = append(o.told, o.ask("told", nil))
	case !slices.Contains(o.newer, false):
		run := o.ask("told", nil)
		o.told = append(o.told, run)
		o.await(run, "failed") // before a worker of the last release comes
	}
}

// replace has a worker of this build, or of the last release, take the place of another one.
func (o *rollout) replace(i int, newer bool) {
	o.t.Helper()
	next := o.launch(newer)
	old := o.workers[i]
	if !old.hasEnded() && strings.Contains(old.stderr.String(), "worker is ready") {
		old.signal(syscall.SIGTERM)
		if code := old.code(time.Minute); code != 0 {
			o.t.Errorf("worker %d, newer: %v, exits with %d when it is drained: %s", i, o.newer[i], code, tail(old.stderr.String()))
		}
	} else {
		old.killAll()
	}
	o.workers[i], o.newer[i] = next, newer
}

// tend replaces workers that have exited, after a kill or after too many crashes.
func (o *rollout) tend() {
	o.t.Helper()
	for i, w := range o.workers {
		if !w.hasEnded() {
			continue
		}
		said := w.stderr.String()
		if code := w.code(time.Second); code != -1 && !(code == exitFailed && strings.Contains(said, "crashed 5 times within 1m")) {
			o.t.Errorf("worker %d, newer: %v, has ended with %d: %s", i, o.newer[i], code, tail(said))
		}
		o.workers[i] = o.launch(o.newer[i])
	}
}

// kill kills a random worker, or a part of it, and waits until all workers are up again.
func (o *rollout) kill() {
	o.t.Helper()
	i := o.random.IntN(len(o.workers))
	w := o.workers[i]
	how := []string{"child", "child", "parent", "tree"}[o.random.IntN(4)]
	switch how {
	case "child":
		if child := w.worker(); child != 0 {
			_ = syscall.Kill(child, syscall.SIGKILL) // an error: it has ended just now
		}
	case "parent":
		_ = w.Process.Kill()
		w.code(time.Minute)
	case "tree":
		w.killAll()
		w.code(time.Minute)
	}
	o.killed[fmt.Sprintf("%s of a worker, newer: %v", how, o.newer[i])]++
	o.tend()
	o.settled()
}

// settled waits until all workers are up, and starts those again that have crashed too often.
func (o *rollout) settled() {
	o.t.Helper()
	eventually(o.t, time.Minute, "all workers are up", func() bool {
		o.tend()
		// not by the command line, since each command is a process
		list, err := o.r.conn.reader.Workers(o.t.Context())
		must(o.t, err)
		up := as[[]workerJSON](o.t, list)
		return !slices.ContainsFunc(o.workers, func(p *process) bool {
			return !slices.ContainsFunc(up, func(w workerJSON) bool { return w.PID == p.worker() })
		})
	})
}

// roll replaces all workers, one after the other, for so long, while workers are killed and runs
// are requested.
func (o *rollout) roll(newer bool, total time.Duration) {
	o.t.Helper()
	began := time.Now()
	for i, done := 0, 0; done < len(o.workers) || time.Since(began) < total; i++ {
		if share := time.Duration(done+1) * total / time.Duration(len(o.workers)+1); done < len(o.workers) && time.Since(began) >= share {
			o.replace(done, newer)
			done++
			o.settled()
		}
		o.askSome()
		if i%2 == 1 {
			o.kill()
		}
		pause(o.t.Context(), min(time.Second, max(200*time.Millisecond, total/8)))
	}
}

// written returns the format that the space is written in.
func (o *rollout) written() int {
	o.t.Helper()
	formats, err := o.r.conn.ledger.Space().Formats(o.t.Context())
	must(o.t, err)
	return formats.Written
}

// upgradeTime is how long each direction takes, and the seed of its kills.
func upgradeTime(t *testing.T) (total time.Duration, seed uint64) {
	t.Helper()
	total, seed = 3*time.Second, rand.Uint64N(1_000_000)
	var err error
	if asked := os.Getenv("LOCKSTEP_UPGRADE_FOR"); asked != "" {
		total, err = time.ParseDuration(asked)
		must(t, err)
	}
	if asked := os.Getenv("LOCKSTEP_UPGRADE_SEED"); asked != "" {
		seed, err = strconv.ParseUint(asked, 10, 64)
		must(t, err)
	}
	return total, seed
}

// TestFaultLastReleaseBesideThisBuild rolls this build out over the last release, and back, and out
// again, with kills in all phases. No tick is lost or doubled, and each request becomes one run.
func TestFaultLastReleaseBesideThisBuild(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the last release")
	}
	t.Parallel()
	last := buildLastRelease(t)
	total, seed := upgradeTime(t)
	t.Logf("%s in each direction, seed %d", total, seed)
	hook := newReceiver(t)
	from := time.Now()
	o := newRollout(t, last, seed, hook)
	before := o.written()
	if last.format != 0 && before != last.format {
		t.Errorf("the last release writes format %d, and %s says %d", before, lastReleaseFile, last.format)
	}

	// A session of the last release keeps the way back open. The runs that its lock keeps waiting,
	// those of a paused queue, a retry and a scheduled run survive both directions.
	anchor := launchProgram(t, last.program, append(slices.Clone(o.env), "LOCKSTEP_LOCKS__LEASE=60s"), "lock", "exec", "--exclusive", "till", "--", "sleep", "100000")
	eventually(t, time.Minute, "the lock is held", func() bool {
		return slices.ContainsFunc(ask[[]struct{ Lock string }](t, o.env, "lock", "ls"), func(l struct{ Lock string }) bool { return l.Lock == "till" })
	})
	eventually(t, time.Minute, "the jobs are registered", func() bool {
		_, err := o.r.conn.ledger.Job(t.Context(), "patient")
		return err == nil
	})
	o.older("queue", "pause", "aside")
	var kept []string
	for range 4 {
		kept = append(kept, o.ask("waits", nil), o.ask("aside", nil), o.ask("patient", nil))
	}
	o.older("enqueue", "later", "--id", "in", "--in", (total + 2*time.Second).String())
	o.asked = append(o.asked, "later#in")
	outstanding := func(when string) {
		t.Helper()
		t.Logf("%s after %s", when, time.Since(from).Round(time.Millisecond))
		for _, run := range o.runs() {
			if slices.Contains(kept, run.ID) && (run.Job == "waits" || run.Job == "aside") && (run.final() || len(run.Attempts) > 0) {
				t.Errorf("%s: %s is %s, and its lock is held or its queue is paused", when, run.ID, run.State)
			}
		}
		// The last release reads what this build has written.
		for _, line := range []string{"run ls", "run show " + kept[0], "job ls", "job history beat", "lock ls", "lock waits", "worker ls", "queue ls"} {
			o.older(strings.Fields(line)...)
		}
		if got := o.written(); got != before {
			t.Errorf("%s: format %d is written, want %d while a session of the last release lives", when, got, before)
		}
	}
	cancel := func(run string) { o.older("run", "cancel", run, "--yes", "--reason", "a test") }

	o.roll(true, total)
	outstanding("rolled out")
	older, newer := kept[0], o.ask("waits", nil)
	for range 2 {
		kept = append(kept, o.ask("waits", nil), o.ask("aside", nil), o.ask("patient", nil))
	}
	cancel(newer)
	o.roll(false, total)
	outstanding("rolled back")
	cancel(older)
	o.older("queue", "resume", "aside")
	o.roll(true, total/4)

	anchor.signal(syscall.SIGTERM)
	anchor.code(time.Minute)
	eventually(t, time.Minute, "the newest format is written", func() bool { return o.written() == space.Format })
	o.raised = before != space.Format
	o.askSome()
	o.kill()
	if o.raised {
		p := launchProgram(t, last.program, o.env, "start")
		p.told = true
		if code := p.code(time.Minute); code != exitUsage || !strings.Contains(p.stderr.String(), fmt.Sprintf("use a build that knows format %d", space.Format)) {
			t.Errorf("a worker of the last release exits with %d: %s", code, p.stderr)
		}
	}
	eventually(t, 2*time.Minute, "the requested runs have ended", func() bool {
		o.tend()
		list, err := o.r.conn.reader.Runs(t.Context(), admin.RunFilter{})
		must(t, err)
		return !slices.ContainsFunc(as[[]runJSON](t, list), func(r runJSON) bool { return slices.Contains(o.asked, r.ID) && !r.final() })
	})
	var want []string
	defer func() {
		if t.Failed() {
			t.Logf("runs with messages: %q\nmessages of the ends in the ledger: %q\nthe webhook got: %q", o.told, want, hook.ids())
		}
	}()
	eventually(t, 2*time.Minute, "the webhook has got all ends", func() bool {
		want = o.ends(o.r.conn, "told")
		return len(want) == len(o.told) && slices.Equal(hook.ids(), want)
	})
	for _, run := range []string{older, newer} {
		if got := o.show(run).State; got != "canceled" {
			t.Errorf("%s is %s, want it canceled by the last release", run, got)
		}
	}
	to := time.Now()
	o.drain()
	o.finish()
	h := o.read(from, to)
	t.Logf("ended after %s", time.Since(from).Round(time.Millisecond))
	h.asked, h.slack = o.asked, 30*time.Second
	o.check(h)
	ticks := 0
	for _, lines := range h.ticks {
		ticks += len(lines)
	}
	t.Logf("%d ticks, %d requests, %d runs, %d messages; kills: %v", ticks, len(o.asked), len(h.runs), len(want), o.killed)
}
