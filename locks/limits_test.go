package locks_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/bootclock"
	"lockstep/locks/redistest"
)

// shortest is the shortest lease: its cutoff is 400 ms.
const shortest = 2 * time.Second

func TestMaxHoldEndsWorkBeforeTheLockPassesOn(t *testing.T) {
	t.Parallel()
	opening := time.Now()
	c := openClient(t, redistest.Client(t), locks.Options{Namespace: redistest.Namespace(t), Lease: 6 * time.Second})
	const most = 300 * time.Millisecond
	began := time.Now()
	hold := acquire(t, c, locks.Exclusive("a"), locks.MaxHold(most))
	// The client estimates the server's time by a round trip, and errs on the early side.
	slack := time.Since(opening)
	next := make(chan time.Time, 1)
	go func() {
		release(t, must(c.Acquire(within(t, patient), locks.Exclusive("a"))))
		next <- time.Now()
	}()
	<-hold.Context().Done()
	ended := time.Now()
	if took := ended.Sub(began); took < most-slack {
		t.Errorf("ended after %s, want %s", took, most)
	}
	cause := context.Cause(hold.Context())
	if !errors.Is(cause, locks.ErrExpired) || !errors.Is(cause, locks.ErrLost) || !errors.Is(hold.Lost(), locks.ErrExpired) {
		t.Errorf("got cause %v", cause)
	}
	if left := hold.KillBy() - bootclock.Now(); left > c.Cutoff() {
		t.Errorf("its processes may live for another %s", left)
	}
	// It is not released: the next holder gets it when the cutoff has passed, too.
	if after := (<-next).Sub(ended); after < 0 {
		t.Errorf("granted %s before the work had to end", -after)
	}
	if after := time.Since(began); after < most+c.Cutoff()/2-slack {
		t.Errorf("granted %s after it was taken, want at least %s and half of %s, less %s", after, most, c.Cutoff(), slack)
	}
	if err := hold.Release(); !errors.Is(err, locks.ErrExpired) {
		t.Errorf("got %v from the release", err)
	}
}

func TestReleaseAfterMaxHoldPassesTheLockOn(t *testing.T) {
	t.Parallel()
	c := openClient(t, redistest.Client(t), locks.Options{Namespace: redistest.Namespace(t), Lease: time.Minute})
	hold := acquire(t, c, locks.Exclusive("a"), locks.MaxHold(50*time.Millisecond))
	<-hold.Context().Done()
	if err := hold.Release(); !errors.Is(err, locks.ErrExpired) {
		t.Errorf("got %v", err)
	}
	release(t, acquireAtOnce(t, c, locks.Exclusive("a"))) // not 3 s later
}

func TestMinHoldKeepsTheLockForALateReplica(t *testing.T) {
	t.Parallel()
	c := openClient(t, redistest.Client(t), locks.Options{Namespace: redistest.Namespace(t)})
	began := time.Now()
	const least = 5 * time.Second
	hold := acquire(t, c, locks.Exclusive("a"), locks.Shared("r"), locks.MinHold(least))
	release(t, hold)
	if hold.Context().Err() == nil {
		t.Error("the context is alive after the release")
	}
	e := inTheWay(t, c, "a", locks.Exclusive("a"))
	if e.Holder != "" || e.Hold != hold.ID() || e.LeaseLeft <= 0 || e.LeaseLeft > least {
		t.Errorf("got %+v", e)
	}
	records := holds(t, c)
	if len(records) != 1 || !records[0].Resting || records[0].Session != c.Session() {
		t.Errorf("got %+v, want a hold that rests", records)
	}
	next := acquire(t, c, locks.Exclusive("a", "r")) // woken when the time is up
	if took := time.Since(began); took < least-50*time.Millisecond {
		t.Errorf("granted after %s, want %s", took, least)
	}
	release(t, next)

	late := acquire(t, c, locks.Exclusive("a"), locks.MinHold(time.Millisecond))
	eventually(t, "a millisecond has passed", func() bool { return time.Since(late.Since()) > 20*time.Millisecond })
	release(t, late)
	release(t, acquireAtOnce(t, c, locks.Exclusive("a")))
}

