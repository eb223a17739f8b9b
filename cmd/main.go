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
)

// Main is a complete main function: it turns a binary into the lockstep tool, and its workers have
// the handlers of reg. It exits the process.
//
// A worker consists of several processes of this binary: a parent, its working child, and a guard
// for each command. Code that runs before Main runs in the parent and the child, and for each
// command line. If it takes 300 ms, each command line takes 300 ms longer; if it opens a database,
// the parent holds connections too. So call Main right after registering the handlers, and open
// what they need in [jobs.Registry.OnStart], which is called only in the working child. A guard
// does not get as far as main: it runs while the program is initialized
// (lockstep/cmd/internal/asguard).
func Main(reg *jobs.Registry) {
	args := os.Args[1:]
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

// quiet discards what the Redis client prints by itself: each of its errors also reaches a caller,
// which reports it.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// tool is the state that the commands share.
type tool struct {
	handlers       *jobs.Registry
	args           []string
	stdin          io.Reader
	stdout, stderr io.Writer
	parent         *upward // nil except in a working child

	configPaths []string // of --config

	log atomic.Pointer[slog.Logger] // of a worker, for its last message; nil in other commands

	manners atomic.Int32  // how signals act, beyond the first one's canceling of the root context
	again   chan struct{} // closed by the second signal, or when a working child loses its parent

	reloads atomic.Bool   // SIGHUP means: reload the config
	hangups chan struct{} // such SIGHUPs; buffer of one
}

// The manners of a command: how it reacts to signals.
const (
	brisk    = iota // a second signal ends it at once
	orderly         // it shuts down in order: a second signal closes again, a third one ends it
	handsOff        // it handles signals itself
)

// briskLimit is how long a brisk command may take to react to a signal.
const briskLimit = 2 * time.Second

// run executes a command line and returns the exit code.
func run(reg *jobs.Registry, args []string, parent *upward) int {
	t := &tool{
		handlers: reg, args: args, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, parent: parent, again: make(chan struct{}),
		hangups: make(chan struct{}, 1),
	}
	t.reloads.Store(parent != nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan struct{})
	signals := make(chan os.Signal, 2)
	// SIGHUP too: closing a terminal must not leave runs behind that look crashed. A worker's
	// parent decides what SIGHUP means to it.
	// They are never reset: a signal that arrives while this process exits must change neither its
	// exit code nor the report of a worker to its parent.
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	var orders chan os.Signal
	if parent != nil {
		orders = make(chan os.Signal)
		go parent.obey(orders) // a read of a pipe cannot be canceled: it ends with the process
		go parent.answer()     // ends with the orders
	}
	var listening sync.WaitGroup
	defer listening.Wait()
	defer close(ended)
	listening.Go(func() { t.listen(signals, orders, cancel, ended) })

	root := t.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	return codeOf(ctx, t.stderr, t.log.Load(), err)
}

// listen turns signals into the end of the command, until the command has ended. orders are the
// signals that a parent passes on. A service manager may signal every process of a service; such a
// signal arrives both ways and counts once.
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
				// it did not react: it may be reading a pipe without a writer
				if t.parent == nil && t.manners.Load() == brisk {
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

// pause waits for d. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
