package space

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ErrReply is a reply that this version does not know.
var ErrReply = errors.New("unexpected reply of a script")

// A Reply is the reply of a script: a list of strings, integers and lists. Its fields are read by
// their position, or one after the other ([Read]).
type Reply []any

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

// At returns field i as a string, and "" if the reply is shorter.
func (r Reply) At(i int) string {
	if i >= len(r) {
		return ""
	}
	text, _ := textOf(r[i])
	return text
}

// NumberAt returns field i as a number, and 0 if it is none.
func (r Reply) NumberAt(i int) int64 {
	if i >= len(r) {
		return 0
	}
	n, _ := numberOf(r[i])
	return n
}

// textOf returns a field as a string. Nothing is "", and a list is no string.
func textOf(field any) (text string, ok bool) {
	switch field := field.(type) {
	case string:
		return field, true
	case int64:
		return strconv.FormatInt(field, 10), true
	}
	return "", field == nil
}

// numberOf returns a field as a number.
func numberOf(field any) (n int64, ok bool) {
	if n, ok := field.(int64); ok {
		return n, true
	}
	text, _ := textOf(field)
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

// A Reader reads the fields of a reply one after the other. The first one that is missing, or of
// the wrong kind, sets Err, and no later field is read: the methods return zero values.
type Reader struct {
	Err  error
	left Reply
}

// Read returns a reader of a script's reply. err is the error of the call.
func Read(r Reply, err error) *Reader { return &Reader{err, r} }

// More reports whether fields are left.
func (r *Reader) More() bool { return r.Err == nil && len(r.left) > 0 }

// next returns the next field, and false after an error.
func (r *Reader) next() (field any, ok bool) {
	if r.More() {
		field, r.left = r.left[0], r.left[1:]
		return field, true
	}
	if r.Err == nil {
		r.Err = fmt.Errorf("%w: it ends too soon", ErrReply)
	}
	return nil, false
}

// Text returns the next field as a string. Nothing is "".
func (r *Reader) Text() string {
	field, ok := r.next()
	text, is := textOf(field)
	if ok && !is {
		r.Err = fmt.Errorf("%w: %T instead of a text", ErrReply, field)
	}
	return text
}

// Number returns the next field, which is a number.
func (r *Reader) Number() int64 {
	field, ok := r.next()
	n, is := numberOf(field)
	if ok && !is {
		r.Err = fmt.Errorf("%w: %q instead of a number", ErrReply, field)
	}
	return n
}

// Time returns the next field, which is a time of the server's clock in milliseconds. 0 is no time.
func (r *Reader) Time() time.Time {
	ms := r.Number()
	if ms == 0 {
		return time.Time{}
	}
	return Time(ms)
}

// Each reads the next field, which is a list. one reads an entry of it from the given reader.
func (r *Reader) Each(one func(list *Reader)) {
	field, ok := r.next()
	if !ok {
		return
	}
	values, is := field.([]any)
	if !is {
		r.Err = fmt.Errorf("%w: %T instead of a list", ErrReply, field)
		return
	}
	list := &Reader{left: values}
	for list.More() {
		one(list)
	}
	r.Err = list.Err
}

// Unknown returns the error of an outcome that this version does not know, or the one before it.
func (r *Reader) Unknown(outcome string) error {
	if r.Err != nil {
		return r.Err
	}
	return fmt.Errorf("%w: %q", ErrReply, outcome)
}

// FieldsOf splits a record, or a list in an argument or a reply.
func FieldsOf(text string) []string { return strings.Split(text, "\x1f") }

// Time returns a time of the server's clock, which scripts give in milliseconds.
func Time(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

// Millis returns a duration that a script gives in milliseconds.
func Millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// Int reads a decimal number of a record, and returns 0 if it is none.
func Int(text string) int64 { return Reply{text}.NumberAt(0) }
