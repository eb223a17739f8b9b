package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"lockstep/jobs"
)

const (
	nextNamed  = 3   // waits that AfterRelease names
	nameWithin = 200 // bytes of a name in a sentence
)

// AfterRelease describes, in a clause, which waits get a lock when a holder releases it, as far as
// they are known now.
func (l *Lock) AfterRelease(h *Holder) string {
	name := jobs.Cut(l.Name, nameWithin)
	if len(l.Waits) == 0 {
		return "no request waits for " + name + ": it becomes free"
	}
	waits := "1 request waits for " + name
	if n := len(l.Waits); n > 1 {
		waits = fmt.Sprintf("%d requests wait for %s", n, name)
	}
	next := l.nextAfter(h)
	var named []string
	for _, wait := range next[:min(len(next), nextNamed)] {
		named = append(named, jobs.Cut(cmp.Or(wait.Purpose(), string(wait.ID)), nameWithin))
	}
	switch more := len(next) - len(named); {
	case len(next) == 0:
		return waits + "; none of them can start after this release alone, since other locks or waits block each one"
	case more > 0:
		return fmt.Sprintf("%s; the next are %s and %d more", waits, strings.Join(named, ", "), more)
	case len(named) > 1:
		return waits + "; the next are " + strings.Join(named, ", ")
	}
	return waits + "; the next is " + named[0]
}

// nextAfter returns the waits that get a lock when a holder releases it, in their order: those that
// nothing else blocks.
func (l *Lock) nextAfter(h *Holder) []Wait {
	released := []string{string(h.RunID), string(h.HoldID)}
	var next []Wait
	for _, wait := range l.Waits {
		if len(wait.BlockedBy) > 0 && !slices.ContainsFunc(wait.BlockedBy, func(id string) bool { return !slices.Contains(released, id) }) {
			next = append(next, wait)
		}
	}
	return next
}
