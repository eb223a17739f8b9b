package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Causes with which a worker ends the context of an attempt, besides locks.ErrLost.
var (
	// ErrTimeout says that the attempt took longer than the job's timeout. The attempt has failed.
	ErrTimeout = errors.New("timeout: the attempt took too long")

	// ErrDrain says that the worker shuts down and hands the run back. It counts as neither a
	// failure nor a crash.
	ErrDrain = errors.New("the worker is draining")

	// ErrCanceled says that the run must end, because a person canceled it or the job's next tick
	// replaces it. The run is not retried.
	ErrCanceled = errors.New("the run is canceled")
)

// ErrTerminated says that a SIGTERM ended a command, and that the worker did not send it. A service
// manager sends SIGTERM to every process of a service that it stops. In that case the run is handed
// back, as in any drain. Otherwise the attempt has failed.
var ErrTerminated = errors.New("the command was ended by SIGTERM")

// ErrAbandoned says that the work of an attempt continues although its context has ended and its
// process is about to exit: a handler ignores the end of its context, or a command cannot be
// killed.
var ErrAbandoned = errors.New("the work continues after the end of its context")

// ErrUnknownHandler says that a job names a handler that is not in this worker's [Registry].
var ErrUnknownHandler = errors.New("no such handler in this worker")

// Permanent returns an error with the text of err that is not retried: the run fails.
// Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

// IsPermanent reports whether err, or an error that it wraps, was made with [Permanent]. It takes
// precedence over [RetryDelay]: an error that is both is not retried.
func IsPermanent(err error) bool {
	_, ok := errors.AsType[*permanentError](err)
	return ok
}

// RetryAfter returns an error with the text of err that asks for a pause of d before the next
// attempt, in place of the job's backoff. It does not ask for more retries than the job has. A
// negative d counts as 0. RetryAfter(d, nil) is nil.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &retryAfterError{err, max(d, 0)}
}

// RetryDelay returns the pause that [RetryAfter] put into err or into an error that it wraps. It
// returns false if err has none.
func RetryDelay(err error) (time.Duration, bool) {
	var after *retryAfterError
	if !errors.As(err, &after) {
		return 0, false
	}
	return after.delay, true
}

type permanentError struct{ error }

func (e *permanentError) Unwrap() error { return e.error }

type retryAfterError struct {
	error
	delay time.Duration
}

func (e *retryAfterError) Unwrap() error { return e.error }

// PanicError is the error of a handler that panicked.
type PanicError struct {
	Value any    // the argument of panic
	Stack string // the handler's own frames, innermost first, at most 16
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// Unwrap returns the value of the panic if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// withCause adds to err the reason why ctx ended. Most code below a handler returns ctx.Err(),
// which does not contain the reason.
func withCause(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if err == nil || cause == nil || errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", cause, err)
}
