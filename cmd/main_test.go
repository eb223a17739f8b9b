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
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lockstep/locks/guard/pgtest"
	"lockstep/locks/redistest"
)

// toolPath is the tool, built once, with the race detector if the tests have it. Tests of processes
// start it, since only a real process can be killed. plainPath is the tool as it is shipped.
var toolPath, plainPath string

func TestMain(m *testing.M) {
	if os.Getenv(withHandlers) != "" { // this binary is the tool, with its own handlers
		switch os.Getenv(burialFault) {
		case noBurial:
			burial = func(*parent) bool { return true }
		case doubtfulBurial:
			burial = func(*parent) bool { return false }
		}
		if os.Getenv(signalAtGrant) != "" {
			granted = terminateItself
		}
		if handlers, ok := soakHandlers[os.Getenv(withHandlers)]; ok {
			Main(handlers())
		}
		Main(crashHandlers())
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	folder, err := os.MkdirTemp("", "lockstep-cmd-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(folder)
	toolPath = filepath.Join(folder, "lockstep")
	plainPath = toolPath
	if raceEnabled {
		err = buildTool(toolPath, "-race")
		plainPath = filepath.Join(folder, "plain", "lockstep")
	}
	if err = errors.Join(err, buildTool(plainPath)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return redistest.Run(pgtest.Tests(m))
}

func buildTool(path string, flags ...string) error {
	build := exec.Command("go", slices.Concat([]string{"build", "-o", path}, flags, []string{"lockstep/cmd/lockstep"})...)
	if !slices.Contains(flags, "-race") { // which needs cgo
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as make build does
	}
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the tool: %w\n%s", err, out)
	}
	return nil
}

// toolEnv returns an environment for the tool in tests: nothing of this machine's, and its own
// cache folder, in which it finds no demo.
func toolEnv(t *testing.T, more ...string) []string {
	t.Helper()
	return append([]string{
		"PATH=" + filepath.Dir(toolPath) + string(filepath.ListSeparator) + os.Getenv("PATH"),
		"HOME=" + t.TempDir(), "TMPDIR=" + t.TempDir(),
		// By default, a process sleeps for a second before it exits, to report late races.
		"GORACE=atexit_sleep_ms=0",
	}, more...)
}

// process is a running tool.
type process struct {
	*exec.Cmd
	t      *testing.T
	name   string
	stdout *output
	stderr *output
	done   chan struct{} // closed after its exit, when err is set
	err    error
	told   bool // its caller reports what it printed
}

// output is the text that a process has printed so far.
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

// launch starts the tool. The test kills it at its end, if it is still running.
func launch(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	if value(env, withHandlers) != "" {
		return launchProgram(t, os.Args[0], env, args...)
	}
	return launchProgram(t, toolPath, env, args...)
}

func launchProgram(t *testing.T, program string, env []string, args ...string) *process {
	t.Helper()
	return launchWith(t, program, env, func(*process) {}, args...)
}

// launchWith starts a program after prepare has set it up.
func launchWith(t *testing.T, program string, env []string, prepare func(*process), args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.Command(program, args...), t: t, name: strings.Join(args, " "), stdout: new(output), stderr: new(output), done: make(chan struct{})}
	p.Env, p.Stdout, p.Stderr = env, p.stdout, p.stderr
	p.Cmd.WaitDelay = 5 * time.Second
	prepare(p)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the process, which the cleanup ends
		defer close(p.done)
		p.err = p.Wait()
	}()
	t.Cleanup(func() {
		if !p.hasEnded() {
			killTree(p.Process.Pid)
		}
		<-p.done
		if t.Failed() && !p.told {
			t.Logf("%s (pid %d):\nstdout:\n%s\nstderr:\n%s", p.name, p.Process.Pid, tail(p.stdout.String()), tail(p.stderr.String()))
		}
	})
	return p
}

// tail returns the end of a long text.
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

// childrenOf returns the processes that have this parent.
func childrenOf(parent int) []int {
	var found []int
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, _ := os.ReadFile(file) // it may have exited
		// the name in front may contain anything
		fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
		if len(fields) > 1 && string(fields[0]) != "Z" && string(fields[1]) == strconv.Itoa(parent) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
				found = append(found, pid)
			}
		}
	}
	return found
}

// worker returns the working child of a worker, which is the process that other workers see, or 0.
func (p *process) worker() int {
	for _, pid := range childrenOf(p.Process.Pid) { // its orphans are among them
		if args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && bytes.Contains(args, []byte("\x00"+childWord+"\x00")) {
			return pid
		}
	}
	return 0
}

// killPair kills a worker's parent and child together, so that neither can react to the other's
// death.
func (p *process) killPair() {
	_ = p.Process.Signal(syscall.SIGSTOP) // an error means that it has exited
	for _, pid := range childrenOf(p.Process.Pid) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = p.Process.Kill()
}

// killTree kills a process and everything below it at once, like a machine failure.
func killTree(pid int) {
	if syscall.Kill(pid, syscall.SIGSTOP) != nil {
		return
	}
	for _, child := range childrenOf(pid) {
		killTree(child)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

// killAll kills the process and everything below it. Where it has ended already, another process
// may have its number.
func (p *process) killAll() {
	if !p.hasEnded() {
		killTree(p.Process.Pid)
	}
}

// hasEnded reports whether the process has exited.
func (p *process) hasEnded() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// code waits for the exit of the process and returns its exit code, or -1 if a signal killed it.
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

// runTool runs the tool until it exits. Tests ask again and again, and the race detector makes each
// start seven times as expensive, so it is the plain tool; the scripts run each command under it.
func runTool(t *testing.T, env []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	program := plainPath
	if value(env, withHandlers) != "" {
		program = os.Args[0]
	}
	p := launchProgram(t, program, env, args...)
	p.told = true
	code = p.code(time.Minute)
	return p.stdout.String(), p.stderr.String(), code
}

// ask runs the tool with -o json and decodes its output.
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

// eventually waits until a condition holds. It pauses for longer if an answer takes long: most of
// these conditions start a process, and the tests beside this one need the CPU as well.
func eventually(t *testing.T, within time.Duration, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for {
		asked := time.Now()
		if holds() {
			return
		}
		if !pause(ctx, min(max(20*time.Millisecond, 2*time.Since(asked)), 500*time.Millisecond)) {
			t.Fatalf("not within %s: %s", within, what)
		}
	}
}

// writeFile makes a file in a new folder and returns its path.
func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

var _ io.Writer = (*output)(nil)
