package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// executor is a function that executes attempts.
type executor func(ctx context.Context, attempt *jobs.Attempt) error

func (e executor) Execute(ctx context.Context, attempt *jobs.Attempt) error { return e(ctx, attempt) }

// logged collects the log of a worker.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// The output and the error of an attempt are stored and logged without the values that replaced its
// ${...}: even where only one of two adjacent values is quoted, where a write ends within a value,
// and where the kept tail begins within one.
func TestAttemptIsRecordedWithoutSecrets(t *testing.T) {
	f := newFleet(t)
	const first, second = "alpha-5f0c81", "omega-77b2e9"
	job := f.job("secret", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	job.Handler, job.Command, job.Retry.Max = "", []string{"do", "${FIRST}${SECOND}"}, 0
	job.Env = map[string]string{"K": "${SECOND}"}
	var log logged
	f.start(func(o *worker.Options) {
		o.Logger = slog.New(slog.NewTextHandler(io.MultiWriter(&log, f.Output()), &slog.HandlerOptions{Level: slog.LevelDebug}))
		o.Expand = func(job *jobs.Job) (*jobs.Job, []jobs.Secret, error) {
			expanded := *job
			expanded.Command, expanded.Env = []string{"do", first + second}, map[string]string{"K": second}
			return &expanded, []jobs.Secret{{Reference: "${FIRST}", Value: first}, {Reference: "${SECOND}", Value: second}}, nil
		}
		o.Executors = map[string]jobs.Executor{"command": executor(func(_ context.Context, attempt *jobs.Attempt) error {
			if attempt.Job.Command[1] != first+second || attempt.Job.Env["K"] != second {
				t.Errorf("got %q, %q, want the values", attempt.Job.Command, attempt.Job.Env)
			}
			fmt.Fprint(attempt.Output, "begins ", second[:5])
			fmt.Fprint(attempt.Output, second[5:], strings.Repeat("x", jobs.DefaultTail-30), " in the middle ", first[:7])
			fmt.Fprint(attempt.Output, first[7:], " cut at the end ", second[:8])
			return jobs.Permanent(errors.New("cannot do " + first))
		})}
	})
	id := f.enqueue(job, "a")
	record := f.awaitState(id, ledger.StateFailed)
	if got := record.Last().Error; got != "cannot do ${FIRST}" {
		t.Errorf("got the error %q, want it without the value that it quotes", got)
	}
	_, output, err := f.ledger.Find(f.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if want := " in the middle ${FIRST} cut at the end ${SECOND}"; !strings.HasSuffix(output, want) {
		t.Errorf("got the output %.100q ... %q, want %q at its end", output, output[max(0, len(output)-100):], want)
	}
	for what, text := range map[string]string{"output": output, "log": log.String(), "error": record.Last().Error} {
		for _, part := range []string{first[:6], first[6:], second[:6], second[6:]} {
			if strings.Contains(text, part) {
				t.Errorf("%s has %q, a part of a secret", what, part)
			}
		}
	}
}

func TestFailedRunIsLoggedAsAWarning(t *testing.T) {
	f := newFleet(t)
	job := f.job("fails", func(context.Context, *jobs.Run[struct{}]) error { return errors.New("no paper") })
	job.Retry.Max = 1
	var log logged
	f.start(func(o *worker.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	id := f.enqueue(job, "a")
	f.awaitState(id, ledger.StateFailed)
	ended := func() (levels []string) {
		for line := range strings.Lines(log.String()) {
			if strings.Contains(line, `msg="attempt ended"`) {
				_, level, _ := strings.Cut(line, "level=")
				level, _, _ = strings.Cut(level, " ")
				levels = append(levels, level)
			}
		}
		return levels
	}
	f.await("a line for each attempt", func() bool { return len(ended()) == 2 })
	if got, want := ended(), []string{"INFO", "WARN"}; !slices.Equal(got, want) {
		t.Errorf("the attempts ended at the levels %q, want %q: the first one is tried again", got, want)
	}
}

func TestSecretArgsReachTheAttemptButNoRecordOfIt(t *testing.T) {
	f := newFleet(t)
	const args = `{"password":"alpha-5f0c81","user":"ann"}`
	job := f.job("signs-in", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	job.Handler, job.Command, job.Retry.Max = "", []string{"do"}, 0
	job.Args, job.SecretArgs = json.RawMessage(args), []string{"password"}
	f.start(func(o *worker.Options) {
		o.Executors = map[string]jobs.Executor{"command": executor(func(_ context.Context, attempt *jobs.Attempt) error {
			if string(attempt.Args) != args {
				t.Errorf("got %s, want the values", attempt.Args)
			}
			fmt.Fprint(attempt.Output, "ann signs in with alpha-5f0c81")
			return jobs.Permanent(errors.New("alpha-5f0c81 is refused"))
		})}
	})
	id := f.enqueue(job, "a")
	record := f.awaitState(id, ledger.StateFailed)
	if got := record.Last().Error; got != "(hidden) is refused" {
		t.Errorf("got the error %q", got)
	}
	_, output, err := f.ledger.Find(f.Context(), id)
	if err != nil || output != "ann signs in with (hidden)" {
		t.Errorf("got the output %q, %v", output, err)
	}
}
