package space

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ErrInvalid means that a request can never be granted, whatever others do: a bad name, no resource
// or too many, more permits than are declared, a mode that the resource does not have. Nothing has
// changed.
var ErrInvalid = errors.New("invalid lock request")

// Names are bounded to keep listings readable, bundles to keep each script short.
const (
	MaxName   = 512  // bytes of a resource's name
	MaxBundle = 1000 // resources of one bundle
)

// CheckName returns an [ErrInvalid] for an invalid name of a resource. A valid name has 1 to 512
// bytes of UTF-8 without control characters. Every call that takes a name checks it; use CheckName
// to check it earlier.
func CheckName(name string) error {
	if fault := NameFault(name); fault != "" {
		return fmt.Errorf("%w: %s", ErrInvalid, fault)
	}
	return nil
}

// NameFault says what is wrong with a name; "" if it is valid.
func NameFault(name string) string {
	switch {
	case name == "":
		return fmt.Sprintf("a resource's name is empty; give it 1 to %d bytes", MaxName)
	case len(name) > MaxName:
		return fmt.Sprintf("the resource %.40q... has %d bytes; use at most %d, or a hash of the name", name, len(name), MaxName)
	case !utf8.ValidString(name):
		return fmt.Sprintf("the resource %.100q is not UTF-8; encode it, as hex for example", name)
	}
	if i := strings.IndexFunc(name, unicode.IsControl); i >= 0 {
		return fmt.Sprintf("the resource %.100q has a control character at byte %d; leave it out or encode it", name, i)
	}
	return ""
}
