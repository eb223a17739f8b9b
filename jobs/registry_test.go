package jobs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
)

type settle struct {
	BillIDs []int `json:"bill_ids"`
	Account struct {
		ID string `json:"id"`
	} `json:"account"`
}

func attemptOf(handler, args string) *jobs.Attempt {
	return &jobs.Attempt{Job: &jobs.Job{Name: "settle-bills", Handler: handler}, Run: "settle-bills#7", Args: json.RawMessage(args)}
}

func TestRunHasAllFactsOfItsAttempt(t *testing.T) {
	t.Parallel()
	var output bytes.Buffer
	attempt := attemptOf("bills.settle", `{"bill_ids": [1, 2], "account": {"id": "a"}}`)
	attempt.Number, attempt.Tick, attempt.Token, attempt.Hold = 3, time.Unix(60, 0).UTC(), 4711, "web-1.x7k2m9qa.9"
	attempt.Locks, attempt.Worker, attempt.Output = []string{"bill:1", "bill:2"}, "web-1.x7k2m9qa", &output

	called := false
	reg := jobs.NewRegistry()
	jobs.Handle(reg, "bills.settle", func(ctx context.Context, run *jobs.Run[settle]) error {
		called = true
		want := settle{BillIDs: []int{1, 2}}
		want.Account.ID = "a"
		if !reflect.DeepEqual(run.Args, want) {
			t.Errorf("Args = %+v, want %+v", run.Args, want)
		}
		got := []any{run.ID(), run.Job(), run.Attempt(), run.Tick(), run.Token(), run.IdempotencyKey(), run.Locks(), run.Hold(), run.Worker()}
		wantAll := []any{jobs.RunID("settle-bills#7"), "settle-bills", 3, time.Unix(60, 0).UTC(), locks.Token(4711), "settle-bills#7",
			[]string{"bill:1", "bill:2"}, locks.HoldID("web-1.x7k2m9qa.9"), "web-1.x7k2m9qa"}
		if !reflect.DeepEqual(got, wantAll) {
			t.Errorf("got  %v\nwant %v", got, wantAll)
		}
		_, err := run.Output().Write([]byte("done"))
		return err
	})
	if err := reg.Execute(t.Context(), attempt); err != nil || !called {
		t.Fatalf("Execute = %v, called %v; want nil, true", err, called)
	}
	if output.String() != "done" {
		t.Errorf("output %q, want %q", output.String(), "done")
	}
}

func TestArgsThatDoNotFitAreNotRetriedAndNameTheField(t *testing.T) {
	t.Parallel()
	reg := jobs.NewRegistry()
	jobs.Handle(reg, "bills.settle", func(context.Context, *jobs.Run[settle]) error { return nil })
	for _, test := range []struct{ args, want string }{
		{``, ``},
		{`null`, ``},
		{` {} `, ``},
		{`{"bill_ids": [1], "account": {"id": "x"}}`, ``},
		{`{"bill_ids": ["1"]}`, `args of handler bills.settle: field "bill_ids": a JSON string does not fit into int`},
		{`{"bill_ids": [1.5]}`, `args of handler bills.settle: field "bill_ids": a JSON number 1.5 does not fit into int`},
		{`{"account": {"id": 7}}`, `args of handler bills.settle: field "account.id": a JSON number does not fit into string`},
		{`[1]`, `args of handler bills.settle: a JSON array does not fit into jobs_test.settle`},
		{`{"bill_ids": [1], "since_next_release": true, "account": {"id": "x", "vat": 7}}`, ``},
		{`{"bill_ids": }`, `args of handler bills.settle: not JSON: invalid character '}' looking for beginning of value (at byte 14)`},
		{`{} {}`, `args of handler bills.settle: not JSON: invalid character '{' after top-level value (at byte 4)`},
		{`{}}`, `args of handler bills.settle: not JSON: invalid character '}' after top-level value (at byte 3)`},
	} {
		err := reg.Execute(t.Context(), attemptOf("bills.settle", test.args))
		if got := text(err); got != test.want {
			t.Errorf("args %s:\n got %q\nwant %q", test.args, got, test.want)
		}
		if err != nil && !jobs.IsPermanent(err) {
			t.Errorf("args %s: the error is not permanent", test.args)
		}
	}
}

