package guard

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"lockstep/locks"
)

// Dialect names the SQL of a database. It has no default: the wrong one works until two
// transactions meet.
type Dialect int

const (
	PostgreSQL Dialect = iota + 1 // 9.5 or later
	SQLite                        // 3.35 or later, with its JSON functions (built in since 3.38)
)

func (d Dialect) String() string {
	switch d {
	case PostgreSQL:
		return "PostgreSQL"
	case SQLite:
		return "SQLite"
	}
	return fmt.Sprintf("Dialect(%d)", int(d))
}

// SQLOptions are the settings of a [SQL] guard.
type SQLOptions struct {
	// Table is the name of the guard's table, with or without a schema before it: letters, digits,
	// '_' and one dot. It is always quoted, so case matters. A second table, of runs that are done,
	// has that name plus "_done". Default "lockstep_guard".
	Table string
}

const defaultTable = "lockstep_guard"

// Each part has at most 63 bytes, including "_done": PostgreSQL cuts a longer name, and two could
// become one.
var tableName = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]{0,62}\.)?[A-Za-z_][A-Za-z0-9_]{0,57}$`)

// SQL guards what is written to a SQL database, by two tables in the same database. They are
// created once, by [SQL.Create] or from [SQL.Schema]. After that use [SQL.Once] in a handler with
// one transaction as its effect, and [SQL.Check] in everything else that writes under a lock. It
// uses only database/sql, so any driver of the dialect works. It is safe for concurrent use.
type SQL struct {
	dialect   Dialect
	schema    []string // statements, in order
	check     string
	prune     string
	done      string
	pruneDone string
}

// NewSQL returns a guard for a dialect. It opens nothing. Error: an unknown dialect, an invalid
// name of a table.
func NewSQL(dialect Dialect, o SQLOptions) (*SQL, error) {
	if o.Table == "" {
		o.Table = defaultTable
	}
	if !tableName.MatchString(o.Table) {
		return nil, fmt.Errorf("guard: SQLOptions.Table %q: want letters, digits and '_', at most 58, with or without a schema before it", o.Table)
	}
	name := strings.NewReplacer("TABLE_NAME_DONE", quote(o.Table+"_done"), "TABLE_NAME", quote(o.Table))
	var statements map[string]string
	switch dialect {
	case PostgreSQL:
		statements = postgreSQL
	case SQLite:
		statements = sqlite
	default:
		return nil, fmt.Errorf("guard: %v is not a dialect: want guard.PostgreSQL or guard.SQLite", dialect)
	}
	in := func(statement string) string { return name.Replace(statements[statement]) }
	return &SQL{
		dialect: dialect, schema: []string{in("create"), in("create done")},
		check: in("check"), prune: in("prune"), done: in("done"), pruneDone: in("prune done"),
	}, nil
}

// quote quotes the name of a table, with or without a schema before it.
func quote(table string) string { return `"` + strings.ReplaceAll(table, ".", `"."`) + `"` }

// The statements of both dialects take the same arguments in the same order. The columns are the
// resource, the highest token seen, and when a token was last offered.
//
// check names all resources in one JSON array, so that a bundle of 1,000 costs one round trip and
// needs no driver that knows arrays. It writes the row even if the token is the same as the one
// seen, or lower: that locks the row until the transaction ends. A WHERE instead of GREATEST would
// also lock it, but not return the token that was seen. The CASTs tell PostgreSQL the types of its
// parameters.
var postgreSQL = map[string]string{
	// The order of bytes: an index in the order of a language breaks when the system's tables of
	// that language change, and a broken index finds no conflict.
	"create": `CREATE TABLE IF NOT EXISTS TABLE_NAME (
	resource   text COLLATE "C" PRIMARY KEY,
	token      bigint NOT NULL,
	checked_at timestamptz NOT NULL
)`,
	// The array's order is the order of the locks. WITH ORDINALITY keeps it, ORDER BY guarantees
	// it.
	"check": `INSERT INTO TABLE_NAME AS seen (resource, token, checked_at)
