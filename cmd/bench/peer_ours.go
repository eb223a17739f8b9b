package main

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
)

type ourLocker struct {
	rdb    *redis.Client
	client *locks.Client
}

func openOurs(ctx context.Context, addr string, lease time.Duration) (locker, error) {
	return openLocks(ctx, addr, locks.Options{Lease: lease})
}

func openLocks(ctx context.Context, addr string, o locks.Options) (*ourLocker, error) {
	rdb := clientTo(addr)
	client, err := locks.Open(ctx, rdb, o)
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	return &ourLocker{rdb, client}, nil
}

func (l *ourLocker) lock(ctx context.Context, name string) (held, error) {
	return l.lockAll(ctx, name)
}

func (l *ourLocker) lockAll(ctx context.Context, names ...string) (held, error) {
	hold, err := l.client.Acquire(ctx, locks.Exclusive(names...))
	if err != nil {
		return held{}, err
	}
	return held{ctx: hold.Context(), unlock: hold.Release}, nil
}

func (l *ourLocker) close(ctx context.Context) error {
	return errors.Join(l.client.Close(ctx), l.rdb.Close())
}
