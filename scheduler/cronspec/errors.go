package cronspec

import (
	"strconv"
	"strings"
)

// Error says what is wrong with a trigger and what to write instead. All errors of this package are of this type.
type Error struct {
	Key     string // the key of the job that the text belongs to: "schedule", "every" or "timezone"
	Text    string // the whole text
	Field   string // for a schedule the field that is wrong, such as "minute"; "" when it is not about one field
	Part    string // the piece of Text that is wrong
	Offset  int    // where Part begins in Text, in bytes
	Problem string // what is wrong
	Hint    string // what to do about it; "" when Problem says it
}

// Error returns one line: the text, the part that is wrong, the problem and the remedy.
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

// quote keeps the message on one line and readable, whatever was pasted into the config.
func quote(s string) string {
	const limit = 120
	if len(s) > limit {
		return strconv.Quote(s[:limit]) + "..."
	}
	return strconv.Quote(s)
}
