// Package guard checks a fencing token where an effect happens, so that what a superseded holder of
// a lock still does is refused.
//
//	fence, err := guard.NewSQL(guard.PostgreSQL, guard.SQLOptions{}) // once; see fence.Create
//
//	tx, err := db.BeginTx(ctx, nil)
//	err = fence.Check(ctx, tx, hold.Token(), "bill:4711") // first, before anything is read
//	...                                                   // then read and write in tx
//	err = tx.Commit()
//
// # The problem
//
// A lock that passes on when its holder dies is a lease, and a lease ends while its holder may
// still live. Package locks ends the holder's context before that. But a process that is stopped at
// the wrong instant (a SIGSTOP, a suspended laptop, a virtual machine that is moved, a long pause
// of the garbage collector) has looked at its context, then stops for an hour, and then continues
// with its next instruction, which is the write. And a request that was sent before can lie in the
// network for as long. No lock can help: at the time of the write nobody asks it.
//
//	A   lock, token 33 ── reads ── stopped ······················· continues ── writes ✗ 33 < 34
//	B                                  lock, token 34 ── reads ── writes ✓
//
// # What a token does
//
// Every grant of a lock draws a token, and tokens only grow. The target of the effect also keeps,
// per resource, the highest token it has seen. A lower one comes from a holder that was superseded
// and is refused with [ErrStale]; the same one comes from the same holder, which may write as often
// as it likes; a higher one is recorded. To check and to write must be one step, or the pause falls
// between the two.
//
// # Which guard to use
//
//	effect                                 guard
//	rows in PostgreSQL or SQLite           [SQL.Once] around the transaction of a run, [SQL.Check]
//	                                       in any transaction
//	keys in Redis                          [Redis.Set] for one value, [Redis.Run] for a script of
//	                                       your own
//	a service of yours behind HTTP         [HTTP] in front of it, and in its handlers the guard of
//	                                       what they write to; [SetToken] and [ResponseError] in its
//	                                       client
//	state in the memory of one process     [HTTP] with a [Memory], or [Memory.Check] under the lock
//	                                       of that state
//	something that takes a condition       its own (If-Match, a version column), with the token as
//	                                       the version
//	something that takes none (mail, ...)  none: give it the run's idempotency key if it takes one
//
// # How to use them
//
//   - The resource is what the lock is called, not the row or the key that is written. A newer
//     holder that has written only half of what the lock protects is then safe for the other half,
//     too.
//   - Check first, then read, then write. Before the newer holder has shown its token, the guard
//     cannot know of it, and lets the older one write; so what was read before the check may be
//     old. A program that reads in one transaction and writes in a later one must check in both.
//   - Name all resources of a bundle in one call. The guards take them in one order, so two callers
//     cannot deadlock.
//   - [ErrStale] is final. The lock is somebody else's: roll back and end; to try again with the
//     same token is useless.
//   - All writers must check. A path without a check is a path for the paused holder.
//
// # What a token does not do
//
// A worker dies after its run has committed its effect, and before the ledger knows. The next
// attempt has a higher token and every right to go on: no fence keeps it from making the effect a
// second time. Both have the run's idempotency key. [SQL.Once] records that key in the transaction
// of the effect, so, whichever process dies at any time, effect and record are both there or both
// not:
//
//	return fence.Once(ctx, db, run, func(tx *sql.Tx) error {
//		_, err := tx.ExecContext(ctx,
//			"UPDATE account SET balance = balance - 30 WHERE id = $1", run.Args.Account)
//		return err
//	})
//
//	killed                         the effect is made by
//	before the commit              the next attempt
//	between commit and finish      this attempt; the next one finds the record, and the run has
//	                               succeeded
//	in doubt about the commit      this attempt or the next one, as the database decided
//
// The two are for different faults: a record orders the attempts at one run, a token the holders of
// one lock, of whatever run. Where both matter, call [SQL.Check] at the beginning of the effect. A
// tick that is replayed keeps its run's id, so its effect is still recorded and not made again;
// lockstep job replay --new-key gives each tick a run with a new key. A command job can do the same
// in SQL, with LOCKSTEP_IDEMPOTENCY_KEY as the key: insert first, and end with success if the row
// exists.
//
// # Invariants
//
//  1. The record of a resource never goes back, unless it was removed (see below).
//  2. Once an effect under a token is visible, no effect under a lower token for that resource
//     follows it.
//  3. Record and effect are applied together or not at all: one transaction in SQL, one script in
//     Redis. So a failover or a restored backup that loses the one loses the other, and what is
//     left fits together.
//  4. Of the transactions that record one key as done, at most one commits, unless the record was
//     removed.
//
// # When something fails
//
//   - The holder is stopped before its write: refused once a newer holder has checked. Stopped
//     within its transaction: the newer holder's check, or the next attempt at the same run, waits
//     for the end of that transaction. Bound it (idle_in_transaction_session_timeout in
//     PostgreSQL); a connection that breaks ends it by itself.
//   - The reply to a commit or a script is lost: whether it was applied is unknown, as without a
//     guard. The same again is accepted as long as nobody newer has come.
//   - The guard's store cannot be reached: the error is returned and nothing is written; [HTTP]
//     answers 503.
//   - Records are lost without the effects (evicted by Redis, expired by [RedisOptions.Keep],
//     removed by [SQL.Prune], a restarted [Memory]): the next token is accepted, whatever it is.
//     After [SQL.PruneDone] a run that has not been finished is done again.
//
// # What is not promised
//
// A token orders holders, not the writes of one holder: of two writes under one token the last to
// arrive stands, also when it is a late copy of the first. [HTTP] guards the door of a service:
// what its handlers write elsewhere must be guarded there, or two processes of the service can
// still write in the wrong order. And tokens must come from one counter: those of two lock spaces
// cannot be compared.
package guard
