package cronspec_test

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// This file is the slow and obvious version for comparison with Next. It shares no code with the
// package: it reads cron text letter by letter, checks every instant of a walk, and applies the
// clock-change rule case by case. Times that the clock skips are due after the gap. Times that it
// repeats are due the first time.

// slowSpec is parsed cron text: matches[i][v] reports whether the value v of field i (second,
// minute, hour, day of month, month, weekday) matches.
type slowSpec struct {
	matches  [6][61]bool
	dayStar  bool
	weekStar bool
	realTime bool
}

// slowParse parses text that Parse has accepted.
func slowParse(tb testing.TB, expr string) *slowSpec {
	tb.Helper()
	fields := strings.Fields(expr)
	switch fields[0] {
	case "@hourly":
		fields = strings.Fields("0 0 * * * *")
	case "@daily", "@midnight":
		fields = strings.Fields("0 0 0 * * *")
	case "@weekly":
		fields = strings.Fields("0 0 0 * * sun")
	case "@monthly":
		fields = strings.Fields("0 0 0 1 * *")
	case "@yearly", "@annually":
		fields = strings.Fields("0 0 0 1 jan *")
	}
	if len(fields) == 5 {
		fields = append([]string{"0"}, fields...)
	}
	star := func(field string) bool { return field == "*" || field == "?" || field == "*/1" }
	spec := &slowSpec{
		dayStar:  star(fields[3]),
		weekStar: star(fields[5]),
		realTime: fields[2] == "*" || strings.HasPrefix(fields[2], "*/") && !strings.Contains(fields[2], ","),
	}
	lowest := []int{0, 0, 0, 1, 1, 0}
	highest := []int{59, 59, 23, 31, 12, 6}
	for i, field := range fields {
		for _, item := range strings.Split(field, ",") {
			text, stepText, stepped := strings.Cut(item, "/")
			step := 1
			if stepped {
				step = slowValue(tb, stepText)
			}
			low, high := lowest[i], highest[i]
			if text != "*" && text != "?" {
				lowText, highText, ranged := strings.Cut(text, "-")
				low = slowValue(tb, lowText)
				switch {
				case ranged:
					high = slowValue(tb, highText)
					if i == 5 && strings.ToLower(highText) == "sun" && low > 0 {
						high = 7
					}
				case !stepped:
					high = low
				}
			}
			for v := low; v <= high; v += step {
				if i == 5 && v == 7 {
					spec.matches[i][0] = true
				} else {
					spec.matches[i][v] = true
				}
			}
		}
	}
	return spec
}

func slowValue(tb testing.TB, text string) int {
	tb.Helper()
	const months, days = "janfebmaraprmayjunjulaugsepoctnovdec", "sunmontuewedthufrisat"
	if v, err := strconv.Atoi(text); err == nil {
		return v
	}
	text = strings.ToLower(text)
	if i := strings.Index(days, text); i >= 0 {
		return i / 3
	}
	if i := strings.Index(months, text); i >= 0 {
		return i/3 + 1
	}
	tb.Fatalf("%q is not a value", text)
	return 0
}

// wallTime is the time on a wall clock. unix is the number of seconds since 1970 if that clock
// showed UTC.
type wallTime struct {
	unix                                      int64
	second, minute, hour, day, month, weekday uint8
}

func wallAt(u int64, loc *time.Location) wallTime {
	t := time.Unix(u, 0).In(loc)
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	return wallTime{
		unix:   time.Date(year, month, day, hour, minute, second, 0, time.UTC).Unix(),
		second: uint8(second), minute: uint8(minute), hour: uint8(hour),
		day: uint8(day), month: uint8(month), weekday: uint8(t.Weekday()),
	}
}

func (s *slowSpec) match(w *wallTime) bool {
	if !s.matches[0][w.second] || !s.matches[1][w.minute] || !s.matches[2][w.hour] || !s.matches[4][w.month] {
		return false
	}
	day, weekday := s.matches[3][w.day], s.matches[5][w.weekday]
	if s.dayStar || s.weekStar {
		return day && weekday
	}
	return day || weekday
}

// walk covers a zone's time at intervals of step seconds, with the wall clock at each instant.
type walk struct {
	loc            *time.Location
	step, from, to int64 // the walk covers [from, to)
	shows          []wallTime
	firstShown     map[int64]int64 // wall time to the first instant that shows it
	skipped        []wallTime      // wall times that no instant shows
	skippedDue     []int64         // for each of them, the first instant after its gap
}

// newWalk visits every instant from from to to. It returns false if the wall clock at some instant
// is not a multiple of step.
func newWalk(loc *time.Location, from, to, step int64) (*walk, bool) {
	from, to = from-mod(from, step), to-mod(to, step)
	w := &walk{loc: loc, step: step, from: from, to: to, firstShown: map[int64]int64{}}
	for u := from; u < to; u += step {
		wall := wallAt(u, loc)
		if mod(wall.unix, step) != 0 {
			return nil, false
		}
		w.shows = append(w.shows, wall)
	}
	// Only around clock changes can a wall time be shown twice or not at all. A map of all times
	// would take most of the test's time.
	for i := 1; i < len(w.shows); i++ {
		before, after := w.shows[i-1].unix, w.shows[i].unix
		if after == before+step {
			continue
		}
		for j := range w.shows {
			if _, ok := w.firstShown[w.shows[j].unix]; !ok {
				w.firstShown[w.shows[j].unix] = from + int64(j)*step
			}
		}
		break
	}
	for i := 1; i < len(w.shows); i++ {
		for wall := w.shows[i-1].unix + step; wall < w.shows[i].unix; wall += step {
			if _, ok := w.firstShown[wall]; !ok {
				w.skipped = append(w.skipped, wallAt(wall, time.UTC))
				w.skippedDue = append(w.skippedDue, from+int64(i)*step)
			}
		}
	}
	return w, true
}

// ticks returns the ticks of the walk in [from, to).
func (w *walk) ticks(s *slowSpec, from, to int64) []int64 {
	due := map[int64]bool{}
	for i := range w.skipped {
		if !s.realTime && s.match(&w.skipped[i]) {
			due[w.skippedDue[i]] = true
		}
	}
	var ticks []int64
	for i := range w.shows {
		u := w.from + int64(i)*w.step
		if u < from || u >= to {
			continue
		}
		matches := s.match(&w.shows[i])
		if matches && !s.realTime && len(w.firstShown) > 0 {
			matches = w.firstShown[w.shows[i].unix] == u
		}
		if matches || due[u] {
			ticks = append(ticks, u)
		}
	}
	return ticks
}

func mod(a, n int64) int64 { return (a%n + n) % n }
