package cronspec_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"lockstep/scheduler/cronspec"
)

// soak enables the comparisons that take minutes.
var soak = os.Getenv("LOCKSTEP_SOAK") != ""

func TestClockChanges(t *testing.T) {
	for _, c := range []struct {
		name, expr, zone string
		after            string // RFC 3339
		want             []string
	}{
		{"a time in the gap is due at the first instant after it", "30 2 * * *", "Europe/Berlin",
			"2026-03-28T00:00:00Z", []string{"2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"}},
		{"several times in the gap are one tick", "*/10 2 * * *", "Europe/Berlin",
			"2026-03-28T02:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"}},
		{"and the same one as a time right after the gap", "0,30 2,3 * * *", "Europe/Berlin",
			"2026-03-28T03:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z", "2026-03-30T00:00:00Z"}},
		{"a repeated time runs at its first occurrence", "30 2 * * *", "Europe/Berlin",
			"2026-10-24T12:00:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		{"asked in the second occurrence, the first is past", "30 2 * * *", "Europe/Berlin",
			"2026-10-25T01:10:00Z", []string{"2026-10-26T01:30:00Z"}},
		{"a named range of hours follows the wall clock too", "30 0-23 * * *", "Europe/Berlin",
			"2026-10-25T00:00:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-25T02:30:00Z", "2026-10-25T03:30:00Z"}},
		{"a star in the hour follows real time through a repeated hour", "30 * * * *", "Europe/Berlin",
			"2026-10-25T00:00:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"}},
		{"and has nothing to make up after a gap", "30 * * * *", "Europe/Berlin",
			"2026-03-29T00:00:00Z", []string{"2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z"}},
		{"every second hour is by the wall clock's number, in real time", "0 */2 * * *", "Europe/Berlin",
			"2026-10-24T23:00:00Z", []string{"2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T03:00:00Z"}},
		{"which a gap can swallow", "0 */2 * * *", "Europe/Berlin",
			"2026-03-28T22:00:00Z", []string{"2026-03-28T23:00:00Z", "2026-03-29T02:00:00Z"}},
		{"seconds in the gap are one tick", "*/10 * 2 * * *", "Europe/Berlin",
			"2026-03-28T02:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z", "2026-03-30T00:00:10Z"}},
		{"seconds of a repeated hour run once", "30 59 2 * * *", "Europe/Berlin",
			"2026-10-25T00:00:00Z", []string{"2026-10-25T00:59:30Z", "2026-10-26T01:59:30Z"}},

		{"Havana has midnight twice", "0 0 * * *", "America/Havana",
			"2026-10-31T12:00:00Z", []string{"2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"}},
		{"Havana has no midnight", "0 0 * * *", "America/Havana",
			"2026-03-07T12:00:00Z", []string{"2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"}},
		{"Beirut has no midnight", "@daily", "Asia/Beirut",
			"2026-03-28T12:00:00Z", []string{"2026-03-28T22:00:00Z", "2026-03-29T21:00:00Z"}},
		{"Asuncion had no midnight", "0 0 * * 0", "America/Asuncion",
			"2023-09-30T12:00:00Z", []string{"2023-10-01T04:00:00Z", "2023-10-08T03:00:00Z"}},
		{"Lord Howe goes back half an hour", "45 1 * * *", "Australia/Lord_Howe",
			"2026-04-04T00:00:00Z", []string{"2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"}},
		{"Lord Howe goes forward half an hour", "15 2 * * *", "Australia/Lord_Howe",
			"2026-10-03T12:00:00Z", []string{"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"}},
		{"Lord Howe has every midnight", "0 0 * * *", "Australia/Lord_Howe",
			"2026-10-03T00:00:00Z", []string{"2026-10-03T13:30:00Z", "2026-10-04T13:00:00Z", "2026-10-05T13:00:00Z"}},
		{"Lord Howe in real time", "*/20 * * * *", "Australia/Lord_Howe",
			"2026-04-04T14:30:00Z", []string{"2026-04-04T14:40:00Z", "2026-04-04T15:10:00Z", "2026-04-04T15:30:00Z"}},
		{"Chatham is 45 minutes off", "0 3 * * *", "Pacific/Chatham",
			"2026-09-25T16:00:00Z", []string{"2026-09-26T14:00:00Z", "2026-09-27T13:15:00Z"}},
		{"Kolkata is half an hour off", "0 9 * * *", "Asia/Kolkata",
			"2026-01-01T00:00:00Z", []string{"2026-01-01T03:30:00Z"}},
		{"Kathmandu is a quarter off", "0 * * * *", "Asia/Kathmandu",
			"2026-01-01T00:00:00Z", []string{"2026-01-01T00:15:00Z", "2026-01-01T01:15:00Z"}},
		{"Apia had no 30 December 2011", "0 12 * * *", "Pacific/Apia",
			"2011-12-29T12:00:00Z", []string{"2011-12-29T22:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T22:00:00Z"}},
		{"nor its Friday", "0 0 * * 5", "Pacific/Apia",
			"2011-12-29T12:00:00Z", []string{"2011-12-30T10:00:00Z", "2012-01-05T10:00:00Z"}},
		{"Kwajalein had no 21 August 1993", "0 0 21 * *", "Pacific/Kwajalein",
			"1993-08-01T00:00:00Z", []string{"1993-08-21T12:00:00Z", "1993-09-20T12:00:00Z"}},
		{"Casablanca puts its clocks back for Ramadan", "30 2 * * *", "Africa/Casablanca",
			"2026-02-14T12:00:00Z", []string{"2026-02-15T01:30:00Z", "2026-02-16T02:30:00Z"}},
		{"Troll jumps by two hours", "30 2 * * *", "Antarctica/Troll",
			"2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"}},
		{"Dublin has its negative summer time", "30 1 * * *", "Europe/Dublin",
			"2026-10-24T12:00:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		{"Monrovia was 44 minutes and 30 seconds off", "0 0,12 * * *", "Africa/Monrovia",
			"1972-01-06T00:44:30Z", []string{"1972-01-06T12:44:30Z", "1972-01-07T00:44:30Z", "1972-01-07T12:00:00Z"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := mustParse(t, c.expr, c.zone)
			at, err := time.Parse(time.RFC3339, c.after)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range c.want {
				if at = s.Next(at); at.Format(time.RFC3339) != want {
					t.Fatalf("%s in %s: got %s, want %s", c.expr, c.zone, at.Format(time.RFC3339), want)
				}
			}
		})
	}
}

