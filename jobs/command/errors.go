//go:build unix

package command

import (
	"fmt"
	"os/exec"
	"syscall"

	"lockstep/jobs"
)

// ExitError says that the command exited with a status other than 0, or that a signal ended it.
type ExitError struct {
	Code   int            // the exit status; 0 if a signal ended the command
	Signal syscall.Signal // 0 if the command exited

	terminated bool // the command failed after its guard had received a SIGTERM
}

// Is reports whether target is [jobs.ErrTerminated] and a SIGTERM ended the command. That means
// that the command died of the signal, exited with the status by which shells report it, or failed
// after its guard had received a SIGTERM. A service manager sends one to all processes of a
// service.
func (e *ExitError) Is(target error) bool {
	return target == jobs.ErrTerminated && (e.ExitCode() == 128+int(syscall.SIGTERM) || e.terminated)
}

func (e *ExitError) Error() string {
	if e.Signal != 0 {
		return "signal: " + e.Signal.String()
	}
	return fmt.Sprintf("exit status %d", e.Code)
}

// ExitCode returns the exit code that a shell would report: the exit status, or 128+n if signal n
// ended the command.
func (e *ExitError) ExitCode() int {
	if e.Signal != 0 {
		return 128 + int(e.Signal)
	}
	return e.Code
}

// StartError says that the command could not be started, so no process of it ever ran. It wraps
// exec.ErrNotFound if there is no such program in PATH, and otherwise the system's error
// (syscall.ENOENT, syscall.EACCES, ...).
type StartError struct {
	Command string // the first element of Argv
	Reason  string
	// Errno is the system's error. It is 0 if the program was not found in PATH, or could not be
	// looked up there.
	Errno syscall.Errno

	notFound bool
}

func (e *StartError) Error() string { return fmt.Sprintf("start %q: %s", e.Command, e.Reason) }

func (e *StartError) Unwrap() error {
	switch {
	case e.notFound:
		return exec.ErrNotFound
	case e.Errno != 0:
		return e.Errno
	}
	return nil
}

// ExitCode returns the exit code that a shell would report: 127 if there is no such program, 126 if
// it cannot be executed.
func (e *StartError) ExitCode() int {
	if e.notFound || e.Errno == syscall.ENOENT {
		return 127
	}
	return 126
}
