package cmd

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

type workerJSON struct {
	ID    string
	PID   int
	State string
	Busy  int
}

// TestDemo does what a newcomer does: it opens the page, uses the command line, which finds the
// demo by itself, and kills the worker of a run, which then moves to another. At the end, nothing
// is left.
func TestDemo(t *testing.T) {
	t.Parallel()
	env := toolEnv(t)
	demo := launch(t, env, "demo", "--port", "0")
	page := ""
	eventually(t, time.Minute, "the banner", func() bool {
		if found := regexp.MustCompile(`(?m)^  page +(\S+)$`).FindStringSubmatch(demo.stdout.String()); found != nil {
			page = found[1]
		}
		return page != ""
	})
	if jobs := regexp.MustCompile(`(?m)^  jobs +(\S+)$`).FindStringSubmatch(demo.stdout.String()); jobs != nil {
		t.Cleanup(func() { // a worker that fails ends the demo
			logs, _ := filepath.Glob(filepath.Join(filepath.Dir(jobs[1]), "*.log"))
			for _, name := range logs {
				if text, err := os.ReadFile(name); err == nil && t.Failed() {
					t.Logf("%s:\n%s", filepath.Base(name), tail(string(text)))
				}
			}
		})
	}
	if banner := firstLine(demo.stdout.String()); !regexp.MustCompile(`^lockstep demo: see http://127\.0\.0\.1:\d+/timeline \(embedded Redis on 127\.0\.0\.1:\d+, 3 workers, \d jobs\)$`).MatchString(banner) {
		t.Errorf("banner %q", banner)
	}
	response, err := http.Get(page)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	response.Body.Close()
	if err != nil || response.StatusCode != http.StatusOK || !strings.Contains(string(body), "demo-1.") {
		t.Errorf("the page answers %s, %v, without the workers:\n%s", response.Status, err, body)
	}
	http.DefaultClient.CloseIdleConnections()

	stdout, stderr, code := runTool(t, env, "health")
	if code != 0 || stdout != "ok "+page+"/livez\n" {
		t.Errorf("health: exit code %d, %q, %q", code, stdout, stderr)
	}
	_, stderr, _ = runTool(t, env, "worker", "ls")
	if want := "lockstep: using the running demo (pid " + strconv.Itoa(demo.Process.Pid) + ")\n"; stderr != want {
		t.Errorf("stderr %q, want %q", stderr, want)
	}
	workers := ask[[]workerJSON](t, env, "worker", "ls")
	if len(workers) != 3 {
		t.Fatalf("workers %v, want 3", workers)
	}

	// Kill the worker of the long run.
	var before runJSON
	var killed int // a process
	eventually(t, 30*time.Second, "the long run is running, and the demo says how to kill its worker", func() bool {
		if !strings.Contains(demo.stdout.String(), "and see it move") {
			return false
		}
		runs := ask[[]runJSON](t, env, "run", "ls", "--job", "long-haul", "--state", "running")
		if len(runs) != 1 {
			return false
		}
		before = runs[0]
		for _, w := range ask[[]workerJSON](t, env, "worker", "ls") {
			if w.ID == before.Attempts[len(before.Attempts)-1].Worker {
				killed = w.PID
			}
		}
		return killed != 0
	})
	first := before.Attempts[len(before.Attempts)-1]
	if err := syscall.Kill(killed, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var after runJSON
	eventually(t, 30*time.Second, "the run has moved", func() bool {
		after = ask[runJSON](t, env, "run", "show", before.ID)
		return len(after.Attempts) > len(before.Attempts)
	})
	second := after.Attempts[len(after.Attempts)-1]
	if second.Worker == first.Worker || second.token() <= first.token() || after.Crashes != 1 {
		t.Errorf("after the kill: %+v, crashes %d, before: %+v; want another worker, a higher token and one crash", second, after.Crashes, first)
	}
	eventually(t, 30*time.Second, "the demo reports it and has a new worker", func() bool {
		said := demo.stdout.String()
		return strings.Contains(said, first.Worker+" (pid ") && strings.Contains(said, ") has died: its runs move") && strings.Contains(said, before.ID+" has moved from "+first.Worker+" to "+second.Worker) &&
			len(ask[[]workerJSON](t, env, "worker", "ls")) == 3
	})

	eventually(t, 30*time.Second, "a line has the worker and the outcome of a tick of beat", func() bool {
		return regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d  beat@\S+ succeeded on demo-\d\.\S+ in `).MatchString(demo.stdout.String())
	})

	demo.signal(syscall.SIGINT)
	if got := demo.code(30 * time.Second); got != 0 {
		t.Errorf("exit code %d after SIGINT, want 0", got)
	}
	for _, variable := range []string{"HOME", "TMPDIR"} {
		if left := filesIn(t, value(env, variable)); len(left) > 0 {
			t.Errorf("%s: left over: %v", variable, left)
		}
	}
}

func value(env []string, name string) string {
	for _, entry := range env {
		if v, ok := strings.CutPrefix(entry, name+"="); ok {
			return v
		}
	}
	return ""
}

// filesIn returns the files, without the folders, below a folder.
func filesIn(t *testing.T, folder string) []string {
	t.Helper()
	var files []string
	var walk func(string)
	walk = func(path string) {
		entries, err := os.ReadDir(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.IsDir() {
				walk(path + "/" + e.Name())
			} else {
				files = append(files, path+"/"+e.Name())
			}
		}
	}
	walk(folder)
	return files
}

// A demo that was killed leaves its file behind. The command line does not use it, and its workers
// end by themselves.
func TestKilledDemoIsForgotten(t *testing.T) {
	t.Parallel()
	env := toolEnv(t)
	demo := launch(t, env, "demo", "--port", "0", "--workers", "1")
	eventually(t, time.Minute, "the banner", func() bool { return strings.Contains(demo.stdout.String(), "try:") })
	workers := ask[[]workerJSON](t, env, "worker", "ls")
	eventually(t, 20*time.Second, "something runs", func() bool {
		return len(ask[[]runJSON](t, env, "run", "ls", "--job", "long-haul", "--state", "running")) == 1
	})
	demo.signal(syscall.SIGKILL)
	<-demo.done
	_, stderr, code := runTool(t, append(env, "LOCKSTEP_CONFIG="+writeFile(t, "none.yaml", "")), "worker", "ls", "--redis", "redis://127.0.0.1:1/0")
	if code != exitRedis || strings.Contains(stderr, "using the running demo") {
		t.Errorf("exit code %d, %q; want %d", code, stderr, exitRedis)
	}
	runTool(t, env, "health") // looks for a demo; its result depends on this machine
	if left := filesIn(t, value(env, "HOME")); len(left) > 0 {
		t.Errorf("the file of a dead demo still exists: %v", left)
	}
	for _, w := range workers {
		eventually(t, 30*time.Second, "the worker has ended", func() bool { return gone(w.PID) })
	}
}

// Clients of the demo's Redis come and go, also while it replies to them: writing to a connection
// that was closed raises SIGPIPE, as writing to a closed stdout does.
func TestDemoOutlivesItsClients(t *testing.T) {
	t.Parallel()
	env := toolEnv(t)
	demo := launch(t, env, "demo", "--port", "0", "--workers", "1")
	eventually(t, time.Minute, "the banner", func() bool { return strings.Contains(demo.stdout.String(), "try:") })
	address := regexp.MustCompile(`embedded Redis on (\S+?),`).FindStringSubmatch(demo.stdout.String())
	if address == nil {
		t.Fatalf("no address in %q", demo.stdout.String())
	}
	for range 10 {
		client, err := net.Dial("tcp", address[1])
		if err != nil {
			t.Fatal(err)
		}
		// The first reply finds the connection closed, and the second one has a broken pipe.
		script := "for i = 1, 300000 do end return 1"
		command := fmt.Sprintf("*3\r\n$4\r\nEVAL\r\n$%d\r\n%s\r\n$1\r\n0\r\n", len(script), script)
		if _, err := client.Write([]byte(command + command)); err != nil {
			t.Fatal(err)
		}
		client.Close()
	}
	said := len(demo.stdout.String())
	eventually(t, 30*time.Second, "another run succeeds", func() bool {
		return !demo.hasEnded() && strings.Contains(demo.stdout.String()[said:], " succeeded on demo-1.")
	})
}

func TestDemoEndsInOrderWithTheReaderOfItsOutput(t *testing.T) {
	t.Parallel()
	env := toolEnv(t)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	demo := launchWith(t, toolPath, env, func(p *process) { p.Stdout = writer }, "demo", "--port", "0", "--workers", "1")
	writer.Close()
	if line, err := bufio.NewReader(reader).ReadString('\n'); err != nil || !strings.HasPrefix(line, "lockstep demo: ") {
		t.Fatalf("%q, %v", line, err)
	}
	reader.Close()
	if code := demo.code(time.Minute); code != 0 || demo.stderr.String() != "" {
		t.Errorf("exit code %d, %q", code, demo.stderr.String())
	}
	for _, variable := range []string{"HOME", "TMPDIR"} {
		if left := filesIn(t, value(env, variable)); len(left) > 0 {
			t.Errorf("%s: left over: %v", variable, left)
		}
	}
}

// A demo that does not answer in time keeps its file. If its process or its Redis is dead, the file
// is removed.
func TestSlowDemoIsNotForgotten(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for _, test := range []struct {
		name  string
		demo  demoState
		stays bool
	}{
		{"slow", demoState{PID: os.Getpid(), Redis: "redis://" + silent.Addr().String()}, true},
		{"without its Redis", demoState{PID: os.Getpid(), Redis: "redis://" + closed.Addr().String()}, false},
		{"without its process", demoState{PID: 1 << 30, Redis: "redis://" + silent.Addr().String()}, false},
	} {
		remove, err := test.demo.write()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		if demo := findDemo(ctx); demo != nil {
			t.Errorf("%s: found %+v, and it does not answer", test.name, demo)
		}
		cancel()
		folder, err := demoFolder()
		if err != nil {
			t.Fatal(err)
		}
		if left := len(filesIn(t, folder)) > 0; left != test.stays {
			t.Errorf("%s: its file exists: %t, want %t", test.name, left, test.stays)
		}
		if err := remove(); err != nil {
			t.Error(err)
		}
	}
}

func TestDemoRefusesInvalidFlags(t *testing.T) {
	t.Parallel()
	env := toolEnv(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--port", port}, exitFailed, "is taken by another process"},
		{[]string{"--workers", "0"}, exitUsage, "--workers 0: it takes 1 to 50"},
		{[]string{"--port", "70000"}, exitUsage, "--port 70000"},
		{[]string{"x"}, exitUsage, "demo takes no arguments"},
		{[]string{"--redis", "redis://h"}, exitUsage, "the demo brings its own Redis"},
	} {
		_, stderr, code := runTool(t, env, append([]string{"demo"}, test.args...)...)
		if code != test.code || !strings.Contains(stderr, test.says) {
			t.Errorf("demo %v: exit code %d, %q; want %d, %q", test.args, code, stderr, test.code, test.says)
		}
	}
}
