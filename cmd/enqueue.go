package cmd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"lockstep/cmd/internal/otlp"
	"lockstep/configs"
	"lockstep/jobs"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/cronspec"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/trace"
)

func (t *tool) enqueueCommand() *cobra.Command {
	return t.request("enqueue JOB", ledger.TriggerEnqueue, "Ask for a run of a job",
		`Ask for a run of a job, with its own arguments or those of the definition, and print the run's ID. The job is the
one that workers have registered, or else the one in the config.

Inside the command of a job, the run of that command (LOCKSTEP_RUN_ID) is recorded as its parent, which lockstep run
show and the page show. With --id X, the run is <job>#X. Asking again, while it is outstanding or in the kept history,
returns the same run.

A Redis user that may write only to queues (the producer of lockstep doctor --acl) asks with a task, as plain asynq
clients do: the run is then <job>#<queue>/<id>, created by the first worker that takes the task, and neither --wait
nor -o is possible. --queue does this for any user.

With --args-lines, each line of a file is the arguments of a run, as JSON; blank lines are skipped. The file may have
any size: its lines are recorded in batches, in their order. The first line that cannot be recorded ends the command,
which then names the line, and says which lines are recorded. --id is a template: {line} is the number of the line,
and {bill_id} a field of its arguments, as in lock keys. A command that has ended early, or was killed, is repeated
with the same --id, by default that of the IDs that it has printed: it records no line twice. --dry-run checks the
lines, and records none.`,
		`  lockstep enqueue settle-bills --args '{"bill_ids": [1001, 1002]}'
  lockstep enqueue settle-bills --args @bills.json --id invoice-4711 --wait=5m
  lockstep enqueue settle-bills --args-lines bills.jsonl --id 'november-{line}'`)
}

func (t *tool) jobRunCommand() *cobra.Command {
	return t.request("run JOB", ledger.TriggerHand, "Run a job now, by hand",
		`Run a job now, in addition to its schedule, and print the run's ID. This is lockstep enqueue, except that the run's
trigger is "hand". The run takes the locks of the job like any other run.`,
		`  lockstep job run nightly-backup --wait`)
}

// asked holds the flags of a request for a run.
type asked struct {
	args, id, at string
	queue        string // for a task, if the user may not write to the ledger
	in           time.Duration
	wait         bool
	waitLimit    time.Duration // 0: without limit
	output       *format

	lines  string // a file with the arguments of many runs
	dryRun bool   // only check them
}

// check returns what is wrong with flags that do not go together, or "".
func (a *asked) check(changed func(name string) bool) string {
	switch {
	case a.at != "" && changed("in"):
		return "--at and --in both set the start; give one of them"
	case a.dryRun && a.lines == "":
		return "--dry-run needs --args-lines"
	case a.lines == "":
	case changed("args"):
		return "--args and --args-lines both set the arguments; give one of them"
	case a.wait:
		return "--wait waits for one run, and --args-lines asks for many"
	case a.queue != "":
		return "--queue sends one task, and --args-lines asks for many runs"
	}
	return ""
}

