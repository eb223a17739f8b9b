package cronspec

import (
	"math"
	"strings"
	"time"
)

// Ticks are strictly between these two, in Unix seconds. 0001-01-01T00:00Z is Go's zero time, which
// means never.
const (
	begin = -62135596800
	end   = 253402300800 // the first second of the year after lastYear
)

// Schedule is one trigger: cron text in a time zone, made by [Parse], or an interval, made by
// [Every]. [Schedule.Next] returns its ticks. A Schedule is immutable and safe for concurrent use.
type Schedule struct {
	text string
	loc  *time.Location

	every int64 // in seconds; 0 for cron text

	pattern  pattern // of cron text
	realTime bool    // the hour field is "*" or "*/n"
}

// Every returns the schedule of the multiples of interval since 1970-01-01T00:00Z, so
// they are the same on all replicas and after every restart. The interval must be a whole number of
// seconds, and at least one.
func Every(interval time.Duration) (*Schedule, error) {
	text := FormatInterval(interval)
	fail := func(problem, hint string) (*Schedule, error) {
		return nil, &Error{Key: "every", Text: text, Part: text, Problem: problem, Hint: hint}
	}
	switch {
	case interval < time.Second:
		return fail("the shortest interval is 1s", "")
	case interval%time.Second != 0:
		return fail("not a whole number of seconds", "write "+FormatInterval(interval.Round(time.Second)))
	}
	return &Schedule{text: "every " + text, loc: time.UTC, every: int64(interval / time.Second)}, nil
}

// FormatInterval returns an interval as a config accepts it, exactly: 15m where
// [time.Duration.String] returns 15m0s.
func FormatInterval(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// String returns the cron text that was passed to [Parse], or "every 15m".
func (s *Schedule) String() string { return s.text }

// Fields returns the second, minute, hour, day of month, month and weekday of cron text. The second
// is 0 if the text has none. Fields returns nil for an interval, and for a name such as @daily.
func (s *Schedule) Fields() []Part {
	if fields := withSecond(split(s.text)); len(fields) == 6 {
		return fields
	}
	return nil
}

// FollowsRealTime reports whether the hour field is "*" or "*/n": a tick is then each instant at
// which the wall clock matches. Any other cron text has one tick for each wall time.
func (s *Schedule) FollowsRealTime() bool { return s.realTime }

// Location returns the time zone of the wall clock that the schedule follows. It is UTC for an
// interval.
func (s *Schedule) Location() *time.Location { return s.loc }

// Next returns the first tick strictly after the given instant, in UTC, without a fraction of a
// second. It returns the same tick for all instants from one tick up to the next.
//
// The zero time means that no tick is left before the end of the year 9999. For a schedule that
// [Parse] or [Every] returned, that happens only near that end. An instant before the year 1 counts
// as the beginning of the year 1.
func (s *Schedule) Next(after time.Time) time.Time {
	a := max(after.Unix(), begin)
	tick, ok := int64(0), a < end
	if ok {
		switch {
		case s.every != 0:
			tick = a + s.every - modulo(a, s.every)
		case s.realTime:
			tick, ok = s.nextRealTime(a)
		default:
			tick, ok = s.nextWallClock(a)
		}
	}
	if !ok || tick >= end {
		return time.Time{}
	}
	return time.Unix(tick, 0).UTC()
}

// nextRealTime returns the first instant after a at which the wall clock matches. Instants and wall
// times are in seconds.
func (s *Schedule) nextRealTime(a int64) (int64, bool) {
	for u := a + 1; u < end; {
		offset, until := s.stretch(u)
		wall, ok := s.pattern.next(u + offset)
		if !ok {
			return 0, false
		}
		if wall < until+offset {
			return wall - offset, true
		}
		u = until
	}
	return 0, false
}

// reach limits, in seconds, how far the wall clocks of two instants with different offsets can
// differ beyond the time that passed between them: offsets are between -25 and +26 hours (RFC 9636,
// section 3.2).
const reach = 51 * 3600

// nextWallClock returns the instant at which the first wall time becomes due that was not yet due
// at a. The package doc explains the three steps. Instants and wall times are in seconds.
func (s *Schedule) nextWallClock(a int64) (int64, bool) {
	shown := int64(math.MinInt64)
	offset, until := s.stretch(a - reach)
	for until <= a {
		shown = max(shown, until-1+offset)
		offset, until = s.stretch(until)
	}
	shown = max(shown, a+offset)

	due, ok := s.pattern.next(shown + 1)
	if !ok {
		return 0, false
	}

	u := a + 1
	if far := due - reach; far > until {
		// No clock shows due before far, so the years between need no search.
		u = far
		offset, until = s.stretch(u)
	}
	for until+offset <= due {
		u = until
		offset, until = s.stretch(u)
	}
	return max(u, due-offset), true
}

func modulo(a, n int64) int64 { return (a%n + n) % n }
