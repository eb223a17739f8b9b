//go:build linux

package command_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/jobs/command"
	"lockstep/locks"
	"lockstep/locks/bootclock"
)

func TestCommandGetsTheDocumentedEnvironment(t *testing.T) {
	t.Setenv("INHERITED", "from the worker")
	t.Setenv("OVERRIDDEN", "from the worker")
	t.Setenv("TRACEPARENT", "the worker's own")
	t.Setenv("LOCKSTEP_HOLD", "the worker's own")
	attempt, output := attemptOf(os.Args[0], "show", "secret-argument", "two words")
	attempt.Job.Env = map[string]string{"OVERRIDDEN": "from the job", "SECRET": "secret-value", "NOT_UTF8": "a\xffb", "EMPTY": ""}
	attempt.Job.Name, attempt.Run, attempt.Number = "nightly", "nightly@2026-11-21T01:00:00Z", 2
	attempt.Tick = time.Date(2026, 11, 21, 2, 0, 0, 0, time.FixedZone("CET", 3600))
	attempt.Args, attempt.Token, attempt.Hold = json.RawMessage(`{"a": "ä"}`), 1795222800123456, "web-1.x7k2m9qa.3"
	attempt.Locks, attempt.Worker = []string{"a", `b"c`}, "web-1.x7k2m9qa"
	attempt.TraceParent, attempt.TraceState = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1"

	if err := newExecutor(0).Execute(t.Context(), attempt); err != nil {
		t.Fatalf("Execute: %v\n%s", err, output)
	}
	got := decodeShown(t, output.String())
	for _, want := range []string{
		"LOCKSTEP_JOB=nightly",
		"LOCKSTEP_RUN_ID=nightly@2026-11-21T01:00:00Z",
		"LOCKSTEP_ATTEMPT=2",
		"LOCKSTEP_TICK=2026-11-21T01:00:00Z",
		"LOCKSTEP_TOKEN=1795222800123456",
		"LOCKSTEP_IDEMPOTENCY_KEY=nightly@2026-11-21T01:00:00Z",
		`LOCKSTEP_ARGS={"a": "ä"}`,
		`LOCKSTEP_LOCKS=["a","b\"c"]`,
		"LOCKSTEP_HOLD=web-1.x7k2m9qa.3",
		"LOCKSTEP_WORKER=web-1.x7k2m9qa",
		"TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"TRACESTATE=vendor=1",
		"INHERITED=from the worker",
		"OVERRIDDEN=from the job",
		"SECRET=secret-value",
		"EMPTY=",
		"NOT_UTF8=a\ufffdb", // JSON's form of the byte 0xff
	} {
		name, _, _ := strings.Cut(want, "=")
		var entries []string
		for _, entry := range got.Env {
			if strings.HasPrefix(entry, name+"=") {
				entries = append(entries, entry)
			}
		}
		if !slices.Equal(entries, []string{want}) {
			t.Errorf("environment has %q, want %q once", entries, want)
		}
	}
	if want := []string{os.Args[0], "show", "secret-argument", "two words"}; !slices.Equal(got.Args, want) {
		t.Errorf("arguments %q, want %q", got.Args, want)
	}
	if got.Files[0] != "/dev/null" || !strings.HasPrefix(got.Files[1], "pipe:") || got.Files[1] != got.Files[2] {
		t.Errorf("open files %v, want an empty input and one pipe for both outputs", got.Files)
	}
	own := openFiles() // for example, make passes pipes to all its descendants
	for fd, target := range got.Files {
		if fd > 2 && strings.HasPrefix(target, "pipe:") && own[fd] != target {
			t.Errorf("file %d is %s: the command has a pipe of its guard", fd, target)
		}
	}
	if strings.Contains(got.Guard, "secret") || !strings.Contains(got.Guard, "guard\nnightly@2026-11-21T01:00:00Z\n") {
		t.Errorf("the guard shows %q, want the run and no secret", got.Guard)
	}
}

