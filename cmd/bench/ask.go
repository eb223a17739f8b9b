package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"golang.org/x/sync/errgroup"

	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// How requests are made in the measurement ask.
const (
	listers  = 4 // goroutines that send lists
	listSize = 1000

	// requests that are made before the measurement: scripts are assembled and loaded by then, and
	// connections are open
	warm = 200
)

// asks are the ways to make requests.
var asks = []struct {
	system, how string
	// how many times as many requests as in the first way
	times int
	// makes the requests after+1 to n
	run func(ctx context.Context, w *whole, p *plain, after, n int) error
}{
	{"asynq", "ask", 1, func(ctx context.Context, _ *whole, p *plain, after, n int) error { return each16(ctx, after, n, p.ask) }},
	{"lockstep", "ask", 1, func(ctx context.Context, w *whole, _ *plain, after, n int) error { return each16(ctx, after, n, w.ask) }},
	{"lockstep", "askmany", 5, func(ctx context.Context, w *whole, _ *plain, after, n int) error { return w.askMany(ctx, after, n) }},
}

// measureAsk compares the rates of requests: from 16 goroutines, each of which waits for its reply,
// and in lists. A request counts when its run is recorded and its delivery is in the queue.
func measureAsk(ctx context.Context, set settings, r *result) error {
	n := 8000
	if set.short {
		n /= 2
	}
	s, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	stretches := make([][]stretch, len(asks))
	for round := range set.rounds {
		set.step("ask, round %d of %d", round+1, set.rounds)
		for k := range asks {
			which := (round + k) % len(asks) // the order rotates
			one, err := askOnce(ctx, s, which, n*asks[which].times)
			if err != nil {
				return fmt.Errorf("%s of %s: %w", asks[which].how, asks[which].system, err)
			}
			stretches[which] = append(stretches[which], one)
		}
	}
	r.note("medians of %d rounds. ask: %d requests, one by one from %d goroutines; askmany: %d, in lists of %d from %d goroutines",
		set.rounds, n, askers, n*asks[2].times, listSize, listers)
	r.note("asynq has no call for several tasks. Costs of a request: as in jobs, with its delivery")
	r.Columns = []string{"system", "how", "requests/s", "ratio", "reads", "scripts", "µs in scripts", "redis cpu", "client cpu"}
	of := func(k int, what func(stretch) float64) float64 {
		values := make([]float64, len(stretches[k]))
		for i, s := range stretches[k] {
			values[i] = what(s)
		}
		return median(values)
	}
	ratio := func(k int) float64 {
		values := make([]float64, len(stretches[k]))
		for i, s := range stretches[k] {
			values[i] = s.rate() / stretches[0][i].rate()
		}
		return median(values)
	}
	server := func(s stretch) float64 { return s.redis.scriptTime() / s.jobs }
	for k, a := range asks {
		r.row(a.system, a.how, of(k, stretch.rate), ratio(k), of(k, func(s stretch) float64 { return s.redis.reads / s.jobs }),
			of(k, func(s stretch) float64 { return s.redis.scripts() / s.jobs }), of(k, server),
			of(k, func(s stretch) float64 { return s.redis.cpu / s.jobs }), of(k, func(s stretch) float64 { return s.client / s.jobs }))
	}
	r.atLeast(0.9, ratio(1), "requests per second from %d goroutines, relative to asynq", askers)
	r.atMost(30, of(1, server), "server µs of such a request (asynq: %.0f)", of(0, server))
	r.atLeast(3, ratio(2), "requests per second in lists, relative to single ones of asynq")
	return nil
}

// askOnce makes n requests in one way.
func askOnce(ctx context.Context, server *server, which, n int) (s stretch, err error) {
	if err := server.admin.FlushAll(ctx).Err(); err != nil {
		return s, err
	}
	rdb := dial(server.addr)
	defer rdb.Close()
	w, err := newWhole(ctx, rdb, concurrency)
	if err != nil {
		return s, err
	}
	p := &plain{rdb: rdb, client: asynq.NewClientFromRedisClient(rdb)}
	if err := asks[which].run(ctx, w, p, 0, warm); err != nil {
		w.asked()
		return s, err
	}
	before, err := look(ctx, server, nil)
	if err != nil {
		return s, err
	}
	began := time.Now()
	err = asks[which].run(ctx, w, p, warm, warm+n)
	w.asked()
	took := time.Since(began)
	if err != nil {
		return s, err
	}
	after, err := look(ctx, server, nil)
	if err != nil {
		return s, err
	}
	queued, err := server.admin.LLen(ctx, "asynq:{default}:pending").Result()
	if err == nil && queued != int64(warm+n) {
		err = fmt.Errorf("%d of %d deliveries are in the queue", queued, warm+n)
	}
	return between(before, after, n, took), err
}

// each16 calls ask for the numbers after+1 to n, from 16 goroutines.
func each16(ctx context.Context, after, n int, ask func(ctx context.Context, i int) error) error {
	var next atomic.Int64
	next.Store(int64(after))
	group, ctx := errgroup.WithContext(ctx)
	for range askers {
		group.Go(func() error {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if err := ask(ctx, int(i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// askMany makes the requests after+1 to n in lists, and pushes their deliveries.
func (w *whole) askMany(ctx context.Context, after, n int) error {
	var next atomic.Int64
	next.Store(int64(after))
	group, ctx := errgroup.WithContext(ctx)
	for range listers {
		group.Go(func() error {
			for {
				upto := int(next.Add(listSize))
				list := ledger.List{}
				for i := upto - listSize + 1; i <= min(n, upto); i++ {
					list.Items = append(list.Items, w.request(i))
				}
				if len(list.Items) == 0 {
					return nil
				}
				if err := askList(ctx, w.ledger, w.pusher, list); err != nil {
					return err
				}
			}
		})
	}
	return group.Wait()
}

// askList makes the requests of a list, and pushes their deliveries.
func askList(ctx context.Context, records *ledger.Ledger, pusher *worker.Pusher, list ledger.List) error {
	replies, err := records.EnqueueAll(ctx, list)
	if err != nil {
		return err
	}
	var due []ledger.Due
	for _, reply := range replies {
		if reply.Err != nil {
			return reply.Err
		}
		due = append(due, reply.Due...)
	}
	return pusher.Push(ctx, due...)
}
