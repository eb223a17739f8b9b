package top

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/scheduler/ledger"
)

// section is a table of the overview.
type section interface {
	take(seen *Seen)        // has new data; arrange follows
	arrange(words []string) // applies the filter and the order

	title() string // its name and the number of its rows
	empty() string // what to say when it has no data
	counts() (shown, all int)
	target() Target // what the selected row is about; the zero Target for none

	move(by int)      // selects another row
	settle(rows int)  // scrolls, so that the selected row is among this many
	sortNext() string // sorts by the next column, and returns its title
	reverse()

	lines(p palette, cells, rows int, focused bool) []string
	table() (titles []string, rows [][]string)
}

// column is one column of a section. Its cells are texts of others, perhaps.
type column[T any] struct {
	title string
	// cells without which it is left out, with the columns after it; 0: all that its rows need
	least   int
	most    int // cells that it takes at most; 0: no limit
	cell    func(one *T, now time.Time) string
	tone    func(one *T) ledger.Tone // nil: none
	compare func(a, b *T) int        // nil: by cell
}

// list is a section of Ts.
type list[T any] struct {
	name, none string
	columns    []column[T]
	from       func(*Seen) []T
	total      func(*Seen) string // how many there are; nil: as many as from returns
	id         func(*T) string    // the same in each read
	texts      func(*T) []string  // where the filter looks
	about      func(*T) Target

	words    []string // of the filter
	all      []T
	beyond   string // " of 512" if there are more than all; else ""
	rows     []int  // the elements of all that match the filter, in order
	by       int    // the column that sorts, from 1; 0: as read
	backward bool
	at       int       // the selected row
	picked   string    // its id, once the user has moved
	top      int       // the first row on the screen
	now      time.Time // of the data, by the clock of Redis
}

func (l *list[T]) take(seen *Seen) {
	l.all, l.now, l.beyond = l.from(seen), seen.Overview.At.Time, ""
	if l.total != nil {
		if total := l.total(seen); total != strconv.Itoa(len(l.all)) {
			l.beyond = " of " + total
		}
	}
}

func (l *list[T]) arrange(words []string) {
	l.words, l.rows = words, l.rows[:0]
	for i := range l.all {
		if l.matches(&l.all[i]) {
			l.rows = append(l.rows, i)
		}
	}
	if l.by > 0 {
		l.sort(&l.columns[l.by-1])
	}
	if l.backward {
		slices.Reverse(l.rows)
	}
	if l.picked != "" {
		at := slices.IndexFunc(l.rows, func(i int) bool { return l.id(&l.all[i]) == l.picked })
		if at >= 0 {
			l.at = at
		}
	}
	l.at = max(0, min(l.at, len(l.rows)-1))
}

// sort orders the rows by a column.
func (l *list[T]) sort(c *column[T]) {
	if c.compare != nil {
		slices.SortStableFunc(l.rows, func(a, b int) int { return c.compare(&l.all[a], &l.all[b]) })
		return
	}
	keys := make([]string, len(l.all)) // each is made once
	for _, i := range l.rows {
		keys[i] = c.cell(&l.all[i], l.now)
	}
	slices.SortStableFunc(l.rows, func(a, b int) int { return cmp.Compare(keys[a], keys[b]) })
}

// matches reports whether each word of the filter is in one of the texts of a row.
func (l *list[T]) matches(one *T) bool {
	if len(l.words) == 0 {
		return true
	}
	texts := l.texts(one)
	for _, word := range l.words {
		if !slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(strings.ToLower(text), word) }) {
			return false
		}
	}
	return true
}

func (l *list[T]) counts() (shown, all int) { return len(l.rows), len(l.all) }

func (l *list[T]) title() string {
	title := l.name + " " + strconv.Itoa(len(l.rows))
	if len(l.words) > 0 {
		title += "/" + strconv.Itoa(len(l.all))
	}
	return title + l.beyond
}

func (l *list[T]) empty() string {
	if len(l.all) > 0 {
		return "none matches the filter"
	}
	return l.none
}

func (l *list[T]) target() Target {
	if len(l.rows) == 0 {
		return Target{}
	}
	return l.about(&l.all[l.rows[l.at]])
}

