package space

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Format is the number of the layout that this build writes, for everything stored under the hash
// tag of a namespace, including the ledger. The package doc explains when it changes.
const Format = 2

// leastFormat returns the oldest layout that is read by a build that writes the given one.
func leastFormat(format int) int { return max(1, format-1) }

// ErrFormat means that this build must not read or write what a namespace stores, because it does
// not know the layout. The error that carries it is a [*FormatError]. It is final: trying again
// does not help.
var ErrFormat = errors.New("unknown format of stored data")

// FormatError names the layout of a namespace that this build does not know. errors.Is(err,
// [ErrFormat]) is true.
type FormatError struct {
	Namespace string
	// Written is the format in which the namespace is written now; "0" for data from before formats
	// had numbers.
	Written string
	By      string // the version of the build that began to write it; "" if that is not known
	Least   int    // the oldest format that its data may still have
	Detail  string // for data from before formats had numbers, what shows its age
	Build   int    // the highest format that this build knows

	reply error // of Redis
}

func (e *FormatError) Error() string {
	written, err := strconv.Atoi(e.Written)
	reads := strconv.Itoa(e.Build)
	if least := leastFormat(e.Build); least < e.Build {
		reads = fmt.Sprintf("%d and %s", least, reads)
	}
	switch {
	case e.Written == "0":
		return fmt.Sprintf("namespace %q stores data of a build from before formats had numbers (%s), and this build reads format %s: "+
			"stop the workers of that build and delete the namespace's keys, or use another redis.namespace", e.Namespace, e.Detail, reads)
	case err != nil || written > e.Build:
		with := "a build that knows format " + e.Written
		if e.By != "" {
			with = fmt.Sprintf("version %s, which began to write format %s, or a newer one", e.By, e.Written)
		}
		return fmt.Sprintf("namespace %q stores format %s, and this build reads format %s: use %s, or another redis.namespace",
			e.Namespace, e.Written, reads, with)
	}
	return fmt.Sprintf("namespace %q still has data of format %d, and this build reads format %s: "+
		"run a build that reads format %d until it has converted that data, or use another redis.namespace",
		e.Namespace, e.Least, reads, e.Least)
}

// Is reports whether target is [ErrFormat].
func (e *FormatError) Is(target error) bool { return target == ErrFormat }

// Unwrap returns the reply of the script that refused, see [Refused].
func (e *FormatError) Unwrap() error { return e.reply }

// guardRefusal is the first word of the error with which the guard of a script refuses a space
// (scripts/guard.lua).
const guardRefusal = "LOCKSTEPFORMAT "

// Explain returns the [*FormatError] for a refusal of a script's guard, and any other error as it
// is.
func Explain(err error, namespace string, build int) error {
	if err == nil || errors.Is(err, ErrFormat) || !redis.HasErrorPrefix(err, guardRefusal) {
		return err
	}
	_, text, _ := strings.Cut(err.Error(), guardRefusal)
	fields := append(strings.SplitN(text, " ", 3), "", "")
	least, _ := strconv.Atoi(fields[1]) // the guard writes a number
	e := &FormatError{Namespace: namespace, Written: fields[0], Least: least, Build: build, reply: err}
	if e.Written == "0" {
		e.Detail = fields[2]
	} else {
		e.By = fields[2]
	}
	return e
}

// NamespaceOf returns the namespace in the name of a key.
func NamespaceOf(key string) string {
	namespace, _, _ := strings.Cut(strings.TrimPrefix(key, "{"), "}")
	return namespace
}

// Explain returns a [*FormatError] if err is the refusal of a script that [Link] has assembled, and
// any other error as it is.
func (s *Space) Explain(err error) error {
	return Explain(err, NamespaceOf(s.keys[0]), BuildOf(s.rdb))
}

// BuildOf returns the highest format known to the build whose scripts are sent through rdb.
func BuildOf(rdb redis.Scripter) int {
	if as, ok := rdb.(*Impersonator); ok {
		return as.Format
	}
	return Format
}

// Check returns a [*FormatError] if this build must not read or write the space. Every script
// checks that by itself; Check is for a caller that is about to read keys without a script. An
// empty space is valid.
func (s *Space) Check(ctx context.Context) error {
	if _, err := Run(ctx, s.rdb, Check, s.keys); err != nil {
		return fmt.Errorf("read lock space: %w", err)
	}
	return nil
}

// Formats are the layouts of a space. Both are 0 if it has no number: then it is empty, or was
// created by a build that writes format 1 without a number, or by an even older one.
type Formats struct {
	Written int // the layout that is written now
	Least   int // the oldest one that its data may still have
}

// Formats reads the format of the space, even if this build does not know it.
func (s *Space) Formats(ctx context.Context) (Formats, error) {
	fields, err := s.rdb.HMGet(ctx, s.key("meta"), "format", "least_format").Result()
	if err != nil {
		return Formats{}, fmt.Errorf("read format: %w", err)
	}
	numbers := make([]int, len(fields))
	for i, field := range fields {
		if text, ok := field.(string); ok {
			if numbers[i], err = strconv.Atoi(text); err != nil {
				return Formats{}, fmt.Errorf("read format: %q is not a number", text)
			}
		}
	}
	return Formats{Written: numbers[0], Least: numbers[1]}, nil
}

// formatMember is the beginning of a session's card: the highest format that its build can write.
// The scripts find it there without parsing the card.
const formatMember = `{"format":`

// Stamp puts the format of a build into a card, which is a JSON object.
func Stamp(card json.RawMessage, format int) json.RawMessage {
	rest := bytes.TrimPrefix(card, []byte("{"))
	stamped := strconv.AppendInt([]byte(formatMember), int64(format), 10)
	if !bytes.HasPrefix(rest, []byte("}")) {
		stamped = append(stamped, ',')
	}
	return append(stamped, rest...)
}

// formatOf returns the highest format of the build that stamped a card. A card without a stamp is
// of a build that writes format 1.
func formatOf(card json.RawMessage) int {
	rest, stamped := bytes.CutPrefix(card, []byte(formatMember))
	if !stamped {
		return 1
	}
	digits := rest[:len(rest)-len(bytes.TrimLeft(rest, "0123456789"))]
	format, err := strconv.Atoi(string(digits))
	if err != nil {
		return 1
	}
	return format
}

// An Impersonator sends the scripts of a build with another format. In tests, it lets builds meet
// that differ in nothing else.
type Impersonator struct {
	redis.UniversalClient
	Format int // that the build writes
	// Script returns what that build sends in place of a script of this build.
	Script func(*redis.Script) *redis.Script
}

// As returns the script that rdb sends for a script of this build.
func As(rdb redis.Scripter, script *redis.Script) *redis.Script {
	if other, ok := rdb.(*Impersonator); ok {
		return other.Script(script)
	}
	return script
}
