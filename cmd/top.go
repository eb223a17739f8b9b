package cmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/cmd/top"
	"lockstep/jobs"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

func (t *tool) topCommand() *cobra.Command {
	var interval time.Duration
	var once bool
	cmd := &cobra.Command{
		Use: "top", Short: "Watch workers, locks and runs in the terminal, and act on them",
		Long: `Show workers, holds, waits, runs that do not run yet, and how the last runs ended, until q or Ctrl-C. The data is
read from Redis every second, or less often where a read takes longer than a fifth of a second. While Redis cannot be
read, the last data stays on the screen, with its age and the reason.

Tab and the digits select a table, / filters all of them, s sorts, and Enter shows a run with its attempts, the reason
why it waits, and the end of its output, which it follows while the run is in progress: G stays at the end. c cancels a run, r retries it, x releases a lock, p and u pause and resume a
job or a queue, and d drains a worker. As the commands of these names do, they say what they do and ask, they take a
reason, and they are in the audit. ? lists all keys.

The terminal needs 40 columns and 10 lines. With NO_COLOR, there are no colors; each state has a sign and a word. If
stdout is not a terminal, or with --once, the tables are printed once, with all rows. Of the runs that do not run yet,
the tables have the ten oldest (of more than 1,000 runs, those due for longest), and of the finished ones the last 25;
lockstep run ls lists all.`,
		Example: `  lockstep top
  lockstep top --interval 5s
  lockstep top --once | grep bill:1001`,
		Args: noArgs,
	}
	cmd.Flags().DurationVar(&interval, "interval", time.Second, "read every `DURATION`, 1s or more")
	cmd.Flags().BoolVar(&once, "once", false, "print the tables once, as text")
	run := t.reads(func(ctx context.Context, conn *connection, _ []string) error {
		if once || !top.IsTerminal(t.stdout) {
			return t.topOnce(ctx, conn)
		}
		t.manners.Store(orderly) // it restores the terminal, however long that takes
		return top.Run(ctx, fleetOf{conn}, top.Options{
			Interval: interval, Colors: colours(t.stdout), Where: conn.settings.Redis.String(), In: t.stdin, Out: t.stdout,
		})
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if interval < time.Second {
			return misuse(cmd, "--interval %s: it takes 1s or more", interval)
		}
		if !once && top.IsTerminal(t.stdout) && dumb(os.Getenv("TERM")) {
			return refuse("TERM is %q: such a terminal cannot show a screen; use lockstep top --once, or set TERM", os.Getenv("TERM"))
		}
		return run(cmd, args)
	}
	return cmd
}

// dumb reports whether a kind of terminal cannot move its cursor, or is not known.
func dumb(term string) bool { return term == "" || term == "dumb" }

// topOnce prints the tables of `lockstep top`.
func (t *tool) topOnce(ctx context.Context, conn *connection) error {
	seen, err := fleetOf{conn}.See(ctx)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s as of %s\n%s\n", conn.settings.Redis.String(), seen.Overview.At, strings.Join(top.Totals(seen.Overview), " · "))
	for _, alarm := range top.Alarms(seen.Overview) {
		b.WriteString(alarm + "\n")
	}
	if err := t.write(b.String()); err != nil {
		return err
	}
	for _, table := range top.Tables(seen) {
		if err := t.write("\n"); err != nil {
			return err
		}
		if len(table.Rows) == 0 {
			err = t.write(table.None + "\n")
		} else {
			err = t.table(table.Titles, table.Rows)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fleetOf is the [top.Fleet] of an installation.
type fleetOf struct{ *connection }

// See reads the overview, as the page does.
func (f fleetOf) See(ctx context.Context) (*top.Seen, error) {
	snapshot, err := f.reader.Snapshot(ctx)
	if err != nil {
		return nil, f.away(err)
	}
	overview, err := f.reader.Overview(ctx, snapshot)
	if err != nil {
		return nil, f.away(err)
	}
	return &top.Seen{Snapshot: snapshot, Overview: overview}, nil
}

// Run reads a run.
func (f fleetOf) Run(ctx context.Context, id jobs.RunID) (*top.Detail, error) {
	run, output, err := f.reader.Run(ctx, id)
	if err != nil {
		return nil, f.away(err)
	}
	detail := &top.Detail{Run: run, Output: output}
	if run.State == ledger.StateRunning || run.State == ledger.StateWaiting {
		if detail.Snapshot, err = f.reader.Snapshot(ctx); err != nil {
			return nil, f.away(err)
		}
	}
	if detail.At, err = f.now(ctx); err != nil {
		return nil, f.away(err)
	}
	return detail, nil
}

// Follow returns the follower of lockstep run output -f.
func (f fleetOf) Follow(id jobs.RunID) top.Follower { return f.reader.Follow(id) }

// Prepare returns the deed of a command.
func (f fleetOf) Prepare(ctx context.Context, verb top.Verb, on top.Target) (*top.Act, error) {
	d, err := f.deed(ctx, verb, on)
	if err != nil {
		return nil, f.away(err)
	}
	return &top.Act{Effect: d.effect, Asks: d.asks, Reason: d.reason, Do: func(ctx context.Context, why string) (string, error) {
		var late error
		o := admin.NewOperator(f.ledger, f.queue, f.pusher.Push, nil, func(err error) { late = err })
		said, _, err := d.do(ctx, o, admin.Actor{Who: whoAmI(), Why: why})
		if err != nil {
			return "", f.away(err)
		}
		said = sum("; ", said, d.warning)
		if late != nil { // the act is done all the same
			said = sum("; ", said, late.Error())
		}
		return said, nil
	}}, nil
}

func (f fleetOf) deed(ctx context.Context, verb top.Verb, on top.Target) (*deed, error) {
	queue := ""
	if len(on.Queues) > 0 {
		queue = on.Queues[0]
	}
	switch verb {
	case top.Cancel:
		return f.canceling(ctx, on.Run)
	case top.Retry:
		return f.retrying(ctx, on.Run)
	case top.Release, top.Force:
		return f.releasing(ctx, on.Lock, on.Token, verb == top.Force)
	case top.PauseJob:
		return f.turning(pauseJob(), on.Job), nil
	case top.ResumeJob:
		return f.turning(resumeJob(), on.Job), nil
	case top.PauseQueue:
		return f.turning(pauseQueue(), queue), nil
	case top.ResumeQueue:
		return f.turning(resumeQueue(), queue), nil
	case top.Drain:
		return f.draining(ctx, string(on.Worker))
	}
	return nil, errors.New("unknown act " + string(verb))
}
