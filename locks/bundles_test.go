package locks_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// TestOverlappingBundlesComplete requests 300 random bundles of 1 to 10 of 30 resources at a time.
func TestOverlappingBundlesComplete(t *testing.T) {
	t.Parallel()
	for range locks.Soak() {
		rdb, ns := redistest.Client(t), redistest.Namespace(t)
		j := newJournal()
		var clients []*locks.Client
		for range 3 {
			clients = append(clients, openClient(t, rdb, locks.Options{Namespace: ns}))
		}
		seed := uint64(time.Now().UnixNano())
		ctx := within(t, hangs)
		var running sync.WaitGroup
		for i := range 300 {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			a := &actor{client: clients[i%len(clients)], journal: j, rand: random}
			var items []locks.Item
			for _, n := range random.Perm(30)[:1+random.IntN(10)] {
				mode := locks.ModeExclusive
				if random.IntN(4) == 0 {
					mode = locks.ModeShared
				}
				items = append(items, locks.Item{Name: fmt.Sprint(n), Mode: mode})
			}
			running.Go(func() {
				hold, err := a.client.Acquire(ctx, parts(items)...)
				if err != nil {
					t.Errorf("seed %d: bundle %d of 300: %v", seed, i, err)
					return
				}
				mine := a.note(hold, items, 0, nil)
				a.touch([]*having{mine})
				time.Sleep(time.Duration(random.IntN(1000)) * time.Microsecond) // the work
				a.touch([]*having{mine})
				a.release(mine)
			})
		}
		running.Wait()
		emptied(t, clients[0])
		j.verify(t)
	}
}

// TestLargeBundleDoesNotStarve runs one goroutine that wants ten resources at once, while forty
// others keep taking single ones of them. With a reservation it gets its turn; without one it
// hardly ever finds all ten free.
func TestLargeBundleDoesNotStarve(t *testing.T) {
	t.Parallel()
	const resources, others = 10, 40
	var all []string
	for i := range resources {
		all = append(all, fmt.Sprint(i))
	}
	// shares returns how often the bundle and the small ones were held until that was enough.
	shares := func(reserveAfter time.Duration, enough func(large, small int64) bool) (large, small int64) {
		rdb, ns := redistest.Client(t), redistest.Namespace(t)
		c := openClient(t, rdb, locks.Options{Namespace: ns, ReserveAfter: reserveAfter})
		ctx, cancel := context.WithTimeout(t.Context(), 4*patient)
		defer cancel()
		var bundles, singles atomic.Int64
		var running sync.WaitGroup
		hold := func(count *atomic.Int64, names ...string) {
			hold, err := c.Acquire(ctx, locks.Exclusive(names...))
			if err != nil {
				if ctx.Err() == nil {
					t.Error(err)
				}
				return
			}
			count.Add(1)
			if enough(bundles.Load(), singles.Load()) {
				cancel()
			}
			time.Sleep(time.Millisecond) // the work
			if err := hold.Release(); err != nil {
				t.Error(err)
			}
		}
		for i := range others {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			running.Go(func() {
				for ctx.Err() == nil {
					hold(&singles, all[random.IntN(resources)])
				}
			})
		}
		running.Go(func() {
			for ctx.Err() == nil {
				hold(&bundles, all...)
			}
		})
		running.Wait()
		return bundles.Load(), singles.Load()
	}
	const reserveAfter = 50 * time.Millisecond
	bundles := int64(10 * locks.Soak())
	on, smallOn := shares(reserveAfter, func(large, _ int64) bool { return large >= bundles })
	off, smallOff := shares(time.Hour, func(_, small int64) bool { return small >= smallOn })
	t.Logf("%d bundles of ten beside %d single ones with a reservation after %s, %d beside %d without one", on, smallOn, reserveAfter, off, smallOff)
	if on < bundles || on <= off {
		t.Errorf("%d bundles were held with a reservation, %d without one; want %d, and fewer", on, off, bundles)
	}
	if smallOn == 0 {
		t.Error("the bundle has starved all others")
	}
}
