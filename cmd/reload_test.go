package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/configs"
	"lockstep/locks/redistest"
	"lockstep/scheduler/admin"
)

// fixture is a worker with a config in a folder, where a test changes it.
type fixture struct {
	t      *testing.T
	env    []string
	config string
	worker *process
	page   string
}

// jobNamed returns a config with one job that has a schedule and one that can be enqueued.
func jobNamed(name string) string {
	return fmt.Sprintf("jobs:\n  %s: {every: 1h, command: [\"true\"]}\n  fixed: {command: [sh, -c, \"echo %s\"]}\n", name, name)
}

// watchedWorker starts a worker with --watch. prepare writes a config and returns the path for -c.
func watchedWorker(t *testing.T, prepare func(dir string) (path string)) *fixture {
	t.Helper()
	server := redistest.New(t, redistest.Options{})
	f := &fixture{t: t, config: prepare(t.TempDir())}
	f.env = toolEnv(t, "REDIS_URL="+server.URL(), "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:0", "LOCKSTEP_CONFIG="+f.config)
	f.worker = launch(t, f.env, "start", "--watch")
	f.page = pageOf(t, f.worker)
	f.has("before", 0)
	return f
}

// state is what the worker reports about its config.
func (f *fixture) state() admin.Config {
	f.t.Helper()
	return configOf(f.t, f.page)
}

// has waits until the worker has the config with this job, and has refused this many.
func (f *fixture) has(job string, refused int) {
	f.t.Helper()
	eventually(f.t, 20*time.Second, fmt.Sprintf("job %s is loaded, %d configs are refused", job, refused), func() bool {
		for _, j := range ask[[]admin.Job](f.t, f.env, "job", "ls") {
			if j.Name == job {
				state := f.state()
				return state.Refused == refused && state.RefusedAt.IsZero() && len(state.Problems) == 0
			}
		}
		return false
	})
}

// write writes a file in place. A worker that reads it meanwhile may find it empty.
func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
}

// replace renames a new file into place. A worker that reads it meanwhile finds the old content or
// the new one.
func replace(t *testing.T, path, text string) {
	t.Helper()
	write(t, path+".new", text)
	must(t, os.Rename(path+".new", path))
}

// fetch reads a page of a worker.
func fetch(t *testing.T, url string) (status int, body []byte) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err = io.ReadAll(response.Body); err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, body
}

// configOf returns what a worker reports about its config.
func configOf(t *testing.T, page string) admin.Config {
	t.Helper()
	var config admin.Config
	status, body := fetch(t, "http://"+page+"/api/v1/config")
	if err := json.Unmarshal(body, &config); err != nil || status != http.StatusOK {
		t.Fatalf("status %d, %v in %s", status, err, body)
	}
	return config
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestACheckOfTheConfigChangesNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lockstep.yaml")
	write(t, path, jobNamed("before"))
	options := configs.Options{Paths: []string{path}, Environ: []string{}}
	config, err := readConfig(options)
	must(t, err)
	r := newReloader(options, config, "mark", slog.New(slog.DiscardHandler), func(context.Context, *configs.Config, string) error {
		t.Error("the check gave the worker a config")
		return nil
	})
	write(t, path, jobNamed("after")+"worker: {concurrency: 3}\n")
	checked, err := r.check(t.Context())
	must(t, err)
	got := fmt.Sprint(checked.OK, checked.Added, checked.Changed, checked.Removed, checked.Changes, checked.Jobs, checked.NeedsRestart, len(checked.Errors))
	if want := "true [after] [fixed] [before] 3 2 [worker.concurrency] 0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	write(t, path, "jobs: {after: {shedule: x}}\n")
	checked, err = r.check(t.Context())
	must(t, err)
	if checked.OK || len(checked.Errors) == 0 || !strings.Contains(checked.Errors[0].At, "lockstep.yaml:1:") {
		t.Errorf("got %+v, want errors with their places", checked)
	}
	if status := r.status.Load(); status.Digest != "mark" || status.Reloads+status.Refused > 0 || r.running != config {
		t.Errorf("the checks changed the status to %+v", status)
	}
}

