package locks_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/bootclock"
	"lockstep/locks/redistest"
)

// nested acquires under another hold.
func nested(t testing.TB, c *locks.Client, outer *locks.Hold, parts ...locks.Part) *locks.Hold {
	t.Helper()
	hold, err := c.Acquire(outer.Context(), parts...)
	if err != nil {
		t.Fatalf("acquire under %s: %v", outer.ID(), err)
	}
	return hold
}

func TestHeldResourcesAreReenteredWithoutARoundTrip(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{}) // its own: its statistics are read
	rdb := server.Client(t)
	c := openClient(t, rdb, locks.Options{Lease: locks.Options{}.Lease})
	outer := acquire(t, c, locks.Exclusive("a", "b"), locks.Shared("r"))
	scripts := func() int64 {
		t.Helper()
		info, err := rdb.InfoMap(t.Context(), "commandstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		return int64(len(info["Commandstats"]["cmdstat_evalsha"])) + calls(t, info["Commandstats"]["cmdstat_evalsha"])
	}
	before := scripts()
	inner := nested(t, c, outer, locks.Exclusive("a"), locks.Shared("r"))
	third := nested(t, c, inner, locks.Shared("a", "b"))
	if after := scripts(); after != before {
		t.Errorf("%d scripts were sent for what is held already", after-before)
	}
	if inner.Token() != outer.Token() || inner.ID() != outer.ID() || !slices.Equal(third.Names(), []string{"a", "b"}) {
		t.Errorf("got %s %s %v", inner.Token(), inner.ID(), third.Names())
	}
	// However often and in whatever order: freed once, at the end.
	for _, hold := range []*locks.Hold{outer, inner} {
		release(t, hold)
		release(t, hold)
		if err := third.Context().Err(); err != nil {
			t.Fatalf("the context of the last hold has ended: %v", err)
		}
		busy(t, c, "a", locks.Exclusive("a"))
	}
	release(t, third)
	if third.Context().Err() == nil || outer.Context().Err() == nil {
		t.Error("a context is alive after the last release")
	}
	release(t, acquireAtOnce(t, c, locks.Exclusive("a", "b", "r")))
}

// calls parses the number of calls from a line of INFO commandstats.
func calls(t testing.TB, stats string) int64 {
	t.Helper()
	text, _, _ := strings.Cut(strings.TrimPrefix(stats, "calls="), ",")
	n := int64(0)
	for _, digit := range text {
		n = 10*n + int64(digit-'0')
	}
	return n
}

func TestOverlapAsksForTheRestOnly(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t)})
		if _, err := c.Declare(t.Context(), "api", locks.PermitLimit{Permits: 3}); err != nil {
			t.Fatal(err)
		}
		outer := acquire(t, c, locks.Exclusive("a"), locks.Permits("api", 1))
		inner := nested(t, c, outer, locks.Exclusive("a", "b"), locks.Permits("api", 3))
		record := holds(t, c)
		i := slices.IndexFunc(record, func(h locks.HoldRecord) bool { return h.ID == inner.ID() })
		want := []locks.Item{{Name: "api", Mode: locks.ModePermits, N: 2}, {Name: "b", Mode: locks.ModeExclusive}}
		if i < 0 || !slices.Equal(record[i].Items, want) {
			t.Fatalf("got %+v, want a hold of %v", record, want)
		}
		if !slices.Equal(inner.Names(), []string{"a", "api", "b"}) || inner.Token() <= outer.Token() {
			t.Errorf("got %v under token %s after %s", inner.Names(), inner.Token(), outer.Token())
		}
		if !c.IsHeld(inner.Context(), "a", "b", "api") || c.IsHeld(outer.Context(), "b") || c.IsHeld(t.Context(), "a") ||
			c.IsHeld(inner.Context()) {
			t.Error("IsHeld does not go by the context")
		}
		release(t, outer) // the inner one uses it
		busy(t, c, "a", locks.Exclusive("a"))
		release(t, inner)
		release(t, acquireAtOnce(t, c, locks.Exclusive("a", "b"), locks.Permits("api", 3)))
	})
}