// TestRestThatBeginsBehindAWaitEndsInTime: the client of the wait last learned of other entries of
// the timer wheel, and its lease is long.
func TestRestThatBeginsBehindAWaitEndsInTime(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		o := locks.Options{Namespace: redistest.Namespace(t), Lease: 10 * time.Minute}
		a, b := openClient(t, rdb, o), openClient(t, rdb, o)
		many := make([]string, 40)
		for i := range many {
			many[i] = fmt.Sprint("bill:", i)
		}
		for name, names := range map[string][]string{"one resource": {"a"}, "many resources": many} {
			hold := acquire(t, a, locks.Exclusive(names...), locks.MinHold(time.Second))
			next := make(chan *locks.Hold, 1)
			go func() { next <- must(b.Acquire(within(t, patient), locks.Exclusive(names[len(names)-1]))) }()
			eventually(t, "it waits", func() bool { return len(waits(t, a)) == 1 })
			release(t, hold)
			select {
			case hold := <-next:
				release(t, hold)
			case <-time.After(20 * time.Second):
				t.Fatalf("%s: not granted 20 s after a rest of a second", name)
			}
		}
	})
}

// TestRestOfACrashEndsInTimeBehindAWaitOfTheSameSession: the first wait in the queue belongs to the
// session that has ended.
func TestRestOfACrashEndsInTimeBehindAWaitOfTheSameSession(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		o := locks.Options{Namespace: redistest.Namespace(t), Lease: 10 * time.Minute}
		a, b := openClient(t, rdb, o), openClient(t, rdb, o)
		hold := acquire(t, a, locks.Exclusive("x"), locks.CrashDelay(time.Second))
		sibling, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := a.Acquire(sibling, locks.Exclusive("x"))
			ended <- err
		}()
		eventually(t, "the sibling waits", func() bool { return len(waits(t, b)) == 1 })
		next := make(chan *locks.Hold, 1)
		go func() { next <- must(b.Acquire(within(t, patient), locks.Exclusive("x"))) }()
		eventually(t, "both wait", func() bool { return len(waits(t, b)) == 2 })
		if err := b.Space().EndSession(t.Context(), hold.Session()); err != nil {
			t.Fatal(err)
		}
		select {
		case hold := <-next:
			release(t, hold)
		case <-time.After(20 * time.Second):
			t.Error("not granted 20 s after a rest of a second")
		}
		end()
		if err := <-ended; err == nil {
			t.Error("the sibling got the lock")
		}
	})
}

func TestCrashDelayIsOnlyForCrashes(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	c := openClient(t, server.Client(t), locks.Options{})
	proxy := server.Proxy(t)
	dying, err := patientOpen(t.Context(), proxy.Client(t), locks.Options{Name: "dying", Lease: shortest})
	if err != nil {
		t.Fatal(err)
	}
	const delay = 6 * time.Second
	release(t, acquire(t, dying, locks.Exclusive("orderly"), locks.CrashDelay(delay)))
	release(t, acquireAtOnce(t, c, locks.Exclusive("orderly")))

	hold := acquire(t, dying, locks.Exclusive("a"), locks.CrashDelay(delay))
	proxy.Set(redistest.Faults{DropRequests: true})
	<-hold.Context().Done()
	ended := time.Now()
	eventually(t, "the session has ended", func() bool {
		records := holds(t, c)
		if len(records) == 0 {
			t.Fatal("the lock was free at once")
		}
		_, _ = c.TryAcquire(t.Context(), locks.Exclusive("a")) // some client must call
		return records[0].Resting
	})
	release(t, acquire(t, c, locks.Exclusive("a")))
	// the end may be noticed late
	if took := time.Since(ended); took < delay-2*time.Second {
		t.Errorf("granted %s after the work had ended, want the crash delay of %s", took, delay)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_ = dying.Close(ctx) // no command arrives
}
