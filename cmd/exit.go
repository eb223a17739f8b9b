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

// The exit codes that scripts rely on; the help topic exit-codes says the same in words. `lock exec` also passes on
// the codes of the command that it runs.
const (
	exitFailed      = 1   // it failed
	exitUsage       = 2   // wrong usage, or refused
	exitConfig      = 3   // the config has errors
	exitRedis       = 4   // Redis is not reachable
	exitRun         = 5   // the run that was waited for failed
	exitBusy        = 75  // could not get the lock in time
	exitLost        = 76  // the lock was lost, and the command was ended
	exitTimeout     = 124 // --wait timed out
	exitInterrupted = 130 // SIGINT or SIGTERM came
)

// errInterrupted is the cause of the root context once a signal has come.
var errInterrupted = errors.New("interrupted")

// exitError is an error that knows the code to exit with. All other errors exit with [exitFailed].
type exitError struct {
	code int
	err  error // what to tell; nil when it has been told
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// exit returns an error that ends the process with a code.
func exit(code int, err error) error { return &exitError{code, err} }

// refuse returns an error for what the user asked and cannot get as he asked it.
func refuse(format string, args ...any) error { return exit(exitUsage, fmt.Errorf(format, args...)) }

// misuse returns an error for a command line that cannot be read. It points to the help of the command.
func misuse(cmd *cobra.Command, format string, args ...any) error {
	return refuse("%s (see: %s --help)", fmt.Sprintf(format, args...), cmd.CommandPath())
}

// codeOf reports what is wrong, if anything, and returns the code to exit with. A process that has a log reports it there,
// so that whatever reads the log can read its last line too.
func codeOf(ctx context.Context, stderr io.Writer, log *slog.Logger, err error) int {
	if err == nil {
		return 0
	}
	if errors.Is(context.Cause(ctx), errInterrupted) && errors.Is(err, context.Canceled) {
		return exitInterrupted // whoever interrupts knows why nothing came of it
	}
	code := exitFailed
	if errors.Is(err, locks.ErrFormat) {
		code = exitUsage
	}
	var known *exitError
	if errors.As(err, &known) {
		code = known.code
		if known.err == nil {
			return code
		}
	}
	if log != nil {
		log.ErrorContext(ctx, "lockstep ends", "error", err, "exit_code", code)
		return code
	}
	fmt.Fprintln(stderr, "lockstep:", err)
	return code
}
