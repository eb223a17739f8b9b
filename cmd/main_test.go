package cmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lockstep/locks/redistest"
)

// toolPath is the tool as it is shipped, built once: tests of processes start it, since only a real process can be killed.
var toolPath string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	folder, err := os.MkdirTemp("", "lockstep-cmd-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(folder)
	toolPath = filepath.Join(folder, "lockstep")
	build := exec.Command("go", "build", "-o", toolPath, "lockstep/cmd/lockstep")
	if raceEnabled {
		build = exec.Command("go", "build", "-race", "-o", toolPath, "lockstep/cmd/lockstep")
	}
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the tool: %v\n%s", err, out)
		return 1
	}
	return redistest.Run(m)
}

// toolEnv is the environment of the tool in tests: nothing of this machine's, and a cache folder of its own, in which no
// demo is found.
func toolEnv(t *testing.T, more ...string) []string {
	t.Helper()
	return append([]string{
		"PATH=" + filepath.Dir(toolPath) + string(filepath.ListSeparator) + os.Getenv("PATH"),
		"HOME=" + t.TempDir(), "TMPDIR=" + t.TempDir(),
		"GORACE=atexit_sleep_ms=0", // by default a process sleeps a second before it ends, to tell of late races
	}, more...)
}

// process is the tool at work.
type process struct {
	*exec.Cmd
	t      *testing.T
	name   string
	stdout *output
	stderr *output
	done   chan struct{} // closed when it has ended; then err is set
	err    error
	told   bool // its caller tells what it printed
}

// output is what a process has printed so far.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// launch starts the tool. It is killed when the test ends, if it is still there.
func launch(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	return launchWith(t, env, func(*process) {}, args...)
}

// launchWith starts the tool as prepare has it.
func launchWith(t *testing.T, env []string, prepare func(*process), args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(toolPath, args...), t: t, name: strings.Join(args, " "), stdout: new(output), stderr: new(output), done: make(chan struct{})}
	p.Env, p.Stdout, p.Stderr = env, p.stdout, p.stderr
	p.Cmd.WaitDelay = 5 * time.Second
	prepare(p)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the process, which the clean-up sees to
		defer close(p.done)
		p.err = p.Wait()
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.done
		if t.Failed() && !p.told {
			t.Logf("%s (pid %d):\nstdout:\n%s\nstderr:\n%s", p.name, p.Process.Pid, tail(p.stdout.String()), tail(p.stderr.String()))
		}
	})
	return p
}

// tail keeps the end of a long text.
func tail(s string) string {
	const most = 2 << 10
	if len(s) > most {
		return "..." + s[len(s)-most:]
	}
	return s
}

// signal sends a signal to the process.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.Process.Signal(s); err != nil {
		p.t.Fatalf("signal %v to %s: %v", s, p.name, err)
	}
}

// code waits for the end of the process and returns its exit code, or -1 when a signal ended it.
func (p *process) code(within time.Duration) int {
	p.t.Helper()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.t.Fatalf("%s has not ended within %s", p.name, within)
	}
	var exit *exec.ExitError
	if p.err != nil && !errors.As(p.err, &exit) {
		p.t.Fatalf("%s: %v", p.name, p.err)
	}
	return p.ProcessState.ExitCode()
}

// tool runs the tool to its end.
func runTool(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	p := launch(t, env, args...)
	p.told = true
	code = p.code(time.Minute)
	return p.stdout.String(), p.stderr.String(), code
}

// ask runs the tool with -o json and decodes the answer.
func ask[T any](t *testing.T, env []string, args ...string) T {
	t.Helper()
	stdout, stderr, code := runTool(t, env, append(args, "-o", "json")...)
	var answer T
	if code != 0 {
		t.Fatalf("lockstep %s: exit code %d: %s", strings.Join(args, " "), code, stderr)
	}
	if err := json.Unmarshal([]byte(stdout), &answer); err != nil {
		t.Fatalf("lockstep %s: %v in %s", strings.Join(args, " "), err, stdout)
	}
	return answer
}

// eventually waits until something holds.
func eventually(t *testing.T, within time.Duration, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for !holds() {
		if !pause(ctx, 20*time.Millisecond) {
			t.Fatalf("not within %s: %s", within, what)
		}
	}
}

// write makes a file in a new folder and returns its path.
func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

var _ io.Writer = (*output)(nil)
