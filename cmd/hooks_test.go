package cmd

import (
	"context"
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

	"lockstep/cmd/internal/asguard"
	"lockstep/jobs"
)

// hooksIn names a folder in which the program with handlers writes a line for each call of OnStart
// and OnStop, and one for its own code before Main. OnStart fails while the folder has a file
// "refuse", and waits while it has a file "wait".
const hooksIn = "LOCKSTEP_CMD_TEST_HOOKS"

func addHooks(reg *jobs.Registry) {
	folder := os.Getenv(hooksIn)
	if folder == "" {
		return
	}
	record := func(file string, what ...any) error {
		f, err := os.OpenFile(filepath.Join(folder, file), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(f, what...)
		return errors.Join(err, f.Close())
	}
	if err := record("mains", os.Args[1]); err != nil {
		panic(err)
	}
	trace := func(what string) error { return record("calls", what, os.Getpid()) }
	reg.OnStart(func(ctx context.Context) error {
		for exists(filepath.Join(folder, "wait")) && pause(ctx, 10*time.Millisecond) {
		}
		if exists(filepath.Join(folder, "refuse")) {
			return errors.New("no database at 10.0.0.7")
		}
		return trace("start")
	})
	reg.OnStop(func(context.Context) error { return trace("stop") })
}

// hookCalls returns the calls of hooks so far, each as "start 4711".
func hookCalls(folder string) []string {
	text, _ := os.ReadFile(filepath.Join(folder, "calls")) // it may not exist yet
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func TestHooksRunInTheWorkingChildAlone(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	f, _ := newPack(t, `jobs: {works: {command: ["true"]}}`, long, withHandlers+"=1", hooksIn+"="+folder)
	f.startAll(1)
	child := f.workers[0].worker()
	f.await(f.enqueue("works", "x"), "succeeded")
	if stdout, stderr, code := runTool(t, f.env, "job", "ls"); code != 0 {
		t.Fatal(stdout, stderr)
	}
	if got, want := strings.Join(hookCalls(folder), ", "), "start "+strconv.Itoa(child); got != want {
		t.Errorf("while the worker %d runs: %s, want %s", child, got, want)
	}
	f.workers[0].signal(syscall.SIGTERM)
	if code := f.workers[0].code(time.Minute); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if got, want := strings.Join(hookCalls(folder), ", "), fmt.Sprintf("start %d, stop %[1]d", child); got != want {
		t.Errorf("behind the drain: %s, want %s", got, want)
	}
}

// Code before Main would delay each command.
func TestCodeBeforeMainDoesNotRunInGuards(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	f, _ := newPack(t, `jobs: {works: {command: ["true"]}}`, long, withHandlers+"=1", hooksIn+"="+folder)
	f.startAll(1)
	f.await(f.enqueue("works", "x"), "succeeded")
	text, err := os.ReadFile(filepath.Join(folder, "mains"))
	if err != nil {
		t.Fatal(err)
	}
	if mains := strings.Fields(string(text)); !slices.Contains(mains, "start") || !slices.Contains(mains, childWord) || slices.Contains(mains, asguard.Word) {
		t.Errorf("it ran in %q, want a parent and a child among them, and no guard", mains)
	}
}

func TestFailedOnStartEndsTheWorker(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	write(t, filepath.Join(folder, "refuse"), "")
	f, _ := newPack(t, `jobs: {works: {command: ["true"]}}`, long, withHandlers+"=1", hooksIn+"="+folder)
	f.start()
	if code := f.workers[0].code(time.Minute); code != exitFailed {
		t.Errorf("exit code %d, want %d", code, exitFailed)
	}
	const want = "the worker cannot start: OnStart: no database at 10.0.0.7"
	if said := f.workers[0].stderr.String(); strings.Count(said, want) != 1 {
		t.Errorf("stderr has %q, want %q once", said, want)
	}
	if got := hookCalls(folder); got[0] != "" {
		t.Errorf("called %q, want nothing closed that was not opened", got)
	}
}

// If a database is down when a crashed worker is replaced, the parent does not exit; a child starts
// when the database is back.
func TestOnStartIsRetriedAfterACrash(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	f, _ := newPack(t, `jobs: {works: {command: ["true"]}}`, long, withHandlers+"=1", hooksIn+"="+folder)
	f.startAll(1)
	write(t, filepath.Join(folder, "refuse"), "")
	f.workers[0].killChild()
	eventually(t, time.Minute, "the next one cannot start", func() bool {
		said := f.workers[0].stderr.String()
		return strings.Contains(said, "the next one cannot start") && strings.Contains(said, `"because":"OnStart: no database at 10.0.0.7"`)
	})
	must(t, os.Remove(filepath.Join(folder, "refuse")))
	f.await(f.enqueue("works", "x"), "succeeded")
}