SELECT name, CAST($1 AS bigint), CURRENT_TIMESTAMP
FROM json_array_elements_text(CAST(CAST($2 AS text) AS json)) WITH ORDINALITY AS names (name, n)
ORDER BY n
ON CONFLICT (resource) DO UPDATE SET token = GREATEST(seen.token, excluded.token), checked_at = excluded.checked_at
RETURNING resource, token`,
	// A row that a transaction has checked is skipped: waiting for it while holding other rows
	// could deadlock with a bundle. ARRAY makes the inner query run once; in an IN, the planner may
	// run it for every row, each time with a new LIMIT.
	"prune": `DELETE FROM TABLE_NAME WHERE resource = ANY (ARRAY(
	SELECT resource FROM TABLE_NAME
	WHERE checked_at < CURRENT_TIMESTAMP - make_interval(secs => CAST($1 AS double precision))
	LIMIT CAST($2 AS bigint) FOR UPDATE SKIP LOCKED
))`,
	"create done": `CREATE TABLE IF NOT EXISTS TABLE_NAME_DONE (
	key     text COLLATE "C" PRIMARY KEY,
	token   bigint NOT NULL,
	done_at timestamptz NOT NULL
)`,
	// The conflict is with committed rows: the statement waits for a row of a transaction that has
	// not ended.
	"done": `INSERT INTO TABLE_NAME_DONE (key, token, done_at)
VALUES (CAST($1 AS text), CAST($2 AS bigint), CURRENT_TIMESTAMP) ON CONFLICT (key) DO NOTHING`,
	"prune done": `DELETE FROM TABLE_NAME_DONE WHERE key = ANY (ARRAY(
	SELECT key FROM TABLE_NAME_DONE
	WHERE done_at < CURRENT_TIMESTAMP - make_interval(secs => CAST($1 AS double precision))
	LIMIT CAST($2 AS bigint) FOR UPDATE SKIP LOCKED
))`,
}

// SQLite has one writer at a time, so it needs no order of locks.
var sqlite = map[string]string{
	"create": `CREATE TABLE IF NOT EXISTS TABLE_NAME (
	resource   TEXT PRIMARY KEY,
	token      INTEGER NOT NULL,
	checked_at TEXT NOT NULL
) WITHOUT ROWID`,
	// WHERE true tells SQLite's parser that ON belongs to the INSERT and not to a join.
	"check": `INSERT INTO TABLE_NAME AS seen (resource, token, checked_at)
SELECT value, ?, CURRENT_TIMESTAMP FROM json_each(?) WHERE true
ON CONFLICT (resource) DO UPDATE SET token = max(seen.token, excluded.token), checked_at = excluded.checked_at
RETURNING resource, token`,
	"prune": `DELETE FROM TABLE_NAME WHERE resource IN (
	SELECT resource FROM TABLE_NAME WHERE checked_at < datetime('now', '-' || ? || ' seconds') LIMIT ?
)`,
	"create done": `CREATE TABLE IF NOT EXISTS TABLE_NAME_DONE (
	key     TEXT PRIMARY KEY,
	token   INTEGER NOT NULL,
	done_at TEXT NOT NULL
) WITHOUT ROWID`,
	"done": `INSERT INTO TABLE_NAME_DONE (key, token, done_at) VALUES (?, ?, CURRENT_TIMESTAMP) ON CONFLICT (key) DO NOTHING`,
	"prune done": `DELETE FROM TABLE_NAME_DONE WHERE key IN (
	SELECT key FROM TABLE_NAME_DONE WHERE done_at < datetime('now', '-' || ? || ' seconds') LIMIT ?
)`,
}

// Schema returns the statements that create the guard's tables if they do not exist, each ended by
// a semicolon: for migrations, and for a program without the right to change the schema.
func (g *SQL) Schema() string { return strings.Join(g.schema, ";\n") + ";\n" }

// Create creates the guard's tables if they do not exist. Several processes can call it at the same
// time.
func (g *SQL) Create(ctx context.Context, db *sql.DB) error {
	err := inTx(ctx, db, nil, func(tx *sql.Tx) error {
		if g.dialect == PostgreSQL {
			// IF NOT EXISTS checks before it creates. Two processes may check at the same time, and
			// one of them would fail.
			if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock(hashtext('lockstep guard'))`); err != nil {
				return err
			}
		}
		for _, statement := range g.schema {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("create the guard's tables: %w", err)
	}
	return nil
}

