package cronspec_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"lockstep/scheduler/cronspec"
)

func TestParseAccepts(t *testing.T) {
	for _, expr := range []string{
		"* * * * *", "* * * * * *", "0 2 * * *", "  0\t2 * * * ", "00 02 * * *", "0 0 1 JAN Sun", "0 0 * * 7", "0 0 * * 0-7",
		"0 0 * * 7-7", "0 0 * * 1,7", "0 0 * * mon-sun", "0 0 * * 5-sun", "0 0 * * */2", "0 0 * * 1-7/2", "0 0 ? * ?", "5/15 * * * *",
		"*/1 * * * *", "*/59 * * * *", "0-0 * * * *", "0-0/1 * * * *", "*/20,7 * * * *", "0 0 29 2 *", "0 0 31 1,2 *",
		"0 0 30 2 1", "@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually",
	} {
		s, err := cronspec.Parse(expr, nil)
		if err != nil {
			t.Errorf("%q: %v", expr, err)
			continue
		}
		if got, want := s.String(), strings.TrimSpace(expr); got != want {
			t.Errorf("String: got %q, want %q", got, want)
		}
		if s.Location() != time.UTC {
			t.Errorf("%q: without a location it is UTC, got %s", expr, s.Location())
		}
	}
}

func TestParseRefusesWithTheRemedy(t *testing.T) {
	for _, c := range []struct {
		expr string
		want string // the whole message after `schedule "...": `
	}{
		{"", "empty; write minute hour day-of-month month weekday (and optionally seconds in front)"},
		{" \n ", "empty; write minute hour day-of-month month weekday (and optionally seconds in front)"},
		{"0 2 * *", "4 fields are too few: there are five; write minute hour day-of-month month weekday (and optionally seconds in front)"},
		{"5", "1 field is too few: there are five; write minute hour day-of-month month weekday (and optionally seconds in front)"},
		{"0 0 2 * * * 2026", "7 fields are too many; write minute hour day-of-month month weekday (and optionally seconds in front); there is no field for a year or a command"},
		{"TZ=", "the time zone has its own key; write timezone: Europe/Berlin"},
		{"TZ=UTC", "the time zone has its own key; write timezone: UTC"},
		{"CRON_TZ=UTC", "the time zone has its own key; write timezone: UTC"},
		{"CRON_TZ=Asia/Tokyo 0 2 * * *", "the time zone has its own key; write timezone: Asia/Tokyo"},
		{"@every 5m", "an interval has its own key; write every: 5m"},
		{"@every", "an interval has its own key; write every: 15m"},
		{"@reboot", "a job runs once for all workers, and cannot run at the start of a machine; enqueue it where the machine is set up"},
		{"@dayly", `unknown name; did you mean "@daily"?`},
		{"@DAILY", `unknown name; did you mean "@daily"?`},
		{"@daily 5", `a name must be alone; write "@daily", or five fields`},
		{"daily", `not cron text; did you mean "@daily"?`},
		{"15m", "this is an interval; write every: 15m"},
		{"every 90s", "this is an interval; write every: 90s"},
		{"every day", "this is an interval; write every: 24h"},
		{"every hour", "this is an interval; write every: 1h"},
		{"Every 5 Minutes", "this is an interval; write every: 5m"},
		{"every now and then", "this is an interval; write every: 15m"},
		{"02:00", `this is a time of day; write "0 2 * * *"`},
		{"2:05", `this is a time of day; write "5 2 * * *"`},
		{"24:00", "1 field is too few: there are five; write minute hour day-of-month month weekday (and optionally seconds in front)"},

		{"0 0 30 2 *", `day of month "30": never occurs in February; write a day that does`},
		{"0 0 30,31 feb *", `day of month "30,31": never occurs in February; write a day that does`},
		{"0 0 31 2,4,6,9,11 *", `day of month "31": never occurs in February, April, June, September and November; write a day that does`},
		{"0 0 31 4-4 ?", `day of month "31": never occurs in April; write a day that does`},

		{"60 * * * *", `minute "60": must be 0 to 59`},
		{"99999999999999999999 * * * *", `minute "99999999999999999999": must be 0 to 59`},
		{"* 24 * * *", `hour "24": must be 0 to 23`},
		{"* * 0 * *", `day of month "0": must be 1 to 31`},
		{"* * * 13 *", `month "13": must be 1 to 12 or jan to dec`},
		{"* * * * 8", `weekday "8": must be 0 to 7 or sun to sat`},
		{"0 2 * * * 2026", `weekday "2026": must be 0 to 7 or sun to sat; there is no field for a year`},
		{"60 * * * * *", `second "60": must be 0 to 59`},
		{"*/100 * * * *", `minute "*/100": a step of 100 leads past the end, so only 0 would match; write 0`},
		{"*/60 * * * *", `minute "*/60": a step of 60 leads past the end, so only 0 would match; write 0`},
		{"50/15 * * * *", `minute "50/15": a step of 15 leads past the end, so only 50 would match; write 50`},
		{"* 1-5/6 * * *", `hour "1-5/6": a step of 6 leads past the end, so only 1 would match; write 1`},
		{"* * * * 7/2", `weekday "7/2": a step of 2 leads past the end, so only 7 would match; write 7`},
		{"*/0 * * * *", `minute "*/0": the step after the / must be a number of at least 1`},
		{"*/ * * * *", `minute "*/": the step after the / must be a number of at least 1`},
		{"*/2/3 * * * *", `minute "*/2/3": the step after the / must be a number of at least 1`},
		{"1,,3 * * * *", `minute "1,,3": an empty element in the list; remove a comma`},
		{", * * * *", `minute ",": an empty element in the list; remove a comma`},
		{"1, * * * *", `minute "1,": an empty element in the list; remove a comma`},
		{"*,5 * * * *", `minute "*,5": * already includes the rest of the list; write *, or only the rest`},
		{"*-5 * * * *", `minute "*-5": * must be alone or before a /; write 0 to 59`},
		{"** * * * *", `minute "**": * must be alone or before a /; write 0 to 59`},
		{"? * * * *", `minute "?": ? is only for the two day fields; write *`},
		{"0 0 ?/2 * *", `day of month "?/2": ? must be alone; write *`},
		{"0 0 1,? * *", `day of month "?": ? must be alone; write *`},
		{"0 22-2 * * *", `hour "22-2": the range runs backwards; write 22-23,0-2`},
		{"0 23-0 * * *", `hour "23-0": the range runs backwards; write 23,0`},
		{"0 22-2/2 * * *", `hour "22-2/2": the range runs backwards; write two ranges`},
		{"0 0 * nov-feb *", `month "nov-feb": the range runs backwards; write 11-12,1-2`},
		{"0 0 * * fri-mon", `weekday "fri-mon": the range runs backwards; write 5-6,0-1`},
		{"0 0 * * 7-2", `weekday "7-2": the range runs backwards; write 0-2`},
		{"0 0 * * 5-0", `weekday "5-0": the range runs backwards; write 5-6,0`},
		{"0 0 L * *", `day of month "L": L (the last day) is not supported; run on the 1st, or on 28-31 and let the job check the date`},
		{"0 0 * * 5L", `weekday "5L": L (the last day) is not supported; run on the 1st, or on 28-31 and let the job check the date`},
		{"0 0 15W * *", `day of month "15W": W (the nearest working day) is not supported; run on mon-fri and let the job check the date`},
		{"0 0 LW * *", `day of month "LW": W (the nearest working day) is not supported; run on mon-fri and let the job check the date`},
		{"0 0 * * fri#2", `weekday "fri#2": # (the n-th weekday of a month) is not supported; run on that weekday and let the job check the date`},
		{"H * * * *", `minute "H": H (a value made from the job's name) is not supported; write a number`},
		{"0 0 * * Monday", `weekday "Monday": names have three letters; write mon`},
		{"0 0 * september *", `month "september": names have three letters; write sep`},
		{"+5 * * * *", `minute "+5": "+5" is not a value; write 0 to 59`},
		{"-5 * * * *", `minute "-5": "" is not a value; write 0 to 59`},
		{"1-2-3 * * * *", `minute "1-2-3": "2-3" is not a value; write 0 to 59`},
		{"0 mon * * *", `hour "mon": "mon" is not a value; write 0 to 23`},
	} {
		_, err := cronspec.Parse(c.expr, time.UTC)
		if err == nil {
			t.Errorf("%q is accepted", c.expr)
			continue
		}
		if want := fmt.Sprintf("schedule %q: %s", c.expr, c.want); err.Error() != want {
			t.Errorf("got  %s\nwant %s", err, want)
		}
		checkError(t, err, c.expr)
	}
}

