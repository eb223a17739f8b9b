package cmd

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/scheduler/admin"
)

// filterHelp describes the flags of filters.
var filterHelp = map[string]string{
	"q":      "only those with this `TEXT` in a name, an ID or a value of the args",
	"job":    "only those of this `JOB`",
	"state":  "only those in this `STATE`",
	"worker": "only those of this `WORKER`: its ID, or the part before the dot",
	"lock":   "only those that take this `LOCK`",
	"queue":  "only those of this `QUEUE`",
	"since":  "only from this `TIME` on: 2027-03-26T12:00, or 90m, which is 90 minutes ago",
	"until":  "only before this `TIME`",
	"error":  "only those with this `TEXT` in their error",
}

// filters holds the filters of a list by their names, which are those of the API.
type filters map[string]string

// filterFlags adds the flags of a list's filters to a command. states are those that --state takes.
func filterFlags(cmd *cobra.Command, names []string, states ...string) filters {
	f := make(filters)
	for _, name := range names {
		help, short := filterHelp[name], ""
		if name == "state" {
			help += ": " + strings.Join(states, ", ")
		}
		if name == "q" {
			short = "q"
		}
		cmd.Flags().VarP(filterValue{f, name}, name, short, help)
	}
	return f
}

// filterValue is the value of a flag of filters.
type filterValue struct {
	to   filters
	name string
}

func (v filterValue) String() string { return v.to[v.name] }
func (v filterValue) Type() string   { return "string" }
func (v filterValue) Set(text string) error {
	v.to[v.name] = text
	return nil
}

// read returns the filter. Times without an offset are local.
func (f filters) read(ctx context.Context, cmd *cobra.Command, conn *connection) (admin.Filter, error) {
	filter, err := conn.reader.ReadFilter(ctx, func(name string) string {
		if name == "since" || name == "until" {
			return localTime(f[name])
		}
		return f[name]
	})
	return filter, misused(cmd, err)
}

// localTime adds the local offset to a time that has none. It returns any other text as it is.
func localTime(text string) string {
	if at, err := parseTime(text, time.Local); err == nil {
		return at.Format(time.RFC3339Nano)
	}
	return text
}

// misused turns a filter that cannot be into wrong usage.
func misused(cmd *cobra.Command, err error) error {
	if errors.Is(err, admin.ErrInvalid) {
		return misuse(cmd, "%v", err)
	}
	return err
}
