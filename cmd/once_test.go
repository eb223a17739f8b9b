package cmd

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"lockstep/jobs"
	"lockstep/locks/guard"
	"lockstep/locks/guard/pgtest"
)

// A job that moves money in PostgreSQL, written as a user would write it, except that its first
// attempt can stop at a place that the arguments name. A test that kills its worker then sees what
// a crash at that moment leaves behind.

type transferArgs struct {
	Database string `json:"database"`
	From     string `json:"from"`
	To       string `json:"to"`
	Amount   int    `json:"amount"`

	Stop string `json:"stop"` // where the first attempt stops: before or after the commit
	// a file; the attempt then leaves a file beside it, named after the run
	Beside string `json:"beside"`
	Forget bool   `json:"forget"` // plants a fault: the run is not recorded
}

func transfer(ctx context.Context, run *jobs.Run[transferArgs]) error {
	db, err := sql.Open("pgx", run.Args.Database) // most programs do this, and the next step, once
	if err != nil {
		return err
	}
	defer db.Close()
	fence, err := guard.NewSQL(guard.PostgreSQL, guard.SQLOptions{})
	if err != nil {
		return err
	}

	once := fence.Once
	if run.Args.Forget {
		once = inTransaction
	}
	err = once(ctx, db, run, func(tx *sql.Tx) error {
		// It also keeps older runs of these accounts from acting after this one.
		if err := fence.Check(ctx, tx, run.Token(), "account:"+run.Args.From, "account:"+run.Args.To); err != nil {
			return err
		}
		const move = "UPDATE account SET balance = balance + $1 WHERE name = $2"
		if _, err := tx.ExecContext(ctx, move, -run.Args.Amount, run.Args.From); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, move, run.Args.Amount, run.Args.To); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO moved VALUES ($1)", run.Attempt()); err != nil {
			return err
		}
		return run.Args.stop(run, "before the commit")
	})
	if err != nil {
		return err
	}
	return run.Args.stop(run, "behind the commit")
}

// inTransaction is [guard.SQL.Once] without the record.
func inTransaction(ctx context.Context, db *sql.DB, _ guard.Run, effect func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := effect(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// stop blocks the first attempt forever at a place, if the arguments name that place, and reports
// it as newPack's HOLD does.
func (a *transferArgs) stop(run *jobs.Run[transferArgs], place string) error {
	if run.Attempt() > 1 || place != a.Stop {
		return nil
	}
	told := filepath.Join(filepath.Dir(a.Beside), string(run.ID()))
	if err := os.WriteFile(told+".new", []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		return err
	}
	if err := os.Rename(told+".new", told); err != nil {
		return err
	}
	select {}
}

// TestCrashAroundTheCommitMakesOneEffect kills a worker once after the money has moved but before
// that is reported, and once while the money is moving. In the third case, the run is not recorded
// and its money moves twice, which shows that the others can fail.
func TestCrashAroundTheCommitMakesOneEffect(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, stop string
		forget     bool
		by         string // the attempts that had an effect
	}{
		{"behind the commit", "behind the commit", false, "[1]"},
		{"before the commit", "before the commit", false, "[2]"},
		{"behind the commit without a record", "behind the commit", true, "[1 2]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.DSN(t)
			db := openAccounts(t, dsn)
			f, _ := newPack(t, fmt.Sprintf(`
jobs:
  transfer:
    handler: transfer
    args: {database: %q, from: ann, to: bob, amount: 30, stop: %s, beside: EFFECTS, forget: %v}
    lock: {exclusive: ["account:{from}", "account:{to}"]}
`, dsn, c.stop, c.forget), long, withHandlers+"=1")
			f.startAll(2)
			run := f.enqueue("transfer", "4711")
			pid := f.held(run)
			worker, _ := f.runner(run)
			if worker.worker() != pid {
				t.Fatalf("process %d does the run, and %d is its worker's", pid, worker.worker())
			}
			took := f.takenOver(run, crashed, worker.killChild())
			t.Logf("the next attempt began after %s", took)

			var ann, bob int
			query(t, db, "SELECT balance FROM account WHERE name = 'ann'", &ann)
			query(t, db, "SELECT balance FROM account WHERE name = 'bob'", &bob)
			moved := len(c.by) / 2
			if ann != 100-30*moved || bob != 30*moved {
				t.Errorf("ann has %d and bob %d, want the money moved %d times", ann, bob, moved)
			}
			var by string
			query(t, db, "SELECT '[' || string_agg(attempt::text, ' ' ORDER BY attempt) || ']' FROM moved", &by)
			if by != c.by {
				t.Errorf("the money was moved by attempts %s, want %s", by, c.by)
			}
			list := ask[[]runJSON](t, f.env, "run", "ls")
			if len(list) != 1 || list[0].ID != run || list[0].State != "succeeded" || len(list[0].Attempts) != 2 {
				t.Fatalf("run ls: %+v, want one run that succeeded in its second attempt", list)
			}
			for i, want := range []string{"crashed", "succeeded"} {
				if a := list[0].Attempts[i]; a.Attempt != i+1 || *a.Outcome != want {
					t.Errorf("attempt %d: %+v, want %s", i+1, a, want)
				}
			}
			f.drain()
		})
	}
}

// openAccounts creates what the job works on: two accounts, the guard's tables, and a list of the
// attempts that moved money.
func openAccounts(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	fence, err := guard.NewSQL(guard.PostgreSQL, guard.SQLOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := fence.Create(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	const tables = `CREATE TABLE account (name text PRIMARY KEY, balance bigint NOT NULL);
		CREATE TABLE moved (attempt int);
		INSERT INTO account VALUES ('ann', 100), ('bob', 0)`
	if _, err := db.ExecContext(t.Context(), tables); err != nil {
		t.Fatal(err)
	}
	return db
}

func query(t *testing.T, db *sql.DB, query string, value any) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query).Scan(value); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}