// Neither a command nor its guard, which the command can inspect, has the variables that the worker
// withholds.
func TestCommandAndGuardInheritOnlyTheirOwnEnvironment(t *testing.T) {
	t.Setenv("CREDENTIAL", "hunter2-5f0c81")
	self, err := command.Self()
	if err != nil {
		t.Fatal(err)
	}
	e, err := command.New(command.Options{
		Guard: []string{self, "guard"}, Logger: slog.New(slog.DiscardHandler),
		GuardEnv: []string{"PATH=" + os.Getenv("PATH"), "GORACE=" + os.Getenv("GORACE")}, JobEnv: []string{"KEPT=1", "TRACEPARENT=x"},
	})
	if err != nil {
		t.Fatal(err)
	}
	attempt, output := attemptOf(os.Args[0], "show")
	if err := e.Execute(t.Context(), attempt); err != nil {
		t.Fatal(err)
	}
	got := decodeShown(t, output.String())
	for _, entry := range got.Env {
		if name, _, _ := strings.Cut(entry, "="); name != "KEPT" && !strings.HasPrefix(name, "LOCKSTEP_") {
			t.Errorf("the command has %s", entry)
		}
	}
	if !slices.Contains(got.Env, "KEPT=1") || strings.Contains(got.Guard, "hunter2") || strings.Contains(got.Guard, "KEPT") {
		t.Errorf("the command has %q, and the guard shows %q", got.Env, got.Guard)
	}
}

func TestCommandWithoutTickArgsAndTrace(t *testing.T) {
	t.Setenv("TRACEPARENT", "the worker's own")
	t.Setenv("TRACESTATE", "the worker's own")
	t.Setenv("LOCKSTEP_TICK", "the worker's own")
	attempt, output := attemptOf(os.Args[0], "show")
	if err := newExecutor(0).Execute(t.Context(), attempt); err != nil {
		t.Fatal(err)
	}
	env := decodeShown(t, output.String()).Env
	for _, want := range []string{"LOCKSTEP_TICK=", "LOCKSTEP_ARGS={}", "LOCKSTEP_LOCKS=[]"} {
		if !slices.Contains(env, want) {
			t.Errorf("environment lacks %q", want)
		}
	}
	if i := slices.IndexFunc(env, func(entry string) bool { return strings.HasPrefix(entry, "TRACE") }); i >= 0 {
		t.Errorf("environment has %q, want no trace context", env[i])
	}
}

func decodeShown(t *testing.T, text string) shown {
	t.Helper()
	var s shown
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return s
}

func TestExitStatus(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		script string
		text   string
		code   int
	}{
		{"exit 0", "", 0},
		{"exit 3", "exit status 3", 3},
		{"exit 255", "exit status 255", 255},
		{"kill -TERM $$", "signal: terminated", 143},
		{"kill -KILL $$", "signal: killed", 137},
	} {
		attempt, _ := attemptOf("sh", "-c", test.script)
		err := newExecutor(0).Execute(t.Context(), attempt)
		var exit *command.ExitError
		switch {
		case test.code == 0 && err != nil, test.code != 0 && (!errors.As(err, &exit) || exit.ExitCode() != test.code || err.Error() != test.text):
			t.Errorf("%q: got %v, want %q with code %d", test.script, err, test.text, test.code)
		case jobs.IsPermanent(err):
			t.Errorf("%q: %v is permanent; a command may be tried again", test.script, err)
		}
	}
}

func TestCommandThatCannotBeStarted(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, test := range []struct {
		argv []string
		want string
		is   error
		code int
	}{
		{[]string{"no-such-program"}, `start "no-such-program": executable file not found in $PATH`, exec.ErrNotFound, 127},
		{[]string{"/no/such/program"}, `start "/no/such/program": no such file or directory`, fs.ErrNotExist, 127},
		{[]string{file("plain", "", 0o600)}, "permission denied", fs.ErrPermission, 126},
		{[]string{folder}, "is a directory", syscall.EISDIR, 126},
		{[]string{file("no-interpreter", "#!/no/such/shell\n", 0o700)}, "the interpreter in its first line does not", fs.ErrNotExist, 127},
		{[]string{file("no-format", "echo hello\n", 0o700)}, "exec format error (a script needs a first line like #!/bin/sh)", syscall.ENOEXEC, 126},
	} {
		attempt, output := attemptOf(test.argv...)
		err := newExecutor(0).Execute(t.Context(), attempt)
		var failure *command.StartError
		if !errors.As(err, &failure) || !strings.Contains(err.Error(), test.want) || !errors.Is(err, test.is) || failure.ExitCode() != test.code {
			t.Errorf("%q: got %v, want %q, %v and code %d", test.argv, err, test.want, test.is, test.code)
		}
		if jobs.IsPermanent(err) || output.String() != "" {
			t.Errorf("%q: permanent %v, output %q; want neither: another worker may have it", test.argv, jobs.IsPermanent(err), output)
		}
	}

	attempt, _ := attemptOf()
	if err := newExecutor(0).Execute(t.Context(), attempt); err == nil {
		t.Error("no command at all: got nil, want an error")
	}
	attempt, _ = attemptOf("true")
	attempt.Locks = []string{strings.Repeat("x", 200_000)}
	err := newExecutor(0).Execute(t.Context(), attempt)
	if !jobs.IsPermanent(err) || !strings.Contains(err.Error(), "LOCKSTEP_LOCKS has 200004 bytes") {
		t.Errorf("names of locks that do not fit into an environment: got %v, want a permanent error that says so", err)
	}
}