func TestSiblingsAreNotNested(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		ns := redistest.Namespace(t)
		c := openClient(t, rdb, locks.Options{Namespace: ns})
		root := acquire(t, c, locks.Exclusive("root"))
		first := nested(t, c, root, locks.Exclusive("a"))
		second := nested(t, c, root, locks.Exclusive("b"))
		for _, ctx := range []context.Context{second.Context(), root.Context(), t.Context()} {
			if _, err := c.TryAcquire(ctx, locks.Exclusive("a")); !errors.Is(err, locks.ErrBusy) {
				t.Errorf("got %v for what a sibling holds", err)
			}
		}
		// Another client's holds do not count.
		other := openClient(t, rdb, locks.Options{Namespace: ns})
		if _, err := other.TryAcquire(first.Context(), locks.Exclusive("a")); !errors.Is(err, locks.ErrBusy) {
			t.Errorf("got %v for what another client holds", err)
		}
		release(t, second)
		release(t, first)
		release(t, root)
	})
}

func TestReleasedOrLostHoldCoversNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t)})
		hold := acquire(t, c, locks.Exclusive("a"))
		ctx := hold.Context()
		release(t, hold)
		for _, parts := range [][]locks.Part{{locks.Exclusive("a")}, {locks.Exclusive("b")}} {
			if inner, err := c.Acquire(ctx, parts...); err == nil {
				t.Errorf("got %v under a hold that was released", inner.Names())
			}
		}
		if left := holds(t, c); len(left) != 0 {
			t.Errorf("got %+v", left)
		}
	})
}

func TestIsHeldEndsWithTheHoldThatWasReentered(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t)})
		outer := acquire(t, c, locks.Exclusive("a"))
		inner := nested(t, c, outer, locks.Exclusive("a"))
		wider := nested(t, c, inner, locks.Exclusive("a", "b"))
		if !c.IsHeld(wider.Context(), "a", "b") {
			t.Error("a is not held before it was taken")
		}
		if _, err := c.Space().Revoke(t.Context(), "a", outer.Token(), locks.Take, why); err != nil {
			t.Fatal(err)
		}
		<-wider.Context().Done()
		for name, hold := range map[string]*locks.Hold{"outer": outer, "inner": inner, "wider": wider} {
			if c.IsHeld(hold.Context(), "a") || !errors.Is(hold.Lost(), locks.ErrRevoked) {
				t.Errorf("%s: a is held after it was taken: %v", name, hold.Lost())
			}
			_ = hold.Release()
		}

		outer = acquire(t, c, locks.Exclusive("c"))
		inner = nested(t, c, outer, locks.Exclusive("c"))
		release(t, outer)
		if !c.IsHeld(inner.Context(), "c") {
			t.Error("c is not held while the inner hold uses it")
		}
		release(t, inner)
		if c.IsHeld(inner.Context(), "c") {
			t.Error("c is held after the last release")
		}
	})
}

// TestEndedRequestDoesNotWaitForTheReleaseOfItsOuterHold releases a hold while a request nested in
// it waits. So the end of that request frees the hold, and then Redis does not reply.
func TestEndedRequestDoesNotWaitForTheReleaseOfItsOuterHold(t *testing.T) {
	t.Parallel()
	changed := errors.New("changed my mind")
	const limit = 8 * time.Second
	for name, test := range map[string]struct {
		parts []locks.Part
		want  error
	}{
		"canceled": {nil, changed}, "at its limit": {[]locks.Part{locks.Wait(limit)}, locks.ErrBusy},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, direct, p := proxied(t, time.Minute)
			inTheWay := acquire(t, direct, locks.Exclusive("b"))
			outer := acquire(t, c, locks.Exclusive("a"))
			ctx, cancel := context.WithCancelCause(outer.Context())
			defer cancel(nil)
			done, queued := make(chan error, 1), make(chan struct{})
			parts := append(test.parts, locks.Exclusive("a", "b"), locks.OnWait(func(*locks.BusyError) { close(queued) }))
			go func() {
				_, err := c.Acquire(ctx, parts...)
				done <- err
			}()
			select {
			case <-queued:
			case err := <-done:
				t.Fatalf("it ended before it waited: %v", err)
			}
			release(t, outer)
			p.Set(redistest.Faults{DropRequests: true})
			if test.parts == nil {
				cancel(changed)
			}
			select {
			case err := <-done:
				if !errors.Is(err, test.want) {
					t.Errorf("got %v, want %v", err, test.want)
				}
			case <-time.After(limit + 7*time.Second): // the lease is much longer
				t.Error("the request does not end")
			}
			busy(t, direct, "a", locks.Exclusive("a"))
			p.Set(redistest.Faults{})
			p.Cut()
			release(t, acquire(t, direct, locks.Exclusive("a"))) // freed in the background
			release(t, inTheWay)
		})
	}
}

