package jobs

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	digits   = "0123456789"
	lowers   = "abcdefghijklmnopqrstuvwxyz"
	capitals = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

// ValidName checks the name of a job: 1 to 63 characters of a-z, 0-9 and "-", where "-" is neither
// first nor last.
func ValidName(name string) error {
	if !isName(name, 63, lowers+digits, "-") {
		return fmt.Errorf(`job name %q: want 1 to 63 characters of a-z, 0-9 and inner "-"`, name)
	}
	return nil
}

// ValidHandlerName checks the name of a Go handler: 1 to 100 ASCII letters, digits and inner ".",
// "_", "-", "/".
func ValidHandlerName(name string) error {
	if !isName(name, 100, lowers+capitals+digits, "._-/") {
		return fmt.Errorf(`handler name %q: want 1 to 100 ASCII letters, digits and inner ".", "_", "-", "/"`, name)
	}
	return nil
}

// isName reports whether a name has 1 to most characters, which are all among outer and inner, and
// neither begins nor ends with one of inner.
func isName(name string, most int, outer, inner string) bool {
	return name != "" && len(name) <= most && strings.Trim(name, outer+inner) == "" && strings.Trim(name, inner) == name
}

// MaxUserName bounds the name of a user, in bytes.
const MaxUserName = 200

// ValidUserName checks a name that each act of its user has in the audit: at most [MaxUserName]
// bytes of UTF-8, without blanks around it and control characters.
func ValidUserName(name string) error {
	if len(name) > MaxUserName {
		return fmt.Errorf("it is longer than %d bytes", MaxUserName)
	}
	if !utf8.ValidString(name) || strings.TrimSpace(name) != name || strings.ContainsFunc(name, unicode.IsControl) {
		return errors.New("it has surrounding blanks or control characters")
	}
	return nil
}

// ValidRunName checks the part of a run's ID that its requester chose (see [RequestRunID]): 1 to
// 200 printable ASCII characters without spaces, quotes or backslashes, so that an ID can be pasted
// unchanged into a shell, a header or the query of a URL.
func ValidRunName(id string) error {
	if id == "" {
		return errors.New("run id is empty")
	}
	if len(id) > 200 {
		return fmt.Errorf("run id %.20q...: %d characters, want at most 200", id, len(id))
	}
	for i := 0; i < len(id); i++ {
		if c := id[i]; c <= ' ' || c > '~' || strings.IndexByte("\"'`\\", c) >= 0 {
			return fmt.Errorf("run id %q: want printable ASCII without spaces, quotes and backslashes, got byte %#02x at %d", id, c, i)
		}
	}
	return nil
}

// ValidRunID checks the ID of a run: the name of a job, then "@" and a tick, or "#" and a name (see
// [ValidRunName]). It does not check whether the run exists.
func ValidRunID(id RunID) error {
	job := id.Job()
	if err := ValidName(job); err != nil {
		return fmt.Errorf("run id %.300q: want <job>@<tick> or <job>#<id>", string(id))
	}
	if _, is := id.Tick(); is {
		return nil
	}
	if id[len(job)] == '@' {
		return fmt.Errorf("run id %.300q: what follows @ is no tick, such as 2026-11-21T01:00:00Z", string(id))
	}
	return ValidRunName(string(id[len(job)+1:]))
}

// crockford is base 32 without the letters that look like digits.
var crockford = base32.NewEncoding("0123456789ABCDEFGHJKMNPQRSTVWXYZ").WithPadding(base32.NoPadding)

// NewRunName returns a name for a run that its requester did not name (see [RequestRunID]). It is
// random and sorts by time: a ULID, which has 48 bits of Unix milliseconds and 80 random bits, in
// 26 characters.
func NewRunName(now time.Time) string {
	// The text has 130 bits, of which the first two are 0. base32 pads on the right instead, so the
	// 128 bits are shifted right by two, into 17 bytes, and the last characters are cut off.
	var id [16]byte
	binary.BigEndian.PutUint64(id[:8], uint64(now.UnixMilli())<<16)
	_, _ = rand.Read(id[6:]) // never fails
	var shifted [17]byte
	for i, b := range id {
		shifted[i] |= b >> 2
		shifted[i+1] = b << 6
	}
	return crockford.EncodeToString(shifted[:])[:26]
}
