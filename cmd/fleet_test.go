package cmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/configs"
	"lockstep/locks/redistest"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

// A fleet consists of whole workers as processes, on a real Redis of their own. Their commands
// append to one file, the effect log; the order of its lines is the order of events. At the end,
// the log and the ledger must agree, which the checker verifies.

// spec is a job of a fleet: its text in the config, and the facts that the checker needs.
type spec struct {
	name    string
	trigger string // `every: 3s` or `schedule: "..."`; "": it runs when enqueued
	work    string // the part of its command between its two effects; "" if the job has no effects
	more    string // the rest of its definition, as in {...}

	ends    []string // the outcomes besides success that its ticks and runs may have
	retries int      // retry.max
	crashes int      // max_crashes; 0: so many that it does not matter
	abandon bool     // on_crash
	// Of its locks: readers, or how many may hold it at a time; other locks are exclusive.
	modes map[string]int
	turns []turn // later changes of its trigger, in order

	handler string // the Go handler that works instead of a command
	queue   string // "": default
	only    string // the name of the worker that alone has the handler; "": any worker may run it
	apart   bool   // it has too many runs to list them with the others, and its own effect log
}

// readers is the mode of a shared lock.
const readers = -1

// turn is a change of a job's trigger.
type turn struct {
	trigger string
	after   time.Time // the earliest time at which workers could know it
	// The workers with the trigger of the turn before have left, and the others still had this one.
	returns bool
}

// now returns the job's latest trigger.
func (s spec) now() string {
	if n := len(s.turns); n > 0 {
		return s.turns[n-1].trigger
	}
	return s.trigger
}

// fleet is a group of workers that share jobs.
type fleet struct {
	t       *testing.T
	jobs    map[string]spec
	env     []string
	config  string
	effects string
	server  *redistest.Server
	workers []*process

	settings string // more lines of the config
}

// newFleet makes a fleet without workers yet. It has its own Redis with these lines of
// configuration.
func newFleet(t *testing.T, redis []string, jobs []spec, more ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, jobs: make(map[string]spec), server: redistest.New(t, redistest.Options{Config: redis})}
	f.effects = filepath.Join(t.TempDir(), "effects")
	f.config = filepath.Join(t.TempDir(), "lockstep.yaml")
	f.env = toolEnv(t, append([]string{"REDIS_URL=" + f.server.URL(), "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:0", "LOCKSTEP_CONFIG=" + f.config}, more...)...)
	f.configure(jobs)
	return f
}

// effectLine is a shell function that appends a line to the effect log: the event, the run, the
// attempt, its token, the time since the boot of this machine, and the locks that are held.
const effectLine = `e() { read up rest < /proc/uptime; echo "$1 $LOCKSTEP_RUN_ID $LOCKSTEP_ATTEMPT $LOCKSTEP_TOKEN $up $LOCKSTEP_LOCKS" >> %s; }`

// configure writes the config with these jobs. The checker still knows earlier ones.
func (f *fleet) configure(jobs []spec) {
	f.t.Helper()
	for _, job := range jobs {
		f.jobs[job.name] = job
	}
	replace(f.t, f.config, f.text(jobs)) // a worker may start at this moment
}