// TestDeadlockIsFoundAtOnce makes two, then three flows wait for each other in a circle. The
// request that closes it gets the error, and the others continue once its flow has released.
func TestDeadlockIsFoundAtOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		ns := redistest.Namespace(t)
		clients := []*locks.Client{openClient(t, rdb, locks.Options{Namespace: ns}), openClient(t, rdb, locks.Options{Namespace: ns})}
		for _, names := range [][]string{{"a", "b"}, {"a", "b", "c"}} {
			var outer []*locks.Hold
			for i, name := range names {
				outer = append(outer, acquire(t, clients[i%2], locks.Exclusive(name)))
			}
			var running sync.WaitGroup
			last := len(names) - 1
			for i := range last { // each waits for the next one's
				running.Go(func() {
					inner, err := clients[i%2].Acquire(outer[i].Context(), locks.Exclusive(names[i+1]))
					if err != nil {
						t.Errorf("%s under %s: %v", names[i+1], names[i], err)
						return
					}
					release(t, inner)
					release(t, outer[i])
				})
			}
			eventually(t, "they wait", func() bool { return len(waits(t, clients[0])) == last })
			_, err := clients[last%2].Acquire(outer[last].Context(), locks.Exclusive(names[0], "x"))
			var circle *locks.DeadlockError
			if !errors.As(err, &circle) || !errors.Is(err, locks.ErrDeadlock) {
				t.Fatalf("got %v, want a deadlock", err)
			}
			if len(circle.Circle) != len(names) || circle.Circle[0].Resource != names[0] ||
				circle.Circle[last].Hold != outer[last].ID() || !strings.Contains(err.Error(), names[1]+" of ") {
				t.Errorf("got the circle %+v: %v", circle.Circle, err)
			}
			release(t, outer[last])
			running.Wait()
		}
		if left := holds(t, clients[0]); len(left) != 0 {
			t.Errorf("got %+v", left)
		}
	})
}

// TestTwoUpgradesAreADeadlock has two readers that want to write: the second one gets the error.
func TestTwoUpgradesAreADeadlock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t)})
		first, second := acquire(t, c, locks.Shared("a")), acquire(t, c, locks.Shared("a"))
		got := make(chan *locks.Hold, 1)
		go func() { got <- must(c.Acquire(first.Context(), locks.Exclusive("a"))) }()
		eventually(t, "the first one waits", func() bool { return len(waits(t, c)) == 1 })
		if _, err := c.Acquire(second.Context(), locks.Exclusive("a")); !errors.Is(err, locks.ErrDeadlock) {
			t.Fatalf("got %v, want a deadlock", err)
		}
		release(t, second)
		release(t, <-got)
		release(t, first)
	})
}