func TestLeapDayComesAfterEightYears(t *testing.T) {
	for _, expr := range []string{"0 0 29 2 *", "0 * 29 feb *"} {
		s := mustParse(t, expr, "Europe/Berlin")
		for _, c := range []struct{ after, want string }{
			{"2096-03-01T00:00:00Z", "2104-02-28T23:00:00Z"},
			{"2026-01-01T00:00:00Z", "2028-02-28T23:00:00Z"},
			{"1896-03-01T00:00:00Z", "1904-02-28T23:00:00Z"},
		} {
			if got := s.Next(instant(t, c.after)).Format(time.RFC3339); got != c.want {
				t.Errorf("%s after %s: got %s, want %s", expr, c.after, got, c.want)
			}
		}
	}
}

func TestDayOfMonthOrWeekday(t *testing.T) {
	// 1 November 2026 is a Sunday.
	for _, c := range []struct {
		expr string
		want []int // days of November 2026
	}{
		{"0 0 13 11 5", []int{6, 13, 20, 27}},
		{"0 0 14 11 5", []int{6, 13, 14, 20, 27}},
		{"0 0 * 11 5", []int{6, 13, 20, 27}},
		{"0 0 ? 11 5", []int{6, 13, 20, 27}},
		{"0 0 */1 11 5", []int{6, 13, 20, 27}},
		{"0 0 13 11 *", []int{13}},
		{"0 0 13 11 ?", []int{13}},
		{"0 0 */10 11 5", []int{1, 6, 11, 13, 20, 21, 27}},
		{"0 0 13 11 */3", []int{1, 4, 7, 8, 11, 13, 14, 15, 18, 21, 22, 25, 28, 29}},
		{"0 0 * 11 7", []int{1, 8, 15, 22, 29}},
		{"0 0 * 11 SUN", []int{1, 8, 15, 22, 29}},
		{"0 0 * 11 5-7", []int{1, 6, 7, 8, 13, 14, 15, 20, 21, 22, 27, 28, 29}},
		{"0 0 * 11 fri-sun/2", []int{1, 6, 8, 13, 15, 20, 22, 27, 29}},
		{"0 0 * 11 1,7", []int{1, 2, 8, 9, 15, 16, 22, 23, 29, 30}},
		{"0 0 * 11 0-7/3", []int{1, 4, 7, 8, 11, 14, 15, 18, 21, 22, 25, 28, 29}},
	} {
		s := mustParse(t, c.expr, "")
		var got []int
		end := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
		for at := s.Next(time.Date(2026, 10, 31, 23, 0, 0, 0, time.UTC)); at.Before(end); at = s.Next(at) {
			got = append(got, at.Day())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.expr, got, c.want)
		}
	}
}

