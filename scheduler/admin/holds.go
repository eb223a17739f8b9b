package admin

import (
	"cmp"
	"context"
	"slices"

	"lockstep/locks"
)

// Holds returns who holds what, the longest hold first: of the given sessions, or of all when none is given.
func (r *Reader) Holds(ctx context.Context, sessions ...locks.SessionID) ([]Holder, error) {
	s, err := r.scene(ctx)
	if err != nil {
		return nil, err
	}
	if len(sessions) > 0 {
		s.holders = slices.DeleteFunc(s.holders, func(h Holder) bool { return !slices.Contains(sessions, h.Worker) })
	}
	return s.holders, nil
}

// Waits returns who waits for a bundle, in the order of their tickets.
func (r *Reader) Waits(ctx context.Context) ([]Wait, error) {
	s, err := r.scene(ctx)
	if err != nil {
		return nil, err
	}
	return append([]Wait{}, s.waits...), nil
}

// Locks returns every resource that somebody holds or waits for, by name, without those that only keep one run from
// running twice.
func (r *Reader) Locks(ctx context.Context) ([]Lock, error) {
	s, err := r.scene(ctx)
	if err != nil {
		return nil, err
	}
	return s.locks(), nil
}

// Lock returns one resource, those of runs included. Any name is a lock: one that nobody holds or waits for is free.
func (r *Reader) Lock(ctx context.Context, name string) (*Lock, error) {
	s, err := r.scene(ctx)
	if err != nil {
		return nil, err
	}
	return s.lock(name), nil
}

func newLock(name string) *Lock {
	return &Lock{Name: name, Mode: Exclusive, Holders: []Holder{}, Waits: []Wait{}}
}

func (s *scene) lock(name string) *Lock {
	lock := newLock(name)
	for _, h := range s.holders {
		if slices.Contains(h.Bundle, name) {
			lock.Holders = append(lock.Holders, h)
		}
	}
	for _, w := range s.waits {
		if slices.Contains(w.Wants, name) {
			lock.Waits = append(lock.Waits, w)
		}
	}
	return lock
}

func (s *scene) locks() []Lock {
	byName := make(map[string]*Lock)
	get := func(name string) *Lock {
		if byName[name] == nil {
			byName[name] = newLock(name)
		}
		return byName[name]
	}
	for i := range s.holders {
		for _, name := range s.holders[i].Locks() {
			lock := get(name)
			lock.Holders = append(lock.Holders, s.holders[i])
		}
	}
	for _, w := range s.waits {
		for _, name := range w.Wants {
			lock := get(name)
			lock.Waits = append(lock.Waits, w)
		}
	}
	all := make([]Lock, 0, len(byName))
	for _, lock := range byName {
		all = append(all, *lock)
	}
	slices.SortFunc(all, func(a, b Lock) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
