package cmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
)

// operator returns the [admin.Operator] of an installation. A delivery that cannot be pushed is
// reported on stderr and is not an error.
func (t *tool) operator(conn *connection) *admin.Operator {
	return admin.NewOperator(conn.ledger, conn.queue, conn.pusher.Push, nil, func(err error) { fmt.Fprintln(t.stderr, "lockstep:", err) })
}

// whoAmI names the actor for the audit: user and host.
func whoAmI() string {
	name := os.Getenv("USER")
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return name + "@" + host
}

// action is what a command needs that changes something: the operator, and the flags that all such
// commands share.
type action struct {
	*tool
	*admin.Operator
	reason string
	yes    bool
}

func (a *action) by() admin.Actor { return admin.Actor{Who: whoAmI(), Why: a.reason} }

// confirm asks the user whether to go ahead. Without a terminal it refuses, unless --yes is given.
func (a *action) confirm(ctx context.Context, format string, args ...any) error {
	if a.yes {
		return nil
	}
	question := fmt.Sprintf(format, args...)
	if !isTerminal(a.stdin) {
		return refuse("%s; add --yes to confirm, since stdin is not a terminal", question)
	}
	fmt.Fprintf(a.stderr, "lockstep: %s. Continue? [y/N] ", question)
	var answer string
	err := interruptible(ctx, func() error {
		answer, _ = bufio.NewReader(a.stdin).ReadString('\n')
		return nil
	})
	if err != nil {
		return err
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return refuse("not confirmed; nothing was done")
	}
	return nil
}

// interruptible reads until read returns or ctx ends. A read of a terminal cannot be canceled, so
// its goroutine may outlive the call; the process exits soon after.
func interruptible(ctx context.Context, read func() error) error {
	done := make(chan error, 1)
	go func() { done <- read() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Whether a command asks for confirmation before it acts.
const (
	atOnce = false
	asks   = true
)

// acts completes a command that changes the thing that its argument names, "" without an argument.
// It adds --reason and, if the command asks before it acts, --yes.
func (t *tool) acts(confirms bool, cmd *cobra.Command, f func(ctx context.Context, conn *connection, a *action, name string) error) *cobra.Command {
	a := &action{tool: t}
	cmd.Flags().StringVar(&a.reason, "reason", "", "the reason, for the audit: `TEXT`")
	if confirms {
		cmd.Flags().BoolVar(&a.yes, "yes", false, "do not ask for confirmation")
	}
	cmd.RunE = t.refusing(func(ctx context.Context, conn *connection, args []string) error {
		a.Operator = t.operator(conn)
		name := ""
		if len(args) > 0 {
			name = args[0]
		}
		return f(ctx, conn, a, name)
	})
	return cmd
}

// refusing makes the RunE of a command that connects. Refusals exit with exitUsage.
func (t *tool) refusing(f func(ctx context.Context, conn *connection, args []string) error) func(*cobra.Command, []string) error {
	return t.reads(func(ctx context.Context, conn *connection, args []string) error {
		err := f(ctx, conn, args)
		for _, refusal := range []error{ledger.ErrRefused, admin.ErrInvalid, jobs.ErrSignature, jobs.ErrUnknownKeys, jobs.ErrTooLarge, queue.ErrOwned, locks.ErrStale, locks.ErrInvalid} {
			if errors.Is(err, refusal) {
				return exit(exitUsage, err)
			}
		}
		return err
	})
}

// said prints what was done, or reports on stderr that there was nothing to do.
func (t *tool) said(news bool, done, already string) error {
	if news {
		return t.write(done + "\n")
	}
	fmt.Fprintln(t.stderr, "lockstep:", already)
	return nil
}

// toggle completes a command that pauses or resumes a job or a queue.
func (t *tool) toggle(of toggle, cmd *cobra.Command) *cobra.Command {
	return t.acts(atOnce, cmd, func(ctx context.Context, conn *connection, a *action, name string) error {
		return a.carryOut(ctx, conn.turning(of, name))
	})
}

func (t *tool) jobPauseCommand() *cobra.Command {
	return t.toggle(pauseJob(), &cobra.Command{
		Use: "pause JOB", Short: "Skip the ticks of a job from now on",
		Long: `Skip the ticks of a job from now on, each with the reason in its history. Existing runs continue, and the job can
still be enqueued and run by hand.`,
		Args: oneArg("a JOB"),
	})
}

func (t *tool) jobResumeCommand() *cobra.Command {
	return t.toggle(resumeJob(), &cobra.Command{Use: "resume JOB", Short: "Run the ticks of a paused job again", Args: oneArg("a JOB")})
}

func (t *tool) jobForgetCommand() *cobra.Command {
	return t.acts(asks, &cobra.Command{
		Use: "forget JOB", Short: "Remove the data of a job that no worker carries",
		Long: `Remove the data of a job that was removed from the config: its definition, its cursor and its history. This is
refused while a worker carries the job or a run of it is outstanding. If the job comes back, it is a new one, and the
ticks that it has missed have no line in its history.`,
		Args: oneArg("a JOB"),
	}, func(ctx context.Context, conn *connection, a *action, name string) error {
		if _, err := conn.ledger.Job(ctx, name); err != nil {
			return conn.noJob(ctx, name, err)
		}
		if err := a.confirm(ctx, "this deletes the history of %s", name); err != nil {
			return err
		}
		if err := a.ForgetJob(ctx, name, a.by()); err != nil {
			return conn.noJob(ctx, name, err)
		}
		return t.write(name + " is forgotten\n")
	})
}

// spanOfTicks holds --from and --to.
type spanOfTicks struct{ from, to string }

func (s *spanOfTicks) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.from, "from", "", "the first `TIME`, RFC 3339 or in the job's time zone: 2027-03-26T12:00")
	cmd.Flags().StringVar(&s.to, "to", "", "the last `TIME`, inclusive")
}

