package cmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/scheduler/admin"
	"lockstep/scheduler/cronspec"
	"lockstep/scheduler/ledger"
)

func (t *tool) jobCommand() *cobra.Command {
	return group("job", "Inspect jobs and run them", "Jobs as the workers have registered them: their schedules, their ticks, their last runs.",
		t.jobLsCommand(), t.jobShowCommand(), t.jobNextCommand(), t.jobHistoryCommand(), t.jobExplainCommand(), t.jobRunCommand(),
		t.jobPauseCommand(), t.jobResumeCommand(), t.jobReplayCommand(), t.jobSkipCommand(), t.jobForgetCommand())
}

// reads makes the RunE of a command that connects, reads and prints.
func (t *tool) reads(f func(ctx context.Context, conn *connection, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) (err error) {
		conn, err := t.connect(cmd)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, conn.Close()) }()
		return conn.away(f(cmd.Context(), conn, args))
	}
}

// limitFlag adds --limit to a command; 0 means no limit.
func limitFlag(cmd *cobra.Command) *int {
	var limit int
	cmd.Flags().Func("limit", "print at most `N` (default: all)", func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return errors.New("it takes a whole number, 1 or more")
		}
		limit = n
		return nil
	})
	return &limit
}

// first returns at most limit items; 0 means all.
func first[T any](items []T, limit int) []T {
	if limit > 0 {
		return items[:min(limit, len(items))]
	}
	return items
}

func (t *tool) jobLsCommand() *cobra.Command {
	var note string
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List all jobs",
		Long: `List all jobs. NOTED shows what keeps a job from working as usual:

  late          it has had no success for longer than its max_silence
  paused        its ticks are skipped
  queue paused  its runs do not start
  drifted       workers carry different definitions of it: fine while a new config is rolled out
  no worker carries it
                it was removed from the config, and its ticks are missed; lockstep job forget removes
                its data
  no worker serves its queue
                its runs do not start: start a worker with that queue, or add it to worker.queues

--state and --error go by the last run.`,
		Args: noArgs,
	}
	cmd.Flags().StringVar(&note, "note", "", "list only jobs with this `NOTE`")
	flags := filterFlags(cmd, admin.JobFilters, admin.Outcomes()[1:]...)
	return list(t, cmd, t.jobView, func(ctx context.Context, conn *connection, _ []string, limit int) ([]admin.Job, error) {
		filter, err := flags.read(ctx, cmd, conn)
		if err != nil {
			return nil, err
		}
		filter.Limit = limit
		jobs, err := conn.reader.Jobs(ctx, filter, note)
		return jobs, misused(cmd, err)
	})
}

func (t *tool) jobView(now time.Time) view[admin.Job] {
	return view[admin.Job]{
		none: "no jobs: no worker has registered any yet",
		name: func(j admin.Job) string { return j.Name },
		columns: []column[admin.Job]{
			{title: "job", cell: func(j admin.Job) string { return j.Name }},
			{title: "schedule", cell: func(j admin.Job) string { return trigger(&j) }},
			{title: "next", cell: func(j admin.Job) string {
				return until(now, j.NextTick.Time)
			}},
			{title: "last run", cell: func(j admin.Job) string {
				if j.LastRun == nil {
					return ""
				}
				return t.state(string(j.LastRun.State)) + " " + ago(now, j.LastRun.FinishedAt.Time)
			}},
			{title: "running", cell: func(j admin.Job) string { return strconv.Itoa(j.Running) }},
			{title: "outstanding", cell: func(j admin.Job) string { return strconv.Itoa(j.Outstanding) }},
			{title: "noted", cell: func(j admin.Job) string {
				notes := j.Notes()
				for i := range notes {
					notes[i] = t.state(notes[i])
				}
				return strings.Join(notes, ", ")
			}},
			{title: "words", wide: true, cell: func(j admin.Job) string { return string(j.Words) }},
			{title: "kind", wide: true, cell: func(j admin.Job) string { return j.Kind }},
			{title: "queue", wide: true, cell: func(j admin.Job) string { return j.Queue }},
			{title: "locks", wide: true, cell: func(j admin.Job) string { return strings.Join(j.Locks, " ") }},
			{title: "description", wide: true, cell: func(j admin.Job) string { return string(j.Description) }},
		},
	}
}

// trigger formats the trigger of a job as its definition has it; "" for none.
func trigger(j *admin.Job) string {
	switch {
	case j.Every != nil:
		return "every " + admin.Age(time.Duration(*j.Every))
	case j.Schedule != "" && j.Timezone != "" && j.Timezone != "UTC":
		return fmt.Sprintf("%s %s", j.Schedule, j.Timezone)
	}
	return string(j.Schedule)
}

func (t *tool) jobShowCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "show JOB", Short: "Show a job and its state", Args: oneArg("a JOB")}
	reader := secretArgsFlag(cmd)
	return show(t, cmd, func(ctx context.Context, conn *connection, name string) (*admin.Job, error) {
		job, err := reader(conn).Job(ctx, name)
		return job, conn.noJob(ctx, name, err)
	}, func(job *admin.Job, now time.Time) error { return t.facts(t.jobFacts(job, now)) })
}