func TestUnknownArgsFieldIsIgnoredUnlessTheHandlerIsStrict(t *testing.T) {
	t.Parallel()
	reg := jobs.NewRegistry()
	var got []settle
	handle := func(_ context.Context, run *jobs.Run[settle]) error { got = append(got, run.Args); return nil }
	jobs.Handle(reg, "lenient", handle)
	jobs.Handle(reg, "strict", handle, jobs.Strict)
	for _, test := range []struct{ handler, args, want string }{
		{"lenient", `{"bill_ids": [1], "vat": 7}`, ``},
		{"lenient", `{"account": {"id": "x", "vat": 7}}`, ``},
		{"strict", `{"bill_ids": [1]}`, ``},
		{"strict", `{"bill_ids": [1], "vat": 7}`, `args of handler strict: unknown field "vat"`},
		{"strict", `{"account": {"id": "x", "vat": 7}}`, `args of handler strict: unknown field "vat"`},
	} {
		err := reg.Execute(t.Context(), attemptOf(test.handler, test.args))
		if got := text(err); got != test.want || err != nil && !jobs.IsPermanent(err) {
			t.Errorf("%s, args %s:\n got %q, permanent %v\nwant %q", test.handler, test.args, got, jobs.IsPermanent(err), test.want)
		}
	}
	if len(got) != 3 || !slices.Equal(got[0].BillIDs, []int{1}) || got[1].Account.ID != "x" {
		t.Errorf("the handlers got %+v: the known fields must arrive", got)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

type panickyArgs struct{}

func (*panickyArgs) UnmarshalJSON([]byte) error { panic("bad decoder") }

func blowUp() { panic("boom") }

func TestPanicInAHandlerIsAFailedAttempt(t *testing.T) {
	t.Parallel()
	reg := jobs.NewRegistry()
	jobs.Handle(reg, "value", func(context.Context, *jobs.Run[struct{}]) error { blowUp(); return nil })
	jobs.Handle(reg, "error", func(context.Context, *jobs.Run[struct{}]) error { panic(fs.ErrNotExist) })
	jobs.Handle(reg, "fault", func(context.Context, *jobs.Run[struct{}]) error {
		var job *jobs.Job
		_ = job.Name
		return nil
	})
	jobs.Handle(reg, "args", func(context.Context, *jobs.Run[panickyArgs]) error { return nil })
	jobs.Handle(reg, "goexit", func(context.Context, *jobs.Run[struct{}]) error { runtime.Goexit(); return nil })

	for name, want := range map[string]string{
		"value": "panic: boom\nlockstep/jobs_test.blowUp\n\t",
		"error": "panic: file does not exist\nlockstep/jobs_test.TestPanic",
		"fault": "panic: runtime error: invalid memory address or nil pointer dereference\nlockstep/jobs_test.TestPanic",
		"args":  "panic: bad decoder\nlockstep/jobs_test.(*panickyArgs).UnmarshalJSON\n\t",
	} {
		err := reg.Execute(t.Context(), attemptOf(name, "{}"))
		var panicked *jobs.PanicError
		if !errors.As(err, &panicked) {
			t.Errorf("%s: got %v, want a PanicError", name, err)
			continue
		}
		if !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: got %q, want it to begin with %q", name, err, want)
		}
		if strings.Contains(err.Error(), "jobs.protect") || strings.Contains(err.Error(), "runtime.goexit") {
			t.Errorf("%s: the stack has frames that are not the handler's:\n%s", name, err)
		}
	}
	if err := reg.Execute(t.Context(), attemptOf("error", "")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want the error that was given to panic", err)
	}
	if err := reg.Execute(t.Context(), attemptOf("goexit", "")); text(err) != "the handler called runtime.Goexit" {
		t.Errorf("got %v, want an error that names runtime.Goexit", err)
	}
}

func TestDeepStackIsCut(t *testing.T) {
	t.Parallel()
	var deep func(n int)
	deep = func(n int) {
		if n == 0 {
			panic("deep")
		}
		deep(n - 1)
	}
	reg := jobs.NewRegistry()
	jobs.Handle(reg, "deep", func(context.Context, *jobs.Run[struct{}]) error { deep(200); return nil })
	err := reg.Execute(t.Context(), attemptOf("deep", ""))
	if lines := strings.Count(text(err), "\n"); lines > 40 {
		t.Errorf("the error has %d lines, want at most 40", lines)
	}
}

func TestErrorSaysWhyTheContextEnded(t *testing.T) {
	t.Parallel()
	own := errors.New("own error")
	reg := jobs.NewRegistry()
	jobs.Handle(reg, "ctx", func(ctx context.Context, _ *jobs.Run[struct{}]) error { return ctx.Err() })
	jobs.Handle(reg, "cause", func(ctx context.Context, _ *jobs.Run[struct{}]) error { return context.Cause(ctx) })
	jobs.Handle(reg, "own", func(context.Context, *jobs.Run[struct{}]) error { return own })
	jobs.Handle(reg, "done", func(context.Context, *jobs.Run[struct{}]) error { return nil })

	for _, cause := range []error{jobs.ErrTimeout, jobs.ErrDrain, locks.ErrLost} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		for _, name := range []string{"ctx", "cause", "own"} {
			if err := reg.Execute(ctx, attemptOf(name, "")); !errors.Is(err, cause) {
				t.Errorf("%s: got %v, want it to wrap %v", name, err, cause)
			}
		}
		if err := reg.Execute(ctx, attemptOf("own", "")); !errors.Is(err, own) {
			t.Errorf("got %v, want it to wrap the handler's own error too", err)
		}
		if err := reg.Execute(ctx, attemptOf("done", "")); err != nil {
			t.Errorf("a handler that finished anyway: got %v, want nil", err)
		}
	}
	if err := reg.Execute(t.Context(), attemptOf("own", "")); err != own { //nolint:errorlint // unwrapped
		t.Errorf("got %v, want the handler's error unchanged", err)
	}
}

