package guard_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	_ "modernc.org/sqlite"

	"lockstep/locks"
	"lockstep/locks/guard"
	"lockstep/locks/guard/pgtest"
)

// eachSQL runs a test on every kind of database, each without tables and used by no other test.
func eachSQL(t *testing.T, test func(t *testing.T, db *sql.DB, dialect guard.Dialect)) {
	t.Helper()
	t.Run("postgresql", func(t *testing.T) { t.Parallel(); test(t, pgtest.Open(t), guard.PostgreSQL) })
	t.Run("sqlite file", func(t *testing.T) { t.Parallel(); test(t, openSQLite(t), guard.SQLite) })
	t.Run("sqlite wal", func(t *testing.T) {
		t.Parallel()
		test(t, openSQLite(t, "_pragma=journal_mode(wal)"), guard.SQLite)
	})
	t.Run("sqlite memory", func(t *testing.T) { t.Parallel(); test(t, openMemory(t), guard.SQLite) })
}

// openSQLite opens a database in a file, so that its writers wait for each other.
func openSQLite(t testing.TB, parameters ...string) *sql.DB {
	t.Helper()
	parameters = append(parameters, "_pragma=busy_timeout(30000)", "_pragma=synchronous(off)")
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "db")+"?"+strings.Join(parameters, "&"))
	noError(t, err)
	t.Cleanup(func() { noError(t, db.Close()) })
	// The first connection sets the journal mode: several at once would not wait for each other.
	noError(t, db.PingContext(t.Context()))
	return db
}

// openMemory opens a database in memory. Each connection would have its own, so it opens only one.
func openMemory(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", ":memory:")
	noError(t, err)
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { noError(t, db.Close()) })
	return db
}