func TestAReloadMovesThePlacesOfJobs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lockstep.yaml")
	write(t, path, jobNamed("before"))
	options := configs.Options{Paths: []string{path}, Environ: []string{}}
	config, err := readConfig(options)
	must(t, err)
	r := newReloader(options, config, "mark", slog.New(slog.DiscardHandler), func(context.Context, *configs.Config, string) error { return nil })
	check := func(want string) {
		t.Helper()
		if got := fmt.Sprint(r.status.Load().Places); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	check(fmt.Sprintf("map[before:%s:2 fixed:%s:3]", path, path))
	write(t, path, "# jobs that a later line defines\n\n"+jobNamed("after"))
	must(t, r.reload(t.Context(), "a test"))
	check(fmt.Sprintf("map[after:%s:4 fixed:%s:5]", path, path))
	write(t, path, "jobs: {after: {shedule: x}}\n")
	must(t, r.reload(t.Context(), "a test")) // refused: the worker keeps its jobs
	check(fmt.Sprintf("map[after:%s:4 fixed:%s:5]", path, path))
}

func single(t *testing.T) func(dir string) string {
	return func(dir string) string {
		path := filepath.Join(dir, "lockstep.yaml")
		write(t, path, jobNamed("before"))
		return path
	}
}

func TestFileThatIsWrittenInPlaceIsReloaded(t *testing.T) {
	t.Parallel()
	f := watchedWorker(t, single(t))
	write(t, f.config, jobNamed("after"))
	f.has("after", 0)
	write(t, f.config, jobNamed("again"))
	f.has("again", 0)
}

func TestFileThatIsReplacedIsReloaded(t *testing.T) {
	t.Parallel()
	f := watchedWorker(t, single(t))
	for _, name := range []string{"after", "again"} { // as editors do
		replace(t, f.config, jobNamed(name))
		f.has(name, 0)
	}
}

