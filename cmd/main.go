package cmd

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/jobs/command"
)

// Main is the whole of a main function: it makes a binary the lockstep tool, whose workers have the handlers of reg. It
// ends the process.
//
// A worker is several processes of this binary: a parent, its working child, and a guard for each command. Code that
// runs before Main runs in all of them, and for each command line. If it takes 300 ms, each command starts 300 ms
// later; if it opens a database, each guard holds connections. So call Main right after the handlers have been
// registered, and open what they need in [jobs.Registry.OnStart], which is called in the working child alone.
func Main(reg *jobs.Registry) {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == guardWord {
		os.Exit(command.GuardMain(args[1:]))
	}
	redis.SetLogger(quiet{})
	var parent *upward
	if len(args) > 0 && args[0] == childWord {
		var err error
		if parent, err = openUpward(); err != nil {
			fmt.Fprintln(os.Stderr, "lockstep:", err)
			os.Exit(exitUsage)
		}
		args = args[1:]
	}
	code := run(reg, args, parent)
	parent.orderly()
	os.Exit(code)
}

// guardWord is the first argument of this binary when it is to be the guard of a command.
const guardWord = "guard:"

// guardArgv returns how to start this binary as a guard.
func guardArgv() ([]string, error) {
	self, err := command.Self()
	if err != nil {
		return nil, fmt.Errorf("find this program, to guard commands: %w", err)
	}
	return []string{self, guardWord}, nil
}

// quiet takes what the Redis client prints by itself: each of its errors comes back to a caller, who tells it.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// tool is what the commands share.
type tool struct {
	handlers       *jobs.Registry
	args           []string
	stdin          io.Reader
	stdout, stderr io.Writer
	parent         *upward // nil but for a working child

	flags globalFlags

	log atomic.Pointer[slog.Logger] // of a worker, for its last message; nil for other commands

	manners atomic.Int32  // what signals do beside the first one's ending of the root context
	again   chan struct{} // closed by the second signal, and when a working child has lost its parent

	reloads atomic.Bool   // SIGHUP means to read the config again
	hangups chan struct{} // such a SIGHUP; buffer of one
}

// manners of a command.
const (
	brisk    = iota // a second signal ends it at once
	orderly         // it has something to end in order: a second signal closes again, a third one ends it
	handsOff        // it looks after signals itself
)

// briskLimit is how long a brisk command may take to hear of a signal.
const briskLimit = 2 * time.Second

// run does what a command line asks for and returns the exit code.
func run(reg *jobs.Registry, args []string, parent *upward) int {
	t := &tool{
		handlers: reg, args: args, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, parent: parent, again: make(chan struct{}),
		hangups: make(chan struct{}, 1),
	}
	t.reloads.Store(parent != nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan struct{})
	signals := make(chan os.Signal, 2)
	// SIGHUP as well: a terminal that is closed must not leave runs behind that look crashed. What it means to a worker is
	// said by its parent.
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	var orders chan os.Signal
	if parent != nil {
		orders = make(chan os.Signal)
		go parent.obey(orders) // a read of a pipe cannot be called off: it stays until the process ends, which is about to
	}
	var listening sync.WaitGroup
	defer listening.Wait()
	defer close(ended)
	defer signal.Stop(signals)
	listening.Go(func() { t.listen(signals, orders, cancel, ended) })

	root := t.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	return codeOf(ctx, t.stderr, t.log.Load(), err)
}

// listen turns signals into the end of the command, until the command has ended. orders are the signals that a parent
// passes on. A service manager may send a signal to every process of a service: then it comes both ways, and counts once.
func (t *tool) listen(signals, orders <-chan os.Signal, cancel context.CancelCauseFunc, ended <-chan struct{}) {
	abort := sync.OnceFunc(func() { close(t.again) })
	for direct, passed, acted := 0, 0, 0; ; {
		select {
		case <-ended:
			return
		case s := <-signals:
			if s == syscall.SIGHUP && t.rereads() {
				continue
			}
			direct++
		case s, ok := <-orders:
			if !ok { // the parent is dead
				orders = nil
				time.AfterFunc(orphanLimit, func() { os.Exit(exitFailed) })
				cancel(errInterrupted)
				abort()
				continue
			}
			if s == syscall.SIGHUP && t.rereads() {
				continue
			}
			passed++
		}
		n := max(direct, passed)
		if n == acted {
			continue
		}
		acted = n
		switch manners := t.manners.Load(); {
		case manners == handsOff:
		case n == 1:
			cancel(errInterrupted)
			time.AfterFunc(briskLimit, func() {
				if t.parent == nil && t.manners.Load() == brisk { // it does not look: it may be reading a pipe that nobody writes into
					os.Exit(exitInterrupted)
				}
			})
		case manners == orderly && n == 2:
			abort()
		default:
			os.Exit(exitInterrupted)
		}
	}
}
