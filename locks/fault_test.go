package locks_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// proxied opens a client behind a proxy, and one that sees the server directly.
func proxied(t *testing.T, lease time.Duration) (c, direct *locks.Client, p *redistest.Proxy) {
	t.Helper()
	server, ns := redistest.Shared(t), redistest.Namespace(t)
	p = server.Proxy(t)
	c = openClient(t, p.Client(t), locks.Options{Namespace: ns, Name: "proxied", Lease: lease})
	direct = openClient(t, server.Client(t), locks.Options{Namespace: ns, Name: "direct"})
	return c, direct, p
}

// TestCommandWithALostReplyIsSentAgain loses the replies of acquires and releases that were
// applied.
func TestCommandWithALostReplyIsSentAgain(t *testing.T) {
	t.Parallel()
	c, direct, p := proxied(t, 15*time.Second) // long: renewals lose their replies, too
	// lose runs f, loses its reply, and reports whether f was applied then. If f happens to dial a
	// new connection, the lost reply is the one to the greeting.
	lose := func(what string, applied func() bool, f func() error) bool {
		t.Helper()
		release(t, acquire(t, c, locks.Exclusive("warm"))) // a connection is open
		p.Set(redistest.Faults{DropReplies: true})
		done := make(chan error, 1)
		go func() { done <- f() }()
		lost := false
		for began := time.Now(); !lost && time.Since(began) < time.Second; time.Sleep(time.Millisecond) {
			lost = applied()
		}
		p.Set(redistest.Faults{})
		p.Cut() // and the client learns that no reply will arrive
		if err := <-done; err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		return lost
	}
	var lostAcquires, lostReleases int
	for round := 0; round < 4 || lostAcquires == 0 || lostReleases == 0; round++ {
		if round == 20 {
			t.Fatal("no reply was lost: the test proves nothing")
		}
		var hold *locks.Hold
		if lose("acquire", func() bool { return len(holds(t, direct)) == 1 }, func() (err error) {
			if round%2 == 0 {
				hold, err = c.TryAcquire(within(t, patient), locks.Exclusive("a"))
			} else {
				hold, err = c.Acquire(within(t, patient), locks.Exclusive("a"))
			}
			return err
		}) {
			lostAcquires++
		}
		if got := holds(t, direct); len(got) != 1 || got[0].ID != hold.ID() || got[0].Token != hold.Token() {
			t.Fatalf("got holds %+v, want %s with token %s alone", got, hold.ID(), hold.Token())
		}
		if lose("release", func() bool { return len(holds(t, direct)) == 0 }, hold.Release) {
			lostReleases++
		}
		if got := holds(t, direct); len(got) != 0 {
			t.Fatalf("got holds %+v after the release", got)
		}
	}
}

// TestCanceledInFlight cancels acquires while their requests or replies are in flight.
func TestCanceledInFlight(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]redistest.Faults{
		"request": {RequestDelay: 2 * time.Second}, "reply": {ReplyDelay: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, direct, p := proxied(t, time.Minute)         // renewals are late, too
			release(t, acquire(t, c, locks.Exclusive("a"))) // the connection is open
			p.Set(faults)
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(20*time.Millisecond, cancel)
			began := time.Now()
			if _, err := c.Acquire(ctx, locks.Exclusive("a")); !errors.Is(err, context.Canceled) {
				t.Fatalf("got %v", err)
			}
			if took := time.Since(began); took > 1500*time.Millisecond {
				t.Errorf("returned after %s, want at once", took)
			}
			seen := false
			for began := time.Now(); time.Since(began) < patient; time.Sleep(time.Millisecond) {
				held := len(holds(t, direct)) > 0
				if seen && !held {
					break
				}
				seen = seen || held
			}
			if !seen {
				t.Fatal("the acquire was never applied: the test proves nothing")
			}
			if got := holds(t, direct); len(got) != 0 {
				t.Errorf("still held: %+v", got)
			}
		})
	}
}

