package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"lockstep/locks"
)

// The exit codes that scripts rely on; the help topic exit-codes explains them. `lock exec` also
// passes on the exit code of its command.
const (
	exitFailed      = 1   // it failed
	exitUsage       = 2   // wrong usage, or refused
	exitConfig      = 3   // the config has errors
	exitRedis       = 4   // Redis is not reachable
	exitRun         = 5   // the awaited run failed
	exitBusy        = 75  // could not get the lock in time
	exitLost        = 76  // the lock was lost, and the command was ended
	exitTimeout     = 124 // --wait timed out
	exitInterrupted = 130 // SIGINT or SIGTERM
)

// errInterrupted is the cause of the root context after a signal.
var errInterrupted = errors.New("interrupted")

// exitError is an error with an exit code. All other errors exit with [exitFailed].
type exitError struct {
	code int
	err  error // to print; nil if it was printed already
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// exit returns an error that ends the process with an exit code.
func exit(code int, err error) error { return &exitError{code, err} }

// refuse returns an error for a request that cannot be met as the user made it.
func refuse(format string, args ...any) error { return exit(exitUsage, fmt.Errorf(format, args...)) }

// misuse returns an error for an invalid command line. It points to the help of the command.
func misuse(cmd *cobra.Command, format string, args ...any) error {
	return refuse("%s (see: %s --help)", fmt.Sprintf(format, args...), cmd.CommandPath())
}

// codeOf reports an error, if any, and returns the exit code. A process with a log reports it
// there, so that programs that read the log can read its last line too.
func codeOf(ctx context.Context, stderr io.Writer, log *slog.Logger, err error) int {
	if err == nil {
		return 0
	}
	if errors.Is(context.Cause(ctx), errInterrupted) && errors.Is(err, context.Canceled) {
		return exitInterrupted // the user knows why the command ended
	}
	code := exitFailed
	if errors.Is(err, locks.ErrFormat) {
		code = exitUsage
	}
	if known, ok := errors.AsType[*exitError](err); ok {
		code = known.code
		if known.err == nil {
			return code
		}
	}
	if log != nil {
		log.ErrorContext(ctx, "lockstep exits", "error", err, "exit_code", code)
		return code
	}
	fmt.Fprintln(stderr, "lockstep:", err)
	return code
}
