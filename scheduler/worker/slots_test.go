package worker

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
)

// TestRandomCallsOfSlots makes random calls. After each of them the rules of [slots] hold,
// and each delivery got one slot, or was withdrawn.
func TestRandomCallsOfSlots(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) { callSlots(t, seed) })
	}
}

func callSlots(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0))
	n := 1 + random.IntN(4)
	taken, fetching := 0, 0 // slots, and deliveries that may be fetched
	var waiting []*fetched
	seated := func(some []*fetched) {
		for _, f := range some {
			i := slices.Index(waiting, f)
			if i < 0 {
				t.Fatalf("seed %d: a delivery has a slot that did not wait for one", seed)
			}
			waiting = slices.Delete(waiting, i, i+1)
			taken++
		}
	}
	s := &slots{free: n, seat: seated}
	ctx, cancel := context.WithCancel(t.Context())
	type call struct {
		fetch bool
		got   chan error
	}
	var calls []call
	settle := func() {
		synctest.Wait()
		calls = slices.DeleteFunc(calls, func(c call) bool {
			select {
			case err := <-c.got:
				switch {
				case err != nil:
				case c.fetch:
					fetching++
				default:
					taken++
				}
				return true
			default:
				return false
			}
		})
	}
	for range 200 {
		switch random.IntN(9) {
		case 0:
			fetch := random.IntN(3) > 0
			c := call{fetch, make(chan error, 1)}
			calls = append(calls, c)
			go func() {
				if fetch {
					c.got <- s.Acquire(ctx)
				} else {
					c.got <- s.Take(ctx)
				}
			}()
		case 1:
			fetching += s.More(random.IntN(4))
		case 2:
			if k := random.IntN(fetching + 1); k > 0 {
				fetching -= k
				s.Release(k)
			}
		case 3, 4:
			some := make([]*fetched, random.IntN(fetching+1))
			for i := range some {
				some[i] = &fetched{settled: make(chan struct{})}
			}
			fetching -= len(some)
			waiting = append(waiting, some...)
			seated(s.Arrive(some))
		case 5:
			if s.TryTake() {
				taken++
			}
		case 6:
			if k := random.IntN(taken + 1); k > 0 {
				taken -= k
				s.Free(k)
			}
		case 7:
			some := slices.Clone(waiting[:random.IntN(len(waiting)+1)])
			if got := s.Withdraw(some); !slices.Equal(got, some) {
				t.Fatalf("seed %d: %d of %d deliveries were withdrawn", seed, len(got), len(some))
			}
			waiting = waiting[len(some):]
		case 8:
			s.SetAhead(random.IntN(2) * n)
		}
		settle()
		switch {
		case taken < 0 || taken > n || s.free != n-taken:
			t.Fatalf("seed %d: %d of %d slots are taken, and %d free", seed, taken, n, s.free)
		case s.inHand != fetching+len(waiting) || !slices.Equal(s.ready, waiting):
			t.Fatalf("seed %d: %d deliveries are in hand, want %d", seed, s.inHand, fetching+len(waiting))
		case s.free > 0 && len(waiting) > 0:
			t.Fatalf("seed %d: a delivery waits while %d slots are free", seed, s.free)
		case len(calls) > 0 && s.grant(s.calls[0].fetch):
			t.Fatalf("seed %d: a call waits that could be granted", seed)
		}
	}
	cancel()
	settle()
	if len(calls) > 0 || len(s.calls) > 0 {
		t.Fatalf("seed %d: %d calls wait after their context has ended", seed, len(calls))
	}
}
