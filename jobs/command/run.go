//go:build unix

package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/jobs"
	"lockstep/jobs/command/guard"
	"lockstep/locks"
	"lockstep/locks/bootclock"
)

// Options configure an [Executor].
type Options struct {
	// Guard is the command line that starts this program as a guard: the path of the program (see
	// [Self]) and the arguments that make its main function call [GuardMain]. Required.
	Guard []string

	// GuardEnv is the environment of guards as "NAME=value". A guard looks up a program in its PATH
	// if the command has no PATH of its own. Users with the right to inspect processes of this user
	// can read it. nil means the environment of this process.
	GuardEnv []string

	// JobEnv is the environment that commands of jobs inherit ([Executor.Execute]). nil means the
	// environment of this process.
	JobEnv []string

	// KillAfter is the time between TERM and KILL when a command must stop. 0 means 5 s. The KILL
	// never comes later than KillBy.
	KillAfter time.Duration

	// Logger receives warnings about guards that do not respond. nil means slog.Default().
	Logger *slog.Logger
}

// Executor runs commands under guards: [Executor.Execute] runs the command of a job, and
// [Executor.Run] runs any command. It is safe for concurrent use and keeps nothing open between
// calls.
type Executor struct {
	options Options // with their defaults
	turns   turns   // of its guards, to start
}

// New returns an executor. It starts nothing. It returns an error if Guard is empty or names no
// program, or if KillAfter is negative.
func New(options Options) (*Executor, error) {
	if len(options.Guard) == 0 {
		return nil, errors.New("command: Options.Guard is required")
	}
	path, err := exec.LookPath(options.Guard[0])
	if err == nil {
		path, err = filepath.Abs(path) // a command may run in another directory
	}
	if err != nil {
		return nil, fmt.Errorf("command: Options.Guard: %w", err)
	}
	options.Guard = append([]string{path}, options.Guard[1:]...)
	if options.KillAfter < 0 {
		return nil, fmt.Errorf("command: Options.KillAfter %v is negative", options.KillAfter)
	}
	if options.KillAfter == 0 {
		options.KillAfter = 5 * time.Second
	}
	if options.Logger == nil {
		options.Logger = slog.Default()
	}
	if options.GuardEnv == nil {
		options.GuardEnv = os.Environ()
	}
	return &Executor{options, newTurns()}, nil
}

// GuardMain is the main function of a guard. It returns the exit code. Call it from main as soon as
// the arguments show that this process was started as a guard (see Options.Guard). The arguments
// after those only show in a list of processes which command is guarded.
func GuardMain() int {
	runtime.LockOSThread() // as guard.Main requires
	return guard.Main()
}

// Spec says what [Executor.Run] runs.
type Spec struct {
	// Argv is the program and its arguments, without a shell. A program without a slash is looked
	// up in the PATH of Env.
	Argv []string
	// Env is the whole environment as "NAME=value". The last entry of a name counts. nil means the
	// environment of this process.
	Env []string
	Dir string // "" means the directory of this process

	// Stdin is the input of the command; nil is empty input. An *os.File in Stdout or Stderr is
	// passed to the command directly. Any other writer receives a copy of the output, and if both
	// fields hold the same writer, it receives both outputs in order. nil discards the output.
	Stdin          *os.File
	Stdout, Stderr io.Writer

	// Foreground keeps the command in the process group of this process. It is for commands that
	// use the terminal (see [Foreground]): a command in another group would be stopped as soon as
	// it reads from the terminal. The terminal then sends Ctrl-C to both processes, so this process
	// should catch SIGINT and SIGQUIT and let the command decide. Ctrl-Z stops both, but the guard
	// continues, and kills the command when the lease has expired. TERM goes only to the command,
	// not to its children. KILL reaches all of them on Linux, and only the command on other
	// systems.
	Foreground bool

	// Signals are passed on to the command: the signals that this process receives in its place. In
	// the foreground, leave out those that the terminal sends to both. A signal does not end ctx.
	// Signals may be nil, and may be closed.
	Signals <-chan os.Signal

	// KillBy returns the reading of the boot clock at which no process of the command may be alive
	// anymore. It is called at least once a second, and more often as that time approaches. nil
	// means that there is no such time.
	KillBy func() time.Duration

	// Label appears after the guard's arguments in a list of processes. It must not contain
	// secrets.
	Label string

	// The guard removes this file when no process of the command is left. "" means none.
	remove string
	// Closed when this process is about to exit: Run then leaves behind a command that survives its
	// KILL. nil means never.
	abandon <-chan struct{}
}

