package command

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/locks"
)

// Options configure an [Executor].
type Options struct {
	// Guard is how this program is started as a guard: the path of the program (see [Self]) and the arguments that
	// make its main function call [GuardMain]. Required.
	Guard []string

	// GuardEnv is the environment of guards as "NAME=value", in which they look up programs when a command has no PATH
	// of its own. A user who may inspect a process of this user can read it. nil is the environment of this process.
	GuardEnv []string

	// JobEnv is what the commands of jobs inherit ([Executor.Execute]). nil is the environment of this process.
	JobEnv []string

	// KillAfter is the time between TERM and KILL when a command is told to end. 0 means 5 s. The KILL never comes
	// later than KillBy.
	KillAfter time.Duration

	// Logger hears of guards that do not answer. nil means slog.Default().
	Logger *slog.Logger
}

// Executor runs commands under guards: [Executor.Execute] the command of a job, [Executor.Run] any. It is safe for
// concurrent use and holds nothing open between its calls.
type Executor struct {
	guard     []string
	guardEnv  []string
	jobEnv    []string
	killAfter time.Duration
	log       *slog.Logger
}

// New returns an executor. It starts nothing. Errors: Guard is empty or names no program, or KillAfter is negative.
func New(options Options) (*Executor, error) {
	if len(options.Guard) == 0 {
		return nil, errors.New("command: Options.Guard is required")
	}
	path, err := exec.LookPath(options.Guard[0])
	if err == nil {
		path, err = filepath.Abs(path) // a command may run in another folder
	}
	if err != nil {
		return nil, fmt.Errorf("command: Options.Guard: %w", err)
	}
	e := &Executor{guard: append([]string{path}, options.Guard[1:]...), killAfter: options.KillAfter, log: options.Logger,
		guardEnv: options.GuardEnv, jobEnv: options.JobEnv}
	if e.killAfter < 0 {
		return nil, fmt.Errorf("command: Options.KillAfter %v is negative", e.killAfter)
	}
	if e.killAfter == 0 {
		e.killAfter = 5 * time.Second
	}
	if e.log == nil {
		e.log = slog.Default()
	}
	if e.guardEnv == nil {
		e.guardEnv = os.Environ()
	}
	return e, nil
}

// Spec says what [Executor.Run] runs.
type Spec struct {
	Argv []string // the program and its arguments; no shell. Without a slash the program is looked up in Env's PATH
	Env  []string // the whole environment as "NAME=value"; of two of one name the last counts; nil: that of this process
	Dir  string   // "" is the folder of this process

	// Stdin is where the command reads; nil is an empty input. An *os.File in Stdout and Stderr is handed over as it
	// is; another writer is copied to, and gets both in order if both are the same one; nil is nowhere.
	Stdin          *os.File
	Stdout, Stderr io.Writer

	// Foreground keeps the command in the process group of this process. It is for commands that use the terminal
	// (see [Foreground]): one of another group would be stopped as soon as it reads from it. The terminal then sends
	// Ctrl-C to both, so this process should catch SIGINT and SIGQUIT and let the command decide; and Ctrl-Z stops
	// both, while the guard goes on and kills the command when the lease is over. What has to end gets TERM alone, not
	// its children; KILL reaches all of them on Linux, elsewhere the command alone.
	Foreground bool

	// Signals are passed on to the command: what this process gets in its place. In the foreground leave out those
	// that the terminal sends to both. A signal does not end ctx. May be nil, and may be closed.
	Signals <-chan os.Signal

	// KillBy returns the reading of the boot clock at which no process of the command may be alive any more. It is
	// asked again and again, at least once a second and more often as that time comes near. nil: there is none.
	KillBy func() time.Duration

	// Label is shown behind the guard's arguments in a list of processes. Never a secret.
	Label string

	remove string // a file that the guard removes when nothing of the command is left; "" for none
}

// Foreground tells whether f is the terminal whose foreground belongs to the process group of this process: whether
// somebody may be typing.
func Foreground(f *os.File) bool {
	group, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP)
	return err == nil && group == syscall.Getpgrp()
}

const (
	// backstop is how long the guard's report of an end may stay out after the deadline before the worker acts itself.
	backstop = 100 * time.Millisecond

	// outputDelay is how long the end of the output is waited for when the guard has ended. Only if the guard was
	// killed there may be a process left that holds it open.
	outputDelay = time.Second
)

