package locks

import (
	"fmt"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
	"lockstep/locks/space"
)

// holdMany takes n resources in bundles of 1,000.
func holdMany(tb testing.TB, c *Client, n int) {
	tb.Helper()
	for i := range n / MaxBundle {
		names := make([]string, MaxBundle)
		for j := range names {
			names[j] = fmt.Sprintf("bill:%d-%d", i, j)
		}
		if _, err := c.Acquire(tb.Context(), Exclusive(names...)); err != nil {
			tb.Fatal(err)
		}
	}
}

func TestOneCommandRenewsAllHolds(t *testing.T) {
	t.Parallel()
	c := opened(t, redistest.New(t, redistest.Options{}).Client(t), "ns")
	holdMany(t, c, 10_000)
	renewed, all := &calls{hash: space.Renew.Hash()}, new(calls)
	c.beat.AddHook(renewed)
	c.beat.AddHook(all)
	c.rdb.AddHook(all)
	// the next one is some time away
	eventually(t, "a renewal", func() bool { return renewed.n.Load() > 0 })
	first, before := renewed.n.Load(), all.n.Load()
	eventually(t, "more renewals", func() bool { return renewed.n.Load() >= first+3 })
	if scripts, renewals := all.n.Load()-before, renewed.n.Load()-first; scripts > renewals {
		t.Errorf("got %d scripts for %d renewals, want no more", scripts, renewals)
	}
}

// BenchmarkRenewal measures a renewal by the number of resources that it keeps, and counts the
// commands in it.
func BenchmarkRenewal(b *testing.B) {
	for _, n := range []int{0, 1000, 100_000} {
		b.Run(fmt.Sprintf("held=%d", n), func(b *testing.B) {
			rdb := redistest.New(b, redistest.Options{}).Client(b)
			c := opened(b, rdb, "ns")
			holdMany(b, c, n)
			s, _, err := c.current()
			if err != nil {
				b.Fatal(err)
			}
			before := commandStats(b, rdb)
			b.ResetTimer()
			for range b.N {
				if _, err := s.renew(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			scripts, commands := 0, 0
			for command, times := range commandStats(b, rdb) {
				times -= before[command]
				commands += times
				if command == "evalsha" {
					scripts += times
				}
			}
			b.ReportMetric(float64(scripts)/float64(b.N), "scripts/renewal")
			b.ReportMetric(float64(commands)/float64(b.N), "commands/renewal")
		})
	}
}

// BenchmarkPair measures acquire and release of distinct resources.
func BenchmarkPair(b *testing.B) {
	for _, n := range []int{1, 64, 512} {
		b.Run(fmt.Sprintf("goroutines=%d", n), func(b *testing.B) {
			server := redistest.New(b, redistest.Options{})
			c, err := Open(b.Context(), server.Client(b), Options{Lease: time.Minute})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = c.Close(b.Context()) }()
			b.SetParallelism(max(1, n/2))
			var worker atomic.Int64
			b.ResetTimer()
			body := func(next func() bool) {
				part := Exclusive(fmt.Sprint("r", worker.Add(1)))
				for next() {
					hold, err := c.Acquire(b.Context(), part)
					if err != nil {
						b.Error(err)
						return
					}
					if err := hold.Release(); err != nil {
						b.Error(err)
						return
					}
				}
			}
			if n == 1 {
				i := 0
				body(func() bool { i++; return i <= b.N })
				return
			}
			b.RunParallel(func(pb *testing.PB) { body(pb.Next) })
		})
	}
}

// BenchmarkHandOff measures how long a contended lock takes from one holder to the next.
func BenchmarkHandOff(b *testing.B) {
	for _, n := range []int{2, 100} {
		b.Run(fmt.Sprintf("waiters=%d", n), func(b *testing.B) {
			c, err := Open(b.Context(), redistest.New(b, redistest.Options{}).Client(b), Options{Lease: time.Minute})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = c.Close(b.Context()) }()
			b.SetParallelism(max(1, n/2))
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					hold, err := c.Acquire(b.Context(), Exclusive("a"))
					if err != nil {
						b.Error(err)
						return
					}
					_ = hold.Release()
				}
			})
		})
	}
}

// commandStats returns how often each command was called.
func commandStats(t testing.TB, rdb redis.UniversalClient) map[string]int {
	t.Helper()
	info, err := rdb.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	stats := make(map[string]int)
	for _, m := range regexp.MustCompile(`cmdstat_([^:]+):calls=(\d+)`).FindAllStringSubmatch(info, -1) {
		stats[m[1]], _ = strconv.Atoi(m[2])
	}
	return stats
}