func TestParseErrorSaysWhere(t *testing.T) {
	for _, c := range []struct {
		expr, field, part string
		offset            int
	}{
		{" 0 2,61,5 * *  *", "hour", "61", 5},
		{"0 0 * * 1,mon-fro", "weekday", "mon-fro", 10},
		{"* * * * * 9", "weekday", "9", 10},
		{"  TZ=UTC * * * * *", "", "TZ=UTC", 2},
		{"0 0 2 * * * 2026", "", "2026", 12},
		{" 0 0 31 2 *", "day of month", "31", 5},
	} {
		_, err := cronspec.Parse(c.expr, nil)
		var wrong *cronspec.Error
		if !errors.As(err, &wrong) {
			t.Errorf("%q: got %v, want an *Error", c.expr, err)
			continue
		}
		if wrong.Field != c.field || wrong.Part != c.part || wrong.Offset != c.offset {
			t.Errorf("%q: got %q %q at %d, want %q %q at %d", c.expr,
				wrong.Field, wrong.Part, wrong.Offset, c.field, c.part, c.offset)
		}
	}
}

func TestParseRefusesTheHostsOwnZone(t *testing.T) {
	_, err := cronspec.Parse("0 2 * * *", time.Local)
	want := `timezone "Local": every host has its own, so replicas would disagree on the ticks; write the name of a place, such as "Europe/Berlin"`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestErrorOfALongTextIsShort(t *testing.T) {
	_, err := cronspec.Parse(strings.Repeat("1,", 1<<14)+"1 * * * *", nil)
	if err == nil || len(err.Error()) > 400 {
		t.Errorf("got %v", err)
	}
	_, err = cronspec.LoadZone(strings.Repeat("Europe/", 1<<14))
	if err == nil || len(err.Error()) > 400 {
		t.Errorf("got %v", err)
	}
}

func TestEveryRefuses(t *testing.T) {
	for _, c := range []struct {
		interval time.Duration
		want     string
	}{
		{0, `every "0s": the shortest interval is 1s`},
		{-5 * time.Minute, `every "-5m": the shortest interval is 1s`},
		{500 * time.Millisecond, `every "500ms": the shortest interval is 1s`},
		{1500 * time.Millisecond, `every "1.5s": not a whole number of seconds; write 2s`},
		{time.Hour + time.Nanosecond, `every "1h0m0.000000001s": not a whole number of seconds; write 1h`},
	} {
		if _, err := cronspec.Every(c.interval); err == nil || err.Error() != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

func TestEveryString(t *testing.T) {
	for interval, want := range map[time.Duration]string{
		time.Second:                  "every 1s",
		90 * time.Second:             "every 1m30s",
		15 * time.Minute:             "every 15m",
		time.Hour:                    "every 1h",
		90 * time.Minute:             "every 1h30m",
		24 * time.Hour:               "every 24h",
		10*time.Hour + 5*time.Second: "every 10h0m5s",
	} {
		s, err := cronspec.Every(interval)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// checkError checks invariants of every error: one line, and a part at its stated position.
func checkError(t *testing.T, err error, text string) {
	t.Helper()
	var wrong *cronspec.Error
	if !errors.As(err, &wrong) {
		t.Fatalf("%q: got %T, want an *Error", text, err)
	}
	if strings.ContainsAny(err.Error(), "\n\r") {
		t.Errorf("%q: more than one line: %s", text, err)
	}
	if wrong.Text != text || !strings.HasPrefix(text[wrong.Offset:], wrong.Part) {
		t.Errorf("%q: the part %q is not at %d", text, wrong.Part, wrong.Offset)
	}
}
