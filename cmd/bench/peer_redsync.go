package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

type redsyncLocker struct {
	rdb   *redis.Client
	rs    *redsync.Redsync
	lease time.Duration
}

func openRedsync(_ context.Context, addr string, lease time.Duration) (locker, error) {
	rdb := clientTo(addr)
	return &redsyncLocker{rdb, redsync.New(goredis.NewPool(rdb)), lease}, nil
}

func (l *redsyncLocker) lock(ctx context.Context, name string) (held, error) {
	// By default it stops after 32 tries; the others wait as long as they are told to.
	mutex := l.rs.NewMutex(name, redsync.WithExpiry(l.lease), redsync.WithTries(math.MaxInt))
	if err := mutex.LockContext(ctx); err != nil {
		return held{}, err
	}
	return held{
		ctx: ctx,
		unlock: func() error {
			_, err := mutex.UnlockContext(context.WithoutCancel(ctx))
			return err
		},
		extend: func(ctx context.Context) error {
			extended, err := mutex.ExtendContext(ctx)
			if err == nil && !extended {
				err = errors.New("redsync: not extended")
			}
			return err
		},
	}, nil
}

func (l *redsyncLocker) close(context.Context) error { return l.rdb.Close() }
