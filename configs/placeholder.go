package configs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"lockstep/jobs"
)

// Lookup returns the value of an environment variable, like [os.LookupEnv].
type Lookup func(name string) (value string, set bool)

// placeholderError is the mistake in one ${...}, with the code of its problem.
type placeholderError struct {
	code string
	*jobs.PlaceholderError
}

func badPlaceholder(code string, p jobs.Piece, reason, hint string) *placeholderError {
	return &placeholderError{code, &jobs.PlaceholderError{Source: p.Source, Reason: reason, Hint: hint}}
}

// secretLimit limits the size of a file in ${file:...}.
const secretLimit = 1 << 20

// readSecret returns the text of a file without trailing newlines, which editors and kubectl add.
func readSecret(path string) (string, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a file")
	}
	if err == nil && info.Size() > secretLimit {
		err = fmt.Errorf("larger than %d KiB", secretLimit>>10)
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if err != nil {
		if reason, ok := errors.AsType[*fs.PathError](err); ok {
			err = reason.Err // the message already names the path
		}
		return "", err
	}
	return strings.TrimRight(string(data), "\r\n"), nil
}

// replacer replaces ${...} by their values.
type replacer struct {
	lookup Lookup
	read   func(path string) (string, error)
	// Receives each value that replaced a ${...}, except defaults. May be nil.
	note func(reference, value string)
}

// value returns the replacement of one piece, and whether it is the default of a variable without a
// value.
func (r replacer) value(p jobs.Piece) (value string, isDefault bool, err *placeholderError) {
	switch {
	case p.Source == "":
		return p.Plain, false, nil
	case p.File != "":
		secret, err := r.read(p.File)
		if err != nil {
			return "", false, badPlaceholder(CodeSecretFile, p, "cannot be read: "+err.Error(), "")
		}
		return secret, false, nil
	}
	value, set := r.lookup(p.Variable)
	switch {
	case p.Fallback != nil && value == "":
		return *p.Fallback, true, nil
	case !set:
		return "", false, badPlaceholder(CodeUnsetVariable, p, "is not set",
			fmt.Sprintf("set the variable, or give it a default: ${%s:-...}", p.Variable))
	}
	return value, false, nil
}

// text replaces every ${...} in a text.
func (r replacer) text(s string) (string, error) {
	list, wrong := jobs.Pieces(s)
	if wrong != nil {
		return "", wrong
	}
	if list == nil {
		return s, nil
	}
	var b strings.Builder
	for _, p := range list {
		value, isDefault, bad := r.value(p)
		if bad != nil {
			return "", bad
		}
		if r.note != nil && p.Source != "" && !isDefault {
			r.note(p.Source, value)
		}
		b.WriteString(value)
	}
	return b.String(), nil
}

// Expand returns a copy of a job with every ${VAR}, ${VAR:-default}, ${file:/path} and $$ replaced
// in its command, http.url, http.headers, env and args. A worker calls it right before an attempt
// and keeps the copy only in memory, because it may contain secrets. lookup is [os.LookupEnv],
// except in tests.
//
// Expand also returns the values that it filled in, each once, for a [jobs.Redactor]: those of
// variables and files, secret or not. It does not return a default that replaced an unset variable,
// because that is part of the definition, which all users with access to the job can read.
//
// The error names the job, the key, and the variable or file, but never a value.
func Expand(job *jobs.Job, lookup Lookup) (*jobs.Job, []jobs.Secret, error) {
	var secrets []jobs.Secret
	note := func(reference, value string) {
		if secret := (jobs.Secret{Reference: reference, Value: value}); !slices.Contains(secrets, secret) {
			secrets = append(secrets, secret)
		}
	}
	e := expansion{replacer: replacer{lookup: lookup, read: readSecret, note: note}, job: job.Name}
	out := *job
	out.Command = slices.Clone(job.Command)
	for i, argument := range out.Command {
		out.Command[i] = e.text(argument, "command[%d]", i)
	}
	out.Env = e.texts(job.Env, "env.%s")
	if job.HTTP != nil {
		request := *job.HTTP
		request.URL = e.text(request.URL, "http.url")
		request.Headers = e.texts(request.Headers, "http.headers.%s")
		out.HTTP = &request
	}
	out.Args = e.args(job.Args)
	if e.err != nil {
		return nil, nil, e.err
	}
	return &out, secrets, nil
}

// expansion replaces the texts of one job, up to the first error.
type expansion struct {
	replacer
	job string
	err error
}

func (e *expansion) text(s string, key string, args ...any) string {
	if e.err != nil {
		return ""
	}
	value, err := e.replacer.text(s)
	if err != nil {
		e.err = fmt.Errorf("job %q: %s: %w", e.job, fmt.Sprintf(key, args...), err)
	}
	return value
}

func (e *expansion) texts(m map[string]string, key string) map[string]string {
	out := maps.Clone(m)
	for _, name := range slices.Sorted(maps.Keys(m)) {
		// sorted, so that the error is always the same
		out[name] = e.text(m[name], key, name)
	}
	return out
}

// args replaces the texts inside a JSON value. It replaces each text by itself, so a secret that
// contains a quote cannot change the structure of the value.
func (e *expansion) args(raw json.RawMessage) json.RawMessage {
	if e.err != nil || !bytes.ContainsRune(raw, '$') && !bytes.Contains(raw, []byte(`\u0024`)) {
		return slices.Clone(raw)
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber() // a number keeps its digits
	var value any
	if err := decoder.Decode(&value); err != nil {
		e.err = fmt.Errorf("job %q: args: %w", e.job, err)
		return nil
	}
	value = e.leaves(value, "args")
	if e.err != nil {
		return nil
	}
	out, err := encodeJSON(value)
	if err != nil {
		e.err = fmt.Errorf("job %q: args: %w", e.job, err)
	}
	return out
}

func (e *expansion) leaves(value any, key string) any {
	switch v := value.(type) {
	case string:
		return e.text(v, "%s", key)
	case []any:
		for i := range v {
			v[i] = e.leaves(v[i], fmt.Sprintf("%s[%d]", key, i))
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			v[name] = e.leaves(v[name], key+"."+name)
		}
	}
	return value
}

// encodeJSON encodes a value with sorted keys and unescaped < > &: args are data for programs, not
// HTML.
func encodeJSON(value any) (json.RawMessage, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
