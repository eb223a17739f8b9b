package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

type redislockLocker struct {
	rdb    *redis.Client
	client *redislock.Client
	lease  time.Duration
}

func openRedislock(_ context.Context, addr string, lease time.Duration) (locker, error) {
	rdb := clientTo(addr)
	return &redislockLocker{rdb, redislock.New(rdb), lease}, nil
}

func (l *redislockLocker) lock(ctx context.Context, name string) (held, error) {
	o := &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
	for {
		lock, err := l.client.Obtain(ctx, name, l.lease, o)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			continue // without a deadline in ctx, it waits for one lease
		}
		if err != nil {
			return held{}, err
		}
		return held{
			ctx:    ctx,
			unlock: func() error { return lock.Release(context.WithoutCancel(ctx)) },
			extend: func(ctx context.Context) error { return lock.Refresh(ctx, l.lease, nil) },
		}, nil
	}
}

func (l *redislockLocker) close(context.Context) error { return l.rdb.Close() }