// TestPermitsThatOthersReturnMakeNoCircle makes a request wait for a permit while one holder of a
// permit waits for it, and another does not: the release of that one is enough. Once that one
// waits, too, none of them could ever continue.
func TestPermitsThatOthersReturnMakeNoCircle(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t)})
		if _, err := c.Declare(t.Context(), "api", locks.PermitLimit{Permits: 2}); err != nil {
			t.Fatal(err)
		}
		for name, one := range map[string]locks.Part{"permits": locks.Permits("api", 1), "at most": locks.AtMost(2, "few")} {
			first, second, bill := acquire(t, c, one), acquire(t, c, one), acquire(t, c, locks.Exclusive("bill"))
			got := make(chan *locks.Hold, 2)
			wait := func(outer *locks.Hold, part locks.Part) {
				t.Helper()
				before := len(waits(t, c))
				go func() {
					inner, err := c.Acquire(outer.Context(), part)
					if err != nil {
						t.Errorf("%s: %v", name, err)
					}
					got <- inner
				}()
				eventually(t, "it waits", func() bool { return len(waits(t, c)) > before })
			}
			wait(first, locks.Exclusive("bill")) // and keeps its permit meanwhile
			wait(bill, one)                      // of the second one
			_, err := c.Acquire(second.Context(), locks.Exclusive("bill"))
			circle, ok := errors.AsType[*locks.DeadlockError](err)
			if !ok || len(circle.Circle) != 2 || circle.Circle[0].Hold != bill.ID() || circle.Circle[1].Hold != second.ID() {
				t.Errorf("%s: got %v, want the circle of bill and what the second one has", name, err)
			}
			release(t, second)
			inner := <-got
			if inner == nil {
				t.FailNow()
			}
			release(t, inner)
			release(t, bill)
			release(t, <-got)
			release(t, first)
		}
	})
}

func TestJoinedHoldIsEnteredAndNotFreed(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		ns := redistest.Namespace(t)
		parent := openClient(t, rdb, locks.Options{Namespace: ns})
		child := openClient(t, rdb, locks.Options{Namespace: ns})
		outer := acquire(t, parent, locks.Exclusive("a"), locks.Shared("r"))
		joined, err := child.Join(within(t, patient), outer.ID())
		if err != nil {
			t.Fatal(err)
		}
		if joined.Token() != outer.Token() || !slices.Equal(joined.Names(), []string{"a", "r"}) || joined.Session() != parent.Session() {
			t.Errorf("got %s %v of %s", joined.Token(), joined.Names(), joined.Session())
		}
		if by := joined.KillBy() - bootclock.Now(); by <= 0 || by >= parent.Lease() {
			t.Errorf("processes may live for %s", by)
		}
		inner := nested(t, child, joined, locks.Exclusive("a", "b"))
		release(t, inner)
		busy(t, child, "a", locks.Exclusive("a"))
		release(t, joined)
		if joined.Context().Err() == nil || outer.Context().Err() != nil {
			t.Error("the release of the joined hold should end its own context alone")
		}
		busy(t, child, "a", locks.Exclusive("a"))

		again, err := child.Join(within(t, patient), outer.ID())
		if err != nil {
			t.Fatal(err)
		}
		release(t, outer)
		if _, err := child.Acquire(again.Context(), locks.Exclusive("c")); !errors.Is(err, locks.ErrLost) {
			t.Errorf("got %v under a hold that its process has released", err)
		}
		release(t, again)
		if _, err := child.Join(t.Context(), outer.ID()); !errors.Is(err, locks.ErrLost) {
			t.Errorf("got %v for a hold that was released", err)
		}
	})
}

// TestJoinedHoldEndsWithItsOwner makes the other process release its hold: within a third of the
// lease the work here ends.
func TestJoinedHoldEndsWithItsOwner(t *testing.T) {
	t.Parallel()
	ns, rdb := redistest.Namespace(t), redistest.Client(t)
	parent := openClient(t, rdb, locks.Options{Namespace: ns})
	child := openClient(t, rdb, locks.Options{Namespace: ns, Lease: shortest})
	outer := acquire(t, parent, locks.Exclusive("a"))
	joined, err := child.Join(t.Context(), outer.ID())
	if err != nil {
		t.Fatal(err)
	}
	release(t, outer)
	<-joined.Context().Done()
	if cause := context.Cause(joined.Context()); !errors.Is(cause, locks.ErrLost) || !errors.Is(joined.Lost(), locks.ErrLost) {
		t.Errorf("got cause %v, lost %v", cause, joined.Lost())
	}
	release(t, joined)
}
