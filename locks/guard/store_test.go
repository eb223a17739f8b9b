package guard_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/guard"
	"lockstep/locks/redistest"
)

// eachStore runs a test on every implementation of a store, each empty.
func eachStore(t *testing.T, test func(t *testing.T, store guard.Store)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) { t.Parallel(); test(t, new(guard.Memory)) })
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) { t.Parallel(); test(t, newRedis(t, rdb)) })
	eachSQL(t, func(t *testing.T, db *sql.DB, dialect guard.Dialect) {
		test(t, newSQL(t, db, dialect).Store(db))
	})
}

func TestOnlyALowerTokenIsStale(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store guard.Store) {
		ctx := within(t)
		noError(t, store.Check(ctx, 10, "a")) // the first one, whatever it is
		noError(t, store.Check(ctx, 10, "a")) // the same holder again
		noError(t, store.Check(ctx, 12, "a"))
		wantStale(t, store.Check(ctx, 11, "a"), "a", 11, 12)
		wantStale(t, store.Check(ctx, 10, "a"), "a", 10, 12)
		noError(t, store.Check(ctx, 12, "a"))
		noError(t, store.Check(ctx, 1, "b")) // resources know nothing of each other
	})
}

func TestRefusedBundleRecordsNothing(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store guard.Store) {
		ctx := within(t)
		noError(t, store.Check(ctx, 20, "c", "d"))
		// The first in byte order, whatever the order of the call.
		wantStale(t, store.Check(ctx, 15, "d", "b", "c", "a"), "c", 15, 20)
		noError(t, store.Check(ctx, 14, "a", "b"))
		noError(t, store.Check(ctx, 21, "d", "a", "d", "a")) // duplicates count once
		wantStale(t, store.Check(ctx, 20, "d", "c", "b"), "d", 20, 21)
	})
}

func TestTokensAreComparedExactly(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store guard.Store) {
		ctx := within(t)
		const highest = 1<<53 - 1
		for token := locks.Token(highest - 3); token <= highest; token++ {
			noError(t, store.Check(ctx, token, "a"))
			wantStale(t, store.Check(ctx, token-1, "a"), "a", token-1, token)
		}
		noError(t, store.Check(ctx, 99, "b")) // as text, it is above the next one
		noError(t, store.Check(ctx, 100, "b"))
		wantStale(t, store.Check(ctx, 99, "b"), "b", 99, 100)
	})
}

func TestAnyNameOfAResourceIsKeptAsItIs(t *testing.T) {
	t.Parallel()
	names := []string{
		"a", "A", " a", "a ", "bill:4711", "é", "e\u0301", "'; DROP TABLE lockstep_guard; --", `"`, `\`, `\u0061`, "\n", "\x01",
		"<&>", "\u2028", "世界", "🔒", "null", "1", "01", "{a}", "{{a}", "a}b", "{", "}", "{}", "%", "a{b}c", strings.Repeat("x", 512),
	}
	eachStore(t, func(t *testing.T, store guard.Store) {
		ctx := within(t)
		for i, name := range names {
			noError(t, store.Check(ctx, locks.Token(i+1), name))
		}
		// If two of them had one record, the earlier one would see the later one's token.
		for i, name := range names {
			noError(t, store.Check(ctx, locks.Token(i+1), name))
			if i > 0 {
				wantStale(t, store.Check(ctx, locks.Token(i), name), name, locks.Token(i), locks.Token(i+1))
			}
		}
	})
}

func TestNonsenseIsInvalidAndRecordsNothing(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store guard.Store) {
		ctx := within(t)
		for _, c := range []struct {
			token     locks.Token
			resources []string
		}{
			{0, []string{"a"}}, {1 << 53, []string{"a"}}, {1<<64 - 1, []string{"a"}}, {9, nil}, {9, []string{""}}, {9, []string{"a", ""}},
			{9, []string{"a", "\xff"}}, {9, []string{"a", "\x00"}}, {9, []string{"a", strings.Repeat("x", 513)}},
		} {
			if err := store.Check(ctx, c.token, c.resources...); !errors.Is(err, guard.ErrInvalid) {
				t.Errorf("token %s for %q: got %v, want ErrInvalid", c.token, c.resources, err)
			}
		}
		noError(t, store.Check(ctx, 1, "a"))
	})
}

func TestABundleMayBeLarge(t *testing.T) {
	t.Parallel()
	bundle := make([]string, 1000) // the most that a lock takes
	for i := range bundle {
		bundle[i] = fmt.Sprintf("bill:%d", i)
	}
	eachStore(t, func(t *testing.T, store guard.Store) {
		ctx := within(t)
		noError(t, store.Check(ctx, 10, bundle...))
		noError(t, store.Check(ctx, 11, "bill:999"))
		wantStale(t, store.Check(ctx, 10, bundle...), "bill:999", 10, 11)
	})
}

// TestStoresSeeOneOrder makes many holders check at once: as soon as a token was accepted, no lower
// one may be.
func TestStoresSeeOneOrder(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store guard.Store) {
		ctx := within(t)
		var mu sync.Mutex
		var done locks.Token // the highest token with a finished check; guarded by mu
		accepted, refused := storm(t, 8, 40, func(token locks.Token) error {
			mu.Lock()
			before := done
			mu.Unlock()
			err := store.Check(ctx, token, "a", "b")
			if err != nil {
				return err
			}
			if token < before {
				t.Errorf("token %s is accepted after %s was", token, before)
			}
			mu.Lock()
			done = max(done, token)
			mu.Unlock()
			return nil
		})
		if len(accepted) == 0 || len(refused) == 0 {
			t.Errorf("%d checks accepted and %d refused: nothing was tested", len(accepted), len(refused))
		}
	})
}
