package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/locks"
)

// keptCalls is how many holds and waits end in a sample of measureKept, and keptCallers how many
// goroutines share its scripts.
const keptCalls, keptCallers = 100, 64

// measureKept compares two lock spaces of one server: one keeps how holds and waits have ended, the
// other does not. They take turns.
func measureKept(ctx context.Context, set settings, r *result) error {
	s, rdb, stop, err := startWithClient(ctx)
	if err != nil {
		return err
	}
	defer stop()
	var spaces []*keptSpace
	for i, keep := range []locks.Keep{{Entries: -1}, {}} {
		space, err := openKept(ctx, rdb, fmt.Sprint("kept", i), keep)
		if err != nil {
			return err
		}
		defer space.close(context.WithoutCancel(ctx))
		spaces = append(spaces, space)
	}
	set.rounds *= 25 // the difference is a tenth of what is measured
	r.note("medians of %d rounds; server µs of all scripts of a call", set.rounds)
	r.Columns = []string{"what", "nothing kept", "kept", "ends", "added an end"}
	for _, use := range []struct {
		name string
		ends float64 // of holds and waits in each call
		call func(*keptSpace, context.Context) error
	}{
		{"pair of a small bundle", 1, (*keptSpace).small},
		{"pair of a share", 1, (*keptSpace).share},
		{"hand-off to a waiting request", 3, (*keptSpace).handOff},
		{fmt.Sprintf("%d pairs at once", keptCallers), keptCallers, (*keptSpace).crowd},
		{"pair of 100 names", 1, (*keptSpace).wide},
	} {
		set.step("%s, with and without a history", use.name)
		took, added := make([][]float64, len(spaces)), make([]float64, set.rounds)
		for round := range set.rounds + 1 {
			for i := range spaces {
				i = (i + round) % len(spaces)
				micro, err := spaces[i].sample(ctx, s, max(10, int(keptCalls/use.ends)), use.call)
				if err != nil {
					return fmt.Errorf("%s: %w", use.name, err)
				}
				if round > 0 { // the first one loads the scripts
					took[i] = append(took[i], micro)
				}
			}
		}
		for round := range added {
			added[round] = (took[1][round] - took[0][round]) / use.ends
		}
		r.row(use.name, median(took[0]), median(took[1]), use.ends, median(added))
		if use.name != "pair of 100 names" {
			r.atMost(2, median(added), "server µs that an end takes longer, %s", use.name)
		}
	}
	past := spaces[1].key("endings")
	entries, bytes := rdb.LLen(ctx, past), rdb.MemoryUsage(ctx, past, 0)
	if err := errors.Join(entries.Err(), bytes.Err()); err != nil {
		return err
	}
	r.atMost(150, float64(bytes.Val())/float64(entries.Val()), "bytes of memory an element of the history, of %d", entries.Val())
	return nil
}

// keptSpace is a lock space with a client.
type keptSpace struct {
	client *locks.Client
	rdb    redis.UniversalClient
	name   string
	names  []string // many
}

func openKept(ctx context.Context, rdb redis.UniversalClient, namespace string, keep locks.Keep) (*keptSpace, error) {
	client, err := locks.Open(ctx, rdb, locks.Options{Namespace: namespace, Name: "bench", Lease: 10 * time.Minute, Grace: -1, Keep: keep})
	if err != nil {
		return nil, err
	}
	k := &keptSpace{client: client, rdb: rdb, name: namespace}
	for i := range 100 {
		k.names = append(k.names, fmt.Sprintf("bill:%04d", i))
	}
	return k, nil
}

// close ends the session of a space before its server stops.
func (k *keptSpace) close(ctx context.Context) { _ = k.client.Close(ctx) }

func (k *keptSpace) key(name string) string { return "{" + k.name + "}:" + name }

// sample returns the server's time of a call, in µs, from a number of calls.
func (k *keptSpace) sample(ctx context.Context, s *server, calls int, call func(*keptSpace, context.Context) error) (float64, error) {
	before, err := s.usage(ctx)
	if err != nil {
		return 0, err
	}
	for range calls {
		if err := call(k, ctx); err != nil {
			return 0, err
		}
	}
	after, err := s.usage(ctx)
	return after.since(before).scriptTime() / float64(calls), err
}

func (k *keptSpace) pair(ctx context.Context, part locks.Part) error {
	hold, err := k.client.TryAcquire(ctx, part)
	if err != nil {
		return err
	}
	return hold.Release()
}

func (k *keptSpace) small(ctx context.Context) error {
	return k.pair(ctx, locks.Exclusive("account:7", "bill:1001"))
}

func (k *keptSpace) share(ctx context.Context) error {
	return k.pair(ctx, locks.Shared("rates:2026-11"))
}

func (k *keptSpace) wide(ctx context.Context) error { return k.pair(ctx, locks.Exclusive(k.names...)) }

// crowd locks and unlocks a resource of its own for each of many callers. Their requests share
// scripts.
func (k *keptSpace) crowd(ctx context.Context) error {
	var callers errgroup.Group
	for i := range keptCallers {
		callers.Go(func() error { return k.pair(ctx, locks.Exclusive(k.names[i])) })
	}
	return callers.Wait()
}

// handOff makes a request wait for a lock, and releases both holds.
func (k *keptSpace) handOff(ctx context.Context) error {
	hold, err := k.client.TryAcquire(ctx, locks.Exclusive("bill:1001"))
	if err != nil {
		return err
	}
	passed := make(chan error, 1)
	go func() { passed <- k.waitAndRelease(ctx) }()
	for {
		n, err := k.rdb.ZCard(ctx, k.key("q")).Result()
		if err != nil {
			return errors.Join(err, hold.Release(), <-passed)
		}
		if n > 0 {
			break
		}
	}
	return errors.Join(hold.Release(), <-passed)
}

func (k *keptSpace) waitAndRelease(ctx context.Context) error {
	hold, err := k.client.Acquire(ctx, locks.Exclusive("bill:1001"))
	if err != nil {
		return err
	}
	return hold.Release()
}
