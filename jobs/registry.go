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

// Registry holds the Go handlers of a program and is the [Executor] of the jobs that name one. Fill
// it with [Handle], and open what the handlers need in [Registry.OnStart]. It is safe for
// concurrent use.
type Registry struct {
	mu       sync.RWMutex
	handlers map[string]func(ctx context.Context, attempt *Attempt) error
	hooks    []hook // in the order of their registration
	passed   int    // how many hooks Start has passed; Stop must undo these
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry {
	return &Registry{handlers: make(map[string]func(context.Context, *Attempt) error)}
}

// Handle registers the handler that jobs name with "handler: name". A is the type of its arguments,
// which are decoded from the run's JSON. A run with arguments that do not fit fails without a
// retry, and the error names the field.
//
// Like encoding/json, Handle ignores a field that A does not have: a producer that is deployed
// before this worker may already send a new field. [Strict] refuses unknown fields instead. If a
// run has no arguments, A keeps its zero value, and a field without an argument keeps its zero
// value too.
//
// The handler is called from many goroutines at once. It must return soon after ctx has ended,
// because its locks may pass to another worker a few seconds later. A request for a run that is
// made with ctx is recorded as made from within this run ([RunOf]). A panic in the handler is a
// failed attempt ([*PanicError]) and does not end the worker. A panic in a goroutine that the
// handler started ends the process, as in any Go program.
//
// Like http.Handle, Handle panics if the name is invalid (see [ValidHandlerName]) or already
// registered, or if handler is nil. All of these are mistakes of the program that show at its
// start.
func Handle[A any](reg *Registry, name string, handler func(ctx context.Context, run *Run[A]) error, options ...Option) {
	if err := ValidHandlerName(name); err != nil {
		panic("jobs: Handle: " + err.Error())
	}
	if handler == nil {
		panic("jobs: Handle: handler " + name + " is nil")
	}
	strict := slices.Contains(options, Strict)
	reg.add(name, func(ctx context.Context, attempt *Attempt) error {
		run := &Run[A]{attempt: attempt}
		if err := decodeArgs(attempt.Args, &run.Args, strict); err != nil {
			return Permanent(fmt.Errorf("args of handler %s: %w", name, err))
		}
		return handler(ctx, run)
	})
}

// An Option changes how [Handle] treats a handler's runs: see [Strict].
type Option struct{ strict bool }

// Strict is an [Option] of [Handle]. With it, a run fails if its arguments have a field that the
// handler's type does not have. It fails without a retry, and the error names the field. Choose it
// where a misspelled argument would do harm, and deploy the workers before the producers.
var Strict = Option{strict: true}

func (r *Registry) add(name string, handler func(context.Context, *Attempt) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, taken := r.handlers[name]; taken {
		panic("jobs: Handle: handler " + name + " is registered twice")
	}
	r.handlers[name] = handler
}

// Has reports whether a handler with that name is registered.
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

// Execute calls the handler that attempt.Job.Handler names. It returns when the handler has
// returned, even if ctx has ended, unless attempt.Abandon is closed first. Its errors are
// [ErrAbandoned] in that case, [ErrUnknownHandler], a [Permanent] error for arguments that do not
// fit, [*PanicError], and the handler's own. Once ctx has ended, its cause is added to any of them.
func (r *Registry) Execute(ctx context.Context, attempt *Attempt) error {
	r.mu.RLock()
	handler := r.handlers[attempt.Job.Handler]
	r.mu.RUnlock()
	if handler == nil {
		return fmt.Errorf("handler %q: %w", attempt.Job.Handler, ErrUnknownHandler)
	}
	working := InRun(ctx, attempt.Run)
	result := protected(func() error { return handler(working, attempt) })
	select {
	case err := <-result:
		return withCause(ctx, err)
	case <-attempt.Abandon:
	}
	select {
	case err := <-result: // both are ready
		return withCause(ctx, err)
	default:
		return withCause(ctx, ErrAbandoned)
	}
}

// errGoexit says that a handler, or a function of OnStart or OnStop, ended its goroutine.
// testing.T.FailNow does that, for example.
var errGoexit = errors.New("the handler called runtime.Goexit")

// protect calls f and turns a panic into an error.
func protect(f func() error) error { return <-protected(f) }

// protected is protect with a channel, from which the result can be received once. f runs in a
// goroutine of its own because runtime.Goexit would end the worker's goroutine.
func protected(f func() error) <-chan error {
	result := make(chan error, 1)
	go func() {
		err := errGoexit // remains if neither the return nor the panic below replaces it
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

// maxFrames limits the stack that is kept with a failed attempt.
const maxFrames = 16

// stack returns the frames that led to the recovered panic, without those of the runtime and of
// this package.
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
		case !panicked, inRuntime && kept == 0:
			// the recovering frames, and those that turned a fault into a panic
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

// decodeArgs decodes args, which may be empty, into target. An error names the field that does not
// fit. If strict, a field that target does not have is an error too.
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
		// the error names an unknown field
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}

// checkJSON refuses a text that is not exactly one JSON value. A decoder would ignore the text
// after the first value.
func checkJSON(text json.RawMessage) error {
	var value json.RawMessage
	err := json.Unmarshal(text, &value)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("not JSON: %w (at byte %d)", err, syntax.Offset)
	}
	return err
}

// Run is a handler's view of its attempt. Args are the arguments. Store [Run.Token] or
// [Run.IdempotencyKey] beside every effect.
type Run[A any] struct {
	Args A

	attempt *Attempt
}

// ID returns the ID of the run, which all of its attempts share.
func (r *Run[A]) ID() RunID { return r.attempt.Run }

// Job returns the name of the job.
func (r *Run[A]) Job() string { return r.attempt.Job.Name }

// Attempt returns 1 for the first attempt of the run. Each further attempt adds one, however the
// last one ended.
func (r *Run[A]) Attempt() int { return r.attempt.Number }

// Tick returns the due time of the run in UTC, or the zero time if the run was enqueued or started
// by hand.
func (r *Run[A]) Tick() time.Time { return r.attempt.Tick }

// Token returns the fencing token of the attempt, which is higher than that of any earlier grant.
func (r *Run[A]) Token() locks.Token { return r.attempt.Token }

// IdempotencyKey returns a text that all attempts of this run share and no other run has.
func (r *Run[A]) IdempotencyKey() string { return r.attempt.IdempotencyKey() }

// Locks returns the names of all resources that the attempt holds, sorted.
func (r *Run[A]) Locks() []string { return slices.Clone(r.attempt.Locks) }

// Hold returns the ID of the hold that protects the attempt.
func (r *Run[A]) Hold() locks.HoldID { return r.attempt.Hold }

// Worker returns the ID of the worker that runs the attempt.
func (r *Run[A]) Worker() string { return r.attempt.Worker }

// Output returns a writer for text that people read later with the run, which keeps its tail. It is
// safe for concurrent use.
func (r *Run[A]) Output() io.Writer {
	if r.attempt.Output == nil {
		return io.Discard
	}
	return r.attempt.Output
}
