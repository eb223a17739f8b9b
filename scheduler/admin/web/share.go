package web

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	readLimit  = 10 * time.Second // how long one read of Redis may take
	keepAtLast = time.Second      // how long an answer is given to all clients
	// the factor by which it is kept longer than its read took, if that is more
	keepFactor = 5
	keepAtMost = 30 * time.Second // but no longer than this
	keepMost   = 100              // answers kept at a time; a read beyond them serves one client
)

// share merges reads: a client gets an answer that was read a moment ago, or waits for a read in
// progress. The goroutine of the first client does the read.
type share struct {
	mu      sync.Mutex
	answers map[string]*answer // guarded by mu
}

// answer is one read, by the name of its object. It never changes once done is closed.
type answer struct {
	done  chan struct{} // closed by the reading goroutine
	value any
	err   error
	until time.Time // new clients get the answer until then
}

func newShare() *share { return &share{answers: make(map[string]*answer)} }

// shared returns the result of read for a name, read now or a moment ago. It must be treated as
// read-only. An error is shared like an answer, so that the clients that watch an outage do not
// make it worse.
func shared[T any](ctx context.Context, s *share, name string, read func(context.Context) (T, error)) (T, error) {
	value, err := s.get(ctx, name, func(ctx context.Context) (any, error) { return read(ctx) })
	if err != nil {
		var none T
		return none, err
	}
	return value.(T), nil
}

func (s *share) get(ctx context.Context, name string, read func(context.Context) (any, error)) (any, error) {
	s.mu.Lock()
	a := s.answers[name]
	if a != nil && a.fresh() {
		s.mu.Unlock()
		select {
		case <-a.done:
			return a.value, a.err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	a = &answer{done: make(chan struct{}), err: errors.New("the read panicked")}
	s.forget()
	if len(s.answers) < keepMost {
		s.answers[name] = a
	}
	s.mu.Unlock()

	// Others wait for this read, so it continues when the client that happened to be first
	// disconnects.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readLimit)
	defer cancel()
	defer close(a.done)
	began := time.Now()
	a.value, a.err = read(ctx)
	keep := keepAtLast
	if a.err == nil {
		keep = max(keep, min(keepFactor*time.Since(began), keepAtMost))
	}
	a.until = time.Now().Add(keep)
	return a.value, a.err
}

// has returns the answer for a name that can be given without a read, or nil.
func (s *share) has(name string) any {
	s.mu.Lock()
	a := s.answers[name]
	s.mu.Unlock()
	if a == nil || !a.fresh() {
		return nil
	}
	select {
	case <-a.done:
		if a.err == nil {
			return a.value
		}
	default:
	}
	return nil
}

// fresh reports whether the answer is being read or may still be given.
func (a *answer) fresh() bool {
	select {
	case <-a.done:
		return time.Now().Before(a.until)
	default:
		return true
	}
}

// forget drops the answers that are no longer given to clients. The caller holds mu.
func (s *share) forget() {
	for name, a := range s.answers {
		if !a.fresh() {
			delete(s.answers, name)
		}
	}
}
