package locks_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// busy checks that a bundle is refused because of one resource.
func busy(t testing.TB, c *locks.Client, resource string, parts ...locks.Part) {
	t.Helper()
	_ = inTheWay(t, c, resource, parts...)
}

// inTheWay is busy, and returns the error that names the obstacle.
func inTheWay(t testing.TB, c *locks.Client, resource string, parts ...locks.Part) *locks.BusyError {
	t.Helper()
	hold, err := c.TryAcquire(within(t, patient), parts...)
	var busy *locks.BusyError
	if !errors.As(err, &busy) {
		if hold != nil {
			release(t, hold)
		}
		t.Fatalf("got %v, want a BusyError", err)
	}
	if busy.Resource != resource {
		t.Errorf("got %q in the way, want %q", busy.Resource, resource)
	}
	return busy
}

func TestReadersShareAndWritersDoNot(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		ns := redistest.Namespace(t)
		c, other := openClient(t, rdb, locks.Options{Namespace: ns}), openClient(t, rdb, locks.Options{Namespace: ns})
		first := acquire(t, c, locks.Shared("rates"), locks.Exclusive("bill:1"))
		second := acquire(t, other, locks.Shared("rates"), locks.Exclusive("bill:2"))
		if first.Token() >= second.Token() {
			t.Errorf("got tokens %s and %s, want them to grow", first.Token(), second.Token())
		}
		busy(t, c, "rates", locks.Exclusive("rates"))
		busy(t, c, "bill:1", locks.Shared("bill:1", "rates"))

		lock, err := c.Space().HeldBy(t.Context(), "rates")
		if err != nil || lock.Mode != locks.ModeShared || lock.Used != 2 || len(lock.Holds) != 2 {
			t.Errorf("got %+v, %v", lock, err)
		}
		release(t, first)
		release(t, second)
		writer := acquire(t, other, locks.Exclusive("rates"))
		if e := inTheWay(t, c, "rates", locks.Shared("rates")); e.Hold != writer.ID() || e.Holder != other.Session() {
			t.Errorf("got %+v in the way", e)
		}
		release(t, writer)
		if lock, err = c.Space().HeldBy(t.Context(), "rates"); err != nil || lock.Mode != "" || len(lock.Holds) != 0 {
			t.Errorf("got %+v, %v after all releases", lock, err)
		}
	})
}

func TestAtMostLimitsSharers(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t)})
		first := acquire(t, c, locks.AtMost(2, "job"))
		second := acquire(t, c, locks.AtMost(2, "job"))
		busy(t, c, "job", locks.AtMost(2, "job"))
		third := acquire(t, c, locks.AtMost(3, "job")) // the limit is each request's own
		release(t, first)
		busy(t, c, "job", locks.AtMost(2, "job"))
		busy(t, c, "job", locks.Exclusive("job")) // another mode waits
		release(t, second)
		release(t, third)
		release(t, acquire(t, c, locks.Exclusive("job")))
	})
}

