package locks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"lockstep/locks/space"
)

// maxInfo bounds the info of a request, to keep each script short.
const maxInfo = 4 << 10 // bytes of JSON

// A Part is one piece of a request. [Exclusive], [Shared], [AtMost] and [Permits] name resources
// and mix in one bundle. [Wait], [MaxHold], [MinHold], [CrashDelay], [Info] and [OnWait] say how to
// request them.
type Part func(*spec) error

// spec is a request assembled from its parts.
type spec struct {
	items   []Item // sorted by names, without duplicates
	bounded bool   // whether limit counts
	limit   time.Duration
	limits  limits
	info    json.RawMessage
	onWait  func(*BusyError)
}

// limits are the times that bound a hold; 0 for none.
type limits struct {
	most  time.Duration // until its context ends
	least time.Duration // that its bundle stays taken
	crash time.Duration // that its bundle stays taken when its session has ended by itself
}

// text returns the limits as the scripts read them. Redis ends a hold by its max hold slack later
// than this process does.
func (l limits) text(slack time.Duration) string {
	if l.most == 0 && l.least == 0 && l.crash == 0 {
		return ""
	}
	most := int64(0)
	if l.most > 0 {
		most = (l.most + slack).Milliseconds()
	}
	return fmt.Sprintf("%d,%d,%d", most, l.least.Milliseconds(), l.crash.Milliseconds())
}

func (o *spec) add(mode Mode, n int, names ...string) error {
	for _, name := range names {
		if err := CheckName(name); err != nil {
			return err
		}
		o.items = append(o.items, Item{Name: name, Mode: mode, N: n})
	}
	return nil
}

// Exclusive asks for resources that no other hold may have at the same time, in any mode.
// Duplicates count once, and the order does not matter. A name is 1 to 512 bytes of UTF-8 without
// control characters. A bundle has 1 to 1,000 names.
func Exclusive(names ...string) Part {
	return func(o *spec) error { return o.add(ModeExclusive, 0, names...) }
}

// Shared asks for resources that others may share, but that none may hold exclusively at the same
// time: the readers' side of a read-write lock.
func Shared(names ...string) Part {
	return func(o *spec) error { return o.add(ModeShared, 0, names...) }
}

// AtMost asks for resources that at most n may share, including this request. The limit belongs to
// the request and is stored nowhere. Use it for a limit of the code that asks, and [Permits] for
// one that all clients must agree on.
func AtMost(n int, names ...string) Part {
	return func(o *spec) error {
		if n < 1 || n > MaxPermits {
			return fmt.Errorf("%w: at most %d may share a resource; use 1 to %d", ErrInvalid, n, MaxPermits)
		}
		return o.add(ModeShared, n, names...)
	}
}

// Permits asks for n permits of a resource with a limit that was declared with [Client.Declare]: a
// counting semaphore.
func Permits(name string, n int) Part {
	return func(o *spec) error {
		if n < 1 || n > MaxPermits {
			return fmt.Errorf("%w: %d permits of %.100q; ask for 1 to %d", ErrInvalid, n, name, MaxPermits)
		}
		return o.add(ModePermits, n, name)
	}
}

// MaxHold bounds how long the bundle is held, counted from the grant. After d its context ends with
// the cause [ErrExpired]; [Client.Cutoff] later the bundle passes on, released or not.
func MaxHold(d time.Duration) Part {
	return func(o *spec) error { return bound(&o.limits.most, "max hold", d) }
}

// MinHold keeps the bundle taken for at least d from the grant on, even if it is released earlier.
// So a replica that is late, by its clock or its load, does not repeat work that was just done.
func MinHold(d time.Duration) Part {
	return func(o *spec) error { return bound(&o.limits.least, "min hold", d) }
}

// CrashDelay keeps the bundle taken for d after a crash, so that what the process left behind can
// settle. A crash is a session that ends by itself, because the process died or lost Redis, or that
// a parent process ends ([Space.EndSession]). [Client.Close] is not a crash.
func CrashDelay(d time.Duration) Part {
	return func(o *spec) error { return bound(&o.limits.crash, "crash delay", d) }
}

const maxLimit = 365 * 24 * time.Hour // of a hold; a longer limit is an error

func bound(limit *time.Duration, what string, d time.Duration) error {
	switch {
	case d < 0:
		return fmt.Errorf("%w: a %s of %s is negative", ErrInvalid, what, d)
	case d > maxLimit:
		return fmt.Errorf("%w: a %s of %s is longer than a year; leave it out", ErrInvalid, what, d)
	case d > 0 && d < time.Millisecond:
		return fmt.Errorf("%w: a %s of %s is shorter than a millisecond", ErrInvalid, what, d)
	}
	*limit = d
	return nil
}

// Wait bounds how long [Client.Acquire] waits; at the limit the error is a [*BusyError]. 0 asks
// once. Prefer it to a deadline on the context, which would end the hold's context, too.
func Wait(limit time.Duration) Part {
	return func(o *spec) error {
		if limit < 0 {
			return fmt.Errorf("%w: a wait of %s is negative; leave Wait out to wait without limit", ErrInvalid, limit)
		}
		o.bounded, o.limit = true, limit
		return nil
	}
}

// Info attaches a JSON value of at most 4 KiB to the request and its hold, for callers that list
// them or find them in the way.
func Info(v json.RawMessage) Part {
	return func(o *spec) error {
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

// OnWait calls f once when the bundle is not free and the request was queued. f receives what is in
// the way. It must return soon, because the request is not attended to meanwhile.
func OnWait(f func(*BusyError)) Part {
	return func(o *spec) error {
		o.onWait = f
		return nil
	}
}

// BundleOf returns the bundle that a request with these parts asks for, sorted by name, or the
// error with which [Client.Acquire] refuses them. It asks Redis for nothing.
func BundleOf(parts ...Part) ([]Item, error) {
	o, err := newSpec(parts)
	if err != nil {
		return nil, err
	}
	return o.items, nil
}

// newSpec assembles a request: it sorts the bundle, and checks what no single part can check.
func newSpec(parts []Part) (o *spec, err error) {
	o = new(spec)
	for _, part := range parts {
		if err := part(o); err != nil {
			return nil, err
		}
	}
	if o.items, err = Bundle(o.items); err != nil {
		return nil, err
	}
	switch n := len(o.items); {
	case n == 0:
		return nil, fmt.Errorf("%w: no resource is named; add locks.Exclusive(name)", ErrInvalid)
	case n > MaxBundle:
		return nil, fmt.Errorf("%w: %d resources, from %q to %q; a bundle has at most %d: lock something coarser",
			ErrInvalid, n, o.items[0].Name, o.items[n-1].Name, MaxBundle)
	}
	return o, nil
}

// plain reports whether the scripts have a fast path for the request.
func (o *spec) plain(n *nest) bool {
	shared := slices.ContainsFunc(n.rest, func(item Item) bool { return item.Mode != ModeExclusive })
	return !shared && len(n.under) == 0 && o.limits.text(0) == ""
}

func (o *spec) String() string { return brief(o.items) }

// brief shortens a bundle for an error or a log line.
func brief(items []Item) string {
	names := space.NamesOf(items)
	if len(names) <= 4 {
		return "[" + strings.Join(names, " ") + "]"
	}
	return fmt.Sprintf("[%s and %d more]", strings.Join(names[:3], " "), len(names)-3)
}
