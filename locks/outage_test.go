package locks_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// afterwards bounds how long it takes until locks are granted again after an outage: what is left of leases, a grace time,
// a session that is opened again, and a busy machine.
const afterwards = 30 * time.Second

// TestServerIsHarmedUnderLoad does harm to the server while actors of several clients are at work. What they saw of it must
// be no overlap and no request that is never answered; and afterwards they get locks again.
//
// Nothing is excused here, also where the server loses all data: every client has known the space, so each says again what it
// holds, or was cut off, before the grace time ends. An overlap that remains possible, and that no checker could tell from a
// fault, takes a client that never knew the space ([locks.Options.Grace] unset): there is none here.
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
		pauses bool          // a grace time follows
		do     func(t *testing.T, s *redistest.Server, rdb *redis.Client, away time.Duration)
	}{
		// What is answered is on disk, so that nothing that anybody knows of is lost.
		{"kill, with a log", []string{"appendonly yes", "appendfsync always"}, 500 * time.Millisecond, true, kill},
		{"long kill, with a log", []string{"appendonly yes", "appendfsync always"}, 2 * stormLease, true, kill},
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
			long := span(5 * time.Second)
			if harm.pauses {
				long = span(10 * time.Second)
			}
			ctx, cancel := context.WithTimeout(t.Context(), long)
			defer cancel()
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
			declarePool(t, clients[0]) // who also declares it again, where it was lost, before anything is granted
			var running sync.WaitGroup
			harms, rest := 0, time.Duration(0)
			if harm.pauses {
				rest = stormLease // so that something is granted in between; some harm comes sooner
			}
			running.Go(func() {
				random := rand.New(rand.NewPCG(seed, 100))
				for wait := time.Duration(0); ; wait = time.Duration(random.Float64() * 1.5 * float64(rest)) {
					select {
					case <-ctx.Done():
						return
					case <-time.After(wait + time.Duration(200+random.IntN(800))*time.Millisecond):
					}
					harm.do(t, server, rdb, time.Duration(random.Int64N(int64(harm.away))))
					harms++
				}
			})
			actors.act(ctx)
			running.Wait()
			began := time.Now()
			for _, c := range clients {
				hold, err := c.Acquire(within(t, afterwards), locks.Exclusive("c", "d"), locks.Shared("e"), locks.Permits(pool, poolSize))
				if err != nil {
					t.Fatalf("seed %d: after %d harms: %v", seed, harms, err)
				}
				release(t, hold)
			}
			again := time.Since(began)
			took := emptied(t, clients[0])
			t.Logf("seed %d: %d harms; all could be had %s after the last one, and was given back after another %s", seed, harms,
				again.Round(time.Millisecond), took.Round(time.Millisecond))
			j.verify(t)
		})
	}
}
