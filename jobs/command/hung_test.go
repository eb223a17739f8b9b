//go:build linux

package command_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/jobs/command"
	"lockstep/jobs/command/guard"
	"lockstep/locks"
	"lockstep/locks/bootclock"
)

// Processes that hang: commands that cannot be killed or reaped, guards that do not respond, and a
// lookup that takes too long.

// helperHungGuard is a guard that takes no orders. It makes the file in $GATE, and ends when that
// file is removed. If started, it reports a process that no signal reaches.
func helperHungGuard(started bool) {
	gate := os.Getenv("GATE")
	if started {
		const unreachable = 1 << 30 // larger than any process ID
		if err := (guard.Report{Started: unreachable}).Send(os.NewFile(guard.ReportsFD, "reports")); err != nil {
			panic(err)
		}
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		panic(err)
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(gate); err != nil {
			return
		}
	}
}

// hung returns an executor with such guards, a function that waits until one is up, and one that
// ends them.
func hung(t *testing.T, kind string) (e *command.Executor, up, release func()) {
	t.Helper()
	gate := filepath.Join(t.TempDir(), "gate")
	e, err := command.New(command.Options{
		Guard: []string{os.Args[0], kind}, GuardEnv: append(os.Environ(), "GATE="+gate), KillAfter: 100 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	up = func() {
		t.Helper()
		eventually(t, "the guard is up", func() bool { _, err := os.Stat(gate); return err == nil })
	}
	release = func() { _ = os.Remove(gate) } // a killed guard may not have made it
	return e, up, release
}

func TestCommandThatCannotBeKilledIsLeftBehindAtTheExitOfItsWorker(t *testing.T) {
	t.Parallel()
	e, up, release := hung(t, "hung with a command")
	attempt, _ := attemptOf("backup")
	abandon := make(chan struct{})
	attempt.Abandon = abandon
	ctx, cancel := context.WithCancelCause(t.Context())
	result := execute(t, ctx, e, attempt)
	t.Cleanup(release) // before Execute must have returned
	up()
	cancel(jobs.ErrDrain)
	select {
	case err := <-result:
		t.Fatalf("got %v while the worker does not exit, want Execute to wait for the command", err)
	case <-time.After(400 * time.Millisecond): // four times KillAfter
	}
	close(abandon)
	err := wait(t, result)
	if !errors.Is(err, jobs.ErrAbandoned) || !errors.Is(err, jobs.ErrDrain) || !strings.Contains(err.Error(), `"backup" cannot be killed`) {
		t.Errorf("got %v, want ErrAbandoned, the cause, and the command", err)
	}
}

// A guard that hangs before it has started its command, such as in a PATH that does not respond,
// ends at the deadline, or KillAfter after the end of the context. Nothing else ends the attempt.
func TestGuardThatHangsBeforeTheStartIsKilled(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		killBy func() time.Duration
		cancel error
		want   error
	}{
		"at the deadline":   {killBy: func() time.Duration { return 1 }, want: locks.ErrLost},
		"after its timeout": {killBy: never, cancel: jobs.ErrTimeout, want: jobs.ErrTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, up, release := hung(t, "hung")
			attempt, _ := attemptOf("backup")
			attempt.KillBy = test.killBy
			ctx, cancel := context.WithCancelCause(t.Context())
			result := execute(t, ctx, e, attempt)
			t.Cleanup(release)
			if test.cancel != nil {
				up()
				cancel(test.cancel)
			}
			if err := wait(t, result); !errors.Is(err, test.want) || errors.Is(err, jobs.ErrAbandoned) {
				t.Errorf("got %v, want %v", err, test.want)
			}
			cancel(nil)
		})
	}
}

