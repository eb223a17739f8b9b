package jobs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Role says what a [Text] is for.
type Role int

// The roles of texts.
const (
	Word   Role = iota // of a command
	URL                // of a request
	Header             // the value of a header
	Named              // the value of an environment variable, or another text with a name
	Arg                // a text in the args
)

// Text is one text of a job in which a worker replaces ${...}.
type Text struct {
	// Path has the keys that lead to the text: command [2], http headers Authorization, env A, or
	// args list [0] password. It is only valid during the call that receives the text.
	Path   []string
	Role   Role
	Value  string
	Before string // the word before a Word; "" for the first
}

// Key returns the key of the text for messages, such as command[2], http.headers.Authorization or
// args.list[0].password.
func (t *Text) Key() string {
	var b strings.Builder
	for i, name := range t.Path {
		if i > 0 && !isIndex(name) {
			b.WriteByte('.')
		}
		b.WriteString(name)
	}
	return b.String()
}

// Name returns the name of the text's value: the header, the variable, or in the args the nearest
// key.
func (t *Text) Name() string {
	for _, name := range slices.Backward(t.Path) {
		if !isIndex(name) {
			return name
		}
	}
	return ""
}

// index returns the part of a path for an element of a list.
func index(i int) string {
	const small = "[0][1][2][3][4][5][6][7][8][9]" // needs no memory, and most commands are short
	if i < 10 {
		return small[3*i : 3*i+3]
	}
	return "[" + strconv.Itoa(i) + "]"
}

func isIndex(name string) bool { return strings.HasPrefix(name, "[") && strings.HasSuffix(name, "]") }

// MapTexts returns a copy of the job in which the result of f replaces each text. It stops at the
// first error and returns that. It visits maps in the order of their keys, so that the first error
// is always the same. It reads the args only if inArgs. If no text in them changes, the args keep
// their bytes.
func (j *Job) MapTexts(inArgs bool, f func(Text) (string, error)) (*Job, error) {
	m := mapping{f: f}
	out := *j
	for i := range kinds {
		if kinds[i].texts != nil {
			kinds[i].texts(&out, &m)
		}
	}
	out.Env = m.texts(Named, j.Env, "env")
	if j.Ping != "" {
		out.Ping = m.text(Text{Path: []string{"ping"}, Role: URL, Value: j.Ping})
	}
	out.Args = slices.Clone(j.Args)
	if inArgs && m.err == nil {
		out.Args = m.args(out.Args)
	}
	if m.err != nil {
		return nil, m.err
	}
	return &out, nil
}

// mapping replaces the texts of one job, up to the first error.
type mapping struct {
	f       func(Text) (string, error)
	changed bool
	err     error
}

func (m *mapping) text(t Text) string {
	if m.err != nil {
		return t.Value
	}
	value, err := m.f(t)
	if err != nil {
		m.err = err
		return t.Value
	}
	m.changed = m.changed || value != t.Value
	return value
}

func (m *mapping) texts(role Role, values map[string]string, path ...string) map[string]string {
	out := maps.Clone(values)
	for _, name := range slices.Sorted(maps.Keys(values)) {
		out[name] = m.text(Text{Path: below(path, name), Role: role, Value: values[name]})
	}
	return out
}

// args replaces the texts inside a JSON value. It replaces each text by itself, so a secret that
// contains a quote cannot change the structure of the value.
func (m *mapping) args(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return raw
	}
	value, err := readArgs(raw)
	if err != nil {
		m.err = fmt.Errorf("args: %w", err)
		return raw
	}
	m.changed = false
	value = m.leaves(value, []string{"args"})
	if m.err != nil || !m.changed {
		return raw
	}
	out, err := EncodeArgs(value)
	if err != nil {
		m.err = fmt.Errorf("args: %w", err)
	}
	return out
}

func (m *mapping) leaves(value any, path []string) any {
	switch v := value.(type) {
	case string:
		return m.text(Text{Path: path, Role: Arg, Value: v})
	case []any:
		for i := range v {
			v[i] = m.leaves(v[i], below(path, index(i)))
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			v[name] = m.leaves(v[name], below(path, name))
		}
	}
	return value
}

// below returns a path with one more part. It does not change the array of path.
func below(path []string, name string) []string { return append(slices.Clip(path), name) }

// EncodeArgs encodes a value with sorted keys and unescaped < > &: args are data for programs, not
// HTML.
func EncodeArgs(value any) (json.RawMessage, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
