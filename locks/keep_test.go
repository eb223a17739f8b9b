package locks_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// ends returns what a client's space has kept, the first end first.
func ends(t *testing.T, c *locks.Client) (texts []string) {
	t.Helper()
	page, err := c.Space().Past(t.Context(), "", time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range slices.Backward(page.Entries) {
		texts = append(texts, fmt.Sprint(e.Names[0], " ", e.Ended))
	}
	return texts
}

func TestEndsAreKeptUnlessAClientTurnsThatOff(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		o := locks.Options{Namespace: redistest.Namespace(t), Grace: -1}
		c := openClient(t, rdb, o)
		release(t, acquire(t, c, locks.Exclusive("a")))
		release(t, acquire(t, c, locks.Shared("b")))
		if _, err := c.TryAcquire(t.Context(), locks.Exclusive("c")); err != nil {
			t.Fatal(err)
		}
		other := openClient(t, rdb, o) // without bounds of its own
		if err := c.Space().EndSession(t.Context(), c.Session()); err != nil {
			t.Fatal(err)
		}
		want := []string{"a released", "b released", "c crashed"}
		if got := ends(t, other); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		o.Keep = locks.Keep{Entries: -1}
		off := openClient(t, rdb, o)
		release(t, acquire(t, off, locks.Exclusive("a")))
		if got := ends(t, off); len(got) > 0 {
			t.Errorf("got %q after the history was turned off", got)
		}
		o.Keep = locks.Keep{For: time.Hour}
		on := openClient(t, rdb, o)
		release(t, acquire(t, on, locks.Exclusive("d")))
		if got := ends(t, on); !slices.Equal(got, []string{"d released"}) {
			t.Errorf("got %q after the history was turned on", got)
		}
	})
}

func TestImpossibleBoundsOfAHistoryAreRefused(t *testing.T) {
	t.Parallel()
	for _, keep := range []locks.Keep{{For: -time.Second}, {Entries: 2_000_000}} {
		if _, err := locks.Open(t.Context(), redistest.Client(t), locks.Options{Keep: keep}); !errors.Is(err, locks.ErrInvalid) {
			t.Errorf("%+v: got %v", keep, err)
		}
	}
}

// TestAskedHoldIsKeptAsRevoked releases a hold after it was asked to, with and without a request
// that waits for it.
func TestAskedHoldIsKeptAsRevoked(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		for _, contended := range []bool{true, false} {
			c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t), Grace: -1})
			hold := acquire(t, c, locks.Exclusive("a"))
			waiting, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			if contended {
				go func() {
					hold, err := c.Acquire(waiting, locks.Exclusive("a"))
					if err == nil {
						err = hold.Release()
					}
					ended <- err
				}()
				eventually(t, "a request waits", func() bool { return len(waits(t, c)) == 1 })
			}
			if _, err := c.Space().Revoke(t.Context(), "a", hold.Token(), locks.Ask, why); err != nil {
				t.Fatal(err)
			}
			<-hold.Asked()
			release(t, hold)
			if got := ends(t, c); !slices.Contains(got, "a revoked") {
				t.Errorf("contended: %v, it kept %q, want that a was revoked", contended, got)
			}
			if contended {
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
			cancel()
		}
	})
}