func mustExec(t testing.TB, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(within(t), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func newSQL(t testing.TB, db *sql.DB, dialect guard.Dialect) *guard.SQL {
	t.Helper()
	g, err := guard.NewSQL(dialect, guard.SQLOptions{})
	noError(t, err)
	noError(t, g.Create(within(t), db))
	return g
}

func begin(t testing.TB, db *sql.DB, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	// The context of the test would roll back by itself when the test ends, without the test's
	// knowledge.
	tx, err := db.BeginTx(context.WithoutCancel(t.Context()), &sql.TxOptions{Isolation: level})
	noError(t, err)
	t.Cleanup(func() {
		if err := tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
			t.Error(err)
		}
	})
	return tx
}

// records returns the content of a guard's table.
func records(t testing.TB, db *sql.DB) map[string]locks.Token {
	t.Helper()
	rows, err := db.QueryContext(within(t), "SELECT resource, token FROM lockstep_guard")
	noError(t, err)
	defer rows.Close()
	all := make(map[string]locks.Token)
	for rows.Next() {
		var resource string
		var token int64
		noError(t, rows.Scan(&resource, &token))
		all[resource] = locks.Token(token)
	}
	noError(t, rows.Err())
	return all
}

func TestRollbackUndoesTheRecord(t *testing.T) {
	t.Parallel()
	eachSQL(t, func(t *testing.T, db *sql.DB, dialect guard.Dialect) {
		g := newSQL(t, db, dialect)
		ctx := within(t)
		noError(t, g.Store(db).Check(ctx, 10, "old"))

		tx := begin(t, db, sql.LevelDefault)
		noError(t, g.Check(ctx, tx, 12, "old", "new"))
		noError(t, tx.Rollback())
		if got := records(t, db); len(got) != 1 || got["old"] != 10 {
			t.Errorf("after a rollback the records are %v, want old: 10 alone", got)
		}
		noError(t, g.Store(db).Check(ctx, 11, "old", "new"))
	})
}

func TestStaleTransactionLeavesNothing(t *testing.T) {
	t.Parallel()
	eachSQL(t, func(t *testing.T, db *sql.DB, dialect guard.Dialect) {
		g := newSQL(t, db, dialect)
		ctx := within(t)
		noError(t, g.Store(db).Check(ctx, 20, "b"))

		tx := begin(t, db, sql.LevelDefault)
		wantStale(t, g.Check(ctx, tx, 15, "c", "b", "a"), "b", 15, 20)
		// The transaction itself is in order: only the caller ends it.
		noError(t, tx.Rollback())
		if got := records(t, db); len(got) != 1 || got["b"] != 20 {
			t.Errorf("after a refusal the records are %v, want b: 20 alone", got)
		}
	})
}

// TestOverlappingTransactionsTakeTurns has two holders that are both in the middle of a
// transaction: the second one to check waits for the end of the other, and then gets the right
// result. PostgreSQL only: in SQLite the second writer does not get that far.
func TestOverlappingTransactionsTakeTurns(t *testing.T) {
	t.Parallel()
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		// whether the resource has a record before: insert or update
		for _, known := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s known=%v", level, known), func(t *testing.T) {
				t.Parallel()
				for _, c := range []struct {
					name          string
					first, second locks.Token
					commit        bool // how the first one ends
					stale         bool // what the second one gets
				}{
					{"newer after older", 10, 11, true, false},
					{"newer after older rolled back", 10, 11, false, false},
					{"older after newer", 11, 10, true, true},
					{"older after newer rolled back", 11, 10, false, false},
					{"same", 10, 10, true, false},
				} {
					t.Run(c.name, func(t *testing.T) {
						t.Parallel()
						db := pgtest.Open(t)
						g := newSQL(t, db, guard.PostgreSQL)
						ctx := within(t)
						mustExec(t, db, "CREATE TABLE effect (token bigint)")
						mustExec(t, db, "INSERT INTO effect VALUES (0)")
						if known {
							noError(t, g.Store(db).Check(ctx, 5, "bill:1"))
						}

						first := begin(t, db, level)
						noError(t, g.Check(ctx, first, c.first, "bill:1"))
						mustExec(t, first, "UPDATE effect SET token = $1", int64(c.first))

						second := begin(t, db, level)
						answer := make(chan error, 1)
						go func() { answer <- g.Check(ctx, second, c.second, "bill:1") }()
						eventually(t, "the second check waits", func() bool { return waitsForLock(t, db, "lockstep_guard", answer) })
						if c.commit {
							noError(t, first.Commit())
						} else {
							noError(t, first.Rollback())
						}
						err := <-answer
						if level != sql.LevelReadCommitted && c.commit {
							if state := sqlState(err); state != "40001" {
								t.Fatalf("under %s the check that waited got %v, want SQLSTATE 40001", level, err)
							}
							noError(t, second.Rollback())
							second = begin(t, db, level)
							err = g.Check(ctx, second, c.second, "bill:1")
						}
						if c.stale {
							wantStale(t, err, "bill:1", c.second, c.first)
							return
						}
						noError(t, err)
						var seen int64
						noError(t, second.QueryRowContext(ctx, "SELECT token FROM effect").Scan(&seen))
						want := int64(0)
						if c.commit {
							want = int64(c.first)
						}
						if seen != want {
							t.Errorf("behind its check the second one reads the effect of %d, want %d", seen, want)
						}
						noError(t, second.Commit())
					})
				}
			})
		}
	}
}

// waitsForLock reports whether an unfinished statement on a table of this test's schema waits for
// another transaction.
func waitsForLock(t testing.TB, db *sql.DB, table string, answer chan error) bool {
	t.Helper()
	select {
	case err := <-answer:
		t.Fatalf("the second transaction did not wait: %v", err)
	default:
	}
	// A statement waits for the transaction that holds the lock of a row. The schema shows which
	// test it belongs to.
	var n int
	noError(t, db.QueryRowContext(within(t), `SELECT count(*) FROM pg_locks waiting
		JOIN pg_locks relation ON relation.pid = waiting.pid AND relation.relation = $1::regclass
		WHERE NOT waiting.granted`, table).Scan(&n))
	return n > 0
}