func (t *tool) request(use string, trigger ledger.Trigger, short, long, example string) *cobra.Command {
	var a asked
	cmd := &cobra.Command{Use: use, Short: short, Long: long, Example: example}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 2 && a.wait {
			if _, err := time.ParseDuration(args[1]); err == nil {
				return misuse(cmd, "a JOB and %q: write --wait=%[1]s", args[1])
			}
		}
		return oneArg("a JOB")(cmd, args)
	}
	flags := cmd.Flags()
	flags.StringVar(&a.args, "args", "", "arguments: `JSON`, @FILE, or - for stdin (default: those of the job's definition)")
	flags.StringVar(&a.id, "id", "", "name the run <job>#`ID`: asking twice gives one run (default: a new ID)")
	flags.Func("in", "not before `D` from now", func(s string) (err error) {
		a.in, err = parseSpan(s)
		return err
	})
	flags.StringVar(&a.at, "at", "", "not before this `TIME`, RFC 3339 or in the job's time zone: 2027-03-26T12:00")
	const endless = "endless" // what --wait without a value means
	flags.Func("wait", "wait for the end of the run; --wait=`D`: at most this long", func(s string) (err error) {
		a.wait, a.waitLimit = true, 0
		if s != endless {
			a.waitLimit, err = parseSpan(s)
			a.waitLimit = max(a.waitLimit, time.Nanosecond)
		}
		return err
	})
	flags.Lookup("wait").NoOptDefVal = endless
	if trigger == ledger.TriggerEnqueue {
		flags.StringVar(&a.lines, "args-lines", "", "ask for a run for each line of this `FILE` (- for stdin), which has its arguments as JSON")
		flags.BoolVar(&a.dryRun, "dry-run", false, "with --args-lines: only check the lines")
		flags.StringVar(&a.queue, "queue", "", "send a task to this `QUEUE`, which needs only the rights of a producer (default without rights to the ledger: the job's queue)")
	}
	a.output = outputFlag(cmd, names, asJSON, asYAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if wrong := a.check(flags.Changed); wrong != "" {
			return misuse(cmd, "%s", wrong)
		}
		request := ledger.Request{ID: a.id, Trigger: trigger, In: a.in, Named: flags.Changed("id")}
		if a.lines != "" { // each line has its own
		} else if !request.Named {
			request.ID = jobs.NewRunName(time.Now())
		} else if err := jobs.ValidRunName(a.id); err != nil {
			return misuse(cmd, "--id: %v", err)
		}
		if request.Args, err = t.readArgs(cmd.Context(), a.args, flags.Changed("args")); err != nil {
			return err
		}
		request.Parent = t.parentRun()
		ctx, exporter := t.requester(cmd.Context())
		defer func() {
			exporter.Close(context.WithoutCancel(ctx))
			if exporter.Lost() > 0 {
				fmt.Fprintln(t.stderr, "lockstep: the span of this request was not sent:", otlp.Endpoint(os.Getenv), "did not take it")
			}
		}()
		cmd.SetContext(ctx)
		conn, err := t.connect(cmd)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, conn.Close()) }()
		if a.queue == "" {
			request.Job, err = t.findJob(cmd, conn, args[0])
		}
		if a.lines == "" && trigger == ledger.TriggerEnqueue && (a.queue != "" || redis.HasErrorPrefix(err, "NOPERM")) {
			return conn.away(t.produce(cmd, conn, args[0], request, a, exporter.Tracer()))
		}
		if err != nil {
			return conn.away(err)
		}
		if a.at != "" {
			zone, err := cronspec.LoadZone(request.Job.Timezone)
			if err != nil {
				return err
			}
			if request.At, err = parseTime(a.at, zone); err != nil {
				return misuse(cmd, "--at: %v", err)
			}
		}
		if a.lines != "" {
			return t.enqueueLines(cmd, conn, request, a)
		}
		return conn.away(t.enqueue(cmd.Context(), conn, request, a, exporter.Tracer()))
	}
	return cmd
}

// parentRun returns the run whose command this process belongs to, or "". The environment only
// claims it: the ledger records it if it has such a run.
func (t *tool) parentRun() jobs.RunID {
	id := jobs.RunID(os.Getenv("LOCKSTEP_RUN_ID"))
	if id == "" {
		return ""
	}
	if err := jobs.ValidRunID(id); err != nil {
		fmt.Fprintf(t.stderr, "lockstep: LOCKSTEP_RUN_ID is ignored: %v\n", err)
		return ""
	}
	return id
}

// requester returns ctx with the trace context of this process, which the run keeps, and what
// exports the span of the request. A wrong value in the environment must not cost the run.
func (t *tool) requester(ctx context.Context) (context.Context, *otlp.Exporter) {
	ctx = trace.Parse(os.Getenv("TRACEPARENT"), os.Getenv("TRACESTATE")).In(ctx)
	exporter, err := otlp.Open(ctx, readBuild().short(), slog.New(slog.DiscardHandler))
	if err != nil {
		fmt.Fprintf(t.stderr, "lockstep: no span is exported: %v\n", err)
	}
	return ctx, exporter
}

