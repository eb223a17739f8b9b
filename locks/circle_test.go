package locks_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// waitUnder makes a request wait under a hold, and returns its result when it has one.
func waitUnder(t testing.TB, c *locks.Client, outer *locks.Hold, parts ...locks.Part) <-chan error {
	t.Helper()
	before := len(waits(t, c))
	done := make(chan error, 1)
	go func() {
		hold, err := c.Acquire(outer.Context(), parts...)
		if err == nil {
			err = hold.Release()
		}
		done <- err
	}()
	eventually(t, "it waits", func() bool { return len(waits(t, c)) > before })
	return done
}

// TestDeadlockBehindAnUpgradeIsFound makes a request wait for what a hold shares below an upgrade.
// The request that closes the circle over that share gets the error, whether the upgrade still
// lasts or has ended.
func TestDeadlockBehindAnUpgradeIsFound(t *testing.T) {
	t.Parallel()
	for _, ended := range []bool{false, true} {
		t.Run(fmt.Sprint("the upgrade has ended: ", ended), func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
				c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t)})
				sharer, file := acquire(t, c, locks.Shared("c")), acquire(t, c, locks.Exclusive("f"))
				upgrade := nested(t, c, sharer, locks.Exclusive("c"))
				behind := waitUnder(t, c, file, locks.Exclusive("c"))
				if ended {
					release(t, upgrade)
				}
				ctx, cancel := context.WithTimeout(sharer.Context(), patient)
				defer cancel()
				_, err := c.Acquire(ctx, locks.Exclusive("f"))
				circle, ok := errors.AsType[*locks.DeadlockError](err)
				if !ok || len(circle.Circle) != 2 || circle.Circle[0].Hold != file.ID() || circle.Circle[1].Hold != sharer.ID() ||
					circle.Circle[1].Resource != "c" {
					t.Errorf("got %v, want the circle of f and what is shared of c", err)
				}
				if !ended {
					release(t, upgrade)
				}
				release(t, sharer)
				if err := <-behind; err != nil {
					t.Errorf("the other one: %v", err)
				}
				release(t, file)
			})
		})
	}
}

// TestLoweredLimitThatClosesACircleIsFound lowers a limit so that two waiting requests then wait
// for each other. The younger one gets the error that names the circle.
func TestLoweredLimitThatClosesACircleIsFound(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		ns := redistest.Namespace(t)
		c, other := openClient(t, rdb, locks.Options{Namespace: ns}), openClient(t, rdb, locks.Options{Namespace: ns})
		declare := func(limit int, version int64) {
			t.Helper()
			if _, err := other.Declare(t.Context(), "api", locks.PermitLimit{Permits: limit, Version: version}); err != nil {
				t.Fatal(err)
			}
		}
		declare(3, 1)
		first, second, bill := acquire(t, c, locks.Permits("api", 1)), acquire(t, c, locks.Permits("api", 1)), acquire(t, c, locks.Exclusive("bill"))
		elder := waitUnder(t, c, bill, locks.Permits("api", 2)) // one of the two is enough
		younger := waitUnder(t, c, first, locks.Exclusive("bill"))
		declare(2, 2) // now it takes both, and the first one waits for the bill
		select {
		case err := <-younger:
			circle, ok := errors.AsType[*locks.DeadlockError](err)
			if !ok || len(circle.Circle) != 2 || circle.Circle[0].Hold != bill.ID() || circle.Circle[1].Hold != first.ID() {
				t.Errorf("got %v, want the circle of bill and the first one's permit", err)
			}
		case <-time.After(patient):
			t.Error("no request of the circle got an error")
		}
		release(t, second)
		release(t, first)
		if err := <-elder; err != nil {
			t.Errorf("the elder one: %v", err)
		}
		release(t, bill)
	})
}

// TestNestedRequestsDoNotStarveAPlainOne runs workers that hold one order each and repeatedly take
// the customer inside it. A plain request for the customer gets its turn once it is older than
// ReserveAfter.
func TestNestedRequestsDoNotStarveAPlainOne(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t), ReserveAfter: 100 * time.Millisecond})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var running sync.WaitGroup
		for i := range 4 {
			order := acquire(t, c, locks.Exclusive(fmt.Sprint("order", i)))
			running.Go(func() {
				for ctx.Err() == nil {
					customer, err := c.Acquire(order.Context(), locks.Exclusive("customer"))
					if err != nil {
						t.Errorf("nested: %v", err)
						break
					}
					time.Sleep(time.Millisecond)
					release(t, customer)
				}
				release(t, order)
			})
		}
		bounded, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		began := time.Now()
		hold, err := c.Acquire(bounded, locks.Exclusive("customer"))
		if err != nil {
			t.Errorf("the plain request starved: %v", err)
		} else {
			t.Logf("the plain request was granted after %s", time.Since(began).Round(time.Millisecond))
			release(t, hold)
		}
		cancel()
		running.Wait()
	})
}

// TestNestedRequestsDoNotStarveANestedOne runs workers that hold one order each and share the rates
// inside it, so that one of them always has them. A nested request for the rates alone gets its
// turn once it is older than ReserveAfter.
func TestNestedRequestsDoNotStarveANestedOne(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t), ReserveAfter: 100 * time.Millisecond})
		first, second := acquire(t, c, locks.Exclusive("order0")), acquire(t, c, locks.Exclusive("order1"))
		outer := acquire(t, c, locks.Exclusive("import"))
		bounded, stop := context.WithTimeout(outer.Context(), 10*time.Second)
		defer stop()
		rates := nested(t, c, first, locks.Shared("rates"))
		got := make(chan error, 1)
		go func() {
			hold, err := c.Acquire(bounded, locks.Exclusive("rates"))
			if err == nil {
				err = hold.Release()
			}
			got <- err
		}()
		eventually(t, "it waits", func() bool { return len(waits(t, c)) == 1 })
		passed := 0
		for next, other := second, first; len(waits(t, c)) > 0; next, other = other, next {
			ctx, cancel := context.WithTimeout(next.Context(), 500*time.Millisecond)
			after, err := c.Acquire(ctx, locks.Shared("rates"))
			cancel()
			release(t, rates)
			if err != nil { // it waits behind the request for the rates alone
				after = nested(t, c, next, locks.Shared("rates"))
			}
			rates = after
			passed++
		}
		release(t, rates)
		if err := <-got; err != nil {
			t.Errorf("the nested request starved, %d others were granted meanwhile: %v", passed, err)
		}
		for _, hold := range []*locks.Hold{first, second, outer} {
			release(t, hold)
		}
	})
}
