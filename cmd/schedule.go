package cmd

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/configs"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/cronspec"
)

// tickTime is one tick, also in the time zone of its schedule.
type tickTime struct {
	Tick  time.Time `json:"tick"`
	Local string    `json:"local"`          // RFC 3339 with the zone's offset
	Note  string    `json:"note,omitempty"` // a clock change since the previous tick
}

func (t *tool) scheduleCommand() *cobra.Command {
	var timezone, from string
	var n int
	cmd := &cobra.Command{
		Use:   "schedule EXPR",
		Short: "Describe a schedule in words and list its next times",
		Long: `Describe cron text, or an interval such as 15m, in plain words and list the next times, with clock changes: when a
job with this schedule would run. Cron text has five fields, or six with the seconds in front; put it in quotes.`,
		Example: `  lockstep schedule "0 2 * * *"
  lockstep schedule "30 2 * * *" --timezone Europe/Berlin --from 2027-03-26
  lockstep schedule 90s -n 3`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return misuse(cmd, "%s takes one argument, got %d: put the schedule in quotes", cmd.Name(), len(args))
			}
			return oneArg("a schedule")(cmd, args)
		},
	}
	cmd.Flags().IntVarP(&n, "number", "n", 10, "how many times to list")
	cmd.Flags().StringVar(&timezone, "timezone", "UTC", "time `ZONE` of the schedule, such as Europe/Berlin")
	cmd.Flags().StringVar(&from, "from", "", "list the times after this `TIME`, RFC 3339 or in the zone: 2027-03-26T12:00 (default: now)")
	output := outputFlag(cmd, tables, asJSON, asYAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if n < 0 {
			return misuse(cmd, "-n %d is negative", n)
		}
		zone, err := cronspec.LoadZone(timezone)
		if err != nil {
			return exit(exitUsage, err)
		}
		start := time.Now()
		if from != "" {
			if start, err = parseTime(from, zone); err != nil {
				return misuse(cmd, "--from: %v", err)
			}
		}
		schedule, err := parseSchedule(args[0], zone)
		if err != nil {
			return exit(exitUsage, err)
		}
		ticks := nextTicks(schedule, zone, start, n)
		for _, p := range configs.LintSchedule(schedule, start) {
			fmt.Fprintf(t.stderr, "warning: %s [%s]\n", sum("; ", p.Message, p.Hint), p.Code)
		}
		if *output != tables {
			return t.encode(*output, map[string]any{
				"schedule": args[0], "timezone": zone.String(), "words": schedule.Words(), "next": ticks,
			})
		}
		title := sum(": ", fmt.Sprintf("%q %s", args[0], zone), schedule.Words())
		if n == 0 {
			return t.write(title + "\n")
		}
		return t.printTicks(title, ticks, zone, start, from == "")
	}
	return cmd
}

// parseSchedule reads cron text or an interval, also in the forms that people say or write into a
// config: "every 15m", "every: 15m".
func parseSchedule(text string, zone *time.Location) (*cronspec.Schedule, error) {
	length := text
	for _, said := range []string{"every ", "every: "} {
		length = strings.TrimPrefix(length, said)
	}
	if interval, err := time.ParseDuration(length); err == nil {
		return cronspec.Every(interval)
	}
	return cronspec.Parse(text, zone)
}

// parseTime reads an instant: RFC 3339, or local time in a zone.
func parseTime(text string, zone *time.Location) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, text, zone); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time; write 2027-03-26T12:00 or, with an offset, 2027-03-26T12:00:00Z", text)
}

// nextTicks lists at most n ticks after an instant.
func nextTicks(schedule *cronspec.Schedule, zone *time.Location, after time.Time, n int) []tickTime {
	ticks := []tickTime{}
	for at := after; len(ticks) < n; {
		tick := schedule.Next(at)
		if tick.IsZero() {
			break
		}
		ticks = append(ticks, tickTime{tick.UTC(), tick.In(zone).Format(time.RFC3339), clockChange(zone, at, tick)})
		at = tick
	}
	return ticks
}

// clockChange describes how the offset of a zone changes between two instants; "" if it does not.
func clockChange(zone *time.Location, before, after time.Time) string {
	_, old := before.In(zone).Zone()
	_, now := after.In(zone).Zone()
	if old == now {
		return ""
	}
	direction, by := "forward", time.Duration(now-old)*time.Second
	if by < 0 {
		direction, by = "back", -by
	}
	note := fmt.Sprintf("clocks go %s by %s", direction, admin.Age(by))
	change, _ := after.In(zone).ZoneBounds() // the latest change; there may be more between the two
	if change.IsZero() || !change.After(before) {
		return note
	}
	shown := change.UTC().Add(time.Duration(old) * time.Second)
	return fmt.Sprintf("%s on %s at %s", note, shown.Format("Mon 2006-01-02"), shown.Format("15:04"))
}

// printTicks prints a title and ticks in local time and in UTC and, if relative is set, how far
// away they are.
func (t *tool) printTicks(title string, ticks []tickTime, zone *time.Location, now time.Time, relative bool) error {
	if err := t.write(title + "\n"); err != nil {
		return err
	}
	if len(ticks) == 0 {
		return t.write("never again\n")
	}
	layout, noted := "Mon 2006-01-02 15:04", false
	for _, tick := range ticks {
		if tick.Tick.Second() != 0 {
			layout = "Mon 2006-01-02 15:04:05"
		}
		noted = noted || tick.Note != ""
	}
	titles := []string{"local", "UTC"}
	if relative {
		titles = append(titles, "due")
	}
	if noted {
		titles = append(titles, "clocks")
	}
	rows := make([][]string, len(ticks))
	for i, tick := range ticks {
		rows[i] = []string{tick.Tick.In(zone).Format(layout + " MST"), tick.Tick.Format(time.RFC3339)}
		if relative {
			rows[i] = append(rows[i], until(now, tick.Tick))
		}
		if noted {
			rows[i] = append(rows[i], tick.Note)
		}
	}
	return t.table(titles, rows)
}

// parseSpan reads the value of a flag that takes a time span, which must not be negative.
func parseSpan(text string) (time.Duration, error) {
	span, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, errors.New("it takes a duration with its unit, such as 30s, 5m or 1h30m")
	case span < 0:
		return 0, errors.New("it must not be negative")
	}
	return span, nil
}
