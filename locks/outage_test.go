package locks_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// afterwards bounds how long it takes until locks are granted again after an outage: the rest of
// leases, a grace period, the opening of a session, and a busy machine.
const afterwards = 30 * time.Second

// TestASessionIsOpenedSoonAfterAnOutage makes the opening of a session hang on a connection that
// carries nothing anymore when the outage is over. With a long lease commands have much time, but
// that one must not use it.
func TestASessionIsOpenedSoonAfterAnOutage(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	proxy := server.Proxy(t)
	ns := redistest.Namespace(t)
	c := openClient(t, proxy.Client(t), locks.Options{Namespace: ns, Name: "far", Lease: 2 * time.Minute})
	near := openClient(t, server.Client(t), locks.Options{Namespace: ns, Name: "near"})
	first := c.Session()
	lease := func() time.Duration {
		sessions, _, err := near.Space().Sessions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(sessions, func(s locks.SessionRecord) bool { return s.ID == first })
		return sessions[i].LeaseLeft
	}
	soon := time.Now().Add(time.Minute).UnixMilli()
	if err := server.Client(t).ZAdd(t.Context(), near.Space().Keys()[0], redis.Z{Score: float64(soon), Member: "s" + string(first)}).Err(); err != nil {
		t.Fatal(err)
	}
	c.Extension().Doubt()
	eventually(t, "it is renewed, over a connection that stays", func() bool { return lease() > time.Minute })
	proxy.Set(redistest.Faults{Refuse: true})
	if err := near.Space().EndSession(within(t, patient), first); err != nil {
		t.Fatal(err)
	}
	c.Extension().Doubt() // it learns of it now, and not by a renewal in 40 s
	eventually(t, "the session has ended there, too", func() bool {
		_, err := c.Extension().Begin()
		return errors.Is(err, locks.ErrNoSession)
	})
	proxy.Set(redistest.Faults{DropRequests: true})
	eventually(t, "an opening of the next one was abandoned, and another one hangs", func() bool {
		_, err := c.Extension().Begin()
		return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
	})
	proxy.Set(redistest.Faults{})
	healed := time.Now()
	eventually(t, "there is another session", func() bool { return c.Session() != first })
	took := time.Since(healed)
	t.Logf("opened %s after the outage", took.Round(time.Millisecond))
	if took > 15*time.Second { // any other command may take 40 s, a third of the lease
		t.Errorf("opened %s after the outage, want about a second", took)
	}
}

// TestClientThatReturnsInTheGracePeriodReassertsWhatItKnows loses the data of Redis while a client
// has no session: it was cut off before, and returns while the others still re-assert what they
// know.
func TestClientThatReturnsInTheGracePeriodReassertsWhatItKnows(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	proxy := server.Proxy(t)
	ns := redistest.Namespace(t)
	recovered := make(chan locks.SessionID, 10)
	c := openClient(t, proxy.Client(t), locks.Options{
		Namespace: ns, Name: "far", Lease: 2 * time.Second,
		Extension: locks.ExtensionOptions{Recover: func(_ context.Context, session locks.SessionID, _ string) error {
			recovered <- session
			return nil
		}},
	})
	near := openClient(t, server.Client(t), locks.Options{Namespace: ns, Name: "near", Lease: time.Minute})
	acquire(t, near, locks.Exclusive("a"))
	first := c.Session()
	proxy.Set(redistest.Faults{DropRequests: true})
	eventually(t, "the session has ended", func() bool {
		_, err := c.Extension().Begin()
		return errors.Is(err, locks.ErrNoSession)
	})
	if err := server.RestartEmpty(t.Context()); err != nil {
		t.Fatal(err)
	}
	rdb := server.Client(t)
	eventually(t, "a grace period of a minute has begun", func() bool {
		near.Extension().Doubt()
		lost, err := rdb.HGet(t.Context(), near.Space().Keys()[6], "lost").Result()
		return err == nil && lost == "1"
	})
	proxy.Set(redistest.Faults{})
	select {
	case session := <-recovered:
		if session == first {
			t.Errorf("it was said under %s, which has ended", session)
		}
	case <-time.After(patient):
		t.Fatal("the returning client re-asserted nothing")
	}
	eventually(t, "the session lives on", func() bool {
		_, err := c.Extension().Begin()
		return err == nil && c.Session() != first
	})
}