// read returns the instants of both flags, and the span in words in the job's time zone.
func (s *spanOfTicks) read(ctx context.Context, conn *connection, job string) (from, to time.Time, words string, err error) {
	if s.from == "" || s.to == "" {
		return from, to, "", refuse("which ticks? Give both --from and --to")
	}
	zone, err := conn.zone(ctx, job)
	if err != nil {
		return from, to, "", err
	}
	if from, err = parseTime(s.from, zone); err != nil {
		return from, to, "", refuse("--from: %w", err)
	}
	if to, err = parseTime(s.to, zone); err != nil {
		return from, to, "", refuse("--to: %w", err)
	}
	const layout = "Mon 2006-01-02 15:04:05 MST"
	return from, to, from.In(zone).Format(layout) + " to " + to.In(zone).Format(layout), nil
}

func (t *tool) jobReplayCommand() *cobra.Command {
	var span spanOfTicks
	var newKey bool
	cmd := &cobra.Command{
		Use: "replay JOB", Short: "Run the ticks of a span (again)",
		Long: `Run the ticks of a span, both ends included, whatever their outcome: missed, skipped, failed, or succeeded. Ticks
with an unfinished run are left as they are. The ticks run one after the other, with the job's present definition
and args.

A run keeps its ID, and with it its idempotency key; the record of its earlier attempts stays. So an effect that was
recorded under that key, by guard.SQL.Once or by the service that an http job calls, is not repeated: the replay
completes what is missing. With --new-key, each tick gets a new run with a key of its own, JOB#replay-TICK-..., and
every effect is repeated. The record of the tick stays as it is.

An interrupted replay, or one that loses Redis, prints how many ticks run again, and from which one to continue: with
--new-key, a repetition from the beginning would repeat the effects of those once more.`,
		Example: `  lockstep job replay nightly-backup --from 2026-11-18T02:00 --to 2026-11-20T02:00
  lockstep job replay daily-report --from 2026-11-20T06:30 --to 2026-11-20T06:30 --new-key`,
		Args: oneArg("a JOB"),
	}
	cmd.Flags().BoolVar(&newKey, "new-key", false, "repeat every effect: give each run a new idempotency key")
	span.flags(cmd)
	return t.acts(asks, cmd, func(ctx context.Context, conn *connection, a *action, name string) error {
		from, to, words, err := span.read(ctx, conn, name)
		if err != nil {
			return err
		}
		ticks, err := a.Span(ctx, name, from, to)
		if err != nil {
			return err
		}
		keys, under := admin.SameKeys, "under their old idempotency keys"
		if newKey {
			keys, under = admin.NewKeys, "under new idempotency keys, so that every effect is repeated"
		}
		if err := a.confirm(ctx, "this runs %s of %s, from %s, %s", many(len(ticks), "tick"), name, words, under); err != nil {
			return err
		}
		n, err := a.Replay(ctx, name, from, to, keys, a.by())
		if errors.Is(err, context.Canceled) {
			fmt.Fprintln(t.stderr, "lockstep: interrupted;", err) // with how to continue
		}
		if err != nil {
			return err
		}
		if n > 0 && !newKey {
			fmt.Fprintln(t.stderr, "lockstep: the runs keep their idempotency keys: an effect recorded under a key, as guard.SQL.Once does, is not repeated (--new-key repeats it)")
		}
		return t.said(n > 0, fmt.Sprintf("%s of %s run", many(n, "tick"), name), "no tick to run: the span has none, or all are outstanding")
	})
}