// Foreground reports whether f is a terminal with the process group of this process in its
// foreground, so that a person may be typing.
func Foreground(f *os.File) bool {
	group, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	return err == nil && group == syscall.Getpgrp()
}

const (
	// backstop is how long after the deadline the worker waits for the guard's report of an end
	// before it acts itself.
	backstop = 100 * time.Millisecond

	// startLimit is how long a guard may take to start before it counts as hung, if the deadline
	// has passed meanwhile.
	startLimit = time.Second

	// survival is how long after its KILL a command counts as one that cannot be killed.
	survival = 2 * time.Second

	// outputDelay is how long the worker waits for the end of the output after the guard has ended.
	// Only if the guard was killed may a remaining process hold the output open.
	outputDelay = time.Second
)

// Run runs a command and returns when no process of it is left. If ctx ends, the command receives
// TERM, and KILL after KillAfter or at KillBy, whichever comes first.
//
// nil means that the command exited with status 0. The errors are [*StartError] and [*ExitError].
// The cause of ctx wraps the latter if the command was stopped because ctx ended, and locks.ErrLost
// wraps it if the command was killed because KillBy had passed. [Executor.Execute] also returns
// jobs.ErrAbandoned. Any other error is a fault of the guard.
func (e *Executor) Run(ctx context.Context, spec Spec) error {
	if len(spec.Argv) == 0 {
		return errors.New("no command to run")
	}
	started := e.turns.wait(ctx)
	defer started() // a guard may end without a report
	if ctx.Err() != nil {
		return fmt.Errorf("%w (%q was not started)", context.Cause(ctx), spec.Argv[0])
	}
	if spec.Env == nil {
		spec.Env = os.Environ()
	}
	if spec.Dir != "" {
		if _, err := os.Stat(spec.Dir); err != nil { // the error of a start would name the guard
			return fmt.Errorf("folder of %q: %w", spec.Argv[0], err)
		}
	}
	c := &child{Executor: e, spec: spec, mark: newMark(), started: started}
	if err := c.startGuard(); err != nil {
		return fmt.Errorf("start the guard of %q: %w", spec.Argv[0], err)
	}
	c.sendStart(ctx)
	if !c.watch(ctx) {
		return fmt.Errorf("%w: %w: %q cannot be killed", context.Cause(ctx), jobs.ErrAbandoned, spec.Argv[0])
	}
	guardErr := c.close()

	switch {
	case c.failed != nil:
		return &StartError{Command: spec.Argv[0], Reason: c.failed.Reason, Errno: c.failed.Errno, notFound: c.failed.NotFound}
	case c.ended != nil:
		return c.result(ctx)
	case c.killed && c.pid == 0:
		cause := context.Cause(ctx)
		if cause == nil {
			cause = locks.ErrLost
		}
		return fmt.Errorf("%w (the guard of %q hung and was killed before it reported a start)", cause, spec.Argv[0])
	case ctx.Err() != nil && c.pid == 0:
		return fmt.Errorf("%w (%q was not started)", context.Cause(ctx), spec.Argv[0])
	default:
		if guardErr == nil {
			guardErr = errors.New("exit status 0")
		}
		err := fmt.Errorf("the guard of %q ended before the command: %w", spec.Argv[0], guardErr)
		if c.pid == 0 && wasTerminated(guardErr) {
			err = fmt.Errorf("%w: %w", jobs.ErrTerminated, err)
		}
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w (%w)", cause, err)
		}
		return err
	}
}

// wasTerminated reports whether a SIGTERM ended a guard. It can do so only before the first lines
// of guard.Main, so the guard has started nothing.
func wasTerminated(err error) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGTERM
}