func TestProgramIsLookedUpInTheJobsPath(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "only-here"), []byte("#!/bin/sh\necho found\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	attempt, output := attemptOf("only-here")
	attempt.Job.Env = map[string]string{"PATH": folder}
	if err := newExecutor(0).Execute(t.Context(), attempt); err != nil || output.String() != "found\n" {
		t.Errorf("got %v and output %q, want it found", err, output)
	}
}

func TestHugeOutputDoesNotBlock(t *testing.T) {
	t.Parallel()
	attempt, output := attemptOf("sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' x; echo; echo to stderr >&2; echo end")
	if err := newExecutor(0).Execute(t.Context(), attempt); err != nil {
		t.Fatal(err)
	}
	head, kept, _ := strings.Cut(output.String(), "\n")
	if head != "[19983631 bytes left out]" || len(kept) != jobs.DefaultTail || !strings.HasSuffix(kept, "x\nto stderr\nend\n") {
		t.Errorf("head %q, %d bytes kept, end %q", head, len(kept), kept[max(len(kept)-30, 0):])
	}
}

func TestLeftoversAreKilledWithoutDelay(t *testing.T) {
	t.Parallel()
	f := newForest(t)
	attempt, output := f.attempt(tree + "while [ $(wc -l < $PIDS) -lt 4 ]; do sleep 0.01; done; echo done")
	if err := newExecutor(0).Execute(t.Context(), attempt); err != nil {
		t.Fatalf("got %v, want nil: the command itself has succeeded", err)
	}
	if left := f.alive(); len(left) > 0 || len(f.pids()) != treeSize {
		t.Errorf("processes %v of %v are left", left, f.pids())
	}
	if want := "done\nlockstep: the command left 3 processes running; they were killed, because its lock is about to be released\n"; output.String() != want {
		t.Errorf("output %q, want %q", output, want)
	}
}

func TestEndOfContextKillsAllDescendants(t *testing.T) {
	t.Parallel()
	f := newForest(t)
	const killAfter = 300 * time.Millisecond
	attempt, _ := f.attempt(`trap "" TERM;` + tree + "while :; do sleep 0.1; done")
	ctx, cancel := context.WithCancelCause(t.Context())
	result := execute(t, ctx, newExecutor(killAfter), attempt)
	f.grown(t)
	start := time.Now()
	cancel(jobs.ErrTimeout)
	err := wait(t, result)
	elapsed := time.Since(start)
	if left := f.alive(); len(left) > 0 {
		t.Errorf("processes %v of %v are left after Execute has returned", left, f.pids())
	}
	var exit *command.ExitError
	if !errors.Is(err, jobs.ErrTimeout) || !errors.As(err, &exit) || exit.Signal != syscall.SIGKILL {
		t.Errorf("got %v, want the cause and the signal", err)
	}
	if elapsed < killAfter || elapsed > killAfter+5*time.Second {
		t.Errorf("ended after %v, want soon after %v", elapsed, killAfter)
	}
}

func TestCommandCanEndItselfOnTERM(t *testing.T) {
	t.Parallel()
	f := newForest(t)
	for script, wantExit := range map[string]*command.ExitError{
		`trap "echo bye; exit 7" TERM;` + tree + "wait": {Code: 7},
		`trap "echo bye; exit 0" TERM;` + tree + "wait": nil,
		"echo bye;" + tree + "wait":                     {Signal: syscall.SIGTERM},
		// A stopped process must continue to receive the signal.
		"echo bye;" + tree + "kill -STOP $$; sleep 1000": {Signal: syscall.SIGTERM},
	} {
		if err := os.RemoveAll(f.file); err != nil {
			t.Fatal(err)
		}
		attempt, output := f.attempt(script)
		ctx, cancel := context.WithCancelCause(t.Context())
		result := execute(t, ctx, newExecutor(time.Minute), attempt)
		f.grown(t)
		cancel(jobs.ErrDrain)
		err := wait(t, result)
		var exit *command.ExitError
		errors.As(err, &exit)
		if !errors.Is(err, jobs.ErrDrain) || (exit == nil) != (wantExit == nil) || exit != nil && *exit != *wantExit {
			t.Errorf("%s: got %v, want the cause and %v", script, err, wantExit)
		}
		if left := f.alive(); len(left) > 0 || output.String() != "bye\n" {
			t.Errorf("%s: processes left %v, output %q", script, left, output)
		}
	}
}

