package web

import (
	"context"
	"fmt"
	"slices"

	"lockstep/locks"
	"lockstep/scheduler/admin"
)

// mostWaiters bounds the holders and the waiters of one lock that its page shows.
const mostWaiters = 30

func (s *Server) lockPages() {
	s.show("/locks", "locks", s.locksPage, with(admin.LockFilters, "limit", "cursor")...)
	s.show("/locks/{lock}", "lock", s.lockPage, "at", "cursor")
}

// locksPage lists the locks that are held or waited for.
func (s *Server) locksPage(ctx context.Context, q question, v *view) error {
	snapshot, err := s.snapshot(ctx)
	if err != nil {
		return err
	}
	filter, err := s.filter(ctx, q)
	if err != nil {
		return err
	}
	all := filter.Locks(snapshot.Locks())
	v.Title, v.Now = "Locks", snapshot.At
	v.Seen = struct {
		rows[admin.Lock]
		Held, Waits int
	}{newRows(s, q, cut(q, all, func(lock *admin.Lock) string { return lock.Name })), len(all), len(snapshot.Waits)}
	v.filterBy(admin.LockFilters, nil)
	return nil
}

// lockSeen is what the page of a lock shows.
type lockSeen struct {
	Lock     *admin.Lock
	Holders  []holding
	Waits    []admin.Wait
	MoreHold int
	MoreWait int
	Past     past
}

// holding is a holder of a lock, and what happens when it releases it.
type holding struct {
	admin.Holder
	Mode  locks.Mode
	After string
}

func (s *Server) lockPage(ctx context.Context, q question, v *view) error {
	snapshot, err := s.snapshot(ctx)
	if err != nil {
		return err
	}
	name := q.path("lock")
	lock, err := shared(ctx, s.read, "lock "+name, func(ctx context.Context) (*admin.Lock, error) { return snapshot.Lock(ctx, name) })
	if err != nil {
		return err
	}
	v.Page, v.Title, v.Now = "locks", name, snapshot.At
	seen := lockSeen{Lock: lock}
	for _, holder := range lock.Holders[:min(len(lock.Holders), mostWaiters)] {
		seen.Holders = append(seen.Holders, holding{holder, holder.Of(name), afterRelease(lock, &holder)})
	}
	seen.MoreHold = len(lock.Holders) - len(seen.Holders)
	seen.Waits = lock.Waits[:min(len(lock.Waits), mostWaiters)]
	seen.MoreWait = len(lock.Waits) - len(seen.Waits)
	if seen.Past, err = s.past(ctx, q, snapshot, admin.HoldFilter{Lock: name}); err != nil {
		return err
	}
	v.Seen = seen
	return nil
}

// nextAfter returns the waits that get a lock when a holder releases it, in their order: those that
// nothing else blocks.
func nextAfter(lock *admin.Lock, holder *admin.Holder) []admin.Wait {
	released := []string{string(holder.RunID), string(holder.HoldID)}
	var next []admin.Wait
	for _, wait := range lock.Waits {
		if len(wait.BlockedBy) > 0 && !slices.ContainsFunc(wait.BlockedBy, func(id string) bool { return !slices.Contains(released, id) }) {
			next = append(next, wait)
		}
	}
	return next
}

// afterRelease says what happens when a holder releases a lock, as far as the waits are known now.
func afterRelease(lock *admin.Lock, holder *admin.Holder) string {
	wait := plural(len(lock.Waits), "request waits", "requests wait") + " for " + shorten(lock.Name, 80)
	if len(lock.Waits) == 0 {
		return "No request waits for " + shorten(lock.Name, 80) + ": it becomes free."
	}
	next := nextAfter(lock, holder)
	if len(next) == 0 {
		return wait + "; none of them can start after this release alone, since other locks or waits block each one."
	}
	names := make([]string, 0, mostBlockers)
	for _, one := range next[:min(len(next), mostBlockers)] {
		names = append(names, nameOf(&one))
	}
	text := wait + "; the next is " + names[0]
	if len(names) > 1 {
		text = wait + "; the next are " + join(names)
	}
	if more := len(next) - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text + "."
}

// nameOf returns the name of a waiter for a sentence.
func nameOf(wait *admin.Wait) string {
	if purpose := wait.Purpose(); purpose != "" {
		return shorten(purpose, 200)
	}
	return string(wait.ID)
}

// join lists words in a sentence.
func join(words []string) string {
	text := words[0]
	for _, word := range words[1:] {
		text += ", " + word
	}
	return text
}

// firstHolder returns the holder that a list names, or nil.
func firstHolder(lock admin.Lock) *admin.Holder {
	if len(lock.Holders) == 0 {
		return nil
	}
	return &lock.Holders[0]
}
