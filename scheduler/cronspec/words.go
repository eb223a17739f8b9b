package cronspec

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// Words describes the schedule in plain words if its shape is common, such as "at 06:30, Monday to
// Friday" or "every 15 minutes". Otherwise it returns "", and the caller should list the next ticks
// instead. The words do not include the time zone. Words checks each time of one day, which takes
// up to a millisecond.
func (s *Schedule) Words() string {
	if s.every != 0 {
		return "every " + interval(s.every)
	}
	clock, allDay := s.clockWords()
	days := s.pattern.dayWords()
	switch {
	case clock == "" || days == "":
		return ""
	case allDay && days == everyDay:
		return clock
	}
	return clock + ", " + days
}

const everyDay = "every day"

// clockWords describes the times of day. allDay means that they cover the whole day, so "every day"
// adds nothing.
func (s *Schedule) clockWords() (words string, allDay bool) {
	const day = 24 * 3600
	p := &s.pattern
	times := p.times(4)
	if len(times) <= 4 {
		texts := make([]string, len(times))
		for i, t := range times {
			texts[i] = clockText(t)
		}
		return "at " + list(texts), false
	}
	first, step := times[0], times[1]-times[0]
	count, last, even := p.progression(first, step)
	switch {
	case even && s.realTime && count*step == day && first == 0:
		return "every " + interval(step), true
	case s.realTime && p.hour == 1<<24-1 && p.second == 1 && bits.OnesCount64(p.minute) <= 12 && (!even || step == 3600):
		return "at minute " + list(values(p.minute)) + " of every hour", true
	case even && s.realTime && count*step == day:
		return "every " + interval(step) + " from " + clockText(first), true
	case even:
		return "every " + interval(step) + " from " + clockText(first) + " to " + clockText(last), false
	}
	return "", false
}

// times returns the matching times of day in seconds since midnight, at most limit+1 of them.
func (p *pattern) times(limit int) []int64 {
	var times []int64
	for t, ok := p.clock(0, 0, 0); ok && len(times) <= limit; t, ok = p.clockAfter(t) {
		times = append(times, t)
	}
	return times
}

// progression follows the matching times of day from first on. It returns their number, the last
// one, and whether each is step after the previous one.
func (p *pattern) progression(first, step int64) (count, last int64, even bool) {
	count, last = 1, first
	for {
		t, ok := p.clockAfter(last)
		if !ok {
			return count, last, true
		}
		if t != last+step {
			return 0, 0, false
		}
		count, last = count+1, t
	}
}

func (p *pattern) clockAfter(t int64) (int64, bool) {
	t++
	return p.clock(int(t/3600), int(t/60%60), int(t%60))
}

// dayWords describes the days. It returns "" if they have no plain words.
func (p *pattern) dayWords() string {
	const allDaysOfMonth, allWeekdays = 1<<32 - 2, 1<<7 - 1
	everyMonth := p.month == 1<<13-2
	switch {
	case p.dayOfMonth == allDaysOfMonth && p.weekday == allWeekdays,
		!p.anyDayOfMonth && !p.anyWeekday && (p.dayOfMonth == allDaysOfMonth || p.weekday == allWeekdays):
		return everyDay + p.monthWords(" in ")
	case p.dayOfMonth == allDaysOfMonth:
		return p.weekdayWords() + p.monthWords(" in ")
	case p.weekday == allWeekdays:
		return p.dateWords()
	case everyMonth:
		if dates := p.dateWords(); dates != "" {
			return dates + ", and also " + p.weekdayWords()
		}
	}
	return ""
}

// weekdayWords describes the weekdays. Its week begins with Monday, so 6 and 0 are adjacent.
func (p *pattern) weekdayWords() string {
	var names []string
	run := true
	for i := range 7 {
		day := time.Weekday((i + 1) % 7)
		if p.weekday>>day&1 == 0 {
			continue
		}
		if len(names) > 0 && p.weekday>>i&1 == 0 { // i is the day before
			run = false
		}
		names = append(names, day.String())
	}
	switch {
	case len(names) == 1:
		return "every " + names[0]
	case run && len(names) > 2:
		return names[0] + " to " + names[len(names)-1]
	}
	return list(names)
}

// monthWords describes the months after a preposition. It returns "" for every month.
func (p *pattern) monthWords(preposition string) string {
	var names []string
	for month := time.January; month <= time.December; month++ {
		if p.month>>month&1 != 0 {
			names = append(names, month.String())
		}
	}
	switch run := p.month >> bits.TrailingZeros64(p.month); {
	case len(names) == 12:
		return ""
	case len(names) > 2 && run&(run+1) == 0:
		return " from " + names[0] + " to " + names[len(names)-1]
	}
	return preposition + list(names)
}

// dateWords describes days of the month, and names those that some months lack.
func (p *pattern) dateWords() string {
	var dates []string
	for _, day := range values(p.dayOfMonth) {
		dates = append(dates, ordinal(day))
	}
	if len(dates) > 6 {
		return ""
	}
	words := "on the " + list(dates)
	if bits.OnesCount64(p.month) == 12 {
		words += " of every month"
	} else {
		months := p.monthWords(" of ")
		if strings.HasPrefix(months, " from ") {
			months = " of every month" + months
		}
		words += months
	}
	late, shortest := bits.Len64(p.dayOfMonth)-1, 31
	for month := time.January; month <= time.December; month++ {
		if p.month>>month&1 != 0 {
			shortest = min(shortest, daysIn(2001, month))
		}
	}
	switch {
	case late <= shortest:
		return words
	case len(dates) > 1:
		return ""
	case p.month == 1<<time.February:
		return words + " in leap years"
	}
	return words + " that has one"
}

// interval describes a number of seconds: "hour", "15 minutes", "90 seconds".
func interval(seconds int64) string {
	n, unit := seconds, "second"
	switch {
	case n%3600 == 0:
		n, unit = n/3600, "hour"
	case n%60 == 0:
		n, unit = n/60, "minute"
	}
	if n == 1 {
		return unit
	}
	return fmt.Sprintf("%d %ss", n, unit)
}

// clockText formats a time of day, with seconds only if they are not 0.
func clockText(t int64) string {
	s := fmt.Sprintf("%02d:%02d", t/3600, t/60%60)
	if t%60 != 0 {
		s += fmt.Sprintf(":%02d", t%60)
	}
	return s
}

func ordinal(day string) string {
	suffix := "th"
	switch day {
	case "1", "21", "31":
		suffix = "st"
	case "2", "22":
		suffix = "nd"
	case "3", "23":
		suffix = "rd"
	}
	return day + suffix
}

// values lists the bits of a set.
func values(set uint64) []string {
	var texts []string
	for n := from(set, 0); n < 64; n = from(set, n+1) {
		texts = append(texts, strconv.Itoa(n))
	}
	return texts
}

// list joins texts: "a", "a and b", "a, b and c".
func list(texts []string) string {
	n := len(texts)
	if n == 1 {
		return texts[0]
	}
	return strings.Join(texts[:n-1], ", ") + " and " + texts[n-1]
}
