package guard_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/guard"
)

// In the examples, oldHolder is the token of a hold that has passed on unnoticed, newHolder the one
// of the next hold of the same lock. Yours come from Hold.Token, Run.Token or LOCKSTEP_TOKEN.
const (
	oldHolder locks.Token = 1795222978000033
	newHolder locks.Token = 1795222978000034
)

// someDatabase replaces your database.
func someDatabase() *sql.DB {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		panic(err)
	}
	db.SetMaxOpenConns(1) // each connection would have its own memory
	if _, err := db.Exec("CREATE TABLE bill (id INTEGER PRIMARY KEY, settled_by TEXT); INSERT INTO bill VALUES (4711, '')"); err != nil {
		panic(err)
	}
	return db
}

// someRedis replaces your Redis.
func someRedis() (rdb *redis.Client, stop func()) {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	rdb = redis.NewClient(&redis.Options{Addr: server.Addr()})
	return rdb, func() { _ = rdb.Close(); server.Close() }
}

func ExampleSQL_Check() {
	ctx := context.Background()
	db := someDatabase()
	defer db.Close()
	fence, err := guard.NewSQL(guard.SQLite, guard.SQLOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := fence.Create(ctx, db); err != nil { // or fence.Schema() among your migrations
		fmt.Println(err)
		return
	}

	settle := func(token locks.Token, by string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // does nothing after a commit
		if err := fence.Check(ctx, tx, token, "bill:4711"); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "UPDATE bill SET settled_by = ? WHERE id = 4711", by); err != nil {
			return err
		}
		return tx.Commit()
	}
	fmt.Println(settle(newHolder, "B"))
	fmt.Println(settle(oldHolder, "A"))

	var by string
	fmt.Println(db.QueryRowContext(ctx, "SELECT settled_by FROM bill").Scan(&by), by)
	// Output:
	// <nil>
	// bill:4711: token 1795222978000033 is stale, 1795222978000034 was seen
	// <nil> B
}

