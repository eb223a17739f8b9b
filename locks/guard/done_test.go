package guard_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/locks"
	"lockstep/locks/guard"
	"lockstep/locks/guard/pgtest"
)

// try is an attempt at a run.
type try struct {
	key   string
	token locks.Token
}

func (a try) IdempotencyKey() string { return a.key }
func (a try) Token() locks.Token     { return a.token }

// account creates a table with one balance, of 0. It returns the effect of a run on it, and a
// function that reads it.
func account(t testing.TB, db *sql.DB) (add func(tx *sql.Tx) error, balance func() int) {
	t.Helper()
	mustExec(t, db, "CREATE TABLE account (balance bigint)")
	mustExec(t, db, "INSERT INTO account VALUES (0)")
	add = func(tx *sql.Tx) error {
		_, err := tx.ExecContext(within(t), "UPDATE account SET balance = balance + 1")
		return err
	}
	balance = func() (n int) {
		noError(t, db.QueryRowContext(within(t), "SELECT balance FROM account").Scan(&n))
		return n
	}
	return add, balance
}

func TestRunIsDoneOnceByManyAttempts(t *testing.T) {
	t.Parallel()
	eachSQL(t, func(t *testing.T, db *sql.DB, dialect guard.Dialect) {
		g := newSQL(t, db, dialect)
		add, balance := account(t, db)
		for token := locks.Token(10); token < 13; token++ {
			noError(t, g.Once(within(t), db, try{"settle#1", token}, add))
			if n := balance(); n != 1 {
				t.Fatalf("after the attempt with token %s the effect was made %d times, want once", token, n)
			}
		}
		// an old attempt that arrives late
		noError(t, g.Once(within(t), db, try{"settle#1", 9}, add))
		noError(t, g.Once(within(t), db, try{"settle#2", 13}, add))
		if n := balance(); n != 2 {
			t.Errorf("two runs made %d effects", n)
		}
	})
}

func TestEffectThatFailsIsNotDone(t *testing.T) {
	t.Parallel()
	eachSQL(t, func(t *testing.T, db *sql.DB, dialect guard.Dialect) {
		g := newSQL(t, db, dialect)
		add, balance := account(t, db)
		broken := errors.New("no money")
		// Even an effect that itself returns Done's error: only the record shows that the run is
		// done.
		for _, fails := range []error{broken, guard.ErrDone, &guard.StaleError{Resource: "a", Token: 10, Seen: 11}} {
			err := g.Once(within(t), db, try{"settle#1", 10}, func(tx *sql.Tx) error {
				return errors.Join(add(tx), fails)
			})
			if !errors.Is(err, fails) {
				t.Errorf("got %v, want %v", err, fails)
			}
		}
		func() {
			defer func() {
				if value, ok := recover().(error); !ok || !errors.Is(value, broken) {
					t.Errorf("got %v, want the panic to continue", value)
				}
			}()
			_ = g.Once(within(t), db, try{"settle#1", 10}, func(tx *sql.Tx) error {
				noError(t, add(tx))
				panic(broken)
			})
		}()
		ctx, cancel := context.WithCancel(within(t))
		if err := g.Once(ctx, db, try{"settle#1", 10}, func(tx *sql.Tx) error {
			defer cancel() // its lock is lost before the commit
			return add(tx)
		}); err == nil {
			t.Error("committed although the context had ended")
		}
		if n := balance(); n != 0 {
			t.Fatalf("attempts that failed made %d effects", n)
		}
		noError(t, g.Once(within(t), db, try{"settle#1", 11}, add))
		if n := balance(); n != 1 {
			t.Errorf("after an attempt that succeeded the effect was made %d times, want once", n)
		}
	})
}

// TestAttemptsAtOneRunTakeTurns has an attempt that stops in the middle of its transaction, and the
// next attempt. PostgreSQL only: in SQLite the second writer does not get that far.
func TestAttemptsAtOneRunTakeTurns(t *testing.T) {
	t.Parallel()
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		for _, commit := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s commit=%v", level, commit), func(t *testing.T) {
				t.Parallel()
				db := pgtest.Open(t)
				g := newSQL(t, db, guard.PostgreSQL)
				ctx := within(t)
				first, second := begin(t, db, level), begin(t, db, level)
				// Under the stricter levels it sees the present state.
				mustExec(t, second, "SELECT 1")
				noError(t, g.Done(ctx, first, "settle#1", 10))
				answer := make(chan error, 1)
				go func() { answer <- g.Done(ctx, second, "settle#1", 11) }() // received below
				eventually(t, "the second attempt waits", func() bool { return waitsForLock(t, db, "lockstep_guard_done", answer) })
				if !commit {
					noError(t, first.Rollback())
					noError(t, <-answer)
					noError(t, second.Commit())
					return
				}
				noError(t, first.Commit())
				err := <-answer
				if level != sql.LevelReadCommitted {
					if state := sqlState(err); state != "40001" {
						t.Fatalf("under %s the attempt that waited got %v, want SQLSTATE 40001", level, err)
					}
					noError(t, second.Rollback())
					second = begin(t, db, level)
					err = g.Done(ctx, second, "settle#1", 11)
				}
				if !errors.Is(err, guard.ErrDone) || !strings.Contains(err.Error(), "settle#1") {
					t.Errorf("got %v, want ErrDone, and of which run", err)
				}
			})
		}
	}
}

