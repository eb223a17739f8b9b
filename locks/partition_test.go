package locks_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// TestGrantThatArrivesAfterItsMaxHoldIsOverAtOnce keeps back the reply to a request with a max hold
// until Redis has passed the lock on.
func TestGrantThatArrivesAfterItsMaxHoldIsOverAtOnce(t *testing.T) {
	t.Parallel()
	for range 10 {
		c, direct, p := proxied(t, 6*time.Second)
		release(t, acquire(t, c, locks.Exclusive("a"))) // Redis has the scripts
		var warm sync.WaitGroup
		for range 8 { // connections are open; a new one would have to greet first
			warm.Go(func() { _, _ = c.Space().Read(t.Context()) })
		}
		warm.Wait()
		p.Set(redistest.Faults{HoldReplies: true, Commands: []string{"evalsha"}})
		type result struct {
			hold  *locks.Hold
			alive error
		}
		done := make(chan result, 1)
		go func() {
			hold, err := c.Acquire(within(t, patient), locks.Exclusive("a"), locks.MaxHold(20*time.Millisecond))
			if err != nil {
				t.Error(err)
				close(done)
				return
			}
			done <- result{hold, hold.Context().Err()}
		}()
		eventually(t, "it is granted", func() bool { return len(holds(t, direct)) == 1 })
		next := acquire(t, direct, locks.Exclusive("a"))
		p.Set(redistest.Faults{})
		// in case the lock is requested again
		time.AfterFunc(2*time.Second, func() { _ = next.Release() })
		got, ok := <-done
		if !ok {
			t.FailNow()
		}
		if got.hold.Token() > next.Token() {
			continue // the machine was slow: the request was sent again, and granted later
		}
		if got.alive == nil {
			t.Errorf("the hold with token %s is alive, after one with token %s was granted", got.hold.Token(), next.Token())
		}
		if cause := context.Cause(got.hold.Context()); !errors.Is(cause, locks.ErrExpired) {
			t.Errorf("got cause %v, want ErrExpired", cause)
		}
		if err := got.hold.Release(); !errors.Is(err, locks.ErrLost) {
			t.Errorf("got %v from Release, want ErrLost", err)
		}
		return
	}
	t.Error("no answer came late: the test proves nothing")
}
