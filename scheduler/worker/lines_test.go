package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// logLine is a line of a log as JSON.
type logLine struct {
	Level   string
	Msg     string
	Job     string
	Run     jobs.RunID
	Attempt int
	Line    string
	Lines   int

	Reason     string
	SinceStart int `json:"since_start"`
	Repeated   int // lines that it replaces
}

// about returns the lines with a message.
func (l *logged) about(t *testing.T, message string) (found []logLine) {
	t.Helper()
	for line := range strings.Lines(l.String()) {
		// Other messages may have attributes of the same name and another type.
		if !strings.Contains(line, message) {
			continue
		}
		var one logLine
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if one.Msg == message {
			found = append(found, one)
		}
	}
	return found
}

// prints runs a job once on a worker that logs its output, and returns the log.
func (f *fleet) prints(write func(to io.Writer)) (jobs.RunID, *logged) {
	f.Helper()
	const secret = "alpha-5f0c81"
	job := f.job("prints", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	job.Handler, job.Command = "", []string{"do", "${SECRET}"}
	log := new(logged)
	f.start(func(o *worker.Options) {
		o.LogOutput = true
		o.Logger = slog.New(slog.NewJSONHandler(log, nil))
		o.Expand = func(job *jobs.Job) (*jobs.Job, []jobs.Secret, error) {
			return job, []jobs.Secret{{Reference: "${SECRET}", Value: secret}}, nil
		}
		o.Executors = map[string]jobs.Executor{"command": executor(func(_ context.Context, attempt *jobs.Attempt) error {
			write(attempt.Output)
			return nil
		})}
	})
	id := f.enqueue(job, "a")
	f.awaitState(id, ledger.StateSucceeded)
	return id, log
}

func TestEachLineOfOutputIsLogged(t *testing.T) {
	f := newFleet(t)
	id, log := f.prints(func(to io.Writer) {
		fmt.Fprint(to, "one\ntw")
		fmt.Fprint(to, "o\r\n\nthe secret is alpha-")
		fmt.Fprint(to, "5f0c81\n", strings.Repeat("x", 5000), "\n\xff without an end")
	})
	var got []string
	for _, line := range log.about(t, "output") {
		if line.Job != "prints" || line.Run != id || line.Attempt != 1 || line.Level != "INFO" {
			t.Errorf("%+v, want the job, the run and the attempt", line)
		}
		got = append(got, line.Line)
	}
	want := []string{"one", "two", "", "the secret is ${SECRET}", strings.Repeat("x", 4096) + " [904 bytes left out]", "? without an end"}
	if !slices.Equal(got, want) {
		t.Errorf("got the lines %q, want %q", got, want)
	}
	if strings.Contains(log.String(), "5f0c81") {
		t.Error("the log has the secret")
	}
}

func TestTheRateOfLoggedOutputIsBounded(t *testing.T) {
	const printed = 20_000
	f := newFleet(t)
	_, log := f.prints(func(to io.Writer) { _, _ = to.Write(bytes.Repeat([]byte("x\n"), printed)) })
	kept, skipped := len(log.about(t, "output")), 0
	for _, line := range log.about(t, "lines of output were left out") {
		skipped += line.Lines
	}
	if kept+skipped != printed || skipped == 0 || kept < 5000 {
		t.Errorf("%d lines were logged and %d counted, want %d together, and at least 5,000 logged", kept, skipped, printed)
	}
}