// child is one command and its guard, as seen by the worker. Only the goroutine of Run uses it.
type child struct {
	*Executor
	spec Spec

	cmd     *exec.Cmd     // the guard
	pipe    *os.File      // sends orders; closing it orders the guard to kill
	reports *os.File      // only the guard has its other end, so it ends with the guard
	mark    guard.Mark    // of the command's processes
	told    time.Duration // the deadline that the guard knows
	// The reading of the boot clock at which a command that was asked to stop is killed. 0 means
	// that it was not asked.
	grace time.Duration

	begun   time.Duration // the reading of the boot clock at the start of the guard
	started func()        // ends its turn
	pid     int           // the command; 0 until it has started
	// the worker has killed the command in place of the guard, or a guard that has not started it
	killed bool
	failed *guard.Failed
	ended  *guard.Ended
	gone   *guard.Gone
}

func (c *child) startGuard() error {
	ordersRead, ordersWrite, err := os.Pipe()
	if err != nil {
		return err
	}
	reportsRead, reportsWrite, err := os.Pipe()
	if err != nil {
		ordersRead.Close()
		ordersWrite.Close()
		return err
	}
	c.cmd = exec.Command(c.options.Guard[0], c.options.Guard[1:]...)
	if c.options.Guard[0] == selfLink {
		c.cmd.Args[0] = os.Args[0] // more informative in a list of processes
	}
	if c.spec.Label != "" {
		c.cmd.Args = append(c.cmd.Args, c.spec.Label)
	}
	// A guard does one thing at a time, and its runtime needs time to set up each processor: on a
	// host with 64 of them, a guard would need 1.7 times as much processor time to start.
	c.cmd.Dir, c.cmd.Env = c.spec.Dir, append(slices.Clone(c.options.GuardEnv), "GOMAXPROCS=1")
	if c.spec.Stdin != nil {
		// A nil *os.File must not become a non-nil io.Reader.
		c.cmd.Stdin = c.spec.Stdin
	}
	c.cmd.Stdout, c.cmd.Stderr = c.spec.Stdout, c.spec.Stderr
	c.cmd.WaitDelay = outputDelay
	// They become guard.OrdersFD and guard.ReportsFD.
	c.cmd.ExtraFiles = []*os.File{ordersRead, reportsWrite}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = c.cmd.Start()
	ordersRead.Close()
	reportsWrite.Close()
	if err != nil {
		ordersWrite.Close()
		reportsRead.Close()
		return err
	}
	c.pipe, c.reports = ordersWrite, reportsRead
	c.begun = bootclock.Now()
	return nil
}

// sendStart sends the first order. The order can be larger than the pipe's buffer, so the guard
// must read while the worker writes. If ctx ends, the write is interrupted, which the guard treats
// as the death of its worker.
func (c *child) sendStart(ctx context.Context) {
	s := &guard.Start{Argv: c.spec.Argv, Env: withoutDoubles(c.spec.Env), Parent: os.Getpid(), Mark: c.mark, Remove: c.spec.remove}
	if c.spec.Foreground {
		s.Group = syscall.Getpgrp()
	}
	called := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(called)
		_ = c.pipe.SetWriteDeadline(time.Unix(1, 0))
	})
	c.told = c.deadline()
	err := guard.Order{Start: s, KillBy: c.told}.Send(c.pipe)
	if !stop() {
		<-called // otherwise its deadline would affect a later order
	}
	if err != nil {
		c.abandon()
	}
}

// deadline returns the reading of the boot clock by which the command must be dead, or 0 for none.
func (c *child) deadline() time.Duration {
	deadline := c.grace
	if c.spec.KillBy != nil {
		killBy := max(c.spec.KillBy(), 1) // 0 would mean none
		if deadline == 0 || killBy < deadline {
			deadline = killBy
		}
	}
	return deadline
}

// send sends an order. The pipe has room for a thousand orders. If it is full anyway, the guard is
// stopped.
func (c *child) send(o guard.Order) {
	if c.pipe == nil {
		return
	}
	_ = c.pipe.SetWriteDeadline(time.Now().Add(time.Second))
	if err := o.Send(c.pipe); err != nil {
		c.abandon() // a partial order may be written, and no other can follow it
	}
}

