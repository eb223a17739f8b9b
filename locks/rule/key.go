package rule

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"lockstep/locks"
	"lockstep/locks/space"
)

// maxCombinations bounds the work of one Expand when many elements give few different keys.
const maxCombinations = 100_000

// Key is a lock key that reads arguments: a name with placeholders. Make one with [ParseKey].
type Key struct {
	text  string
	parts []keyPart
}

// keyPart is either literal text or, with a path, a placeholder.
type keyPart struct {
	literal string
	path    []step
}

// step leads one level down into the arguments: to a field, to an element, or to each element of a
// list.
type step struct {
	name  string // of the field; "" for an element
	index int    // of the element; the constant each for all of them
	text  string // the path up to here as written; it identifies the list of an each
}

const each = -1

// ParseKey reads a lock key: text with placeholders that are replaced by values from JSON
// arguments.
//
//	{id}              the field "id"
//	{account.id}      a field in an object
//	{list[0]}         an element, counted from 0
//	{list[*]}         each element: the key becomes one key per element
//	{list[*].id}      a field of each element
//
// They combine: {orders[*].lines[*].sku}. If the arguments are a list themselves, a path starts
// with an index: {[*]}. Two placeholders that go through the same list go through it together, so
// "{l[*].a}:{l[*].b}" gives one key per element. Two that go through different lists give one key
// per pair. A field's name consists of letters, digits, "_" and "-". Doubled braces are refused
// instead of being read as a literal brace: a key written as {{id}} by habit would be the same for
// all arguments.
//
// The error is a [*KeyError] that says what is wrong and at which byte.
func ParseKey(text string) (*Key, error) {
	key := &Key{text: text}
	var literal strings.Builder
	for rest := text; rest != ""; {
		at := len(text) - len(rest)
		brace := strings.IndexAny(rest, "{}")
		if brace != 0 {
			piece := rest
			if brace > 0 {
				piece = rest[:brace]
			}
			key.parts = append(key.parts, keyPart{literal: piece})
			literal.WriteString(piece)
			rest = rest[len(piece):]
			continue
		}
		if strings.HasPrefix(rest, "{{") || strings.HasPrefix(rest, "}}") {
			return nil, keySyntax(text, at, "doubled brace: a placeholder has single ones, as in {id}; a key cannot contain a brace")
		}
		if rest[0] == '}' {
			return nil, keySyntax(text, at, `"}" without "{"`)
		}
		end := strings.IndexByte(rest, '}')
		if end < 0 {
			return nil, keySyntax(text, at, `"{" without "}"`)
		}
		path, err := parsePath(rest[1:end])
		if err != nil {
			return nil, keySyntax(text, at, err.Error())
		}
		key.parts = append(key.parts, keyPart{path: path})
		rest = rest[end+1:]
	}
	// A fault of the literal text is a fault of every key made from it. A placeholder alone has no
	// literal text.
	if literal.Len() > 0 || text == "" {
		if fault := space.NameFault(literal.String()); fault != "" {
			return nil, &KeyError{Key: text, Problem: fault}
		}
	}
	return key, nil
}

func keySyntax(text string, at int, problem string) error {
	return &KeyError{Key: text, Problem: fmt.Sprintf("byte %d: %s", at, problem)}
}

// parsePath reads the text between the braces.
func parsePath(text string) ([]step, error) {
	if text == "" {
		return nil, errors.New("{} names no field")
	}
	var path []step
	for i := 0; i < len(text); {
		if text[i] == '[' {
			end := strings.IndexByte(text[i:], ']')
			if end < 0 {
				return nil, fmt.Errorf(`{%s}: "[" without "]"`, text)
			}
			end += i
			index := each
			if inner := text[i+1 : end]; inner != "*" {
				n, err := strconv.ParseUint(inner, 10, 31)
				if err != nil || strconv.FormatUint(n, 10) != inner {
					return nil, fmt.Errorf("{%s}: [%s]: want a number from 0 or *, as in {%s[0]} for one element or {%[1]s[*]} for each", text, inner, text[:i])
				}
				index = int(n)
			}
			path = append(path, step{index: index, text: text[:end+1]})
			i = end + 1
			continue
		}
		if text[i] == '.' && i > 0 {
			i++
		} else if i > 0 {
			return nil, fmt.Errorf(`{%s}: want "." or "[" behind "]"`, text)
		}
		start := i
		for i < len(text) && text[i] != '.' && text[i] != '[' {
			r, size := utf8.DecodeRuneInString(text[i:])
			if !(unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' || r == '-') || r == utf8.RuneError && size == 1 {
				return nil, fmt.Errorf("{%s}: %q in a field's name, which has letters, digits, _ and -", text, text[i:i+size])
			}
			i += size
		}
		if i == start {
			return nil, fmt.Errorf("{%s}: a field's name is empty", text)
		}
		path = append(path, step{name: text[start:i], text: text[:i]})
	}
	return path, nil
}

// String returns the text that was parsed.
func (k *Key) String() string { return k.text }

// Fields returns the names of the fields that the key reads, and of those that lead to them.
func (k *Key) Fields() []string {
	var names []string
	for _, part := range k.parts {
		for _, s := range part.path {
			if s.name != "" {
				names = append(names, s.name)
			}
		}
	}
	return names
}

// KeyError says what is wrong with a lock key, or which field of the arguments it could not use.
// errors.Is(err, [locks.ErrInvalid]) is true: the same key with the same arguments will fail again.
type KeyError struct {
	Key     string // as written
	Field   string // of the arguments, for example "bills[2].id"; "" if no field is at fault
	Problem string // for example "is missing"
}

