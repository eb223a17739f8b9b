package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// load is what the goroutines of a turn repeat: lock, work, unlock.
type load struct {
	goroutines int
	resource   func(goroutine int) string
	work       time.Duration // while it holds the lock
}

// sample has the figures of one turn. It leaves out the first moments, in which connections are
// made and scripts loaded.
type sample struct {
	took   time.Duration
	pairs  float64   // locked and unlocked
	served []float64 // the same, by goroutine
	redis  usage
	client float64 // µs of CPU time of this process
}

// counter occupies its own cache line, so that counting goroutines do not slow each other down.
type counter struct {
	n atomic.Int64
	_ [56]byte
}

// hangs is how long after its end a turn may take to wind up; after that, it counts as stuck.
const hangs = 20 * time.Second

// take runs a load on a library for a time, after a warm-up of a fifth of that time.
func take(ctx context.Context, s *server, l locker, what load, d time.Duration) (sample, error) {
	var stop atomic.Bool
	counters := make([]counter, what.goroutines)
	// Not a deadline, which some libraries take into account.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer time.AfterFunc(d+d/5+hangs, func() {
		cancel(fmt.Errorf("a call did not return within %s after the end", hangs))
	}).Stop()
	group, ctx := errgroup.WithContext(ctx)
	for i := range what.goroutines {
		name, done := what.resource(i), &counters[i].n
		group.Go(func() error {
			for !stop.Load() {
				got, err := l.lock(ctx, name)
				if err != nil {
					return fmt.Errorf("lock %s: %w", name, errors.Join(err, context.Cause(ctx)))
				}
				if what.work > 0 && !pause(ctx, what.work) {
					return context.Cause(ctx)
				}
				if err := got.unlock(); err != nil {
					return fmt.Errorf("unlock %s: %w", name, err)
				}
				done.Add(1)
			}
			return nil
		})
	}
	var result sample
	group.Go(func() error {
		defer stop.Store(true)
		if !pause(ctx, d/5) {
			return context.Cause(ctx)
		}
		before, err := look(ctx, s, counters)
		if err != nil {
			return err
		}
		if !pause(ctx, d) {
			return context.Cause(ctx)
		}
		after, err := look(ctx, s, counters)
		result = after.since(before)
		return err
	})
	return result, group.Wait()
}

// sight is a reading of everything that a sample is a difference of.
type sight struct {
	at     time.Time
	served []float64
	redis  usage
	client float64
}

func look(ctx context.Context, s *server, counters []counter) (sight, error) {
	u, err := s.usage(ctx)
	if err != nil {
		return sight{}, err
	}
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		return sight{}, fmt.Errorf("getrusage: %w", err)
	}
	now := sight{
		at: time.Now(), redis: u, client: float64(self.Utime.Nano()+self.Stime.Nano()) / 1000,
		served: make([]float64, len(counters)),
	}
	for i := range counters {
		now.served[i] = float64(counters[i].n.Load())
	}
	return now, nil
}

func (s sight) since(before sight) sample {
	d := sample{
		took: s.at.Sub(before.at), redis: s.redis.since(before.redis), client: s.client - before.client,
		served: make([]float64, len(s.served)),
	}
	for i := range s.served {
		d.served[i] = s.served[i] - before.served[i]
		d.pairs += d.served[i]
	}
	return d
}

// rate returns pairs per second.
func (s sample) rate() float64 { return s.pairs / s.took.Seconds() }

// cost returns the µs of CPU time of a pair, of Redis and of this process together.
func (s sample) cost() float64 { return (s.redis.cpu + s.client) / s.pairs }

// series are the samples of one library under one load, one for each round.
type series []sample

// median returns the median of what of each sample.
func (s series) median(what func(sample) float64) float64 {
	values := make([]float64, len(s))
	for i := range s {
		values[i] = what(s[i])
	}
	return median(values)
}

// ratio returns the median, over the rounds, of the ratio of this library to another one in each
// round.
func (s series) ratio(other series, what func(sample) float64) float64 {
	values := make([]float64, len(s))
	for i := range s {
		values[i] = what(s[i]) / what(other[i])
	}
	return median(values)
}

// median returns the middle of some values, and NaN if there are none.
func median(values []float64) float64 {
	values = slices.Sorted(slices.Values(values))
	n := len(values)
	if n == 0 {
		return math.NaN()
	}
	return (values[(n-1)/2] + values[n/2]) / 2
}

// rounds runs each load on each library, in turns. The result has a series for each load and
// library.
func rounds(ctx context.Context, set settings, s *server, libraries []locker, loads []load) ([][]series, error) {
	all := make([][]series, len(loads))
	for i := range all {
		all[i] = make([]series, len(libraries))
	}
	for round := range set.rounds {
		set.step("round %d of %d", round+1, set.rounds)
		for i, load := range loads {
			for j := range libraries {
				j = (j + round) % len(libraries) // the order rotates
				one, err := take(ctx, s, libraries[j], load, set.turn)
				if err != nil {
					return nil, fmt.Errorf("%s, %d goroutines: %w", peers[j].name, load.goroutines, err)
				}
				all[i][j] = append(all[i][j], one)
			}
		}
	}
	return all, nil
}

// openAll opens a client of every library, for shared locks or for distinct ones. closeAll closes
// them.
func openAll(ctx context.Context, addr string, shared bool) (libraries []locker, closeAll func(), err error) {
	closeAll = func() {
		// The measurement is over, or ctx has ended: closing must not hang on a Redis that a
		// measurement cut off.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		for _, l := range libraries {
			_ = l.close(ctx) // the server is stopped next
		}
	}
	for _, p := range peers {
		open := p.open
		if shared {
			open = p.shared
		}
		l, err := open(ctx, addr, lease)
		if err != nil {
			closeAll()
			return nil, nil, fmt.Errorf("open %s: %w", p.name, err)
		}
		libraries = append(libraries, l)
	}
	return libraries, closeAll, nil
}
