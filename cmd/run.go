package cmd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/jobs"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

func (t *tool) runCommand() *cobra.Command {
	return group("run", "Inspect runs, cancel and retry them", "Runs: for a tick of a schedule, for a request, or started by hand.",
		t.runLsCommand(), t.runShowCommand(), t.runOutputCommand(), t.runCancelCommand(), t.runRetryCommand())
}

func (t *tool) runLsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List runs",
		Long: `List runs: the outstanding ones first, then the finished ones, the latest first. Outstanding runs are listed by job,
the latest tick and the newest request of each job first; with --state running by worker, with --state due by queue,
and with --state scheduled or retrying by the time at which they become due. A tick that was skipped or missed before
it became due never was a run: lockstep job history lists it, and so does --state skipped or missed. Lines that cover
many ticks are only in the history.

--since and --until go by the end of a run, or, while it is outstanding, by its creation. --lock finds outstanding
runs that take the lock, and ended ones that would take it by the present definition of their job. -q finds a part of
an ID, a worker, a lock or a value of the args, in any case; the whole ID of a run finds only that run. Args of more
than 1 KiB are not searched.

--group error counts the runs by the first line of their reason or error, the most frequent first.`,
		Example: `  lockstep run ls --since 1h --state failed --group error
  lockstep run ls --worker web-1 -q bill:1001`,
		Args: noArgs,
	}
	flags := filterFlags(cmd, admin.RunFilters, ledger.StateNames()...)
	var group string
	cmd.Flags().StringVar(&group, "group", "", "count the runs by `WHAT`: error")
	limit, output := limitFlag(cmd), outputFlag(cmd, listFormats()...)
	cmd.RunE = t.reads(func(ctx context.Context, conn *connection, _ []string) error {
		if group != "" && group != "error" {
			return misuse(cmd, "--group %s: runs are grouped by error only", group)
		}
		filter, err := flags.read(ctx, cmd, conn)
		if err != nil {
			return err
		}
		filter.Limit = *limit
		var runs []admin.Run
		var groups []admin.ErrorGroup
		if group == "" {
			runs, err = conn.reader.Runs(ctx, filter)
		} else {
			groups, err = conn.reader.RunErrors(ctx, filter)
		}
		if err != nil {
			return conn.noJob(ctx, filter.Job, misused(cmd, err))
		}
		now, err := conn.now(ctx)
		if err != nil {
			return err
		}
		if group == "" {
			return t.runView(now).print(t, *output, runs)
		}
		return errorView(now).print(t, *output, groups)
	})
	return cmd
}

func errorView(now time.Time) view[admin.ErrorGroup] {
	return view[admin.ErrorGroup]{
		none: "no runs",
		name: func(g admin.ErrorGroup) string { return string(g.Error) },
		columns: []column[admin.ErrorGroup]{
			{title: "runs", cell: func(g admin.ErrorGroup) string { return strconv.Itoa(g.Runs) }},
			{title: "error", cell: func(g admin.ErrorGroup) string { return string(g.Error) }},
			{title: "last", cell: func(g admin.ErrorGroup) string { return ago(now, g.LastAt.Time) }},
			{title: "last run", cell: func(g admin.ErrorGroup) string { return string(g.LastRun) }},
			{title: "jobs", cell: func(g admin.ErrorGroup) string {
				names := strings.Join(g.Jobs, ", ")
				if g.MoreJobs > 0 {
					names += fmt.Sprintf(" and %d more", g.MoreJobs)
				}
				return names
			}},
		},
	}
}

func (t *tool) runView(now time.Time) view[admin.Run] {
	return view[admin.Run]{
		none: "no runs",
		name: func(r admin.Run) string { return string(r.ID) },
		columns: []column[admin.Run]{
			{title: "run", cell: func(r admin.Run) string { return string(r.ID) }},
			{title: "state", cell: func(r admin.Run) string { return t.state(string(r.State)) }},
			{title: "attempts", cell: func(r admin.Run) string { return strconv.Itoa(len(r.Attempts)) }},
			{title: "worker", cell: func(r admin.Run) string { return lastWorker(&r) }},
			{title: "created", cell: func(r admin.Run) string { return ago(now, r.CreatedAt.Time) }},
			{title: "took", cell: func(r admin.Run) string { return r.Took(now) }},
			{title: "why", cell: func(r admin.Run) string { return firstLine(r.Why()) }},
			{title: "trigger", wide: true, cell: func(r admin.Run) string { return string(r.Trigger) }},
			{title: "queue", wide: true, cell: func(r admin.Run) string { return r.Queue }},
			{title: "crashes", wide: true, cell: func(r admin.Run) string { return strconv.Itoa(r.Crashes) }},
			{title: "token", wide: true, cell: func(r admin.Run) string {
				if n := len(r.Attempts); n > 0 {
					return r.Attempts[n-1].Token.String()
				}
				return ""
			}},
			{title: "args", wide: true, cell: func(r admin.Run) string { return compactJSON(r.Args) }},
		},
	}
}

