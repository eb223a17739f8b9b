package jobs_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"lockstep/jobs"
)

func TestStopCallsHooksInReverseOrder(t *testing.T) {
	t.Parallel()
	var calls []string
	call := func(name string, err error) func(context.Context) error {
		return func(context.Context) error { calls = append(calls, name); return err }
	}
	errDisk := errors.New("disk full")
	reg := jobs.NewRegistry()
	reg.OnStart(call("open a", nil))
	reg.OnStop(call("close a", errDisk))
	reg.OnStart(call("open b", nil))
	reg.OnStop(call("close b", nil))
	if err := reg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := reg.Stop(t.Context()); !errors.Is(err, errDisk) || err.Error() != "OnStop: disk full" {
		t.Errorf("Stop: %v, want the error of OnStop", err)
	}
	if want := []string{"open a", "open b", "close b", "close a"}; !slices.Equal(calls, want) {
		t.Errorf("called %q, want %q", calls, want)
	}
	calls = nil
	if err := reg.Stop(t.Context()); err != nil || len(calls) > 0 {
		t.Errorf("a second Stop called %q: %v", calls, err)
	}
}

func TestStopSkipsHooksAfterAFailedStart(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(context.Context) error{
		"connection refused": func(context.Context) error { return errors.New("connection refused") },
		"panic: no such file": func(context.Context) error {
			panic("no such file")
		},
		"the worker is draining: context canceled": func(ctx context.Context) error { return ctx.Err() },
	} {
		var calls []string
		reg := jobs.NewRegistry()
		reg.OnStop(func(context.Context) error { calls = append(calls, "first"); return nil })
		reg.OnStart(fail)
		reg.OnStop(func(context.Context) error { calls = append(calls, "second"); return nil })
		reg.OnStart(func(context.Context) error { calls = append(calls, "started"); return nil })
		ctx, cancel := context.WithCancelCause(t.Context())
		if strings.Contains(name, "draining") {
			cancel(jobs.ErrDrain)
		}
		if err := reg.Start(ctx); err == nil || !strings.HasPrefix(err.Error(), "OnStart: "+name) {
			t.Errorf("Start: %v, want %q", err, name)
		}
		cancel(nil)
		if err := reg.Stop(t.Context()); err != nil || !slices.Equal(calls, []string{"first"}) {
			t.Errorf("%s: Stop called %q: %v; want what was registered before the failure", name, calls, err)
		}
	}
}