// enqueue records a run, pushes its delivery, prints it and, if asked to, waits for its end.
func (t *tool) enqueue(ctx context.Context, conn *connection, request ledger.Request, a asked, tracer *trace.Tracer) error {
	operator := t.operator(conn)
	operator.Tracer = tracer
	ask, by := operator.Enqueue, admin.Actor{Who: whoAmI()}
	if request.Trigger == ledger.TriggerHand {
		ask = operator.RunJob
	}
	enqueued, err := ask(ctx, request, by)
	if err != nil {
		return refusedRequest(err)
	}
	if enqueued.Exists {
		state := ""
		if enqueued.State != "" {
			state = fmt.Sprintf(" (%s)", enqueued.State)
		}
		fmt.Fprintf(t.stderr, "lockstep: run %s already exists%s; nothing was changed\n", enqueued.Run, state)
	}
	if *a.output == names { // before the wait, so that the user can look at the run meanwhile
		if err := t.write(string(enqueued.Run) + "\n"); err != nil {
			return err
		}
	}
	var ended error
	if a.wait {
		ended = t.await(ctx, conn, enqueued.Run, a.waitLimit)
	}
	if *a.output != names && ctx.Err() == nil {
		run, _, err := conn.reader.Run(ctx, enqueued.Run)
		if err != nil {
			return errors.Join(ended, err)
		}
		if err := t.encode(*a.output, run); err != nil {
			return err
		}
	}
	return ended
}

// refusedRequest adds what a person can do about the refusal of a request.
func refusedRequest(err error) error {
	switch {
	case errors.Is(err, jobs.ErrSignature):
		return refuse("%w; start a worker with this key: it signs the definitions of its config", err)
	case errors.Is(err, jobs.ErrUnknownKeys):
		return refuse("%w; use the lockstep build that wrote the definition", err)
	case jobs.IsPermanent(err): // no caller could pass these arguments
		return refuse("%w; give other arguments", err)
	}
	return err
}

// produce sends a task that asks for a run, for a user that may write only to queues. A worker
// adopts the task as a run.
func (t *tool) produce(cmd *cobra.Command, conn *connection, name string, request ledger.Request, a asked, tracer *trace.Tracer) error {
	switch {
	case a.wait:
		return refuse("--wait reads the ledger, which a user that may only enqueue cannot; use another user, or leave out --wait")
	case *a.output != names:
		return refuse("-o reads the ledger, which a user that may only enqueue cannot; leave out -o")
	}
	job, _, err := t.configured(cmd, name)
	if err != nil {
		return err
	}
	zone := time.Local
	if job != nil {
		if zone, err = cronspec.LoadZone(job.Timezone); err != nil {
			return err
		}
		if a.queue == "" {
			a.queue = job.Queue
		}
	}
	a.queue = cmp.Or(a.queue, "default")
	at := time.Time{}
	switch {
	case a.at != "":
		if at, err = parseTime(a.at, zone); err != nil {
			return misuse(cmd, "--at: %v", err)
		}
	case request.In > 0:
		at = time.Now().Add(request.In)
	}
	run := jobs.RequestRunID(name, ledger.AdoptedName(a.queue, request.ID))
	ctx, publication := tracer.Enqueue(cmd.Context(), trace.Run{ID: string(run), Job: name, Queue: a.queue, Trigger: string(request.Trigger)})
	sent, err := conn.queue.Send(ctx, a.queue, name, request.ID, request.Args, at)
	if err != nil {
		publication.Failed(err)
		return err
	}
	publication.Recorded(string(run), !sent)
	if !sent {
		fmt.Fprintf(t.stderr, "lockstep: run %s was already requested; nothing was changed\n", run)
	}
	return t.write(string(run) + "\n")
}