func (t *tool) jobSkipCommand() *cobra.Command {
	var span spanOfTicks
	cmd := &cobra.Command{
		Use: "skip JOB", Short: "Declare the ticks of a span skipped",
		Long: `Declare that the ticks of a span, both ends included, do not run: future ones are skipped when they come, and runs
of earlier ones that have not started end as skipped.`,
		Example: `  lockstep job skip nightly-backup --from 2026-12-24 --to 2026-12-27 --reason holidays`,
		Args:    oneArg("a JOB"),
	}
	span.flags(cmd)
	return t.acts(asks, cmd, func(ctx context.Context, conn *connection, a *action, name string) error {
		from, to, words, err := span.read(ctx, conn, name)
		if err != nil {
			return err
		}
		if err := a.confirm(ctx, "no tick of %s will run from %s", name, words); err != nil {
			return err
		}
		n, err := a.Skip(ctx, name, from, to, a.by())
		if err != nil {
			return err
		}
		return t.write(fmt.Sprintf("%s skips its ticks from %s (%s outstanding)\n", name, words, many(n, "run")))
	})
}

// many formats a count with its noun.
func many(n int, thing string) string { return plural(n, "1 "+thing, "%d "+thing+"s") }

// plural returns one for a count of 1, and else the format other with the count.
func plural(n int, one, other string) string {
	if n == 1 {
		return one
	}
	return fmt.Sprintf(other, n)
}

func (t *tool) runCancelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "cancel RUN | --where FILTER", Short: "End a run, even one that is running, or all that a filter finds",
		Long: `End a run that has not started or waits for its next attempt. If it is running, ask its worker to stop it: the
worker receives that within a second, and the run ends when its work has ended.` + whereHelp,
		Example: `  lockstep run cancel settle-bills#01K9B7ZK3M5W7QF
  lockstep run cancel --where 'job=settle-bills&state=due' --dry-run`,
	}
	var all whereFlags
	all.add(cmd)
	return t.acts(asks, cmd, func(ctx context.Context, conn *connection, a *action, name string) error {
		if len(all.where) > 0 {
			return t.actOnAll(ctx, cmd, conn, a, &all, bulk{(*admin.Reader).ToCancel, (*admin.Operator).CancelRuns, "ends and is not retried", "canceled"})
		}
		if all.dryRun {
			return misuse(cmd, "--dry-run is for --where")
		}
		deed, err := conn.canceling(ctx, jobs.RunID(name))
		if err != nil {
			return err
		}
		return a.carryOut(ctx, deed)
	})
}

