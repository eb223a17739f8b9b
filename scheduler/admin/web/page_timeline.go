package web

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"lockstep/scheduler/admin"
	"lockstep/scheduler/cronspec"
)

const (
	shortestWindow = 5 * time.Minute
	longestWindow  = 48 * time.Hour
	usualWindow    = "1h"

	mostEntries = 10_000 // that one page of the timeline reads
	mostLanes   = 40
	mostBars    = 320 // on the page
	mostRows    = 6   // of bars that overlap, in a lane

	rowHeight = 16
	barHeight = 12
)

// windows are the spans that the page offers.
var windows = []string{"5m", "1h", "6h", "24h", "48h"}

func (s *Server) timelinePages() {
	s.show("/timeline", "timeline", s.timelinePage, "group", "since", "until", "worker", "lock", "job", "kind", "zone")
}

// timelineSeen is what the timeline shows.
type timelineSeen struct {
	Windows   []string
	Groups    []string
	Group     string
	From, To  time.Time
	Ticks     []string // labels below the axis, at equal distances
	Zone      string
	Moves     bool // the span ends now
	Lanes     []lane
	MoreLanes int
	Entries   int
	Merged    int // entries that have no bar of their own
	Cut       bool
	KeptSince time.Time // zero: no history is kept
	Partial   bool      // the history begins within the span
}

// lane is what one worker, lock or job held and waited for.
type lane struct {
	Name   string
	Href   string // "" for entries without one
	Bars   []laneBar
	Marks  []laneMark
	Height int
}

// laneBar is one hold or wait in a lane, or several that are too close to tell apart.
type laneBar struct {
	X, W  float64
	Y     int
	Kind  string // hold, wait, mixed
	Key   string // its id; "" for a merged one, which has no entry of its own
	Href  string
	Title string

	n int // entries
}

// laneMark is an end that was not a release.
type laneMark struct {
	X    float64
	Y    int
	Sign string
	Word string
}

// marks are the signs of ends that need attention.
var marks = map[admin.Text]string{"crashed": "✗", "lost": "!", "expired": "!", "revoked": "⊘", "deadlock": "∞", "timed out": "◷"}

func (s *Server) timelinePage(ctx context.Context, q question, v *view) error {
	snapshot, err := s.snapshot(ctx)
	if err != nil {
		return err
	}
	v.Now = snapshot.At
	seen := timelineSeen{Windows: windows, Groups: []string{"worker", "lock", "job"}, Group: cmp.Or(q.value("group"), "worker"), Zone: cmp.Or(q.value("zone"), "UTC")}
	if seen.From, seen.To, err = window(q.value("since"), q.value("until"), v.Now); err != nil {
		return err
	}
	seen.Moves = q.value("until") == ""
	zone, err := cronspec.LoadZone(seen.Zone)
	if err != nil {
		return fmt.Errorf("%w: zone %q: want a name such as Europe/Berlin, or UTC", admin.ErrInvalid, shorten(seen.Zone, 60))
	}
	filter := admin.HoldFilter{Since: seen.From, Until: seen.To, Worker: q.value("worker"), Lock: q.value("lock"), Job: q.value("job"), Kind: admin.EntryKind(q.value("kind")), Limit: mostEntries}
	name := fmt.Sprintf("timeline %q %q %q %q %q %q", q.value("since"), q.value("until"), filter.Worker, filter.Lock, filter.Job, filter.Kind)
	history, err := shared(ctx, s.read, name, func(ctx context.Context) (*admin.History, error) { return snapshot.History(ctx, filter, "") })
	if err != nil {
		return err
	}
	groups, err := admin.GroupEntries(history.Entries, seen.Group)
	if err != nil {
		return err
	}
	seen.Entries, seen.Cut = len(history.Entries), history.Next != ""
	seen.KeptSince = history.KeptSince
	seen.Partial = !history.KeptSince.IsZero() && history.KeptSince.After(seen.From)
	seen.MoreLanes = max(0, len(groups)-mostLanes)
	groups = groups[:min(len(groups), mostLanes)]
	for _, group := range groups {
		drawn, merged := drawLane(s.link(), group, &seen, history.At, mostBars/len(groups))
		seen.Lanes = append(seen.Lanes, drawn)
		seen.Merged += merged
	}
	for i := range 5 {
		at := seen.From.Add(seen.To.Sub(seen.From) * time.Duration(i) / 4)
		seen.Ticks = append(seen.Ticks, at.In(zone).Format(map[bool]string{true: "15:04:05", false: "Mon 15:04"}[seen.To.Sub(seen.From) <= time.Hour]))
	}
	v.Title, v.Seen = "Timeline", seen
	return nil
}

