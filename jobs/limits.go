package jobs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

const (
	// DefaultMaxArgs is how many bytes the args of a run may have unless limits.args says otherwise. Each read of a run
	// carries its args. Up to about the same size a command gets them in an environment variable, larger ones in a file.
	DefaultMaxArgs = 128 << 10

	// MaxReason is how many bytes a reason may have that a person gives for an action, and the error of an attempt that
	// is kept.
	MaxReason = 1 << 10
)

// ErrTooLarge says that args or a reason are larger than what is kept. The error that carries it names the limit and
// what to do instead.
var ErrTooLarge = errors.New("too large")

// CheckArgs returns an [ErrTooLarge] that is [IsPermanent] for args of so many bytes, unless they are at most limit; a
// limit of 0 means [DefaultMaxArgs].
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

// SameArgs reports whether two args are the same text, whatever its white space and its spelling of <, > and &, which JSON
// may write as \u003c and the like. No args are the empty object.
func SameArgs(a, b json.RawMessage) bool {
	return bytes.Equal(a, b) || bytes.Equal(canonicalArgs(a), canonicalArgs(b))
}

func canonicalArgs(args json.RawMessage) []byte {
	if len(args) == 0 {
		return []byte("{}")
	}
	text, err := json.Marshal(args) // compacts and escapes
	if err != nil {
		return args // not JSON: the same only as the same bytes
	}
	return text
}

// CheckReason returns an [ErrTooLarge] that is [IsPermanent] for a reason of more than [MaxReason] bytes.
func CheckReason(reason string) error {
	if len(reason) <= MaxReason {
		return nil
	}
	return Permanent(fmt.Errorf("the reason is %w: %d bytes, and at most %d are kept; shorten it", ErrTooLarge, len(reason), MaxReason))
}

// Cut returns text if it has at most so many bytes; else its beginning, up to a whole character, and a mark that says
// how much was left out. The result has at most that many bytes, and the mark needs about 30.
func Cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	mark := fmt.Sprintf(" [%d bytes left out]", len(text)) // as long as the final one, or longer
	end := max(0, most-len(mark))
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + fmt.Sprintf(" [%d bytes left out]", len(text)-end)
}
