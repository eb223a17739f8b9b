package jobs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"lockstep/locks"
)

// Registry holds the Go handlers of a program and is the [Executor] of the jobs that name one. Fill it with [Handle],
// and open what the handlers need in [Registry.OnStart]. It is safe for concurrent use.
type Registry struct {
	mu       sync.RWMutex
	handlers map[string]func(ctx context.Context, attempt *Attempt) error
	hooks    []hook // in the order of their registration
	passed   int    // how many hooks, from the first on, Start has passed; Stop has to undo these
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry {
	return &Registry{handlers: make(map[string]func(context.Context, *Attempt) error)}
}

// Handle registers the handler that jobs name by "handler: name". A is the type of its arguments, which are decoded
// from the run's JSON: a run whose arguments do not fit fails for good, with the field named.
//
// A field that A does not have is ignored, as encoding/json does: a producer that is deployed before this worker may
// already send a new one. [Strict] refuses it instead. A run without arguments leaves A at its zero value; a field that
// the arguments leave out keeps its zero value too.
//
// The handler is called from many goroutines at once. It has to return soon after ctx has ended: its locks may pass to
// another worker a few seconds later. A panic in it is a failed attempt ([*PanicError]), not a dead worker; a panic in
// a goroutine that it started ends the process, as in any Go program.
//
// Like http.Handle, Handle panics when the name is bad (see [ValidHandlerName]), when it is taken, and when handler is
// nil: all of them are mistakes of the program, to be seen at its start.
func Handle[A any](reg *Registry, name string, handler func(ctx context.Context, run *Run[A]) error, options ...Option) {
	if err := ValidHandlerName(name); err != nil {
		panic("jobs: Handle: " + err.Error())
	}
	if handler == nil {
		panic("jobs: Handle: handler " + name + " is nil")
	}
	var h handling
	for _, option := range options {
		option(&h)
	}
	reg.add(name, func(ctx context.Context, attempt *Attempt) error {
		run := &Run[A]{attempt: attempt}
		if err := decodeArgs(attempt.Args, &run.Args, h.strict); err != nil {
			return Permanent(fmt.Errorf("args of handler %s: %w", name, err))
		}
		return handler(ctx, run)
	})
}

// An Option changes how [Handle] treats a handler's runs: see [Strict].
type Option func(*handling)

// handling is what the options of one handler come to.
type handling struct {
	strict bool
}

// Strict is an [Option] of [Handle]: a run whose arguments have a field that the handler's type does not have fails
// for good, with the field named. Choose it where a misspelled argument would do harm, and deploy the workers before
// the producers.
func Strict(h *handling) { h.strict = true }

func (r *Registry) add(name string, handler func(context.Context, *Attempt) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, taken := r.handlers[name]; taken {
		panic("jobs: Handle: handler " + name + " is registered twice")
	}
	r.handlers[name] = handler
}

// Has tells whether a handler of that name is registered.
func (r *Registry) Has(name string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	_, ok := r.handlers[name]
	return ok
}

// Names returns the names of all handlers, sorted.
func (r *Registry) Names() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Sorted(maps.Keys(r.handlers))
}

// Execute calls the handler that attempt.Job.Handler names and returns when it has returned, whatever ctx says, unless
// attempt.Abandon is closed before that. Errors: [ErrAbandoned] in that case, [ErrUnknownHandler], a [Permanent] error for
// arguments that do not fit, [*PanicError], else the handler's own; the cause of ctx, once that has ended, is added to any of
// them.
func (r *Registry) Execute(ctx context.Context, attempt *Attempt) error {
	r.mu.RLock()
	handler := r.handlers[attempt.Job.Handler]
	r.mu.RUnlock()
	if handler == nil {
		return fmt.Errorf("handler %q: %w", attempt.Job.Handler, ErrUnknownHandler)
	}
	result := protected(func() error { return handler(ctx, attempt) })
	select {
	case err := <-result:
		return withCause(ctx, err)
	case <-attempt.Abandon:
	}
	select {
	case err := <-result: // both have come
		return withCause(ctx, err)
	default:
		return withCause(ctx, ErrAbandoned)
	}
}

// errGoexit says that a handler, or a function of OnStart or OnStop, ended its goroutine, which testing.T.FailNow
// does for example.
var errGoexit = errors.New("the handler called runtime.Goexit")

// protect calls f and turns a panic into an error.
func protect(f func() error) error { return <-protected(f) }

