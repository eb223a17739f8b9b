package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/configs"
	"lockstep/locks/redistest"
	"lockstep/locks/space"
)

// pageOf waits until a worker is ready and returns the address of its page.
func pageOf(t *testing.T, worker *process) string {
	t.Helper()
	address := ""
	eventually(t, 30*time.Second, "the worker is ready", func() bool {
		if found := regexp.MustCompile(`"url":"http://([^"]+)"`).FindStringSubmatch(worker.stderr.String()); found != nil {
			address = found[1]
		}
		return address != "" && strings.Contains(worker.stderr.String(), "worker is ready")
	})
	return address
}

func TestWorkerWithAnEmbeddedRedisNeedsNothingElse(t *testing.T) {
	t.Parallel()
	config := writeFile(t, "lockstep.yaml", `jobs: {beat: {every: 1s, command: ["true"]}}`)
	env := toolEnv(t, "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:0")
	worker := launch(t, env, "start", "-c", config, "--redis", "embedded")
	page := pageOf(t, worker)
	if !strings.Contains(worker.stderr.String(), "redis.url is embedded: this is one process") {
		t.Errorf("no warning that all data is lost with the process: %s", worker.stderr)
	}
	if stdout, stderr, code := runTool(t, append(env, "LOCKSTEP_ADMIN__LISTEN="+page), "health"); code != 0 {
		t.Errorf("health: exit code %d, %s%s", code, stdout, stderr)
	}
	eventually(t, 20*time.Second, "a run has ended", func() bool { return strings.Contains(worker.stderr.String(), `"outcome":"succeeded"`) })
	worker.signal(syscall.SIGTERM)
	if got := worker.code(20 * time.Second); got != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", got)
	}
	if _, _, code := runTool(t, append(env, "LOCKSTEP_ADMIN__LISTEN="+page), "health"); code != exitFailed {
		t.Errorf("health of a worker that has exited: exit code %d, want %d", code, exitFailed)
	}
}

// A new installation of the Helm chart has this config.
func TestWorkerWithoutJobsIsReady(t *testing.T) {
	t.Parallel()
	config := writeFile(t, "lockstep.yaml", "{}\n")
	worker := launch(t, toolEnv(t, "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:0"), "start", "--watch", "-c", filepath.Dir(config), "--redis", "embedded")
	pageOf(t, worker)
	write(t, config, `jobs: {beat: {every: 1s, command: ["true"]}}`)
	eventually(t, 20*time.Second, "a run of its first job has ended", func() bool { return strings.Contains(worker.stderr.String(), `"outcome":"succeeded"`) })
	worker.signal(syscall.SIGTERM)
	if got := worker.code(20 * time.Second); got != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", got)
	}
}

func TestHealthOfAWorkerDoesNotDependOnItsConfigOnDisk(t *testing.T) {
	t.Parallel()
	config := writeFile(t, "lockstep.yaml", `jobs: {beat: {every: 1h, command: ["true"]}}`)
	env := toolEnv(t, "LOCKSTEP_CONFIG="+config)
	worker := launch(t, append(env, "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:0"), "start", "--watch", "--redis", "embedded")
	page := pageOf(t, worker)
	write(t, config, "jobs: [")
	eventually(t, 30*time.Second, "the worker refuses the config", func() bool { return strings.Contains(worker.stderr.String(), "the new config is refused") })

	listens := "LOCKSTEP_ADMIN__LISTEN=" + page
	inFile := "admin: {listen: \"" + page + "\"}\n"
	folder := filepath.Dir(writeFile(t, "a.yaml", inFile))
	write(t, filepath.Join(folder, "b.yaml"), "jobs: [")
	asks := []struct {
		what, from string // where the address is from
		env, args  []string
	}{
		{"a file that is not YAML", "LOCKSTEP_ADMIN__LISTEN", []string{listens}, nil},
		{"a file that does not exist", "LOCKSTEP_ADMIN__LISTEN", []string{listens}, []string{"-c", "nowhere.yaml"}},
		{"a wrong variable", "LOCKSTEP_ADMIN__LISTEN", []string{listens, "LOCKSTEP_WORKER__CONCURRENCY=x"}, nil},
		{"another wrong setting", "lockstep.yaml:1:9", nil, []string{"-c", writeFile(t, "lockstep.yaml", inFile+"worker: {concurrency: x}\n")}},
		{"another wrong file", "a.yaml:1:9", nil, []string{"-c", folder}},
	}
	for _, a := range asks {
		stdout, stderr, code := runTool(t, append(env, a.env...), append([]string{"health"}, a.args...)...)
		if code != 0 || stdout != "ok http://"+page+"/livez\n" {
			t.Errorf("%s: exit code %d, %q, want 0; %s", a.what, code, stdout, stderr)
		}
		if !strings.Contains(stderr, "the config cannot be used: ") || !strings.Contains(stderr, "probing http://"+page+"/livez") || !strings.HasSuffix(stderr, a.from+")\n") {
			t.Errorf("%s: the warning is %q, want the address and %s", a.what, stderr, a.from)
		}
	}
	worker.signal(syscall.SIGTERM)
	if got := worker.code(20 * time.Second); got != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", got)
	}
	for _, a := range asks {
		if _, stderr, code := runTool(t, append(env, a.env...), append([]string{"health"}, a.args...)...); code != exitFailed {
			t.Errorf("%s, and the worker has exited: exit code %d, want %d; %s", a.what, code, exitFailed, stderr)
		}
	}
}

