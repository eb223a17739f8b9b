package guard_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/guard"
	"lockstep/locks/guard/pgtest"
	"lockstep/locks/redistest"
)

// An effect is one row, one key, one page: something that a holder of the lock overwrites.
type effect struct {
	write func(token locks.Token, value string) error
	read  func() string
}

// TestPausedHolderIsRefused plays the example of the package comment, with a lock that passes on by
// itself: A's renewals no longer reach Redis, its lease ends, B is granted the lock. Everything
// that A still writes is refused.
func TestPausedHolderIsRefused(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	way := server.Proxy(t)
	o := locks.Options{Namespace: redistest.Namespace(t), Lease: 2 * time.Second}
	open := func(rdb *redis.Client) *locks.Client {
		var c *locks.Client
		var err error
		// A busy machine may take longer than Open allows.
		eventually(t, "a client opens", func() bool {
			c, err = locks.Open(within(t), rdb, o)
			return !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded)
		})
		noError(t, err)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patient)
			defer cancel()
			noError(t, c.Close(ctx))
		})
		return c
	}
	a, err := open(way.Client(t)).Acquire(within(t), locks.Exclusive("bill:4711"))
	noError(t, err)

	effects := map[string]effect{
		"postgresql": sqlEffect(t, openPostgresIf(t), guard.PostgreSQL),
		"sqlite":     sqlEffect(t, openSQLite(t), guard.SQLite),
		"redis":      redisEffect(t, server.Client(t)),
		"http":       httpEffect(t),
	}
	for name, e := range effects {
		if e.write == nil {
			continue
		}
		if err := e.write(a.Token(), "a"); err != nil {
			t.Errorf("%s: the only holder is refused: %v", name, err)
		}
	}

	way.Set(redistest.Faults{HoldRequests: true, HoldReplies: true})
	o.Lease = time.Minute // of B, which only has to hold the lock
	b, err := open(server.Client(t)).Acquire(within(t), locks.Exclusive("bill:4711"))
	noError(t, err)
	defer func() { noError(t, b.Release()) }()
	way.Set(redistest.Faults{})
	if a.Token() >= b.Token() {
		t.Fatalf("the token went from %s to %s", a.Token(), b.Token())
	}

	for name, e := range effects {
		t.Run(name, func(t *testing.T) {
			if e.write == nil {
				t.Skip(pgtest.ErrNotInstalled)
			}
			noError(t, e.write(b.Token(), "b"))
			wantStale(t, e.write(a.Token(), "a, late"), "bill:4711", a.Token(), b.Token())
			if got := e.read(); got != "b" {
				t.Errorf("the effect is %q, want b", got)
			}
			noError(t, e.write(b.Token(), "b again"))
		})
	}
	// And A was notified in time; this test is about a process that does not check.
	if cause := context.Cause(a.Context()); !errors.Is(cause, locks.ErrLost) {
		t.Errorf("A's context ended by %v, want ErrLost", cause)
	}
}

// openPostgresIf opens a PostgreSQL for a test that has more to do: it returns nil if none is
// installed.
func openPostgresIf(t *testing.T) *sql.DB {
	t.Helper()
	if !pgtest.Available() {
		return nil
	}
	return pgtest.Open(t)
}

func sqlEffect(t testing.TB, db *sql.DB, dialect guard.Dialect) effect {
	if db == nil {
		return effect{}
	}
	g := newSQL(t, db, dialect)
	mustExec(t, db, "CREATE TABLE effect (v text)")
	mustExec(t, db, "INSERT INTO effect VALUES ('')")
	return effect{
		write: func(token locks.Token, value string) error {
			tx, err := db.BeginTx(within(t), nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			if err := g.Check(within(t), tx, token, "bill:4711"); err != nil {
				return err
			}
			mustExec(t, tx, "UPDATE effect SET v = $1", value)
			return tx.Commit()
		},
		read: func() (v string) {
			noError(t, db.QueryRowContext(within(t), "SELECT v FROM effect").Scan(&v))
			return v
		},
	}
}

func redisEffect(t testing.TB, rdb *redis.Client) effect {
	g, key := newRedis(t, rdb), redistest.Namespace(t)
	return effect{
		write: func(token locks.Token, value string) error {
			return g.Set(within(t), token, "bill:4711", key, value, 0)
		},
		read: func() string { return rdb.Get(within(t), key).Val() },
	}
}

func httpEffect(t testing.TB) effect {
	var page string
	h := guard.HTTP(new(guard.Memory), func(*http.Request) []string { return []string{"bill:4711"} },
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { page = r.FormValue("v") }), guard.HTTPOptions{})
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return effect{
		write: func(token locks.Token, value string) error {
			r, err := http.NewRequestWithContext(within(t), http.MethodPost, server.URL, nil)
			if err != nil {
				return err
			}
			r.URL.RawQuery = url.Values{"v": {value}}.Encode()
			guard.SetToken(r, token)
			response, err := server.Client().Do(r)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			return guard.ResponseError(response)
		},
		read: func() string { return page },
	}
}