// window returns the span of time that since and until describe: each is a time, or a duration
// before now.
func window(since, until string, now time.Time) (from, to time.Time, err error) {
	to = now
	if until != "" {
		if to, err = momentOf("until", until, now); err != nil {
			return from, to, err
		}
	}
	if from, err = momentOf("since", cmp.Or(since, usualWindow), now); err != nil {
		return from, to, err
	}
	if span := to.Sub(from); span < shortestWindow || span > longestWindow {
		return from, to, fmt.Errorf("%w: the span from since to until is %s; it must have 5m to 48h", admin.ErrInvalid, span.Round(time.Second))
	}
	return from, to, nil
}

func momentOf(name, text string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("%w: %s %q: want a time, as in RFC 3339, or a duration before now, such as 6h", admin.ErrInvalid, name, shorten(text, 60))
	}
	return at, nil
}

// drawLane draws the entries of one lane, the holds above the waits, with at most this many bars.
// It returns how many entries have no bar of their own.
func drawLane(link linker, group admin.EntryGroup, seen *timelineSeen, now time.Time, most int) (l lane, merged int) {
	l = lane{Name: group.Group}
	if linked(group.Group, mostLink) {
		l.Href = link.path(seen.Group+"s", group.Group)
	}
	on := axis{From: seen.From, To: seen.To}
	rows := 0
	for _, kind := range []admin.EntryKind{admin.KindHold, admin.KindWait} {
		var bars []laneBar
		for _, e := range group.Entries {
			if e.Kind == kind {
				bar := drawEntry(link, &e, &on, now)
				// The lane is a part of it: htmx 4.0.1 may make an svg to which a bar moves an
				// element of HTML.
				bar.Key = elementKey("bar", group.Group, e.Kind, e.ID, e.From)
				bars = append(bars, bar)
			}
		}
		slices.SortStableFunc(bars, func(a, b laneBar) int { return cmp.Compare(a.X, b.X) })
		placed := placeBars(bars, max(2, most/2))
		highest := 0
		for i := range placed {
			highest = max(highest, placed[i].Y+1)
			placed[i].Y = (rows+placed[i].Y)*rowHeight + (rowHeight-barHeight)/2
		}
		merged += len(bars) - len(placed)
		rows += highest
		l.Bars = append(l.Bars, placed...)
	}
	l.Height = max(1, rows) * rowHeight
	at := make(map[int]bool) // marks that are too close to tell apart are one
	for _, e := range group.Entries {
		sign := marks[e.Ended]
		x := on.place(e.To.Time)
		if sign == "" || e.To.IsZero() || at[int(x/6)] {
			continue
		}
		at[int(x/6)] = true
		l.Marks = append(l.Marks, laneMark{X: x, Y: l.Height - (rowHeight-barHeight)/2 - 1, Sign: sign, Word: string(e.Ended)})
		if len(l.Marks) >= most/4+1 {
			break
		}
	}
	return l, merged
}