func (t *tool) runRetryCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "retry RUN | --where FILTER", Short: "Repeat a run that ended without success, or all that a filter finds",
		Long: `Repeat a run that failed, was lost, canceled, skipped or missed: under its ID, so that its idempotency key stays the
same, with its arguments, and with the job's present definition. Failures and crashes are counted from zero.

A tick with arguments that contain ${...} is refused if the job's arguments have changed since, because only the
definition that they come from can replace the ${...}. Use lockstep job replay to run the tick with the present
arguments.` + whereHelp,
		Example: `  lockstep run retry settle-bills#01K9B7ZK3M5W7QF
  lockstep run retry --where 'state=failed&since=1h&error=connection refused'`,
	}
	var all whereFlags
	all.add(cmd)
	return t.acts(asks, cmd, func(ctx context.Context, conn *connection, a *action, name string) error {
		if len(all.where) > 0 {
			return t.actOnAll(ctx, cmd, conn, a, &all, bulk{(*admin.Reader).ToRetry, (*admin.Operator).RetryRuns, "runs again", "due again"})
		}
		if all.dryRun {
			return misuse(cmd, "--dry-run is for --where")
		}
		deed, err := conn.retrying(ctx, jobs.RunID(name))
		if err != nil {
			return err
		}
		return a.carryOut(ctx, deed)
	})
}

func (t *tool) queuePauseCommand() *cobra.Command {
	return t.toggle(pauseQueue(), &cobra.Command{
		Use: "pause QUEUE", Short: "Stop starting runs from a queue", Args: oneArg("a QUEUE"),
		Long: `Stop starting runs from a queue until it is resumed, including tasks of plain asynq clients there. Running runs
continue. Runs of the queue that wait for locks keep their places, but get none meanwhile: others may pass them.`,
	})
}

func (t *tool) queueResumeCommand() *cobra.Command {
	return t.toggle(resumeQueue(), &cobra.Command{Use: "resume QUEUE", Short: "Start runs from a paused queue again", Args: oneArg("a QUEUE")})
}

// noQueue explains an error that means that no queue has this name. It suggests similar names.
func (c *connection) noQueue(ctx context.Context, name string, err error) error {
	if !errors.Is(err, queue.ErrNoQueue) {
		return err
	}
	infos, err := c.queue.Queues(ctx)
	if err != nil {
		return err
	}
	var known []string
	for _, info := range infos {
		if info.Namespace == c.settings.Redis.Namespace {
			known = append(known, info.Name)
		}
	}
	return unknown("queue", name, known)
}

func (t *tool) workerDrainCommand() *cobra.Command {
	return t.acts(asks, &cobra.Command{
		Use: "drain WORKER", Short: "Let a worker finish its runs and exit",
		Long: `Ask a worker to take no new runs, and to exit when its runs have ended, as SIGTERM does: runs that take longer than
its worker.drain_timeout are handed back. A service manager that restarts exited processes will start a new worker.`,
		Args: oneArg("a WORKER"),
	}, func(ctx context.Context, conn *connection, a *action, name string) error {
		deed, err := conn.draining(ctx, name)
		if err != nil {
			return err
		}
		return a.carryOut(ctx, deed)
	})
}

