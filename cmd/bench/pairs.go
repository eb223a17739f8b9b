package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

// lease is long enough that nothing expires during measurements that are not about expiry.
const lease = 30 * time.Second

// distinct returns loads of goroutines that each request a resource of their own.
func distinct(goroutines ...int) []load {
	var loads []load
	for _, n := range goroutines {
		loads = append(loads, load{goroutines: n, resource: func(i int) string { return fmt.Sprintf("bill:%d", i) }})
	}
	return loads
}

func measurePairs(ctx context.Context, set settings, r *result) error {
	s, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	set.step("pairs of lock and unlock")
	all, err := pairs(ctx, set, s, s.addr, r)
	if err != nil {
		return err
	}
	one, many, most := all[0], all[1], all[2]
	r.atMost(1.15, one[1].ratio(one[0], sample.rate), "time of a pair at 1 goroutine, relative to redislock")
	r.atLeast(1.3, many[0].ratio(many[1], sample.rate), "throughput at 64 goroutines, relative to redislock")
	r.atLeast(1.3, most[0].ratio(most[1], sample.rate), "throughput at 512 goroutines, relative to redislock")
	r.atLeast(1.6, many[0].ratio(many[2], sample.rate), "throughput at 64 goroutines, relative to redsync")
	r.atLeast(1.6, most[0].ratio(most[2], sample.rate), "throughput at 512 goroutines, relative to redsync")
	r.atLeast(0.8, many[0].ratio(many[3], sample.rate), "throughput at 64 goroutines, relative to rueidislock")
	r.atMost(14, serverTime(many[0], 0), "server time of a pair at 64 goroutines, µs")
	return nil
}

func measureDelayed(ctx context.Context, set settings, r *result) error {
	s, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	proxy, err := redistest.NewProxy(ctx, "tcp", s.addr)
	if err != nil {
		return err
	}
	defer proxy.Close()
	const delay = 250 * time.Microsecond
	proxy.Set(redistest.Faults{RequestDelay: delay, ReplyDelay: delay})
	addr, err := addrOf(proxy.URL())
	if err != nil {
		return err
	}
	trip, err := roundTrip(ctx, addr)
	if err != nil {
		return err
	}
	r.note("round trip through the idle proxy: %.2f ms", trip.Seconds()*1000)
	set.step("pairs of lock and unlock, %s away", trip.Round(10*time.Microsecond))
	_, err = pairs(ctx, set, s, addr, r)
	return err
}

// roundTrip returns the median time of a PING.
func roundTrip(ctx context.Context, addr string) (time.Duration, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	var trips []float64
	for range 51 {
		began := time.Now()
		if err := rdb.Ping(ctx).Err(); err != nil {
			return 0, err
		}
		trips = append(trips, time.Since(began).Seconds())
	}
	return time.Duration(median(trips) * float64(time.Second)), nil
}

// pairs fills the table of distinct resources, at 1, 64 and 512 goroutines.
func pairs(ctx context.Context, set settings, s *server, addr string, r *result) ([][]series, error) {
	libraries, closeAll, err := openAll(ctx, addr, false)
	if err != nil {
		return nil, err
	}
	defer closeAll()
	loads := distinct(1, 64, 512)
	all, err := rounds(ctx, set, s, libraries, loads)
	if err != nil {
		return nil, err
	}
	r.note("medians of %d rounds of %s; ratio: throughput of locks, relative to this one", set.rounds, set.turn)
	r.note("costs in µs per pair; cpu ratio: redis cpu and client cpu of this one, relative to locks")
	r.Columns = []string{
		"goroutines", "library", "pairs/s", "ratio", "µs a pair", "server", "redis cpu", "client cpu", "cpu ratio",
	}
	for i, load := range loads {
		for j, p := range peers {
			of := all[i][j]
			r.row(load.goroutines, p.name, of.median(sample.rate), all[i][0].ratio(of, sample.rate),
				of.median(func(s sample) float64 { return 1e6 * float64(load.goroutines) / s.rate() }), serverTime(of, j),
				of.median(func(s sample) float64 { return s.redis.cpu / s.pairs }),
				of.median(func(s sample) float64 { return s.client / s.pairs }),
				of.ratio(all[i][0], sample.cost))
		}
	}
	return all, nil
}

// serverTime returns the µs that Redis spent on a pair of library i.
func serverTime(of series, i int) float64 {
	return of.median(func(s sample) float64 { return s.redis.timeOf(peers[i].sends) / s.pairs })
}