func lastWorker(r *admin.Run) string {
	if n := len(r.Attempts); n > 0 {
		return string(r.Attempts[n-1].Worker)
	}
	return ""
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

func (t *tool) runShowCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "show RUN", Short: "Show a run and its attempts", Args: oneArg("a RUN")}
	reader := secretArgsFlag(cmd)
	return show(t, cmd, func(ctx context.Context, conn *connection, name string) (*admin.Run, error) {
		run, _, err := reader(conn).Run(ctx, jobs.RunID(name))
		return run, noRun(name, err)
	}, t.showRun)
}

// secretArgsFlag adds the flag that shows the values of secret args, and returns a function that
// returns the reader to use.
func secretArgsFlag(cmd *cobra.Command) func(*connection) *admin.Reader {
	reveal := cmd.Flags().Bool("secret-args", false, "show the values of secret args instead of (hidden)")
	return func(conn *connection) *admin.Reader {
		if *reveal {
			return conn.reader.Revealing()
		}
		return conn.reader
	}
}

func noRun(id string, err error) error {
	if !errors.Is(err, ledger.ErrUnknown) {
		return err
	}
	if jobs.RunID(id).Job() == "" {
		return fmt.Errorf("no run %q: an ID is <job>@<tick> or <job>#<id> (see: lockstep run ls)", id)
	}
	return fmt.Errorf("no run %q: there was none, or it is no longer kept (see: lockstep run ls)", id)
}

func (t *tool) showRun(r *admin.Run, now time.Time) error {
	facts := []fact{
		{"run", string(r.ID)},
		{"job", r.Job},
		{"trigger", string(r.Trigger)},
		{"made from", string(r.Parent)},
		{"trace", string(r.TraceID)},
		{"tick", r.Tick.String()},
		{"state", t.state(string(r.State))},
		{"reason", string(r.Reason)},
		{"waiting for", waitingFor(r)},
		{"due", withAge(r.DueAt.String(), until(now, r.DueAt.Time))},
		{"args", compactJSON(r.Args)},
		{"queue", r.Queue},
		{"created", withAge(r.CreatedAt.String(), ago(now, r.CreatedAt.Time))},
		{"started", withAge(r.StartedAt.String(), ago(now, r.StartedAt.Time))},
		{"finished", withAge(r.FinishedAt.String(), ago(now, r.FinishedAt.Time))},
		{"took", r.Took(now)},
		{"unusual", string(r.Unusual)},
	}
	if n := len(r.Attempts); n > 0 {
		facts = append(facts, fact{"stuck", stuckSince(r.Attempts[n-1].Stuck, now)})
	}
	if led := r.LedTo; led != nil {
		runs := fmt.Sprint(led.Runs)
		if runs = strings.Trim(runs, "[]"); led.More > 0 {
			runs += fmt.Sprintf(" and %d more", led.More)
		}
		facts = append(facts, fact{"led to", runs})
	}
	if r.Crashes > 0 {
		facts = append(facts, fact{"crashes", strconv.Itoa(r.Crashes)})
	}
	if err := t.facts(facts); err != nil {
		return err
	}
	if err := t.showAttempts(r, now); err != nil {
		return err
	}
	if err := t.write("\n"); err != nil {
		return err
	}
	if r.Definition == nil {
		return t.facts([]fact{{"definition", "not kept: lockstep job show " + r.Job + " has the active one"}})
	}
	return t.facts(definitionFacts(r.Definition))
}

// definitionFacts describes the definition that a run was made with.
func definitionFacts(d *admin.RunDefinition) []fact {
	if d.Hash == "" {
		return []fact{{"definition", string(d.Problem)}}
	}
	standing := "the active one of its job"
	if !d.Active {
		standing = "not the active one of its job"
	}
	facts := []fact{
		{"definition", fmt.Sprintf("%s (%s)", d.Hash, standing)},
		{"description", string(d.Description)},
		{"schedule", string(d.Words)},
		{"problem", string(d.Problem)},
		{d.Kind, d.Work},
		{"default args", compactJSON(d.Args)},
	}
	return append(facts, policyFacts(&d.Defined)...)
}

// showAttempts prints a table of the attempts at a run, unless there are none.
func (t *tool) showAttempts(r *admin.Run, now time.Time) error {
	if len(r.Attempts) == 0 {
		return nil
	}
	rows := make([][]string, len(r.Attempts))
	for i, a := range r.Attempts {
		length, outcome := now.Sub(a.StartedAt.Time), "running"
		if !a.FinishedAt.IsZero() {
			length, outcome = a.FinishedAt.Sub(a.StartedAt.Time), string(a.Outcome)
		}
		if a.Stuck != nil {
			outcome = "stuck"
		}
		if a.Times > 1 {
			outcome += fmt.Sprintf(" (%d times since %s)", a.Times, a.FirstAt)
		}
		rows[i] = []string{strconv.Itoa(a.Number), string(a.Worker), a.Token.String(), a.StartedAt.String(), admin.Span(length),
			t.state(outcome), firstLine(string(a.Error))}
	}
	if err := t.write("\n"); err != nil {
		return err
	}
	return t.table([]string{"attempt", "worker", "token", "started", "took", "outcome", "error"}, rows)
}