func TestEveryIsAlignedToTheClock(t *testing.T) {
	for _, c := range []struct {
		interval    time.Duration
		after, want string
	}{
		{15 * time.Minute, "2026-11-21T09:20:11Z", "2026-11-21T09:30:00Z"},
		{15 * time.Minute, "2026-11-21T09:30:00Z", "2026-11-21T09:45:00Z"},
		{15 * time.Minute, "2026-11-21T09:29:59.999999999Z", "2026-11-21T09:30:00Z"},
		{time.Second, "2026-11-21T09:20:11.5Z", "2026-11-21T09:20:12Z"},
		{7 * time.Second, "1970-01-01T00:00:00Z", "1970-01-01T00:00:07Z"},
		{7 * time.Second, "1969-12-31T23:59:58Z", "1970-01-01T00:00:00Z"},
		{7 * time.Second, "1969-12-31T23:59:50Z", "1969-12-31T23:59:53Z"},
		{24 * time.Hour, "2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z"},
	} {
		s, err := cronspec.Every(c.interval)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Next(instant(t, c.after)).Format(time.RFC3339Nano); got != c.want {
			t.Errorf("every %s after %s: got %s, want %s", c.interval, c.after, got, c.want)
		}
	}
}

func TestNextIsZeroOnlyAtTheEndOfTime(t *testing.T) {
	every, err := cronspec.Every(time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*cronspec.Schedule{
		mustParse(t, "0 * * * *", "Pacific/Kiritimati"),
		mustParse(t, "0 0-23 * * *", "Pacific/Kiritimati"),
		mustParse(t, "0 * * * *", "Pacific/Niue"),
		mustParse(t, "0 0-23 * * *", "Pacific/Niue"),
		every,
	} {
		for _, c := range []struct{ after, want time.Time }{
			{time.Unix(-1<<62, 0), time.Date(1, 1, 1, 1, 0, 0, 0, time.UTC)},
			{time.Time{}, time.Date(1, 1, 1, 1, 0, 0, 0, time.UTC)},
			{time.Date(9999, 12, 31, 22, 30, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 0, 0, 0, time.UTC)},
			{time.Date(9999, 12, 31, 23, 0, 0, 0, time.UTC), time.Time{}},
			{time.Unix(1<<62, 0), time.Time{}},
		} {
			got := s.Next(c.after)
			if c.after.Before(time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC)) && s != every {
				// local mean time
				got, c.want = got.Truncate(24*time.Hour), c.want.Truncate(24*time.Hour)
			}
			if !got.Equal(c.want) {
				t.Errorf("%s in %s after %s: got %s, want %s", s, s.Location(), c.after, got, c.want)
			}
		}
	}
	if got := mustParse(t, "0 0 29 2 *", "").Next(instant(t, "9996-02-29T00:00:00Z")); !got.IsZero() {
		t.Errorf("there is no leap day after 9996, got %s", got)
	}
}

func TestNextContinuesOnTheLastDayOfALeapYear(t *testing.T) {
	// From 2038 on, a rule makes the changes, and package time has no valid bound for this day.
	at := instant(t, "2040-12-31T12:00:00Z")
	for _, zone := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago"} {
		for _, expr := range []string{"0 * * * *", "0 0-23 * * *"} {
			if got := mustParse(t, expr, zone).Next(at.Add(-time.Second)).Sub(at); got < 0 || got >= time.Hour {
				t.Errorf("%s in %s: next tick is %s after %s", expr, zone, got, at)
			}
		}
	}
}

