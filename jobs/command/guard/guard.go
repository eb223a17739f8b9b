//go:build unix

package guard

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"lockstep/locks/bootclock"
)

// look is how often the guard checks the boot clock and its parent.
const look = 100 * time.Millisecond

// Main is the main function of a guard. It returns the exit code. Call it as soon as the arguments
// show that this process was started as a guard, in the initialization of a package or after
// runtime.LockOSThread. The kernel ties the life of the command (Pdeathsig) to the thread that
// starts it, not to the process.
func Main() int {
	// Signals sent to the worker's service or terminal are for the worker to act on: a guard that
	// died of one could not guard. The command inherits nothing of this. The guard records a TERM,
	// because the command may have received one too.
	survive(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM)
	for _, fd := range []int{OrdersFD, ReportsFD} {
		var stat syscall.Stat_t
		if err := syscall.Fstat(fd, &stat); err != nil || stat.Mode&syscall.S_IFMT != syscall.S_IFIFO {
			return notByHand()
		}
		// Otherwise the command could hold the pipe open, or write a report itself.
		syscall.CloseOnExec(fd)
	}
	orders := os.NewFile(OrdersFD, "orders")
	g := &guard{orders: orders, reports: os.NewFile(ReportsFD, "reports"), terms: terms, end: -1}
	first, err := ReceiveOrder(orders)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		// The worker died or abandoned the command before the guard received it.
		return 0
	}
	if err != nil || first.Start == nil {
		return notByHand()
	}
	g.run(first)
	return 0
}

func notByHand() int {
	_, _ = os.Stderr.WriteString("lockstep: a guard is started by a worker for one of its commands, not by hand\n")
	return 2
}

// guard is the state of a guard process. Only the goroutine of Main uses it: if others waited for
// orders and signals, threads would wake each other, which takes more processor time than all that
// a guard does. That goroutine alone starts, signals and reaps processes, so a process ID that it
// uses cannot have passed to another process in between.
type guard struct {
	orders  io.Reader // OrdersFD; nil once the worker is dead or has ordered an end
	reports *os.File
	// Receives the SIGTERMs sent to this process. Its buffer is one, because one signal is enough.
	terms chan os.Signal

	killBy time.Duration // reading of the boot clock; 0 means none
	pid    int           // the command
	// A descriptor that can be read when the command has ended; -1 means none: the command has not
	// started, it has ended, or the system has no such descriptors.
	end   int
	group bool // the command has its own process group

	// The command was asked to stop, or is being killed, and had not ended before.
	stopped   bool
	early     []syscall.Signal // to send to the command once it has started
	overdue   bool             // it is killed because its deadline has passed
	ended     bool             // the command itself has ended and was reaped
	killing   bool             // all processes are being killed
	rounds    int              // rounds of killing so far
	leftovers int              // processes killed after the command had ended by itself
}

func (g *guard) run(first Order) {
	if file := first.Start.Remove; file != "" {
		defer os.Remove(file) // the worker removes it too, unless it dies
	}
	_ = AdoptOrphans() // if this fails, the group is still killed
	g.killBy = first.KillBy
	parent := first.Start.Parent
	// Before the checks below: if a folder of PATH does not respond, this takes any time.
	path, err := lookUp(first.Start.Argv[0], first.Start.Env)
	for g.wait(-1, 0) {
	}
	if overdue := g.isOverdue(); overdue || g.stopped {
		g.report(Report{Ended: &Ended{Signal: syscall.SIGKILL, Stopped: true, Overdue: overdue}})
		g.report(Report{Gone: &Gone{}})
		return
	}
	if os.Getppid() != parent {
		return // the worker died meanwhile
	}
	if err == nil {
		err = g.start(first.Start, path)
	}
	if err != nil {
		g.report(Report{Failed: failure(first.Start, path, err)})
		return
	}
	g.report(Report{Started: g.pid})
	for _, sig := range g.early {
		g.signal(sig)
	}

	for !g.reap() {
		if g.killing {
			g.killChildren()
		}
		g.wait(g.end, g.nextLook())
		if !g.killing && g.isOverdue() {
			g.overdue = !g.ended
			g.kill()
		}
		// Also detects the worker's death if another process keeps the orders pipe open.
		if os.Getppid() != parent {
			g.kill()
		}
	}
	g.report(Report{Gone: &Gone{Leftovers: g.leftovers}})
}

// report sends a report to the worker. If the worker is dead, the error does not matter.
func (g *guard) report(r Report) { _ = r.Send(g.reports) }

// wait returns when an order has arrived, when end can be read, or after the timeout. It carries
// out the order and reports whether there was one. A signal can make it return early.
func (g *guard) wait(end int, timeout time.Duration) bool {
	orders := -1
	if g.orders != nil {
		orders = OrdersFD
	}
	ordered, ended := await(orders, end, timeout)
	if ended {
		// A debugger may delay the reaping. Until then, the descriptor could always be read.
		_ = syscall.Close(g.end)
		g.end = -1
	}
	if !ordered {
		return false
	}
	// Does not block: the worker writes an order at once, and the pipe passes on one as small as
	// all orders but the first without parting it.
	o, err := ReceiveOrder(g.orders)
	g.obey(o, err == nil)
	return true
}

