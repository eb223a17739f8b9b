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

// renewals counts, over some renewals, the scripts that a client's server is sent for each, and all commands in them.
func renewals(tb testing.TB, c *Client, atLeast int64) (scripts, commands float64) {
	tb.Helper()
	renewed := &calls{hash: renewScript.Hash()}
	c.beat.AddHook(renewed)
	eventually(tb, "a renewal", func() bool { return renewed.n.Load() > 0 }) // the next one is some time away
	first, before := renewed.n.Load(), commandStats(tb, c.rdb)
	eventually(tb, "more renewals", func() bool { return renewed.n.Load() >= first+atLeast })
	n := float64(renewed.n.Load() - first)
	for command, times := range commandStats(tb, c.rdb) {
		times -= before[command]
		switch command {
		case "info": // we ourselves
		case "evalsha", "eval":
			scripts += float64(times)
			commands += float64(times)
		default:
			commands += float64(times)
		}
	}
	return scripts / n, commands / n
}

func TestOneCommandRenewsAllHolds(t *testing.T) {
	t.Parallel()
	c := opened(t, redistest.New(t, redistest.Options{}).Client(t), "ns")
	holdMany(t, c, 10_000)
	scripts, commands := renewals(t, c, 3)
	if scripts != 1 {
		t.Errorf("got %.2f scripts per renewal, want 1", scripts)
	}
	if commands > 15 {
		t.Errorf("got %.1f commands per renewal, want those of one script", commands)
	}
}

// BenchmarkRenewal measures a renewal by the number of resources that it keeps, and counts the commands that it takes.
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
				if _, err := s.renew(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			b.ReportMetric(scripts, "scripts/renewal")
			b.ReportMetric(commands, "commands/renewal")
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
