package cmd

import (
	"bufio"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

// whereHelp describes --where in the help of a command.
const whereHelp = `

With --where, it acts on all runs that a filter finds, at most 10,000 of them. FILTER is NAME=VALUE with the names of
the flags of lockstep run ls, several joined by &, as in the URL of the API; --where may also be repeated. A run that
refuses does not affect the others. --dry-run only counts the runs.`

// whereFlags are the flags of commands that act on one run, or on all that a filter finds.
type whereFlags struct {
	where  []string
	dryRun bool
}

func (f *whereFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.where, "where", nil, "all runs that this `FILTER` finds: 'state=failed&since=1h'")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "with --where: only count the runs")
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(f.where) == 0 {
			return oneArg("a RUN, or --where FILTER")(cmd, args)
		}
		return noArgs(cmd, args)
	}
}

// parse reads the values of --where.
func (f *whereFlags) parse(cmd *cobra.Command) (filters, error) {
	values, err := url.ParseQuery(strings.Join(f.where, "&"))
	if err != nil {
		return nil, misuse(cmd, "--where: %v; write NAME=VALUE, and %%25 for a percent sign", err)
	}
	flags := make(filters)
	for name, texts := range values {
		switch {
		case !slices.Contains(admin.RunFilters, name):
			return nil, misuse(cmd, "--where: unknown filter %q; the filters are %s", name, strings.Join(admin.RunFilters, ", "))
		case len(texts) > 1:
			return nil, misuse(cmd, "--where: %s is given %d times", name, len(texts))
		case texts[0] == "":
			return nil, misuse(cmd, "--where: %s has no value", name)
		}
		flags[name] = texts[0]
	}
	return flags, nil
}

// bulk is an act on all runs that a filter finds.
type bulk struct {
	find func(r *admin.Reader, ctx context.Context, filter admin.RunFilter) (*admin.Match, error)
	do   func(o *admin.Operator, ctx context.Context, match *admin.Match, where string, by admin.Actor) (*admin.Bulk, error)
	// what follows the number of runs: a question, and what was done
	asks, done string
}

// actOnAll finds the runs, asks, acts, and prints the counts.
func (t *tool) actOnAll(ctx context.Context, cmd *cobra.Command, conn *connection, a *action, f *whereFlags, of bulk) error {
	flags, err := f.parse(cmd)
	if err != nil {
		return err
	}
	filter, err := flags.read(ctx, cmd, conn)
	if err != nil {
		return err
	}
	match, err := of.find(conn.reader, ctx, filter)
	if err != nil {
		return conn.noJob(ctx, filter.Job, misused(cmd, err))
	}
	found := matched(match)
	switch n := len(match.Runs); {
	case n == 0:
		return t.said(false, "", "no run matches")
	case f.dryRun:
		return t.write(found + "\n")
	case n > admin.BulkTyped:
		err = a.confirmMany(ctx, n, "%s, and each %s", found, of.asks)
	default:
		err = a.confirm(ctx, "%s, and each %s", found, of.asks)
	}
	if err != nil {
		return err
	}
	outcome, err := of.do(a.Operator, ctx, match, strings.Join(f.where, "&"), a.by())
	if err != nil {
		return err
	}
	for _, refusal := range outcome.Refusals {
		fmt.Fprintf(t.stderr, "lockstep: %s: %s\n", refusal.RunID, oneLine(refusal.Why))
	}
	line := many(outcome.Done, "run") + " " + of.done
	if outcome.Asked > 0 {
		line += fmt.Sprintf(", %d of them asked to stop", outcome.Asked)
	}
	if outcome.Refused > 0 {
		line += fmt.Sprintf(", %d refused", outcome.Refused)
	}
	if outcome.Left > 0 {
		line += fmt.Sprintf(", %d left", outcome.Left)
	}
	if err := t.write(line + "\n"); err != nil {
		return err
	}
	switch {
	case outcome.Left > 0:
		return fmt.Errorf("not all runs were tried: repeat the command for the %d that are left", outcome.Left)
	case outcome.Done == 0:
		return refuse("all runs have refused")
	case outcome.More:
		fmt.Fprintln(t.stderr, "lockstep: more runs may match: repeat the command, or bound the filter with since and until")
	}
	return nil
}

// matched counts the runs of a match, by state: "3 runs match (2 due, 1 running)".
func matched(match *admin.Match) string {
	var parts []string
	for _, state := range ledger.StateNames() {
		if n := match.States[ledger.State(state)]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	text := plural(len(match.Runs), "1 run matches", "%d runs match")
	if match.More {
		text = "at least " + text
	}
	return withAge(text, strings.Join(parts, ", "))
}

// confirmMany is confirm for so many things that the user must type their number.
func (a *action) confirmMany(ctx context.Context, n int, format string, args ...any) error {
	if a.yes || !isTerminal(a.stdin) {
		return a.confirm(ctx, format, args...)
	}
	fmt.Fprintf(a.stderr, "lockstep: %s. Type the number of runs to continue: ", fmt.Sprintf(format, args...))
	var answer string
	err := interruptible(ctx, func() error {
		answer, _ = bufio.NewReader(a.stdin).ReadString('\n')
		return nil
	})
	if err != nil {
		return err
	}
	if strings.TrimSpace(answer) != strconv.Itoa(n) {
		return refuse("not confirmed; nothing was done")
	}
	return nil
}
