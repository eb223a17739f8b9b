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
//	LOCKSTEP_LOCKS   the names of the resources as a JSON array
//	TRACEPARENT      W3C trace context; not there if the attempt has none
//
// and the job's env, which wins over all of these. PATH of the result is where the command is looked up.
//
// An environment that is too large for the system (Linux: 131071 bytes for LOCKSTEP_ARGS) is a permanent error. A
// program that is not found is none: another worker may have it.
func (e *Executor) Execute(ctx context.Context, attempt *jobs.Attempt) error {
	locks, err := json.Marshal(append([]string{}, attempt.Locks...)) // [] rather than null
	if err != nil {
		return err
	}
	inherited := e.jobEnv
	if inherited == nil {
		inherited = os.Environ()
	}
	err = e.Run(ctx, Spec{
		Argv:   attempt.Job.Command,
		Env:    environment(inherited, attempt, string(locks)),
		Stdout: attempt.Output,
		Stderr: attempt.Output,
		KillBy: attempt.KillBy,
		Label:  string(attempt.Run),
	})
	if errors.Is(err, syscall.E2BIG) {
		return jobs.Permanent(fmt.Errorf("%w; LOCKSTEP_ARGS has %d bytes, LOCKSTEP_LOCKS %d", err, len(attempt.Args), len(locks)))
	}
	return err
}

func environment(inherited []string, attempt *jobs.Attempt, locks string) []string {
	tick, args := "", "{}"
	if !attempt.Tick.IsZero() {
		tick = attempt.Tick.UTC().Format(time.RFC3339)
	}
	if len(attempt.Args) > 0 {
		args = string(attempt.Args)
	}
	env := slices.DeleteFunc(slices.Clone(inherited), func(entry string) bool { return name(entry) == "TRACEPARENT" }) // another trace's
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
		"LOCKSTEP_ARGS="+args,
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
