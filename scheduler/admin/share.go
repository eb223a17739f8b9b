package admin

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	readLimit  = 10 * time.Second // so long one read of Redis may take
	keepAtLast = time.Second      // so long an answer is given to everybody who asks
	keepFactor = 5                // so many times as long as its read took, when that is longer
	keepAtMost = 30 * time.Second // but no longer than this
	keepMost   = 100              // answers kept at a time; what is asked for beyond is read for its asker alone
)

// share makes one read out of many: who asks for what was read a moment ago is given that, and who asks for what is being
// read waits for it. The read happens in the goroutine of who asked first.
type share struct {
	mu      sync.Mutex
	answers map[string]*answer // guarded by mu
}

// answer is one read, by the name of what is read. It never changes once done is closed.
type answer struct {
	done  chan struct{} // closed by who reads
	value any
	err   error
	until time.Time // new askers are given it until then
}

func newShare() *share { return &share{answers: make(map[string]*answer)} }

// shared returns what read returns for a name, read now or a moment ago. It has to be treated as read-only. An error is
// shared like an answer, so that an outage is not made worse by who watches it.
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

	// Others wait for this read, so it does not end when the one who happened to be first goes away.
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

// fresh tells whether the answer is being read or may still be given.
func (a *answer) fresh() bool {
	select {
	case <-a.done:
		return time.Now().Before(a.until)
	default:
		return true
	}
}

// forget drops what is given to nobody any more. The caller holds mu.
func (s *share) forget() {
	for name, a := range s.answers {
		if !a.fresh() {
			delete(s.answers, name)
		}
	}
}
