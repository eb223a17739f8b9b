package guard

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"lockstep/locks"
)

// ErrDone means that a run is recorded as done: its effect exists, and must not be made again.
var ErrDone = errors.New("run is done")

// Run is what [SQL.Once] needs to know of an attempt at a run. The *jobs.Run of a handler is one.
type Run interface {
	IdempotencyKey() string // the same for all attempts at the run, and unique to it
	Token() locks.Token     // the attempt's
}

// Once makes the effect of a run once, however many attempts at the run there are. It calls effect
// in a transaction that also records the run as done, and commits both together. If an earlier
// attempt has recorded the run, and then died or was cut off before it could report to the ledger,
// Once does not call effect and returns nil: the attempt's result already exists. A handler returns
// what Once returns.
//
// A person may have a run done again under its ID although it succeeded. Its record still exists,
// so Once does not call effect.
//
// effect must write only through tx, and neither commit nor roll back. If it returns an error or
// panics, everything is rolled back, including the record. The error is returned unchanged, and the
// next attempt calls effect again. Runs that write to the same rows take turns only as long as
// their locks hold. If the late one may be another run, begin effect with [SQL.Check].
//
// The transaction has the database's default isolation level. For another one, begin the
// transaction yourself and call [SQL.Done].
func (g *SQL) Once(ctx context.Context, db *sql.DB, run Run, effect func(tx *sql.Tx) error) error {
	before := false
	err := inTx(ctx, db, nil, func(tx *sql.Tx) error {
		err := g.Done(ctx, tx, run.IdempotencyKey(), run.Token())
		if before = errors.Is(err, ErrDone); err != nil {
			return err
		}
		return effect(tx)
	})
	if before {
		return nil
	}
	return err
}

// Done records the run of an idempotency key as done, as part of the transaction tx, which must
// also make the run's effect. [SQL.Once] uses it; call it directly in a transaction that other code
// begins and ends. Call it first: every attempt repeats what comes before it.
//
// The error is [ErrDone] if a committed transaction has recorded the key. Then the caller rolls
// back, and replies as if it had made the effect itself. The error is [ErrInvalid] for a key or a
// token that cannot be stored. For any other error the caller rolls back, and the record is undone
// with the effect.
//
// A second transaction with the same key waits until the first one has ended. So of an attempt that
// was stopped in the middle and the next attempt, only one continues past this call. A connection
// that breaks ends its transaction. For a process that is only stopped, or a host that is
// unreachable, give ctx a deadline and let the database end idle transactions
// (idle_in_transaction_session_timeout in PostgreSQL). [SQL.Check] describes what SQLite does
// instead of waiting, and what PostgreSQL does under the stricter isolation levels; the same
// applies here.
func (g *SQL) Done(ctx context.Context, tx *sql.Tx, key string, token locks.Token) error {
	if err := errors.Join(checkToken(token), checkName("the key of a run", key)); err != nil {
		return err
	}
	result, err := tx.ExecContext(ctx, g.done, key, int64(token))
	if err != nil {
		return fmt.Errorf("record %s as done: %w", key, err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return fmt.Errorf("record %s as done: %w", key, err)
	}
	if n == 0 {
		return fmt.Errorf("%s: %w", key, ErrDone)
	}
	return nil
}

// PruneDone removes the records of runs that were done longer than age ago, by the database's
// clock, and returns how many. A record takes about 100 bytes. A run without a record is done again
// if it has another attempt. So age must be longer than a run can stay unfinished after its effect,
// which is as long as no worker runs to finish it. It should not be longer than lockstep remembers
// an ID that a client chose, 7 days. Otherwise a new run with the old name is taken for the old
// one. So an age of a week is good, and once a day is often enough.
func (g *SQL) PruneDone(ctx context.Context, db *sql.DB, age time.Duration) (int64, error) {
	return prune(ctx, db, g.pruneDone, age)
}
