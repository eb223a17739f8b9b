package queue_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
)

// BenchmarkServe measures fetching, handling and ending existing deliveries, by number of fetchers,
// with a direct connection to Redis and with one that is a millisecond slower.
func BenchmarkServe(b *testing.B) {
	for _, delay := range []time.Duration{0, time.Millisecond} {
		for _, fetchers := range []int{1, 4, 16} {
			b.Run(fmt.Sprintf("delay=%v/fetchers=%d", delay, fetchers), func(b *testing.B) {
				s := redistest.Shared(b)
				way := s.Client(b)
				if delay > 0 {
					proxy := s.Proxy(b)
					proxy.Set(redistest.Faults{ReplyDelay: delay})
					way = proxy.Client(b)
				}
				namespace, q := redistest.Namespace(b), redistest.Namespace(b)
				direct, err := queue.New(s.Client(b), namespace)
				if err != nil {
					b.Fatal(err)
				}
				c, err := queue.New(way, namespace)
				if err != nil {
					b.Fatal(err)
				}
				roundTrip := measure(b, way)
				deliveries := make([]ledger.Due, b.N)
				for i := range deliveries {
					deliveries[i] = ledger.Due{Run: jobs.RunID(fmt.Sprint("run-", i)), N: 1, Queue: q}
				}
				push(b, direct, deliveries...)
				var handled atomic.Int64
				all := make(chan struct{})
				b.ResetTimer()
				serve(b, c, queue.Options{Queues: map[string]int{q: 1}, Fetchers: fetchers, Handle: func(_ context.Context, some []ledger.Due) {
					if handled.Add(int64(len(some))) == int64(b.N) {
						close(all)
					}
				}})
				<-all
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "deliveries/s")
				b.ReportMetric(float64(roundTrip.Microseconds()), "µs-round-trip")
			})
		}
	}
}

// measure returns the real duration of a round trip: timers add to small delays.
func measure(b *testing.B, rdb *redis.Client) time.Duration {
	b.Helper()
	const n = 20
	begin := time.Now()
	for range n {
		if err := rdb.Ping(b.Context()).Err(); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(begin) / n
}

// BenchmarkPush measures one delivery of a batch of a hundred.
func BenchmarkPush(b *testing.B) {
	c, q := newClient(b, redistest.Client(b))
	const batch = 100
	deliveries := make([]ledger.Due, batch)
	n := int64(0)
	for b.Loop() {
		n++
		for i := range deliveries {
			deliveries[i] = ledger.Due{Run: jobs.RunID(fmt.Sprint("run-", i)), N: n, Queue: q}
		}
		push(b, c, deliveries...)
	}
	b.ReportMetric(float64(n*batch)/b.Elapsed().Seconds(), "deliveries/s")
}
