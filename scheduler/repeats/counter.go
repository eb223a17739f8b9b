package repeats

import (
	"sync"
	"time"
)

// Counter reports the first of a kind at once, and its repeats within a span together, at the end
// of the span. It leaves the report to its user; a [Logger] writes it as a log line. Time is an
// argument, so that tests need not wait. A Counter is safe for concurrent use.
type Counter[V any] struct {
	span time.Duration
	most int // kinds that are counted at a time

	mu   sync.Mutex
	open map[string]*Counted[V] // guarded by mu
}

// Counted is the repeats of a kind since the last report.
type Counted[V any] struct {
	since time.Time
	Times int
	Last  V // the value of the last of them
}

// NewCounter returns a counter of at most most kinds at a time.
func NewCounter[V any](span time.Duration, most int) *Counter[V] {
	return &Counter[V]{span: span, most: most, open: make(map[string]*Counted[V])}
}

// First reports whether this is the first of its kind for a while, so that it must be reported at
// once. known is false for a kind that exceeds the number of counted kinds.
func (r *Counter[V]) First(kind string, now time.Time) (first, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open[kind] != nil {
		return false, true
	}
	if len(r.open) >= r.most {
		return true, false
	}
	r.open[kind] = &Counted[V]{since: now}
	return true, true
}

// Count counts a repeat that was not reported.
func (r *Counter[V]) Count(kind string, value V, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.open[kind]
	if c == nil { // it was just reported, and forgotten
		c = &Counted[V]{since: now}
		r.open[kind] = c
	}
	c.Times++
	c.Last = value
}

// Take is First, and for a repeat Count. It also returns the repeats of the kind if its span is
// over. The next span of the kind begins now.
func (r *Counter[V]) Take(kind string, value V, now time.Time) (first bool, counted Counted[V], over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.open[kind]
	if c == nil {
		if len(r.open) < r.most {
			r.open[kind] = &Counted[V]{since: now}
		}
		return true, counted, false
	}
	c.Times++
	c.Last = value
	if now.Sub(c.since) < r.span {
		return false, counted, false
	}
	counted = *c
	c.since, c.Times = now, 0
	return false, counted, true
}

// Due returns what must be reported by now, or, with all, everything that was counted. It forgets a
// kind that did not repeat.
func (r *Counter[V]) Due(now time.Time, all bool) []Counted[V] {
	r.mu.Lock()
	defer r.mu.Unlock()
	var due []Counted[V]
	for kind, c := range r.open {
		switch over := now.Sub(c.since) >= r.span; {
		case !over && !all:
		case c.Times > 0:
			due = append(due, *c)
			c.since, c.Times = now, 0
		case over:
			delete(r.open, kind)
		}
	}
	return due
}

// Again puts back repeats that were due and could not be recorded.
func (r *Counter[V]) Again(kind string, c Counted[V]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if open := r.open[kind]; open != nil {
		open.Times += c.Times
		if open.Times == c.Times {
			open.Last = c.Last
		}
		return
	}
	r.open[kind] = &c
}
