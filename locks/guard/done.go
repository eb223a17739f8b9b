package guard

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"lockstep/locks"
)

// ErrDone says that a run has been recorded as done: its effect is there, and must not be made once more.
var ErrDone = errors.New("run is done")

// Run is what [SQL.Once] has to know of an attempt at a run. The *jobs.Run of a handler is one.
type Run interface {
	IdempotencyKey() string // the same for all attempts at the run, and no other run's
	Token() locks.Token     // the attempt's
}

// Once makes the effect of a run once, however many attempts at the run there are: it calls effect in a transaction that
// also records the run as done, and commits both together. When the run has been recorded by an earlier attempt, which
// then died or was cut off before it could tell the ledger, effect is not called and Once returns nil: what the attempt
// should bring about is there. A handler returns what Once returns.
//
// A run that a person has done again under its id, though it had succeeded, is recorded still: effect is not called.
//
// effect must write by tx alone, and neither commit nor roll back. An error of its own, like a panic, rolls everything
// back, the record too, and is returned as it is; so the next attempt calls effect again. Runs that write to the same
// rows take turns only as long as their locks hold: where another run may be the one that comes late, effect begins with
// [SQL.Check].
//
// The transaction has the isolation of the database's default. For another one begin it yourself, and call [SQL.Done].
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

// Done records the run of an idempotency key as done, as part of the transaction tx, which also has to make the run's
// effect. It is what [SQL.Once] is made of, for a transaction that somebody else begins and ends. It belongs at the
// beginning: what is done before it is done by each attempt.
//
// The error is [ErrDone] when a transaction that has been committed recorded the key: the caller rolls back, and answers
// as if it had made the effect itself. It is [ErrInvalid] for a key or a token that cannot be kept. For any other error
// the caller rolls back, and with the effect the record is undone.
//
// A second transaction that names the same key waits until the first one has ended: of an attempt that was stopped in
// the middle and the next one, only one goes on behind this call. A connection that breaks ends its transaction; for a
// process that only stands still, or a host that is gone, give ctx a deadline and let the database end idle transactions
// (idle_in_transaction_session_timeout in PostgreSQL). [SQL.Check] tells what SQLite does instead of waiting, and what
// PostgreSQL does under the stricter levels of isolation; the same holds here.
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

// PruneDone removes the records of runs that were done longer than age ago, by the database's clock, and returns how
// many. A record is about 100 bytes. A run without a record is done again if it has another attempt: age has to be longer
// than a run can stay unfinished after its effect, which is as long as no worker is there to finish it. It should not be
// longer than an id that a client chose is remembered, 7 days, or a new run that is given the old name then is taken for
// the old one. So a week is a good age, and once a day often enough.
func (g *SQL) PruneDone(ctx context.Context, db *sql.DB, age time.Duration) (int64, error) {
	return prune(ctx, db, g.pruneDone, age)
}