// A mounted config map of Kubernetes: the files are links into a folder that is itself a link, and
// that link is moved.
func TestSwappedLinkIsReloaded(t *testing.T) {
	t.Parallel()
	version := func(dir, name, job string) {
		must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		write(t, filepath.Join(dir, name, "lockstep.yaml"), jobNamed(job))
		must(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
		must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	f := watchedWorker(t, func(dir string) string {
		version(dir, "..2026_11_21", "before")
		must(t, os.Symlink("..data/lockstep.yaml", filepath.Join(dir, "lockstep.yaml")))
		return dir
	})
	version(f.config, "..2026_11_22", "after")
	must(t, os.RemoveAll(filepath.Join(f.config, "..2026_11_21")))
	f.has("after", 0)
	version(f.config, "..2026_11_23", "again")
	f.has("again", 0)
}

func TestFileThatIsMissingForAMomentIsReloaded(t *testing.T) {
	t.Parallel()
	f := watchedWorker(t, single(t))
	must(t, os.Remove(f.config))
	write(t, f.config, jobNamed("after"))
	f.has("after", 0)

	// If the file stays away, that is an error, and the worker keeps its config.
	must(t, os.Remove(f.config))
	eventually(t, 20*time.Second, "the config is refused", func() bool { return f.state().Refused == 1 })
	if state := f.state(); len(state.Problems) != 1 || state.Problems[0].Code != "unreadable" || state.Jobs != 2 {
		t.Errorf("state %+v, want the missing file named, and two jobs", state)
	}
	write(t, f.config, jobNamed("again"))
	f.has("again", 1)
}

func TestBrokenConfigChangesNothingUntilItIsFixed(t *testing.T) {
	t.Parallel()
	f := watchedWorker(t, single(t))
	digest := f.state().Digest
	write(t, f.config, strings.ReplaceAll(jobNamed("after"), "every: 1h", "evry: 1h, timeout: 3"))
	eventually(t, 20*time.Second, "the config is refused", func() bool { return f.state().Refused == 1 })
	state := f.state()
	if state.Digest != digest || state.Jobs != 2 || len(state.Problems) != 2 || state.Problems[0].Hint != `did you mean "every"?` {
		t.Errorf("state %+v, want the old config and both errors with their hints", state)
	}
	_, page := fetch(t, "http://"+f.page+"/")
	if !strings.Contains(string(page), "The new config was refused") || !strings.Contains(string(page), "unknown key") {
		t.Errorf("the page has no banner:\n%s", page)
	}
	if ready, _ := fetch(t, "http://"+f.page+"/readyz"); ready != http.StatusOK {
		t.Errorf("readyz answers %d after a refused reload, want 200", ready)
	}
	_, metrics := fetch(t, "http://"+f.page+"/metrics")
	for _, want := range []string{`lockstep_config_info{digest="` + digest + `"} 1`, `lockstep_config_reloads_total{outcome="refused"} 1`,
		"lockstep_config_last_reload_successful 0", "lockstep_slots 8", `lockstep_workers{state="ready"} 1`} {
		if !strings.Contains(string(metrics), want+"\n") {
			t.Errorf("the metrics lack %s:\n%s", want, metrics)
		}
	}
	stdout, stderr, code := runTool(t, f.env, "config", "reload")
	if code != exitConfig || !strings.Contains(stdout, ": refused, config "+digest+" stays\n") || !strings.Contains(stdout, `unknown key "evry"`) {
		t.Errorf("config reload exits with %d: %q, %q; want %d and the errors", code, stdout, stderr, exitConfig)
	}
	if _, stderr, code := runTool(t, f.env, "enqueue", "fixed", "--id", "x", "--wait=30s"); code != 0 {
		t.Errorf("the worker takes no runs any more: %d, %s", code, stderr)
	}
	eventually(t, 30*time.Second, "the run is counted", func() bool {
		_, metrics := fetch(t, "http://"+f.page+"/metrics")
		return strings.Contains(string(metrics), `lockstep_runs_ended_total{job="fixed",outcome="succeeded",trigger="enqueue"} 1`+"\n")
	})

	// Settings that need a restart are named, and everything else takes effect.
	write(t, f.config, jobNamed("after")+"locks: {lease: 20s}\nworker: {concurrency: 3}\n")
	f.has("after", 2)
	if got := fmt.Sprint(f.state().NeedsRestart); got != "[worker.concurrency locks.lease]" {
		t.Errorf("needs a restart for %s", got)
	}
	if _, page := fetch(t, "http://"+f.page+"/"); !strings.Contains(string(page), "A restart is needed") {
		t.Errorf("the page does not tell of the restart")
	}
	write(t, f.config, jobNamed("after"))
	eventually(t, 20*time.Second, "no restart is needed any more", func() bool { return len(f.state().NeedsRestart) == 0 })
}

// All workers share one limit: changing it takes a new version.
func TestPermitLimitChangesWithItsVersion(t *testing.T) {
	t.Parallel()
	config := func(job, permit string) string {
		return jobNamed(job) + "  calls: {command: [\"true\"], lock: {permits: {api: 1}}}\npermits: {api: {" + permit + "}}\n"
	}
	f := watchedWorker(t, func(dir string) string {
		path := filepath.Join(dir, "lockstep.yaml")
		write(t, path, config("before", "limit: 1"))
		return path
	})
	write(t, f.config, config("after", "limit: 2"))
	eventually(t, 20*time.Second, "the config is refused", func() bool { return f.state().Refused == 1 })
	state := f.state()
	if len(state.Problems) != 1 || !strings.HasSuffix(state.Problems[0].At, "lockstep.yaml:5:11") || state.Problems[0].Code != "bad-permits" || !strings.Contains(state.Problems[0].Message, "raise permits.api.version") {
		t.Errorf("state %+v, want the permits named", state)
	}
	diff := func(want string) {
		t.Helper()
		if got, stderr, code := runTool(t, f.env, "config", "diff"); code != 0 || !strings.Contains(got, want) {
			t.Errorf("config diff exits with %d: %q, %q; want %q", code, got, stderr, want)
		}
	}
	diff("~ permits api\n    limit: 1 -> 2\n    workers would refuse this config: raise permits.api.version above 0 to change the limit\n")
	_, stderr, code := runTool(t, f.env, "start", "-c", f.config)
	if code != exitConfig || !strings.Contains(stderr, "raise permits.api.version to change it") {
		t.Errorf("start with another limit exits with %d: %s", code, stderr)
	}
	write(t, f.config, config("again", "limit: 2, version: 1"))
	f.has("again", 1)
	write(t, f.config, config("again", "limit: 3, version: 2")) // only the permits change
	eventually(t, 20*time.Second, "the permits are taken", func() bool { return f.state().Reloads >= 2 })
	if got, _, _ := runTool(t, f.env, "config", "diff"); strings.Contains(got, "permits") {
		t.Errorf("config diff of permits that are as declared: %q", got)
	}
	older := writeFile(t, "older.yaml", config("again", "limit: 2, version: 1"))
	if got, _, _ := runTool(t, f.env, "config", "diff", "-c", older); !strings.Contains(got,
		"    limit: 3 -> 2\n    version: 2 -> 1\n    it stays 3: a worker has declared version 2, which is newer\n") {
		t.Errorf("config diff of an older config: %q", got)
	}
	if _, stderr, code := runTool(t, f.env, "enqueue", "calls", "--wait=30s"); code != 0 {
		t.Errorf("a run with permits exits with %d: %s", code, stderr)
	}
}

// TestReloadThatFailsIsRepeated has an outage of Redis at the moment of a reload: what the reload
// was asked for must not be lost with it.
func TestReloadThatFailsIsRepeated(t *testing.T) {
	t.Parallel()
	for why, ask := range map[string]func(hangups chan<- struct{}){
		"SIGHUP":        func(hangups chan<- struct{}) { hangups <- struct{}{} },
		"files changed": func(chan<- struct{}) {},
	} {
		t.Run(why, func(t *testing.T) {
			t.Parallel()
			config := writeFile(t, "lockstep.yaml", jobNamed("before"))
			options := configs.Options{Paths: []string{config}, Inputs: new(configs.Inputs)}
			began, err := readConfig(options)
			must(t, err)
			var applied []string
			log := new(output)
			r := newReloader(options, began, "before", slog.New(slog.NewTextHandler(log, nil)), func(_ context.Context, config *configs.Config, _ string) error {
				if applied = append(applied, config.Jobs[0].Name); len(applied) < 3 {
					return errors.New("connection refused")
				}
				return nil
			})
			ctx, cancel := context.WithCancel(t.Context())
			hangups, done := make(chan struct{}, 1), make(chan struct{})
			go func() { defer close(done); r.run(ctx, hangups, why != "SIGHUP") }()
			replace(t, config, jobNamed("after"))
			ask(hangups)
			eventually(t, 20*time.Second, "the config is reloaded", func() bool { return r.status.Load().Reloads == 1 })
			cancel()
			<-done
			if want := []string{"after", "after", "after"}; !slices.Equal(applied, want) {
				t.Errorf("applied %v, want %v", applied, want)
			}
			if said := log.String(); strings.Count(said, "connection refused") != 1 || !strings.Contains(said, "will retry") {
				t.Errorf("it logged %s; want the failure once, and that it is retried", said)
			}
		})
	}
}

// Without --watch, a worker reloads when told to; running runs continue as they began.
func TestRunKeepsTheDefinitionItStartedWith(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	gate := filepath.Join(t.TempDir(), "gate")
	config := writeFile(t, "lockstep.yaml",
		`jobs: {long: {command: [sh, -c, "echo old; until [ -e $GATE ]; do sleep 0.05; done"], env: {GATE: "`+gate+`"}}}`)
	env := toolEnv(t, "REDIS_URL="+server.URL(), "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:0", "LOCKSTEP_CONFIG="+config)
	worker := launch(t, env, "start")
	page := pageOf(t, worker)
	if _, stderr, code := runTool(t, env, "enqueue", "long", "--id", "x"); code != 0 {
		t.Fatal(stderr)
	}
	state := func(run string) string { return ask[runJSON](t, env, "run", "show", run).State }
	eventually(t, 30*time.Second, "it runs", func() bool { return state("long#x") == "running" })

	write(t, config, `jobs: {long: {command: [echo, new]}}`)
	stdout, stderr, code := runTool(t, env, "config", "reload")
	if code != 0 || !strings.Contains(stdout, "1 jobs") {
		t.Fatalf("config reload exits with %d: %q, %q", code, stdout, stderr)
	}
	eventually(t, 30*time.Second, "the new definition is registered", func() bool {
		out, _, code := runTool(t, env, "config", "diff")
		return code == 0 && out == "no changes\n"
	})
	if _, stderr, code := runTool(t, env, "enqueue", "long", "--id", "y", "--wait=30s"); code != 0 {
		t.Fatal(stderr)
	}
	write(t, gate, "")
	eventually(t, 30*time.Second, "the old one ends", func() bool { return state("long#x") == "succeeded" })
	for run, want := range map[string]string{"long#x": "old\n", "long#y": "new\n"} {
		if got, _, _ := runTool(t, env, "run", "output", run); got != want {
			t.Errorf("output of %s: %q, want %q", run, got, want)
		}
	}

	// SIGHUP does the same.
	write(t, config, `jobs: {long: {command: [echo, newer]}, more: {every: 1h, command: [a]}}`)
	worker.signal(syscall.SIGHUP)
	eventually(t, 30*time.Second, "SIGHUP has it reload", func() bool {
		return configOf(t, page).Reloads == 2
	})
	if jobs := configOf(t, page).Jobs; jobs != 2 {
		t.Errorf("%d jobs, want 2", jobs)
	}
	if got := ask[[]workerJSON](t, env, "worker", "ls"); len(got) != 1 || got[0].State != "ready" {
		t.Errorf("workers %+v, want one that is ready", got)
	}
}
