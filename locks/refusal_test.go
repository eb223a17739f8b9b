package locks_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// TestAcquireWaitsUntilRedisTakesWrites makes a real server refuse writes for each of the reasons
// that pass.
func TestAcquireWaitsUntilRedisTakesWrites(t *testing.T) {
	t.Parallel()
	set := func(ctx context.Context, rdb *redis.Client, name, value string) error {
		return rdb.ConfigSet(ctx, name, value).Err()
	}
	for code, test := range map[string]struct {
		begin, end func(context.Context, *redis.Client) error
		lasts      bool // until a person acts: then a try is not sent again
	}{
		"OOM": {
			begin: func(ctx context.Context, rdb *redis.Client) error { return set(ctx, rdb, "maxmemory", "1") },
			end:   func(ctx context.Context, rdb *redis.Client) error { return set(ctx, rdb, "maxmemory", "0") },
			lasts: true,
		},
		"MISCONF": {begin: redistest.BreakSnapshots, end: func(ctx context.Context, rdb *redis.Client) error { return set(ctx, rdb, "save", "") }, lasts: true},
		"NOREPLICAS": {
			begin: func(ctx context.Context, rdb *redis.Client) error { return set(ctx, rdb, "min-replicas-to-write", "1") },
			end:   func(ctx context.Context, rdb *redis.Client) error { return set(ctx, rdb, "min-replicas-to-write", "0") },
		},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.New(t, redistest.Options{}).Client(t)
			c := openClient(t, rdb, locks.Options{Namespace: "ns", Lease: time.Minute})
			release(t, acquire(t, c, locks.Exclusive("a")))
			if err := test.begin(t.Context(), rdb); err != nil {
				t.Fatal(err)
			}
			if test.lasts {
				if hold, err := c.TryAcquire(t.Context(), locks.Exclusive("a")); err == nil || !strings.Contains(err.Error(), code) {
					t.Errorf("a try got %v, %v, want the error %s", hold, err, code)
				}
			}
			short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, err := c.Acquire(short, locks.Exclusive("a"))
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), code) {
				t.Errorf("got %v, want the end of the context and %s", err, code)
			}
			_, err = c.Acquire(t.Context(), locks.Exclusive("a"), locks.Wait(time.Second))
			if err == nil || !strings.Contains(err.Error(), code) {
				t.Errorf("got %v after the limit, want %s", err, code)
			}

			granted := make(chan error, 1)
			go func() {
				hold, err := c.Acquire(t.Context(), locks.Exclusive("a"))
				if err == nil {
					err = hold.Release()
				}
				granted <- err
			}()
			select {
			case err := <-granted:
				t.Fatalf("the acquire ended while Redis refused writes: %v", err)
			case <-time.After(200 * time.Millisecond):
			}
			if err := test.end(t.Context(), rdb); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-granted:
				if err != nil {
					t.Errorf("got %v after Redis took writes again", err)
				}
			case <-time.After(10 * time.Second):
				t.Error("the acquire is not granted although Redis takes writes again")
			}
		})
	}
}

// TestRefusedTokenLeavesNoNameTaken takes the right to SET away, which only the token of a grant
// needs: once before an acquire, and once before a release that grants a request which waits. An
// operator gives the right, and the name can be acquired.
func TestRefusedTokenLeavesNoNameTaken(t *testing.T) {
	t.Parallel()
	for name, parts := range map[string][]locks.Part{
		"fast paths": {locks.Exclusive("a")},
		"long paths": {locks.Exclusive("a"), locks.MaxHold(time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.New(t, redistest.Options{}).Client(t)
			c := openClient(t, rdb, locks.Options{Namespace: "ns", Lease: time.Minute})
			release(t, acquire(t, c, locks.Exclusive("b")))
			rights := func(rule string) {
				t.Helper()
				if err := rdb.Do(t.Context(), "ACL", "SETUSER", "default", rule).Err(); err != nil {
					t.Fatal(err)
				}
			}

			rights("-set")
			if hold, err := c.TryAcquire(t.Context(), parts...); err == nil || !strings.Contains(err.Error(), "can't run this command") {
				t.Fatalf("got %v, %v without the right to SET, want that it is missing", hold, err)
			}
			rights("+set")
			hold := acquire(t, c, parts...)

			waiting, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				_, err := c.Acquire(waiting, locks.Exclusive("a"))
				ended <- err
			}()
			eventually(t, "a request waits", func() bool { return len(waits(t, c)) == 1 })
			rights("-set")
			if err := hold.Release(); err == nil || !strings.Contains(err.Error(), "can't run this command") {
				t.Errorf("the release got %v without the right to SET, want that it is missing", err)
			}
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("the request that waited got %v, want its cancellation", err)
			}
			rights("+set")
			release(t, acquire(t, c, parts...))
		})
	}
}
