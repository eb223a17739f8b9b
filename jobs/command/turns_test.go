//go:build linux

package command_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/jobs/command"
)

// helperSlowGuard takes its time before it begins as a guard. While it does, it has a file in
// $STARTS. If its label is "hung", it waits until another process removes that file.
func helperSlowGuard() {
	file := filepath.Join(os.Getenv("STARTS"), fmt.Sprint(os.Getpid()))
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		panic(err)
	}
	for end := time.Now().Add(time.Minute); os.Args[2] == "hung" && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(file); err != nil {
			return
		}
	}
	time.Sleep(30 * time.Millisecond)
	_ = os.Remove(file)
}

// slow returns an executor with such guards and this limit of turns, a function that lists those
// that have not begun, and one that ends those that hang.
func slow(t *testing.T, limit time.Duration) (e *command.Executor, starting func() []os.DirEntry, release func()) {
	t.Helper()
	folder := t.TempDir()
	e, err := command.New(command.Options{
		Guard: []string{os.Args[0], "slow"}, GuardEnv: append(os.Environ(), "STARTS="+folder), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	e.LimitTurns(limit)
	starting = func() []os.DirEntry {
		entries, err := os.ReadDir(folder)
		if err != nil {
			t.Error(err)
		}
		return entries
	}
	release = func() {
		for _, entry := range starting() {
			_ = os.Remove(filepath.Join(folder, entry.Name()))
		}
	}
	return e, starting, release
}

func TestGuardsStartInTurns(t *testing.T) {
	t.Parallel()
	e, starting, _ := slow(t, time.Minute)
	var all sync.WaitGroup
	for range 4 * runtime.GOMAXPROCS(0) {
		all.Go(func() {
			if err := e.Run(t.Context(), command.Spec{Argv: []string{"true"}, Label: "quick"}); err != nil {
				t.Error(err)
			}
		})
	}
	done, most := make(chan struct{}), 0
	go func() { defer close(done); all.Wait() }()
	for tick := time.NewTicker(time.Millisecond); ; {
		select {
		case <-tick.C:
			most = max(most, len(starting()))
			continue
		case <-done:
			tick.Stop()
		}
		break
	}
	if most == 0 || most > runtime.GOMAXPROCS(0) {
		t.Errorf("at most %d guards started at the same time, want 1 to %d", most, runtime.GOMAXPROCS(0))
	}
}

// A guard may hang, and must not keep other commands from their start.
func TestGuardsThatHangDelayOthersBriefly(t *testing.T) {
	t.Parallel()
	const limit = 50 * time.Millisecond
	e, starting, release := slow(t, limit)
	var all sync.WaitGroup
	t.Cleanup(func() { release(); all.Wait() })
	hung := 2 * runtime.GOMAXPROCS(0)
	for range hung {
		all.Go(func() {
			if err := e.Run(context.WithoutCancel(t.Context()), command.Spec{Argv: []string{"true"}, Label: "hung"}); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all guards that hang have started", func() bool { return len(starting()) == hung })
	if err := e.Run(t.Context(), command.Spec{Argv: []string{"true"}, Label: "quick"}); err != nil {
		t.Error(err)
	}
	if len(starting()) != hung {
		t.Error("the guards do not hang any more, so this test proves nothing")
	}
}

// A run that is canceled while it waits for its turn starts nothing.
func TestCommandThatIsCancelledBeforeItsTurnIsNotStarted(t *testing.T) {
	t.Parallel()
	e, starting, release := slow(t, time.Minute)
	var all sync.WaitGroup
	t.Cleanup(func() { release(); all.Wait() })
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			if err := e.Run(context.WithoutCancel(t.Context()), command.Spec{Argv: []string{"true"}, Label: "hung"}); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all places are taken", func() bool { return len(starting()) == runtime.GOMAXPROCS(0) })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := e.Run(ctx, command.Spec{Argv: []string{"true"}, Label: "late"}); err == nil || !strings.Contains(err.Error(), "was not started") {
		t.Errorf("got %v, want a command that was not started", err)
	}
}
