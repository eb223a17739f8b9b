package cmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/cronspec"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
)

// operator returns the [admin.Operator] of an installation. A delivery that cannot be pushed is
// reported on stderr and is not an error.
func (t *tool) operator(conn *connection) (*admin.Operator, error) {
	client, err := queue.New(conn.rdb, conn.settings.Redis.Namespace)
	if err != nil {
		return nil, err
	}
	return admin.NewOperator(conn.ledger, client, nil, func(err error) { fmt.Fprintln(t.stderr, "lockstep:", err) }), nil
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

// action holds the flags that all commands which change something share.
type action struct {
	reason string
	yes    bool
}

// flags adds --reason to a command and, if the command asks before it acts, --yes.
func (a *action) flags(cmd *cobra.Command, asks bool) {
	cmd.Flags().StringVar(&a.reason, "reason", "", "why, for the audit: `TEXT`")
	if asks {
		cmd.Flags().BoolVar(&a.yes, "yes", false, "do not ask first")
	}
}

func (a *action) by() admin.Actor { return admin.Actor{Who: whoAmI(), Why: a.reason} }

// confirm asks the user whether to go ahead. Without a terminal it refuses, unless --yes is given.
func (t *tool) confirm(ctx context.Context, a *action, format string, args ...any) error {
	if a.yes {
		return nil
	}
	question := fmt.Sprintf(format, args...)
	if !isTerminal(t.stdin) {
		return refuse("%s; add --yes, since there is no terminal to ask at", question)
	}
	fmt.Fprintf(t.stderr, "lockstep: %s. Go on? [y/N] ", question)
	answer := make(chan string, 1)
	// A read of a terminal cannot be canceled. When ctx ends, the process exits, and the goroutine
	// with it.
	go func() {
		line, _ := bufio.NewReader(t.stdin).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case said := <-answer:
		if said != "y" && said != "yes" {
			return refuse("not confirmed; nothing was done")
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// does makes the RunE of a command that connects and acts. Refusals exit with exitUsage.
func (t *tool) does(f func(ctx context.Context, conn *connection, o *admin.Operator, args []string) error) func(*cobra.Command, []string) error {
	return t.reads(func(ctx context.Context, conn *connection, args []string) error {
		o, err := t.operator(conn)
		if err != nil {
			return err
		}
		err = f(ctx, conn, o, args)
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

// toggle is a command that pauses or resumes a job or a queue.
type toggle struct {
	command *cobra.Command
	do      func(o *admin.Operator, ctx context.Context, name string, by admin.Actor) (news bool, err error)
	// explains an unknown name
	unknown func(conn *connection, ctx context.Context, name string, err error) error
	// appended to the name
	done, already string
}

func (t *tool) toggle(of toggle) *cobra.Command {
	var a action
	a.flags(of.command, false)
	of.command.RunE = t.does(func(ctx context.Context, conn *connection, o *admin.Operator, args []string) error {
		news, err := of.do(o, ctx, args[0], a.by())
		if err != nil {
			return of.unknown(conn, ctx, args[0], err)
		}
		return t.said(news, args[0]+of.done, args[0]+of.already)
	})
	return of.command
}

func (t *tool) jobPauseCommand() *cobra.Command {
	return t.toggle(toggle{&cobra.Command{
		Use: "pause JOB", Short: "Skip the ticks of a job from now on",
		Long: `Skip the ticks of a job from now on, each with the reason in its history. Runs that there are go on, and the job can
still be enqueued and run by hand.`,
		Args: oneArg("a JOB"),
	}, (*admin.Operator).PauseJob, (*connection).noJob, " is paused", " is paused already"})
}

func (t *tool) jobResumeCommand() *cobra.Command {
	return t.toggle(toggle{&cobra.Command{Use: "resume JOB", Short: "Let the ticks of a paused job run again", Args: oneArg("a JOB")},
		(*admin.Operator).ResumeJob, (*connection).noJob, " goes on", " is not paused"})
}

func (t *tool) jobForgetCommand() *cobra.Command {
	var a action
	cmd := &cobra.Command{
		Use: "forget JOB", Short: "Remove what is left of a job that no worker carries",
		Long: `Remove what is left of a job that was removed from the config: its definition, its cursor and its history. A worker that
carries the job, or a run of it that is outstanding, prevents that. If the job comes back, it is a new one.`,
		Args: oneArg("a JOB"),
	}
	a.flags(cmd, true)
	cmd.RunE = t.does(func(ctx context.Context, conn *connection, o *admin.Operator, args []string) error {
		if _, err := conn.ledger.Job(ctx, args[0]); err != nil {
			return conn.noJob(ctx, args[0], err)
		}
		if err := t.confirm(ctx, &a, "the history of %s will be gone", args[0]); err != nil {
			return err
		}
		if err := o.ForgetJob(ctx, args[0], a.by()); err != nil {
			return conn.noJob(ctx, args[0], err)
		}
		return t.write(args[0] + " is forgotten\n")
	})
	return cmd
}

// spanOfTicks holds --from and --to.
type spanOfTicks struct{ from, to string }

func (s *spanOfTicks) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.from, "from", "", "the first `TIME`, RFC 3339 or in the job's time zone: 2027-03-26T12:00")
	cmd.Flags().StringVar(&s.to, "to", "", "the last `TIME`, itself included")
}

// read returns the instants of both flags, and the span in words in the job's time zone.
func (s *spanOfTicks) read(ctx context.Context, conn *connection, job string) (from, to time.Time, words string, err error) {
	if s.from == "" || s.to == "" {
		return from, to, "", refuse("which ticks? Give both --from and --to")
	}
	record, err := conn.ledger.Job(ctx, job)
	if err != nil {
		return from, to, "", conn.noJob(ctx, job, err)
	}
	zone, err := cronspec.LoadZone(record.Job.Timezone)
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
	var a action
	var span spanOfTicks
	var newKey bool
	cmd := &cobra.Command{
		Use: "replay JOB", Short: "Run the ticks of a span (again)",
		Long: `Run the ticks of a span, both ends included, whatever became of them: missed, skipped, failed, or succeeded. Ticks whose
runs are not finished are left as they are. The ticks run one after the other, by the job's present definition and with its
present args.

A run keeps its id, and with it its idempotency key; the record of its earlier attempts stays. So an effect that was recorded
under that key, by guard.SQL.Once or by the service that an http job calls, is not made again: this replay completes what is
missing. With --new-key each tick gets a new run with a key of its own, JOB#replay-TICK-..., and every effect is made again.
The record of the tick stays as it is.`,
		Example: `  lockstep job replay nightly-backup --from 2026-11-18T02:00 --to 2026-11-20T02:00
  lockstep job replay daily-report --from 2026-11-20T06:30 --to 2026-11-20T06:30 --new-key`,
		Args: oneArg("a JOB"),
	}
	cmd.Flags().BoolVar(&newKey, "new-key", false, "make every effect again: give each run a new idempotency key")
	span.flags(cmd)
	a.flags(cmd, true)
	cmd.RunE = t.does(func(ctx context.Context, conn *connection, o *admin.Operator, args []string) error {
		from, to, words, err := span.read(ctx, conn, args[0])
		if err != nil {
			return err
		}
		ticks, err := o.Span(ctx, args[0], from, to)
		if err != nil {
			return err
		}
		keys, under := admin.SameKeys, "under the idempotency keys that they had"
		if newKey {
			keys, under = admin.NewKeys, "under new idempotency keys, so that every effect is made again"
		}
		if err := t.confirm(ctx, &a, "this runs %s of %s, from %s, %s", many(len(ticks), "tick"), args[0], words, under); err != nil {
			return err
		}
		n, err := o.Replay(ctx, args[0], from, to, keys, a.by())
		if err != nil {
			return err
		}
		if n > 0 && !newKey {
			fmt.Fprintln(t.stderr, "lockstep: the runs keep their idempotency keys: an effect recorded under a key, as guard.SQL.Once does, is not made again (--new-key makes it again)")
		}
		return t.said(n > 0, fmt.Sprintf("%s of %s run", many(n, "tick"), args[0]), "no tick there to run: none is in the span, or all are outstanding")
	})
	return cmd
}

func (t *tool) jobSkipCommand() *cobra.Command {
	var a action
	var span spanOfTicks
	cmd := &cobra.Command{
		Use: "skip JOB", Short: "Declare the ticks of a span skipped",
		Long: `Declare that the ticks of a span, both ends included, do not run: those to come are skipped when they come, and runs
of earlier ones that have not begun end as skipped.`,
		Example: `  lockstep job skip nightly-backup --from 2026-12-24 --to 2026-12-27 --reason holidays`,
		Args:    oneArg("a JOB"),
	}
	span.flags(cmd)
	a.flags(cmd, true)
	cmd.RunE = t.does(func(ctx context.Context, conn *connection, o *admin.Operator, args []string) error {
		from, to, words, err := span.read(ctx, conn, args[0])
		if err != nil {
			return err
		}
		if err := t.confirm(ctx, &a, "no tick of %s will run from %s", args[0], words); err != nil {
			return err
		}
		n, err := o.Skip(ctx, args[0], from, to, a.by())
		if err != nil {
			return err
		}
		return t.write(fmt.Sprintf("%s skips its ticks from %s (%s outstanding)\n", args[0], words, many(n, "run")))
	})
	return cmd
}

// many formats a count with its noun.
func many(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func (t *tool) runCancelCommand() *cobra.Command {
	var a action
	cmd := &cobra.Command{
		Use: "cancel RUN", Short: "End a run, also one that is under way",
		Long: `End a run that has not begun or waits for its next attempt. The worker of one that is under way is asked to stop it: it
hears of that within a second, and the run ends when its work has.`,
		Args: oneArg("a RUN"),
	}
	a.flags(cmd, true)
	cmd.RunE = t.does(func(ctx context.Context, conn *connection, o *admin.Operator, args []string) error {
		id := jobs.RunID(args[0])
		record, _, err := conn.ledger.Find(ctx, id)
		if err != nil {
			return noRun(args[0], err)
		}
		if !record.State.Final() { // a final run is refused anyway
			if err := t.confirm(ctx, &a, "run %s, which is %s, ends and is not tried again", id, record.State); err != nil {
				return err
			}
		}
		asked, err := o.CancelRun(ctx, id, a.by())
		if err != nil {
			return noRun(args[0], err)
		}
		return t.said(true, map[bool]string{true: fmt.Sprintf("%s is asked to stop", id), false: fmt.Sprintf("%s is canceled", id)}[asked], "")
	})
	return cmd
}

func (t *tool) runRetryCommand() *cobra.Command {
	var a action
	cmd := &cobra.Command{
		Use: "retry RUN", Short: "Do a run again that has ended without a success",
		Long: `Do a run again that failed, was lost, canceled, skipped or missed: under its id, so that its idempotency key stays the
same, with its arguments, and by the job's present definition. Failures and crashes count anew.

A tick whose arguments contain ${...} is refused when the job's arguments have changed since, because only the definition
that they come from can replace it: lockstep job replay runs the tick with the present ones.`,
		Args: oneArg("a RUN"),
	}
	a.flags(cmd, false)
	cmd.RunE = t.does(func(ctx context.Context, _ *connection, o *admin.Operator, args []string) error {
		err := o.RetryRun(ctx, jobs.RunID(args[0]), a.by())
		switch {
		case jobs.IsPermanent(err):
			return refuse("%w", err)
		case err != nil:
			return noRun(args[0], err)
		}
		return t.write(args[0] + " is due\n")
	})
	return cmd
}

func (t *tool) queuePauseCommand() *cobra.Command {
	return t.toggle(toggle{&cobra.Command{
		Use: "pause QUEUE", Short: "Begin no run of a queue", Args: oneArg("a QUEUE"),
		Long: `Begin no run of a queue until it is resumed, and no task of plain asynq clients there. What is under way goes on.
Runs of the queue that wait for locks keep their places, but are given none meanwhile: others may pass them.`,
	}, (*admin.Operator).PauseQueue, (*connection).noQueue, " is paused", " is paused already"})
}

func (t *tool) queueResumeCommand() *cobra.Command {
	return t.toggle(toggle{&cobra.Command{Use: "resume QUEUE", Short: "Let the runs of a paused queue begin again", Args: oneArg("a QUEUE")},
		(*admin.Operator).ResumeQueue, (*connection).noQueue, " goes on", " is not paused"})
}

// noQueue explains an error that means that no queue has this name. It suggests similar names.
func (c *connection) noQueue(ctx context.Context, name string, err error) error {
	if !errors.Is(err, queue.ErrNoQueue) {
		return err
	}
	infos, err := c.queues(ctx)
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
	var a action
	cmd := &cobra.Command{
		Use: "drain WORKER", Short: "Have a worker end when its runs have",
		Long: `Ask a worker to take nothing new, and to end when its runs have, as SIGTERM does: runs that take longer than its
worker.drain_timeout are handed back. What restarts ended processes will start a new one.`,
		Args: oneArg("a WORKER"),
	}
	a.flags(cmd, true)
	cmd.RunE = t.does(func(ctx context.Context, conn *connection, o *admin.Operator, args []string) error {
		worker, err := conn.reader.Worker(ctx, locks.SessionID(args[0]))
		if errors.Is(err, ledger.ErrUnknown) {
			return conn.noWorker(ctx, args[0])
		}
		if err != nil {
			return err
		}
		if err := t.confirm(ctx, &a, "worker %s, which has %s under way, ends", worker.ID, many(worker.Busy, "run")); err != nil {
			return err
		}
		news, err := o.DrainWorker(ctx, worker.ID, a.by())
		if err != nil {
			return err
		}
		return t.said(news, string(worker.ID)+" is asked to drain", string(worker.ID)+" has been asked already")
	})
	return cmd
}

func (t *tool) lockReleaseCommand() *cobra.Command {
	var a action
	var force bool
	var token string
	cmd := &cobra.Command{
		Use: "release LOCK --token TOKEN --reason TEXT", Short: "Have the holder of a lock give it up",
		Long: `Have the holder of a lock give it up, with all else that it holds in the same bundle. Its work is ended, and it learns
the reason; the bundle passes on when it has answered, or when its session has ended. With --force the bundle passes on at
once. Two holders may then be at work at the same time: the old one continues until it learns that it has lost its locks,
which takes up to a lease when it cannot be reached. Only what checks the fencing token refuses the writes of the old one.

The token says which hold is meant, so that a lock which has moved on meanwhile is left alone: the exit code is 2 then.`,
		Example: `  lockstep lock release bill:1001 --token 1795222978000042 --reason "stuck, and the bill is wanted"`,
		Args:    oneArg("a LOCK"),
	}
	cmd.Flags().StringVar(&token, "token", "", "fencing `TOKEN` of the hold that is meant, as lock show tells it")
	cmd.Flags().BoolVar(&force, "force", false, "do not wait for the holder: two holders may then be at work at the same time")
	a.flags(cmd, true)
	cmd.RunE = t.does(func(ctx context.Context, conn *connection, o *admin.Operator, args []string) error {
		name := args[0]
		if token == "" || a.reason == "" {
			return misuse(cmd, "which hold, and why? Give both --token and --reason")
		}
		meant, err := locks.ParseToken(token)
		if err != nil {
			return misuse(cmd, "--token: %v", err)
		}
		lock, err := conn.reader.Lock(ctx, name)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(lock.Holders, func(h admin.Holder) bool { return h.Token == meant })
		switch {
		case at < 0 && len(lock.Holders) == 0:
			return refuse("nobody holds %s (any more); nothing was done", name)
		case at < 0:
			return refuse("%s is not held under token %s (any more), but under %s by %s; nothing was done",
				name, meant, lock.Holders[0].Token, lock.Holders[0].Worker)
		}
		h := &lock.Holders[at]
		who := fmt.Sprintf("%s (%s)", h.Worker, sum(", ", h.Purpose(), "for "+age(time.Duration(h.Held))))
		what := bundleName(name, len(h.Locks()))
		question := fmt.Sprintf("the work of %s is ended, and %s passes on when it has answered", who, what)
		if force {
			question = fmt.Sprintf("%s passes on at once, while %s may still be at work under it: two holders at the same time, "+
				"and only what checks the fencing token refuses the writes of the old one", what, who)
		}
		if err := t.confirm(ctx, &a, "%s", question); err != nil {
			return err
		}
		if _, err := o.ReleaseLock(ctx, name, meant, force, a.by()); err != nil {
			return err
		}
		if force {
			fmt.Fprintf(t.stderr, "lockstep: until %s learns of that, two holders may be at work at the same time\n", h.Worker)
			return t.write(fmt.Sprintf("%s is taken from %s\n", what, h.Worker))
		}
		return t.write(fmt.Sprintf("%s is told to give up %s\n", h.Worker, what))
	})
	return cmd
}

func (t *tool) lockUndeclareCommand() *cobra.Command {
	var a action
	cmd := &cobra.Command{
		Use: "undeclare PERMITS", Short: "Remove the limit of permits that no config has any more",
		Long: `Remove the limit of permits that no config has any more. Afterward the name is an ordinary one, which can be locked in
the other modes. The limit stays, with exit code 2, while permits of it are in use or runs wait for some.

Take the permits out of the config of every worker first: a worker that has them declares them again when it starts.`,
		Example: `  lockstep lock undeclare partner-api`,
		Args:    oneArg("the PERMITS"),
	}
	a.flags(cmd, true)
	cmd.RunE = t.does(func(ctx context.Context, _ *connection, o *admin.Operator, args []string) error {
		name := args[0]
		if err := t.confirm(ctx, &a, "the limit of the permits %s is removed: runs that ask for them fail", name); err != nil {
			return err
		}
		if err := o.UndeclarePermits(ctx, name, a.by()); errors.Is(err, locks.ErrBusy) || errors.Is(err, ledger.ErrUnknown) {
			return refuse("%v", err)
		} else if err != nil {
			return err
		}
		return t.write(fmt.Sprintf("permits %s are not declared any more\n", name))
	})
	return cmd
}

func (t *tool) auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit", Short: "List what people did: who, when, what, why",
		Long: `List what people and programs did to jobs, runs, locks, queues and workers, the last first. Entries are kept for 90 days,
at most 50,000 of them. Repeats are one entry with their number: the same actor did the same to the same thing within ten
minutes, or asked for runs of the same job within an hour.`,
		Args: noArgs,
	}
	limit, output := limitFlag(cmd), outputFlag(cmd, listFormats()...)
	cmd.RunE = t.reads(func(ctx context.Context, conn *connection, _ []string) error {
		acts, err := conn.reader.Audit(ctx, int(*limit))
		if err != nil {
			return err
		}
		now, err := conn.now(ctx)
		if err != nil {
			return err
		}
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
		}.print(t, *output, acts)
	})
	return cmd
}
