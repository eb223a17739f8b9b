// Package ledger is the record of ticks and runs in Redis, and the only answer to "did it happen?".
//
// # The problem
//
// Many workers know the same schedule and take from the same queue; they pause, die, come back, and lose replies. Each
// tick must become one run, each run must come to one end, and what has ended must never run again. A queue cannot
// carry that: its tasks are lost, doubled and late. So the truth is here, and a delivery is only a hint that somebody
// might look.
//
// # The words
//
// A tick is one due time of a job. A run is one piece of work: a tick's, or a request's. An attempt is one try at a
// run; it has a worker, a token, a start and an end. A job's cursor is the last tick decided: everything after it and
// not after now is still to decide.
//
// # The states of a run
//
//	        Create, Enqueue, Adopt                  Claim                    Finish
//	tick ────────────────────────> due ──────────────────────────> running ──────────> succeeded, failed
//	 │            ^   ^             │ bundle taken    ^                │  │
//	 │            │   │             v                 │                │  └─ session ended ──> due, lost, failed
//	 │            │   └──offered─ waiting             │                └──── hand back ──────> due
//	 │        scheduled, retrying <─────────────── pause is over, a failed attempt to be repeated
//	 └─> skipped, missed, failed (never began)
//
// Beside these ways: Create, for a tick that replaces it, and Cancel end a run that does not run, and have the worker of
// one that does asked to stop it ([Ledger.Poll]); Expire ends one that may not start any more, or has waited for its
// bundle long enough; Skip ends one that has not begun. Reopen, which only a person asks for, makes an ended run due
// again.
//
// succeeded, failed, lost, canceled, skipped and missed are final. Outstanding runs are records of their own; final
// ones move to their job's history, which is kept within bounds. So a run that has neither record is over, and a claim
// finds nothing: no expiry time carries that.
//
// # The invariants
//
//   - A tick is accounted for exactly once: creation names the cursor it was computed from, and moves it in the same
//     script that writes the records.
//   - A run runs only under its bundle. Looking at the run, taking the bundle and beginning the attempt are one script
//     ([Ledger.Claim]); recording the end and passing the bundle on are one as well ([Ledger.Finish]).
//   - A claim names the n of the delivery that led to it. Whatever makes a run due, or stops it being due, takes the next
//     n, so a claim that arrives late or twice takes nothing.
//   - A finish counts when its token is the run's last one and the run is not final. An attempt is counted once, by the
//     first of its finish and the sweep; after that only its success still counts, as long as no other attempt began.
//   - Failures and crashes are counted apart; a hand-back is neither, and a lost lease is neither. A crash is the death of a
//     worker's process, which its parent reports ([Ledger.Died]). A session that ends without such a report has lost its lease.
//   - A run that was asked to stop is not tried again: whatever its attempt comes to, if that is no success, the run is
//     canceled.
//   - A session runs one suspect at a time ([Record.Suspect]), so that a job which kills its workers does not take the same
//     others along again and again. All runs under a process that dies are suspects, unless one of them was suspected
//     before: then that one is, and those that crashed with it the last time are cleared.
//   - A job's ticks are decided by one definition at a time.
//   - All times are the server's, read inside the scripts. A worker's clock is an alarm clock only.
//
// # Fast paths
//
// Most runs are plain: their bundle is free, nobody waits, they succeed. Scripts that decide such runs by themselves stand
// before the others' text (scripts/*.fast.lua), and take several runs at once ([Ledger.ClaimAll], [Ledger.FinishAll]). They
// know the layout of a record and every rule that they leave out of account; a test has both ways do the same on random
// ledgers, and what is changed in one has to be changed in the other.
//
// # Waiting for locks
//
// A run whose bundle is not free waits in the lock space, without a worker, under a wait of its own that keeps its
// ticket until the run has begun. When its turn comes the space offers it the bundle: the resources are reserved for two
// seconds and the run becomes due under its next n. A ledger script that frees a bundle does both in one step and tells
// its caller what to deliver. A script of the lock library knows no runs: it leaves the offer in the index, tells the
// session at the desk, and the next [Ledger.Sweep] makes the run due. An offer nobody takes in time lapses. The run
// stays due and keeps its ticket: when its claim comes, it goes before every younger wait, their offers included.
//
// A run whose queue is paused is offered nothing: nothing is to stand idle for a run that nobody begins. The space keeps
// a copy of the pause flags for that: who pauses or resumes a queue sets it ([Ledger.QueuePaused], [Ledger.QueueResumed]),
// and who has duty compares it with the flags, which tools of others change as well ([Ledger.QueuesPaused]). The waits
// keep their tickets meanwhile, and the script that clears a flag offers them what is free.
//
// Ticks of one job begin in their order, though their deliveries come in any: a claim sends earlier ticks that are due
// to wait in front of it. A tick that failed and waits for its next attempt lets later ones pass.
//
// # Requests that come by the queue
//
// A plain client of the queue sends a request under an id of its own and knows nothing of runs. The worker that is given it
// has it recorded by [Ledger.Adopt] and only then ends it in the queue; so it may be delivered again, and only the queue's
// count of tries tells that from a second request under the same id. Outstanding, or counted: it is there already. Otherwise
// it is a new one. Two things could pass an old request off as new: an adoption that is sent again, also when the copy arrives
// late (each delivery has a word, which is remembered for ten minutes), and a worker that paused while the queue gave the
// request to another one (its session has ended by then, and an ended session adopts nothing, as it claims nothing).
//
// An id that its client chose is remembered for a week. One that the queue generated (a random UUID) names no second request,
// so it is remembered for ten minutes, which is longer than the queue takes to deliver a task again. Each takes one entry of a
// sorted set that no view reads, and the sweep forgets old ones; the number of its runs is kept beside the facts of jobs for an
// id that was used again.
//
// # Definitions
//
// Workers with different configs work side by side while a new one is rolled out. Each registers its definitions by their
// hashes, and keeps them carried by polling. The definition that was first registered last, of those that a worker has
// carried within [GoneAfter], is the active one: [Ledger.Create] refuses all others. So a new definition takes over when its
// first worker comes, and gives way when its last one has gone. Without any worker the last active one stays, with the
// cursor, until one comes; after a week without, the job begins anew. So does a job that was removed: other workers were
// present for GoneAfter and did not carry it.
//
// A worker that is reloaded, drains or has crashed has left its config ([Ledger.Leave]): definitions that no other session
// carries give way, after a crash some seconds later. The other workers are told and ask how their definitions stand, so
// one of them decides the ticks at once. GoneAfter is for workers that stay away without a word, and while a worker of an
// older build lives, which does not say what it carries. It is shorter than [jobs.MissedAfter], so no tick is missed meanwhile.
//
// A worker whose definitions have drifted does not register them again and again: it asks which configs are carried, and
// registers them when one of these has gone. It passes duty to a worker whose definitions have not drifted.
//
// Where the trigger stays the same, becoming active is one write. Where it changes, the ticks up to now are the old
// trigger's: after decisions that account for them, an [Activation] moves the cursor to now and changes the definition, in
// one step. It names the cursor that it follows, so no tick is left out.
//
// A run carries the definition it was made with, so any worker can do it, whatever it has itself.
//
// Builds differ, too. A definition is JSON, and a newer build may add keys without a new format of the space (see package
// locks), since each process checks for keys that it does not know ([jobs.Job.CheckKeys]), in nested objects as well. What
// such a key asks for, this process cannot do, so it leaves the definition to one that knows the key:
//
//   - a worker declines its runs, before it takes a lock, and sets them aside for a worker that knows the key;
//   - it adopts no request for it, which stays in the queue;
//   - it makes no tick's run by it. Where its own definition takes over with another trigger, it leaves the ticks up to now
//     to a worker that knows the old definition until the oldest has been due for a minute. Then they are recorded as missed,
//     as far as the keys that are known tell when they were;
//   - a request or a reopened run gets the definition byte by byte as it was read, so no key is lost. Where the key is one of
//     lock, the bundle of the run cannot be told, and the call is refused;
//   - views show the definition without the key, and its problem.
//
// Workers run what these definitions say, so they are signed where a key is set ([Ledger.Sign]; the format is in package
// jobs). The process that takes a definition from its config signs it. One that was read from Redis is written again as it
// was read, with its signature, and by a process with a key only if that signature is valid: no process may make an unverified
// definition good. A worker verifies the definition that a claim brings, and hands out nothing of one that it cannot trust
// ([Claimed].Refused). Registering a definition puts a missing or other signature right. Ticks that an untrusted definition
// decides are recorded as failed. Hashes are of the definition without its signature.
//
// # What happens when
//
//   - a worker dies between creating a run and delivering it: the push is not confirmed, and the sweep repeats it. A push
//     that the sweeping process itself still has to do is not repeated;
//   - a worker dies between fetching a delivery and claiming its run: the queue has that on record, and the sweep pushes the
//     delivery again when the session has ended ([Ledger.Ended]);
//   - the queue loses a delivery: the look-ups find it ([Ledger.Sent]), and it is pushed again;
//   - a worker dies in an attempt, or loses its lease: its session ends, and [Ledger.Crash] makes the run due again, or ends
//     it. A worker that survives reports what it cut off ([Ledger.LostLease]);
//   - a host dies each time that it runs something: no parent is left to report a crash. After [MaxLostLeases] in a row that no
//     worker has confirmed, the run has failed. Fewer would end runs that meet some outages in which their workers are
//     replaced, as in a rolling restart of hosts; without a bound such a run would bring hosts down forever;
//   - a reply is lost: every call may be sent again, and its comment says what that gives.
//
// # When Redis loses data
//
// A failover loses the last writes, a restart without persistence all of them. The lock space notices and begins a grace
// time (see package locks), in which nothing is created or claimed, and each worker says again what it remembers
// ([Ledger.Remember], [Ledger.Assert]), after its locks:
//
//   - cursors: the highest that somebody knows counts, and a tick whose run he began counts as one. A job that somebody
//     has registered meanwhile who never knew it goes back to where it was;
//   - his own attempts, with their records: those that run, and the ends of the last ten minutes, which are sent again as
//     they were sent. So a finish without an answer is an end, too;
//   - ends of other workers' runs that he has heard of, in the news that a poll brings: of every tick, and of requests
//     that had more than one attempt;
//   - which ticks' runs are outstanding: the news say so, and a worker that comes, or has missed news, reads the whole list
//     beside that, in pages ([Ledger.Mirror]): a poll costs the same however long the list is. They become due again, by the
//     definition that the worker carries.
//
// In whatever order this is said, the furthest wins: an end, then the attempt with the highest token, then a run that is
// due. For what nobody alive knew each job gets one line in its history (lost). A worker that comes when the grace time
// is over is refused; its session ends then, too.
//
// # What is not promised
//
// That runs of different jobs begin in the order in which they were due: waits are in the order in which they began to
// wait, and queues have weights. That a finished run can be looked up for ever: the history is trimmed. That a request is
// adopted once by a worker that stands still for more than a minute in the middle of it, when its lease is longer than
// that. After a loss of data: requests that no worker had begun, what was ordered by hand (pauses, spans to be skipped, the
// audit), outputs, ticks of jobs that nobody carried at the time, those between the cursor and a trigger that is changed in
// the same moment, and what happened in the last second before to who died with it. Run Redis with persistence.
package ledger