func TestAttemptsAtOnceMakeOneEffect(t *testing.T) {
	t.Parallel()
	const attempts = 16
	eachSQL(t, func(t *testing.T, db *sql.DB, dialect guard.Dialect) {
		g := newSQL(t, db, dialect)
		add, balance := account(t, db)
		var mu sync.Mutex
		token := locks.Token(10)
		together(t, attempts, func() error {
			mu.Lock()
			token++
			mine := token
			mu.Unlock()
			return g.Once(within(t), db, try{"settle#1", mine}, add)
		})
		if n := balance(); n != 1 {
			t.Errorf("%d attempts made %d effects, want one", attempts, n)
		}
	})
}

// TestChecksInsideOfOnceNeverDeadlock runs several attempts at each of several runs, which check
// common resources.
func TestChecksInsideOfOnceNeverDeadlock(t *testing.T) {
	t.Parallel()
	const runs, attempts = 8, 3
	eachSQL(t, func(t *testing.T, db *sql.DB, dialect guard.Dialect) {
		g := newSQL(t, db, dialect)
		add, balance := account(t, db)
		var group errgroup.Group
		for i := range runs * attempts {
			run := try{fmt.Sprintf("settle#%d", i%runs), 10}
			group.Go(func() error {
				return g.Once(within(t), db, run, func(tx *sql.Tx) error {
					if err := g.Check(within(t), tx, run.token, "bill:1", fmt.Sprintf("bill:%d", 2+i%2)); err != nil {
						return err
					}
					return add(tx)
				})
			})
		}
		noError(t, group.Wait())
		if n := balance(); n != runs {
			t.Errorf("%d runs made %d effects", runs, n)
		}
	})
}

func TestRunThatCannotBeRecordedIsInvalid(t *testing.T) {
	t.Parallel()
	eachSQL(t, func(t *testing.T, db *sql.DB, dialect guard.Dialect) {
		g := newSQL(t, db, dialect)
		for _, bad := range []try{{"", 10}, {"a", 0}, {"a", 1 << 53}, {"\xff", 10}, {"a\x00", 10}, {strings.Repeat("a", 513), 10}} {
			err := g.Once(within(t), db, bad, func(*sql.Tx) error { t.Errorf("%+v: the effect is made", bad); return nil })
			if !errors.Is(err, guard.ErrInvalid) {
				t.Errorf("%+v: got %v, want ErrInvalid", bad, err)
			}
		}
		for _, key := range []string{"default/" + strings.Repeat("a", 500), "nightly-backup@2026-11-21T01:00:00Z", "ä", "A", "a", "%"} {
			calls := 0
			for range 2 {
				noError(t, g.Once(within(t), db, try{key, 10}, func(*sql.Tx) error { calls++; return nil }))
			}
			if calls != 1 {
				t.Errorf("%q: the effect is made %d times, want once", key, calls)
			}
		}
	})
}

func TestPruneDoneForgetsOldRuns(t *testing.T) {
	t.Parallel()
	eachSQL(t, func(t *testing.T, db *sql.DB, dialect guard.Dialect) {
		g := newSQL(t, db, dialect)
		ctx := within(t)
		const old = 1500 // two batches
		tx := begin(t, db, sql.LevelDefault)
		for i := range old {
			noError(t, g.Done(ctx, tx, fmt.Sprintf("settle#%d", i), 10))
		}
		noError(t, tx.Commit())
		past := map[guard.Dialect]string{
			guard.PostgreSQL: "CURRENT_TIMESTAMP - interval '8 days'", guard.SQLite: "datetime('now', '-8 days')",
		}
		mustExec(t, db, "UPDATE lockstep_guard_done SET done_at = "+past[dialect])
		nothing := func(*sql.Tx) error { t.Error("a run that is recorded is done again"); return nil }
		noError(t, g.Once(ctx, db, try{"young", 10}, func(*sql.Tx) error { return nil }))
		noError(t, g.Store(db).Check(ctx, 10, "bill:1")) // is not a run, and stays

		if n, err := g.PruneDone(ctx, db, 0); !errors.Is(err, guard.ErrInvalid) || n != 0 {
			t.Errorf("prune by age 0: got %d, %v; want ErrInvalid", n, err)
		}
		if n, err := g.PruneDone(ctx, db, 9*24*time.Hour); n != 0 || err != nil {
			t.Errorf("got %d, %v; want nothing removed", n, err)
		}
		noError(t, g.Once(ctx, db, try{"settle#7", 11}, nothing))
		if n, err := g.PruneDone(ctx, db, 7*24*time.Hour); n != old || err != nil {
			t.Errorf("got %d, %v; want %d removed", n, err, old)
		}
		noError(t, g.Once(ctx, db, try{"young", 11}, nothing))
		if got := records(t, db); len(got) != 1 {
			t.Errorf("the tokens seen are %v, want that of bill:1", got)
		}
		again := false
		noError(t, g.Once(ctx, db, try{"settle#7", 12}, func(*sql.Tx) error { again = true; return nil }))
		if !again {
			t.Error("a run whose record was removed is not done")
		}
	})
}
