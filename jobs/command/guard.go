package command

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"lockstep/locks"
)

// look is how often the guard looks at the boot clock and at its parent.
const look = 100 * time.Millisecond

// GuardMain is the main function of a guard; its result is the exit code. Call it from main as soon as the arguments
// show that this process was started as a guard (see Options.Guard). args are those behind Options.Guard; they only
// tell whoever looks at a list of processes what is guarded.
func GuardMain(args []string) int {
	// The kernel ties the command's life (Pdeathsig) to the thread that starts it, not to the process.
	runtime.LockOSThread()
	for _, fd := range []int{ordersFD, reportsFD} {
		var stat syscall.Stat_t
		if err := syscall.Fstat(fd, &stat); err != nil || stat.Mode&syscall.S_IFMT != syscall.S_IFIFO {
			return notByHand()
		}
		syscall.CloseOnExec(fd) // the command could hold the pipe open, or write a report itself
	}
	orders := gob.NewDecoder(os.NewFile(ordersFD, "orders"))
	g := &guard{reports: gob.NewEncoder(os.NewFile(reportsFD, "reports")), terms: make(chan os.Signal, 1)}
	var first order
	if err := orders.Decode(&first); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return 0 // the worker died, or thought better of it, before there was anything to guard
	} else if err != nil || first.Start == nil {
		return notByHand()
	}
	g.run(first, orders)
	return 0
}

func notByHand() int {
	fmt.Fprintln(os.Stderr, "lockstep: a guard is started by a worker for one of its commands, not by hand")
	return 2
}

// guard is the state of a guard process. All of it belongs to the goroutine of run: only that one starts, signals and
// reaps, so no process id it uses can have passed to another process in between.
type guard struct {
	reports *gob.Encoder
	terms   chan os.Signal // SIGTERMs that this process has received; buffer of one, since one is enough
	orders  chan order     // closed when the worker is dead, or wants an end; nil after that

	killBy time.Duration // reading of the boot clock; 0: none
	pid    int           // the command
	group  bool          // the command leads a process group of its own

	stopped   bool // the command was told to end, or is being killed, and had not ended before
	overdue   bool // it is killed because its deadline has come
	ended     bool // the command itself has ended and was reaped
	killing   bool // everything is being killed
	rounds    int  // how often the children were looked for since
	leftovers int  // processes that were killed after the command had ended by itself
}

func (g *guard) run(first order, decoder *gob.Decoder) {
	// What is sent to the worker's service or terminal is for the worker to act on: a guard that died of it could not
	// guard. The signals are caught, not ignored, because a command would inherit that they are ignored. A TERM is noted,
	// because it may have been sent to the command as well.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	signal.Notify(g.terms, syscall.SIGTERM)
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)

	if file := first.Start.Remove; file != "" {
		defer os.Remove(file) // the worker removes it, too, unless it dies
	}
	_ = AdoptOrphans() // without it the group is still killed
	g.killBy = first.KillBy
	parent := first.Start.Parent
	g.orders = make(chan order)
	go func() { // ends with the process: nothing can call off a read that waits for orders
		defer close(g.orders)
		for {
			var o order
			if decoder.Decode(&o) != nil {
				return
			}
			g.orders <- o
		}
	}()
	if overdue := g.isOverdue(); overdue || g.stopped {
		g.report(report{Ended: &ended{Signal: syscall.SIGKILL, Stopped: true, Overdue: overdue}})
		g.report(report{Gone: &gone{}})
		return
	}
	if os.Getppid() != parent {
		return // the worker died meanwhile
	}
	if failure := g.start(first.Start); failure != nil {
		g.report(report{Failed: failure})
		return
	}
	g.report(report{Started: g.pid})

	timer := time.NewTimer(look)
	for !g.reap() {
		if g.killing {
			g.killChildren()
		}
		timer.Reset(g.nextLook())
		select {
		case o, ok := <-g.orders:
			g.obey(o, ok)
		case <-children:
		case <-timer.C:
		}
		if !g.killing && g.isOverdue() {
			g.overdue = !g.ended
			g.kill()
		}
		if os.Getppid() != parent { // says the same as the end of orders, also if somebody else kept that pipe open
			g.kill()
		}
	}
	g.report(report{Gone: &gone{Leftovers: g.leftovers}})
}

// report tells the worker; if that is dead, there is nobody to tell.
func (g *guard) report(r report) { _ = g.reports.Encode(r) }

// isOverdue tells whether the deadline has come. A guard that was starved of time may have been told a later one
// meanwhile, which lies unread in the pipe: that is looked at first, for a moment that is nothing beside what lies
// between this deadline and the one of the lease.
func (g *guard) isOverdue() bool {
	passed := func() bool { return g.killBy != 0 && locks.BootTime() >= g.killBy }
	if !passed() {
		return false
	}
	moment := time.NewTimer(look / 5)
	defer moment.Stop()
	for passed() && !g.killing {
		select {
		case o, ok := <-g.orders:
			g.obey(o, ok)
		case <-moment.C:
			return true
		}
	}
	return passed()
}