func TestPermitsFollowTheDeclaredLimit(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		ctx := within(t, patient)
		c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t)})
		if _, err := c.TryAcquire(ctx, locks.Permits("api", 1)); !errors.Is(err, locks.ErrInvalid) {
			t.Errorf("got %v for undeclared permits", err)
		}
		declare := func(permits int, version int64, want locks.PermitLimit) {
			t.Helper()
			if got, err := c.Declare(ctx, "api", locks.PermitLimit{Permits: permits, Version: version}); err != nil || got != want {
				t.Errorf("declare %d of version %d: got %+v, %v, want %+v", permits, version, got, err, want)
			}
		}
		declare(3, 5, locks.PermitLimit{Permits: 3, Version: 5})
		declare(3, 5, locks.PermitLimit{Permits: 3, Version: 5})
		// an older configuration changes nothing
		declare(9, 4, locks.PermitLimit{Permits: 3, Version: 5})
		if _, err := c.Declare(ctx, "api", locks.PermitLimit{Permits: 4, Version: 5}); !errors.Is(err, locks.ErrInvalid) {
			t.Errorf("got %v for another limit under the same version", err)
		}
		for _, wrong := range []locks.Part{locks.Exclusive("api"), locks.Shared("api"), locks.Permits("api", 4)} {
			if _, err := c.TryAcquire(ctx, wrong); !errors.Is(err, locks.ErrInvalid) {
				t.Errorf("got %v, want an invalid request", err)
			}
		}
		two := acquire(t, c, locks.Permits("api", 2))
		one := acquire(t, c, locks.Permits("api", 1))
		busy(t, c, "api", locks.Permits("api", 1))
		if lock, err := c.Space().HeldBy(ctx, "api"); err != nil || lock.Mode != locks.ModePermits || lock.Used != 3 || lock.Limit != 3 {
			t.Errorf("got %+v, %v", lock, err)
		}
		got := make(chan *locks.Hold, 1)
		go func() { got <- must(c.Acquire(ctx, locks.Permits("api", 2))) }()
		eventually(t, "it waits", func() bool { return len(waits(t, c)) == 1 })
		release(t, one)
		if len(waits(t, c)) != 1 {
			t.Fatal("two permits were granted where one was free")
		}
		declare(4, 6, locks.PermitLimit{Permits: 4, Version: 6}) // raising it grants
		second := <-got
		declare(1, 7, locks.PermitLimit{Permits: 1, Version: 7}) // lowering it revokes nothing
		release(t, second)
		busy(t, c, "api", locks.Permits("api", 1))
		release(t, two)
		release(t, acquire(t, c, locks.Permits("api", 1)))

		held := acquire(t, c, locks.Exclusive("other"))
		if _, err := c.Declare(ctx, "other", locks.PermitLimit{Permits: 1}); !errors.Is(err, locks.ErrBusy) {
			t.Errorf("got %v for a name that is held exclusively", err)
		}
		release(t, held)
	})
}

// TestUpgradeOfALargeBundleIsListedWithTheShareBelow has a bundle with a record that fills a page
// of the holds by itself.
func TestUpgradeOfALargeBundleIsListedWithTheShareBelow(t *testing.T) {
	t.Parallel()
	ctx := within(t, patient)
	c := openClient(t, redistest.Client(t), locks.Options{Namespace: redistest.Namespace(t)})
	outer := must(c.Acquire(ctx, locks.Shared("rates")))
	names := []string{"rates"}
	for i := range 900 {
		names = append(names, fmt.Sprintf("%d:%s", i, strings.Repeat("x", 400)))
	}
	inner := must(c.Acquire(outer.Context(), locks.Exclusive(names...)))
	lock, err := c.Space().HeldBy(ctx, "rates")
	if err != nil || len(lock.Holds) != 2 || lock.Holder(outer.Token()) == nil || lock.Holder(inner.Token()) == nil {
		t.Errorf("got %d holds, %v; want the upgrade and the share below", len(lock.Holds), err)
	}
	release(t, inner)
	release(t, outer)
}

func TestUndeclaredPermitsAreAnOrdinaryName(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		ctx, ns := within(t, patient), redistest.Namespace(t)
		c := openClient(t, rdb, locks.Options{Namespace: ns})
		if err := c.Undeclare(ctx, "api", 0); err != nil {
			t.Errorf("got %v for permits that no client declared", err)
		}
		if _, err := c.Declare(ctx, "api", locks.PermitLimit{Permits: 2, Version: 3}); err != nil {
			t.Fatal(err)
		}
		both := acquire(t, c, locks.Permits("api", 2))
		if err := c.Undeclare(ctx, "api", 3); !errors.Is(err, locks.ErrBusy) {
			t.Errorf("got %v while permits are in use, want ErrBusy", err)
		}
		got := make(chan *locks.Hold, 1)
		go func() { got <- must(c.Acquire(ctx, locks.Permits("api", 1))) }()
		eventually(t, "it waits", func() bool { return len(waits(t, c)) == 1 })
		release(t, both)
		release(t, <-got)
		if err := c.Undeclare(ctx, "api", 2); !errors.Is(err, locks.ErrInvalid) {
			t.Errorf("got %v for an older version, want ErrInvalid", err)
		}
		if err := c.Undeclare(ctx, "api", 3); err != nil {
			t.Fatal(err)
		}
		if _, err := c.TryAcquire(ctx, locks.Permits("api", 1)); !errors.Is(err, locks.ErrInvalid) {
			t.Errorf("got %v for a permit, want ErrInvalid", err)
		}
		release(t, acquire(t, c, locks.Exclusive("api")))
		// all data of the space is lost
		if err := rdb.Del(ctx, c.Space().Keys()...).Err(); err != nil {
			t.Fatal(err)
		}
		c.Extension().Doubt()
		release(t, acquire(t, c, locks.Exclusive("api"))) // and the limit is not declared again
	})
}