// noJob explains an error that means that no job has this name. It suggests similar names. It
// returns any other error, or nil, as it is.
func (c *connection) noJob(ctx context.Context, name string, err error) error {
	if !errors.Is(err, ledger.ErrUnknown) {
		return err
	}
	known, readErr := c.jobNames(ctx)
	if readErr != nil {
		return readErr
	}
	return unknown("job", name, known)
}

// zone returns the time zone of a job.
func (c *connection) zone(ctx context.Context, job string) (*time.Location, error) {
	record, err := c.ledger.Job(ctx, job)
	if err != nil {
		return nil, c.noJob(ctx, job, err)
	}
	return cronspec.LoadZone(record.Job.Timezone)
}

func (t *tool) jobFacts(j *admin.Job, now time.Time) []fact {
	schedule := trigger(j)
	if j.Words != "" && j.Every == nil {
		schedule += " (" + string(j.Words) + ")"
	}
	facts := []fact{
		{"job", j.Name},
		{"description", string(j.Description)},
		{"schedule", schedule},
		{"problem", string(j.Problem)},
		{"paused", string(j.Paused)},
		{"next tick", withAge(j.NextTick.String(), until(now, j.NextTick.Time))},
		{j.Kind, j.Work},
		{"args", compactJSON(j.Args)},
		{"queue", queueFact(j)},
		{"drifted", map[bool]string{true: "workers also carry another definition of it: lockstep doctor shows which"}[j.Drifted]},
		{"carried", map[bool]string{true: "no worker carries it; lockstep job forget " + j.Name + " removes its data"}[!j.Carried]},
	}
	facts = append(facts, policyFacts(&j.Defined)...)
	if schedule != "" {
		facts = append(facts, fact{"decided", withAge(j.Cursor.String(), ago(now, j.Cursor.Time))})
	}
	if j.MaxSilence != nil {
		state := "in time"
		if j.Late {
			state = "late"
		}
		facts = append(facts, fact{"max silence", fmt.Sprintf("%s: %s", admin.Age(time.Duration(*j.MaxSilence)), state)})
	}
	for _, target := range j.Notify {
		facts = append(facts, fact{"notifies", fmt.Sprintf("%s: %s", target.Target, eventWords(target.On))})
	}
	facts = append(facts, fact{"last success", ago(now, j.LastSuccess.Time)})
	facts = append(facts, fact{"runs", fmt.Sprintf("%d running, %d outstanding", j.Running, j.Outstanding)})
	if last := j.LastRun; last != nil {
		facts = append(facts, fact{"last run", fmt.Sprintf("%s %s %s", last.ID, t.state(string(last.State)), ago(now, last.FinishedAt.Time))})
	}
	return facts
}

// policyFacts describes the locks and policies of a definition.
func policyFacts(d *admin.Defined) []fact {
	facts := []fact{{"locks", strings.Join(d.Locks, " ")}}
	if d.Timeout != nil {
		facts = append(facts, fact{"timeout", admin.Age(time.Duration(*d.Timeout))})
	}
	retry := "none"
	if d.Retry.Max > 0 {
		retry = fmt.Sprintf("%d times, %s from %s to %s", d.Retry.Max, d.Retry.Backoff, admin.Age(time.Duration(d.Retry.Initial)), admin.Age(time.Duration(d.Retry.MaxDelay)))
	}
	facts = append(facts, fact{"retry", retry},
		fact{"on crash", fmt.Sprintf("%s, at most %d crashes", d.OnCrash, d.MaxCrashes)})
	if d.Schedule != "" || d.Every != nil {
		facts = append(facts, fact{"overlap", string(d.Overlap)}, fact{"on missed", string(d.OnMissed)})
	}
	if d.StartDeadline != nil {
		facts = append(facts, fact{"start deadline", admin.Age(time.Duration(*d.StartDeadline)) + " after the tick"})
	}
	if d.Jitter != nil {
		facts = append(facts, fact{"jitter", "up to " + admin.Age(time.Duration(*d.Jitter))})
	}
	return facts
}

func queueFact(j *admin.Job) string {
	var notes []string
	if j.QueuePaused {
		notes = append(notes, "paused")
	}
	if !j.QueueServed {
		notes = append(notes, "no worker serves it")
	}
	return withAge(j.Queue, strings.Join(notes, "; "))
}

// withAge appends an age, or a remark, in parentheses.
func withAge(s, age string) string {
	if s == "" || age == "" {
		return s
	}
	return fmt.Sprintf("%s (%s)", s, age)
}

// compactJSON formats arguments; "" for none.
func compactJSON(text []byte) string {
	if string(text) == "null" || string(text) == "{}" {
		return ""
	}
	return string(text)
}

