package cronspec

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
	"github.com/robfig/cron/v3"
)

// library parses the six fields that [field.check] has accepted.
var library = cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// libraryStar is the bit with which the library marks a field that is a star.
const libraryStar = 1 << 63

// aliases are names of whole schedules.
var aliases = map[string]string{
	"@hourly":   "0 * * * *",
	"@daily":    "0 0 * * *",
	"@midnight": "0 0 * * *",
	"@weekly":   "0 0 * * 0",
	"@monthly":  "0 0 1 * *",
	"@yearly":   "0 0 1 1 *",
	"@annually": "0 0 1 1 *",
}

// longest limits cron text, in bytes. All values of all fields take about 500.
const longest = 1000

// layout is the order of the fields in error messages.
const layout = "minute hour day-of-month month weekday (and optionally seconds in front)"

// Parse parses cron text. The text has the fields minute, hour, day of month, month and weekday,
// with seconds as an optional field in front, or is one of @hourly @daily @midnight @weekly
// @monthly @yearly @annually. A field is a star or a list of values, ranges (9-17) and steps (*/15,
// 9-17/2, 5/15). Months and weekdays have names of three letters. Sunday is 0 and 7. In the two day
// fields ? is a star. The schedule follows the wall clock of loc. A nil loc means UTC, and
// time.Local is refused.
//
// The error is an [*Error]. Text without any tick is an error too.
func Parse(expr string, loc *time.Location) (*Schedule, error) {
	if loc == nil {
		loc = time.UTC
	}
	if loc == time.Local {
		problem, hint := explainZone("Local")
		return nil, &Error{Key: "timezone", Text: "Local", Part: "Local", Problem: problem, Hint: hint}
	}
	s := &Schedule{text: strings.TrimSpace(expr), loc: loc}
	if err := s.read(expr); err != nil {
		err.Key, err.Text = "schedule", expr
		return nil, err
	}
	return s, nil
}

// read fills in the pattern. Its error lacks Key and Text.
func (s *Schedule) read(expr string) *Error {
	if len(expr) > longest {
		return &Error{Part: expr, Problem: fmt.Sprintf("longer than %d characters", longest),
			Hint: "cron text is " + layout}
	}
	parts := split(expr)
	if err := checkWhole(expr, parts); err != nil {
		return err
	}
	if alias, ok := aliases[parts[0].Text]; ok {
		parts = split(alias)
	}
	parts = withSecond(parts)
	var b strings.Builder
	for i := range fields {
		if err := fields[i].check(parts[i], &b); err != nil {
			return err
		}
		b.WriteByte(' ')
	}
	spec, err := readPlain(b.String())
	if err != nil {
		return &Error{Part: expr, Problem: "not cron text (" + err.Error() + ")", Hint: "write " + layout}
	}
	s.pattern = pattern{
		second: spec.Second &^ libraryStar, minute: spec.Minute &^ libraryStar, hour: spec.Hour &^ libraryStar,
		dayOfMonth: spec.Dom &^ libraryStar, month: spec.Month &^ libraryStar, weekday: spec.Dow &^ libraryStar,
		anyDayOfMonth: spec.Dom&libraryStar != 0, anyWeekday: spec.Dow&libraryStar != 0,
	}
	hour := parts[2].Text
	s.realTime = strings.HasPrefix(hour, "*") && !strings.Contains(hour, ",")

	if !s.pattern.comes() {
		day := parts[3]
		return &Error{Field: fields[3].name, Part: day.Text, Offset: day.Offset,
			Problem: "never occurs" + s.pattern.monthWords(" in "), Hint: "write a day that does"}
	}
	return nil
}