func (t *tool) lockReleaseCommand() *cobra.Command {
	var force bool
	var token string
	cmd := &cobra.Command{
		Use: "release LOCK --token TOKEN --reason TEXT", Short: "Make the holder of a lock release it",
		Long: `Make the holder of a lock release it, with everything else in the same bundle. The holder's work is ended, with the
reason. The bundle passes on when the holder has confirmed that, or when its session has ended. With --force, the
bundle passes on at once. Two holders may then work at the same time: the old one continues until it learns that it
has lost its locks, which takes up to a lease if it cannot be reached. Only a target that checks the fencing token
refuses the writes of the old holder.

The token identifies the hold, so that a lock that has passed on meanwhile is left alone: the exit code is then 2.`,
		Example: `  lockstep lock release bill:1001 --token 1795222978000042 --reason "stuck, and the bill is needed"`,
		Args:    oneArg("a LOCK"),
	}
	cmd.Flags().StringVar(&token, "token", "", "fencing `TOKEN` of the hold, as lock show prints it")
	cmd.Flags().BoolVar(&force, "force", false, "do not wait for the holder: two holders may then work at the same time")
	return t.acts(asks, cmd, func(ctx context.Context, conn *connection, a *action, name string) error {
		if token == "" || a.reason == "" {
			return misuse(cmd, "which hold, and why? Give both --token and --reason")
		}
		meant, err := locks.ParseToken(token)
		if err != nil {
			return misuse(cmd, "--token: %v", err)
		}
		deed, err := conn.releasing(ctx, name, meant, force)
		if err != nil {
			return err
		}
		return a.carryOut(ctx, deed)
	})
}

func (t *tool) lockUndeclareCommand() *cobra.Command {
	return t.acts(asks, &cobra.Command{
		Use: "undeclare PERMITS", Short: "Remove the limit of permits that are no longer in any config",
		Long: `Remove the limit of permits that are no longer in any config. Afterward, the name is an ordinary one, which can be
locked in the other modes. The limit stays, with exit code 2, while its permits are in use or runs wait for some.

First remove the permits from the config of every worker: a worker that has them declares them again when it starts.`,
		Example: `  lockstep lock undeclare partner-api`,
		Args:    oneArg("the PERMITS"),
	}, func(ctx context.Context, _ *connection, a *action, name string) error {
		if err := a.confirm(ctx, "this removes the limit of the permits %s: runs that request them fail", name); err != nil {
			return err
		}
		if err := a.UndeclarePermits(ctx, name, a.by()); errors.Is(err, locks.ErrBusy) || errors.Is(err, ledger.ErrUnknown) {
			return refuse("%v", err)
		} else if err != nil {
			return err
		}
		return t.write(fmt.Sprintf("permits %s are no longer declared\n", name))
	})
}

func (t *tool) auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit", Short: "List actions: actor, time, action, target and reason",
		Long: `List the actions of people and programs on jobs, runs, locks, queues and workers, the latest first. Entries are kept
for 90 days, at most 50,000 of them. Repeats are one entry with their number: the same actor did the same to the
same target within ten minutes, or asked for runs of the same job within an hour.`,
		Example: `  lockstep audit --since 24h
  lockstep audit -q ann --job nightly-backup`,
		Args: noArgs,
	}
	flags := filterFlags(cmd, admin.ActFilters)
	return list(t, cmd, actView, func(ctx context.Context, conn *connection, _ []string, limit int) ([]admin.Act, error) {
		filter, err := flags.read(ctx, cmd, conn)
		if err != nil {
			return nil, err
		}
		filter.Limit = limit
		return conn.reader.Audit(ctx, filter)
	})
}

func actView(now time.Time) view[admin.Act] {
	return view[admin.Act]{
		none: "no actions yet",
		name: func(a admin.Act) string { return a.ID },
		columns: []column[admin.Act]{
			{title: "when", cell: func(a admin.Act) string { return ago(now, a.At.Time) }},
			{title: "who", cell: func(a admin.Act) string { return a.Who }},
			{title: "what", cell: func(a admin.Act) string {
				if a.Times > 1 {
					return fmt.Sprintf("%s (%d times)", a.What, a.Times)
				}
				return a.What
			}},
			{title: "on", cell: func(a admin.Act) string { return a.On }},
			{title: "detail", cell: func(a admin.Act) string { return string(a.Detail) }},
			{title: "why", cell: func(a admin.Act) string { return string(a.Why) }},
			{title: "at", wide: true, cell: func(a admin.Act) string { return a.At.String() }},
			{title: "first at", wide: true, cell: func(a admin.Act) string { return a.FirstAt.String() }},
		},
	}
}
