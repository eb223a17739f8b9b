package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"lockstep/locks"
)

var (
	// ErrStale means that a resource has seen a higher token: the holder was superseded and must
	// stop. The error that carries it is a [*StaleError].
	ErrStale = errors.New("fencing token is stale")

	// ErrInvalid means that a check cannot be made, whatever was seen: no resource, a name that a
	// store cannot keep, or a token that no grant has. Nothing was recorded.
	ErrInvalid = errors.New("invalid fencing check")
)

// StaleError says why a token was refused. errors.Is(err, [ErrStale]) is true.
type StaleError struct {
	// Resource is the first of the named resources, in byte order, that has seen a higher token
	Resource string
	Token    locks.Token // the refused token
	Seen     locks.Token // the highest one seen
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("%s: token %s is stale, %s was seen", e.Resource, e.Token, e.Seen)
}

// Is reports whether target is [ErrStale].
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// Store keeps the highest token seen for each resource. [Memory], [Redis] and [SQLStore] are
// stores; [HTTP] needs one.
type Store interface {
	// Check records token for all resources, in one step, unless one of them has seen a higher one;
	// that is a *StaleError. The error is ErrInvalid if there is nothing to check: no resource or
	// no token. After any other error the token may or may not be recorded. It is safe for
	// concurrent use.
	Check(ctx context.Context, token locks.Token, resources ...string) error
}

const (
	maxToken = 1<<53 - 1 // what a number in Lua, and in many readers of JSON, holds exactly
	maxName  = 512       // bytes; an index of PostgreSQL takes no row above 2,700
)

// prepare checks the arguments of a guard and returns the resources sorted, without duplicates. All
// callers use the same order, so no two of them deadlock.
func prepare(token locks.Token, resources []string) ([]string, error) {
	if err := checkToken(token); err != nil {
		return nil, err
	}
	if len(resources) == 0 {
		return nil, fmt.Errorf("%w: no resource is named", ErrInvalid)
	}
	for _, name := range resources {
		if err := checkName("the name of a resource", name); err != nil {
			return nil, err
		}
	}
	sorted := slices.Sorted(slices.Values(resources))
	return slices.Compact(sorted), nil
}

// checkToken refuses a token that no grant has.
func checkToken(token locks.Token) error {
	if token == 0 {
		return fmt.Errorf("%w: the token is 0, which no hold has", ErrInvalid)
	}
	if token > maxToken {
		return fmt.Errorf("%w: token %s is not below 2^53", ErrInvalid, token)
	}
	return nil
}

// checkName refuses a name that a store cannot keep. what says what it names.
func checkName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: %s is empty", ErrInvalid, what)
	case len(name) > maxName:
		return fmt.Errorf("%w: %s has %d bytes, at most %d are kept", ErrInvalid, what, len(name), maxName)
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return fmt.Errorf("%w: %s, %q, is not UTF-8 without NUL", ErrInvalid, what, name)
	}
	return nil
}

// brief shortens the names of a bundle for an error.
func brief(resources []string) string {
	if len(resources) <= 4 {
		return strings.Join(resources, " ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(resources[:3], " "), len(resources)-3)
}
