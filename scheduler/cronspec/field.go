package cronspec

import (
	"fmt"
	"strconv"
	"strings"
)

// field describes one field of cron text.
type field struct {
	name     string
	min, max int // the accepted values
	// The last value that * and 5/15 reach: 7 is Sunday, but a week has no eighth day.
	last  int
	names []string // names[i] is another spelling of min+i
	day   bool     // one of the two day fields
}

// fields are the six fields in order. In cron text with five fields, the second is 0.
var fields = [6]field{
	{name: "second", min: 0, max: 59, last: 59},
	{name: "minute", min: 0, max: 59, last: 59},
	{name: "hour", min: 0, max: 23, last: 23},
	{name: "day of month", min: 1, max: 31, last: 31, day: true},
	{name: "month", min: 1, max: 12, last: 12,
		names: []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}},
	{name: "weekday", min: 0, max: 7, last: 6, day: true,
		names: []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}},
}

// check refuses a field with mistakes. Otherwise it writes the field to b in a form that the
// library reads as intended.
func (f *field) check(p Part, b *strings.Builder) *Error {
	if p.Text == "?" && f.day {
		b.WriteByte('*')
		return nil
	}
	items := strings.Split(p.Text, ",")
	at := p.Offset
	for i, text := range items {
		item := Part{text, at}
		at += len(text) + len(",")
		switch {
		case text == "":
			return f.wrong(p, "an empty element in the list", "remove a comma")
		case text == "*" && len(items) > 1:
			return f.wrong(p, "* already includes the rest of the list", "write *, or only the rest")
		}
		if i > 0 {
			b.WriteByte(',')
		}
		if err := f.checkItem(item, b); err != nil {
			return err
		}
	}
	return nil
}

// checkItem is check for one item of a list.
func (f *field) checkItem(item Part, b *strings.Builder) *Error {
	base, stepText, stepped := strings.Cut(item.Text, "/")
	low, high, err := f.span(item, base, stepped)
	if err != nil {
		return err
	}
	step := 1
	if stepped {
		number, ok := parseNumber(stepText)
		if !ok || number < 1 {
			return f.wrong(item, "the step after the / must be a number of at least 1", "")
		}
		if step = number; step > 1 && step > high-low {
			return f.wrong(item, fmt.Sprintf("a step of %d leads past the end, so only %d would match", step, low),
				fmt.Sprintf("write %d", low))
		}
	}
	if high <= f.last {
		b.WriteString(item.Text)
		return nil
	}
	// The library accepts Sunday only as 0, and no range that ends with it.
	for v := low; v <= high; v += step {
		if v > low {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(v % f.max))
	}
	return nil
}

// span returns the first and the last value of an item. base is the part before the step.
func (f *field) span(item Part, base string, stepped bool) (low, high int, err *Error) {
	if base == "*" {
		return f.min, f.last, nil
	}
	if strings.ContainsAny(base, "*?") {
		return 0, 0, f.misplaced(item, base)
	}
	lowText, highText, ranged := strings.Cut(base, "-")
	if low, err = f.value(item, lowText); err != nil {
		return 0, 0, err
	}
	switch {
	case ranged:
		if high, err = f.value(item, highText); err != nil {
			return 0, 0, err
		}
	case stepped:
		high = max(low, f.last)
	default:
		high = low
	}
	if high == 0 && f.max > f.last && strings.EqualFold(highText, f.names[0]) && low > 0 {
		high = f.max // fri-sun
	}
	if high < low {
		return 0, 0, f.backwards(item, low, high)
	}
	return low, high, nil
}

// value parses a number or a name.
func (f *field) value(item Part, text string) (int, *Error) {
	for i, name := range f.names {
		if strings.EqualFold(text, name) {
			return f.min + i, nil
		}
	}
	number, ok := parseNumber(text)
	switch {
	case !ok:
		return 0, f.unknown(item, text)
	case number < f.min || number > f.max:
		hint := ""
		if number >= 1900 && number <= lastYear {
			hint = "there is no field for a year"
		}
		return 0, f.wrong(item, "must be "+f.bounds(), hint)
	}
	return number, nil
}

func (f *field) bounds() string {
	s := fmt.Sprintf("%d to %d", f.min, f.max)
	if n := len(f.names); n > 0 {
		s += " or " + f.names[0] + " to " + f.names[n-1]
	}
	return s
}

// unknown explains a text that is neither a number nor a name.
func (f *field) unknown(item Part, text string) *Error {
	upper := strings.ToUpper(text)
	switch {
	case f.day && strings.Contains(text, "#"):
		return f.wrong(item, "# (the n-th weekday of a month) is not supported",
			"run on that weekday and let the job check the date")
	case f.day && strings.Trim(upper, "0123456789") == "L":
		return f.wrong(item, "L (the last day) is not supported",
			"run on the 1st, or on 28-31 and let the job check the date")
	case f.day && strings.Trim(upper, "0123456789L") == "W":
		return f.wrong(item, "W (the nearest working day) is not supported",
			"run on mon-fri and let the job check the date")
	case upper == "H" || strings.HasPrefix(upper, "H("):
		return f.wrong(item, "H (a value made from the job's name) is not supported", "write a number")
	}
	for _, name := range f.names {
		if strings.HasPrefix(strings.ToLower(text), name) {
			return f.wrong(item, "names have three letters", "write "+name)
		}
	}
	return f.wrong(item, fmt.Sprintf("%s is not a value", quote(text)), "write "+f.bounds())
}

// misplaced explains a star or question mark next to other text.
func (f *field) misplaced(item Part, base string) *Error {
	switch {
	case base == "?" && f.day:
		return f.wrong(item, "? must be alone", "write *")
	case base == "?":
		return f.wrong(item, "? is only for the two day fields", "write *")
	}
	return f.wrong(item, "* must be alone or before a /", "write "+f.bounds())
}

// backwards explains a range that ends before it begins.
func (f *field) backwards(item Part, low, high int) *Error {
	if strings.Contains(item.Text, "/") {
		return f.wrong(item, "the range runs backwards", "write two ranges")
	}
	span := func(a, b int) string {
		if a == b {
			return strconv.Itoa(a)
		}
		return fmt.Sprintf("%d-%d", a, b)
	}
	hint := "write " + span(f.min, high)
	if low <= f.last {
		hint = "write " + span(low, f.last) + "," + span(f.min, high)
	}
	return f.wrong(item, "the range runs backwards", hint)
}

// wrong returns an error for a part of the field. Parse adds the text.
func (f *field) wrong(p Part, problem, hint string) *Error {
	return &Error{Field: f.name, Part: p.Text, Offset: p.Offset, Problem: problem, Hint: hint}
}

// parseNumber parses digits without a sign. A number too large for an int exceeds the values of any
// field.
func parseNumber(text string) (int, bool) {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	number, err := strconv.Atoi(text)
	if err != nil {
		number = 1 << 30
	}
	return number, true
}
