package top

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/term"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

// Fleet is what the screen shows, and what its acts change.
type Fleet interface {
	// See reads the overview.
	See(ctx context.Context) (*Seen, error)
	// Run reads a run. The error is [ledger.ErrUnknown] if there is none.
	Run(ctx context.Context, id jobs.RunID) (*Detail, error)
	// Follow returns a follower of a run. It reads nothing yet.
	Follow(id jobs.RunID) Follower
	// Prepare checks an act against the current state, and changes nothing.
	Prepare(ctx context.Context, verb Verb, on Target) (*Act, error)
}

// Seen is one read of the overview. It must be treated as read-only.
type Seen struct {
	Snapshot *admin.Snapshot
	Overview *admin.Overview
}

// Follower follows what a run prints while it runs: an [admin.Follower]. As long as Next is not
// called, nothing is asked of the run's worker.
type Follower interface {
	// Next returns what has happened since the last call. The events are valid even with an error.
	Next(ctx context.Context) ([]admin.FollowEvent, error)
	// Ended reports whether the end of the run was returned.
	Ended() bool
}

// Detail is one read of a run.
type Detail struct {
	At       time.Time // by the clock of Redis
	Run      *admin.Run
	Output   string          // the end of its last attempt's output
	Snapshot *admin.Snapshot // nil if the run neither holds locks nor waits for some
}

// Verb is a kind of act.
type Verb string

// The acts, as the questions name them.
const (
	Cancel      Verb = "cancel"
	Retry       Verb = "retry"
	Release     Verb = "release"
	Force       Verb = "release by force"
	PauseJob    Verb = "pause job"
	ResumeJob   Verb = "resume job"
	PauseQueue  Verb = "pause queue"
	ResumeQueue Verb = "resume queue"
	Drain       Verb = "drain"
)

// Target is what a row is about. Fields that do not apply to it are zero.
type Target struct {
	Run    jobs.RunID
	State  ledger.State // of Run
	Job    string
	Queues []string // of Run, Job or Worker
	Lock   string   // one lock of the hold with Token
	Token  locks.Token
	Worker locks.SessionID
}

// object returns the thing that an act changes.
func (t Target) object(verb Verb) string {
	switch verb {
	case Cancel, Retry:
		return string(t.Run)
	case Release, Force:
		return t.Lock
	case PauseJob, ResumeJob:
		return t.Job
	case PauseQueue, ResumeQueue:
		return strings.Join(t.Queues, " ") // one, when the act is chosen
	case Drain:
		return string(t.Worker)
	}
	return ""
}

// Act is an act that is prepared, and not done yet.
type Act struct {
	Effect string // what it does, as a clause
	Asks   bool   // the user must confirm it
	Reason bool   // it needs a reason

	// Do acts, for a reason that may be "". It returns what it did.
	Do func(ctx context.Context, why string) (said string, err error)
}

// Options are the choices of a user.
type Options struct {
	Interval time.Duration // between the beginnings of two reads
	Colors   bool
	Where    string // which Redis and namespace, for the first line
	In       io.Reader
	Out      io.Writer
}

// IsTerminal reports whether a stream is a terminal, on which [Run] can draw.
func IsTerminal(stream any) bool {
	file, ok := stream.(term.File)
	return ok && term.IsTerminal(file.Fd())
}

// Run shows the overview until the user leaves or ctx ends. Then the terminal is as it was before.
func Run(ctx context.Context, fleet Fleet, o Options) error {
	m := newModel(fleet, o, background(ctx))
	m.tick = func() tea.Cmd { return tea.Tick(time.Second, func(t time.Time) tea.Msg { return tickMsg(t) }) }
	options := []tea.ProgramOption{tea.WithContext(ctx), tea.WithOutput(o.Out), tea.WithoutSignalHandler()}
	if IsTerminal(o.In) { // otherwise, the program opens the terminal itself
		options = append(options, tea.WithInput(o.In))
	}
	if _, err := tea.NewProgram(m, options...).Run(); err != nil {
		return fmt.Errorf("show the overview: %w", err)
	}
	return nil
}

// background returns a function that makes commands: they run beside the screen, each with a limit,
// and end with ctx.
func background(ctx context.Context) func(time.Duration, func(context.Context) tea.Msg) tea.Cmd {
	return func(limit time.Duration, f func(context.Context) tea.Msg) tea.Cmd {
		return func() tea.Msg {
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			return f(ctx)
		}
	}
}

// Table is a section as text, with all of its rows.
type Table struct {
	Titles []string // the first one names the section, with the number of its rows
	Rows   [][]string
	None   string // what to say when there are no rows
}

// Tables returns the sections of the overview. Their texts are safe to print.
func Tables(seen *Seen) []Table {
	var tables []Table
	for _, s := range newSections() {
		s.take(seen)
		s.arrange(nil)
		table := Table{None: s.title() + ": " + s.empty()}
		table.Titles, table.Rows = s.table()
		tables = append(tables, table)
	}
	return tables
}

// Totals returns the numbers of the overview, the most important first.
func Totals(o *admin.Overview) []string {
	jobs := " jobs"
	if o.Jobs == 1 {
		jobs = " job"
	}
	return []string{
		fmt.Sprintf("%d/%d workers ready", o.Ready, o.Live), fmt.Sprintf("%d/%d slots busy", o.Busy, o.Slots),
		fmt.Sprintf("%d waiting", o.WaitCount()), outstanding(o) + " not running",
		strconv.Itoa(o.Jobs) + jobs,
	}
}

// Alarms returns what needs attention before everything else. The texts are safe to print.
func Alarms(o *admin.Overview) []string {
	var alarms []string
	for _, unable := range o.Unable {
		alarms = append(alarms, clean("no worker can do "+unable.String()))
	}
	if len(o.Disputed) > 0 {
		alarms = append(alarms, clean("queues belong to another namespace while workers serve them: "+strings.Join(o.Disputed, ", ")+
			" (see: lockstep doctor)"))
	}
	return alarms
}