func TestDrainWaitsAndASecondSignalHandsBack(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	gate := filepath.Join(t.TempDir(), "gate")
	config := writeFile(t, "lockstep.yaml", `
worker: {drain_timeout: 5m}
jobs:
  short: {command: [sh, -c, "until [ -e $GATE ]; do sleep 0.05; done"], env: {GATE: "`+gate+`"}}
  long: {command: [sleep, "300"]}
`)
	env := toolEnv(t, "REDIS_URL="+server.URL(), "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:0", "LOCKSTEP_CONFIG="+config)
	worker := launch(t, env, "start")
	page := pageOf(t, worker)
	for _, job := range []string{"short", "long"} {
		if _, stderr, code := runTool(t, env, "enqueue", job, "--id", "x"); code != 0 {
			t.Fatal(stderr)
		}
	}
	state := func(run string) runJSON { return ask[runJSON](t, env, "run", "show", run) }
	eventually(t, 30*time.Second, "both run", func() bool { return state("short#x").State == "running" && state("long#x").State == "running" })

	worker.signal(syscall.SIGTERM)
	eventually(t, 30*time.Second, "the worker drains", func() bool {
		w := ask[[]workerJSON](t, env, "worker", "ls")
		return len(w) == 1 && w[0].State == "draining"
	})
	write(t, gate, "")
	eventually(t, 30*time.Second, "the short one ends in peace", func() bool { return state("short#x").State == "succeeded" })
	if response, err := http.Get("http://" + page + "/readyz"); err != nil || response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("readyz of a worker that drains: %v, %v, want 503", response, err)
	} else {
		response.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
	select {
	case <-worker.done:
		t.Fatal("the worker has not waited for the long run")
	default:
	}

	worker.signal(syscall.SIGTERM)
	if got := worker.code(30 * time.Second); got != 0 {
		t.Errorf("exit code %d after the second SIGTERM, want 0", got)
	}
	long := state("long#x")
	if long.State != "due" || long.Crashes != 0 || len(long.Attempts) != 1 || long.Attempts[0].Outcome == nil || *long.Attempts[0].Outcome != "handed back" {
		t.Errorf("the run that was handed back: %+v; want it due, with nothing counted", long)
	}
	if workers := ask[[]workerJSON](t, env, "worker", "ls"); len(workers) != 0 {
		t.Errorf("workers %+v are left", workers)
	}
}

func TestPasswordFileIsUsedForEveryConnection(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	if err := server.Client(t).ConfigSet(t.Context(), "requirepass", "secret").Err(); err != nil {
		t.Fatal(err)
	}
	env := toolEnv(t, "REDIS_URL="+server.URL())
	if _, stderr, code := runTool(t, env, "job", "ls"); code != exitRedis || !strings.Contains(stderr, "redis.password_file") {
		t.Errorf("without the password: exit code %d, %q; want %d and the remedy", code, stderr, exitRedis)
	}
	env = append(env, "LOCKSTEP_REDIS__PASSWORD_FILE="+writeFile(t, "password", "secret\n"))
	if stdout, stderr, code := runTool(t, env, "lock", "exec", "--exclusive", "a", "--", "echo", "mine"); code != 0 || stdout != "mine\n" {
		t.Errorf("with the password: exit code %d, %q, %q", code, stdout, stderr)
	}
	env = append(env, "LOCKSTEP_REDIS__PASSWORD_FILE=/nowhere/password")
	if _, stderr, code := runTool(t, env, "job", "ls"); code != exitUsage || !strings.Contains(stderr, "/nowhere/password") {
		t.Errorf("without the file: exit code %d, %q; want %d and its name", code, stderr, exitUsage)
	}
}

