package cmd

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/scheduler/admin"
)

func (t *tool) lockHistoryCommand() *cobra.Command {
	var at string
	var since time.Duration
	cmd := &cobra.Command{
		Use: "history LOCK", Short: "List what held a lock and what waited for it, and how that ended",
		Long: `List what held a lock and what waited for it, when, and how that ended: first what holds it or waits for it now, then
the others, the last to end first. Redis keeps ended holds and waits for a time that admin.keep in the config sets.

A hold is released, lost (its worker lost its lease), expired (max_hold), revoked or crashed. A wait is granted, timed
out, canceled, refused, lost or crashed, or ends with a deadlock.`,
		Example: `  lockstep lock history bill:1001 --at 14:00
  lockstep lock history bill:1001 --since 2h`,
		Args: oneArg("a LOCK"),
	}
	cmd.Flags().StringVar(&at, "at", "", "only what held it or waited for it at this `TIME`: RFC 3339, or local time: 2027-03-26T12:00, 14:00 (today)")
	cmd.Flags().DurationVar(&since, "since", 0, "only what ended within this `DURATION`, or has not ended (default: all that is kept)")
	limit, output := limitFlag(cmd), outputFlag(cmd, listFormats()...)
	cmd.RunE = t.refusing(func(ctx context.Context, conn *connection, args []string) error {
		now, err := conn.now(ctx)
		if err != nil {
			return err
		}
		filter := admin.HoldFilter{Lock: args[0], Limit: *limit}
		switch {
		case at != "" && since != 0:
			return misuse(cmd, "--at and --since both choose the time; give one of them")
		case since < 0:
			return misuse(cmd, "--since %s: a duration is not negative", since)
		case since > 0:
			filter.Since = now.Add(-since)
		case at != "":
			moment, err := parseMoment(at, now)
			if err != nil {
				return misuse(cmd, "--at: %v", err)
			}
			if moment.After(now) {
				return misuse(cmd, "--at %s is in the future: it is %s now", at, admin.Instant{Time: now})
			}
			filter.Since, filter.Until = moment, moment
		}
		var entries []admin.Entry
		var h *admin.History
		for cursor := ""; h == nil || cursor != "" && (*limit == 0 || len(entries) < *limit); cursor = h.Next {
			if h, err = conn.reader.History(ctx, filter, cursor); err != nil {
				return err
			}
			entries = append(entries, h.Entries...)
		}
		switch {
		case h.KeptSince.IsZero():
			fmt.Fprintln(t.stderr, "lockstep: no ends are kept: the history is off (admin.keep), or nothing has been held yet")
		case filter.Since.Before(h.KeptSince) && (len(entries) == 0 || !filter.Since.IsZero()):
			fmt.Fprintf(t.stderr, "lockstep: what ended before %s (%s) is not kept\n", admin.Instant{Time: h.KeptSince}, ago(now, h.KeptSince))
		}
		return entryView(now).print(t, *output, first(entries, *limit))
	})
	return cmd
}

// parseMoment reads an instant: as parseTime does in the local zone, or a time of today's day.
func parseMoment(text string, now time.Time) (time.Time, error) {
	for _, layout := range []string{"15:04", "15:04:05"} {
		if clock, err := time.Parse(layout, text); err == nil {
			today := now.In(time.Local)
			return time.Date(today.Year(), today.Month(), today.Day(), clock.Hour(), clock.Minute(), clock.Second(), 0, time.Local), nil
		}
	}
	return parseTime(text, time.Local)
}

// entryView lists the entries of a history.
func entryView(now time.Time) view[admin.Entry] {
	return view[admin.Entry]{
		none: "nothing held it or waited for it",
		name: func(e admin.Entry) string { return string(e.ID) },
		columns: []column[admin.Entry]{
			{title: "what", cell: func(e admin.Entry) string {
				if e.Kind == admin.KindHold {
					return "held"
				}
				return "waited"
			}},
			{title: "by", cell: func(e admin.Entry) string { return cmp.Or(string(e.Worker), string(e.RunID)) }},
			{title: "run", cell: func(e admin.Entry) string { return e.Purpose() }},
			{title: "from", cell: func(e admin.Entry) string { return ago(now, e.From.Time) }},
			{title: "for", cell: func(e admin.Entry) string { return admin.Span(time.Duration(e.Lasted)) }},
			{title: "ended", cell: func(e admin.Entry) string { return cmp.Or(string(e.Ended), "not yet") }},
			{title: "blocked by", cell: func(e admin.Entry) string {
				if e.BlockedBy == nil {
					return ""
				}
				return cmp.Or(string(e.BlockedBy.RunID), string(e.BlockedBy.ID))
			}},
			{title: "token", cell: func(e admin.Entry) string {
				if e.Token == nil {
					return ""
				}
				return e.Token.String()
			}},
			{title: "since", wide: true, cell: func(e admin.Entry) string { return e.From.String() }},
			{title: "until", wide: true, cell: func(e admin.Entry) string { return e.To.String() }},
			{title: "host", wide: true, cell: func(e admin.Entry) string { return string(e.Host) }},
			{title: "bundle", wide: true, cell: func(e admin.Entry) string { return strings.Join(e.Bundle, " ") }},
		},
	}
}