func TestKillNeverComesLaterThanKillBy(t *testing.T) {
	t.Parallel()
	f := newForest(t)
	attempt, _ := f.attempt(`trap "" TERM;` + tree + "while :; do sleep 0.1; done")
	killBy := make(chan time.Duration, 1)
	attempt.KillBy = func() time.Duration {
		select {
		case d := <-killBy:
			killBy <- d
			return d
		default:
			return never()
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	result := execute(t, ctx, newExecutor(time.Hour), attempt)
	f.grown(t)
	deadline := bootclock.Now() + 400*time.Millisecond
	killBy <- deadline
	cancel(locks.ErrLost)
	err := wait(t, result)
	if now := bootclock.Now(); now < deadline || now > deadline+5*time.Second {
		t.Errorf("ended %v after the deadline", now-deadline)
	}
	if left := f.alive(); !errors.Is(err, locks.ErrLost) || len(left) > 0 {
		t.Errorf("got %v with %v left, want ErrLost and nothing", err, left)
	}
}

func TestDeadlineEndsACommandBeforeItsContext(t *testing.T) {
	t.Parallel()
	f := newForest(t)
	attempt, _ := f.attempt(tree + "wait")
	var killBy atomic.Int64 // 0: never
	attempt.KillBy = func() time.Duration {
		if at := killBy.Load(); at != 0 {
			return time.Duration(at)
		}
		return never()
	}
	result := execute(t, t.Context(), newExecutor(0), attempt)
	f.grown(t)
	deadline := bootclock.Now() + 2*time.Second
	killBy.Store(int64(deadline))
	err := wait(t, result)
	if now := bootclock.Now(); now < deadline || now > deadline+5*time.Second {
		t.Errorf("ended %v after the deadline", now-deadline)
	}
	var exit *command.ExitError
	if left := f.alive(); !errors.Is(err, locks.ErrLost) || !errors.As(err, &exit) || len(left) > 0 {
		t.Errorf("got %v with %v left, want ErrLost with the signal and nothing", err, left)
	}
}

func TestMovedDeadlineKeepsTheCommandAlive(t *testing.T) {
	t.Parallel()
	attempt, output := attemptOf("sh", "-c", "sleep 5; echo end")
	attempt.KillBy = func() time.Duration { return bootclock.Now() + 4*time.Second }
	if err := newExecutor(0).Execute(t.Context(), attempt); err != nil || output.String() != "end\n" {
		t.Errorf("got %v and %q, want the command to end by itself", err, output)
	}
}

func TestNoCommandStartsTooLate(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(jobs.ErrDrain)
	attempt, output := attemptOf("echo", "started")
	if err := newExecutor(0).Execute(ctx, attempt); !errors.Is(err, jobs.ErrDrain) || output.String() != "" {
		t.Errorf("context at its end: got %v and %q, want its cause", err, output)
	}
	for _, killBy := range []time.Duration{0, bootclock.Now()} {
		attempt.KillBy = func() time.Duration { return killBy }
		if err := newExecutor(0).Execute(t.Context(), attempt); !errors.Is(err, locks.ErrLost) || output.String() != "" {
			t.Errorf("deadline over: got %v and %q, want ErrLost", err, output)
		}
	}
}

func TestCommandDiesWithAWorkerThatIsKilled(t *testing.T) {
	t.Parallel()
	worker, f := startWorker(t)
	if err := worker.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	eventually(t, "all processes of the dead worker's command are dead", func() bool { return len(f.alive()) == 0 })
	t.Logf("dead after %v", time.Since(start).Round(time.Millisecond))
}

func TestCommandOfAFrozenWorkerDiesAtTheDeadline(t *testing.T) {
	t.Parallel()
	worker, f := startWorker(t)
	if err := worker.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	start := time.Now() // the worker reported 1.5 s at most 0.2 s earlier
	eventually(t, "all processes of the frozen worker's command are dead", func() bool { return len(f.alive()) == 0 })
	if elapsed := time.Since(start); elapsed < 500*time.Millisecond || elapsed > 6*time.Second {
		t.Errorf("dead after %v, want about 1.4s", elapsed)
	}
	if err := worker.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	_ = worker.Wait()
	result, err := os.ReadFile(filepath.Join(filepath.Dir(f.file), "result"))
	if err != nil || !strings.HasPrefix(string(result), "lost=true") {
		t.Errorf("Execute in the worker that continues: %q, %v; want ErrLost", result, err)
	}
}

// guardOf returns the process ID of the guard of f's command.
func guardOf(t *testing.T, f forest) int {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + itoa(f.pids()[0]) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	return atoi(strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))[1])
}

