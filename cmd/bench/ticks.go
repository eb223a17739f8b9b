package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
)

// tickers is how many jobs have a tick every second.
const tickers = 20

// tickWorkers are the numbers of workers that do the ticks. With the last one, each tick may wake a
// worker of its own.
var tickWorkers = []int{1, 5, tickers}

// measureTicks measures how late the runs of ticks begin on an idle fleet, and how many commands a
// tick takes beyond those that the same fleet sends without ticks.
func measureTicks(ctx context.Context, set settings, r *result) error {
	d := 10 * time.Second
	if set.short {
		d = 2 * time.Second
	}
	s, rdb, stop, err := startWithClient(ctx)
	if err != nil {
		return err
	}
	defer stop()
	r.note("%d jobs with a tick every second, for %s, and as many without ticks; commands beyond those of the same workers without ticks", tickers, 2*d)
	r.Columns = []string{"workers", "start delay p50, ms", "p99, ms", "commands sent a tick", "inside scripts", "µs of Redis' core"}
	var all []float64 // commands a tick, by number of workers
	var worst [2]float64
	for _, n := range tickWorkers {
		set.step("ticks: %d workers", n)
		without, _, err := tick(ctx, s, rdb, n, 30*24*time.Hour, d)
		if err != nil {
			return err
		}
		with, delays, err := tick(ctx, s, rdb, n, time.Second, d)
		if err != nil {
			return err
		}
		if len(delays) == 0 {
			return fmt.Errorf("no tick has begun in %s", 2*d)
		}
		a := func(i int) float64 { return (with[i] - without[i]) / tickers }
		p50, p99 := quantile(delays, 0.5), quantile(delays, 0.99)
		worst = [2]float64{max(worst[0], p50), max(worst[1], p99)}
		r.row(n, p50, p99, a(0), a(1), a(2))
		all = append(all, a(0)+a(1))
	}
	r.atMost(50, worst[0], "ms from a tick to the start of its run, p50")
	r.atMost(250, worst[1], "ms from a tick to the start of its run, p99")
	r.atMost(1.5, all[len(all)-1]/all[0], "commands a tick with %d workers, relative to one", tickWorkers[len(all)-1])
	return nil
}

// tick has n idle workers do the ticks of jobs, one every interval each. It returns the figures of
// [server.idle] and how long after their ticks the runs began, sorted.
func tick(ctx context.Context, s *server, rdb *redis.Client, n int, every, d time.Duration) (figures [3]float64, delays []time.Duration, err error) {
	if err := s.admin.FlushAll(ctx).Err(); err != nil {
		return figures, nil, err
	}
	if err := settleSpace(ctx, rdb); err != nil {
		return figures, nil, err
	}
	list := make([]*jobs.Job, tickers)
	for i := range list {
		list[i] = beat()
		list[i].Name, list[i].Every = fmt.Sprint("job", i), every
	}
	var (
		mu    sync.Mutex
		since = time.Now().Add(time.Hour)
	)
	handlers := jobs.NewRegistry()
	jobs.Handle(handlers, "work", func(_ context.Context, run *jobs.Run[record]) error {
		delay := time.Since(run.Tick())
		mu.Lock()
		defer mu.Unlock()
		if run.Tick().After(since) {
			delays = append(delays, delay)
		}
		return nil
	})
	for range n {
		_, end, failed := beginWith(ctx, rdb, list, map[string]jobs.Executor{"handler": handlers})
		if failed != nil {
			return figures, nil, failed
		}
		defer func() { err = errors.Join(err, end()) }()
	}
	if !pause(ctx, 3*time.Second) { // they register their jobs, and one takes duty
		return figures, nil, context.Cause(ctx)
	}
	mu.Lock()
	since = time.Now()
	mu.Unlock()
	if figures, err = s.idle(ctx, d); err != nil {
		return figures, nil, err
	}
	mu.Lock()
	defer mu.Unlock()
	all := slices.Clone(delays)
	slices.Sort(all)
	return figures, all, nil
}
