package web

import (
	"context"

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
		seen.Holders = append(seen.Holders, holding{holder, holder.Of(name), sentence(lock.AfterRelease(&holder))})
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

// firstHolder returns the holder that a list names, or nil.
func firstHolder(lock admin.Lock) *admin.Holder {
	if len(lock.Holders) == 0 {
		return nil
	}
	return &lock.Holders[0]
}