func sqlState(err error) string {
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		return state.SQLState()
	}
	return ""
}

// TestEffectsNeverGoBack makes many holders write at once, most of them superseded. Each
// transaction checks, counts up a row and logs its token under that count, so the log is in the
// order of the commits.
func TestEffectsNeverGoBack(t *testing.T) {
	t.Parallel()
	const holders, writes = 16, 40
	eachSQL(t, func(t *testing.T, db *sql.DB, dialect guard.Dialect) {
		g := newSQL(t, db, dialect)
		ctx := within(t)
		mustExec(t, db, "CREATE TABLE effect (n bigint)")
		mustExec(t, db, "INSERT INTO effect VALUES (0)")
		mustExec(t, db, "CREATE TABLE log (n bigint PRIMARY KEY, token bigint)")
		write := func(token locks.Token) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			if err := g.Check(ctx, tx, token, "effect"); err != nil {
				return err
			}
			// Read, then write that plus one: wrong as soon as two are in here at once.
			var n int64
			if err := tx.QueryRowContext(ctx, "SELECT n FROM effect").Scan(&n); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, "UPDATE effect SET n = $1", n+1); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, "INSERT INTO log VALUES ($1, $2)", n+1, int64(token)); err != nil {
				return err
			}
			return tx.Commit()
		}
		accepted, refused := storm(t, holders, writes, write)
		rows, err := db.QueryContext(ctx, "SELECT token FROM log ORDER BY n")
		noError(t, err)
		defer rows.Close()
		var log []locks.Token
		for rows.Next() {
			var token int64
			noError(t, rows.Scan(&token))
			log = append(log, locks.Token(token))
		}
		noError(t, rows.Err())
		checkLog(t, log, accepted, refused)
	})
}

// storm makes holders write under tokens that grow, in turns. It returns the tokens of accepted
// writes and of those refused as stale. Any other error fails the test. Tokens are drawn in order,
// but a holder writes several times under one that has been superseded meanwhile.
func storm(t testing.TB, holders, writes int, write func(locks.Token) error) (accepted, refused []locks.Token) {
	t.Helper()
	var mu sync.Mutex
	last := locks.Token(1<<53 - 100_000)
	draw := func() locks.Token {
		mu.Lock()
		defer mu.Unlock()
		last++
		return last
	}
	var group errgroup.Group
	// all have a token before the first write, so most are superseded from the start
	var drawn sync.WaitGroup
	drawn.Add(holders)
	for range holders {
		group.Go(func() error {
			token := draw()
			drawn.Done()
			drawn.Wait()
			for range writes {
				// Otherwise such short work would be done by one after the other.
				runtime.Gosched()
				err := write(token)
				stale := errors.Is(err, guard.ErrStale)
				if err != nil && !stale {
					return err
				}
				mu.Lock()
				if stale {
					refused = append(refused, token)
				} else {
					accepted = append(accepted, token)
				}
				mu.Unlock()
				// A superseded holder that does not know it continues for a while.
				if rand.IntN(4) == 0 {
					token = draw()
				}
			}
			return nil
		})
	}
	noError(t, group.Wait())
	return accepted, refused
}

func checkLog(t testing.TB, log, accepted, refused []locks.Token) {
	t.Helper()
	if !slices.IsSorted(log) {
		t.Errorf("an effect went back to an older token: %v", log)
	}
	slices.Sort(accepted)
	if !slices.Equal(log, accepted) {
		t.Errorf("%d effects, but %d writes were accepted", len(log), len(accepted))
	}
	if len(accepted) == 0 || len(refused) == 0 {
		t.Errorf("%d writes accepted and %d refused: nothing was tested", len(accepted), len(refused))
	}
}

