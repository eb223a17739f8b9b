package cronspec

import (
	"math/bits"
	"time"
)

// lastYear is the last year with ticks: RFC 3339 ends there.
const lastYear = 9999

// pattern is the meaning of cron text for wall times. Bit n of a field is set if the value n
// matches.
//
// Invariant: every field has a bit, and [pattern.comes] is true. Parse refuses other text.
type pattern struct {
	second, minute, hour, dayOfMonth, month, weekday uint64

	// Whether the day field is a star. If neither is, a day matches when either field matches.
	anyDayOfMonth, anyWeekday bool
}

// next returns the first matching wall time at or after wall. Both are in seconds since
// 1970-01-01T00:00 of that wall clock. It returns false if none exists up to the year after
// lastYear, which the wall clocks of lastYear's last instants may show.
func (p *pattern) next(wall int64) (int64, bool) {
	t := time.Unix(wall, 0).UTC()
	year, month, day := t.Date()
	days := p.days(year, month)
	if days>>day&1 != 0 {
		if clock, ok := p.clock(t.Clock()); ok {
			return midnight(year, month, day) + clock, true
		}
	}
	day++
	for {
		if d := from(days, day); d < 64 {
			clock, _ := p.clock(0, 0, 0)
			return midnight(year, month, d) + clock, true
		}
		day = 1
		if month++; month > time.December {
			month = time.January
			if year++; year > lastYear+1 {
				return 0, false
			}
		}
		days = p.days(year, month)
	}
}

// clock returns the first matching time of day at or after hour:minute:second, in seconds since
// midnight. It returns false if none is left on that day.
func (p *pattern) clock(hour, minute, second int) (int64, bool) {
	s := 64
	if p.hour>>hour&1 != 0 {
		if p.minute>>minute&1 != 0 {
			s = from(p.second, second)
		}
		if s == 64 {
			minute, s = from(p.minute, minute+1), from(p.second, 0)
		}
	}
	if s == 64 || minute == 64 {
		hour, minute, s = from(p.hour, hour+1), from(p.minute, 0), from(p.second, 0)
	}
	if hour == 64 {
		return 0, false
	}
	return int64(hour)*3600 + int64(minute)*60 + int64(s), true
}

// days returns the matching days of a month: bit n is set if day n matches.
func (p *pattern) days(year int, month time.Month) uint64 {
	if p.month>>month&1 == 0 {
		return 0
	}
	first := uint(time.Date(year, month, 1, 0, 0, 0, 0, time.UTC).Weekday())
	// A week of weekdays that begins with that of the month's first day, repeated five times from
	// day 1 on.
	week := (p.weekday>>first | p.weekday<<(7-first)) & (1<<7 - 1)
	byWeekday := week * (1 | 1<<7 | 1<<14 | 1<<21 | 1<<28) << 1

	days := p.dayOfMonth | byWeekday
	if p.anyDayOfMonth || p.anyWeekday {
		days = p.dayOfMonth & byWeekday
	}
	return days & (1<<(daysIn(year, month)+1) - 1)
}

// comes reports whether any day matches. None does for 30 February.
func (p *pattern) comes() bool {
	const leapYear = 2000
	if !p.anyWeekday {
		return true // every month has each weekday, and the day of month does not restrict it
	}
	for month := time.January; month <= time.December; month++ {
		if p.month>>month&1 != 0 && from(p.dayOfMonth, 1) <= daysIn(leapYear, month) {
			return true
		}
	}
	return false
}

// from returns the lowest set bit at or above n, or 64.
func from(set uint64, n int) int { return bits.TrailingZeros64(set >> n << n) }

func midnight(year int, month time.Month, day int) int64 {
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Unix()
}

func daysIn(year int, month time.Month) int {
	return time.Date(year, month+1, 0, 0, 0, 0, 0, time.UTC).Day()
}