func TestCommandDiesWithItsGuard(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{nil, jobs.ErrDrain} {
		f := newForest(t)
		// Some leave the group and their parents; one of these has not even the environment of the
		// command. All ignore TERM.
		attempt, _ := f.attempt("trap '' TERM\n" + tree + "(env -i setsid sh -c 'echo $$ >> '$PIDS'; exec /bin/sleep 1000' &)\nwait")
		ctx, cancel := context.WithCancelCause(t.Context())
		result := execute(t, ctx, newExecutor(time.Hour), attempt)
		eventually(t, "the command's processes run", func() bool { return len(f.pids()) == treeSize+1 })
		guard := guardOf(t, f)
		if cause != nil {
			cancel(cause)
		}
		if err := syscall.Kill(guard, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		err := wait(t, result)
		if left := f.alive(); err == nil || !strings.Contains(err.Error(), `the guard of "sh" ended before the command: signal: killed`) || !errors.Is(err, cause) && cause != nil || len(left) > 0 {
			t.Errorf("got %v with %v left, want an error about the guard, with the cause %v, and nothing", err, left, cause)
		}
		cancel(nil)
	}
}

func TestWorkerActsWhenItsGuardIsFrozen(t *testing.T) {
	t.Parallel()
	f := newForest(t)
	attempt, _ := f.attempt(tree + "wait")
	deadline := bootclock.Now() + time.Hour
	moved := make(chan struct{})
	attempt.KillBy = func() time.Duration {
		select {
		case <-moved:
			return deadline
		default:
			return never()
		}
	}
	result := execute(t, t.Context(), newExecutor(0), attempt)
	f.grown(t)
	if err := syscall.Kill(guardOf(t, f), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	deadline = bootclock.Now() + 200*time.Millisecond
	close(moved)
	err := wait(t, result)
	if left := f.alive(); !errors.Is(err, locks.ErrLost) || len(left) > 0 {
		t.Errorf("got %v with %v left, want ErrLost and nothing", err, left)
	}
}

func TestGuardDoesNotDieOfSignalsMeantForTheWorker(t *testing.T) {
	t.Parallel()
	f := newForest(t)
	attempt, _ := f.attempt(tree + "wait $!; exit 4")
	result := execute(t, t.Context(), newExecutor(0), attempt)
	f.grown(t)
	guard := guardOf(t, f)
	for _, sig := range []syscall.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
	} {
		if err := syscall.Kill(guard, sig); err != nil {
			t.Fatal(err)
		}
	}
	for _, pid := range f.pids()[1:] {
		_ = syscall.Kill(pid, syscall.SIGKILL) // the command then ends by itself
	}
	var exit *command.ExitError
	if err := wait(t, result); !errors.As(err, &exit) || exit.Code != 4 {
		t.Errorf("got %v, want exit status 4", err)
	}
}

// TestGuardNoticesATERMAtTheLastMoment: a service manager sends a SIGTERM to the guard just before
// the command ends, so both arrive at the guard together.
func TestGuardNoticesATERMAtTheLastMoment(t *testing.T) {
	t.Parallel()
	e := newExecutor(0)
	for range 100 {
		attempt, _ := attemptOf("sh", "-c", "kill -TERM $PPID; exit 3")
		if err := e.Execute(t.Context(), attempt); !errors.Is(err, jobs.ErrTerminated) || err.Error() != "exit status 3" {
			t.Fatalf("got %v, want exit status 3 after a SIGTERM", err)
		}
	}
}

// TestCommandInheritsNoSignalsFromItsGuard: the guard survives signals, which must end a command.
func TestCommandInheritsNoSignalsFromItsGuard(t *testing.T) {
	t.Parallel()
	signals := []string{"grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"}
	bare, err := exec.Command(signals[0], signals[1:]...).Output()
	if err != nil {
		t.Fatal(err)
	}
	attempt, output := attemptOf(signals...)
	if err := newExecutor(0).Execute(t.Context(), attempt); err != nil {
		t.Fatal(err)
	}
	if got := output.String(); got != string(bare) {
		t.Errorf("the command has\n%s\nwant, as without a guard,\n%s", got, bare)
	}
}