// TestSilentPartitionEndsTheContextFirst cuts a holder off without notice. Its context must end
// before the next holder is granted the lock; this process reads both times.
func TestSilentPartitionEndsTheContextFirst(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]redistest.Faults{
		"dropped": {DropRequests: true, DropReplies: true},
		"no way":  {HoldRequests: true},
		// renewals arrive: the lease lives on in Redis until they stop
		"no back": {DropReplies: true},
		"refused": {Refuse: true},
	} {
		for trial := range 2 {
			t.Run(fmt.Sprint(name, trial), func(t *testing.T) {
				t.Parallel()
				c, direct, p := proxied(t, 2*time.Second)
				hold := acquire(t, c, locks.Exclusive("a", "b"))
				other, err := c.Acquire(t.Context(), locks.Exclusive("c"))
				if err != nil {
					t.Fatal(err)
				}
				var running sync.WaitGroup
				defer running.Wait()
				var worked time.Time
				running.Go(func() {
					for at := time.Now(); hold.Context().Err() == nil; at = time.Now() {
						worked = at
						time.Sleep(time.Millisecond)
					}
				})
				// Trials differ in the moment between two renewals.
				time.Sleep(time.Duration(trial) * 300 * time.Millisecond)
				p.Set(faults)
				if faults.Refuse {
					p.Cut()
				}
				next := acquire(t, direct, locks.Exclusive("b"))
				granted := time.Now()
				running.Wait()
				if !worked.Before(granted) {
					t.Errorf("the context ended %s after the next grant", worked.Sub(granted))
				}
				if cause := context.Cause(hold.Context()); !errors.Is(cause, locks.ErrLost) {
					t.Errorf("got cause %v", cause)
				}
				<-other.Context().Done()
				if err := hold.Release(); !errors.Is(err, locks.ErrLost) {
					t.Errorf("got %v from Release, want ErrLost", err)
				}
				if next.Token() <= hold.Token() {
					t.Errorf("got token %s after %s", next.Token(), hold.Token())
				}
				// When the network is back, the client continues in a new session.
				p.Set(redistest.Faults{})
				p.Cut()
				again := acquire(t, c, locks.Exclusive("a"))
				if again.Session() == hold.Session() || again.Token() <= next.Token() {
					t.Errorf("got token %s of session %s", again.Token(), again.Session())
				}
				if next.Context().Err() != nil {
					t.Error("the hold granted meanwhile was ended")
				}
			})
		}
	}
}

// TestShortOutageLosesNothing breaks the network for less than the outage that a lease survives.
func TestShortOutageLosesNothing(t *testing.T) {
	t.Parallel()
	const lease = 15 * time.Second
	c, _, p := proxied(t, lease)
	hold := acquire(t, c, locks.Exclusive("a"))
	for range 3 {
		p.Set(redistest.Faults{Refuse: true})
		p.Cut()
		// The outage: a lease of 15 s survives 6.9 s, and a busy machine needs some of that.
		time.Sleep(lease / 10)
		p.Set(redistest.Faults{})
		time.Sleep(lease / 3) // at least one renewal
		if err := context.Cause(hold.Context()); err != nil {
			t.Fatalf("lost: %v", err)
		}
	}
	release(t, hold)
}

// TestUnreachableRedis checks how the calls end when Redis is unreachable.
func TestUnreachableRedis(t *testing.T) {
	t.Parallel()
	nowhere := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = nowhere.Close() })
	began := time.Now()
	if _, err := locks.Open(t.Context(), nowhere, locks.Options{}); err == nil {
		t.Error("opened a client of nothing")
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("open failed after %s", took)
	}

	log := new(lines)
	p := redistest.Shared(t).Proxy(t)
	c := openClient(t, p.Client(t), locks.Options{
		Namespace: redistest.Namespace(t), Lease: 2 * time.Second, Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	hold := acquire(t, c, locks.Exclusive("a"))
	p.Set(redistest.Faults{Refuse: true})
	p.Cut()
	<-hold.Context().Done()
	eventually(t, "the cut-off is logged as an error", func() bool {
		return strings.Contains(log.text(), `level=ERROR msg="lock session cut off"`)
	})
	if _, err := c.TryAcquire(t.Context(), locks.Exclusive("b")); !errors.Is(err, locks.ErrNoSession) || errors.Is(err, locks.ErrLost) {
		t.Errorf("try: got %v, want ErrNoSession", err)
	}
	if _, err := c.Extension().Begin(); !errors.Is(err, locks.ErrNoSession) || errors.Is(err, locks.ErrLost) {
		t.Errorf("begin: got %v, want ErrNoSession", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Acquire(ctx, locks.Exclusive("b")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("acquire: got %v, want the context's error", err)
	}
	if _, err := c.Acquire(t.Context(), locks.Exclusive("b"), locks.Wait(50*time.Millisecond)); err == nil {
		t.Error("acquire with a limit: got a hold")
	}
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began = time.Now()
	_ = c.Close(ctx)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("close took %s with Redis away", took)
	}
}

// TestCloseEndsWithTheLease closes clients of an unreachable Redis, with a context that does not
// end.
func TestCloseEndsWithTheLease(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]redistest.Faults{
		"refused": {Refuse: true}, "silent": {DropRequests: true, DropReplies: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const lease = 3 * time.Second
			p := redistest.Shared(t).Proxy(t)
			c, err := patientOpen(t.Context(), p.Client(t), locks.Options{Namespace: redistest.Namespace(t), Lease: lease})
			if err != nil {
				t.Fatal(err)
			}
			acquire(t, c, locks.Exclusive("a"))
			p.Set(faults)
			if faults.Refuse {
				p.Cut()
			}
			closed := make(chan error, 1)
			began := time.Now()
			go func() { closed <- c.Close(context.WithoutCancel(t.Context())) }()
			select {
			case err := <-closed:
				if took := time.Since(began); err == nil || took > lease+time.Second {
					t.Errorf("closed with %v after %s, want an error within the lease", err, took)
				}
			case <-time.After(lease + patient):
				t.Error("close does not return")
				p.Set(redistest.Faults{}) // now it can
				if err := <-closed; err != nil {
					t.Error(err)
				}
			}
		})
	}
}