func (t *tool) jobNextCommand() *cobra.Command {
	var n int
	var until, queue string
	cmd := &cobra.Command{
		Use: "next [JOB]", Short: "List the next ticks of a job, or of all jobs",
		Long: `List the next ticks of a job, or of all jobs, the soonest first. --until lists all ticks before a time, and marks
those of paused jobs, which are skipped.`,
		Example: `  lockstep job next --until 1h
  lockstep job next nightly-backup -n 3`,
		Args: atMostOneArg("a JOB"),
	}
	cmd.Flags().IntVarP(&n, "number", "n", 0, "how many `TICKS` of each job (default: 10 for one job, 1 for all)")
	cmd.Flags().StringVar(&until, "until", "", "all ticks before this `TIME`: 2027-03-26T12:00, or 90m, which is 90 minutes from now")
	cmd.Flags().StringVar(&queue, "queue", "", "with --until: only ticks of jobs of this `QUEUE`")
	zones := make(map[string]*time.Location) // of the listed jobs
	show := func(time.Time) view[admin.NextTick] { return nextView(zones) }
	return list(t, cmd, show, func(ctx context.Context, conn *connection, args []string, limit int) ([]admin.NextTick, error) {
		job, count := "", 1
		if len(args) > 0 {
			job, count = args[0], 10
		}
		switch {
		case n < 0:
			return nil, misuse(cmd, "-n %d is negative", n)
		case n > 0 && until != "":
			return nil, misuse(cmd, "-n and --until both bound the list; give one of them")
		case queue != "" && until == "":
			return nil, misuse(cmd, "--queue is for --until")
		case n > 0:
			count = n
		}
		var ticks []admin.NextTick
		var err error
		if until != "" {
			var filter admin.Filter
			filter, err = conn.reader.ReadNextFilter(ctx, func(name string) string {
				return map[string]string{"job": job, "queue": queue, "until": localTime(until)}[name]
			})
			filter.Limit = limit
			if err == nil {
				ticks, err = conn.reader.NextUntil(ctx, filter)
			}
			err = misused(cmd, err)
		} else {
			ticks, err = conn.reader.Next(ctx, job, count)
		}
		if err != nil {
			return nil, conn.noJob(ctx, job, err)
		}
		records, err := conn.ledger.Jobs(ctx)
		for _, record := range records {
			if zone, err := cronspec.LoadZone(record.Job.Timezone); err == nil {
				zones[record.Job.Name] = zone
			}
		}
		return ticks, err
	})
}

// nextView shows UTC for a job without a zone.
func nextView(zones map[string]*time.Location) view[admin.NextTick] {
	return view[admin.NextTick]{
		none: "no ticks to come",
		name: func(n admin.NextTick) string { return n.Tick.String() },
		columns: []column[admin.NextTick]{
			{title: "job", cell: func(n admin.NextTick) string { return n.Job }},
			{title: "local", cell: func(n admin.NextTick) string {
				return n.Tick.In(cmp.Or(zones[n.Job], time.UTC)).Format("Mon 2006-01-02 15:04:05 MST")
			}},
			{title: "UTC", cell: func(n admin.NextTick) string { return n.Tick.String() }},
			{title: "due", cell: func(n admin.NextTick) string {
				due := "in " + admin.Age(time.Duration(n.In))
				if n.Paused {
					due += ", but its job is paused"
				}
				return due
			}},
		},
	}
}

func (t *tool) jobHistoryCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "history JOB", Short: "List the ticks of a job and their outcomes",
		Long: `List the ticks of a job and their outcomes, including skipped and missed ticks, with the reasons. Ticks with an
outstanding run come first, then the others, the most recently settled first. --since and --until go by the time at
which a tick was due.`,
		Args: oneArg("a JOB"),
	}
	flags := filterFlags(cmd, admin.TickFilters, admin.Outcomes()...)
	return list(t, cmd, t.tickView, func(ctx context.Context, conn *connection, args []string, limit int) ([]admin.Tick, error) {
		filter, err := flags.read(ctx, cmd, conn)
		if err != nil {
			return nil, err
		}
		filter.Job, filter.Limit = args[0], limit
		ticks, err := conn.reader.TicksOf(ctx, filter)
		return ticks, conn.noJob(ctx, args[0], misused(cmd, err))
	})
}

func (t *tool) tickView(now time.Time) view[admin.Tick] {
	return view[admin.Tick]{
		none: "no ticks yet",
		name: func(k admin.Tick) string { return k.Tick.String() },
		columns: []column[admin.Tick]{
			{title: "tick", cell: func(k admin.Tick) string {
				if !k.Upto.IsZero() {
					return k.Tick.String() + " to " + k.Upto.String()
				}
				return k.Tick.String()
			}},
			{title: "due", cell: func(k admin.Tick) string { return ago(now, k.Tick.Time) }},
			{title: "outcome", cell: func(k admin.Tick) string { return t.state(k.Outcome) }},
			{title: "reason", cell: func(k admin.Tick) string { return string(k.Reason) }},
			{title: "decided by", wide: true, cell: func(k admin.Tick) string { return string(k.DecidedBy) }},
			{title: "decided after", wide: true, cell: func(k admin.Tick) string {
				return admin.Span(k.DecidedAt.Sub(k.Tick.Time))
			}},
			{title: "run", wide: true, cell: func(k admin.Tick) string { return string(k.RunID) }},
		},
	}
}

// sum joins the parts that are not empty.
func sum(sep string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), sep)
}