// drawEntry draws a hold or a wait alone.
func drawEntry(link linker, e *admin.Entry, on *axis, now time.Time) laneBar {
	to := e.To.Time
	until := "until now"
	if to.IsZero() {
		to = now
	} else {
		until = "to " + to.UTC().Format("15:04:05.000 UTC") + ", " + string(e.Ended)
	}
	x := on.place(e.From.Time)
	bar := laneBar{X: x, W: min(max(axisLeast, on.place(to)-x), axisWidth-x), Kind: string(e.Kind), n: 1}
	who := cmp.Or(e.Purpose(), string(e.Worker), string(e.ID))
	verb := map[admin.EntryKind]string{admin.KindHold: "held", admin.KindWait: "waited for"}[e.Kind]
	names := e.Locks()
	what := ""
	if len(names) > 0 {
		what = " " + shorten(names[0], 60)
		if len(names) > 1 {
			what += fmt.Sprintf(" (+%d)", len(names)-1)
		}
	}
	bar.Title = fmt.Sprintf("%s %s%s for %s, from %s %s", shorten(who, 120), verb, what, admin.Span(time.Duration(e.Lasted)), e.From.UTC().Format("2006-01-02 15:04:05.000"), until)
	if e.Worker != "" && string(e.Worker) != who {
		bar.Title += ", on " + shorten(string(e.Worker), 60)
	}
	if e.Token != nil {
		bar.Title += ", token " + e.Token.String()
	}
	if b := e.BlockedBy; b != nil {
		bar.Title += fmt.Sprintf(", where %s was blocked by %s", shorten(cmp.Or(string(b.Lock), "its locks"), 60), shorten(cmp.Or(string(b.RunID), string(b.Worker), string(b.ID), "a limit"), 120))
	}
	bar.Title = shorten(bar.Title, 220)
	switch {
	case e.RunID != "" && linked(e.RunID, mostNameLink):
		bar.Href = link.path("runs", e.RunID)
	case len(names) > 0 && linked(names[0], mostNameLink):
		bar.Href = link.path("locks", names[0])
	}
	return bar
}

// placeBars puts bars that overlap into rows (Y), and merges neighbors in a row until at most this
// many remain. The bars are sorted by X.
func placeBars(bars []laneBar, most int) []laneBar {
	var rows [][]laneBar
	mostRows := min(mostRows, most)
	for _, bar := range bars {
		at := slices.IndexFunc(rows, func(row []laneBar) bool { last := row[len(row)-1]; return last.X+last.W <= bar.X })
		switch {
		case at >= 0:
			rows[at] = append(rows[at], bar)
		case len(rows) < mostRows:
			rows = append(rows, []laneBar{bar})
		default: // it overlaps the last row, and is merged there
			last := &rows[mostRows-1][len(rows[mostRows-1])-1]
			*last = mergeBars(*last, bar)
		}
	}
	for gap := 1.0; ; gap *= 2 {
		count := 0
		for _, row := range rows {
			count += len(row)
		}
		if count <= most || gap > 2*axisWidth {
			break
		}
		for i, row := range rows {
			kept := row[:1]
			for _, bar := range row[1:] {
				if last := &kept[len(kept)-1]; bar.X-(last.X+last.W) < gap {
					*last = mergeBars(*last, bar)
				} else {
					kept = append(kept, bar)
				}
			}
			rows[i] = kept
		}
	}
	var placed []laneBar
	for y, row := range rows {
		for _, bar := range row {
			bar.Y = y
			placed = append(placed, bar)
		}
	}
	return placed
}

// mergeBars returns one bar for two.
func mergeBars(a, b laneBar) laneBar {
	end := max(a.X+a.W, b.X+b.W)
	merged := laneBar{X: a.X, W: end - a.X, Kind: a.Kind, n: a.n + b.n}
	merged.Title = fmt.Sprintf("%d %ss, too close to show each; choose a shorter span", merged.n, a.Kind)
	return merged
}

// pastRows is how much of a history a page shows below what is there now.
const pastRows = 25

// past is a part of the history of a lock or a worker.
type past struct {
	rows[admin.Entry]
	At        time.Time // when the entries were held or waited for; zero: at any time
	KeptSince time.Time // zero: no history is kept
	Partial   bool      // the history begins after At
}

// past reads what a filter selects: all, the present first, or with the parameter at what was held
// or waited for then.
func (s *Server) past(ctx context.Context, q question, snapshot *admin.Snapshot, filter admin.HoldFilter) (past, error) {
	var p past
	if text := q.value("at"); text != "" {
		var err error
		if p.At, err = momentOf("at", text, snapshot.At); err != nil {
			return p, err
		}
		filter.Since, filter.Until = p.At, p.At
	}
	filter.Limit = pastRows
	name := "page past " + q.request.URL.EscapedPath() + "?" + q.query.Encode()
	history, err := shared(ctx, s.read, name, func(ctx context.Context) (*admin.History, error) { return snapshot.History(ctx, filter, q.cursor) })
	if err != nil {
		return p, err
	}
	p.KeptSince = history.KeptSince
	p.Partial = !p.At.IsZero() && history.KeptSince.After(p.At)
	p.rows = newRows(s, q, newPart(history.Entries, history.Next))
	return p, nil
}