// abandon closes the orders pipe: the guard kills all processes as soon as it can.
func (c *child) abandon() {
	if c.pipe != nil {
		c.pipe.Close()
		c.pipe = nil
	}
}

// watch sends orders and receives reports until the guard has ended. It returns false if it has
// left the guard behind instead (Spec.abandon): the command has survived its KILL.
func (c *child) watch(ctx context.Context) bool {
	reports := make(chan guard.Report)
	// Ends with the guard, which alone has the other end of the pipe. The loop below, or leave,
	// reads until then.
	go func() {
		defer close(reports)
		for {
			r, err := guard.ReceiveReport(c.reports)
			if err != nil {
				return
			}
			reports <- r
		}
	}()

	done, signals := ctx.Done(), c.spec.Signals
	abandon, exiting := c.spec.abandon, false
	timer := time.NewTimer(c.nextLook())
	defer timer.Stop()
	for {
		select {
		case r, ok := <-reports:
			if !ok {
				return true
			}
			c.note(r)
		case <-abandon:
			abandon, exiting = nil, true
		case <-done:
			done = nil
			c.grace = bootclock.Now() + c.options.KillAfter
			c.told = c.deadline()
			c.send(guard.Order{KillBy: c.told, Signal: syscall.SIGTERM, Stop: true})
		case s, ok := <-signals:
			if !ok {
				signals = nil
			} else if sig, ok := s.(syscall.Signal); ok {
				c.send(guard.Order{Signal: sig})
			}
		case <-timer.C:
			deadline := c.deadline()
			if deadline != c.told {
				c.told = deadline
				c.send(guard.Order{KillBy: deadline})
			}
			if c.isOverdue(deadline) && !c.killed && !c.catchUp(reports) {
				return true
			}
			if c.isOverdue(deadline) {
				c.killForGuard()
			}
			if exiting && c.grace != 0 && bootclock.Now() >= c.grace+survival {
				c.leave(reports)
				return false
			}
		}
		timer.Reset(c.nextLook())
	}
}

// isOverdue reports whether the guard should have reported the end of the command by now.
func (c *child) isOverdue(deadline time.Duration) bool {
	if deadline == 0 || c.ended != nil || c.failed != nil {
		return false
	}
	if c.pid == 0 {
		deadline = max(deadline, c.begun+startLimit)
	}
	return bootclock.Now() > deadline+backstop
}

// killForGuard kills the command in place of its guard, which does not respond. A guard that has
// not reported a start hangs, for example in a folder of PATH on a file system that does not
// respond. killForGuard kills that guard, and the kernel kills a command that it was just starting.
func (c *child) killForGuard() {
	if !c.killed {
		c.killed = true
		c.options.Logger.Warn("guard does not respond; the worker kills the command", "guard", c.cmd.Process.Pid, "command", c.pid, "label", c.spec.Label)
	}
	if c.pid == 0 {
		_ = c.cmd.Process.Kill()
		return
	}
	_ = c.cmd.Process.Signal(syscall.SIGCONT)
	c.killCommand()
}

// leave leaves the guard behind, which continues to kill. Nothing waits for it or for the output.
func (c *child) leave(reports <-chan guard.Report) {
	c.abandon()
	c.options.Logger.Error("a command cannot be killed and is left behind", "guard", c.cmd.Process.Pid, "command", c.pid, "label", c.spec.Label)
	// Ends with the guard, or with this process, which is about to exit.
	go func() {
		for range reports { // until it is closed
		}
		_ = c.cmd.Wait()
		c.reports.Close()
	}()
}

// note records a report of the guard.
func (c *child) note(r guard.Report) {
	c.started()
	switch {
	case r.Failed != nil:
		c.failed = r.Failed
	case r.Started != 0:
		c.pid = r.Started
	case r.Ended != nil:
		c.ended = r.Ended
	case r.Gone != nil:
		c.gone = r.Gone
	}
}

