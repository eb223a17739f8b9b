package cmd

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/jobs/command"
)

// Main is the whole of a main function: it makes a binary the lockstep tool, whose workers have the handlers of reg. It
// ends the process.
func Main(reg *jobs.Registry) {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == guardWord {
		os.Exit(command.GuardMain(args[1:]))
	}
	redis.SetLogger(quiet{})
	os.Exit(run(reg, args))
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
	stdin          io.Reader
	stdout, stderr io.Writer

	flags globalFlags

	manners atomic.Int32  // what signals do beside the first one's ending of the root context
	again   chan struct{} // closed by the second signal

	reloads atomic.Bool   // SIGHUP means to read the config again
	hangups chan struct{} // such a SIGHUP; buffer of one
}

// manners of a command.
const (
	brisk    = iota // a second signal ends it at once
	orderly         // it has something to end in order: a second signal closes again, a third one ends it
	handsOff        // it looks after signals itself
)

// run does what a command line asks for and returns the exit code.
func run(reg *jobs.Registry, args []string) int {
	t := &tool{handlers: reg, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, again: make(chan struct{}), hangups: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan struct{})
	signals := make(chan os.Signal, 2)
	// SIGHUP as well: a terminal that is closed must not leave runs behind that look crashed. A worker without one, or
	// with one that is still there, reads its config again.
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	var listening sync.WaitGroup
	defer listening.Wait()
	defer close(ended)
	defer signal.Stop(signals)
	listening.Go(func() { t.listen(signals, cancel, ended) })

	root := t.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	return codeOf(ctx, t.stderr, err)
}

// listen turns signals into the end of the command, until the command has ended.
func (t *tool) listen(signals <-chan os.Signal, cancel context.CancelCauseFunc, ended <-chan struct{}) {
	terminal := hasTerminal()
	for n := 1; ; n++ {
		select {
		case <-ended:
			return
		case s := <-signals:
			if s == syscall.SIGHUP && t.rereads(terminal) {
				n--
				continue
			}
		}
		switch manners := t.manners.Load(); {
		case manners == handsOff:
		case n == 1:
			cancel(errInterrupted)
		case manners == orderly && n == 2:
			close(t.again)
		default:
			os.Exit(exitInterrupted)
		}
	}
}
