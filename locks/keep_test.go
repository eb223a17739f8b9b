package locks_test

import (
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
