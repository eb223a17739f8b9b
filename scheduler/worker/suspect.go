package worker

import (
	"sync"
	"time"
)

// suspect is the one place that a worker has for a run that has crashed before. If a run is what kills its workers, the
// others that it takes down with it become suspects as well; since no two suspects share a worker, it takes none of
// them down a second time. The zero value is free.
type suspect struct {
	mu    sync.Mutex
	since time.Time // when it was taken; zero while it is free
}

// take takes the place, if it is free.
func (s *suspect) take() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.since.IsZero() {
		return false
	}
	s.since = time.Now()
	return true
}

func (s *suspect) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = time.Time{}
}

const (
	putOffLeast = 20 * time.Millisecond
	putOffMost  = time.Second // less than an unconfirmed push may be old before the sweep repeats it
)

// pause returns how long a second suspect stays away before it is offered to all workers again, this one included: as
// long as the place has been taken. So it comes back soon when it finds another worker or this run is short, and each
// time later when it does not.
func (s *suspect) pause() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() {
		return putOffLeast
	}
	return min(max(time.Since(s.since), putOffLeast), putOffMost)
}
