package jobs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

const (
	// DefaultMaxArgs is the limit in bytes of the args of a run, unless limits.args sets another
	// one. Each read of a run transfers its args. A command receives args up to about this size in
	// an environment variable, and larger args in a file.
	DefaultMaxArgs = 128 << 10

	// MaxReason is the limit in bytes of the reason that a person gives for an action, and of the
	// stored error of an attempt.
	MaxReason = 1 << 10

	// QueuedMost is the limit of [Job.MaxQueued]. Each tick may have to count that many runs.
	QueuedMost = 1000
)

// ErrTooLarge says that args or a reason exceed their limit. The error that wraps it names the
// limit and an alternative.
var ErrTooLarge = errors.New("too large")

// CheckArgs returns nil if size, in bytes, is at most limit. Otherwise it returns an [ErrTooLarge]
// that is [IsPermanent]. A limit of 0 means [DefaultMaxArgs].
func CheckArgs(size, limit int) error {
	if limit == 0 {
		limit = DefaultMaxArgs
	}
	if size <= limit {
		return nil
	}
	return Permanent(fmt.Errorf("args are %w: %d bytes, and limits.args allows %d; store the data elsewhere and pass its name or address",
		ErrTooLarge, size, limit))
}

// SameArgs reports whether two args are the same text, apart from white space and the spelling of
// <, > and &, which JSON may write as \u003c and so on. Empty args equal the empty object.
func SameArgs(a, b json.RawMessage) bool {
	return bytes.Equal(a, b) || bytes.Equal(canonicalArgs(a), canonicalArgs(b))
}

func canonicalArgs(args json.RawMessage) []byte {
	if len(args) == 0 {
		return []byte("{}")
	}
	text, err := json.Marshal(args) // compacts and escapes
	if err != nil {
		return args // not JSON: equal only if the bytes are equal
	}
	return text
}

// CheckReason returns an [ErrTooLarge] that is [IsPermanent] for a reason of more than [MaxReason]
// bytes.
func CheckReason(reason string) error {
	if len(reason) <= MaxReason {
		return nil
	}
	return Permanent(fmt.Errorf("the reason is %w: %d bytes, and at most %d are kept; shorten it", ErrTooLarge, len(reason), MaxReason))
}

// Cut returns text if it has at most most bytes. Otherwise it returns the beginning of text, up to
// a whole character, and a mark that gives the number of bytes left out. The result has at most
// most bytes; the mark needs about 30.
func Cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	mark := fmt.Sprintf(" [%d bytes left out]", len(text)) // at least as long as the final mark
	end := max(0, most-len(mark))
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + fmt.Sprintf(" [%d bytes left out]", len(text)-end)
}
