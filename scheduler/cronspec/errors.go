package cronspec

import (
	"strconv"
	"strings"
)

// Error describes a mistake in a trigger and its correction. All errors of this package have this
// type.
type Error struct {
	// The key of the job that has the text: "schedule", "every" or "timezone".
	Key  string
	Text string // the whole text
	// The wrong field of a schedule, such as "minute", or "" if the mistake is not in one field.
	Field   string
	Part    string // the piece of Text that is wrong
	Offset  int    // byte offset of Part in Text
	Problem string // what is wrong
	Hint    string // the remedy; "" if Problem includes it
}

// Error returns one line: the text, the wrong part, the problem and the remedy.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Key + " " + quote(e.Text) + ": ")
	if e.Field != "" {
		b.WriteString(e.Field + " " + quote(e.Part) + ": ")
	}
	b.WriteString(e.Problem)
	if e.Hint != "" {
		b.WriteString("; " + e.Hint)
	}
	return b.String()
}

// quote keeps the message on one readable line, even for odd text in a config.
func quote(s string) string {
	const limit = 120
	if len(s) > limit {
		return strconv.Quote(s[:limit]) + "..."
	}
	return strconv.Quote(s)
}
