//go:build linux

package command_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/jobs/command"
)

// sized returns args of n bytes.
func sized(n int) json.RawMessage { return json.RawMessage(`"` + strings.Repeat("x", n-2) + `"`) }

// temporary gives the test its own folder for temporary files, and returns a function that lists
// them.
func temporary(t *testing.T) (left func() []string) {
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	return func() []string {
		files, err := filepath.Glob(filepath.Join(folder, "*"))
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
}

const showArgs = `
	if [ -n "$LOCKSTEP_ARGS_FILE" ]; then
		echo "file ${LOCKSTEP_ARGS-unset} $(stat -c %a "$LOCKSTEP_ARGS_FILE") $(wc -c < "$LOCKSTEP_ARGS_FILE")"
	else
		printf 'variable %s' "$LOCKSTEP_ARGS" | wc -c
	fi`

func TestCommandGetsLargeArgsInAFile(t *testing.T) {
	left := temporary(t)
	t.Setenv("LOCKSTEP_ARGS_FILE", "another attempt's")
	t.Setenv("LOCKSTEP_ARGS", "another attempt's")
	const most = 128<<10 - len("LOCKSTEP_ARGS=") - 1 // Linux counts the terminating zero byte
	variable := func(n int) string { return strconv.Itoa(len("variable ") + n) }
	for _, test := range []struct {
		size int
		want string
	}{
		{2, variable(2)},
		{most, variable(most)},
		{most + 1, "file unset 600 " + strconv.Itoa(most+1)},
		{128 << 10, "file unset 600 131072"},
		{16 << 20, "file unset 600 16777216"},
	} {
		attempt, output := attemptOf("sh", "-c", showArgs)
		attempt.Args = sized(test.size)
		if err := newExecutor(0).Execute(t.Context(), attempt); err != nil {
			t.Errorf("args of %d bytes: %v", test.size, err)
		}
		if got := strings.TrimSpace(output.String()); got != test.want {
			t.Errorf("args of %d bytes: the command saw %q, want %q", test.size, got, test.want)
		}
		if files := left(); len(files) != 0 {
			t.Errorf("args of %d bytes: %v is left", test.size, files)
		}
	}
}

func TestArgsFileIsAlwaysRemoved(t *testing.T) {
	left := temporary(t)
	attempt, _ := attemptOf("no-such-program")
	attempt.Args = sized(200_000)
	if err := newExecutor(0).Execute(t.Context(), attempt); err == nil {
		t.Error("got nil, want an error: there is no such program")
	}
	if files := left(); len(files) != 0 {
		t.Errorf("after a command that could not be started, %v is left", files)
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	attempt, _ = attemptOf("sleep", "1000")
	attempt.Args = sized(200_000)
	result := execute(t, ctx, newExecutor(0), attempt)
	eventually(t, "the file exists", func() bool { return len(left()) == 1 })
	cancel(jobs.ErrCanceled)
	if err := wait(t, result); !errors.Is(err, jobs.ErrCanceled) {
		t.Errorf("got %v, want it canceled", err)
	}
	if files := left(); len(files) != 0 {
		t.Errorf("after a command that was canceled, %v is left", files)
	}
}

func TestGuardOfADeadWorkerRemovesTheArgsFile(t *testing.T) {
	left := temporary(t)
	t.Setenv("ARGS_SIZE", "200000")
	worker, f := startWorker(t)
	if len(left()) != 1 {
		t.Fatalf("files %v, want that of the args", left())
	}
	if err := worker.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command is dead", func() bool { return len(f.alive()) == 0 })
	eventually(t, "the file is removed", func() bool { return len(left()) == 0 })
}

// TestTheNextWorkerRemovesFilesOfArgsWhoseWorkerAndGuardWereKilled, and no other files.
func TestTheNextWorkerRemovesFilesOfArgsWhoseWorkerAndGuardWereKilled(t *testing.T) {
	left := temporary(t)
	t.Setenv("ARGS_SIZE", "200000")
	worker, f := startWorker(t)
	files := left()
	if len(files) != 1 {
		t.Fatalf("files %v, want that of the args", files)
	}
	age := func(file string) {
		t.Helper()
		past := time.Now().Add(-2 * time.Minute)
		if err := os.Chtimes(file, past, past); err != nil {
			t.Fatal(err)
		}
	}
	removes := func(want int) {
		t.Helper()
		n, next, err := command.RemoveLeftArgs()
		if n != want || err != nil {
			t.Errorf("%d files were removed, %v, want %d", n, err, want)
		}
		if wait := time.Until(next); next.IsZero() != (want == 0) || want > 0 && (wait < 30*time.Second || wait > time.Minute) {
			t.Errorf("the next call is due in %s (at %v), want one when the young file is a minute old", wait, next)
		}
	}
	age(files[0])
	removes(0) // its worker lives
	guard := childOf(t, worker.Process.Pid)
	// it must not notice that its worker dies
	if err := syscall.Kill(guard, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the guard is stopped", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", guard))
		return err == nil && strings.HasPrefix(string(text[bytes.LastIndexByte(text, ')')+1:]), " T")
	})
	if err := worker.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = worker.Wait()
	if err := syscall.Kill(guard, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, pid := range f.alive() {
		_ = syscall.Kill(pid, syscall.SIGKILL) // no guard does that now
	}
	folder := filepath.Dir(files[0])
	young, link := filepath.Join(folder, "lockstep-args-1.json"), filepath.Join(folder, "lockstep-args-2.json")
	// its owner is about to lock it
	if err := os.WriteFile(young, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(files[0], link); err != nil {
		t.Fatal(err)
	}
	if n := len(left()); n != 3 {
		t.Fatalf("%d files, want that of the args and two others", n)
	}
	removes(1)
	if rest := left(); !slices.Equal(rest, []string{young, link}) {
		t.Errorf("%v is left, want %s and %s", rest, young, link)
	}
}

// childOf returns a process that another one has started.
func childOf(t *testing.T, parent int) int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		after := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // state, parent
		if len(after) > 1 && after[1] == strconv.Itoa(parent) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatalf("process %d has no child", parent)
	return 0
}

func TestErrorOfWritingArgsNamesTheFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "none")
	t.Setenv("TMPDIR", folder)
	attempt, _ := attemptOf("true")
	attempt.Args = sized(200_000)
	err := newExecutor(0).Execute(t.Context(), attempt)
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), folder) || jobs.IsPermanent(err) {
		t.Errorf("got %v, want a retryable error that names TMPDIR", err)
	}
}
