package rule_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// patient is a bound that only a broken test reaches.
const patient = 30 * time.Second

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	t.Cleanup(cancel)
	return ctx
}

// openClient opens a client in a namespace of its own, and closes it when the test ends.
func openClient(t testing.TB, rdb redis.UniversalClient) *locks.Client {
	t.Helper()
	c, err := locks.Open(within(t), rdb, locks.Options{Namespace: redistest.Namespace(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patient)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

func holds(t testing.TB, c *locks.Client) []locks.HoldRecord {
	t.Helper()
	listing, err := c.Space().Read(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return listing.Holds
}
