package space

import (
	"strconv"
	"strings"
	"time"
)

// ToReply returns the reply of a script. That of a fast path is one string, with its fields
// separated by \31.
func ToReply(answer any) Reply {
	switch answer := answer.(type) {
	case []any:
		return answer
	case string: // from a fast path
		r := make(Reply, 0, 3)
		for field := range strings.SplitSeq(answer, "\x1f") {
			r = append(r, field)
		}
		return r
	}
	return Reply{answer}
}

// A Reply is the reply of a script: a list of strings and integers.
type Reply []any

// At returns field i as a string, and "" if the reply is shorter.
func (r Reply) At(i int) string {
	if i >= len(r) {
		return ""
	}
	switch field := r[i].(type) {
	case string:
		return field
	case int64:
		return strconv.FormatInt(field, 10)
	}
	return ""
}

// FieldsOf splits a record, or a list in an argument or a reply.
func FieldsOf(text string) []string { return strings.Split(text, "\x1f") }

// NumberAt returns field i as a number, and 0 if it is none.
func (r Reply) NumberAt(i int) int64 {
	if i < len(r) {
		if field, ok := r[i].(int64); ok {
			return field
		}
	}
	n, _ := strconv.ParseInt(r.At(i), 10, 64)
	return n
}

// Time returns a time of the server's clock, which scripts give in milliseconds.
func Time(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

// Millis returns a duration that a script gives in milliseconds.
func Millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// Int reads a decimal number of a record, and returns 0 if it is none.
func Int(text string) int64 { return Reply{text}.NumberAt(0) }