// text returns the config with these jobs.
func (f *fleet) text(jobs []spec) string {
	queues := []string{"default: 3"} // a quarter of the fetches look into another queue first
	for _, job := range jobs {
		if job.queue != "" {
			queues = append(queues, job.queue+": 1")
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "worker: {drain_timeout: 20s, queues: {%s}}\n", strings.Join(queues, ", "))
	b.WriteString("defaults: {on_missed: all, max_queued: 1000, max_crashes: 1000, history: {runs: 1000000}, retry: {max: 0}}\n")
	b.WriteString("permits: {gate: {limit: 2}}\n" + f.settings + "jobs:\n")
	for _, job := range jobs {
		definition := slices.DeleteFunc([]string{job.now(), job.more}, func(s string) bool { return s == "" })
		if job.queue != "" {
			definition = append(definition, "queue: "+job.queue)
		}
		if job.handler != "" {
			definition = append(definition, fmt.Sprintf("handler: %s, args: {effects: %s}", job.handler, f.logOf(job)))
		} else {
			definition = append(definition, fmt.Sprintf(`command: [sh, -c, '%s; e start; %s; e end']`, fmt.Sprintf(effectLine, f.logOf(job)), job.work))
		}
		fmt.Fprintf(&b, "  %s: {%s}\n", job.name, strings.Join(definition, ", "))
	}
	return b.String()
}

// logOf returns the effect log of a job.
func (f *fleet) logOf(job spec) string {
	if job.apart {
		return f.effects + "." + job.name
	}
	return f.effects
}

// start adds a worker.
func (f *fleet) start() {
	f.t.Helper()
	f.workers = append(f.workers, launch(f.t, f.env, "start"))
}

// up returns the workers that Redis knows.
func (f *fleet) up() []workerJSON {
	f.t.Helper()
	return ask[[]workerJSON](f.t, f.env, "worker", "ls")
}

// busiest returns the worker that has the most runs now, or else the given one.
func (f *fleet) busiest(otherwise int) int {
	f.t.Helper()
	best, most := otherwise, 0
	for _, w := range f.up() {
		i := slices.IndexFunc(f.workers, func(p *process) bool { return p.worker() == w.PID })
		if i >= 0 && w.Busy > most {
			best, most = i, w.Busy
		}
	}
	return best
}

// settled waits until all workers are up, except those that have crashed too often.
func (f *fleet) settled() {
	f.t.Helper()
	eventually(f.t, time.Minute, "all workers are up", func() bool {
		f.workers = slices.DeleteFunc(f.workers, (*process).hasEnded)
		up := f.up()
		return !slices.ContainsFunc(f.workers, func(p *process) bool {
			return !slices.ContainsFunc(up, func(w workerJSON) bool { return w.PID == p.worker() })
		})
	})
}

// drain waits until all workers are up, tells them to end, and waits until they have.
func (f *fleet) drain() {
	f.t.Helper()
	f.settled()
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

// finish starts a worker that does the remaining runs. It has none of the jobs, so it creates no
// ticks.
func (f *fleet) finish() {
	f.t.Helper()
	before := f.env
	f.env = append(slices.Clone(f.env), "LOCKSTEP_CONFIG="+writeFile(f.t, "empty.yaml", "permits: {gate: {limit: 2}}\njobs: {other: {command: [\"true\"]}}"))
	f.start()
	conn := f.connection()
	// Faults may have left many runs of one job, which run one after the other. All is well as
	// long as they end.
	const patience = 2 * time.Minute
	least, since := int64(math.MaxInt64), time.Now()
	eventually(f.t, 20*time.Minute, "all runs have ended", func() bool {
		left, err := conn.rdb.HLen(f.t.Context(), "{lockstep}:run").Result()
		if err == nil && left < least {
			least, since = left, time.Now()
		}
		stuck := time.Since(since) > patience
		if stuck { // the checks that follow may show why
			f.t.Errorf("no run has ended for %s; %d are outstanding", patience, least)
		}
		return stuck || least == 0
	})
	f.drain()
	f.env = before
}

// runs returns all runs but those of jobs that are kept apart.
func (f *fleet) runs() []runJSON {
	f.t.Helper()
	if !slices.ContainsFunc(slices.Collect(maps.Values(f.jobs)), func(job spec) bool { return job.apart }) {
		return ask[[]runJSON](f.t, f.env, "run", "ls")
	}
	conn := f.connection()
	var runs []runJSON
	for name, job := range f.jobs {
		if !job.apart {
			runs = append(runs, f.runsOf(conn, name)...)
		}
	}
	return runs
}

// runsOf returns the runs of one job.
func (f *fleet) runsOf(conn *connection, job string) []runJSON {
	f.t.Helper()
	runs, err := conn.reader.Runs(f.t.Context(), admin.RunFilter{Job: job})
	// ErrUnknown: no worker carried the job when Redis lost its data.
	if err != nil && !errors.Is(err, ledger.ErrUnknown) {
		f.t.Fatal(err)
	}
	return as[[]runJSON](f.t, runs)
}

// connection connects to the fleet's Redis as the command line does.
func (f *fleet) connection() *connection {
	f.t.Helper()
	rdb := redis.NewClient(f.server.RedisOptions())
	f.t.Cleanup(func() { _ = rdb.Close() })
	conn, err := newConnection(rdb, configs.Settings{Redis: configs.Redis{Namespace: "lockstep"}}, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return conn
}

// read reads the evidence for the checker.
func (f *fleet) read(from, to time.Time) *history {
	f.t.Helper()
	h := &history{jobs: f.jobs, runs: f.runs(), ticks: make(map[string][]tickJSON), effects: f.readEffects(), from: from, to: to}
	conn := f.connection()
	for name, job := range f.jobs {
		if job.trigger == "" {
			continue
		}
		ticks, err := conn.reader.Ticks(f.t.Context(), name, 0)
		if errors.Is(err, ledger.ErrUnknown) {
			// No worker carried the job when Redis lost its data; the checker reports its missing
			// ticks.
			continue
		}
		if err != nil {
			f.t.Fatal(err)
		}
		h.ticks[name] = as[[]tickJSON](f.t, ticks)
	}
	return h
}

// as converts a value to the shape in which tests read it.
func as[T any](t *testing.T, value any) T {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var shaped T
	if err := json.Unmarshal(text, &shaped); err != nil {
		t.Fatal(err)
	}
	return shaped
}

// check compares the ledger with the effects.
func (f *fleet) check(h *history) {
	f.t.Helper()
	c := new(checker)
	c.all(h)
	c.report(f.t)
}

func (f *fleet) readEffects() []effect {
	f.t.Helper()
	return readEffects(f.t, f.effects)
}

// readEffects reads an effect log.
func readEffects(t *testing.T, log string) []effect {
	t.Helper()
	text, err := os.ReadFile(log)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // no effects yet
		t.Fatal(err)
	}
	var effects []effect
	for line := range strings.Lines(string(text)) {
		e, err := parseEffect(line)
		if err != nil {
			t.Fatalf("effect %q: %v", line, err)
		}
		effects = append(effects, e)
	}
	return effects
}

// goesOn reports whether a process can still act: a dead one stays in the list until its parent
// reaps it.
func goesOn(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.HasPrefix(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " Z")
}

// parseUptime reads a time since boot as effects have it.
func parseUptime(text string) (time.Duration, error) {
	seconds, err := strconv.ParseFloat(text, 64)
	return time.Duration(seconds * float64(time.Second)), err
}

// allTests reports whether tests may take long: in continuous integration.
func allTests() bool { return os.Getenv("LOCKSTEP_TEST_ALL") == "1" }