func must(hold *locks.Hold, err error) *locks.Hold {
	if err != nil {
		panic(err)
	}
	return hold
}

func TestTryRespectsTheQueue(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		// strictly in order
		c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t), ReserveAfter: -1})
		held := acquire(t, c, locks.Exclusive("a"))
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() {
			_, err := c.Acquire(ctx, locks.Exclusive("a", "b"))
			gone <- err
		}()
		eventually(t, "it waits", func() bool { return len(waits(t, c)) == 1 })
		if e := inTheWay(t, c, "b", locks.Exclusive("b")); e.Holder != "" || e.Hold != waits(t, c)[0].Request {
			t.Errorf("got %+v, want b reserved for the request that waits", e)
		}
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		release(t, held)
	})
}

func acquireAtOnce(t testing.TB, c *locks.Client, parts ...locks.Part) *locks.Hold {
	t.Helper()
	hold, err := c.TryAcquire(within(t, patient), parts...)
	if err != nil {
		t.Fatalf("try acquire: %v", err)
	}
	return hold
}

func TestDowngradeLetsReadersInAndNoWriter(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		ctx := within(t, patient)
		c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t)})
		writer := acquire(t, c, locks.Exclusive("a", "b"))
		reader := make(chan *locks.Hold, 1)
		go func() { reader <- must(c.Acquire(ctx, locks.Shared("a"))) }()
		eventually(t, "the reader waits", func() bool { return len(waits(t, c)) == 1 })
		if err := writer.Downgrade(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		second := <-reader
		busy(t, c, "a", locks.Exclusive("a"))
		busy(t, c, "b", locks.Shared("b"))
		if err := writer.Downgrade(ctx, "a"); err != nil {
			t.Errorf("got %v for what is shared already", err)
		}
		if err := writer.Downgrade(ctx, "c"); !errors.Is(err, locks.ErrInvalid) {
			t.Errorf("got %v for what it does not have", err)
		}

		// Upgrade: it waits for the other reader, and releasing it leaves the share.
		upgraded := make(chan *locks.Hold, 1)
		go func() { upgraded <- must(c.Acquire(writer.Context(), locks.Exclusive("a"))) }()
		eventually(t, "the upgrade waits", func() bool { return len(waits(t, c)) == 1 })
		release(t, second)
		alone := <-upgraded
		if alone.Token() <= writer.Token() {
			t.Errorf("got token %s after %s, want a new one", alone.Token(), writer.Token())
		}
		busy(t, c, "a", locks.Shared("a"))
		release(t, alone)
		release(t, acquireAtOnce(t, c, locks.Shared("a")))
		busy(t, c, "a", locks.Exclusive("a"))
		release(t, writer)
		release(t, acquireAtOnce(t, c, locks.Exclusive("a", "b")))
		if left := holds(t, c); len(left) != 0 {
			t.Errorf("got %+v after all releases", left)
		}
	})
}