// TestServerIsHarmedUnderLoad harms the server while actors of several clients are at work. They
// must see no overlap and no request without a reply, and afterward they must get locks again.
//
// Nothing is excused here, even if the server loses all data: every client has known the space, so
// each re-asserts its holds, or was cut off, before the grace period ends. An overlap that remains
// possible, and that no checker could tell from a fault, requires a client that never knew the
// space ([locks.Options.Grace] unset). This test has none.
func TestServerIsHarmedUnderLoad(t *testing.T) {
	t.Parallel()
	kill := func(t *testing.T, s *redistest.Server, _ *redis.Client, away time.Duration) {
		s.Kill()
		time.Sleep(away)
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	command := func(t *testing.T, rdb *redis.Client, args ...any) {
		if err := rdb.Do(t.Context(), args...).Err(); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
	for _, harm := range []struct {
		name   string
		config []string
		away   time.Duration // at most
		pauses bool          // a grace period follows
		do     func(t *testing.T, s *redistest.Server, rdb *redis.Client, away time.Duration)
	}{
		// Redis writes to a file before it replies, so nothing is lost that a client knows of.
		{"kill, with a log", []string{"appendonly yes"}, 500 * time.Millisecond, true, kill},
		{"long kill, with a log", []string{"appendonly yes"}, 2 * stormLease, true, kill},
		{"kill, without a log", nil, 500 * time.Millisecond, true, kill},
		{"stop", nil, 2 * stormLease, false, func(t *testing.T, s *redistest.Server, _ *redis.Client, away time.Duration) {
			if err := s.Pause(); err != nil {
				t.Error(err)
			}
			time.Sleep(away)
			if err := s.Resume(); err != nil {
				t.Error(err)
			}
		}},
		{"client pause", nil, 2 * stormLease, false, func(t *testing.T, _ *redistest.Server, rdb *redis.Client, away time.Duration) {
			command(t, rdb, "CLIENT", "PAUSE", away.Milliseconds(), "ALL")
			time.Sleep(away)
		}},
		{"pause of writes", nil, stormLease, false, func(t *testing.T, _ *redistest.Server, rdb *redis.Client, away time.Duration) {
			command(t, rdb, "CLIENT", "PAUSE", away.Milliseconds(), "WRITE")
			time.Sleep(away)
		}},
		{"client kill", nil, 100 * time.Millisecond, false, func(t *testing.T, _ *redistest.Server, rdb *redis.Client, away time.Duration) {
			for _, kind := range []string{"normal", "pubsub"} {
				command(t, rdb, "CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
				time.Sleep(away)
			}
		}},
		{"script flush", nil, 20 * time.Millisecond, false, func(t *testing.T, _ *redistest.Server, rdb *redis.Client, away time.Duration) {
			command(t, rdb, "SCRIPT", "FLUSH")
			time.Sleep(away)
		}},
		{"flushall", nil, time.Second, true, func(t *testing.T, _ *redistest.Server, rdb *redis.Client, away time.Duration) {
			command(t, rdb, "FLUSHALL")
			time.Sleep(away)
		}},
	} {
		t.Run(harm.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.New(t, redistest.Options{Config: harm.config})
			rdb := server.Client(t)
			j := newJournal()
			seed := uint64(time.Now().UnixNano())
			var clients []*locks.Client
			var actors cast
			for i := range 3 {
				clients = append(clients, openClient(t, rdb, locks.Options{Namespace: "ns", Name: fmt.Sprint("c", i), Lease: stormLease}))
				for k := range 3 {
					actors = append(actors, &actor{
						client: clients[i], journal: j, rand: rand.New(rand.NewPCG(seed, uint64(10*i+k))), depth: 2, loses: true,
					})
				}
			}
			// Each also declares it again, if it was lost, before it is granted anything.
			for _, c := range clients {
				declarePool(t, c)
			}
			long, rest := span(5*time.Second), time.Duration(0)
			if harm.pauses {
				// This leaves time for grants in between; some harm comes sooner.
				long, rest = span(10*time.Second), stormLease
			}
			var harms atomic.Int64
			ctx := atLeast(t, long, func() bool { return harms.Load() > 0 && j.began() > 0 })
			var running sync.WaitGroup
			running.Go(func() {
				random := rand.New(rand.NewPCG(seed, 100))
				for wait := time.Duration(0); ; wait = time.Duration(random.Float64() * 1.5 * float64(rest)) {
					select {
					case <-ctx.Done():
						return
					case <-time.After(wait + time.Duration(200+random.IntN(800))*time.Millisecond):
					}
					harm.do(t, server, rdb, time.Duration(random.Int64N(int64(harm.away))))
					harms.Add(1)
				}
			})
			actors.act(ctx)
			running.Wait()
			began := time.Now()
			for _, c := range clients {
				hold, err := c.Acquire(within(t, afterwards), locks.Exclusive("c", "d"), locks.Shared("e"), locks.Permits(pool, poolSize))
				if err != nil {
					t.Fatalf("seed %d: after %d harms: %v", seed, harms.Load(), err)
				}
				release(t, hold)
			}
			again := time.Since(began)
			took := emptied(t, clients[0])
			t.Logf("seed %d: %d harms; all could be had %s after the last one, and was given back after another %s", seed, harms.Load(),
				again.Round(time.Millisecond), took.Round(time.Millisecond))
			if harms.Load() == 0 {
				t.Error("no harm was done: the test proves nothing")
			}
			j.verify(t)
		})
	}
}