// readPlain parses six checked fields with the library.
func readPlain(plain string) (spec *cron.SpecSchedule, err error) {
	defer func() {
		// The library panics on some texts. The checks catch the known ones.
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	read, err := library.Parse(plain)
	if err != nil {
		return nil, err
	}
	return read.(*cron.SpecSchedule), nil
}

// Part is a piece of cron text, such as one field.
type Part struct {
	Text   string
	Offset int // in bytes
}

// split splits cron text at white space.
func split(expr string) []Part {
	var parts []Part
	at := 0
	for _, text := range strings.Fields(expr) {
		at += strings.Index(expr[at:], text)
		parts = append(parts, Part{text, at})
		at += len(text)
	}
	return parts
}

// withSecond puts the second in front of five fields, as 0.
func withSecond(parts []Part) []Part {
	if len(parts) == 5 {
		return append([]Part{{Text: "0"}}, parts...)
	}
	return parts
}

// checkWhole refuses text that has neither five or six fields nor a known name.
func checkWhole(expr string, parts []Part) *Error {
	if len(parts) == 0 {
		return &Error{Part: expr, Problem: "empty", Hint: "write " + layout}
	}
	first := parts[0]
	wrong := func(problem, hint string) *Error {
		return &Error{Part: first.Text, Offset: first.Offset, Problem: problem, Hint: hint}
	}
	for _, prefix := range []string{"TZ=", "CRON_TZ="} {
		if zone, ok := strings.CutPrefix(first.Text, prefix); ok {
			if !isZone(zone) {
				zone = "Europe/Berlin"
			}
			return wrong("the time zone has its own key", "write timezone: "+zone)
		}
	}
	if strings.HasPrefix(first.Text, "@") {
		return checkAlias(parts, wrong)
	}
	switch {
	case len(parts) > 6:
		extra := parts[6]
		return &Error{Part: extra.Text, Offset: extra.Offset, Problem: fmt.Sprintf("%d fields are too many", len(parts)),
			Hint: "write " + layout + "; there is no field for a year or a command"}
	case len(parts) < 5:
		rest := strings.ToLower(strings.Join(strings.Fields(expr), ""))
		if interval, ok := strings.CutPrefix(rest, "every"); ok || isInterval(rest) {
			if m := wordInterval.FindStringSubmatch(interval); m != nil {
				interval = cmp.Or(m[1], "1") + m[2]
			} else if interval == "day" {
				interval = "24h"
			}
			if !isInterval(interval) {
				interval = "15m"
			}
			return wrong("this is an interval", "write every: "+interval)
		}
		if _, ok := aliases["@"+rest]; ok {
			return wrong("not cron text", fmt.Sprintf("did you mean %q?", "@"+rest))
		}
		if at, err := time.Parse("15:4", rest); err == nil {
			return wrong("this is a time of day", fmt.Sprintf("write \"%d %d * * *\"", at.Minute(), at.Hour()))
		}
		count := "1 field is"
		if len(parts) > 1 {
			count = fmt.Sprintf("%d fields are", len(parts))
		}
		return wrong(count+" too few: there are five", "write "+layout)
	}
	return nil
}

// checkAlias refuses every name with an @ except the known ones.
func checkAlias(parts []Part, wrong func(problem, hint string) *Error) *Error {
	name := parts[0].Text
	if _, ok := aliases[name]; ok {
		if len(parts) > 1 {
			return wrong("a name must be alone", fmt.Sprintf("write %q, or five fields", name))
		}
		return nil
	}
	switch strings.ToLower(name) {
	case "@every":
		interval := "15m"
		if len(parts) > 1 && isInterval(parts[1].Text) {
			interval = parts[1].Text
		}
		return wrong("an interval has its own key", "write every: "+interval)
	case "@reboot":
		return wrong("a job runs once for all workers, and cannot run at the start of a machine",
			"enqueue it where the machine is set up")
	}
	best, least := "@daily", len(name)
	for alias := range aliases {
		// Alphabetical order breaks ties, so the message is always the same.
		distance := levenshtein.ComputeDistance(strings.ToLower(name), alias)
		if distance < least || distance == least && alias < best {
			best, least = alias, distance
		}
	}
	return wrong("unknown name", fmt.Sprintf("did you mean %q?", best))
}

// wordInterval matches an interval with a word as its unit: 5minutes, or the word alone.
var wordInterval = regexp.MustCompile(`^(\d*)([smh])(?:ec|econd|in|inute|r|our)s?$`)

func isInterval(text string) bool {
	d, err := time.ParseDuration(text)
	return err == nil && d > 0
}
