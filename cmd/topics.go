package cmd

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"lockstep/scheduler/ledger"
)

// promise is the only source of the promise. The README and scheduler/README.md have copies of it.
//
//go:generate go test -run ^TestThePromiseIsOneText$ . -update
//go:embed promise.md
var promise string

// plainPromise returns the promise for a terminal: without the marks of Markdown, and with indented
// lists.
func plainPromise() string {
	plain := strings.NewReplacer("**", "", "`", "", "## What is promised", "Promised:", "## What is not promised", "Not promised:").
		Replace(strings.TrimSpace(promise))
	return regexp.MustCompile(`(?m)^(?:\d\. |- |  )`).ReplaceAllString(plain, "  $0")
}

// statesHelp lists the states of a run, the outstanding ones first.
func statesHelp() string {
	b := strings.Builder{}
	b.WriteString("A run is in one of these states.\n\nOutstanding:\n\n")
	final := false
	for _, state := range ledger.States() {
		if state.Final && !final {
			b.WriteString("\nFinal, so that the run never runs again unless a person retries it:\n\n")
			final = true
		}
		fmt.Fprintf(&b, "  %s %-10s it %s\n", state.Sign, state.State, state.Means)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// topics returns the topics that `lockstep help` has besides the commands.
func topics() []*cobra.Command {
	return []*cobra.Command{
		{
			Use:   "exit-codes",
			Short: "What the exit codes mean",
			Long: `Exit codes:

    0  ok
    1  failed                                             doctor: or something is wrong
    2  wrong usage, or refused                            also: Redis holds data of a format that this build does not know
    3  the config has errors                              check, config, start; check --strict: or warnings
    4  Redis is unreachable
    5  the awaited run did not succeed                    enqueue --wait, job run --wait, run output -f
   75  could not get the lock in time                     lock exec
   76  the lock was lost, and the command was ended       lock exec; also if the hold of LOCKSTEP_HOLD was lost
  124  --wait timed out                                   enqueue --wait=D, job run --wait=D
  130  interrupted

Otherwise, lock exec exits with the code of its command: 128+n if signal n ended it, 127 if the program does not exist,
126 if it cannot be executed. start and demo exit with 0 when a signal asks them to end.`,
		},
		{
			Use:   "environment",
			Short: "Environment variables that lockstep reads and sets",
			Long: `Read by lockstep:

  LOCKSTEP_CONFIG          config files and folders, separated like $PATH; -c overrides it
  LOCKSTEP_REDIS__URL      any setting of a config file: a double underscore nests, so that
  LOCKSTEP_WORKER__QUEUES  is worker.queues, as critical=6,default=3. These override the files, and flags override these.
  REDIS_URL                the same as LOCKSTEP_REDIS__URL, which overrides it
  LOCKSTEP_HOLD            for lock exec: the hold that it runs under, see below; it requests only what that does not have
  LOCKSTEP_RUN_ID          for enqueue and job run: the run that asks, see below; it becomes the parent of the new run
  NO_COLOR                 if it is not empty, output has no colors
  TRACEPARENT, TRACESTATE  for enqueue and job run: the W3C trace context of the request, which the run keeps
  OTEL_*                   for workers, enqueue and job run: the export of spans, see below

A command job inherits the variables of its worker that worker.env names (by default PATH, HOME, USER, LOGNAME, SHELL,
LANG, LANGUAGE, LC_*, TZ, TMPDIR, HOSTNAME, SSL_CERT_FILE, SSL_CERT_DIR), but never REDIS_URL or a setting. The env of the
job is added to these. The command also gets:

  LOCKSTEP_JOB             the name of the job
  LOCKSTEP_RUN_ID          the ID of the run
  LOCKSTEP_ATTEMPT         1 for the first attempt of the run, one more for each further one
  LOCKSTEP_TICK            the due time of the run, RFC 3339 in UTC; empty if it has none
  LOCKSTEP_ARGS            the arguments, as JSON
  LOCKSTEP_ARGS_FILE       set instead of LOCKSTEP_ARGS if they are too large for a variable (128 KiB on Linux): a file
  LOCKSTEP_IDEMPOTENCY_KEY the same for all attempts of the run
  LOCKSTEP_TOKEN           the fencing token: it grows with every grant of the locks
  LOCKSTEP_LOCKS           the names of the locks that are held, as a JSON array
  LOCKSTEP_HOLD            the ID of the hold; for a lock exec inside another one, all IDs, the innermost first
  LOCKSTEP_WORKER          the ID of the worker
  TRACEPARENT, TRACESTATE  the W3C trace context: the span of this command, or what the requester of the run gave if no
                           spans are exported; missing without either

The command of lock exec gets LOCKSTEP_TOKEN, LOCKSTEP_LOCKS, LOCKSTEP_HOLD and LOCKSTEP_WORKER.

Spans are exported by OTLP if one of the first three is set. The variables are those of OpenTelemetry, and an empty one
is unset. A worker with a wrong value does not start; enqueue and job run warn, and export nothing.

  OTEL_EXPORTER_OTLP_ENDPOINT         the URL of the receiver: http://collector:4318 adds /v1/traces to it
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT  the same, taken as it is
  OTEL_TRACES_EXPORTER                otlp (at http://localhost:4318 if no endpoint is set) or none
  OTEL_EXPORTER_OTLP_PROTOCOL         http/protobuf (default), http/json or grpc
  OTEL_EXPORTER_OTLP_HEADERS          key=value,key=value for each request; also _TIMEOUT (ms), _COMPRESSION (gzip),
                                      _CERTIFICATE, _CLIENT_CERTIFICATE, _CLIENT_KEY and _INSECURE, and each of them
                                      as OTEL_EXPORTER_OTLP_TRACES_...
  OTEL_SDK_DISABLED                   true: export nothing
  OTEL_SERVICE_NAME                   the name of the service (default: lockstep)
  OTEL_RESOURCE_ATTRIBUTES            key=value,key=value about this process
  OTEL_TRACES_SAMPLER                 parentbased_always_on (default), always_on, always_off, traceidratio,
                                      parentbased_always_off or parentbased_traceidratio
  OTEL_TRACES_SAMPLER_ARG             the ratio, from 0 to 1; the same for all workers
  OTEL_BSP_MAX_QUEUE_SIZE             how many spans may wait for the receiver (default: 2048); more are dropped
  OTEL_BSP_SCHEDULE_DELAY             ms between two batches (default: 5000)`,
		},
		{
			Use:   "states",
			Short: "The states of a run",
			Long:  statesHelp(),
		},
		{
			Use:   "guarantees",
			Short: "What is promised, and what is not",
			Long:  plainPromise(),
		},
	}
}