func TestHTTPJobSendsItsRequest(t *testing.T) {
	t.Parallel()
	keys := make(chan string, 10)
	web := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { keys <- r.Header.Get("Idempotency-Key") }))
	t.Cleanup(web.Close)
	server := redistest.New(t, redistest.Options{})
	config := writeFile(t, "lockstep.yaml", "jobs: {call: {http: {method: POST, url: \""+web.URL+"\"}}}")
	env := toolEnv(t, "REDIS_URL="+server.URL(), "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:0", "LOCKSTEP_CONFIG="+config)
	launch(t, env, "start")
	if _, stderr, code := runTool(t, env, "enqueue", "call", "--id", "x", "--wait=30s"); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if key := <-keys; key != "call#x" {
		t.Errorf("Idempotency-Key %q, want call#x", key)
	}
}

// A Redis that accepts connections and does not reply is reported in time too.
func TestHangingRedisIsUnreachable(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Resume() })
	began := time.Now()
	_, stderr, code := runTool(t, toolEnv(t, "REDIS_URL="+server.URL()), "job", "ls")
	if code != exitRedis || time.Since(began) > 15*time.Second {
		t.Errorf("exit code %d after %s: %q; want %d within seconds", code, time.Since(began), stderr, exitRedis)
	}
}

// A Redis that is lost between the first check and the opening of the session is also unreachable.
func TestRedisLostDuringTheStartIsUnreachable(t *testing.T) {
	t.Parallel()
	proxy := redistest.New(t, redistest.Options{}).Proxy(t)
	proxy.Set(redistest.Faults{LoseReplies: 1, Commands: []string{"evalsha", "eval"}})
	config := writeFile(t, "lockstep.yaml", `jobs: {a: {command: ["true"]}}`)
	_, stderr, code := runTool(t, toolEnv(t, "REDIS_URL="+proxy.URL(), "LOCKSTEP_CONFIG="+config, "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:0"), "start")
	if code != exitRedis || !strings.Contains(stderr, "lost connection to Redis at") {
		t.Errorf("exit code %d: %q; want %d and the reason", code, stderr, exitRedis)
	}
}

// A Redis that loads its data after a restart is unreachable, whichever request meets it.
func TestLoadingRedisIsUnreachable(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{TCP: true, Config: []string{"enable-debug-command yes", "key-load-delay 2000", "loading-process-events-interval-bytes 1024"}})
	rdb := server.Client(t)
	if err := rdb.Do(t.Context(), "DEBUG", "POPULATE", 30_000).Err(); err != nil {
		t.Fatal(err)
	}
	options := server.RedisOptions()
	options.ReadTimeout, options.MaxRetries = -1, -1
	reload := redis.NewClient(options)
	var loading sync.WaitGroup
	// It takes a minute, unless the server is killed before.
	loading.Go(func() { _ = reload.Do(t.Context(), "DEBUG", "RELOAD").Err() })
	t.Cleanup(func() {
		server.Kill()
		loading.Wait()
		_ = reload.Close()
	})
	eventually(t, 10*time.Second, "it loads", func() bool { return space.CodeOf(rdb.Ping(t.Context()).Err()) == "LOADING" })
	_, stderr, code := runTool(t, toolEnv(t, "REDIS_URL="+server.URL()), "job", "ls")
	if code != exitRedis || !strings.Contains(stderr, "is not ready: LOADING") || strings.Contains(stderr, "password") {
		t.Errorf("the first request: exit code %d: %q; want %d and the reason", code, stderr, exitRedis)
	}
	err := lostRedis(configs.Redis{URL: server.URL()}, fmt.Errorf("open lock client: %w", rdb.Ping(t.Context()).Err()))
	known, ok := errors.AsType[*exitError](err)
	if !ok || known.code != exitRedis || !strings.Contains(err.Error(), "is not ready: open lock client: LOADING") {
		t.Errorf("a later request: got %v, want exit code %d and the reason", err, exitRedis)
	}
}

