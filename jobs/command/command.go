//go:build unix

package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"lockstep/jobs"
)

// Execute runs attempt.Job.Command without a shell and with empty input. Both of its outputs go to
// attempt.Output. Execute returns when no process of the command is left, or with
// jobs.ErrAbandoned: once attempt.Abandon is closed, it does not wait for a command that survives
// its KILL by two seconds. [Executor.Run] describes when the command is killed, and the other
// errors.
//
// The command inherits Options.JobEnv. Execute adds these variables, which replace inherited ones
// of the same name:
//
//	LOCKSTEP_JOB LOCKSTEP_RUN_ID LOCKSTEP_ATTEMPT LOCKSTEP_TOKEN LOCKSTEP_HOLD LOCKSTEP_WORKER
//	LOCKSTEP_IDEMPOTENCY_KEY
//	LOCKSTEP_TICK       RFC 3339 in UTC; empty without a tick
//	LOCKSTEP_ARGS       the arguments as JSON; {} without any
//	LOCKSTEP_ARGS_FILE  replaces LOCKSTEP_ARGS if the arguments are too large for it (128 KiB on
//	                    Linux): the path of a file with the arguments
//	LOCKSTEP_LOCKS      the names of the resources as a JSON array
//	TRACEPARENT         W3C trace context; missing if the attempt has none
//	TRACESTATE          the same; missing if it is empty
//
// The job's env takes precedence over all of these. The command is looked up in the PATH of the
// resulting environment.
//
// The arguments file is in TMPDIR and readable only by the worker's user. The worker removes it
// when no process of the command is left. If the worker dies, the guard removes it.
//
// An environment that is too large for the system (on Linux 131071 bytes for one variable) is a
// permanent error. A program that is not found is not, because another worker may have it.
func (e *Executor) Execute(ctx context.Context, attempt *jobs.Attempt) error {
	locks, err := json.Marshal(append([]string{}, attempt.Locks...)) // [] rather than null
	if err != nil {
		return err
	}
	inherited := e.options.JobEnv
	if inherited == nil {
		inherited = os.Environ()
	}
	args, file, err := argsEntry(attempt)
	if err != nil {
		return err
	}
	err = e.Run(ctx, Spec{
		Argv:    attempt.Job.Command,
		Env:     environment(inherited, attempt, args, string(locks)),
		Stdout:  attempt.Output,
		Stderr:  attempt.Output,
		KillBy:  attempt.KillBy,
		Label:   string(attempt.Run),
		remove:  file.name(),
		abandon: attempt.Abandon,
	})
	if errors.Is(err, jobs.ErrAbandoned) {
		return err // the command may still read the file, which its guard removes
	}
	file.remove()
	if errors.Is(err, syscall.E2BIG) {
		return jobs.Permanent(fmt.Errorf("%w; LOCKSTEP_LOCKS has %d bytes", err, len(locks)))
	}
	return err
}

func environment(inherited []string, attempt *jobs.Attempt, args, locks string) []string {
	tick := ""
	if !attempt.Tick.IsZero() {
		tick = attempt.Tick.UTC().Format(time.RFC3339)
	}
	// If the worker itself runs in a job, these are from that job's attempt.
	foreign := []string{"TRACEPARENT", "TRACESTATE", argsVariable, argsVariableOfFile}
	env := slices.DeleteFunc(slices.Clone(inherited), func(entry string) bool { return slices.Contains(foreign, name(entry)) })
	if attempt.TraceParent != "" {
		env = append(env, "TRACEPARENT="+attempt.TraceParent)
	}
	if attempt.TraceState != "" {
		env = append(env, "TRACESTATE="+attempt.TraceState)
	}
	env = append(env,
		"LOCKSTEP_JOB="+attempt.Job.Name,
		"LOCKSTEP_RUN_ID="+string(attempt.Run),
		"LOCKSTEP_ATTEMPT="+strconv.Itoa(attempt.Number),
		"LOCKSTEP_TICK="+tick,
		"LOCKSTEP_TOKEN="+attempt.Token.String(),
		"LOCKSTEP_IDEMPOTENCY_KEY="+attempt.IdempotencyKey(),
		args,
		"LOCKSTEP_LOCKS="+locks,
		"LOCKSTEP_HOLD="+string(attempt.Hold),
		"LOCKSTEP_WORKER="+attempt.Worker,
	)
	for key, value := range attempt.Job.Env {
		env = append(env, key+"="+value)
	}
	return withoutDoubles(env)
}

// name returns the name of an environment entry.
func name(entry string) string {
	name, _, _ := strings.Cut(entry, "=")
	return name
}
