package command

import (
	"fmt"
	"os/exec"
	"syscall"

	"lockstep/jobs"
)

// ExitError says that the command ended with another exit status than 0, or by a signal.
type ExitError struct {
	Code   int            // the exit status; 0 when a signal ended it
	Signal syscall.Signal // 0 when it exited

	terminated bool // its guard got a SIGTERM, too, before it exited
}

// Is reports whether target is [jobs.ErrTerminated] and a SIGTERM ended the command: it died of one, exited with the
// status by which shells report that, or failed after its guard had received one, as all processes of a service do.
func (e *ExitError) Is(target error) bool {
	return target == jobs.ErrTerminated && (e.ExitCode() == 128+int(syscall.SIGTERM) || e.terminated && e.Signal == 0)
}

func (e *ExitError) Error() string {
	if e.Signal != 0 {
		return "signal: " + e.Signal.String()
	}
	return fmt.Sprintf("exit status %d", e.Code)
}

// ExitCode returns what a shell would: the exit status, or 128+n when signal n ended the command.
func (e *ExitError) ExitCode() int {
	if e.Signal != 0 {
		return 128 + int(e.Signal)
	}
	return e.Code
}

// StartError says that the command could not be started, so nothing of it ever ran. errors.Is finds exec.ErrNotFound
// when there is no such program in PATH, else the system's error (syscall.ENOENT, syscall.EACCES, ...).
type StartError struct {
	Command string // the first element of Argv
	Reason  string
	Errno   syscall.Errno // the system's error; 0 when the program was not found in PATH, or could not be looked up there

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

// ExitCode returns what a shell would: 127 when there is no such program, 126 when it cannot be executed.
func (e *StartError) ExitCode() int {
	if e.notFound || e.Errno == syscall.ENOENT {
		return 127
	}
	return 126
}
