package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// hook is a function of [Registry.OnStart] or of [Registry.OnStop]; the other field is nil.
type hook struct {
	start, stop func(context.Context) error
}

// OnStart registers a function that opens something that the handlers need, such as a database. A
// worker calls these functions in the order of registration, before it takes its first run.
// cmd.Main calls them only in the worker's child process: not in the parent, not in the guard of a
// command, and not for other commands of the command line. Code before cmd.Main runs in all of
// these processes except guards. The initialization of a package may also run in guards, if that
// package imports little. Register all functions before cmd.Main.
//
// An error ends the worker before it takes a run: `lockstep start` reports the error and exits with
// 1. So does a panic in f ([*PanicError]). ctx ends if the worker must stop meanwhile. It is not
// the context of the handlers: the things that f opens must outlive it.
func (r *Registry) OnStart(f func(ctx context.Context) error) {
	if f == nil {
		panic("jobs: OnStart: the function is nil")
	}
	r.addHook(hook{start: f})
}

// OnStop registers a function that closes what a function of [Registry.OnStart] has opened. A
// worker calls these functions in reverse order of registration when it has drained: every attempt
// has ended, and so has the session with its locks. If a function of OnStart failed, the worker
// calls only the functions of OnStop that were registered before that one.
//
// A worker calls none of them if it is killed, or if its drain leaves work behind: a handler that
// ignores the end of its context, or a command that cannot be killed. Such a handler may still use
// what they would close. The exit of the process, which follows at once, closes it.
//
// ctx ends after five seconds, and the process exits soon after that. An error or a panic makes
// `lockstep start` exit with 1.
func (r *Registry) OnStop(f func(ctx context.Context) error) {
	if f == nil {
		panic("jobs: OnStop: the function is nil")
	}
	r.addHook(hook{stop: f})
}

func (r *Registry) addHook(h hook) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hooks = append(r.hooks, h)
}

// Start calls the functions of [Registry.OnStart] up to the first that fails, and returns its
// error. Workers call it, and so may tests of handlers. Call [Registry.Stop] afterward, even if
// Start fails.
func (r *Registry) Start(ctx context.Context) error {
	r.mu.RLock()
	hooks := slices.Clone(r.hooks)
	r.mu.RUnlock()
	for i, h := range hooks {
		if h.start == nil {
			continue
		}
		if err := protect(func() error { return h.start(ctx) }); err != nil {
			r.reach(i)
			return fmt.Errorf("OnStart: %w", withCause(ctx, err))
		}
	}
	r.reach(len(hooks))
	return nil
}

// Stop calls the functions of [Registry.OnStop] that belong to the functions that [Registry.Start]
// called, in reverse order of registration. It calls all of them even if one fails, and returns all
// errors.
func (r *Registry) Stop(ctx context.Context) error {
	var errs []error
	for _, h := range slices.Backward(r.reach(0)) {
		if h.stop == nil {
			continue
		}
		if err := protect(func() error { return h.stop(ctx) }); err != nil {
			errs = append(errs, fmt.Errorf("OnStop: %w", withCause(ctx, err)))
		}
	}
	return errors.Join(errs...)
}

// reach records how many hooks Start has passed, and returns the hooks passed before.
func (r *Registry) reach(n int) []hook {
	r.mu.Lock()
	defer r.mu.Unlock()
	passed := slices.Clone(r.hooks[:r.passed])
	r.passed = n
	return passed
}
