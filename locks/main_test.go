package locks_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv(holderURL) != "" {
		os.Exit(holderMain())
	}
	if os.Getenv(fleetURL) != "" {
		os.Exit(fleetMain())
	}
	// Most of these tests wait, for leases and for processes, so more of them run at a time than
	// the machine has cores. The command line is parsed later and takes precedence.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	redistest.Main(m)
}

// patientOpen opens a client. On a busy machine a command may take longer than Open allows, so it
// repeats after a timeout.
func patientOpen(ctx context.Context, rdb redis.UniversalClient, o locks.Options) (*locks.Client, error) {
	for began := time.Now(); ; {
		c, err := locks.Open(ctx, rdb, o)
		late := errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
		if !late || time.Since(began) > patient {
			return c, err
		}
	}
}

// openClient opens a client and closes it when the test ends.
func openClient(t testing.TB, rdb redis.UniversalClient, o locks.Options) *locks.Client {
	t.Helper()
	if o.Name == "" {
		o.Name = "test"
	}
	c, err := patientOpen(t.Context(), rdb, o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Second)
		defer cancel()
		if err := c.Close(ctx); err != nil && !t.Failed() && ctx.Err() == nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// within returns the test's context with a bound that only a broken test reaches.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

const patient = time.Minute

func acquire(t testing.TB, c *locks.Client, parts ...locks.Part) *locks.Hold {
	t.Helper()
	hold, err := c.Acquire(within(t, patient), parts...)
	if err != nil {
		t.Fatalf("acquire: %v", err)
	}
	return hold
}

func release(t testing.TB, hold *locks.Hold) {
	t.Helper()
	if err := hold.Release(); err != nil {
		t.Fatalf("release: %v", err)
	}
}

// eventually waits for a condition that another goroutine or process brings about.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patient); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("not within %s: %s", patient, what)
}

// waits returns the requests that wait in a space, in order.
func waits(t testing.TB, c *locks.Client) []locks.WaitRecord {
	t.Helper()
	listing, err := c.Space().Read(within(t, patient))
	if err != nil {
		t.Fatal(err)
	}
	return listing.Waits
}

func holds(t testing.TB, c *locks.Client) []locks.HoldRecord {
	t.Helper()
	listing, err := c.Space().Read(within(t, patient))
	if err != nil {
		t.Fatal(err)
	}
	return listing.Holds
}