// Run runs a command and returns when nothing of it goes on. If ctx ends, the command gets TERM, and KILL after
// KillAfter, at the latest when KillBy has come.
//
// nil means that the command exited with status 0. Errors: [*StartError], [*ExitError]; around the latter the cause of
// ctx, if the command was told to end because of it, or locks.ErrLost, if it was killed when KillBy had come; else
// something is wrong with the guard.
func (e *Executor) Run(ctx context.Context, spec Spec) error {
	if len(spec.Argv) == 0 {
		return errors.New("no command to run")
	}
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
	c := &child{Executor: e, spec: spec, mark: newMark()}
	if err := c.startGuard(); err != nil {
		return fmt.Errorf("start the guard of %q: %w", spec.Argv[0], err)
	}
	c.sendStart(ctx)
	c.watch(ctx)
	guardErr := c.close()

	switch {
	case c.failed != nil:
		return &StartError{Command: spec.Argv[0], Reason: c.failed.Reason, Errno: c.failed.Errno, notFound: c.failed.NotFound}
	case c.ended != nil:
		return c.result(ctx)
	case ctx.Err() != nil && c.pid == 0:
		return fmt.Errorf("%w (%q was not started)", context.Cause(ctx), spec.Argv[0])
	default:
		if guardErr == nil {
			guardErr = errors.New("exit status 0")
		}
		err := fmt.Errorf("the guard of %q ended before it: %w", spec.Argv[0], guardErr)
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w (%w)", cause, err)
		}
		return err
	}
}

// child is one command and its guard, as the worker sees them. All of it belongs to the goroutine of Run.
type child struct {
	*Executor
	spec Spec

	cmd     *exec.Cmd     // the guard
	pipe    *os.File      // orders; closing it is the order to kill
	orders  *gob.Encoder  // writes to pipe
	reports *os.File      // its other end is the guard's alone, so it ends with it
	mark    mark          // of the command's processes
	told    time.Duration // the deadline that the guard knows
	grace   time.Duration // reading of the boot clock at which a command that was told to end is killed; 0: not told

	pid    int  // the command; 0 until it has started
	killed bool // the worker has killed it in the guard's place
	failed *failed
	ended  *ended
	gone   *gone
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
	c.cmd = exec.Command(c.guard[0], c.guard[1:]...)
	if c.guard[0] == selfLink {
		c.cmd.Args[0] = os.Args[0] // tells more in a list of processes
	}
	if c.spec.Label != "" {
		c.cmd.Args = append(c.cmd.Args, c.spec.Label)
	}
	// A guard does one thing at a time. With one processor it starts in nine tenths of the time.
	c.cmd.Dir, c.cmd.Env = c.spec.Dir, append(slices.Clone(c.guardEnv), "GOMAXPROCS=1")
	if c.spec.Stdin != nil {
		c.cmd.Stdin = c.spec.Stdin // a nil *os.File must not become an io.Reader that is not nil
	}
	c.cmd.Stdout, c.cmd.Stderr = c.spec.Stdout, c.spec.Stderr
	c.cmd.WaitDelay = outputDelay
	c.cmd.ExtraFiles = []*os.File{ordersRead, reportsWrite} // become ordersFD and reportsFD
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = c.cmd.Start()
	ordersRead.Close()
	reportsWrite.Close()
	if err != nil {
		ordersWrite.Close()
		reportsRead.Close()
		return err
	}
	c.pipe, c.orders, c.reports = ordersWrite, gob.NewEncoder(ordersWrite), reportsRead
	return nil
}

// sendStart sends the first order. It can be larger than the pipe, so the guard has to read it while it is written; an
// end of ctx calls that off, which a guard takes for the end of its worker.
func (c *child) sendStart(ctx context.Context) {
	s := &start{Argv: c.spec.Argv, Env: withoutDoubles(c.spec.Env), Parent: os.Getpid(), Mark: c.mark, Remove: c.spec.remove}
	if c.spec.Foreground {
		s.Group = syscall.Getpgrp()
	}
	called := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(called)
		_ = c.pipe.SetWriteDeadline(time.Unix(1, 0))
	})
	c.told = c.deadline()
	err := c.orders.Encode(order{Start: s, KillBy: c.told})
	if !stop() {
		<-called // or its deadline would hit a later order
	}
	if err != nil {
		c.abandon()
	}
}

// deadline returns the reading of the boot clock at which the command has to be dead; 0: none.
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

// send gives an order. The pipe has room for thousands of them; if it is full nevertheless, the guard is stopped.
func (c *child) send(o order) {
	if c.pipe == nil {
		return
	}
	_ = c.pipe.SetWriteDeadline(time.Now().Add(time.Second))
	if err := c.orders.Encode(o); err != nil {
		c.abandon() // half an order may be written: no other can follow it
	}
}

// abandon closes the orders: the guard kills everything as soon as it can.
func (c *child) abandon() {
	if c.pipe != nil {
		c.pipe.Close()
		c.pipe = nil
	}
}

