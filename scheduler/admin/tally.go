package admin

import (
	"sync"
	"time"
)

// tally counts repeats: it reports the first of a kind at once, and those that follow within a span
// together, at its end. Time is an argument, so that tests need not wait.
type tally[V any] struct {
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

func newTally[V any](span time.Duration, most int) *tally[V] {
	return &tally[V]{span: span, most: most, open: make(map[string]*counted[V])}
}

// first reports whether this is the first of its kind for a while, so that it must be reported at
// once. known is false for a kind that exceeds the number of counted kinds.
func (t *tally[V]) first(kind string, now time.Time) (first, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open[kind] != nil {
		return false, true
	}
	if len(t.open) >= t.most {
		return true, false
	}
	t.open[kind] = &counted[V]{since: now}
	return true, true
}

// count counts a repeat that was not reported.
func (t *tally[V]) count(kind string, value V, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.open[kind]
	if c == nil { // it was just reported, and forgotten
		c = &counted[V]{since: now}
		t.open[kind] = c
	}
	c.times++
	c.last = value
}

// due returns what must be reported by now, or, with all, everything that was counted. It forgets a
// kind that did not repeat.
func (t *tally[V]) due(now time.Time, all bool) []counted[V] {
	t.mu.Lock()
	defer t.mu.Unlock()
	var due []counted[V]
	for kind, c := range t.open {
		switch over := now.Sub(c.since) >= t.span; {
		case !over && !all:
		case c.times > 0:
			due = append(due, *c)
			c.since, c.times = now, 0
		case over:
			delete(t.open, kind)
		}
	}
	return due
}

// again puts back repeats that were due and could not be recorded.
func (t *tally[V]) again(kind string, c counted[V]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if open := t.open[kind]; open != nil {
		open.times += c.times
		if open.times == c.times {
			open.last = c.last
		}
		return
	}
	t.open[kind] = &c
}
