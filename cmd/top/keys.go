package top

import (
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"lockstep/scheduler/ledger"
)

// place is what the screen shows, or, as a set, where a key works.
type place int

const (
	overview place = 1 << iota
	runPage
	helpPage

	data     = overview | runPage
	anywhere = overview | runPage | helpPage
)

func (p place) includes(one place) bool { return p&one != 0 }

func (m *model) place() place {
	switch {
	case m.help != nil:
		return helpPage
	case m.run != nil:
		return runPage
	}
	return overview
}

// binding is what some keys do. The help lists all of them.
type binding struct {
	keys  []string // as bubbletea names them
	where place
	help  string
	do    func(m *model, key string) tea.Cmd
}

// bindings returns all keys, besides those of the filter and of questions.
func bindings() []binding {
	// changes is what a key does that only changes the screen
	changes := func(f func(m *model)) func(*model, string) tea.Cmd {
		return func(m *model, _ string) tea.Cmd { f(m); return nil }
	}
	runs := func(cmd tea.Cmd) func(*model, string) tea.Cmd {
		return func(*model, string) tea.Cmd { return cmd }
	}
	scroll := func(by func(rows int) int) func(*model, string) tea.Cmd {
		return changes(func(m *model) { m.scroll(by) })
	}
	act := func(verbs ...Verb) func(*model, string) tea.Cmd {
		return func(m *model, _ string) tea.Cmd { return m.act(verbs...) }
	}
	return []binding{
		{[]string{"q", "ctrl+c"}, anywhere, "leave", runs(tea.Quit)},
		{[]string{"?"}, data, "list the keys", changes(func(m *model) { m.help = &pager{} })},
		{[]string{"esc", "?", "enter"}, helpPage, "leave this list", changes(func(m *model) { m.help = nil })},

		{[]string{"down", "j"}, anywhere, "next line", scroll(func(int) int { return 1 })},
		{[]string{"up", "k"}, anywhere, "previous line", scroll(func(int) int { return -1 })},
		{[]string{"pgdown", "space", "ctrl+f"}, anywhere, "next screen", scroll(func(rows int) int { return rows })},
		{[]string{"pgup", "ctrl+b"}, anywhere, "previous screen", scroll(func(rows int) int { return -rows })},
		{[]string{"home", "g"}, anywhere, "first line", scroll(func(int) int { return -1 << 30 })},
		{[]string{"end", "G"}, anywhere, "last line; a run's screen stays there as its output grows", scroll(func(int) int { return 1 << 30 })},

		{[]string{"enter"}, overview, "show the run; on a worker or a job: filter by it",
			func(m *model, _ string) tea.Cmd { return m.open() }},
		{[]string{"/"}, overview, "filter: show lines with all of these words", changes(func(m *model) { m.typing = true })},
		{[]string{"esc"}, overview, "remove the filter", changes(func(m *model) { m.filter = line{}; m.arrange() })},
		{[]string{"esc", "backspace"}, runPage, "back to the overview", func(m *model, _ string) tea.Cmd {
			m.run = nil
			return m.readNow()
		}},
		{[]string{"tab", "right"}, overview, "next table", changes(func(m *model) { m.focus = (m.focus + 1) % len(m.sections) })},
		{[]string{"shift+tab", "left"}, overview, "previous table",
			changes(func(m *model) { m.focus = (m.focus + len(m.sections) - 1) % len(m.sections) })},
		{[]string{"1", "2", "3", "4", "5", "6"}, overview, "a table by its number",
			func(m *model, key string) tea.Cmd { m.focus = int(key[0] - '1'); return nil }},
		{[]string{"z"}, overview, "show only this table, or all", changes(func(m *model) { m.only = !m.only })},
		{[]string{"s"}, overview, "sort by the next column",
			changes(func(m *model) { m.say(ledger.ToneIdle, "sorted "+m.sections[m.focus].sortNext()) })},
		{[]string{"S"}, overview, "reverse the order", changes(func(m *model) { m.sections[m.focus].reverse() })},

		{[]string{"c"}, data, "cancel the run", act(Cancel)},
		{[]string{"r"}, data, "retry the run", act(Retry)},
		{[]string{"x"}, data, "release the locks of a hold, when its work has ended", act(Release)},
		{[]string{"X"}, data, "release them by force, without waiting for that", act(Force)},
		{[]string{"p"}, data, "pause the job or a queue", act(PauseJob, PauseQueue)},
		{[]string{"u"}, data, "resume (unpause) the job or a queue", act(ResumeJob, ResumeQueue)},
		{[]string{"d"}, overview, "drain the worker", act(Drain)},

		{[]string{"R"}, data, "read now", func(m *model, _ string) tea.Cmd { return m.readNow() }},
		{[]string{"ctrl+l"}, anywhere, "draw the screen again", runs(tea.ClearScreen)},
		{[]string{"ctrl+z"}, anywhere, "suspend; fg continues", runs(tea.Suspend)},
	}
}