func TestBundlesInAnyOrderNeverDeadlock(t *testing.T) {
	t.Parallel()
	eachSQL(t, func(t *testing.T, db *sql.DB, dialect guard.Dialect) {
		g := newSQL(t, db, dialect)
		names := make([]string, 12)
		for i := range names {
			names[i] = fmt.Sprintf("bill:%d", i)
		}
		ctx := within(t)
		accepted, _ := storm(t, 12, 30, func(token locks.Token) error {
			bundle := slices.Clone(names)
			rand.Shuffle(len(bundle), func(i, k int) { bundle[i], bundle[k] = bundle[k], bundle[i] })
			return g.Store(db).Check(ctx, token, bundle[:6]...)
		})
		if len(accepted) == 0 {
			t.Fatal("nothing was accepted")
		}
		highest := slices.Max(accepted)
		for name, token := range records(t, db) {
			if token > highest {
				t.Errorf("%s has seen %s, which was never accepted", name, token)
			}
		}
	})
}

func TestManyMayCreateTheTable(t *testing.T) {
	t.Parallel()
	const processes, rounds = 8, 10
	eachSQL(t, func(t *testing.T, db *sql.DB, dialect guard.Dialect) {
		ctx := within(t)
		// As many connections as there are processes, opened before: opening takes longer than
		// creating a table.
		db.SetMaxIdleConns(processes)
		together(t, processes, func() error { return db.PingContext(ctx) })
		for round := range rounds {
			g, err := guard.NewSQL(dialect, guard.SQLOptions{Table: fmt.Sprintf("guard_%d", round)})
			noError(t, err)
			together(t, processes, func() error { return g.Create(ctx, db) })
			noError(t, g.Store(db).Check(ctx, 1, "a"))
		}
	})
}

// together does the same n times at once.
func together(t testing.TB, n int, do func() error) {
	t.Helper()
	var group errgroup.Group
	var ready sync.WaitGroup
	ready.Add(n)
	for range n {
		group.Go(func() error {
			ready.Done()
			ready.Wait()
			return do()
		})
	}
	noError(t, group.Wait())
}

func TestSchemaMakesTheTable(t *testing.T) {
	t.Parallel()
	eachSQL(t, func(t *testing.T, db *sql.DB, dialect guard.Dialect) {
		// a word of SQL, with a capital letter
		g, err := guard.NewSQL(dialect, guard.SQLOptions{Table: "Order"})
		noError(t, err)
		mustExec(t, db, g.Schema())
		mustExec(t, db, g.Schema())
		noError(t, g.Store(db).Check(within(t), 7, "a"))
		var token int64
		noError(t, db.QueryRowContext(within(t), `SELECT token FROM "Order"`).Scan(&token))
		if token != 7 {
			t.Errorf("the table has token %d, want 7", token)
		}
	})
}

func TestTableMayHaveASchema(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	var schema string
	noError(t, db.QueryRowContext(within(t), "SELECT current_schema").Scan(&schema))
	g, err := guard.NewSQL(guard.PostgreSQL, guard.SQLOptions{Table: schema + ".fence"})
	noError(t, err)
	noError(t, g.Create(within(t), db))
	noError(t, g.Store(db).Check(within(t), 7, "a"))
	mustExec(t, db, "SELECT token FROM fence")
}

func TestBadSQLOptionsAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		dialect guard.Dialect
		table   string
	}{
		{0, ""}, {3, ""}, {-1, ""}, {guard.SQLite, "a b"}, {guard.SQLite, `a"b`}, {guard.SQLite, "a.b.c"}, {guard.SQLite, ".a"},
		{guard.SQLite, "a."}, {guard.SQLite, "1a"}, {guard.PostgreSQL, strings.Repeat("a", 59)}, {guard.PostgreSQL, "a;b"},
	} {
		if _, err := guard.NewSQL(c.dialect, guard.SQLOptions{Table: c.table}); err == nil {
			t.Errorf("dialect %v with table %q is accepted", c.dialect, c.table)
		}
	}
}

