package locks_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// TestReentryAtRandomDepth makes five goroutines of one client, then of five, nest requests up to
// five deep, with random overlaps, upgrades and downgrades. Resources at work stay held in Redis
// until the last release, one request of each deadlock gets the error, and in the end everything
// has been freed.
func TestReentryAtRandomDepth(t *testing.T) {
	t.Parallel()
	for name, clients := range map[string]int{"one client": 1, "five clients": 5} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb, ns := redistest.Client(t), redistest.Namespace(t)
			j := newJournal()
			var of []*locks.Client
			for range clients {
				// a young server grants at once
				of = append(of, openClient(t, rdb, locks.Options{Namespace: ns, Grace: -1}))
			}
			declarePool(t, of[0])
			seed := uint64(time.Now().UnixNano())
			var actors cast
			for i := range 5 {
				actors = append(actors, &actor{
					client: of[i%clients], journal: j, rand: rand.New(rand.NewPCG(seed, uint64(i))), depth: 5, asks: i == 0,
				})
			}
			grants, deadlocks, deep := 0, 0, 0
			// A busy machine needs longer.
			for began := time.Now(); (deadlocks == 0 || deep < 3) && time.Since(began) < patient; {
				ctx, cancel := context.WithTimeout(t.Context(), span(3*time.Second))
				actors.act(ctx)
				cancel()
				grants, deadlocks, deep = 0, 0, 0
				for _, a := range actors {
					grants, deadlocks = grants+a.calls, deadlocks+a.dead
					deep = max(deep, a.deep)
				}
			}
			took := emptied(t, of[0])
			t.Logf("seed %d: %d holds, up to %d deep, %d deadlocks; all was free %s after the last release", seed, grants, deep, deadlocks, took)
			if deadlocks == 0 || deep < 3 {
				t.Error("no deadlock, or no depth: the test proves nothing")
			}
			lock, err := of[0].Space().HeldBy(t.Context(), pool)
			if err != nil || lock.Used != 0 || lock.Limit != poolSize {
				t.Errorf("got %+v, %v; want all %d permits free", lock, err, poolSize)
			}
			j.verify(t)
		})
	}
}

// TestUpgradesMeet makes all clients share one lock and want it exclusively: all but one of them
// must get the error at once.
func TestUpgradesMeet(t *testing.T) {
	t.Parallel()
	rdb, ns := redistest.Client(t), redistest.Namespace(t)
	c := openClient(t, rdb, locks.Options{Namespace: ns})
	const readers = 5
	for range 10 * locks.Soak() {
		var holds []*locks.Hold
		for range readers {
			holds = append(holds, acquire(t, c, locks.Shared("a")))
		}
		var running sync.WaitGroup
		alone := make(chan locks.Token, readers)
		for _, hold := range holds {
			running.Go(func() {
				inner, err := c.Acquire(hold.Context(), locks.Exclusive("a"))
				var circle *locks.DeadlockError
				switch {
				case err == nil:
					alone <- inner.Token()
					err = inner.Release()
				case errors.As(err, &circle) && circle.Circle[0].Resource == "a" && circle.Circle[len(circle.Circle)-1].Hold == hold.ID():
					err = nil
				}
				if err := errors.Join(err, hold.Release()); err != nil {
					t.Error(err)
				}
			})
		}
		running.Wait()
		if len(alone) != 1 {
			t.Errorf("%d of %d upgrades were granted, want 1: the others get the error, and release", len(alone), readers)
		}
		emptied(t, c)
	}
}