func (e *KeyError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("lock key %.100q: %s", e.Key, e.Problem)
	}
	return fmt.Sprintf("lock key %.100q: field %q of the args %s", e.Key, e.Field, e.Problem)
}

// Is reports whether target is [locks.ErrInvalid].
func (e *KeyError) Is(target error) bool { return target == locks.ErrInvalid }

// Expand returns the keys for the given arguments (JSON; empty counts as null), in the order of the
// arguments and without duplicates. A list without elements gives no keys.
//
// A string is used as it is, true and false as words, and a number exactly as in the JSON text,
// without rounding: so 1, 1.0 and "1" give "1", "1.0" and "1".
//
// Every error is a [*KeyError]: a field is missing, null, an object or a list; the arguments are
// not JSON; there are more than [locks.MaxBundle] different keys; a key is not a valid name (see
// [locks.CheckName]).
func (k *Key) Expand(args json.RawMessage) ([]string, error) {
	value, err := readArgs(args)
	if err != nil {
		return nil, &KeyError{Key: k.text, Problem: err.Error()}
	}
	return k.expand("", value)
}

// readArgs reads arguments and keeps the text of numbers.
func readArgs(args json.RawMessage) (any, error) {
	if len(bytes.TrimSpace(args)) == 0 {
		return nil, nil
	}
	// A decoder would not read past the first value.
	if err := json.Unmarshal(args, new(json.RawMessage)); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return nil, fmt.Errorf("args: not JSON: %w (at byte %d)", err, syntax.Offset)
		}
		return nil, fmt.Errorf("args: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(args))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, fmt.Errorf("args: %w", err)
	}
	return value, nil
}

// expand returns the keys for arguments from readArgs. prefix comes before each key.
func (k *Key) expand(prefix string, args any) ([]string, error) {
	e := expansion{key: k, prefix: prefix, args: args, at: make(map[string]int), seen: make(map[string]bool)}
	if err := e.run(); err != nil {
		return nil, err
	}
	return e.keys, nil
}

// expansion is one walk through all keys that a template gives.
type expansion struct {
	key    *Key
	prefix string
	args   any
	at     map[string]int // the text of a "[*]" step -> the current element
	seen   map[string]bool
	keys   []string
	tries  int
}

// run adds the keys for all elements of the lists that have no element chosen yet. It resolves the
// placeholders from left to right. At the first "[*]" without a choice it calls itself for each
// element.
func (e *expansion) run() error {
	if e.tries++; e.tries > maxCombinations {
		return e.fault(fmt.Sprintf("more than %d combinations of list elements", maxCombinations))
	}
	var b strings.Builder
	b.WriteString(e.prefix)
	for _, part := range e.key.parts {
		if part.path == nil {
			b.WriteString(part.literal)
			continue
		}
		value, open, err := e.resolve(part.path)
		if err != nil {
			return err
		}
		if open != nil {
			for i := range open.elements {
				e.at[open.list] = i
				if err := e.run(); err != nil {
					return err
				}
			}
			delete(e.at, open.list)
			return nil
		}
		b.WriteString(value)
	}
	name := b.String()
	if e.seen[name] {
		return nil
	}
	if len(e.keys) == locks.MaxBundle {
		return e.fault(fmt.Sprintf("more than %d different keys", locks.MaxBundle))
	}
	if fault := space.NameFault(name); fault != "" {
		return e.fault(fault)
	}
	e.seen[name] = true
	e.keys = append(e.keys, name)
	return nil
}

// openList is a list on a path with no element chosen yet.
type openList struct {
	list     string
	elements int
}

func (e *expansion) resolve(path []step) (string, *openList, error) {
	value := e.args
	field := "" // the path so far, with the chosen elements
	for _, s := range path {
		parent := field
		if s.name == "" {
			list, ok := value.([]any)
			if !ok {
				return "", nil, e.key.problem(parent, "is "+kind(value)+", not a list")
			}
			index := s.index
			if index == each {
				if index, ok = e.at[s.text]; !ok {
					return "", &openList{s.text, len(list)}, nil
				}
			}
			field += "[" + strconv.Itoa(index) + "]"
			if index >= len(list) {
				return "", nil, e.key.problem(field, fmt.Sprintf("is missing: the list has %d elements", len(list)))
			}
			value = list[index]
			continue
		}
		if field != "" {
			field += "."
		}
		field += s.name
		object, ok := value.(map[string]any)
		if !ok && !(parent == "" && value == nil) { // no arguments at all: the field is missing
			return "", nil, e.key.problem(parent, "is "+kind(value)+", not an object")
		}
		if value, ok = object[s.name]; !ok {
			return "", nil, e.key.problem(field, "is missing")
		}
	}
	switch value := value.(type) {
	case string:
		return value, nil, nil
	case json.Number:
		return value.String(), nil, nil
	case bool:
		return strconv.FormatBool(value), nil, nil
	default:
		return "", nil, e.key.problem(field, "is "+kind(value)+"; want a string, a number or a bool")
	}
}

func (e *expansion) fault(problem string) error { return &KeyError{Key: e.key.text, Problem: problem} }

// problem returns the error of a field of the arguments; "" is the arguments themselves.
func (k *Key) problem(field, problem string) error {
	if field == "" {
		problem = "the args are " + strings.TrimPrefix(problem, "is ")
	}
	return &KeyError{Key: k.text, Field: field, Problem: problem}
}

func kind(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case string:
		return "a string"
	case json.Number:
		return "a number"
	case bool:
		return "a bool"
	case []any:
		return "a list"
	default:
		return "an object"
	}
}