// catchUp reads the pending reports. A worker that was itself stopped may continue after the
// deadline, long after the guard has done its work, when the command's ID may already belong to
// another process. catchUp returns false if the guard has ended.
func (c *child) catchUp(reports <-chan guard.Report) bool {
	moment := time.NewTimer(backstop / 5)
	defer moment.Stop()
	for c.ended == nil {
		select {
		case r, ok := <-reports:
			if !ok {
				return false
			}
			c.note(r)
		case <-moment.C:
			return true
		}
	}
	return true
}

// nextLook returns when to check the deadline again: soon enough that the guard never acts on an
// outdated one.
func (c *child) nextLook() time.Duration {
	deadline := c.deadline()
	if deadline == 0 {
		return time.Second
	}
	return min(max((deadline-bootclock.Now())/8, 20*time.Millisecond), time.Second)
}

// killCommand kills the command and its group while the guard cannot run. The guard has not reaped
// the command either, so the ID of the command is still its own.
func (c *child) killCommand() {
	if c.spec.Foreground {
		_ = syscall.Kill(c.pid, syscall.SIGKILL)
	} else {
		_ = syscall.Kill(-c.pid, syscall.SIGKILL)
	}
}

// close waits for the end of the guard and of the output, and returns the error of the guard.
func (c *child) close() error {
	c.abandon()
	if c.gone == nil && c.failed == nil {
		c.killInPlace()
	}
	err := c.cmd.Wait()
	c.reports.Close()
	return err
}

// killInPlace kills the command and its descendants in place of the guard, which has ended without
// reporting that they are dead. The guard may have been killed before it could report the start of
// the command.
func (c *child) killInPlace() {
	if c.pid != 0 {
		c.options.Logger.Warn("guard was killed; the worker kills the command", "guard", c.cmd.Process.Pid, "command", c.pid, "label", c.spec.Label)
	}
	if left := killMarked(c.mark, outputDelay); len(left) > 0 {
		c.options.Logger.Error("guard was killed, and processes of its command cannot be killed", "pids", left, "label", c.spec.Label)
	}
	if c.pid != 0 {
		c.killGroup() // also on systems without marks
	}
}

// killGroup kills the command's group after the death of its guard and waits briefly until it has
// ended. The wait is short because dead processes stay in the process list if no process reaps them
// (in a container, the first process may not do that).
func (c *child) killGroup() {
	if c.spec.Foreground {
		return // the group is our own; the kernel kills the command itself
	}
	end := time.Now().Add(outputDelay)
	for syscall.Kill(-c.pid, syscall.SIGKILL) == nil && time.Now().Before(end) {
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // short, and never interrupted
	}
}

// result translates the end of the command into an error.
func (c *child) result(ctx context.Context) error {
	var exit error
	if c.ended.Signal != 0 || c.ended.Code != 0 {
		exit = &ExitError{Code: c.ended.Code, Signal: c.ended.Signal, terminated: c.ended.Terminated}
	}
	// by us: the guard saw a command that ended by itself
	killed := c.killed && c.ended.Signal == syscall.SIGKILL
	if !c.ended.Stopped && !killed {
		c.noteLeftovers()
		return exit
	}
	cause := context.Cause(ctx)
	switch {
	case cause != nil:
	case c.ended.Overdue, killed:
		cause = locks.ErrLost
	default:
		cause = errors.New("its guard received no more orders")
	}
	if exit == nil {
		return fmt.Errorf("%w (exit status 0)", cause)
	}
	return fmt.Errorf("%w (%w)", cause, exit)
}

// noteLeftovers writes to the output that leftover processes were killed, because the author of the
// command will look for the reason there.
func (c *child) noteLeftovers() {
	if c.gone != nil && c.gone.Leftovers > 0 && c.spec.Stderr != nil {
		fmt.Fprintf(c.spec.Stderr, "lockstep: the command left %d processes running; they were killed, because its lock is about to be released\n", c.gone.Leftovers)
	}
}

// withoutDoubles returns env with only the last entry of each name.
func withoutDoubles(env []string) []string {
	last := make(map[string]int, len(env))
	for i, entry := range env {
		last[name(entry)] = i
	}
	result := make([]string, 0, len(last))
	for i, entry := range env {
		if last[name(entry)] == i {
			result = append(result, entry)
		}
	}
	return result
}