func (g *guard) nextLook() time.Duration {
	switch {
	case g.killing && g.rounds < 20:
		return look / 10 // a process whose parent has just died is a new child of the guard, which no signal tells
	case g.killBy != 0 && !g.killing:
		return min(look, max(g.killBy-locks.BootTime(), 0))
	default:
		return look
	}
}

// start starts the command, or says why not.
func (g *guard) start(s *start) *failed {
	// The program is looked up where the command will look for others: in the PATH of its own environment.
	for _, entry := range s.Env {
		if path, ok := strings.CutPrefix(entry, "PATH="); ok {
			os.Setenv("PATH", path)
		}
	}
	path, err := exec.LookPath(s.Argv[0])
	if err == nil {
		attr := &syscall.SysProcAttr{Setpgid: true, Pgid: s.Group}
		dieWithParent(attr)
		g.group = s.Group == 0
		s.Mark.set()
		// Not by os/exec: it would wait for the command itself, but here one loop reaps everything.
		g.pid, err = syscall.ForkExec(path, s.Argv, &syscall.ProcAttr{Env: s.Env, Files: []uintptr{0, 1, 2}, Sys: attr})
		if err == nil {
			return nil
		}
	}
	f := &failed{Reason: err.Error(), NotFound: errors.Is(err, exec.ErrNotFound)}
	if lookup := new(exec.Error); errors.As(err, &lookup) {
		f.Reason = lookup.Err.Error() // the name is in the StartError already
	}
	if errors.Is(err, fs.ErrPermission) {
		f.Errno = syscall.EACCES // LookPath tells only this much
	}
	if errors.As(err, &f.Errno) {
		f.Reason = f.Errno.Error()
		_, statErr := os.Stat(path)
		switch {
		case f.Errno == syscall.ENOENT && path != "" && statErr == nil:
			f.Reason += " (the file is there, but the interpreter that its first line names is not)"
		case f.Errno == syscall.ENOEXEC:
			f.Reason += " (a script needs a first line like #!/bin/sh)"
		case f.Errno == syscall.E2BIG:
			size := 0
			for _, text := range slices.Concat(s.Argv, s.Env) {
				size += len(text) + 1
			}
			f.Reason += fmt.Sprintf(" (arguments and environment have %d bytes; Linux allows 131071 for a single one)", size)
		}
	}
	return f
}

// obey does what the worker orders. ok is false when there are no more orders.
func (g *guard) obey(o order, ok bool) {
	if !ok {
		g.orders = nil
		g.kill()
		return
	}
	if o.KillBy != 0 {
		g.killBy = o.KillBy
	}
	if g.pid == 0 { // not started yet, and now it will not be
		g.stopped = g.stopped || o.Stop
		return
	}
	if o.Signal == 0 || g.ended || g.killing || g.reap() || g.ended {
		return // also if it has ended just now: then it ended by itself
	}
	g.stopped = g.stopped || o.Stop
	g.signal(o.Signal)
	if o.Stop {
		g.signal(syscall.SIGCONT) // a stopped process gets no signal before it goes on
	}
}

// signal sends sig to the command: to its whole group if that is its own. The command was not reaped, or just now, so
// its id and that of its group are still taken.
func (g *guard) signal(sig syscall.Signal) {
	if g.group {
		_ = syscall.Kill(-g.pid, sig)
	} else if !g.ended {
		_ = syscall.Kill(g.pid, sig)
	}
}

// kill begins to kill everything; the loop in run goes on with it until nothing is left. One signal to the group
// reaches all of it: the kernel does not let a process fork while a KILL is on its way to it.
func (g *guard) kill() {
	if g.killing {
		return
	}
	g.killing = true
	g.stopped = g.stopped || !g.ended
	if g.pid != 0 {
		g.signal(syscall.SIGKILL)
	}
}

// killChildren is one round of killing: the command, and all that has become the guard's child so far.
func (g *guard) killChildren() {
	g.rounds++
	if !g.ended {
		_ = syscall.Kill(g.pid, syscall.SIGKILL)
	}
	KillChildren()
}

// reap takes note of every child that has ended, and tells whether none is left. When the command is among them, it
// reports that and begins to kill what it left.
func (g *guard) reap() bool {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // ECHILD
			return true
		case pid == 0:
			return false
		case pid == g.pid && !g.ended:
			g.ended = true
			end := &ended{Stopped: g.stopped, Overdue: g.overdue, Terminated: len(g.terms) > 0}
			if status.Signaled() {
				end.Signal = status.Signal()
			} else {
				end.Code = status.ExitStatus()
			}
			g.kill() // before anything else: nothing of it may go on
			g.report(report{Ended: end})
		case g.ended && !g.stopped && status.Signaled() && status.Signal() == syscall.SIGKILL:
			g.leftovers++
		}
	}
}