func TestPruneRemovesUncheckedRecords(t *testing.T) {
	t.Parallel()
	eachSQL(t, func(t *testing.T, db *sql.DB, dialect guard.Dialect) {
		g := newSQL(t, db, dialect)
		ctx := within(t)
		const old = 2500 // several batches
		names := make([]string, old)
		for i := range names {
			names[i] = fmt.Sprintf("bill:%d", i)
		}
		noError(t, g.Store(db).Check(ctx, 10, names...))
		past := map[guard.Dialect]string{
			guard.PostgreSQL: "CURRENT_TIMESTAMP - interval '3 days'", guard.SQLite: "datetime('now', '-3 days')",
		}
		mustExec(t, db, "UPDATE lockstep_guard SET checked_at = "+past[dialect])
		// the same token, but offered today
		noError(t, g.Store(db).Check(ctx, 10, "bill:0", "young"))

		for _, age := range []time.Duration{0, -time.Second} {
			if n, err := g.Prune(ctx, db, age); !errors.Is(err, guard.ErrInvalid) || n != 0 {
				t.Errorf("prune by age %s: got %d, %v; want ErrInvalid", age, n, err)
			}
		}
		if n, err := g.Prune(ctx, db, 73*time.Hour); n != 0 || err != nil {
			t.Errorf("got %d, %v; want nothing removed", n, err)
		}
		if n, err := g.Prune(ctx, db, 71*time.Hour); n != old-1 || err != nil {
			t.Errorf("got %d, %v; want %d removed", n, err, old-1)
		}
		if got := records(t, db); len(got) != 2 || got["bill:0"] != 10 || got["young"] != 10 {
			t.Errorf("the records are %v, want bill:0 and young at 10", got)
		}
	})
}

func TestPruneWaitsForNoTransaction(t *testing.T) {
	t.Parallel()
	db := pgtest.Open(t)
	g := newSQL(t, db, guard.PostgreSQL)
	ctx := within(t)
	noError(t, g.Store(db).Check(ctx, 10, "a", "b"))
	mustExec(t, db, "UPDATE lockstep_guard SET checked_at = CURRENT_TIMESTAMP - interval '3 days'")
	tx := begin(t, db, sql.LevelDefault)
	noError(t, g.Check(ctx, tx, 11, "a"))
	if n, err := g.Prune(ctx, db, time.Hour); n != 1 || err != nil {
		t.Errorf("got %d, %v; want b alone removed, a is being checked", n, err)
	}
	noError(t, tx.Commit())
	if got := records(t, db); len(got) != 1 || got["a"] != 11 {
		t.Errorf("the records are %v, want a: 11", got)
	}
}

const sqliteBusy = 5 // the low byte of all its kinds

// TestSQLiteReadBeforeCheckIsBusy proves the comment of Check on transactions that read first.
func TestSQLiteReadBeforeCheckIsBusy(t *testing.T) {
	t.Parallel()
	db := openSQLite(t, "_pragma=journal_mode(wal)")
	g := newSQL(t, db, guard.SQLite)
	ctx := within(t)
	tx := begin(t, db, sql.LevelDefault)
	var n int
	noError(t, tx.QueryRowContext(ctx, "SELECT count(*) FROM lockstep_guard").Scan(&n))
	noError(t, g.Store(db).Check(ctx, 11, "a"))
	err := g.Check(ctx, tx, 10, "a")
	var code interface{ Code() int }
	if !errors.As(err, &code) || code.Code()&0xff != sqliteBusy {
		t.Errorf("got %v, want SQLITE_BUSY", err)
	}
	noError(t, tx.Rollback())
	wantStale(t, g.Store(db).Check(ctx, 10, "a"), "a", 10, 11)
}

func TestErrorNamesTheCheck(t *testing.T) {
	t.Parallel()
	eachSQL(t, func(t *testing.T, db *sql.DB, dialect guard.Dialect) {
		g, err := guard.NewSQL(dialect, guard.SQLOptions{}) // without its table
		noError(t, err)
		err = g.Store(db).Check(within(t), 10, "e", "d", "c", "b", "a")
		if err == nil || !strings.Contains(err.Error(), "check token 10 of a b c and 2 more: ") {
			t.Errorf("got %v, want an error that names token and resources", err)
		}
	})
}