// TestNextEqualsTheLibraryWhereNoClockChanges compares with robfig's own Next on random cron text
// in UTC.
func TestNextEqualsTheLibraryWhereNoClockChanges(t *testing.T) {
	library := cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		expr := randomExpr(r)
		s, err := cronspec.Parse(expr, time.UTC)
		if err != nil {
			continue
		}
		theirs, err := library.Parse(expr)
		if err != nil {
			t.Fatalf("%s: %v", expr, err)
		}
		at := time.Unix(r.Int64N(4e9), r.Int64N(1e9)).UTC()
		for range 3 {
			got, want := s.Next(at), theirs.Next(at)
			if !got.Equal(want) {
				t.Fatalf("%s after %s: got %s, want %s", expr, at, got, want)
			}
			at = got
		}
	}
}

// TestNextEqualsAWalkOverEveryMinute compares random cron text with the slow version, over weeks
// around the clock changes of several unusual zones.
func TestNextEqualsAWalkOverEveryMinute(t *testing.T) {
	const day = 24 * 3600
	for _, c := range []struct {
		zone string
		from string
		days int64
	}{
		{"Europe/Berlin", "2026-03-20T00:00:00Z", 20},
		{"Europe/Berlin", "2026-10-15T00:00:00Z", 20},
		{"America/New_York", "2026-10-25T00:00:00Z", 20},
		{"America/Havana", "2026-03-01T00:00:00Z", 14},
		{"America/Havana", "2026-10-25T00:00:00Z", 14},
		{"Australia/Lord_Howe", "2026-03-25T00:00:00Z", 20},
		{"Australia/Lord_Howe", "2026-09-25T00:00:00Z", 20},
		{"Asia/Kolkata", "2024-02-20T00:00:00Z", 14},
		{"Asia/Kathmandu", "1985-12-25T00:00:00Z", 14},
		{"Pacific/Chatham", "2026-09-20T00:00:00Z", 14},
		{"Pacific/Apia", "2011-12-20T00:00:00Z", 20},
		{"Pacific/Kwajalein", "1969-09-20T00:00:00Z", 20},
		{"Africa/Casablanca", "2026-02-08T00:00:00Z", 50},
		{"Antarctica/Troll", "2026-03-20T00:00:00Z", 14},
		{"Asia/Beirut", "2026-03-20T00:00:00Z", 14},
		{"America/Asuncion", "2023-09-25T00:00:00Z", 14},
		{"Europe/Berlin", "2050-03-20T00:00:00Z", 14},
		{"UTC", "2028-02-20T00:00:00Z", 20},
	} {
		t.Run(c.zone+" "+c.from, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(3, 4))
			from := instant(t, c.from).Unix()
			w, ok := newWalk(mustLoad(t, c.zone), from-2*day, from+(c.days+2)*day, 60)
			if !ok {
				t.Fatal("not a whole number of minutes")
			}
			exprs := []string{"* * * * *", "*/15 * * * *", "0 */2 * * *", "0 0 * * *", "30 2 * * *", "15,45 0-3 * * *"}
			for range 10 {
				exprs = append(exprs, randomMinuteExpr(r))
			}
			for _, expr := range exprs {
				compare(t, r, w, expr, from, from+c.days*day)
			}
		})
	}
}

// TestNextEqualsAWalkOverEverySecond does the same by seconds, with the odd seconds of local mean
// time.
func TestNextEqualsAWalkOverEverySecond(t *testing.T) {
	const hour = 3600
	for _, c := range []struct {
		zone   string
		around string
	}{
		{"Europe/Berlin", "2026-03-29T01:00:00Z"},
		{"Europe/Berlin", "2026-10-25T01:00:00Z"},
		{"Australia/Lord_Howe", "2026-04-04T15:00:00Z"},
		{"America/New_York", "1883-11-18T17:00:00Z"},
		{"Africa/Monrovia", "1972-01-07T00:44:30Z"},
	} {
		t.Run(c.zone+" "+c.around, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(5, 6))
			change := instant(t, c.around).Unix()
			w, _ := newWalk(mustLoad(t, c.zone), change-6*hour, change+6*hour, 1)
			for _, expr := range []string{"* * * * * *", "*/10 * 0-3 * * *", "7 */5 * * * *", "59 59 0,1,2 * * *",
				"30 30 2 * * *", "*/20 40-45 23,0,1 * * *", "1/29 0-1 */2 * * *"} {
				compare(t, r, w, expr, change-3*hour, change+3*hour)
			}
		})
	}
}