// watch passes orders on until the guard has ended.
func (c *child) watch(ctx context.Context) {
	reports := make(chan report)
	go func() { // ends with the guard, which alone has the other end of the pipe; read below until then
		defer close(reports)
		decoder := gob.NewDecoder(c.reports)
		for {
			var r report
			if decoder.Decode(&r) != nil {
				return
			}
			reports <- r
		}
	}()

	done, signals := ctx.Done(), c.spec.Signals
	timer := time.NewTimer(c.nextLook())
	defer timer.Stop()
	for {
		select {
		case r, ok := <-reports:
			if !ok {
				return
			}
			c.note(r)
		case <-done:
			done = nil
			c.grace = locks.BootTime() + c.killAfter
			c.told = c.deadline()
			c.send(order{KillBy: c.told, Signal: syscall.SIGTERM, Stop: true})
		case s, ok := <-signals:
			if !ok {
				signals = nil
			} else if sig, ok := s.(syscall.Signal); ok {
				c.send(order{Signal: sig})
			}
		case <-timer.C:
			deadline := c.deadline()
			if deadline != c.told {
				c.told = deadline
				c.send(order{KillBy: deadline})
			}
			overdue := func() bool {
				return deadline != 0 && locks.BootTime() > deadline+backstop && c.ended == nil && c.pid != 0
			}
			if overdue() && !c.killed && !c.catchUp(reports) {
				return
			}
			if overdue() {
				if !c.killed {
					c.killed = true
					c.log.Warn("guard does not answer; its worker kills the command", "guard", c.cmd.Process.Pid, "command", c.pid, "label", c.spec.Label)
				}
				_ = c.cmd.Process.Signal(syscall.SIGCONT)
				c.killCommand()
			}
		}
		timer.Reset(c.nextLook())
	}
}

// note takes what the guard reports.
func (c *child) note(r report) {
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

// catchUp takes the reports that are waiting. A worker that was stopped itself comes back behind the deadline, while the
// guard has done its work long ago, and the command's id may belong to a stranger by now. It returns false when the
// guard has ended.
func (c *child) catchUp(reports <-chan report) bool {
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

// nextLook returns when to ask for the deadline again: soon enough that a guard never takes an old one for the last.
func (c *child) nextLook() time.Duration {
	deadline := c.deadline()
	if deadline == 0 {
		return time.Second
	}
	return min(max((deadline-locks.BootTime())/8, 20*time.Millisecond), time.Second)
}

// killCommand kills the command and its group while the guard cannot, and so has not reaped it either: the id of the
// command is still its own.
func (c *child) killCommand() {
	if c.spec.Foreground {
		_ = syscall.Kill(c.pid, syscall.SIGKILL)
	} else {
		_ = syscall.Kill(-c.pid, syscall.SIGKILL)
	}
}

// close waits for the end of the guard and of the output, and returns how the guard ended.
func (c *child) close() error {
	c.abandon()
	if c.gone == nil && c.failed == nil {
		c.killInPlace()
	}
	err := c.cmd.Wait()
	c.reports.Close()
	return err
}

// killInPlace kills the command and its descendants in place of the guard, which has ended without a report that they
// are dead. The guard may have been killed before it could report that there is a command.
func (c *child) killInPlace() {
	if c.pid != 0 {
		c.log.Warn("guard was killed; its worker kills the command", "guard", c.cmd.Process.Pid, "command", c.pid, "label", c.spec.Label)
	}
	if left := c.mark.kill(outputDelay); len(left) > 0 {
		c.log.Error("guard was killed, and processes of its command cannot be killed", "pids", left, "label", c.spec.Label)
	}
	if c.pid != 0 {
		c.killGroup() // also where marks are unknown
	}
}

// killGroup kills the command's group after the death of its guard and waits until it is gone, but only for a moment:
// where no process reaps the dead (a container whose first process is not made for that), they stay in the list of
// processes.
func (c *child) killGroup() {
	if c.spec.Foreground {
		return // the group is our own; the kernel kills the command itself
	}
	end := time.Now().Add(outputDelay)
	for syscall.Kill(-c.pid, syscall.SIGKILL) == nil && time.Now().Before(end) {
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // nothing calls this off, and it is short
	}
}

// result returns what the end of the command means.
func (c *child) result(ctx context.Context) error {
	var exit error
	if c.ended.Signal != 0 || c.ended.Code != 0 {
		exit = &ExitError{Code: c.ended.Code, Signal: c.ended.Signal, terminated: c.ended.Terminated}
	}
	killed := c.killed && c.ended.Signal == syscall.SIGKILL // by us: the guard saw a command that ended by itself
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
		cause = errors.New("its guard got no more orders")
	}
	if exit == nil {
		return fmt.Errorf("%w (exit status 0)", cause)
	}
	return fmt.Errorf("%w (%w)", cause, exit)
}

// noteLeftovers tells in the output that something was killed behind the command's back, because its author will look
// for it there.
func (c *child) noteLeftovers() {
	if c.gone != nil && c.gone.Leftovers > 0 && c.spec.Stderr != nil {
		fmt.Fprintf(c.spec.Stderr, "lockstep: the command left %d processes running; they were killed, since its lock is free now\n", c.gone.Leftovers)
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
