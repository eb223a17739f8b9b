package configs

import (
	"errors"
	"fmt"
	"io/fs"
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

// ExpandText returns a text with every ${...} replaced, and their values. A sender of messages
// calls it right before a request.
func ExpandText(text string, lookup Lookup) (string, []jobs.Secret, error) {
	var secrets []jobs.Secret
	r := replacer{lookup: lookup, read: readSecret, note: func(reference, value string) {
		secrets = append(secrets, jobs.Secret{Reference: reference, Value: value})
	}}
	value, err := r.text(text)
	return value, secrets, err
}

// ReadSecret returns the text of a file with a secret, without trailing newlines.
func ReadSecret(path string) (string, error) { return readSecret(path) }

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
	r := replacer{lookup: lookup, read: readSecret, note: note}
	out, err := job.MapTexts(jobs.HasPlaceholders(job.Args), func(t jobs.Text) (string, error) {
		value, err := r.text(t.Value)
		if err != nil {
			return "", fmt.Errorf("%s: %w", t.Key(), err)
		}
		return value, nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("job %q: %w", job.Name, err)
	}
	return out, secrets, nil
}
