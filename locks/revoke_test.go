package locks_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

var why = locks.Revocation{By: "ann", Reason: "the bill is wrong"}

func TestAskedHolderDecides(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t)})
		hold := acquire(t, c, locks.Exclusive("a", "b"))
		inner := nested(t, c, hold, locks.Exclusive("a"))
		select {
		case <-hold.Asked():
			t.Fatal("the lock was not asked for")
		default:
		}
		id, err := c.Space().Revoke(t.Context(), "b", hold.Token(), locks.Ask, why)
		if err != nil || id != hold.ID() {
			t.Fatalf("got %s, %v", id, err)
		}
		<-inner.Asked()
		if got := inner.Why(); got == nil || *got != why {
			t.Errorf("got %+v", got)
		}
		if hold.Context().Err() != nil {
			t.Error("asking has ended the work")
		}
		if record := holds(t, c)[0]; record.Asked == nil || record.Asked.Force != locks.Ask || record.Asked.Revocation != why {
			t.Errorf("got %+v", record.Asked)
		}
		release(t, inner)
		release(t, hold)
	})
}

func TestTakenLockPassesOnWhenItsHolderHasAnswered(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t)})
		hold := acquire(t, c, locks.Exclusive("a"))
		if _, err := c.Space().Revoke(t.Context(), "a", hold.Token(), locks.Take, why); err != nil {
			t.Fatal(err)
		}
		<-hold.Context().Done()
		cause := context.Cause(hold.Context())
		if !errors.Is(cause, locks.ErrRevoked) || !errors.Is(cause, locks.ErrLost) || !strings.Contains(cause.Error(), "by ann: the bill is wrong") {
			t.Errorf("got cause %v", cause)
		}
		busy(t, c, "a", locks.Exclusive("a")) // the work may still be ending
		if err := hold.Release(); !errors.Is(err, locks.ErrRevoked) {
			t.Errorf("got %v from the release", err)
		}
		release(t, acquireAtOnce(t, c, locks.Exclusive("a")))
	})
}

func TestSeizedLockPassesOnAtOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t)})
		hold := acquire(t, c, locks.Shared("a"))
		other := acquire(t, c, locks.Shared("a"))
		if _, err := c.Space().Revoke(t.Context(), "a", hold.Token(), locks.Seize, why); err != nil {
			t.Fatal(err)
		}
		if records := holds(t, c); len(records) != 1 || records[0].ID != other.ID() {
			t.Errorf("got %+v, want the other one alone", records)
		}
		<-hold.Context().Done()
		if cause := context.Cause(hold.Context()); !errors.Is(cause, locks.ErrRevoked) {
			t.Errorf("got cause %v", cause)
		}
		_ = hold.Release()
		release(t, other)
	})
}

func TestLockThatMovedOnIsLeftAlone(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t)})
		first := acquire(t, c, locks.Exclusive("a"))
		release(t, first)
		for _, force := range []locks.Force{locks.Ask, locks.Take, locks.Seize} {
			if _, err := c.Space().Revoke(t.Context(), "a", first.Token(), force, why); !errors.Is(err, locks.ErrStale) {
				t.Errorf("got %v for a free lock", err)
			}
		}
		second := acquire(t, c, locks.Exclusive("a"))
		for _, force := range []locks.Force{locks.Ask, locks.Take, locks.Seize} {
			_, err := c.Space().Revoke(t.Context(), "a", first.Token(), force, why)
			if !errors.Is(err, locks.ErrStale) || !strings.Contains(err.Error(), second.Token().String()) {
				t.Errorf("got %v for a lock that another one holds", err)
			}
		}
		if second.Context().Err() != nil || len(holds(t, c)) != 1 {
			t.Error("the next holder was hit")
		}
		release(t, second)
		for _, bad := range []func() error{
			func() error { _, err := c.Space().Revoke(t.Context(), "", 1, locks.Ask, why); return err },
			func() error { _, err := c.Space().Revoke(t.Context(), "a", 1, "x", why); return err },
			func() error {
				_, err := c.Space().Revoke(t.Context(), "a", 1, locks.Ask, locks.Revocation{Reason: strings.Repeat("x", 2000)})
				return err
			},
		} {
			if err := bad(); !errors.Is(err, locks.ErrInvalid) {
				t.Errorf("got %v", err)
			}
		}
	})
}
