package cmd

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/jobs"
	"lockstep/scheduler/admin"
)

func (t *tool) jobExplainCommand() *cobra.Command {
	var at string
	cmd := &cobra.Command{
		Use: "explain JOB|RUN", Short: "Explain why a tick or a run of a job ran, when and where, or why not",
		Long: `Explain why a tick of a job ran, when and where, or why not, from what was recorded when it happened. Without --at,
it explains the last tick on record. With the ID of a run, which has a # or an @, it explains that run. For an
unfinished run, it explains why the run is not running now: its time has not come, its queue is paused, others hold
its locks, no worker serves its queue or has its handler, no slot is free, other runs come first, or, after a crash,
the slot for such runs is taken.`,
		Example: `  lockstep job explain nightly-backup --at 2026-11-20T02:00
  lockstep job explain settle-bills#01K9B7ZK3M5W7QF`,
		Args: oneArg("a JOB or a RUN"),
	}
	cmd.Flags().StringVar(&at, "at", "", "the tick at this `TIME`, RFC 3339 or in the job's time zone: 2027-03-26T12:00")
	output := outputFlag(cmd, text, asJSON, asYAML)
	cmd.RunE = t.refusing(func(ctx context.Context, conn *connection, args []string) (err error) {
		var explained *admin.Explanation
		if strings.ContainsAny(args[0], "#@") {
			if at != "" {
				return misuse(cmd, "--at is for a job; a run has its tick already")
			}
			explained, err = conn.reader.ExplainRun(ctx, jobs.RunID(args[0]))
			err = noRun(args[0], err)
		} else {
			var when time.Time
			if at != "" {
				zone, err := conn.zone(ctx, args[0])
				if err != nil {
					return err
				}
				if when, err = parseTime(at, zone); err != nil {
					return misuse(cmd, "--at: %v", err)
				}
			}
			explained, err = conn.reader.Explain(ctx, args[0], when)
			err = conn.noJob(ctx, args[0], err)
		}
		if err != nil {
			return err
		}
		if *output != text {
			return t.encode(*output, explained)
		}
		return t.explain(explained)
	})
	return cmd
}

func (t *tool) explain(e *admin.Explanation) error {
	var b strings.Builder
	if e.Tick.IsZero() && e.RunID != "" {
		fmt.Fprintf(&b, "%s, created %s\n", e.RunID, e.Local)
	} else if e.Tick.IsZero() {
		fmt.Fprintf(&b, "%s, at %s\n", e.Job, e.Local)
	} else {
		layout := "15:04Z"
		if e.Tick.Second() != 0 {
			layout = "15:04:05Z"
		}
		fmt.Fprintf(&b, "%s, tick %s (%s)\n", e.Job, e.Local, e.Tick.UTC().Format(layout))
	}
	var steps [][]string
	for _, step := range e.Steps {
		steps = append(steps, []string{map[bool]string{true: "  ok  ", false: "  no  "}[step.OK], step.Name, step.Text})
	}
	b.WriteString(aligned(steps))
	fmt.Fprintf(&b, "  %-4s  %s\n", "=>", oneLine(e.Conclusion))
	return t.write(b.String())
}
