package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// rueidislockLocker wraps a client of rueidislock.
type rueidislockLocker struct {
	locker rueidislock.Locker
	nudge  time.Duration // after which a waiter asks again by itself; 0: never
}

func openRueidislock(_ context.Context, addr string, lease time.Duration) (locker, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{addr}},
		KeyValidity:  lease,
		KeyMajority:  1, // there is one Redis: more keys in it would only cost time
		// Its README recommends this if Redis is new enough. With it, however, a try that times out
		// after the default of 20 ms, on a busy machine, may wake no waiter: Redis does not report
		// the try's own deletion of the key to the client, and the waiter waits forever.
		NoLoopTracking: true,
		TryNextAfter:   lease,
	})
	if err != nil {
		return nil, err
	}
	return &rueidislockLocker{locker: l}, nil
}

// openRueidislockShared is for locks that several goroutines of one client request. It sometimes
// fails to wake one of them: whether a failed try leaves the count of waiters once or twice depends
// on which of two goroutines is faster. Without a nudge, a measurement would not end.
func openRueidislockShared(ctx context.Context, addr string, lease time.Duration) (locker, error) {
	l, err := openRueidislock(ctx, addr, lease)
	if err != nil {
		return nil, err
	}
	l.(*rueidislockLocker).nudge = time.Second
	return l, nil
}

func (l *rueidislockLocker) lock(ctx context.Context, name string) (held, error) {
	for {
		locked, unlock, err := l.try(ctx, name)
		if err == nil {
			return held{ctx: locked, unlock: func() error { unlock(); return nil }}, nil
		}
		if l.nudge == 0 || ctx.Err() != nil || !errors.Is(err, context.Canceled) {
			return held{}, err
		}
	}
}

// try waits until it has the lock or it is time for a nudge; the error is then context.Canceled.
func (l *rueidislockLocker) try(ctx context.Context, name string) (context.Context, context.CancelFunc, error) {
	if l.nudge == 0 {
		return l.locker.WithContext(ctx, name)
	}
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(l.nudge, cancel)
	locked, unlock, err := l.locker.WithContext(ctx, name)
	if err == nil && timer.Stop() {
		return locked, func() { unlock(); cancel() }, nil
	}
	if err == nil { // it came with the nudge, which has already ended it
		unlock()
		err = context.Canceled
	}
	cancel()
	return nil, nil, err
}

func (l *rueidislockLocker) close(context.Context) error {
	l.locker.Close()
	return nil
}
