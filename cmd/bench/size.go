package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

const (
	steadyJobs      = 60_000 // jobs of one steady stream
	steadyMost      = 1_000  // how many of them are outstanding at a time
	spareDeliveries = 10_000
)

// measureSize makes very many runs due at one instant, and compares the rate at which one worker
// does them with that of a steady stream, where another run is enqueued whenever one ends. Such a
// stream is measured before and after them, since the drain of a million takes minutes, in which
// the machine may become faster or slower.
func measureSize(ctx context.Context, set settings, r *result) error {
	n, stream := set.volume(), steadyJobs
	if set.short {
		stream /= 4
	}
	s, rdb, stop, err := startWithClient(ctx)
	if err != nil {
		return err
	}
	defer stop()

	steady := func(when string) (float64, error) {
		set.step("size: a steady stream of %d runs, %s", stream, when)
		rate, err := steadyRate(ctx, rdb, stream)
		if err != nil {
			return 0, fmt.Errorf("a steady stream: %w", err)
		}
		return rate, s.admin.FlushAll(ctx).Err()
	}
	before, err := steady("before")
	if err != nil {
		return err
	}
	once, err := dueAtOnce(ctx, set, rdb, n)
	if err != nil {
		return fmt.Errorf("%d runs due at once: %w", n, err)
	}
	if err := s.admin.FlushAll(ctx).Err(); err != nil {
		return err
	}
	after, err := steady("after")
	if err != nil {
		return err
	}
	r.note("one worker of concurrency %d; the stream has at most %d runs outstanding", concurrency, steadyMost)
	r.Columns = []string{"load", "runs", "runs/s", "deliveries beyond the runs outstanding", "heap at most, MiB"}
	r.row("steady, before", stream, before, nil, nil)
	r.row("due at once", n, once.rate, once.beyond, once.heap)
	r.row("steady, after", stream, after, nil, nil)
	r.atLeast(0.8, once.rate/((before+after)/2), "runs per second when %d are due at once, relative to the stream", n)
	r.atMost(spareDeliveries, once.beyond, "deliveries in asynq beyond the outstanding runs")
	r.atMost(256, once.heap, "MiB of heap in use, of worker and measurement")
	return nil
}

// dueAtOnce makes n runs due at one instant, and has a worker do them.
func dueAtOnce(ctx context.Context, set settings, rdb *redis.Client, n int) (d drained, err error) {
	set.step("size: %d runs are recorded", n)
	w, err := newWhole(ctx, rdb, concurrency)
	if err != nil {
		return d, err
	}
	defer w.stop()
	if err := w.schedule(ctx, n); err != nil {
		return d, err
	}
	if err := w.makeDue(ctx); err != nil {
		return d, err
	}
	set.step("size: they are due at once")
	return w.drain(ctx, n)
}

// steadyRate returns how many runs per second a worker does that are enqueued while it works.
func steadyRate(ctx context.Context, rdb *redis.Client, n int) (float64, error) {
	w, err := newWhole(ctx, rdb, concurrency)
	if err != nil {
		return 0, err
	}
	defer w.stop()
	working, stop := context.WithCancel(ctx)
	defer stop()
	outstanding := make(chan struct{}, steadyMost)
	var count, next atomic.Int64
	var began, ended time.Time // each written by one run, before stop or the return of work
	group, ctx := errgroup.WithContext(working)
	for range askers {
		group.Go(func() error {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				select {
				case outstanding <- struct{}{}:
				case <-ctx.Done():
					return nil
				}
				if err := w.ask(ctx, int(i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		return w.work(ctx, func() {
			<-outstanding
			switch count.Add(1) {
			case int64(n) / 10: // by then, the worker sets the pace
				began = time.Now()
			case int64(n):
				ended = time.Now()
				stop()
			}
		})
	})
	err = group.Wait()
	if err == nil && count.Load() < int64(n) {
		err = fmt.Errorf("%d of %d runs were done", count.Load(), n)
	}
	return float64(n-n/10) / ended.Sub(began).Seconds(), err
}

// schedule records runs that are due tomorrow.
func (w *whole) schedule(ctx context.Context, n int) error {
	var next atomic.Int64
	group, asks := errgroup.WithContext(ctx)
	for range askers {
		group.Go(func() error {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				_, err := w.ledger.Enqueue(asks, ledger.Request{
					Job: w.job, ID: jobs.NewRunName(time.Now()), Trigger: ledger.TriggerEnqueue, Args: fmt.Appendf(nil, `{"record":%d}`, i), In: 24 * time.Hour,
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// makeDue makes all scheduled runs due since 1970. Redis may take seconds for a million of them.
func (w *whole) makeDue(ctx context.Context) error {
	const timer = "{bench}:timer"
	return w.rdb.WithTimeout(time.Minute).ZUnionStore(ctx, timer, &redis.ZStore{Keys: []string{timer}, Weights: []float64{0}}).Err()
}

// drained has the figures of runs that became due at once.
type drained struct {
	rate   float64
	beyond float64 // deliveries in asynq beyond the outstanding runs, at most
	heap   float64 // MiB
}

// drain runs a worker until it has done n due runs.
func (w *whole) drain(ctx context.Context, n int) (d drained, err error) {
	working, stop := context.WithCancel(ctx)
	defer stop()
	var (
		count       atomic.Int64
		first, last time.Time // each written by one run, before stop or the return of work
		watching    sync.WaitGroup
		failed      error // of the watcher
	)
	watching.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for working.Err() == nil {
			select {
			case <-tick.C:
			case <-working.Done():
				return
			}
			// read before the deliveries, which shrink meanwhile
			outstanding := int64(n) - count.Load()
			deliveries, err := w.rdb.LLen(ctx, "asynq:{default}:pending").Result()
			if err != nil {
				failed = err
				return
			}
			var memory runtime.MemStats
			runtime.ReadMemStats(&memory)
			d.beyond = max(d.beyond, float64(deliveries-outstanding))
			d.heap = max(d.heap, float64(memory.HeapInuse)/(1<<20))
		}
	})
	err = w.work(working, func() {
		switch count.Add(1) {
		case 1:
			first = time.Now()
		case int64(n):
			last = time.Now()
			stop()
		}
	})
	stop()
	watching.Wait()
	if err == nil {
		err = failed
	}
	if err == nil && count.Load() < int64(n) {
		err = fmt.Errorf("%d of %d runs were done", count.Load(), n)
	}
	d.rate = float64(n) / last.Sub(first).Seconds()
	return d, err
}
