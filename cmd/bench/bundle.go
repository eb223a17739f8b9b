package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/locks"
)

const (
	bundleSize = 10
	smallJobs  = 40                   // goroutines that each take one of the resources
	jobWork    = 5 * time.Millisecond // of each of them, and of the holder of the bundle
)

func measureBundle(ctx context.Context, set settings, r *result) error {
	d := 8 * set.turn
	r.note("one turn of %s each; reserve after: the age at which no request may pass the one for the ten", d)
	r.Columns = []string{"library", "reserve after", "bundles/s", "small jobs/s"}
	reserving := func(after time.Duration) func(context.Context, string) (locker, error) {
		return func(ctx context.Context, addr string) (locker, error) {
			return openLocks(ctx, addr, locks.Options{Lease: lease, ReserveAfter: after})
		}
	}
	type contestant struct {
		name, reserve string
		open          func(ctx context.Context, addr string) (locker, error)
	}
	contestants := []contestant{
		{ours, "never", reserving(time.Hour)},
		{ours, "1s", reserving(0)}, // the default
		{ours, "50ms", reserving(50 * time.Millisecond)},
	}
	for _, p := range peers {
		if p.name != ours {
			contestants = append(contestants, contestant{p.name, "one by one", func(ctx context.Context, addr string) (locker, error) {
				return p.shared(ctx, addr, lease)
			}})
		}
	}
	for _, c := range contestants {
		set.step("a bundle among small jobs, %s, %s", c.name, c.reserve)
		bundles, small, err := bundleAmong(ctx, c.open, d)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		r.row(c.name, c.reserve, bundles/d.Seconds(), small/d.Seconds())
	}
	return nil
}

func bundleAmong(
	ctx context.Context, open func(context.Context, string) (locker, error), d time.Duration,
) (bundles, small float64, err error) {
	s, err := startServer(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer s.stop()
	l, err := open(ctx, s.addr)
	if err != nil {
		return 0, 0, err
	}
	defer l.close(context.WithoutCancel(ctx))

	all := make([]string, bundleSize)
	for i := range all {
		all[i] = fmt.Sprintf("bill:%d", i)
	}
	limited, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	group, limited := errgroup.WithContext(limited)
	var bundleCount, smallCount atomic.Int64
	repeat := func(count *atomic.Int64, lock func() (unlock func() error, err error)) {
		group.Go(func() error {
			for limited.Err() == nil {
				unlock, err := lock()
				if err != nil && limited.Err() != nil {
					return nil
				}
				if err != nil {
					return err
				}
				count.Add(1)
				pause(limited, jobWork)
				if err := unlock(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	repeat(&bundleCount, func() (func() error, error) { return lockAll(limited, l, all) })
	for range smallJobs {
		repeat(&smallCount, func() (func() error, error) {
			got, err := l.lock(limited, all[rand.N(len(all))])
			return got.unlock, err
		})
	}
	if err := group.Wait(); err != nil {
		return 0, 0, err
	}
	return float64(bundleCount.Load()), float64(smallCount.Load()), context.Cause(ctx)
}

// lockAll takes several locks: as a bundle if the library has bundles, else one after the other.
func lockAll(ctx context.Context, l locker, names []string) (unlock func() error, err error) {
	if l, ok := l.(*ourLocker); ok {
		got, err := l.lockAll(ctx, names...)
		return got.unlock, err
	}
	var taken []held
	unlock = func() error {
		var err error
		for _, got := range taken {
			err = errors.Join(err, got.unlock())
		}
		return err
	}
	for _, name := range names {
		got, err := l.lock(ctx, name)
		if err != nil {
			return nil, errors.Join(err, unlock())
		}
		taken = append(taken, got)
	}
	return unlock, nil
}
