package admin

import (
	"cmp"
	"context"
	"slices"

	"lockstep/locks"
	"lockstep/locks/space"
)

// Holds returns the holds, the longest first: those of the given sessions, or all when none is
// given.
func (r *Reader) Holds(ctx context.Context, sessions ...locks.SessionID) ([]Holder, error) {
	s, err := r.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	if len(sessions) > 0 {
		s.Holders = slices.DeleteFunc(s.Holders, func(h Holder) bool { return !slices.Contains(sessions, h.Worker) })
	}
	return s.Holders, nil
}

// Waits returns the waiting requests, in the order of their tickets.
func (r *Reader) Waits(ctx context.Context) ([]Wait, error) {
	s, err := r.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return append([]Wait{}, s.Waits...), nil
}

// Locks returns every resource that is held or waited for, by name, without those that only keep
// one run from running twice.
func (r *Reader) Locks(ctx context.Context) ([]Lock, error) {
	s, err := r.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return s.Locks(), nil
}

// Lock returns one resource, including those of runs. Any name is a lock: one without holders and
// waiters is free.
func (r *Reader) Lock(ctx context.Context, name string) (*Lock, error) {
	s, err := r.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return s.Lock(ctx, name)
}

// Lock returns one resource. It reads the limit of permits that are neither held nor wanted, which
// a snapshot does not include.
func (s *Snapshot) Lock(ctx context.Context, name string) (*Lock, error) {
	lock := s.lock(name)
	if len(lock.Holders)+len(lock.Waits) == 0 {
		permits, err := s.space.Permits(ctx, name)
		if err != nil {
			return nil, err
		}
		lock.describe(permits)
	}
	return lock, nil
}

func newLock(name string) *Lock {
	return &Lock{Name: name, Mode: locks.ModeExclusive, Holders: []Holder{}, Waits: []Wait{}}
}

// describe sets how the lock is held, or else wanted.
func (l *Lock) describe(permits map[string]space.PermitRecord) {
	record, declared := permits[l.Name]
	switch {
	case declared:
		l.Mode, l.Limit, l.Used = locks.ModePermits, &record.Permits, &record.Used
	case len(l.Holders) > 0:
		l.Mode = locks.ModeShared
		// A sharer may temporarily hold it exclusively, nested in its share.
		if slices.ContainsFunc(l.Holders, func(h Holder) bool { return h.Of(l.Name) != locks.ModeShared }) {
			l.Mode = locks.ModeExclusive
		}
	case len(l.Waits) > 0:
		l.Mode = l.Waits[0].Of(l.Name)
	}
}

func (s *Snapshot) lock(name string) *Lock {
	lock := newLock(name)
	for _, h := range s.Holders {
		if slices.Contains(h.Bundle, name) {
			lock.Holders = append(lock.Holders, h)
		}
	}
	for _, w := range s.Waits {
		if slices.Contains(w.Wants, name) {
			lock.Waits = append(lock.Waits, w)
		}
	}
	lock.describe(s.permits)
	return lock
}

// Locks returns every resource that is held or waited for, by name, without those that only keep
// one run from running twice.
func (s *Snapshot) Locks() []Lock {
	byName := make(map[string]*Lock)
	get := func(name string) *Lock {
		if byName[name] == nil {
			byName[name] = newLock(name)
		}
		return byName[name]
	}
	for i := range s.Holders {
		for _, name := range s.Holders[i].Locks() {
			lock := get(name)
			lock.Holders = append(lock.Holders, s.Holders[i])
		}
	}
	for _, w := range s.Waits {
		for _, name := range w.Wants {
			lock := get(name)
			lock.Waits = append(lock.Waits, w)
		}
	}
	all := make([]Lock, 0, len(byName))
	for _, lock := range byName {
		lock.describe(s.permits)
		all = append(all, *lock)
	}
	slices.SortFunc(all, func(a, b Lock) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