func TestOneResourceHasOneModeInABundle(t *testing.T) {
	t.Parallel()
	c := openClient(t, redistest.Client(t), locks.Options{Namespace: redistest.Namespace(t)})
	for _, parts := range [][]locks.Part{
		{locks.Exclusive("a"), locks.Shared("a")},
		{locks.AtMost(2, "a"), locks.AtMost(3, "a")},
		{locks.Permits("a", 1), locks.Permits("a", 2)},
		{locks.Permits("a", 0)}, {locks.AtMost(0, "a")},
		{locks.Exclusive("a"), locks.MaxHold(-time.Second)},
		{locks.Exclusive("a"), locks.MinHold(time.Microsecond)},
		{locks.Exclusive("a"), locks.CrashDelay(10_000 * time.Hour)},
		{locks.Exclusive("a"), locks.MaxHold(-1)},
	} {
		if _, err := c.TryAcquire(t.Context(), parts...); !errors.Is(err, locks.ErrInvalid) {
			t.Errorf("got %v, want an invalid request", err)
		}
	}
	release(t, acquire(t, c, locks.Shared("a"), locks.Shared("a"))) // twice the same is once
}

// TestLoweredLimitEndsWaitsForMorePermits makes requests wait for more permits than a lowered limit
// allows. They could never be granted, so each of them gets an error that names the limit; a
// request for fewer keeps its place.
func TestLoweredLimitEndsWaitsForMorePermits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		ctx := within(t, patient)
		c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t)})
		declare := func(name string, permits int, version int64) {
			t.Helper()
			if _, err := c.Declare(ctx, name, locks.PermitLimit{Permits: permits, Version: version}); err != nil {
				t.Fatal(err)
			}
		}
		declare("api", 3, 1)
		held := acquire(t, c, locks.Permits("api", 1), locks.Exclusive("bill"))
		ended := make(chan error, 2)
		ask := func(parts ...locks.Part) {
			go func() {
				hold, err := c.Acquire(ctx, parts...)
				if err == nil {
					err = errors.Join(errors.New("it was granted"), hold.Release())
				}
				ended <- err
			}()
		}
		ask(locks.Permits("api", 3))
		ask(locks.Permits("api", 3), locks.Exclusive("bill"))
		fits := make(chan *locks.Hold, 1)
		go func() { fits <- must(c.Acquire(ctx, locks.Permits("api", 2), locks.Exclusive("bill"))) }()
		eventually(t, "three requests wait", func() bool { return len(waits(t, c)) == 3 })
		declare("api", 2, 2)
		for range 2 {
			select {
			case err := <-ended:
				if !errors.Is(err, locks.ErrInvalid) || !strings.Contains(err.Error(), `"api" has 2 permits in all`) {
					t.Errorf("got %v, want an error that names the limit", err)
				}
			case <-time.After(patient):
				t.Fatal("a wait for 3 permits of 2 does not end")
			}
		}
		release(t, held)
		release(t, <-fits)

		// The same is true for a name that becomes permits while a request waits for it in another
		// mode.
		held = acquire(t, c, locks.Exclusive("bill"))
		ask(locks.Exclusive("bill", "port"))
		eventually(t, "the request waits", func() bool { return len(waits(t, c)) == 1 })
		declare("port", 1, 1)
		select {
		case err := <-ended:
			if !errors.Is(err, locks.ErrInvalid) || !strings.Contains(err.Error(), `"port" is declared as permits`) {
				t.Errorf("got %v, want an error that says that they are permits", err)
			}
		case <-time.After(patient):
			t.Fatal("a wait for permits in another mode does not end")
		}
		release(t, held)
	})
}

