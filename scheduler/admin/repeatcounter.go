package admin

import (
	"sync"
	"time"
)

// repeatCounter reports the first of a kind at once, and its repeats within a span together, at the
// end of the span. Time is an argument, so that tests need not wait.
type repeatCounter[V any] struct {
	span time.Duration
	most int // kinds that are counted at a time

	mu   sync.Mutex
	open map[string]*counted[V] // guarded by mu
}

// counted is the repeats of a kind since the last report.
type counted[V any] struct {
	since time.Time
	times int
	last  V
}

func newRepeatCounter[V any](span time.Duration, most int) *repeatCounter[V] {
	return &repeatCounter[V]{span: span, most: most, open: make(map[string]*counted[V])}
}

// first reports whether this is the first of its kind for a while, so that it must be reported at
// once. known is false for a kind that exceeds the number of counted kinds.
func (r *repeatCounter[V]) first(kind string, now time.Time) (first, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open[kind] != nil {
		return false, true
	}
	if len(r.open) >= r.most {
		return true, false
	}
	r.open[kind] = &counted[V]{since: now}
	return true, true
}

// count counts a repeat that was not reported.
func (r *repeatCounter[V]) count(kind string, value V, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.open[kind]
	if c == nil { // it was just reported, and forgotten
		c = &counted[V]{since: now}
		r.open[kind] = c
	}
	c.times++
	c.last = value
}

// due returns what must be reported by now, or, with all, everything that was counted. It forgets a
// kind that did not repeat.
func (r *repeatCounter[V]) due(now time.Time, all bool) []counted[V] {
	r.mu.Lock()
	defer r.mu.Unlock()
	var due []counted[V]
	for kind, c := range r.open {
		switch over := now.Sub(c.since) >= r.span; {
		case !over && !all:
		case c.times > 0:
			due = append(due, *c)
			c.since, c.times = now, 0
		case over:
			delete(r.open, kind)
		}
	}
	return due
}

// again puts back repeats that were due and could not be recorded.
func (r *repeatCounter[V]) again(kind string, c counted[V]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if open := r.open[kind]; open != nil {
		open.times += c.times
		if open.times == c.times {
			open.last = c.last
		}
		return
	}
	r.open[kind] = &c
}
