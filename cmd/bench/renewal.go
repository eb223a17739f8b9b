package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/locks"
)

func measureRenewal(ctx context.Context, set settings, r *result) error {
	const intervals = 3
	r.note("counted over %d renewal intervals; redislock and redsync leave renewing to their caller: one command per lock", intervals)
	r.Columns = []string{"library", "held", "interval", "commands", "server µs"}
	for _, which := range []struct {
		peer     string
		held     int
		interval time.Duration // at which the library renews
		hold     func(context.Context, locker, int) error
	}{
		{ours, 1000, shortLease / 3, holdBundles},
		{ours, 100_000, shortLease / 3, holdBundles},
		// 100,000 would be more than Redis can do in an interval.
		{"rueidislock", 1000, shortLease / 2, holdEach},
	} {
		p, err := peerOf(which.peer)
		if err != nil {
			return err
		}
		set.step("renewing %d resources, %s", which.held, p.name)
		scripts, micro, err := renewals(ctx, p, func(ctx context.Context, l locker) error {
			return which.hold(ctx, l, which.held)
		}, which.interval, intervals)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		r.row(p.name, which.held, which.interval.String(), scripts/intervals, micro/intervals)
		if p.name == ours {
			r.atMost(1, scripts/intervals, "commands per interval that keep %d resources", which.held)
		}
	}
	return nil
}

// renewals returns how many scripts, and how much of the server's time, a number of renewal
// intervals take.
func renewals(
	ctx context.Context, p peer, hold func(context.Context, locker) error, interval time.Duration, intervals int,
) (scripts, micro float64, err error) {
	s, err := startServer(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer s.stop()
	l, err := p.open(ctx, s.addr, shortLease)
	if err != nil {
		return 0, 0, err
	}
	defer l.close(context.WithoutCancel(ctx))
	if err := hold(ctx, l); err != nil {
		return 0, 0, err
	}
	// From halfway between two renewals to halfway between two later ones.
	first, err := s.usage(ctx)
	if err != nil {
		return 0, 0, err
	}
	for began := time.Now(); ; {
		if !pause(ctx, 5*time.Millisecond) {
			return 0, 0, context.Cause(ctx)
		}
		if time.Since(began) > 2*interval {
			return 0, 0, errors.New("nothing was renewed for two intervals")
		}
		now, err := s.usage(ctx)
		if err != nil {
			return 0, 0, err
		}
		if now.scripts() > first.scripts() {
			break
		}
	}
	if !pause(ctx, interval/2) {
		return 0, 0, context.Cause(ctx)
	}
	before, err := s.usage(ctx)
	if err != nil {
		return 0, 0, err
	}
	if !pause(ctx, time.Duration(intervals)*interval) {
		return 0, 0, context.Cause(ctx)
	}
	after, err := s.usage(ctx)
	if err != nil {
		return 0, 0, err
	}
	did := after.since(before)
	return did.scripts(), did.timeOf(p.sends), nil
}

// holdBundles takes n resources, a thousand at a time.
func holdBundles(ctx context.Context, l locker, n int) error {
	client := l.(*ourLocker).client
	for taken := 0; taken < n; {
		bundle := make([]string, min(1000, n-taken))
		for i := range bundle {
			bundle[i] = fmt.Sprintf("bill:%d", taken+i)
		}
		if _, err := client.Acquire(ctx, locks.Exclusive(bundle...)); err != nil {
			return err
		}
		taken += len(bundle)
	}
	return nil
}

// holdEach takes n locks, several at a time.
func holdEach(ctx context.Context, l locker, n int) error {
	group := new(errgroup.Group) // it must not end ctx: the locks outlive it
	group.SetLimit(64)
	for i := range n {
		group.Go(func() error {
			_, err := l.lock(ctx, fmt.Sprintf("bill:%d", i))
			return err
		})
	}
	return group.Wait()
}
