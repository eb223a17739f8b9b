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

// Execute runs attempt.Job.Command without a shell, with an empty input, and with both its outputs going to
// attempt.Output. It returns when nothing of it goes on; see [Executor.Run] for when it is killed and for the errors.
//
// The command inherits Options.JobEnv. It also gets the following, which replace inherited variables of the same name:
//
//	LOCKSTEP_JOB LOCKSTEP_RUN_ID LOCKSTEP_ATTEMPT LOCKSTEP_TOKEN LOCKSTEP_HOLD LOCKSTEP_WORKER LOCKSTEP_IDEMPOTENCY_KEY
//	LOCKSTEP_TICK    RFC 3339 in UTC; empty without a tick
//	LOCKSTEP_ARGS    the arguments as JSON; {} without any
//	LOCKSTEP_ARGS_FILE  in its place, for arguments too large for it (on Linux 128 KiB): a file that has them
//	LOCKSTEP_LOCKS   the names of the resources as a JSON array
//	TRACEPARENT      W3C trace context; not there if the attempt has none
//
// and the job's env, which wins over all of these. PATH of the result is where the command is looked up.
//
// The file is in TMPDIR, readable by the worker's user alone, and removed when nothing of the command is left; if the worker
// dies, by its guard.
//
// An environment that is too large for the system (Linux: 131071 bytes for one variable) is a permanent error. A program
// that is not found is not: another worker may have it.
func (e *Executor) Execute(ctx context.Context, attempt *jobs.Attempt) error {
	locks, err := json.Marshal(append([]string{}, attempt.Locks...)) // [] rather than null
	if err != nil {
		return err
	}
	inherited := e.jobEnv
	if inherited == nil {
		inherited = os.Environ()
	}
	args, file, err := argsEntry(attempt)
	if err != nil {
		return err
	}
	if file != "" {
		defer os.Remove(file) // its guard may have removed it
	}
	err = e.Run(ctx, Spec{
		Argv:   attempt.Job.Command,
		Env:    environment(inherited, attempt, args, string(locks)),
		Stdout: attempt.Output,
		Stderr: attempt.Output,
		KillBy: attempt.KillBy,
		Label:  string(attempt.Run),
		remove: file,
	})
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
	// What another attempt was given, if the worker runs in a job itself.
	foreign := []string{"TRACEPARENT", argsVariable, argsFile}
	env := slices.DeleteFunc(slices.Clone(inherited), func(entry string) bool { return slices.Contains(foreign, name(entry)) })
	if attempt.TraceParent != "" {
		env = append(env, "TRACEPARENT="+attempt.TraceParent)
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

// name returns the name of an entry of an environment.
func name(entry string) string {
	name, _, _ := strings.Cut(entry, "=")
	return name
}
