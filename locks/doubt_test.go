package locks_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// TestDowngradeCompletesAfterItsContextEnds calls it with a context that has ended, and with one
// that ends while the reply is in flight.
func TestDowngradeCompletesAfterItsContextEnds(t *testing.T) {
	t.Parallel()
	c, direct, p := proxied(t, 15*time.Second)
	hold := acquire(t, c, locks.Exclusive("a"))
	why := errors.New("changed my mind")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := hold.Downgrade(ctx, "a"); !errors.Is(err, why) {
		t.Errorf("got %v, want the cause of the context", err)
	}
	if got := holds(t, direct); len(got) != 1 || got[0].Items[0].Mode != locks.ModeExclusive {
		t.Errorf("got %+v, want it exclusive still", got)
	}

	ctx, cancel = context.WithCancelCause(t.Context())
	p.Set(redistest.Faults{HoldReplies: true})
	done := make(chan error, 1)
	go func() { done <- hold.Downgrade(ctx, "a") }()
	// Whether it has reached Redis by then makes no difference to the outcome.
	time.Sleep(50 * time.Millisecond)
	cancel(why)
	p.Set(redistest.Faults{})
	select {
	case err := <-done:
		if err != nil && !errors.Is(err, why) {
			t.Fatal(err)
		}
		want := locks.ModeShared
		if err != nil {
			want = locks.ModeExclusive
		}
		if got := holds(t, direct); len(got) != 1 || got[0].Items[0].Mode != want || hold.Items()[0].Mode != want {
			t.Errorf("got %+v and %+v here, want both %s", got, hold.Items(), want)
		}
	case <-time.After(patient):
		t.Fatal("it does not end")
	}
	release(t, hold)
}

// TestRequestPastItsLimitDoesNotWait lets the limits of waits pass while the replies that they
// were queued are in flight. If a wait outlasted its call, it could be granted without a holder,
// and block others.
func TestRequestPastItsLimitDoesNotWait(t *testing.T) {
	t.Parallel()
	c, direct, p := proxied(t, 15*time.Second)
	release(t, acquire(t, c, locks.Exclusive("a")))
	hold := acquire(t, direct, locks.Exclusive("a"))
	p.Set(redistest.Faults{RequestDelay: 15 * time.Millisecond, ReplyDelay: 15 * time.Millisecond})
	for range 5 {
		var calls sync.WaitGroup
		slow := make(chan struct{}, 8)
		for range cap(slow) { // so many that most are sent together
			calls.Go(func() {
				_, err := c.Acquire(t.Context(), locks.Exclusive("a"), locks.Wait(10*time.Millisecond))
				var busy *locks.BusyError
				if !errors.As(err, &busy) || busy.Hold != hold.ID() {
					t.Errorf("got %v, want %s in the way", err, hold.ID())
					// that is how long it asks whether it still waits
				} else if busy.Waited > time.Second {
					slow <- struct{}{}
				}
			})
		}
		calls.Wait()
		if got := waits(t, direct); len(got) > len(slow) {
			t.Errorf("%d still wait: %+v", len(got), got)
		}
	}
	release(t, hold)
}

// TestReleaseAppliedTwiceCountsOnce makes releases arrive at Redis twice without their sender's
// knowledge: a cluster client and many a proxy send again by themselves. The copy that gets the
// reply finds nothing; the lock was released all the same.
func TestReleaseAppliedTwiceCountsOnce(t *testing.T) {
	t.Parallel()
	c, direct, p := proxied(t, 15*time.Second)
	release(t, acquire(t, c, locks.Exclusive("warm"))) // Redis knows the scripts
	p.Set(redistest.Faults{Commands: []string{"evalsha"}, Resend: 1})
	for _, parts := range [][]locks.Part{
		{locks.Exclusive("a")}, {locks.Exclusive("a", "b"), locks.Shared("c")}, {locks.Exclusive("a"), locks.MaxHold(time.Hour)},
	} {
		release(t, acquire(t, c, parts...))
	}
	var calls sync.WaitGroup
	for i := range 20 { // so many that some are sent together
		calls.Go(func() { release(t, acquire(t, c, locks.Exclusive(fmt.Sprint(i)))) })
	}
	calls.Wait()
	if got := holds(t, direct); len(got) != 0 {
		t.Errorf("still held: %+v", got)
	}

	// A hold that was revoked before is not mistaken for the effect of a copy.
	for range 5 {
		hold := acquire(t, c, locks.Exclusive("a"))
		// The fault also applies to the message.
		p.Set(redistest.Faults{Commands: []string{"evalsha"}, Resend: 1, ReplyDelay: 5 * time.Millisecond})
		if _, err := direct.Space().Revoke(t.Context(), "a", hold.Token(), locks.Seize, why); err != nil {
			t.Fatal(err)
		}
		// It is ErrRevoked, which is an ErrLost, if the message was there in time.
		if err := hold.Release(); !errors.Is(err, locks.ErrLost) {
			t.Errorf("got %v from the release of what was seized", err)
		}
	}
	hold := acquire(t, c, locks.Exclusive("a"))
	if err := direct.Space().EndSession(t.Context(), c.Session()); err != nil {
		t.Fatal(err)
	}
	if err := hold.Release(); !errors.Is(err, locks.ErrLost) {
		t.Errorf("got %v from the release of what was ended with its session", err)
	}
}

// TestReleaseWithoutAReply makes Redis apply a release and ends its session before any reply.
// The release was in time.
func TestReleaseWithoutAReply(t *testing.T) {
	t.Parallel()
	c, direct, p := proxied(t, 2*time.Second)
	// Redis has the script, and a connection is open
	release(t, acquire(t, c, locks.Exclusive("warm")))
	hold := acquire(t, c, locks.Exclusive("a"))
	p.Set(redistest.Faults{DropReplies: true})
	done := make(chan error, 1)
	go func() { done <- hold.Release() }()
	eventually(t, "the release is applied", func() bool { return len(holds(t, direct)) == 0 })
	if err := <-done; err != nil {
		t.Errorf("got %v", err)
	}
	if _, err := c.Extension().Begin(); !errors.Is(err, locks.ErrNoSession) {
		t.Errorf("got %v: the session has not ended, the test proves nothing", err)
	}
}