func ExampleSQL_Schema() {
	fence, err := guard.NewSQL(guard.PostgreSQL, guard.SQLOptions{Table: "shop.fence"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(fence.Schema())
	// Output:
	// CREATE TABLE IF NOT EXISTS "shop"."fence" (
	// 	resource   text COLLATE "C" PRIMARY KEY,
	// 	token      bigint NOT NULL,
	// 	checked_at timestamptz NOT NULL
	// );
	// CREATE TABLE IF NOT EXISTS "shop"."fence_done" (
	// 	key     text COLLATE "C" PRIMARY KEY,
	// 	token   bigint NOT NULL,
	// 	done_at timestamptz NOT NULL
	// );
}

// attempt replaces the *jobs.Run that a handler receives.
type attempt struct{ token locks.Token }

func (a attempt) IdempotencyKey() string { return "settle-bills#4711" }
func (a attempt) Token() locks.Token     { return a.token }

func ExampleSQL_Once() {
	ctx := context.Background()
	db := someDatabase()
	defer db.Close()
	fence, err := guard.NewSQL(guard.SQLite, guard.SQLOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := fence.Create(ctx, db); err != nil {
		fmt.Println(err)
		return
	}

	// A handler: func(ctx context.Context, run *jobs.Run[Args]) error.
	settle := func(ctx context.Context, run attempt) error {
		return fence.Once(ctx, db, run, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE bill SET settled_by = settled_by || 'x' WHERE id = 4711")
			return err
		})
	}
	// The worker of the first attempt dies after the commit, before the ledger knows. So a second
	// attempt follows.
	fmt.Println(settle(ctx, attempt{oldHolder}))
	fmt.Println(settle(ctx, attempt{newHolder}))

	var by string
	fmt.Println(db.QueryRowContext(ctx, "SELECT settled_by FROM bill").Scan(&by), by)
	// Output:
	// <nil>
	// <nil>
	// <nil> x
}

func ExampleRedis_Set() {
	ctx := context.Background()
	rdb, stop := someRedis()
	defer stop()
	fence, err := guard.NewRedis(rdb, guard.RedisOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(fence.Set(ctx, newHolder, "bill:4711", "total:4711", 120, 0))
	err = fence.Set(ctx, oldHolder, "bill:4711", "total:4711", 90, 0)
	fmt.Println(errors.Is(err, guard.ErrStale), rdb.Get(ctx, "total:4711").Val())
	// Output:
	// <nil>
	// true 120
}

func ExampleRedis_Run() {
	ctx := context.Background()
	rdb, stop := someRedis()
	defer stop()
	fence, err := guard.NewRedis(rdb, guard.RedisOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	// A run counts once, even if the command is sent again: the members of a set are the keys of
	// the runs.
	book := guard.NewScript(`
		redis.call('SADD', KEYS[1], ARGV[1])
		return redis.call('SCARD', KEYS[1])`)
	settle := func(token locks.Token, run string) (int, error) {
		return fence.Run(ctx, book, token, []string{"bill:4711"}, []string{"settled"}, run).Int()
	}
	fmt.Println(settle(newHolder, "settle-bills#2"))
	fmt.Println(settle(newHolder, "settle-bills#2"))
	_, err = settle(oldHolder, "settle-bills#1")
	fmt.Println(err)
	// Output:
	// 1 <nil>
	// 1 <nil>
	// bill:4711: token 1795222978000033 is stale, 1795222978000034 was seen
}

func ExampleHTTP() {
	bills := http.NewServeMux()
	bills.Handle("PUT /bills/{id}", guard.HTTP(
		// the handler changes memory, too; otherwise fence.Store(db), or a guard.Redis
		new(guard.Memory),
		func(r *http.Request) []string { return []string{"bill:" + r.PathValue("id")} },
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "settled") }),
		guard.HTTPOptions{},
	))

	put := func(token string) {
		r := httptest.NewRequest(http.MethodPut, "/bills/4711", nil)
		if token != "" {
			r.Header.Set(guard.Header, token)
		}
		w := httptest.NewRecorder()
		bills.ServeHTTP(w, r)
		fmt.Print(w.Code, " ", w.Body)
	}
	put("1795222978000034")
	put("1795222978000033")
	put("")
	// Output:
	// 200 settled
	// 412 {"type":"urn:lockstep:problem:stale-token","title":"Stale fencing token","status":412,"detail":"bill:4711: token 1795222978000033 is stale, 1795222978000034 was seen","resource":"bill:4711","token":"1795222978000033","seen":"1795222978000034"}
	// 428 {"type":"about:blank","title":"Precondition Required","status":428,"detail":"request has no Lockstep-Token header"}
}

func ExampleRequestToken() {
	ctx := context.Background()
	db := someDatabase()
	defer db.Close()
	fence, err := guard.NewSQL(guard.SQLite, guard.SQLOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := fence.Create(ctx, db); err != nil {
		fmt.Println(err)
		return
	}

	// Several processes serve this, so the handler checks where it writes, and needs no HTTP guard
	// before it.
	settle := func(r *http.Request) error {
		token, err := guard.RequestToken(r)
		if err != nil {
			return err
		}
		tx, err := db.BeginTx(r.Context(), nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := fence.Check(r.Context(), tx, token, "bill:4711"); err != nil {
			return err
		}
		if _, err := tx.ExecContext(r.Context(), "UPDATE bill SET settled_by = 'us' WHERE id = 4711"); err != nil {
			return err
		}
		return tx.Commit()
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := settle(r); err != nil {
			guard.WriteError(w, err)
		}
	}))
	defer server.Close()

	post := func(token locks.Token) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, nil)
		if err != nil {
			return err
		}
		guard.SetToken(r, token)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if err := guard.ResponseError(response); err != nil {
			return err
		}
		fmt.Println(response.Status)
		return nil
	}
	fmt.Println(post(newHolder))
	fmt.Println(errors.Is(post(oldHolder), guard.ErrStale))
	// Output:
	// 200 OK
	// <nil>
	// true
}

func ExampleMemory_Check() {
	ctx := context.Background()
	var fence guard.Memory
	fmt.Println(fence.Check(ctx, newHolder, "bill:4711", "bill:4712"))
	fmt.Println(fence.Check(ctx, oldHolder, "bill:4712"))
	// Output:
	// <nil>
	// bill:4712: token 1795222978000033 is stale, 1795222978000034 was seen
}