// stuckSince describes since when an attempt has been stuck; "" for one that is not.
func stuckSince(stuck *admin.Stuck, now time.Time) string {
	if stuck == nil {
		return ""
	}
	return fmt.Sprintf("since %s: %s; it continues after the end of its context, and keeps its slot and its locks",
		withAge(stuck.Since.String(), ago(now, stuck.Since.Time)), stuck.Because)
}

// waitingFor explains in one line why a run does not run.
func waitingFor(r *admin.Run) string {
	if r.WaitingFor == nil {
		return ""
	}
	return r.WaitingFor.Text
}

func (t *tool) runOutputCommand() *cobra.Command {
	var follow bool
	var attempt int
	cmd := &cobra.Command{
		Use: "output RUN", Short: "Print the end of the output of an attempt at a run",
		Long: `Print the end of the output of a run's last attempt that has printed something, or with --attempt that of another
one. Output is stored when an attempt ends. A run keeps the outputs of its last 8 attempts, as much of each as
output.keep of its job says, and up to 1MiB together.

-f follows the run until it ends: it prints what an attempt prints while it runs, beginning with the end of what it
has printed so far, and continues with the next attempt, also on another worker. To stderr it prints why the run
waits, where attempts run and how they end, and what was left out: a job that prints faster than about 300 KiB a
second is not slowed down. The exit code is 5 if the run does not succeed. A worker of an older build passes nothing
on; then the output is printed when the attempt ends.`,
		Args: oneArg("a RUN"),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "print the output while the run is in progress, until it ends")
	cmd.Flags().IntVar(&attempt, "attempt", 0, "print the output of attempt `N` (default: the last one that has printed something)")
	cmd.RunE = t.reads(func(ctx context.Context, conn *connection, args []string) error {
		given := cmd.Flags().Changed("attempt")
		switch {
		case given && follow:
			return misuse(cmd, "--attempt and --follow cannot be combined: -f follows the attempts that run")
		case given && attempt < 1:
			return misuse(cmd, "--attempt %d: attempts count from 1", attempt)
		}
		if follow {
			return t.followOutput(ctx, conn, args[0])
		}
		record, output, err := conn.ledger.FindOutput(ctx, jobs.RunID(args[0]), attempt)
		if err != nil {
			return noRun(args[0], err)
		}
		switch last := record.Last(); {
		case given && output.Attempt == 0:
			return admin.NoOutput(record, attempt)
		case given:
		case output.Attempt == 0 && !record.State.Final():
			fmt.Fprintf(t.stderr, "no output yet: it is stored when an attempt ends, and the run is %s (-f follows it)\n", record.State)
		case output.Attempt > 0 && last != nil && output.Attempt < last.Number:
			fmt.Fprintf(t.stderr, "lockstep: this is the output of attempt %d; that of attempt %d is not stored\n", output.Attempt, last.Number)
		}
		return t.write(output.Text)
	})
	return cmd
}

// followOutput prints what the attempts at a run print, until the run has ended. The error carries
// the exit code for the outcome. While Redis is unreachable, followOutput keeps trying.
func (t *tool) followOutput(ctx context.Context, conn *connection, name string) error {
	follower := conn.reader.Follow(jobs.RunID(name))
	for begun, away := false, false; ; begun = true {
		events, err := follower.Next(ctx)
		for _, event := range events {
			if err := t.printEvent(name, event); err != nil {
				return err
			}
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !begun:
			return noRun(name, err)
		case errors.Is(err, ledger.ErrUnknown):
			return fmt.Errorf("%w: it is no longer kept", err)
		case err != nil:
			if !away {
				fmt.Fprintf(t.stderr, "lockstep: cannot read the run, retrying: %v\n", err)
			}
			away = true
		case follower.Ended():
			record, err := conn.ledger.FindRecord(ctx, jobs.RunID(name))
			if err != nil {
				return err
			}
			return outcome(record)
		default:
			away = false
		}
		if !pause(ctx, follower.Pause()) {
			return ctx.Err()
		}
	}
}

// printEvent prints the output of a followed run to stdout, and everything else to stderr.
func (t *tool) printEvent(run string, e admin.FollowEvent) error {
	line := ""
	switch e.Kind {
	case admin.FollowOutput:
		return t.write(e.Text)
	case admin.FollowWaiting:
		line = fmt.Sprintf("run %s does not run yet: %s", run, e.Text)
	case admin.FollowAttempt:
		line = sum(": ", fmt.Sprintf("attempt %d on %s %s", e.Attempt, e.Worker, e.State), firstLine(e.Text))
	case admin.FollowNote:
		line = e.Text
	case admin.FollowEnd: // the exit code and its error say how
		return nil
	}
	fmt.Fprintf(t.stderr, "lockstep: %s\n", oneLine(line))
	return nil
}