// A full disk or memory stops writes, not reads, and each refused command names it.
func TestRedisThatTakesNoWritesIsReadAndNamed(t *testing.T) {
	t.Parallel()
	for code, test := range map[string]struct {
		begin          func(context.Context, *redis.Client) error
		doctor, remedy string
	}{
		"MISCONF": {redistest.BreakSnapshots, "it cannot write to its disk", "make room on its disk"},
		"OOM": {func(ctx context.Context, rdb *redis.Client) error {
			return rdb.ConfigSet(ctx, "maxmemory", "1").Err()
		}, "nothing new is locked", "raise its maxmemory"},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			server := redistest.New(t, redistest.Options{})
			config := writeFile(t, "lockstep.yaml", `jobs: {a: {command: ["true"]}}`)
			env := toolEnv(t, "REDIS_URL="+server.URL(), "LOCKSTEP_CONFIG="+config, "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:0")
			must(t, test.begin(t.Context(), server.Client(t)))
			for _, read := range [][]string{{"lock", "ls"}, {"run", "ls"}} {
				if _, stderr, exit := runTool(t, env, read...); exit != 0 {
					t.Errorf("%s: exit code %d: %s", read, exit, stderr)
				}
			}
			if stdout, stderr, _ := runTool(t, env, "doctor"); !strings.Contains(stdout, test.doctor) {
				t.Errorf("the doctor says %s%s", stdout, stderr)
			}
			for _, write := range [][]string{{"enqueue", "a"}, {"lock", "exec", "--exclusive", "x", "--wait", "0s", "true"}, {"start"}} {
				_, stderr, exit := runTool(t, env, write...)
				if exit != exitRedis || !strings.Contains(stderr, code) || !strings.Contains(stderr, test.remedy) {
					t.Errorf("%s: exit code %d, %q; want %d and the remedy", write, exit, stderr, exitRedis)
				}
			}
		})
	}
}

func TestInterruptedWaitIsNotAFailure(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	config := writeFile(t, "lockstep.yaml", `jobs: {a: {command: ["true"]}}`)
	env := toolEnv(t, "REDIS_URL="+server.URL(), "LOCKSTEP_CONFIG="+config)
	p := launch(t, env, "enqueue", "a", "--id", "x", "--wait")
	eventually(t, 30*time.Second, "it waits", func() bool { return p.stdout.String() == "a#x\n" })
	p.signal(syscall.SIGINT)
	if got := p.code(10 * time.Second); got != exitInterrupted || p.stderr.String() != "" {
		t.Errorf("exit code %d, %q; want %d and silence", got, p.stderr, exitInterrupted)
	}
}

// A program that reads a worker's log as JSON can read its last line too.
func TestLastMessageOfAWorkerHasItsLogFormat(t *testing.T) {
	t.Parallel()
	config := writeFile(t, "lockstep.yaml", "redis: {url: redis://127.0.0.1:1}\nlog: {format: json}\n")
	_, stderr, code := runTool(t, toolEnv(t), "start", "-c", config)
	if code != exitRedis {
		t.Errorf("exit code %d, want %d", code, exitRedis)
	}
	for line := range strings.Lines(stderr) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Errorf("a line of the log is not JSON: %s", line)
		}
	}
	if !strings.Contains(stderr, "no Redis answers at redis://127.0.0.1:1") {
		t.Errorf("got %s, want the reason", stderr)
	}
}

// A killed worker is replaced at once, when the files that it left are still too young to remove.
func TestWorkerRemovesYoungFilesOfArgsLater(t *testing.T) {
	t.Parallel()
	f, _ := newPack(t, `jobs: {works: {command: ["true"]}}`)
	left := filepath.Join(value(f.env, "TMPDIR"), "lockstep-args-1.json")
	write(t, left, "{}")
	soon := time.Now().Add(-50 * time.Second) // in ten seconds it is a minute old
	must(t, os.Chtimes(left, soon, soon))
	f.startAll(1)
	eventually(t, 30*time.Second, "the file is removed", func() bool { return !exists(left) })
}
