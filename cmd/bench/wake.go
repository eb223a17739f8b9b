package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// wakers is how many workers are idle.
const wakers = 4

// measureWake measures how long a request takes from a process that is no worker until its handler
// begins, while all workers are idle. asynq polls once a second, as it does by default.
func measureWake(ctx context.Context, set settings, r *result) error {
	n, peers := 300, 30
	if set.short {
		n, peers = 60, 6
	}
	s, rdb, stop, err := startWithClient(ctx)
	if err != nil {
		return err
	}
	defer stop()
	set.step("wake: lockstep")
	ours, err := wakeOurs(ctx, rdb, n)
	if err != nil {
		return err
	}
	if err := s.admin.FlushAll(ctx).Err(); err != nil {
		return err
	}
	set.step("wake: asynq")
	theirs, err := wakePlain(ctx, rdb, peers)
	if err != nil {
		return err
	}
	r.note("%d idle workers; requests one at a time, 30 to 80 ms apart: %d, and %d of asynq", wakers, n, peers)
	r.Columns = []string{"system", "p50, ms", "p99, ms", "slowest, ms"}
	for _, one := range []struct {
		system string
		delays []time.Duration
	}{{"asynq", theirs}, {"lockstep", ours}} {
		r.row(one.system, quantile(one.delays, 0.5), quantile(one.delays, 0.99), quantile(one.delays, 1))
	}
	r.atMost(5, quantile(ours, 0.5), "ms from a request to its start, p50")
	r.atMost(25, quantile(ours, 0.99), "ms from a request to its start, p99")
	return nil
}

// quantile returns, in ms, the delay that a part of all is at most; all are sorted.
func quantile(all []time.Duration, part float64) float64 {
	return float64(all[min(len(all)-1, int(part*float64(len(all))))]) / float64(time.Millisecond)
}

// wake makes requests, each some time after the last one began, and returns how long each took to
// begin, sorted. started receives when a handler began.
func wake(ctx context.Context, n int, started <-chan time.Time, ask func(i int) error) ([]time.Duration, error) {
	var delays []time.Duration
	for i := range n {
		if !pause(ctx, 30*time.Millisecond+rand.N(50*time.Millisecond)) {
			return nil, context.Cause(ctx)
		}
		asked := time.Now()
		if err := ask(i); err != nil {
			return nil, err
		}
		select {
		case at := <-started:
			delays = append(delays, at.Sub(asked))
		case <-time.After(time.Minute):
			return nil, fmt.Errorf("request %d has not begun after a minute", i)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	slices.Sort(delays)
	return delays, nil
}

func wakeOurs(ctx context.Context, rdb *redis.Client, n int) (delays []time.Duration, err error) {
	if err := settleSpace(ctx, rdb); err != nil {
		return nil, err
	}
	job := beat()
	job.Every = 30 * 24 * time.Hour
	started := make(chan time.Time, 1)
	for range wakers {
		_, end, err := begin(ctx, rdb, []*jobs.Job{job}, func() { started <- time.Now() })
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, end()) }()
	}
	if !pause(ctx, 3*time.Second) { // they register their jobs, and one takes duty
		return nil, context.Cause(ctx)
	}
	records, deliveries, err := parts(rdb)
	if err != nil {
		return nil, err
	}
	return wake(ctx, n, started, func(i int) error {
		asked, err := records.Enqueue(ctx, ledger.Request{Job: job, ID: fmt.Sprint("r", i), Trigger: ledger.TriggerEnqueue})
		if err != nil {
			return err
		}
		_, err = deliveries.Push(ctx, asked.Due...)
		return err
	})
}

func wakePlain(ctx context.Context, rdb *redis.Client, n int) ([]time.Duration, error) {
	started := make(chan time.Time, 1)
	for range wakers {
		server := asynq.NewServerFromRedisClient(rdb, asynq.Config{Concurrency: concurrency, LogLevel: asynq.FatalLevel})
		if err := server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { started <- time.Now(); return nil })); err != nil {
			return nil, err
		}
		defer server.Shutdown()
	}
	p := &plain{rdb: rdb, client: asynq.NewClientFromRedisClient(rdb)}
	return wake(ctx, n, started, func(i int) error { return p.ask(ctx, i) })
}