func TestRegistryKnowsItsHandlers(t *testing.T) {
	t.Parallel()
	reg := jobs.NewRegistry()
	nop := func(context.Context, *jobs.Run[struct{}]) error { return nil }
	jobs.Handle(reg, "b.two", nop)
	jobs.Handle(reg, "a/one", nop)
	if got, want := reg.Names(), []string{"a/one", "b.two"}; !slices.Equal(got, want) {
		t.Errorf("Names() = %q, want %q", got, want)
	}
	if !reg.Has("b.two") || reg.Has("c") {
		t.Errorf("Has = %v, %v; want true, false", reg.Has("b.two"), reg.Has("c"))
	}
	if err := reg.Execute(t.Context(), attemptOf("c", "")); !errors.Is(err, jobs.ErrUnknownHandler) || jobs.IsPermanent(err) {
		t.Errorf("got %v, want ErrUnknownHandler, not permanent: another worker may have it", err)
	}
}

func TestHandlePanicsOnMistakesOfTheProgram(t *testing.T) {
	t.Parallel()
	nop := func(context.Context, *jobs.Run[struct{}]) error { return nil }
	for name, register := range map[string]func(*jobs.Registry){
		"twice":    func(reg *jobs.Registry) { jobs.Handle(reg, "a", nop); jobs.Handle(reg, "a", nop) },
		"empty":    func(reg *jobs.Registry) { jobs.Handle(reg, "", nop) },
		"space":    func(reg *jobs.Registry) { jobs.Handle(reg, "a b", nop) },
		"edge":     func(reg *jobs.Registry) { jobs.Handle(reg, "a.", nop) },
		"too long": func(reg *jobs.Registry) { jobs.Handle(reg, strings.Repeat("a", 101), nop) },
		"nil":      func(reg *jobs.Registry) { jobs.Handle[struct{}](reg, "a", nil) },
	} {
		func() {
			defer func() {
				if value, ok := recover().(string); !ok || !strings.HasPrefix(value, "jobs: Handle: ") {
					t.Errorf("%s: recovered %q, want a panic of Handle", name, value)
				}
			}()
			register(jobs.NewRegistry())
		}()
	}
}

func TestExecuteLeavesAHandlerOnlyWhenTheAttemptIsAbandoned(t *testing.T) {
	t.Parallel()
	reg := jobs.NewRegistry()
	end, ended := make(chan struct{}), make(chan struct{})
	jobs.Handle(reg, "deaf", func(context.Context, *jobs.Run[struct{}]) error {
		defer close(ended)
		<-end
		return nil
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	abandon := make(chan struct{})
	attempt := &jobs.Attempt{Job: &jobs.Job{Name: "j", Handler: "deaf"}, Run: "j#1", Number: 1, Abandon: abandon}
	result := make(chan error, 1)
	go func() { result <- reg.Execute(ctx, attempt) }()
	cancel(jobs.ErrTimeout)
	select {
	case err := <-result:
		t.Fatalf("got %v with the end of the context, want Execute to wait for its handler", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(abandon)
	if err := <-result; !errors.Is(err, jobs.ErrAbandoned) || !errors.Is(err, jobs.ErrTimeout) {
		t.Errorf("got %v, want it abandoned, and why its context had ended", err)
	}
	close(end)
	<-ended
}