// configured returns the definition of a job in the config, or else the names of the other jobs.
func (t *tool) configured(cmd *cobra.Command, name string) (job *jobs.Job, others []string, err error) {
	paths := configs.Find(t.configPaths, nil)
	if len(paths) == 0 {
		return nil, nil, nil
	}
	config, err := t.load(cmd, paths, false)
	if err != nil {
		return nil, nil, err
	}
	for _, job := range config.Jobs {
		if job.Name == name {
			return job, nil, nil
		}
		others = append(others, job.Name)
	}
	return nil, others, nil
}

// findJob returns the definition of a job: the one that workers have registered, or else the one in
// the config.
func (t *tool) findJob(cmd *cobra.Command, conn *connection, name string) (*jobs.Job, error) {
	record, err := conn.ledger.Job(cmd.Context(), name)
	if err == nil {
		return record.Job, nil
	}
	if !errors.Is(err, ledger.ErrUnknown) {
		return nil, err
	}
	known, err := conn.jobNames(cmd.Context())
	if err != nil {
		return nil, err
	}
	job, others, err := t.configured(cmd, name)
	if err != nil || job != nil {
		return job, err
	}
	return nil, unknown("job", name, append(known, others...))
}

// readArgs returns the arguments that --args names: JSON, a file of it, or stdin.
func (t *tool) readArgs(ctx context.Context, flag string, given bool) (json.RawMessage, error) {
	if !given {
		return nil, nil
	}
	text, from := []byte(flag), "--args"
	var err error
	if path, isFile := strings.CutPrefix(flag, "@"); isFile {
		from = path
		if text, err = os.ReadFile(path); err != nil {
			return nil, refuse("--args: %w", err)
		}
	} else if flag == "-" {
		from = "stdin"
		err := interruptible(ctx, func() (err error) {
			text, err = io.ReadAll(t.stdin)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read the arguments from stdin: %w", err)
		}
	}
	var value json.RawMessage
	if err := json.Unmarshal(text, &value); err != nil {
		return nil, refuse(`the arguments in %s are not JSON: %w; write an object, such as '{"bill_ids": [1001]}'`, from, err)
	}
	return value, nil
}

// errWaited is the cause of a wait that timed out.
var errWaited = errors.New("waited long enough")

// await waits for the end of a run. The error carries the exit code for the outcome. While Redis is
// unreachable, await keeps trying.
func (t *tool) await(ctx context.Context, conn *connection, id jobs.RunID, limit time.Duration) error {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errWaited)
		defer cancel()
	}
	const first, longest = 50 * time.Millisecond, time.Second
	state, away := ledger.State(""), false
	for wait := first; ; wait = min(wait*5/4, longest) {
		record, err := conn.ledger.FindRecord(ctx, id)
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, ledger.ErrUnknown):
			return fmt.Errorf("%w: it is no longer kept", err)
		case err != nil:
			if !away {
				fmt.Fprintf(t.stderr, "lockstep: cannot read the run, retrying: %v\n", err)
			}
			away = true
		case record.State.Final():
			return outcome(record)
		default:
			state, away = record.State, false
		}
		if !pause(ctx, wait) {
			if errors.Is(context.Cause(ctx), errWaited) {
				return exit(exitTimeout, fmt.Errorf("run %s is %s after %s; it continues", id, cmp.Or(state, "not seen"), admin.Span(limit)))
			}
			return ctx.Err()
		}
	}
}

// outcome returns an error unless the run succeeded.
func outcome(record *ledger.Record) error {
	if record.State == ledger.StateSucceeded {
		return nil
	}
	why := record.Reason
	if n := len(record.Attempts); why == "" && n > 0 {
		why = record.Attempts[n-1].Error
	}
	return exit(exitRun, errors.New(sum(": ", fmt.Sprintf("run %s %s", record.ID, record.State), oneLine(why))))
}
