//go:build linux

// The tests of this package read /proc and end processes that only a subreaper finds.

package command_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lockstep/jobs"
	"lockstep/jobs/command"
	"lockstep/locks"
	"lockstep/locks/bootclock"
)

// TestMain makes the test binary act as a guard, a worker to kill, or a command, if a test starts
// it as one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "guard":
			os.Exit(command.GuardMain())
		case "slow":
			helperSlowGuard()
			os.Exit(command.GuardMain())
		case "worker":
			helperWorker(os.Args[2])
			os.Exit(0)
		case "terminated":
			_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
			time.Sleep(time.Minute) // the signal may reach another thread
		case "hung", "hung with a command":
			helperHungGuard(os.Args[1] != "hung")
			os.Exit(0)
		case "show":
			helperShow()
			os.Exit(0)
		case "foreground":
			helperForeground(os.Args[2])
			os.Exit(0)
		}
	}
	// With the race detector, a process sleeps for a second before it exits, and there are many
	// guards.
	os.Setenv("GORACE", strings.TrimSpace("atexit_sleep_ms=0 "+os.Getenv("GORACE")))
	goleak.VerifyTestMain(m)
}

func newExecutor(killAfter time.Duration) *command.Executor {
	self, err := command.Self()
	if err != nil {
		panic(err)
	}
	e, err := command.New(command.Options{Guard: []string{self, "guard"}, KillAfter: killAfter, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err)
	}
	return e
}

func never() time.Duration { return bootclock.Now() + time.Hour }

func attemptOf(argv ...string) (*jobs.Attempt, *jobs.Tail) {
	output := jobs.NewTail(0)
	return &jobs.Attempt{
		Job:    &jobs.Job{Name: "j", Command: argv},
		Run:    "j#1",
		Number: 1,
		Output: output,
		KillBy: never,
	}, output
}

// tree is a shell script that writes the IDs of its processes into the file in $PIDS: its own, a
// child, a child in another session, and a daemon (which has also lost its parent) that ignores
// TERM.
const tree = `
	echo $$ >> $PIDS
	sleep 1000 &
	echo $! >> $PIDS
	setsid sh -c 'echo $$ >> $PIDS; exec sleep 1000' &
	(setsid sh -c 'trap "" TERM; echo $$ >> $PIDS; exec sleep 1000' &)
`

// treeSize is how many lines tree writes.
const treeSize = 4

// forest makes attempts at a script that begins with tree, and knows its processes.
type forest struct{ file string }

func newForest(t *testing.T) forest {
	f := forest{filepath.Join(t.TempDir(), "pids")}
	t.Cleanup(func() {
		for _, pid := range f.pids() {
			if alive(pid) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	return f
}

func (f forest) attempt(script string) (*jobs.Attempt, *jobs.Tail) {
	attempt, output := attemptOf("sh", "-c", script)
	attempt.Job.Env = map[string]string{"PIDS": f.file}
	return attempt, output
}

func (f forest) pids() []int {
	text, _ := os.ReadFile(f.file)
	var pids []int
	for line := range strings.Lines(string(text)) {
		if pid, err := strconv.Atoi(strings.TrimSuffix(line, "\n")); err == nil && strings.HasSuffix(line, "\n") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// grown waits until the whole tree runs.
func (f forest) grown(t *testing.T) {
	t.Helper()
	eventually(t, "the command's processes run", func() bool { return len(f.pids()) == treeSize })
}

func (f forest) alive() []int {
	var left []int
	for _, pid := range f.pids() {
		if alive(pid) {
			left = append(left, pid)
		}
	}
	return left
}

// alive reports whether a process can still do something. A dead process that was not reaped is not
// alive.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	return len(fields) > 0 && string(fields[0]) != "Z" && string(fields[0]) != "X"
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 20s: %s", what)
		}
	}
}

// execute runs the attempt in the background. Read the result once.
func execute(t *testing.T, ctx context.Context, e *command.Executor, attempt *jobs.Attempt) <-chan error {
	result := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		result <- e.Execute(ctx, attempt)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return result
}

// wait returns the result of execute, or fails the test.
func wait(t *testing.T, result <-chan error) error {
	t.Helper()
	select {
	case err := <-result:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("Execute does not return")
		return nil
	}
}

// helperWorker is a worker with a constantly renewed lease of 1.5 s. It runs tree and writes the
// result.
func helperWorker(folder string) {
	attempt, _ := attemptOf("sh", "-c", tree+"wait")
	attempt.Job.Env = map[string]string{"PIDS": filepath.Join(folder, "pids")}
	if size, err := strconv.Atoi(os.Getenv("ARGS_SIZE")); err == nil {
		attempt.Args = []byte(`"` + strings.Repeat("x", size-2) + `"`)
	}
	attempt.KillBy = func() time.Duration { return bootclock.Now() + 1500*time.Millisecond }
	err := newExecutor(0).Execute(context.Background(), attempt) //nolint:forbidigo // like main
	result := fmt.Sprintf("lost=%v %v", errors.Is(err, locks.ErrLost), err)
	if err := os.WriteFile(filepath.Join(folder, "result"), []byte(result), 0o600); err != nil {
		panic(err)
	}
}

// startWorker starts a helperWorker and waits until its command runs.
func startWorker(t *testing.T) (*exec.Cmd, forest) {
	f := newForest(t)
	worker := exec.Command(os.Args[0], "worker", filepath.Dir(f.file))
	worker.Stderr = os.Stderr
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = worker.Process.Kill()
		_ = worker.Wait()
	})
	f.grown(t)
	return worker, f
}

// shown is a command's view of itself.
type shown struct {
	Args  []string
	Env   []string
	Files map[int]string
	Guard string // its guard's arguments and environment
	Group int    // of processes
}

// openFiles returns the open files of this process, by number.
func openFiles() map[int]string {
	files := make(map[int]string)
	for fd := range 100 {
		if target, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil {
			files[fd] = target
		}
	}
	return files
}

func helperShow() {
	s := shown{Args: os.Args, Env: os.Environ(), Group: syscall.Getpgrp()}
	s.Files = openFiles()
	for _, file := range []string{"cmdline", "environ"} {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", os.Getppid(), file))
		s.Guard += string(bytes.ReplaceAll(text, []byte{0}, []byte{'\n'}))
	}
	if err := json.NewEncoder(os.Stdout).Encode(s); err != nil {
		panic(err)
	}
}
