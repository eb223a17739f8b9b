package top

import (
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

// The smallest terminal that the screen fits into.
const (
	leastCells = 40
	leastRows  = 10
)

// View draws the screen.
func (m *model) View() tea.View {
	view := tea.NewView(strings.Join(m.lines(), "\n"))
	view.AltScreen = true
	return view
}

func (m *model) palette() palette { return palette(m.o.Colors) }

// lines draws as many lines as the terminal has, none wider than it.
func (m *model) lines() []string {
	switch {
	case m.cells == 0:
		return nil // the size follows
	case m.cells < leastCells || m.rows < leastRows:
		return []string{cut(fmt.Sprintf("too small: %dx%d needed", leastCells, leastRows), m.cells)}
	}
	header, footer, body := m.header(), m.footer(), m.body()
	lines := make([]string, 0, m.rows)
	lines = append(lines, header...)
	switch m.place() {
	case helpPage:
		lines = append(lines, m.help.visible(body)...)
	case runPage:
		lines = append(lines, m.run.visible(body)...)
	default:
		lines = append(lines, m.tables()...)
	}
	lines = lines[:min(len(lines), len(header)+body)]
	for len(lines) < len(header)+body {
		lines = append(lines, "")
	}
	lines = append(lines, footer...)
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return lines[:min(len(lines), m.rows)]
}

// body returns the number of lines between header and footer.
func (m *model) body() int { return max(1, m.rows-len(m.header())-len(m.footer())) }

// settle scrolls each part so that its selection is on the screen.
func (m *model) settle() {
	body := m.body()
	if m.help != nil {
		m.help.lines = helpLines(m.cells)
		m.help.settle(body)
	}
	if m.run != nil {
		m.run.layout(m.palette(), max(1, m.cells), body)
	}
	heights := m.heights()
	for i, s := range m.sections {
		s.settle(max(1, heights[i]-1))
	}
}

// header says what is shown, how old it is, and what is wrong.
func (m *model) header() []string {
	p := m.palette()
	at, read, what := time.Time{}, m.seenAt, "lockstep top  "+m.o.Where
	if m.seen != nil {
		at = m.seen.Overview.At.Time
	}
	if m.run != nil {
		at, read, what = time.Time{}, m.run.at, string(m.run.id)
		if m.run.detail != nil {
			at = m.run.detail.At
		}
	}
	as, old := "", time.Duration(0)
	if !at.IsZero() {
		as = "as of " + at.UTC().Format("15:04:05") + " UTC"
		if old = m.now.Sub(read); old >= 2*time.Second {
			as += ", " + admin.Age(old) + " ago"
		}
	}
	left := cell(what, max(10, m.cells-width(as)-gap))
	lines := []string{p.paint(bold, cut(left+strings.Repeat(" ", max(gap, m.cells-width(left)-width(as)))+as, m.cells))}
	if m.run == nil && m.seen != nil {
		lines = append(lines, joined(Totals(m.seen.Overview), m.cells))
	}
	if m.problem != "" {
		text := "✗ Redis cannot be read: " + m.problem
		if at.IsZero() {
			text += ". Nothing has been read yet."
		} else {
			text += ". The data below is " + admin.Age(old) + " old."
		}
		for i, line := range wrap(clean(text), m.cells) {
			if i == maxBanner-1 {
				line = cut(line+"…", m.cells)
			}
			if i < maxBanner {
				lines = append(lines, p.paint(red, cut(line, m.cells)))
			}
		}
	}
	if m.run == nil && m.seen != nil {
		for i, alarm := range Alarms(m.seen.Overview) {
			if i < maxAlarms {
				lines = append(lines, p.paint(red, cut("✗ "+alarm, m.cells)))
			}
		}
	}
	if m.run == nil && m.seen == nil && m.problem == "" {
		lines = append(lines, "Reading ...")
	}
	return lines
}

const (
	maxBanner = 3 // lines about an unreachable Redis
	maxAlarms = 2
)

// footer is what the user is asked or told, and the most important keys.
func (m *model) footer() []string {
	p := m.palette()
	if m.dialog != nil {
		lines := m.dialog.lines(p, m.cells)
		return lines[max(0, len(lines)-(m.rows-3)):] // what the user types is at the end
	}
	news := ""
	switch {
	case m.typing:
		news = "/" + m.filter.show(m.cells-1)
	case m.said != "":
		sign := map[ledger.Tone]string{ledger.ToneGood: "✓ ", ledger.ToneBad: "✗ "}[m.tone]
		news = p.paint(styleOf(m.tone), cell(sign+m.said, m.cells))
	case m.filter.text != "" && m.place() == overview:
		news = cell("filter: "+m.filter.text+"   (Esc removes it)", m.cells)
	}
	keys := "q leave  ? keys  / filter  Enter show  Tab table  c cancel  x release  p pause"
	switch m.place() {
	case helpPage:
		keys = "Esc back  q leave"
	case runPage:
		keys = "Esc back  q leave  ? keys  G end  c cancel  r retry  x release  p pause"
	}
	return []string{news, p.paint(dim, cut(keys, m.cells))}
}

// heights returns how many lines each section gets, with its heading; 0 for one that is not shown.
// Each gets its heading and two rows, or one if two do not fit. The focused one gets half of the
// rest, as far as it needs that, and then all get one row after the other. If there is no room for
// all headings with a row, only the focused section is shown.
func (m *model) heights() []int {
	heights, wanted := make([]int, len(m.sections)), make([]int, len(m.sections))
	rest := -1
	for least := 3; least > 1 && rest < 0; least-- {
		rest = m.body()
		for i, s := range m.sections {
			shown, _ := s.counts()
			wanted[i] = 1 + shown
			heights[i] = min(wanted[i], least)
			rest -= heights[i]
		}
	}
	if m.only || rest < 0 {
		clear(heights)
		heights[m.focus] = max(1, m.body()-1) // below the list of the others
		return heights
	}
	more := max(0, min(wanted[m.focus]-heights[m.focus], (rest+1)/2))
	heights[m.focus] += more
	for rest -= more; rest > 0; {
		before := rest
		for i := range heights {
			if heights[i] < wanted[i] && rest > 0 {
				heights[i]++
				rest--
			}
		}
		if rest == before {
			break
		}
	}
	return heights
}

// tables draws the sections.
func (m *model) tables() []string {
	p, heights := m.palette(), m.heights()
	var lines, others []string
	for i, s := range m.sections {
		if m.seen != nil && heights[i] > 0 {
			lines = append(lines, s.lines(p, m.cells, heights[i]-1, i == m.focus)...)
		}
		if i != m.focus {
			others = append(others, fmt.Sprintf("%d %s", i+1, strings.ToLower(s.title())))
		}
	}
	if m.seen != nil && heights[(m.focus+1)%len(heights)] == 0 {
		return append([]string{p.paint(dim, joined(others, m.cells))}, lines...)
	}
	return lines
}