// protected is protect; the result can be received once. f gets a goroutine of its own because runtime.Goexit would take
// the worker's goroutine away with it.
func protected(f func() error) <-chan error {
	result := make(chan error, 1)
	go func() {
		err := errGoexit // what stays if neither the return nor the panic below replaces it
		defer func() {
			if value := recover(); value != nil {
				err = &PanicError{Value: value, Stack: stack()}
			}
			result <- err
		}()
		err = f()
	}()
	return result
}

// maxFrames bounds the stack that is kept with a failed attempt.
const maxFrames = 16

// stack returns the frames that led to the panic which is being recovered, without those of the runtime and ours.
func stack() string {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(0, pcs)])
	var b strings.Builder
	panicked, kept := false, 0
	for {
		frame, more := frames.Next()
		inRuntime := strings.HasPrefix(frame.Function, "runtime.")
		switch {
		case frame.Function == "runtime.gopanic":
			panicked = true
		case !panicked, inRuntime && kept == 0: // what recovers, and how a fault became a panic
		case strings.HasPrefix(frame.Function, "lockstep/jobs.protect"), strings.HasPrefix(frame.Function, "lockstep/jobs.(*Registry).Execute"):
			return b.String()
		case kept == maxFrames:
			b.WriteString("...\n")
			return b.String()
		default:
			fmt.Fprintf(&b, "%s\n\t%s:%d\n", frame.Function, frame.File, frame.Line)
			kept++
		}
		if !more {
			return b.String()
		}
	}
}

// decodeArgs fills target from args, which may be empty, and names the field that does not fit; if strict, also a field
// that target does not have.
func decodeArgs(args json.RawMessage, target any, strict bool) error {
	if len(bytes.TrimSpace(args)) == 0 {
		return nil
	}
	if err := checkJSON(args); err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(args))
	if strict {
		decoder.DisallowUnknownFields()
	}
	err := decoder.Decode(target)
	var mismatch *json.UnmarshalTypeError
	switch {
	case errors.As(err, &mismatch) && mismatch.Field != "":
		return fmt.Errorf("field %q: a JSON %s does not fit into %s", mismatch.Field, mismatch.Value, mismatch.Type)
	case errors.As(err, &mismatch):
		return fmt.Errorf("a JSON %s does not fit into %s", mismatch.Value, mismatch.Type)
	case err != nil:
		return errors.New(strings.TrimPrefix(err.Error(), "json: ")) // names an unknown field
	}
	return nil
}

// checkJSON refuses what is not exactly one JSON value; a decoder would not look behind the first.
func checkJSON(text json.RawMessage) error {
	var value json.RawMessage
	err := json.Unmarshal(text, &value)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("not JSON: %w (at byte %d)", err, syntax.Offset)
	}
	return err
}

// Run is what a handler is told about the attempt that it does. Args are its arguments; what to write beside every
// effect is [Run.Token] or [Run.IdempotencyKey].
type Run[A any] struct {
	Args A

	attempt *Attempt
}

// ID returns the id of the run: the same for each of its attempts.
func (r *Run[A]) ID() RunID { return r.attempt.Run }

// Job returns the name of the job.
func (r *Run[A]) Job() string { return r.attempt.Job.Name }

// Attempt returns 1 for the first attempt of the run and one more for each further one, whatever ended the last.
func (r *Run[A]) Attempt() int { return r.attempt.Number }

// Tick returns the due time that the run is for, in UTC; the zero time if it was enqueued or started by hand.
func (r *Run[A]) Tick() time.Time { return r.attempt.Tick }

// Token returns the fencing token of the attempt: higher than that of any earlier grant.
func (r *Run[A]) Token() locks.Token { return r.attempt.Token }

// IdempotencyKey returns a text that is the same for all attempts of this run and for no other run.
func (r *Run[A]) IdempotencyKey() string { return r.attempt.IdempotencyKey() }

// Locks returns the names of all resources that the attempt holds, sorted.
func (r *Run[A]) Locks() []string { return slices.Clone(r.attempt.Locks) }

// Hold returns the id of the hold under which the attempt runs.
func (r *Run[A]) Hold() locks.HoldID { return r.attempt.Hold }

// Worker returns the id of the worker that does the attempt.
func (r *Run[A]) Worker() string { return r.attempt.Worker }

// Output takes text for the people who look at the run later; its tail is kept. Safe for concurrent use.
func (r *Run[A]) Output() io.Writer {
	if r.attempt.Output == nil {
		return io.Discard
	}
	return r.attempt.Output
}
