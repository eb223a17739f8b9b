package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/jobs"
)

// The figures of configs/deploy/README.md for planning: what a run, an idle worker, and each thing
// that is stored cost Redis. They have no targets of their own, except where a promise of another
// measurement is measured again.

// runKind is a kind of run, to measure its cost.
type runKind struct {
	name string
	jobs func(n int) []*jobs.Job
	ask  func(w *whole) asker // nil: they have ticks
}

// asker requests run i.
type asker func(ctx context.Context, i int) error

// capacityJob is a job for requests, with these locks.
func capacityJob(exclusive ...string) []*jobs.Job {
	job := beat()
	job.Name, job.Every, job.Lock.Exclusive = "work", 0, exclusive
	return []*jobs.Job{job}
}

func runKinds() []runKind {
	requested := func(w *whole) asker { return w.ask }
	kind := func(name string, exclusive ...string) runKind {
		return runKind{name, func(int) []*jobs.Job { return capacityJob(exclusive...) }, requested}
	}
	return []runKind{
		{"tick, of a job with `overlap: skip`", func(n int) []*jobs.Job {
			list := make([]*jobs.Job, n/tickSeconds)
			for i := range list {
				list[i] = beat()
				list[i].Name, list[i].Overlap = fmt.Sprint("beat", i), jobs.OverlapSkip
			}
			return list
		}, nil},
		kind("request"),
		{"request by a task of asynq", func(int) []*jobs.Job { return capacityJob() }, func(w *whole) asker {
			return (&plain{rdb: w.rdb, client: asynq.NewClientFromRedisClient(w.rdb)}).ask
		}},
		kind("request with a bundle of 5 locks", "a:{record}", "b:{record}", "c:{record}", "d:{record}", "e:{record}"),
		kind("request that waits for a lock behind 500 others", "one"),
	}
}

const (
	capacityRuns = 3000
	tickSeconds  = 6   // for how long each job has a tick every second
	capacityOpen = 500 // outstanding requests at a time
)

// measureCapacityRuns measures what a run of each kind costs Redis.
func measureCapacityRuns(ctx context.Context, set settings, r *result) error {
	n := capacityRuns
	if set.short {
		n /= 10
	}
	s, rdb, stop, err := startWithClient(ctx)
	if err != nil {
		return err
	}
	defer stop()
	kinds := runKinds()
	all := make([][]stretch, len(kinds))
	for round := range set.rounds {
		set.step("capacity-runs, round %d of %d", round+1, set.rounds)
		for k := range kinds {
			which := (round + k) % len(kinds) // the order rotates
			if err := s.admin.FlushAll(ctx).Err(); err != nil {
				return err
			}
			one, err := costOfRuns(ctx, s, rdb, kinds[which], n)
			if err != nil {
				return fmt.Errorf("%s: %w", kinds[which].name, err)
			}
			all[which] = append(all[which], one)
		}
	}
	r.markdown = true
	r.note("medians of %d rounds of %d runs of each kind, in turns; one worker of concurrency %d, handlers that do nothing; requests: %d goroutines, "+
		"%d outstanding at a time", set.rounds, n, concurrency, askers, capacityOpen)
	r.Columns = []string{"a run", "scripts", "µs in scripts", "µs of Redis' core", "µs of the worker", "runs/s of a full Redis core"}
	for k, kind := range kinds {
		of := func(what func(stretch) float64) float64 {
			values := make([]float64, len(all[k]))
			for i, one := range all[k] {
				values[i] = what(one) / one.jobs
			}
			return median(values)
		}
		core := of(func(s stretch) float64 { return s.redis.cpu })
		r.row(kind.name, of(func(s stretch) float64 { return s.redis.scripts() }), of(func(s stretch) float64 { return s.redis.scriptTime() }), core,
			of(func(s stretch) float64 { return s.client }), 1e6/core)
	}
	return nil
}

// costOfRuns has a worker do n runs of a kind. It does not measure the first of them.
func costOfRuns(ctx context.Context, s *server, rdb *redis.Client, kind runKind, n int) (one stretch, err error) {
	w, err := newWhole(ctx, rdb, concurrency)
	if err != nil {
		return one, err
	}
	defer w.stop()
	list := kind.jobs(n)
	first := n / 10
	if kind.ask == nil {
		first = len(list) // the ticks of the first second
	}
	w.job = list[0]
	var ask asker
	if kind.ask != nil {
		ask = kind.ask(w)
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	outstanding := make(chan struct{}, capacityOpen)
	var (
		count, next   atomic.Int64
		before, after sight // each written by one run, before the end of the worker
		early, late   error // likewise
	)
	_, end, err := begin(ctx, rdb, list, func() {
		switch count.Add(1) {
		case int64(first):
			before, early = look(ctx, s, nil)
		case int64(n):
			after, late = look(ctx, s, nil)
			stop()
		}
		if ask != nil {
			<-outstanding
		}
	})
	if err != nil {
		return one, err
	}
	group, asks := errgroup.WithContext(working)
	group.Go(func() error {
		const limit = 2 * time.Minute
		if pause(asks, limit) {
			return fmt.Errorf("after %s, %d of %d runs were done", limit, count.Load(), n)
		}
		return nil // all are done, or a request has failed
	})
	for range askers {
		if ask == nil {
			break
		}
		group.Go(func() error {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				select {
				case outstanding <- struct{}{}:
				case <-asks.Done():
					return nil
				}
				if err := ask(asks, int(i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = errors.Join(group.Wait(), end(), early, late)
	return between(before, after, n-first, after.at.Sub(before.at)), err
}