// helpLines lists the keys, in lines of a width.
func helpLines(cells int) []string {
	const indent = 21
	lines := []string{"KEYS", ""}
	for _, b := range bindings() {
		help := b.help
		if b.where == runPage {
			help += " (from a run)"
		}
		keys := strings.Join(b.keys, " ")
		for _, part := range wrap(help, max(1, cells-indent)) {
			lines = append(lines, cut(fit(keys, indent)+part, cells))
			keys = ""
		}
	}
	return append(append(lines, ""), wrap("An act says what it does, takes a reason, and is kept in the audit, as lockstep audit lists it. "+
		"Esc leaves a question; nothing is done then.", cells)...)
}

// scroll moves the selection, or the text of a page. by gets the number of rows on the screen.
func (m *model) scroll(by func(rows int) int) {
	switch m.place() {
	case helpPage:
		m.help.top += by(m.body())
	case runPage:
		m.run.scroll(by(m.body()), m.body())
	default:
		m.sections[m.focus].move(by(max(1, m.heights()[m.focus]-1)))
	}
}

// open shows the selected run. On a worker or a job, it filters by the name instead.
func (m *model) open() tea.Cmd {
	t := m.target()
	switch {
	case t.Run != "":
		m.run, m.nextFollow = &runScreen{id: t.Run, from: t}, time.Time{}
		return m.readNow()
	case t.Worker != "":
		m.filter.text = string(t.Worker)
	case t.Job != "":
		m.filter.text = t.Job
	case t.Lock != "":
		m.say(ledger.ToneBad, "no run has this hold: lockstep lock show "+t.Lock)
	default:
		m.say(ledger.ToneBad, "select a line first")
	}
	m.arrange()
	return nil
}

// act begins the one of some acts that the target allows, or lets the user choose among several.
func (m *model) act(verbs ...Verb) tea.Cmd {
	t := m.target()
	var choices []choice
	for _, verb := range verbs {
		choices = append(choices, choicesOf(verb, t)...)
	}
	switch len(choices) {
	case 0:
		m.say(ledger.ToneBad, string(verbs[0])+": "+needs(verbs[0]))
		return nil
	case 1:
		return m.prepare(choices[0])
	}
	m.dialog = &dialog{choices: choices[:min(len(choices), 9)]}
	return nil
}

// choicesOf returns the acts of a kind that a target allows.
func choicesOf(verb Verb, t Target) []choice {
	switch verb {
	case Cancel, Retry:
		if t.State.Final() != (verb == Retry) {
			return nil
		}
	case PauseQueue, ResumeQueue:
		var choices []choice
		for _, queue := range t.Queues {
			one := t
			one.Queues = []string{queue}
			choices = append(choices, choice{verb, one})
		}
		return choices
	case Release, Force, PauseJob, ResumeJob, Drain:
	}
	if t.object(verb) == "" {
		return nil
	}
	return []choice{{verb, t}}
}

// needs explains what to select for an act.
func needs(verb Verb) string {
	switch verb {
	case Cancel:
		return "select a run that has not ended"
	case Retry:
		return "select a run that has ended (table 5)"
	case Release, Force:
		return "select a hold (table 2)"
	case Drain:
		return "select a worker (table 1)"
	case PauseJob, ResumeJob, PauseQueue, ResumeQueue:
	}
	return "select a run, a job or a worker"
}

// does applies a key by the table of keys.
func (m *model) does(key string) tea.Cmd {
	for _, b := range m.bindings {
		if b.where.includes(m.place()) && slices.Contains(b.keys, key) {
			m.said = ""
			return b.do(m, key)
		}
	}
	return nil
}
