package space

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Record is the layout of a record in Redis: the fields of T, a struct of strings, in their order
// and joined by a separator. The tag new of a field is its default, which is empty without the tag.
//
// Go reads and writes such a record as a T. A script names its fields in capitals, after a letter
// for the record. [Record.Expand] replaces these names, so they cost nothing when the script runs:
//
//   - H_TOKEN is the number of a field, from 1.
//   - {H_NEW} is a table of all defaults, without the last field.
//   - H_TEXT{TOKEN = a; INFO = b} is one expression, the text of the fields from the first to the
//     last one that it names. Those between them have their defaults. In TOKEN_INFO = a, the text a
//     has the fields from TOKEN to INFO. With ... as its last entry, the text continues with the
//     defaults, up to the last field but one.
//   - H_MATCH[[(TOKEN) INFO=%d+]] is a pattern for a record that begins like this. A field that it
//     names has any value, or matches the pattern behind =. Parentheses capture a field, or several
//     with their separators. Fields before it that are not named have their defaults; after a *,
//     any values.
type Record[T any] struct {
	letter, separator, mark string // mark is the separator as Lua writes it

	fields func() []field
	names  func() *regexp.Regexp
}

type field struct{ name, initial string }

// RecordOf returns the layout of T.
func RecordOf[T any](letter string, separator byte) *Record[T] {
	return &Record[T]{
		letter: letter, separator: string(rune(separator)), mark: `\` + strconv.Itoa(int(separator)),
		fields: sync.OnceValue(func() (fields []field) {
			for f := range reflect.TypeFor[T]().Fields() {
				fields = append(fields, field{strings.ToUpper(f.Name), f.Tag.Get("new")})
			}
			return fields
		}),
		names: sync.OnceValue(func() *regexp.Regexp {
			return regexp.MustCompile(`\b` + letter + `_(?:TEXT\{((?:'(?:[^'\\]|\\.)*'|[^'{}])*)\}|MATCH\[\[((?s:.*?))\]\]|([A-Z]+)\b)`)
		}),
	}
}

// Parse reads a record, and returns how many of its fields the text has. The last field takes the
// rest of the text, with its separators.
func (r *Record[T]) Parse(text string) (record T, n int) {
	v := reflect.ValueOf(&record).Elem()
	for _, value := range strings.SplitN(text, r.separator, v.NumField()) {
		v.Field(n).SetString(value)
		n++
	}
	return record, n
}

// Text returns a record as it is stored.
func (r *Record[T]) Text(record *T) string {
	v := reflect.ValueOf(record).Elem()
	values := make([]string, 0, 40)
	for i := range v.NumField() {
		values = append(values, v.Field(i).String())
	}
	return strings.Join(values, r.separator)
}

// Fields returns the number of fields.
func (r *Record[T]) Fields() int { return len(r.fields()) }

// Expand replaces what a text of Lua names of the record.
func (r *Record[T]) Expand(text string) string {
	// A TEXT in a TEXT comes first.
	for before := ""; before != text && strings.Contains(text, r.letter+"_"); {
		before = text
		text = r.names().ReplaceAllStringFunc(before, func(name string) string {
			m := r.names().FindStringSubmatch(name)
			switch i := r.find(m[3]); {
			case m[1] != "":
				return r.expression(m[1])
			case m[2] != "":
				return r.pattern(m[2])
			case m[3] == "NEW":
				return strings.Join(r.defaults(0, len(r.fields())-1), ", ")
			case i >= 0:
				return strconv.Itoa(i + 1)
			}
			return name
		})
	}
	return text
}

func (r *Record[T]) find(name string) int {
	return slices.IndexFunc(r.fields(), func(f field) bool { return f.name == name })
}

// next returns the index of a field that a script names at or behind another one.
func (r *Record[T]) next(name string, from int) int {
	i := r.find(name)
	if i < from {
		panic(fmt.Sprintf("a script names %s_%s, which does not exist, or comes earlier in the record", r.letter, name))
	}
	return i
}

// defaults returns the defaults of some fields, quoted.
func (r *Record[T]) defaults(from, to int) (values []string) {
	for ; from < to; from++ {
		values = append(values, "'"+r.fields()[from].initial+"'")
	}
	return values
}

// expression returns the expression for the entries of TEXT.
func (r *Record[T]) expression(entries string) string {
	var values []string
	next := -1
	for entry := range strings.SplitSeq(entries, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(entry), " = ")
		if name == "..." {
			values = append(values, r.defaults(next, len(r.fields())-1)...)
			break
		}
		first, last, many := strings.Cut(name, "_")
		from := r.next(first, max(next, 0))
		if next >= 0 {
			values = append(values, r.defaults(next, from)...)
		}
		values, next = append(values, value), from+1
		if many {
			next = r.next(last, from) + 1
		}
	}
	return r.literal(strings.ReplaceAll(strings.Join(values, " .. '"+r.mark+"' .. "), "' .. '", ""))
}

// pattern returns the pattern for the terms of MATCH.
func (r *Record[T]) pattern(terms string) string {
	free := "[^" + r.mark + "]*"
	pattern, next, skip, end := "^", 0, false, ""
	for term := range strings.FieldsSeq(terms) {
		name, value, given := strings.Cut(strings.TrimLeft(term, "("), "=")
		if name == "*" {
			skip = true
			continue
		}
		pattern += end
		bare := strings.TrimRight(name, ")")
		at := r.next(bare, next)
		for _, initial := range r.defaults(next, at) {
			if skip {
				initial = "'" + free + "'"
			}
			pattern += strings.Trim(initial, "'") + r.mark
		}
		if !given {
			value = free + name[len(bare):]
		}
		pattern += term[:strings.Index(term, bare)] + value
		next, skip, end = at+1, false, r.mark
	}
	switch {
	case next == len(r.fields()):
		pattern += "$"
	case !strings.HasSuffix(strings.TrimRight(pattern, ")"), free):
		pattern += end
	}
	return r.literal("'" + pattern + "'")
}

// literal corrects separators in front of a digit: Lua takes three digits behind a backslash.
func (r *Record[T]) literal(text string) string {
	for _, digit := range "0123456789" {
		text = strings.ReplaceAll(text, r.mark+string(digit), `\0`+r.mark[1:]+string(digit))
	}
	return text
}