// TestDowngradeTakesNothingFromAHoldBelow: a hold that re-enters an exclusive one relies on it.
func TestDowngradeTakesNothingFromAHoldBelow(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		ns := redistest.Namespace(t)
		c, other := openClient(t, rdb, locks.Options{Namespace: ns}), openClient(t, rdb, locks.Options{Namespace: ns})
		outer := acquire(t, c, locks.Exclusive("a", "b"))
		inner := []*locks.Hold{must(c.Acquire(outer.Context(), locks.Exclusive("a")))}
		inner = append(inner, must(c.Acquire(inner[0].Context(), locks.Exclusive("a", "c"))), must(c.Acquire(outer.Context(), locks.Shared("b"))))
		for _, hold := range inner[:2] {
			if err := outer.Downgrade(t.Context(), "b", "a"); !errors.Is(err, locks.ErrInvalid) {
				t.Errorf("got %v while a hold below has it exclusively, want an error", err)
			}
			busy(t, other, "a", locks.Shared("a"))
			busy(t, other, "b", locks.Shared("b"))
			release(t, hold)
		}
		if err := outer.Downgrade(t.Context(), "b", "a"); err != nil {
			t.Errorf("got %v, want it downgraded: a hold below shares a resource, and no other is left", err)
		}
		release(t, acquireAtOnce(t, other, locks.Shared("a", "b")))
		for _, hold := range append(inner[2:], outer) {
			release(t, hold)
		}
	})
}

// TestRequestDuringADowngradeWaitsForItsReply: until then, nobody knows here whether others share
// the resource already.
func TestRequestDuringADowngradeWaitsForItsReply(t *testing.T) {
	t.Parallel()
	c, direct, p := proxied(t, time.Minute)
	outer := acquire(t, c, locks.Exclusive("a"))
	p.Set(redistest.Faults{ReplyDelay: time.Second})
	downgraded := make(chan error, 1)
	go func() { downgraded <- outer.Downgrade(t.Context(), "a") }()
	var reader *locks.Hold
	eventually(t, "others share it", func() (ok bool) {
		var err error
		reader, err = direct.TryAcquire(t.Context(), locks.Shared("a"))
		return err == nil
	})
	stopped := errors.New("changed my mind")
	ctx, cancel := context.WithTimeoutCause(outer.Context(), 50*time.Millisecond, stopped)
	defer cancel()
	if inner, err := c.Acquire(ctx, locks.Exclusive("a")); !errors.Is(err, stopped) {
		t.Errorf("got %v, %v while another client shares it, want the cause of the context", inner, err)
	}
	below := make(chan *locks.Hold, 1)
	go func() { below <- must(c.Acquire(outer.Context(), locks.Exclusive("a"))) }()
	if err := <-downgraded; err != nil {
		t.Fatal(err)
	}
	p.Set(redistest.Faults{})
	eventually(t, "the request waits for the other client", func() bool { return len(waits(t, direct)) == 1 })
	release(t, reader)
	release(t, <-below)
	release(t, outer)
}

// TestRequestDuringADowngradeWithoutAReplyEnds: at its limit, and a try at once. A request for
// another resource of the hold does not need to wait.
func TestRequestDuringADowngradeWithoutAReplyEnds(t *testing.T) {
	t.Parallel()
	c, direct, p := proxied(t, time.Minute)
	outer := acquire(t, c, locks.Exclusive("a", "b", "warm"))
	if err := outer.Downgrade(t.Context(), "warm"); err != nil { // Redis knows the script
		t.Fatal(err)
	}
	p.Set(redistest.Faults{Commands: []string{"evalsha"}, LoseReplies: 1})
	downgraded := make(chan error, 1)
	go func() { downgraded <- outer.Downgrade(t.Context(), "a") }()
	eventually(t, "others share it", func() bool {
		reader, err := direct.TryAcquire(t.Context(), locks.Shared("a"))
		if err == nil {
			release(t, reader)
		}
		return err == nil
	})
	began := time.Now()
	other, err := c.TryAcquire(outer.Context(), locks.Exclusive("b"))
	if err != nil {
		t.Errorf("another resource: %v, want it at once", err)
	}
	if _, err := c.TryAcquire(outer.Context(), locks.Exclusive("a")); err == nil {
		t.Error("a try got it")
	}
	if _, err := c.Acquire(outer.Context(), locks.Exclusive("a"), locks.Wait(100*time.Millisecond)); err == nil {
		t.Error("a request with a limit got it")
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("they took %s", took)
	}
	p.Set(redistest.Faults{})
	p.Cut()
	if err := <-downgraded; err != nil {
		t.Error(err)
	}
	if other != nil {
		release(t, other)
	}
	release(t, outer)
}