// TestNextAtEveryKindOfClockChange visits every clock change of every zone since the beginning of
// its table, and compares schedules with times just before, in and after the jump. Without
// LOCKSTEP_SOAK it tests one change of each kind, defined by the size of the jump and its time of
// day.
func TestNextAtEveryKindOfClockChange(t *testing.T) {
	type kind struct {
		jump, from int64
		instant    int64 // in a soak
		offset     int64 // in a soak
	}
	seen := map[kind]bool{}
	const hour = 3600
	r := rand.New(rand.NewPCG(7, 8))
	changes, seconds := 0, 0
	for _, zone := range zoneNames(t) {
		loc := mustLoad(t, zone)
		for _, c := range changesOf(loc, time.Date(1800, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2045, 1, 1, 0, 0, 0, 0, time.UTC)) {
			k := kind{jump: c.after - c.before, from: mod(c.at+c.before, 24*hour)}
			if soak {
				k.instant, k.offset = c.at, c.before
			}
			if seen[k] {
				continue
			}
			seen[k] = true
			pad := max(k.jump, -k.jump) + 2*hour
			w, ok := newWalk(loc, c.at-pad-hour, c.at+pad+hour, 60)
			if !ok {
				// By seconds, this is sixty times the work.
				if seconds++; !soak && seconds%30 != 1 {
					continue
				}
				w, _ = newWalk(loc, c.at-pad-hour, c.at+pad+hour, 1)
			}
			changes++
			exprs := []string{"*/10 */2 * * *", "0 0-23 * * *"}
			for _, wall := range []int64{-60, 0, k.jump / 2, k.jump - 60, k.jump, k.jump + 60} {
				m := mod(c.at+c.before+wall, 24*hour) / 60
				exprs = append(exprs, fmt.Sprintf("%d %d * * *", m%60, m/60))
			}
			for _, expr := range exprs {
				compare(t, r, w, expr, c.at-pad, c.at+pad)
			}
			if t.Failed() {
				t.Fatalf("in %s at %s", zone, time.Unix(c.at, 0).UTC())
			}
		}
	}
	t.Logf("%d changes compared", changes)
}

// compare compares Next with the walk from from to to. It checks the ticks, and that Next is the
// same for all instants between two ticks.
func compare(t *testing.T, r *rand.Rand, w *walk, expr string, from, to int64) {
	t.Helper()
	s, err := cronspec.Parse(expr, w.loc)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(from, 0).Add(-1)
	for _, want := range w.ticks(slowParse(t, expr), from, to) {
		got := s.Next(at)
		if got.Unix() != want {
			t.Errorf("%s in %s after %s: got %s, want %s", expr, w.loc, at.UTC().Format(time.RFC3339Nano),
				got.Format(time.RFC3339), time.Unix(want, 0).UTC().Format(time.RFC3339))
			return
		}
		between := at.Add(time.Duration(r.Int64N(int64(got.Sub(at)))))
		if again := s.Next(between); !again.Equal(got) {
			t.Errorf("%s in %s: after %s comes %s, but after %s comes %s", expr, w.loc,
				at.UTC(), got, between.UTC(), again)
			return
		}
		at = got
	}
	if got := s.Next(at); got.Unix() < to {
		t.Errorf("%s in %s after %s: got %s, want none before %s", expr, w.loc, at.UTC(), got, time.Unix(to, 0).UTC())
	}
}

// change is a jump of a zone's clock at the instant at, in seconds.
type change struct{ at, before, after int64 }

func changesOf(loc *time.Location, from, to time.Time) []change {
	var changes []change
	for at := from.In(loc); at.Before(to); {
		_, end := at.ZoneBounds()
		if end.IsZero() {
			break
		}
		if !end.After(at) { // see TestNextContinuesOnTheLastDayOfALeapYear
			end = at.Add(24 * time.Hour)
		}
		_, before := end.Add(-1).Zone()
		_, after := end.Zone()
		if before != after {
			changes = append(changes, change{at: end.Unix(), before: int64(before), after: int64(after)})
		}
		at = end
	}
	return changes
}