// Check records token for all resources, as part of the transaction tx, which must also make the
// effect. Call it first: reads after it see what the last holder left, reads before it may be
// older.
//
// The error is a [*StaleError] if a resource has seen a higher token, and [ErrInvalid] if there is
// nothing to check. For any error the caller rolls back, and the record is undone with the effect.
//
// Until tx ends, another check of one of the resources waits, whatever its token. So of two
// holders, either the older one has committed before the newer one continues, or it comes later and
// is refused. To bound the waiting, give ctx a deadline.
//
// PostgreSQL: correct under every isolation level. Under READ COMMITTED, the default, a check only
// waits. Under REPEATABLE READ and SERIALIZABLE, a check that has waited for a commit fails with
// SQLSTATE 40001, as any write would there; retry the whole transaction, and the next check shows
// whether the token is stale. Use only one call per transaction: two calls lock in the order of the
// calls, and two transactions with different orders deadlock.
//
// SQLite: the check makes tx the only transaction that writes. The busy timeout, none by default,
// bounds how long it waits for that. When it is over, or when tx has read before and another
// transaction has written since, the error is SQLITE_BUSY; retry the whole transaction. A
// transaction that begins IMMEDIATE waits at its begin.
func (g *SQL) Check(ctx context.Context, tx *sql.Tx, token locks.Token, resources ...string) error {
	resources, err := prepare(token, resources)
	if err != nil {
		return err
	}
	if err := g.record(ctx, tx, token, resources); err != nil {
		if errors.Is(err, ErrStale) {
			return err // it names everything already
		}
		return fmt.Errorf("check token %s of %s: %w", token, brief(resources), err)
	}
	return nil
}

func (g *SQL) record(ctx context.Context, tx *sql.Tx, token locks.Token, resources []string) error {
	names, err := json.Marshal(resources)
	if err != nil {
		return err
	}
	rows, err := tx.QueryContext(ctx, g.check, int64(token), string(names))
	if err != nil {
		return err
	}
	defer rows.Close()
	var stale *StaleError
	for rows.Next() {
		var resource string
		var seen int64
		if err := rows.Scan(&resource, &seen); err != nil {
			return err
		}
		if seen := locks.Token(seen); seen > token && (stale == nil || resource < stale.Resource) {
			stale = &StaleError{resource, token, seen}
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if stale != nil {
		return stale
	}
	return nil
}

// pruneBatch is how many rows one transaction of a prune removes, so that none makes others wait
// for long.
const pruneBatch = 1000

// Prune removes the records of resources that were not checked for age, by the database's clock,
// and returns how many. A record takes about 100 bytes, so Prune is for names that are used once. A
// resource without a record accepts any token, so age must be longer than any holder can be stopped
// and then resume. Days are a good age.
func (g *SQL) Prune(ctx context.Context, db *sql.DB, age time.Duration) (int64, error) {
	return prune(ctx, db, g.prune, age)
}

// prune removes rows older than age with a statement, batch after batch.
func prune(ctx context.Context, db *sql.DB, statement string, age time.Duration) (int64, error) {
	if age <= 0 { // also the zero of a forgotten setting, which would remove everything
		return 0, fmt.Errorf("%w: prune records older than %s: want an age above 0", ErrInvalid, age)
	}
	var total int64
	for {
		result, err := db.ExecContext(ctx, statement, age.Seconds(), pruneBatch)
		if err != nil {
			return total, fmt.Errorf("prune the guard's tables: %w", err)
		}
		n, err := result.RowsAffected()
		if err != nil {
			return total, fmt.Errorf("prune the guard's tables: %w", err)
		}
		total += n
		if n < pruneBatch {
			return total, nil
		}
	}
}

// Store returns the guard as a [Store] that records in transactions of its own. It keeps old
// holders out at a door, as [HTTP] does. For an effect in the same database, call [SQL.Check] in
// the effect's transaction.
func (g *SQL) Store(db *sql.DB) *SQLStore { return &SQLStore{g, db} }

// SQLStore is a [Store] in a SQL database; see [SQL.Store].
type SQLStore struct {
	guard *SQL
	db    *sql.DB
}

// Check implements [Store].
func (s *SQLStore) Check(ctx context.Context, token locks.Token, resources ...string) error {
	var o *sql.TxOptions
	if s.guard.dialect == PostgreSQL {
		// The database's default may be stricter, and would needlessly fail a check that has
		// waited.
		o = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	return inTx(ctx, s.db, o, func(tx *sql.Tx) error { return s.guard.Check(ctx, tx, token, resources...) })
}

// inTx commits what f does, or rolls it back if f returns an error.
func inTx(ctx context.Context, db *sql.DB, o *sql.TxOptions, f func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, o)
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	// After a commit it does nothing. If it fails, the connection is broken, which also ends the
	// transaction.
	defer func() { _ = tx.Rollback() }()
	if err := f(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit transaction: %w", err)
	}
	return nil
}
