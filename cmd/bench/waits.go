package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// waitingRuns is how many runs wait for one bill while others are done.
const waitingRuns = 200

// measureWaits compares lock and unlock of distinct resources in a space where one request waits
// for another name with the same in a space without a wait.
func measureWaits(ctx context.Context, set settings, r *result) error {
	s, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	set.step("pairs of lock and unlock while a request waits")
	var spaces []locker
	defer func() {
		// Closing must not hang.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		for _, l := range spaces {
			_ = l.close(ctx) // the server is stopped next
		}
	}()
	names := []string{"no request waits", "one request waits"}
	for i := range names {
		l, err := openLocks(ctx, s.addr, locks.Options{Namespace: fmt.Sprint("bench", i), Lease: lease})
		if err != nil {
			return err
		}
		spaces = append(spaces, l)
	}
	stop, err := keepWaiting(ctx, spaces[1].(*ourLocker).client)
	if err != nil {
		return err
	}
	defer stop()

	loads := distinct(1, 64, 512)
	all := make([][2]series, len(loads))
	for round := range set.rounds {
		set.step("round %d of %d", round+1, set.rounds)
		for i, load := range loads {
			for j := range names {
				which := (round + j) % len(names) // the order alternates
				one, err := take(ctx, s, spaces[which], load, set.turn)
				if err != nil {
					return fmt.Errorf("%s, %d goroutines: %w", names[which], load.goroutines, err)
				}
				all[i][which] = append(all[i][which], one)
			}
		}
	}
	r.note("medians of %d rounds of %s; server: µs of a pair inside Redis", set.rounds, set.turn)
	r.Columns = []string{"goroutines", "elsewhere", "pairs/s", "ratio", "server"}
	for i, load := range loads {
		for j, name := range names {
			r.row(load.goroutines, name, all[i][j].median(sample.rate), all[i][j].ratio(all[i][0], sample.rate), serverTime(all[i][j], 0))
		}
	}
	for i, load := range loads {
		r.atLeast(0.9, all[i][1].ratio(all[i][0], sample.rate), "throughput at %d goroutines while a request waits elsewhere, relative to none waiting", load.goroutines)
	}
	return nil
}

// keepWaiting keeps a request waiting for a held name until stop is called.
func keepWaiting(ctx context.Context, client *locks.Client) (stop func(), err error) {
	hold, err := client.Acquire(ctx, locks.Exclusive("held"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	queued, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		other, err := client.Acquire(ctx, locks.Exclusive("held"), locks.OnWait(func(*locks.BusyError) { close(queued) }))
		if err == nil {
			_ = other.Release() // the measurement is over
		}
	}()
	stop = func() {
		cancel()
		<-ended
		_ = hold.Release() // the measurement is over
	}
	select {
	case <-queued:
		return stop, nil
	case <-ended:
		stop()
		return nil, errors.New("a request for a held lock does not wait")
	}
}

// measureWaitingRuns compares how many runs per second a worker does while 200 others wait for one
// bill with the same while none waits.
func measureWaitingRuns(ctx context.Context, set settings, r *result) error {
	n := 8000
	if set.short {
		n /= 4
	}
	s, rdb, stop, err := startWithClient(ctx)
	if err != nil {
		return err
	}
	defer stop()
	loads := []int{0, waitingRuns}
	all := make([][]stretch, len(loads))
	for round := range set.rounds {
		set.step("runs while others wait, round %d of %d", round+1, set.rounds)
		for k := range loads {
			which := (round + k) % len(loads) // the order alternates
			if err := s.admin.FlushAll(ctx).Err(); err != nil {
				return err
			}
			one, err := runsBeside(ctx, s, rdb, loads[which], n)
			if err != nil {
				return fmt.Errorf("%d runs wait: %w", loads[which], err)
			}
			all[which] = append(all[which], one)
		}
	}
	r.note("medians of %d rounds of %d runs, done by one worker of concurrency %d", set.rounds, n, concurrency)
	r.note("costs of a run: scripts, µs in them, µs of CPU of Redis' main thread and of this process")
	r.Columns = []string{"runs that wait", "runs/s", "ratio", "scripts", "µs in scripts", "redis cpu", "client cpu"}
	of := func(k int, what func(stretch) float64) float64 {
		values := make([]float64, len(all[k]))
		for i, one := range all[k] {
			values[i] = what(one)
		}
		return median(values)
	}
	ratio := func(k int) float64 {
		values := make([]float64, len(all[k]))
		for i, one := range all[k] {
			values[i] = one.rate() / all[0][i].rate()
		}
		return median(values)
	}
	for k, waiting := range loads {
		r.row(waiting, of(k, stretch.rate), ratio(k), of(k, func(s stretch) float64 { return s.redis.scripts() / s.jobs }),
			of(k, func(s stretch) float64 { return s.redis.scriptTime() / s.jobs }),
			of(k, func(s stretch) float64 { return s.redis.cpu / s.jobs }), of(k, func(s stretch) float64 { return s.client / s.jobs }))
	}
	r.atLeast(0.9, ratio(1), "runs per second while %d others wait for a bill, relative to none waiting", waitingRuns)
	return nil
}

// runsBeside runs a worker until it has done n runs, while others wait for a lock that stays held.
// It does not measure the first tenth.
func runsBeside(ctx context.Context, s *server, rdb *redis.Client, waiting, n int) (one stretch, err error) {
	w, err := newWhole(ctx, rdb, concurrency)
	if err != nil {
		return one, err
	}
	defer w.stop()
	client, err := locks.Open(ctx, rdb, locks.Options{Namespace: "bench"})
	if err != nil {
		return one, err
	}
	defer func() {
		// Closing must not hang.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, client.Close(ctx)) // it also releases the bill
	}()
	if _, err := client.Acquire(ctx, locks.Exclusive("record:0")); err != nil {
		return one, err
	}
	for i := range waiting {
		enqueued, err := w.ledger.Enqueue(ctx, ledger.Request{
			Job: w.job, ID: fmt.Sprint("waits-", i), Trigger: ledger.TriggerEnqueue, Args: []byte(`{"record":0}`),
		})
		if err != nil {
			return one, err
		}
		w.pusher.Add(enqueued.Due...)
	}
	for i := range n {
		if err := w.ask(ctx, i+1); err != nil {
			return one, err
		}
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	var (
		count         atomic.Int64
		before, after sight // each written by one run, before the return of work
		early, late   error // likewise
	)
	err = w.work(working, func() {
		switch count.Add(1) {
		case int64(n / 10):
			before, early = look(ctx, s, nil)
		case int64(n):
			after, late = look(ctx, s, nil)
			stop()
		}
	})
	if err = errors.Join(err, early, late); err != nil {
		return one, err
	}
	if count.Load() != int64(n) {
		return one, fmt.Errorf("%d of %d runs were done", count.Load(), n)
	}
	queued, err := rdb.ZCard(ctx, "{bench}:q").Result()
	if err == nil && queued < int64(waiting) {
		err = fmt.Errorf("%d runs wait, want %d", queued, waiting)
	}
	return between(before, after, n-n/10, after.at.Sub(before.at)), err
}