// FuzzNext checks invariants for any text, zone and instant.
func FuzzNext(f *testing.F) {
	names := zoneNames(f)
	for i, expr := range []string{"0 2 * * *", "*/15 * * * *", "30 6 * * 1-5", "@daily", "@hourly", "0 0 29 2 *", "0 0 30 2 *",
		"*/100 * * * *", "1,,3 * * * *", "0 22-2 * * *", "0 0 * * 5-7", "0 0 * * fri-sun", "TZ=", "TZ=UTC", "CRON_TZ=UTC",
		"@every 5m", "@reboot", "0 0 L * *", "0 0 ? * 1", "*/10 * 2 * * *", "* * * * * *", "\x00", "0 0 */2 * 1", "1/2/3 - - - -",
		"0 0 31 2,4,6 *", "5/15 */2 1-7 jan-jun mon"} {
		f.Add(expr, uint16(i*23), int64(1763715600)+int64(i)*86400*40)
	}
	f.Fuzz(func(t *testing.T, expr string, zone uint16, unix int64) {
		loc := mustLoad(t, names[int(zone)%len(names)])
		s, err := cronspec.Parse(expr, loc)
		if err != nil {
			checkError(t, err, expr)
			return
		}
		if words := s.Words(); strings.Contains(words, "\n") {
			t.Errorf("Words has a second line: %q", words)
		}
		spec := slowParse(t, expr)
		at := time.Unix(unix%(200*366*86400), 0) // 1770 to 2170
		for range 4 {
			tick := s.Next(at)
			if !tick.After(at) {
				t.Fatalf("%q in %s: Next(%s) is %s", expr, loc, at.UTC(), tick)
			}
			for _, between := range []time.Time{tick.Add(-1), at.Add(tick.Sub(at) / 2)} {
				if again := s.Next(between); !again.Equal(tick) {
					t.Fatalf("%q in %s: after %s comes %s, but after %s comes %s", expr, loc, at.UTC(), tick, between, again)
				}
			}
			if shows := wallAt(tick.Unix(), loc); !spec.match(&shows) {
				if spec.realTime {
					t.Fatalf("%q in %s: tick at %s does not match", expr, loc, tick.In(loc))
				}
				if !skipsMatch(spec, wallAt(tick.Unix()-1, loc).unix, shows.unix) {
					t.Fatalf("%q in %s: tick at %s, which makes up for nothing", expr, loc, tick.In(loc))
				}
			}
			at = tick
		}
	})
}

// skipsMatch reports whether a matching wall time is strictly between two others.
func skipsMatch(spec *slowSpec, before, after int64) bool {
	for wall := before + 1; wall < after; wall++ {
		if w := wallAt(wall, time.UTC); spec.match(&w) {
			return true
		}
	}
	return false
}

// zoneNames returns the names of all zones, read once.
func zoneNames(tb testing.TB) []string {
	tb.Helper()
	names, err := readZoneNames()
	if err != nil {
		tb.Fatal(err)
	}
	return names
}

var readZoneNames = sync.OnceValues(func() ([]string, error) {
	text, err := os.ReadFile("zones.txt")
	return strings.Fields(string(text)), err
})

// randomMinuteExpr returns five valid fields that match some day.
func randomMinuteExpr(r *rand.Rand) string {
	for {
		expr := strings.Join([]string{randomField(r, 0, 59), randomField(r, 0, 23),
			randomField(r, 1, 31), randomField(r, 1, 12), randomField(r, 0, 6)}, " ")
		if _, err := cronspec.Parse(expr, nil); err == nil {
			return expr
		}
	}
}

// randomExpr is the same, sometimes with seconds.
func randomExpr(r *rand.Rand) string {
	if r.IntN(3) == 0 {
		return randomField(r, 0, 59) + " " + randomMinuteExpr(r)
	}
	return randomMinuteExpr(r)
}

func randomField(r *rand.Rand, low, high int) string {
	value := func() int { return low + r.IntN(high-low+1) }
	switch r.IntN(8) {
	case 0:
		return fmt.Sprint(value())
	case 1:
		return fmt.Sprintf("*/%d", 1+r.IntN(high-low))
	case 2:
		a, b := value(), value()
		return fmt.Sprintf("%d-%d", min(a, b), max(a, b))
	case 3:
		return fmt.Sprintf("%d,%d,%d", value(), value(), value())
	case 4:
		a, b := value(), value()
		return fmt.Sprintf("%d-%d/%d", min(a, b), max(a, b), 1+r.IntN(max(1, max(a, b)-min(a, b))))
	}
	return "*"
}

func instant(tb testing.TB, text string) time.Time {
	tb.Helper()
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		tb.Fatal(err)
	}
	return at
}