// slowPath returns a PATH for a process in folder. The lookup of a program in it takes at least d.
func slowPath(t *testing.T, folder string, d time.Duration) string {
	t.Helper()
	const links = 30 // the system follows 40
	for i := range links {
		if err := os.Symlink(strings.Repeat("./", 2000)+"l"+itoa(i+1), filepath.Join(folder, "l"+itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	each := time.Hour // the shortest: this process may be stopped in any of them
	for range 10 {
		began := time.Now()
		if _, err := os.Stat(filepath.Join(folder, "l0", "sleep")); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("got %v, want links to nothing", err)
		}
		each = min(each, max(time.Since(began), time.Microsecond))
	}
	return strings.Repeat("l0:", int(d/each)+1) + os.Getenv("PATH")
}

// TestGuardLooksAgainBeforeItStartsTheCommand: a lookup in PATH may last until the deadline has
// passed, or the worker has died or changed its mind.
func TestGuardLooksAgainBeforeItStartsTheCommand(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		killBy  time.Duration // from the first order on
		more    []guard.Order // that follow at once
		hangUp  bool
		overdue bool
		starts  bool // but a SIGTERM, not from the worker's own end, ends it
	}{
		"the deadline has passed":          {killBy: 400 * time.Millisecond, overdue: true},
		"it was ordered to stop":           {killBy: time.Minute, more: []guard.Order{{Signal: syscall.SIGTERM, Stop: true}}},
		"its worker has died":              {killBy: time.Minute, hangUp: true},
		"a signal for the command arrived": {killBy: time.Minute, more: []guard.Order{{Signal: syscall.SIGTERM}}, starts: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			slow := 300 * time.Millisecond
			if test.overdue {
				slow = time.Second
			}
			path := slowPath(t, folder, slow)
			ordersRead, ordersWrite, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			reportsRead, reportsWrite, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			process := exec.Command(os.Args[0], "guard")
			process.Dir, process.ExtraFiles = folder, []*os.File{ordersRead, reportsWrite}
			process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			err = process.Start()
			ordersRead.Close()
			reportsWrite.Close()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				ordersWrite.Close() // kills the command
				_ = process.Wait()
				reportsRead.Close()
			})
			first := guard.Order{
				Start:  &guard.Start{Argv: []string{"sleep", "20"}, Env: []string{"PATH=" + path}, Parent: os.Getpid(), Mark: guard.Mark(1<<61 | os.Getpid())},
				KillBy: bootclock.Now() + test.killBy,
			}
			for _, o := range append([]guard.Order{first}, test.more...) {
				if err := o.Send(ordersWrite); err != nil {
					t.Fatal(err)
				}
			}
			if test.hangUp {
				ordersWrite.Close()
			}
			if err := reportsRead.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			var end *guard.Ended
			started := false
			for end == nil {
				got, err := guard.ReceiveReport(reportsRead)
				if err != nil {
					t.Fatalf("%v, want the guard to report an end", err)
				}
				started, end = started || got.Started != 0, got.Ended
			}
			if started != test.starts || end.Stopped == test.starts || end.Overdue != test.overdue ||
				test.starts && end.Signal != syscall.SIGTERM {
				t.Errorf("the guard started the command: %v, and reports %+v", started, *end)
			}
		})
	}
}

// TestGuardThatIsTerminatedBeforeItsHandlersIsNoFailure: a service manager that stops a service
// sends a SIGTERM to all of its processes, also to a guard that has just been started.
func TestGuardThatIsTerminatedBeforeItsHandlersIsNoFailure(t *testing.T) {
	t.Parallel()
	e, err := command.New(command.Options{Guard: []string{os.Args[0], "terminated"}, GuardEnv: os.Environ(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	attempt, _ := attemptOf("true")
	if err := e.Execute(t.Context(), attempt); !errors.Is(err, jobs.ErrTerminated) {
		t.Errorf("got %v, want it ended by a SIGTERM", err)
	}
}

// debug debugs a process, as a debugger that has been left at its prompt. The process can be reaped
// only after a call of leave, which kills it.
func debug(t *testing.T, pid int) (leave func()) {
	t.Helper()
	const seize, anyThread = 0x4206, 0x40000000 // PTRACE_SEIZE, __WALL
	left, begun, ended := make(chan struct{}), make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // a thread is a debugger, not its process
		defer runtime.UnlockOSThread()
		if _, _, err := syscall.Syscall6(syscall.SYS_PTRACE, seize, uintptr(pid), 0, 0, 0, 0); err != 0 {
			begun <- err
			return
		}
		close(begun)
		<-left
		_, _ = syscall.Wait4(pid, nil, anyThread, nil)
	}()
	leave = sync.OnceFunc(func() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		close(left)
		<-ended
	})
	t.Cleanup(leave)
	if err := <-begun; err != nil {
		t.Fatalf("debug process %d: %v", pid, err)
	}
	return leave
}

// TestGuardRestsWhileADebuggerHoldsTheEndOfItsCommand: a guard can reap a command that is debugged
// only when the debugger has seen it end. Until then, the guard must not search for descendants all
// the time.
func TestGuardRestsWhileADebuggerHoldsTheEndOfItsCommand(t *testing.T) {
	t.Parallel()
	f := newForest(t)
	attempt, _ := f.attempt(tree + "wait")
	result := execute(t, t.Context(), newExecutor(0), attempt)
	f.grown(t)
	guardPID, pid := guardOf(t, f), f.pids()[0]
	leave := debug(t, pid)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command has ended", func() bool { return !alive(pid) })
	const looks = 2 * time.Second
	before := processorTime(t, guardPID)
	time.Sleep(looks)
	if used := processorTime(t, guardPID) - before; used > looks/3 {
		t.Errorf("the guard used %v of processor time in %v", used, looks)
	}
	leave()
	var exit *command.ExitError
	if err := wait(t, result); !errors.As(err, &exit) || exit.Signal != syscall.SIGKILL {
		t.Errorf("got %v, want it killed", err)
	}
	if left := f.alive(); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
}

// processorTime returns the processor time that a process has used so far.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + itoa(pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	return time.Duration(atoi(fields[11])+atoi(fields[12])) * 10 * time.Millisecond
}
