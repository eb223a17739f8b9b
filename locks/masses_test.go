package locks_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// busyLease outlives a stall of a busy machine: one of 45 s ended when the machine stalled for 7 s
// while a process under the race detector asserted 60,000 holds.
const busyLease = 2 * time.Minute

// acquireMany acquires n bundles in some goroutines; of makes the parts of each.
func acquireMany(t *testing.T, c *locks.Client, n int, of func(i int) []locks.Part) []*locks.Hold {
	t.Helper()
	held := make([]*locks.Hold, n)
	// It bounds the acquiring, not the holds.
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	bound := time.AfterFunc(10*patient, cancel)
	defer bound.Stop()
	var next atomic.Int64
	var running sync.WaitGroup
	for range 256 {
		running.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && !t.Failed(); i = int(next.Add(1)) - 1 {
				hold, err := c.Acquire(ctx, of(i)...)
				if err != nil {
					t.Errorf("acquire %d: %v", i, err)
					return
				}
				held[i] = hold
			}
		})
	}
	running.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return held
}

// TestMassesOfHoldsSurviveTheLossOfAllData empties Redis under a process with masses of holds. Each
// hold is valid afterward, in Redis and in the process. With LOCKSTEP_SOAK there are more of them,
// and they survive under the default lease; without it, the lease is one that a busy machine keeps.
func TestMassesOfHoldsSurviveTheLossOfAllData(t *testing.T) {
	if testing.Short() {
		t.Skip("acquires 85,000 locks")
	}
	t.Parallel()
	bundle := func(of int, part func(names ...string) locks.Part) func(i int) []locks.Part {
		return func(i int) []locks.Part {
			names := make([]string, of)
			for k := range names {
				names[k] = fmt.Sprintf("part:%d:%d", i, k)
			}
			return []locks.Part{part(names...)}
		}
	}
	single, fours, lease := 60_000, 5_000, busyLease
	if locks.Soak() > 1 {
		single, fours, lease = 200_000, 100_000, 0
	}
	for _, test := range []struct {
		name  string
		holds int
		of    func(i int) []locks.Part
	}{
		{"single holds", single, bundle(1, locks.Exclusive)},
		{"holds of 4 names", fours, bundle(4, locks.Exclusive)},
		{"holds of 1,000 names", 100, bundle(1000, locks.Exclusive)},
		{"holds of 1,000 shared names", 20, bundle(1000, locks.Shared)},
	} {
		t.Run(test.name, func(t *testing.T) {
			rdb := redistest.New(t, redistest.Options{}).Client(t)
			c := openClient(t, rdb, locks.Options{Lease: lease})
			held := acquireMany(t, c, test.holds, test.of)
			survives(t, c, held, func() {
				slowLog(t, rdb)
				if err := rdb.FlushAll(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
			}, func() {
				// Its reply reports the loss, so that the next renewal is sent at once.
				if _, err := c.TryAcquire(t.Context(), locks.Exclusive("another")); err == nil {
					t.Error("got a lock of an emptied Redis at once")
				}
			})
			pagesAreShort(t, rdb)
		})
	}
}

// TestMassesOfHoldsSurviveAFailover replaces the master under a process with masses of holds, at
// the pace of Sentinel as it is shipped. With LOCKSTEP_SOAK there are more of them, and they
// survive under the default lease.
func TestMassesOfHoldsSurviveAFailover(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a topology and acquires 20,000 locks")
	}
	t.Parallel()
	single, lease := 20_000, busyLease
	if locks.Soak() > 1 {
		single, lease = 200_000, 0
	}
	s := redistest.NewSentinel(t, redistest.SentinelOptions{Replicas: 1, ShippedPace: true, DownAfter: 2 * time.Second})
	c := openClient(t, s.Client(t), locks.Options{Lease: lease})
	held := acquireMany(t, c, single, func(i int) []locks.Part { return []locks.Part{locks.Exclusive(fmt.Sprint("part:", i))} })
	awaitWrites(t, s.Client(t), "written")
	survives(t, c, held, func() {
		if err := s.Failover(t.Context()); err != nil {
			t.Fatal(err)
		}
		// The old master may still reply. The first reply of the new one reports the loss, so that
		// the next renewal is sent at once. From then on the space is in its grace period, for
		// longer than the lease.
		eventually(t, "the new master replies", func() bool {
			_, err := c.TryAcquire(t.Context(), locks.Exclusive("another"))
			return errors.Is(err, locks.ErrGrace)
		})
	}, func() {})
}

// survives harms Redis, lets the client notice that, and waits until the session is renewed: that
// is refused until the space has all of its holds again.
func survives(t *testing.T, c *locks.Client, held []*locks.Hold, harm, notice func()) {
	t.Helper()
	session, first := c.Session(), held[0]
	harm()
	began, renewed := time.Now(), first.KillBy()
	notice()
	for first.KillBy() <= renewed {
		if lost := first.Lost(); lost != nil {
			t.Fatalf("%s after the loss: %v", time.Since(began).Round(time.Millisecond), lost)
		}
		if time.Since(began) > 4*patient {
			t.Fatalf("the session was not renewed within %s", 4*patient)
		}
		_ = sleep(t.Context(), 5*time.Millisecond)
	}
	t.Logf("%d holds were asserted %s after the loss", len(held), time.Since(began).Round(time.Millisecond))
	there := make(map[locks.HoldID]bool, len(held))
	for _, h := range holds(t, c) {
		there[h.ID] = true
	}
	lost, missing := 0, 0
	for _, h := range held {
		if h.Lost() != nil || context.Cause(h.Context()) != nil {
			lost++
		}
		if !there[h.ID()] {
			missing++
		}
	}
	if lost > 0 || missing > 0 || c.Session() != session {
		t.Errorf("%d holds were lost, %d are missing in Redis, the session was %s and is %s", lost, missing, session, c.Session())
	}
}

// slowLog makes Redis log every script from now on, and not each command in it.
func slowLog(t *testing.T, rdb redis.UniversalClient) {
	t.Helper()
	for _, set := range [][2]string{{"slowlog-log-slower-than", "100"}, {"slowlog-max-len", "100000"}} {
		if err := rdb.ConfigSet(t.Context(), set[0], set[1]).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := rdb.Do(t.Context(), "SLOWLOG", "RESET").Err(); err != nil {
		t.Fatal(err)
	}
}

// pagesAreShort checks that no page of an assertion grows with the names of its holds: 200 holds of
// 1,000 names in one page took 409 ms. A page is sent once, and a busy machine adds to its time.
// The pages of a test are alike, so the test looks at the faster ones, and its bound is far above
// the 1 to 3 ms that they take on a machine of their own.
func pagesAreShort(t *testing.T, rdb redis.UniversalClient) {
	t.Helper()
	entries, err := rdb.SlowLogGet(t.Context(), -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	var pages []time.Duration
	for _, entry := range entries {
		if len(entry.Args) > 1 && entry.Args[1] == locks.AssertHash {
			pages = append(pages, entry.Duration)
		}
	}
	if len(pages) < 10 {
		t.Fatalf("%d pages are among the %d entries of the log of slow commands", len(pages), len(entries))
	}
	slices.Sort(pages)
	took := pages[len(pages)/50]
	t.Logf("%d pages, the fastest within %s, the median %s, the slowest %s", len(pages), took, pages[len(pages)/2],
		pages[len(pages)-1])
	if took > 50*time.Millisecond {
		t.Errorf("pages of the assertion took %s; want at most 50ms", took)
	}
}
