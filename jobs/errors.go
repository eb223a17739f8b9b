package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Causes with which a worker ends the context of an attempt, beside locks.ErrLost.
var (
	// ErrTimeout says that the attempt took longer than the job's timeout. It is a failed attempt.
	ErrTimeout = errors.New("timeout: the attempt took too long")

	// ErrDrain says that the worker shuts down and hands the run back. Neither a failure nor a crash is counted.
	ErrDrain = errors.New("the worker drains")

	// ErrCanceled says that the run is to end: a person canceled it, or its job's next tick replaces it. It is not tried
	// again.
	ErrCanceled = errors.New("the run is canceled")
)

// ErrTerminated says that a SIGTERM ended a command, and that its worker did not send it. A service manager sends one
// to every process of a service that it stops: then the run is handed back, as in any drain. Else it is a failed
// attempt.
var ErrTerminated = errors.New("the command was told to end")

// ErrAbandoned says that a handler ignored the end of its context until its process was about to exit, and still runs.
var ErrAbandoned = errors.New("the handler ignored the end of its context")

// ErrUnknownHandler says that a job names a handler that this worker's [Registry] does not have.
var ErrUnknownHandler = errors.New("no such handler in this worker")

// Permanent returns an error that reads like err and is not retried: the run fails for good. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

// IsPermanent tells whether err, or an error that it wraps, was made with [Permanent]. It goes before [RetryDelay]:
// an error that is both is not retried.
func IsPermanent(err error) bool {
	var permanent *permanentError
	return errors.As(err, &permanent)
}

// RetryAfter returns an error that reads like err and asks for a pause of d before the next attempt, in place of the
// job's backoff. It does not ask for more retries than the job has. A negative d counts as 0; RetryAfter(d, nil) is
// nil.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err, max(d, 0)}
}

// RetryDelay returns the pause that [RetryAfter] put into err or into an error that it wraps, and whether there is one.
func RetryDelay(err error) (time.Duration, bool) {
	var after *retryAfterError
	if !errors.As(err, &after) {
		return 0, false
	}
	return after.delay, true
}

type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

type retryAfterError struct {
	err   error
	delay time.Duration
}

func (e *retryAfterError) Error() string { return e.err.Error() }
func (e *retryAfterError) Unwrap() error { return e.err }

// PanicError is how a handler that panicked failed.
type PanicError struct {
	Value any    // what was given to panic
	Stack string // the handler's own frames, innermost first, at most 16 of them
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// Unwrap returns the value of the panic if that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// withCause lets err say why ctx ended. Most code below a handler returns ctx.Err(), which tells that it ended and not
// why.
func withCause(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if err == nil || cause == nil || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", cause, err)
}
