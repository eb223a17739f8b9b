package locks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// What a request may ask for. A name is bounded so that a listing stays readable, a bundle and what it tells about
// itself so that one script stays short.
const (
	maxName   = 512     // bytes of a resource's name
	maxBundle = 1000    // resources of a bundle
	maxInfo   = 4 << 10 // bytes of JSON
)

// A Part is one piece of a request: [Exclusive] names resources, [Wait], [Info] and [OnWait] say how to ask for them.
type Part func(*order) error

// order is a request put together from its parts.
type order struct {
	names   []string // sorted, without duplicates
	limited bool     // whether limit counts
	limit   time.Duration
	info    json.RawMessage
	onWait  func(*BusyError)
}

// Exclusive asks for resources that nobody else may hold at the same time. Duplicates count once; the order does not
// matter. A name is 1 to 512 bytes of UTF-8 without control characters; a bundle has 1 to 1,000 of them.
func Exclusive(names ...string) Part {
	return func(o *order) error {
		for _, name := range names {
			if err := checkName(name); err != nil {
				return err
			}
		}
		o.names = append(o.names, names...)
		return nil
	}
}

// Wait bounds how long [Client.Acquire] waits; after it, the error is a [*BusyError]. 0 asks once. Prefer it to a
// deadline on the context, which would end the hold's context too.
func Wait(limit time.Duration) Part {
	return func(o *order) error {
		if limit < 0 {
			return fmt.Errorf("%w: a wait of %s is negative; leave Wait out to wait without limit", ErrInvalid, limit)
		}
		o.limited, o.limit = true, limit
		return nil
	}
}

// Info attaches a JSON value of at most 4 KiB to the request and its hold, for whoever lists them or finds them in the
// way.
func Info(v json.RawMessage) Part {
	return func(o *order) error {
		var compact bytes.Buffer
		if err := json.Compact(&compact, v); err != nil {
			return fmt.Errorf("%w: info is not JSON: %w", ErrInvalid, err)
		}
		if compact.Len() > maxInfo {
			return fmt.Errorf("%w: info has %d bytes; at most %d are kept", ErrInvalid, compact.Len(), maxInfo)
		}
		o.info = compact.Bytes()
		return nil
	}
}

// OnWait has f called once when the bundle is not free and the request was queued; f is told who was in the way, and
// must return soon, because the request is not looked after meanwhile.
func OnWait(f func(*BusyError)) Part {
	return func(o *order) error {
		o.onWait = f
		return nil
	}
}

func newOrder(parts []Part) (*order, error) {
	o := new(order)
	for _, part := range parts {
		if err := part(o); err != nil {
			return nil, err
		}
	}
	slices.Sort(o.names)
	o.names = slices.Compact(o.names)
	switch n := len(o.names); {
	case n == 0:
		return nil, fmt.Errorf("%w: no resource is named; add locks.Exclusive(name)", ErrInvalid)
	case n > maxBundle:
		return nil, fmt.Errorf("%w: %d resources, from %q to %q; a bundle has at most %d: lock something coarser",
			ErrInvalid, n, o.names[0], o.names[n-1], maxBundle)
	}
	return o, nil
}

// items returns the bundle as the scripts want it: each name behind its mode.
func (o *order) items() []any {
	items := make([]any, len(o.names))
	for i, name := range o.names {
		items[i] = "x" + name
	}
	return items
}

func (o *order) String() string { return brief(o.names) }

// brief writes a bundle for an error or a log line.
func brief(names []string) string {
	if len(names) <= 4 {
		return "[" + strings.Join(names, " ") + "]"
	}
	return fmt.Sprintf("[%s and %d more]", strings.Join(names[:3], " "), len(names)-3)
}

func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: a resource's name is empty; give it 1 to %d bytes", ErrInvalid, maxName)
	case len(name) > maxName:
		return fmt.Errorf("%w: the resource %.40q... has %d bytes; use at most %d, or a hash of the name",
			ErrInvalid, name, len(name), maxName)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: the resource %q is not UTF-8; encode it, as hex for example", ErrInvalid, name)
	}
	if i := strings.IndexFunc(name, unicode.IsControl); i >= 0 {
		return fmt.Errorf("%w: the resource %q has a control character at byte %d; leave it out or encode it",
			ErrInvalid, name, i)
	}
	return nil
}