func (l *list[T]) move(by int) {
	if len(l.rows) > 0 {
		l.at = max(0, min(l.at+by, len(l.rows)-1))
		l.picked = l.id(&l.all[l.rows[l.at]])
	}
}

func (l *list[T]) settle(rows int) {
	l.top = max(l.at-rows+1, min(l.top, l.at))
	l.top = max(0, min(l.top, len(l.rows)-rows))
}

func (l *list[T]) sortNext() string {
	l.by = (l.by + 1) % (len(l.columns) + 1)
	l.arrange(l.words)
	if l.by == 0 {
		return "as read"
	}
	if l.by == 1 {
		return "by name"
	}
	return "by " + strings.ToLower(l.columns[l.by-1].title)
}

func (l *list[T]) reverse() {
	l.backward = !l.backward
	l.arrange(l.words)
}

// heading returns the title of a column. That of the first one is the title of the section.
func (l *list[T]) heading(i int) string {
	title := l.columns[i].title
	if i == 0 {
		title = l.title()
	}
	if l.by == i+1 {
		title += map[bool]string{false: " ↑", true: " ↓"}[l.backward]
	}
	return title
}

const gap = 2 // cells between two columns

// lines draws the heading and some rows. It looks only at the rows that it draws.
func (l *list[T]) lines(p palette, cells, rows int, focused bool) []string {
	mark := func(on bool) string { return map[bool]string{true: "> ", false: "  "}[on && focused] }
	if len(l.rows) == 0 {
		line := cut(mark(true)+l.title()+"  "+l.empty(), cells)
		return []string{p.paint(dim, line)}
	}
	visible := l.rows[l.top:min(l.top+rows, len(l.rows))]
	texts := make([][]string, len(visible))
	for i, at := range visible {
		texts[i] = make([]string, len(l.columns))
		for c := range l.columns {
			texts[i][c] = cell(l.columns[c].cell(&l.all[at], l.now), cells)
		}
	}
	widths := l.widths(texts, cells-len(mark(false)))
	heading := mark(false)
	for c, w := range widths {
		heading += l.pad(l.heading(c), c, widths, w)
	}
	style := bold
	if !focused {
		style = dim
	}
	lines := []string{p.paint(style, cut(strings.TrimRight(heading, " "), cells))}
	for i, at := range visible {
		selected := focused && l.top+i == l.at
		row := mark(selected)
		for c, w := range widths {
			text := l.pad(texts[i][c], c, widths, w)
			if tone := l.columns[c].tone; tone != nil && texts[i][c] != "" && !selected {
				text = p.paint(styleOf(tone(&l.all[at])), text)
			}
			row += text
		}
		if selected && bool(p) {
			row = p.paint(reversed, fit(row, cells))
		}
		lines = append(lines, row)
	}
	return lines
}

// pad returns a text in the width of its column, with the gap that follows.
func (l *list[T]) pad(text string, c int, widths []int, cells int) string {
	text = fit(text, cells)
	if c < len(widths)-1 {
		text += strings.Repeat(" ", gap)
	}
	return text
}

// widths returns the widths of the columns that fit, from left to right. Each one first gets its
// least width; the rest goes to the columns in their order.
func (l *list[T]) widths(texts [][]string, cells int) []int {
	var widths, wanted []int
	rest := cells
	for c := range l.columns {
		want := width(l.heading(c))
		for _, row := range texts {
			want = max(want, width(row[c]))
		}
		if most := l.columns[c].most; most > 0 {
			want = min(want, most)
		}
		least, space := want, gap
		if l.columns[c].least > 0 {
			least = min(want, l.columns[c].least)
		}
		if c == 0 {
			least, space = min(least, rest), 0
		}
		if least+space > rest {
			break
		}
		rest -= least + space
		widths, wanted = append(widths, least), append(wanted, want)
	}
	for c := range widths {
		more := min(rest, wanted[c]-widths[c])
		widths[c], rest = widths[c]+max(0, more), rest-max(0, more)
	}
	return widths
}

func (l *list[T]) table() (titles []string, rows [][]string) {
	for c := range l.columns {
		titles = append(titles, l.heading(c))
	}
	for _, at := range l.rows {
		row := make([]string, len(l.columns))
		for c := range l.columns {
			row[c] = clean(l.columns[c].cell(&l.all[at], l.now))
		}
		rows = append(rows, row)
	}
	return titles, rows
}
