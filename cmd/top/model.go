package top

import (
	"context"
	"errors"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"lockstep/jobs"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

const (
	readLimit = 10 * time.Second // how long one read of Redis may take
	actLimit  = 30 * time.Second
	// the next read begins no sooner than after this many times what the last one took
	keepFactor = 5
	keepAtMost = 30 * time.Second

	// at least, between the beginnings of two calls of a follower
	followEvery = 500 * time.Millisecond
)

// model is everything that the screen depends on.
type model struct {
	fleet Fleet
	o     Options
	// makes a command that runs beside the screen
	beside func(limit time.Duration, f func(context.Context) tea.Msg) tea.Cmd
	tick   func() tea.Cmd // sends a tickMsg in a second

	cells, rows int       // size of the terminal; 0: not known yet
	now         time.Time // when the last message with a time was sent

	seen    *Seen     // the last overview; nil: none yet
	seenAt  time.Time // when its read began
	problem string    // why the last read failed; "" if it did not
	reading bool      // a read is in progress
	next    time.Time // when the next one may begin

	following  bool      // a call of a follower is in progress
	nextFollow time.Time // when the next call may begin

	sections []section
	focus    int
	only     bool // shows only the focused section

	filter line
	typing bool // keys go to the filter

	run  *runScreen // nil: the overview
	help *pager     // nil: not shown

	bindings []binding
	dialog   *dialog // nil: none
	said     string  // how the last act ended, or what a key did; until the next key
	tone     ledger.Tone
}

func newModel(fleet Fleet, o Options, beside func(time.Duration, func(context.Context) tea.Msg) tea.Cmd) *model {
	return &model{fleet: fleet, o: o, beside: beside, sections: newSections(), bindings: bindings()}
}

// The messages besides those of package bubbletea.
type (
	tickMsg time.Time

	// a read of the overview has ended
	seenMsg struct {
		took
		seen *Seen
		err  error
	}

	// a read of a run has ended
	detailMsg struct {
		took
		id     jobs.RunID
		detail *Detail
		err    error
	}

	// a call of a follower has ended
	followedMsg struct {
		took
		follower Follower
		events   []admin.FollowEvent
		err      error
	}

	// an act is prepared
	preparedMsg struct {
		dialog *dialog
		act    *Act
		err    error
	}

	// an act has ended
	doneMsg struct {
		dialog *dialog
		said   string
		err    error
	}
)

// took is when something began and ended.
type took struct{ began, ended time.Time }

// rest returns how long after it began the next of its kind may begin.
func (t took) rest() time.Duration { return min(keepFactor*t.ended.Sub(t.began), keepAtMost) }

// Init starts the clock and the first read.
func (m *model) Init() tea.Cmd { return tea.Batch(m.tick(), m.read()) }

// Update applies a message.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	cmd := m.apply(msg)
	m.settle()
	return m, cmd
}

func (m *model) apply(msg tea.Msg) tea.Cmd {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.cells, m.rows = msg.Width, msg.Height
	case tea.KeyPressMsg:
		return m.press(msg.String(), msg.Text)
	case tea.PasteMsg:
		m.paste(msg.Content)
	case tickMsg:
		m.now = time.Time(msg)
		return tea.Batch(m.tick(), m.read(), m.follow())
	case seenMsg:
		m.readEnded(msg.took, msg.err)
		if msg.err == nil {
			m.seen, m.seenAt = msg.seen, msg.began
			for _, s := range m.sections {
				s.take(m.seen)
			}
			m.arrange()
		}
		return m.readOther(m.run == nil)
	case detailMsg:
		if errors.Is(msg.err, ledger.ErrUnknown) {
			m.readEnded(msg.took, nil)
		} else {
			m.readEnded(msg.took, msg.err)
		}
		shown := m.run != nil && m.run.id == msg.id
		if shown {
			m.run.take(msg)
		}
		return tea.Batch(m.readOther(shown), m.follow())
	case followedMsg:
		m.followed(msg)
	case preparedMsg:
		if msg.dialog == m.dialog {
			m.prepared(msg)
		}
	case doneMsg:
		m.done(msg)
		return m.readNow()
	}
	return nil
}

// read begins a read of what the screen shows, unless one is in progress or it is too early.
func (m *model) read() tea.Cmd {
	if m.reading || m.now.Before(m.next) {
		return nil
	}
	m.reading = true
	fleet := m.fleet
	if m.run != nil {
		id := m.run.id
		return m.beside(readLimit, func(ctx context.Context) tea.Msg {
			began := time.Now()
			detail, err := fleet.Run(ctx, id)
			return detailMsg{took{began, time.Now()}, id, detail, err}
		})
	}
	return m.beside(readLimit, func(ctx context.Context) tea.Msg {
		began := time.Now()
		seen, err := fleet.See(ctx)
		return seenMsg{took{began, time.Now()}, seen, err}
	})
}

// follow asks what the shown run has printed, unless it has ended, a call is in progress, or it is
// too early.
func (m *model) follow() tea.Cmd {
	if m.run == nil || m.following || m.now.Before(m.nextFollow) {
		return nil
	}
	follower := m.run.following(m.fleet)
	if follower == nil {
		return nil
	}
	m.following = true
	return m.beside(readLimit, func(ctx context.Context) tea.Msg {
		began := time.Now()
		events, err := follower.Next(ctx)
		return followedMsg{took{began, time.Now()}, follower, events, err}
	})
}

func (m *model) followed(msg followedMsg) {
	m.following, m.nextFollow = false, msg.began.Add(max(followEvery, msg.rest()))
	if m.run != nil && m.run.follower == msg.follower {
		m.run.print(msg)
	}
}

// readNow begins a read as soon as none is in progress.
func (m *model) readNow() tea.Cmd {
	m.next = time.Time{}
	return m.read()
}

// readOther begins a read at once if the one that has ended was not of what the screen shows now.
func (m *model) readOther(shown bool) tea.Cmd {
	if shown || m.problem != "" {
		return nil
	}
	return m.readNow()
}

func (m *model) readEnded(t took, err error) {
	m.reading, m.problem = false, ""
	if err != nil {
		m.problem = err.Error()
	}
	if t.ended.After(m.now) {
		m.now = t.ended
	}
	m.next = t.began.Add(max(m.o.Interval, t.rest()))
}

// arrange applies the filter to all sections.
func (m *model) arrange() {
	words := strings.Fields(strings.ToLower(m.filter.text))
	for _, s := range m.sections {
		s.arrange(words)
	}
}

// say shows a line until the next key: what was done, what failed, or else a note.
func (m *model) say(tone ledger.Tone, said string) { m.said, m.tone = clean(said), tone }

// paste adds a text to what the user types.
func (m *model) paste(text string) {
	switch {
	case m.dialog != nil:
		m.dialog.paste(text)
	case m.typing:
		m.filter.add(text)
		m.arrange()
	}
}

// press applies a key: to what the user types, or by the table of keys.
func (m *model) press(key, text string) tea.Cmd {
	switch {
	case key == "ctrl+c":
		return tea.Quit
	case m.dialog != nil:
		return m.dialog.press(m, key, text)
	case m.typing:
		switch key {
		case "enter":
			m.typing = false
		case "esc":
			m.typing, m.filter = false, line{}
			m.arrange()
		default:
			if m.filter.edit(key, text) {
				m.arrange()
			}
		}
		return nil
	}
	return m.does(key)
}

// target returns what the keys act on: the selected row, or the shown run.
func (m *model) target() Target {
	if m.run != nil {
		return m.run.target()
	}
	return m.sections[m.focus].target()
}
