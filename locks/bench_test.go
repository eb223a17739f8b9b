package locks

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/locks/redistest"
)

// holdMany takes n resources in bundles of 1,000.
func holdMany(tb testing.TB, c *Client, n int) {
	tb.Helper()
	for i := range n / maxBundle {
		names := make([]string, maxBundle)
		for j := range names {
			names[j] = fmt.Sprintf("bill:%d-%d", i, j)
		}
		if _, err := c.Acquire(tb.Context(), Exclusive(names...)); err != nil {
			tb.Fatal(err)
		}
	}
}

// renewals counts, over some intervals, the scripts that a client's server is sent, and all commands in them.
func renewals(tb testing.TB, c *Client, intervals int) (scripts, commands float64) {
	tb.Helper()
	renewed := &calls{hash: renewScript.Hash()}
	c.beat.AddHook(renewed)
	next := func() {
		eventually(tb, "a renewal", func() bool { return renewed.n.Swap(0) > 0 })
	}
	next() // count from one renewal to another
	before := commandStats(tb, c.rdb)
	for range intervals {
		next()
	}
	for command, n := range commandStats(tb, c.rdb) {
		n -= before[command]
		switch command {
		case "info": // we ourselves
		case "evalsha", "eval":
			scripts += float64(n)
			commands += float64(n)
		default:
			commands += float64(n)
		}
	}
	return scripts / float64(intervals), commands / float64(intervals)
}

func TestOneCommandRenewsAllHolds(t *testing.T) {
	t.Parallel()
	c := opened(t, redistest.New(t, redistest.Options{}).Client(t), "ns")
	holdMany(t, c, 10_000)
	scripts, commands := renewals(t, c, 3)
	if scripts != 1 {
		t.Errorf("got %.2f scripts per interval, want 1", scripts)
	}
	if commands > 12 {
		t.Errorf("got %.1f commands per interval, want those of one script", commands)
	}
}

// BenchmarkRenewal measures a renewal by the number of resources that it keeps, and counts how many commands an interval
// takes.
func BenchmarkRenewal(b *testing.B) {
	for _, n := range []int{0, 1000, 100_000} {
		b.Run(fmt.Sprintf("held=%d", n), func(b *testing.B) {
			c := opened(b, redistest.New(b, redistest.Options{}).Client(b), "ns")
			holdMany(b, c, n)
			scripts, commands := renewals(b, c, 3)
			s, _, err := c.current()
			if err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			for range b.N {
				if err := s.renew(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			b.ReportMetric(scripts, "scripts/interval")
			b.ReportMetric(commands, "commands/interval")
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
