//go:build unix

package command

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// turns lets few guards start at a time, in the order in which they ask. Guards that all start at
// once share the processors, so the first command starts hardly earlier than the last one. In
// turns, the same work starts half of the commands in half of the time.
type turns struct {
	places chan struct{} // holds an element for each guard that is starting
	// limit is how long a start waits for its turn, and how long a turn lasts. A guard that hangs,
	// such as in a folder of PATH, delays others by no more than this.
	limit time.Duration
}

// newTurns returns turns for as many guards at a time as there are processors.
func newTurns() turns {
	return turns{make(chan struct{}, runtime.GOMAXPROCS(0)), 200 * time.Millisecond}
}

// wait waits for a turn, for the limit, or for the end of ctx. Call the function that it returns
// when the start is over. It is safe to call it again.
func (t turns) wait(ctx context.Context) (over func()) {
	timer := time.NewTimer(t.limit)
	defer timer.Stop()
	select {
	case t.places <- struct{}{}:
		over = sync.OnceFunc(func() { <-t.places })
		time.AfterFunc(t.limit, over)
		return over
	case <-timer.C:
	case <-ctx.Done():
	}
	return func() {}
}