// isOverdue reports whether the deadline has passed. If the guard got no processor time, the pipe
// may contain an unread order with a later deadline. isOverdue reads it first. That takes a moment,
// which is negligible compared with the time between this deadline and the end of the lease.
func (g *guard) isOverdue() bool {
	passed := func() bool { return g.killBy != 0 && bootclock.Now() >= g.killBy }
	if !passed() {
		return false
	}
	for end := bootclock.Now() + look/5; passed() && !g.killing; {
		left := end - bootclock.Now()
		if left <= 0 {
			return true
		}
		g.wait(-1, left)
	}
	return passed()
}

func (g *guard) nextLook() time.Duration {
	if g.killing {
		// A process that just lost its parent is a new child of the guard. Nothing reports that.
		return min(look, time.Millisecond/2<<min(g.rounds, 10))
	}
	limit := look
	if g.end == -1 {
		limit /= 10
	}
	if g.killBy != 0 {
		limit = min(limit, max(g.killBy-bootclock.Now(), 0))
	}
	return limit
}

// start starts the command.
func (g *guard) start(s *Start, path string) (err error) {
	attr := &syscall.SysProcAttr{Setpgid: true, Pgid: s.Group}
	dieWithParent(attr)
	g.group = s.Group == 0
	s.Mark.set()
	// Not with os/exec, which would wait for the command itself: here one loop reaps all children.
	g.pid, err = syscall.ForkExec(path, s.Argv, &syscall.ProcAttr{Env: s.Env, Files: []uintptr{0, 1, 2}, Sys: attr})
	if err == nil {
		g.end = endOf(g.pid)
	}
	return err
}

// failure describes why the program at path could not be looked up or started.
func failure(s *Start, path string, err error) *Failed {
	f := &Failed{Reason: err.Error(), NotFound: errors.Is(err, errNotFound)}
	if errors.Is(err, fs.ErrPermission) {
		f.Errno = syscall.EACCES // lookUp knows no more
	}
	if errors.As(err, &f.Errno) {
		f.Reason = f.Errno.Error()
		_, statErr := os.Stat(path)
		switch {
		case f.Errno == syscall.ENOENT && path != "" && statErr == nil:
			f.Reason += " (the file exists, but the interpreter in its first line does not)"
		case f.Errno == syscall.ENOEXEC:
			f.Reason += " (a script needs a first line like #!/bin/sh)"
		case f.Errno == syscall.E2BIG:
			size := 0
			for _, text := range slices.Concat(s.Argv, s.Env) {
				size += len(text) + 1
			}
			f.Reason += " (arguments and environment have " + strconv.Itoa(size) + " bytes; Linux allows 131071 for a single one)"
		}
	}
	return f
}

// obey carries out an order of the worker. ok is false if there are no more orders.
func (g *guard) obey(o Order, ok bool) {
	if !ok {
		g.orders = nil
		g.kill()
		return
	}
	if o.KillBy != 0 {
		g.killBy = o.KillBy
	}
	if g.pid == 0 && o.Stop { // not started yet, and now it never will be
		g.stopped = true
		return
	}
	if g.pid == 0 {
		if o.Signal != 0 {
			g.early = append(g.early, o.Signal)
		}
		return
	}
	if o.Signal == 0 || g.ended || g.killing || g.reap() || g.ended {
		return // also if it ended just now: then it ended by itself
	}
	g.stopped = g.stopped || o.Stop
	g.signal(o.Signal)
	if o.Stop {
		g.signal(syscall.SIGCONT) // a stopped process receives no other signal until it continues
	}
}

// signal sends sig to the command, or to its process group if it has its own. The command has not
// been reaped yet, or only just now, so its ID and that of its group are still in use.
func (g *guard) signal(sig syscall.Signal) {
	if g.group {
		_ = syscall.Kill(-g.pid, sig)
	} else if !g.ended {
		_ = syscall.Kill(g.pid, sig)
	}
}

// kill begins to kill all processes. The loop in run continues until none is left. One signal to
// the group reaches all of it: the kernel does not let a process fork while a KILL is pending for
// it.
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

// killChildren does one round of killing: the command, and all current children of the guard.
func (g *guard) killChildren() {
	g.rounds++
	if !g.ended {
		_ = syscall.Kill(g.pid, syscall.SIGKILL)
	}
	KillChildren()
}

// reap reaps every child that has ended, and returns true if none is left. If the command is among
// them, reap reports its end and begins to kill the processes that it left.
func (g *guard) reap() bool {
	for ; ; g.rounds = 0 { // a dead child may leave children of its own
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
			end := &Ended{Stopped: g.stopped, Overdue: g.overdue}
			// First of all, so that none of its processes continues.
			g.kill()
			if status.Signaled() {
				end.Signal = status.Signal()
			} else if end.Code = status.ExitStatus(); end.Code != 0 {
				end.Terminated = g.terminated()
			}
			g.report(Report{Ended: end})
		case g.ended && !g.stopped && status.Signaled() && status.Signal() == syscall.SIGKILL:
			g.leftovers++
		}
	}
}

// terminated reports whether this process has received a SIGTERM. Call it once.
func (g *guard) terminated() bool {
	// Stop waits until the signals whose handlers have run are in the channel. The other channel
	// keeps SIGTERM from ending this process from now on.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM)
	signal.Stop(g.terms)
	return len(g.terms) > 0
}
