// Package ledger is the record of ticks and runs in Redis, and the only authority on "did it
// happen?".
//
// # The problem
//
// Many workers know the same schedule and take from the same queue; they pause, die, come back, and
// lose replies. Each tick must become one run, each run must come to one end, and an ended run must
// never run again. A queue cannot ensure that: its tasks are lost, duplicated and late. So the
// ledger holds the truth, and a delivery is only a hint that a run may be runnable.
//
// # The words
//
// A tick is one due time of a job. A run is one piece of work: for a tick or for a request. An
// attempt is one try at a run; it has a worker, a token, a start and an end. A job's cursor is the
// last decided tick: every tick after it and not after now is still undecided.
//
// # The states of a run
//
//	        Create, Enqueue, Adopt           Claim                Finish
//	tick ───────────────────────> due ───────────────────> running ──────> succeeded, failed
//	 │           ^   ^             │ bundle taken   ^         │  │
//	 │           │   │             v                │         │  └─ session end ─> due, lost, failed
//	 │           │   └──offered─ waiting            │         └──── hand back ─────> due
//	 │       scheduled, retrying <───────────── pause over, a failed attempt to repeat
//	 └─> skipped, missed, failed (never began)
//
// Besides these transitions: a run with a later time begins as scheduled, and the run of a tick
// that replaces a running one as waiting; a run that its worker declines is scheduled for a moment;
// a claim after the start deadline ends the run as missed. Create, for a tick that replaces an
// earlier run, and Cancel end a run that is not running, and ask the worker of a running one to
// stop it ([Ledger.Poll]). Expire ends a run that must not start any more, or has waited too long
// for its bundle. Skip ends a run that has not started. Reopen, which only a person requests, makes
// an ended run due again.
//
// succeeded, failed, lost, canceled, skipped and missed are final. Outstanding runs have their own
// records; final ones move to their job's history, which is bounded. So a run that has neither
// record is over, and a claim of it finds nothing: this does not depend on any expiry time.
//
// # The invariants
//
//   - A tick is accounted for exactly once: a creation names the cursor it was computed from, and
//     moves the cursor in the same script that writes the records. A tick that replaces very many
//     runs ends them in several steps, and moves the cursor with the last one ([Created].More).
//   - A run runs only under its bundle. One script checks the run, takes the bundle and begins the
//     attempt ([Ledger.Claim]); one script records the end and passes the bundle on
//     ([Ledger.Finish]).
//   - A claim names the n of its delivery. Every transition into or out of due increments n, so a
//     claim that arrives late or twice takes nothing.
//   - A finish counts when its token is the run's last one and the run is not final. An attempt is
//     counted once, by its finish or the sweep, whichever comes first; after that only its success
//     still counts, as long as no other attempt has begun.
//   - Failures and crashes are counted separately; a hand-back and a lost lease are neither. A
//     crash is the death of a worker's process, which its parent reports ([Ledger.Died]). A session
//     that ends without such a report has lost its lease.
//   - The log of a run's attempts is bounded, however often the run fails, is handed back or loses
//     its lease. A log of more than 32 KiB keeps the first attempts, the last ones, and those that
//     decide whether the run is a suspect.
//   - A run that was asked to stop is not tried again: unless its attempt succeeds, the run is
//     canceled.
//   - A session runs one suspect at a time ([Record.Suspect]), so that a job which kills its
//     workers does not take down the same other runs again and again. All runs under a process that
//     dies are suspects, unless one of them was suspected before: then that one is, and those that
//     crashed with it the last time are cleared.
//   - One definition at a time decides a job's ticks.
//   - All times are the server's, read inside the scripts. A worker's clock is only an alarm clock.
//
// # Totals
//
// The ledger counts the ends of runs, ticks and attempts, by job and outcome ([Ledger.Totals]), for
// an alert that must miss none. The script that ends a run counts it, whichever process sent it: a
// worker's finish, the sweep that finds a dead worker, the expiry of a wait, a person's cancel. So
// an end and its count are one write, which is not counted twice when it is sent again, and not
// lost with the process that sent it.
//
// A counter in each process would be cheaper, but a process that dies between an end and the next
// scrape takes the count along, and the run that kills its worker is what an alert is for. Reading
// the ends from the news or from histories instead would need a reader that never falls behind,
// since both are trimmed. A count costs one HINCRBY, about 1 us, for all runs of a job that end
// together.
//
// Their number is bounded: a few for each job, which go when the job is forgotten. A loss of data
// takes them along and begins new ones; what workers re-assert counts again, since its count was
// lost with it. Ends by builds from before totals are not counted.
//
// # Fast paths
//
// Most runs are plain: their bundle is free, no other run waits for it, they succeed. The scripts
// for such runs precede the text of the general scripts (scripts/*.fast.lua), and take several runs
// at once ([Ledger.ClaimAll], [Ledger.FinishAll]). They know every rule that they omit; a test runs
// both paths on random ledgers and compares the results, and every change of one must be made in
// the other.
//
// Requests are many, too. One request alone has a fast path. Requests that come while another one
// of their process is under way are recorded together, and so is a list ([Ledger.EnqueueAll]), by a
// script that makes each call of Redis once for all of them. It has no second path: a test runs
// the script for one request instead, for each of them, and compares the results.
//
// A script is assembled from the functions that it uses (scripts/lib, by nouns): see package locks.
// It names keys and the fields of records, which layout.go describes.
//
// # Waiting for locks
//
// A run with a taken bundle waits in the lock space, without a worker, under a wait of its own
// that keeps its ticket until the run has started. When its turn comes the space offers it the
// bundle: the resources are reserved for two seconds and the run becomes due under its next n. A
// ledger script that frees a bundle does both in one step and returns the deliveries to its caller.
// A script of the lock library knows no runs: it leaves the offer in the index, notifies the
// session at the desk, and the next [Ledger.Sweep] makes the run due. An offer that is not taken in
// time lapses. The run stays due and keeps its ticket: when its claim comes, it precedes every
// younger wait, including their offers. Its delivery may be behind those of runs that became due
// later, so the workers of its queue ask for it ([Ledger.Began]).
//
// A run in a paused queue gets no offers: no lock should stay reserved for a run that no worker
// starts. For that the space keeps a copy of the pause flags: a client that pauses or resumes a
// queue sets it ([Ledger.QueuePaused], [Ledger.QueueResumed]), and the worker on duty compares it
// with the flags, which other tools also change ([Ledger.QueuesPaused]). The waits keep their
// tickets meanwhile, and the script that clears a flag offers them what is free.
//
// Ticks of one job start in their order, although their deliveries come in any: a claim makes
// earlier ticks that are due wait in front of it. A tick that failed and waits for its next attempt
// lets later ones pass.
//
// # Lists of requests
//
// A list is recorded by as many scripts as its length and its bytes need: one that recorded 1,000
// requests would keep Redis busy for too long. A request gets its id before it is first sent. So a
// list may be sent again after a lost reply, a failover or the death of its sender: the runs that
// were recorded exist already, and the others are recorded. Each request has its own reply.
//
// An atomic list that needs several scripts is staged first: one script stores all of it (the key
// lists), unless an error would refuse a part of it. That instant decides: before it, nothing is
// recorded, and after it, all of the list will be. The sender then records part after part. Each
// part's script also notes in the same step up to where the list is recorded, and that of the last
// part removes the list. If the sender dies, the worker on duty records the rest after 10 s, or
// another one after 30 s. Only one of two processes records a part: the other one finds that the
// list has advanced. So a request is recorded once even if its run has ended and has left the
// history in the meantime. The name of a list is a digest of it: one that is sent again while it is
// staged is the same list.
//
//   - A request that cannot be recorded does not affect the others: most are refused before
//     anything is sent, and when Redis refuses a script, each of its requests is sent alone.
//   - A script that gets no reply may have been executed. The requests behind it are not sent, so
//     the beginning of the list is recorded; a list that was staged is recorded by a worker.
//   - The audit has one entry for a list, which counts the runs that are new.
//
// # Requests that come through the queue
//
// A plain client of the queue sends a request under an id of its own and knows nothing of runs. The
// worker that receives it records it with [Ledger.Adopt] and only then ends it in the queue; so it
// may be delivered again, and that must be distinguished from a second request under the same id.
// If the run of the id is outstanding, the request exists already. Otherwise three things decide:
//
//   - A request has a random word, which the queue keeps beside it from its first delivery on.
//     Adopt remembers the word for ten minutes. A request whose word is known exists already, also
//     when a copy of its adoption arrives late.
//   - A request that the queue has counted as tried, and whose word is not known, was either not
//     adopted, or by an older build, or long ago. It has been in the queue since it got its word,
//     and no other request there had its id. So it exists already if the last run of the id was
//     made since then, and else it is a new one: its first delivery was lost before it was adopted.
//     Both times are the server's.
//   - A counted request without a word had been tried before it could get one, by an older build:
//     it exists already if anything is known of its id. One that is not counted is new.
//
// One case could still make an old request look new: a worker that paused while the queue gave the
// request to another one. Its session has ended by then, and an ended session adopts nothing, as it
// claims nothing.
//
// An id that its client chose is remembered for a week. An id that the queue generated (a random
// UUID) names no second request, so it is remembered for ten minutes, which is longer than a queue
// takes to deliver a task again while it is not paused and has no backlog. Each takes one entry of
// a sorted set that no view reads, and the sweep forgets old ones; for an id that was used again,
// the number of its runs is kept beside the facts of jobs.
//
// # Definitions
//
// Workers with different configs work side by side while a new one is rolled out. Each registers
// its definitions by their hashes, and keeps them carried by polling. Of the definitions that a
// worker has carried within [GoneAfter], the one that was first registered last is the active one:
// [Ledger.Create] refuses all others. So a new definition takes over when its first worker comes,
// and gives way when its last one has gone. Without any worker the last active one stays, with the
// cursor, until a worker comes; after a week without one, the job begins anew. So does a job that
// was removed: other workers were present for GoneAfter and did not carry it. If the very config
// returns that its last workers had, those others must have come about when these left, as in a
// deploy that is reverted. Workers that were present all the time and never carried the job do not
// turn an outage of its own workers into a removal. A person can remove the data of a removed job
// ([Ledger.Forget]). A worker that carries it after all, since it was only absent, finds that in
// its next poll and registers it, and the job begins anew.
//
// A worker that was cut off for so long that its definition gave way returns with it, and must not
// take back what was deployed meanwhile. So a registration returns the order of the definition
// among all others, and a process that registers the definition again brings that order: the
// definition returns to its old place. A process that has just been started brings none, nor does
// one that has carried another definition in between: if no worker carries the definition, it
// becomes the newest again, which takes a deploy back. Redis keeps the highest order, and a new one
// is also not below the server's time in milliseconds. The new definitions of one script share one,
// so a deploy of very many takes no orders that are still to come. After a loss of data, the
// workers restore their places in any order, and the next new definition is newer than all of them.
//
// A registration drops what no worker carries, also a config that carried an active definition. So
// a worker that was absent may carry a definition without the ledger knowing it, and that one would
// give way when the other workers with it leave. Polls report when a registration last dropped
// something, and since when the config of the worker is carried without a pause. If both are after
// the last poll before, the worker registers all of its definitions again. Registrations by builds
// from before this are not reported.
//
// The ticks that such a job missed are accounted for as well, by the trigger that it had. The
// script that begins it anew knows no cron and has no keys of histories, so it stores the
// [Absence]: the cursor before, the new one and the old trigger. Each registration of the job
// returns it, until a worker has written one line for these ticks, which also removes the absence
// ([Ledger.Settle]). So a worker that dies in between leaves the line to the next one, and two
// workers write one line. A job that was forgotten ([Ledger.Forget]) has no absence: it was removed
// on purpose. A build from before absences registers such a job without one.
//
// A worker that is reloaded, drains or has crashed has left its config ([Ledger.Leave]):
// definitions that no other session carries give way, after a crash some seconds later. The other
// workers receive a notice and check the standing of their definitions, so one of them decides the
// ticks at once. GoneAfter covers workers that vanish without leaving, and the time while a worker
// of an older build lives, which does not report what it carries. It is shorter than
// [jobs.MissedAfter], so no tick is missed meanwhile.
//
// A worker with drifted definitions does not register them again and again: it reads which
// configs are carried, and registers its definitions when one of these configs has vanished. It
// passes duty to a worker without drift.
//
// If the trigger stays the same, the change of the active definition is one write. If the trigger
// changes, the old one decides the ticks up to now: after decisions that account for them, an
// [Activation] moves the cursor to now and changes the definition, in one step. It names the cursor
// that it follows, so no tick is left out.
//
// A run carries the definition it was made with, so any worker can do it, whatever its own config
// is. Redis stores that text once for all runs that have it: the body of a run names it by a hash,
// and a number beside the text counts the bodies that do. The script that writes a body adds one to
// the number, and the script that removes a body subtracts one. A body brings the text if it is
// missing. After the last body, the text remains only for finished runs (see below). Only
// outstanding runs have bodies: a run that is reopened after its end gets the definition that its
// caller brings, and a worker that re-asserts a run brings the text. So a text is stored as long as
// a body names it.
//
// This holds while every build that writes has the scripts of format 2. A build from before formats
// had numbers removes bodies without subtracting. Then the number stays too high and the text is
// never removed, which costs only memory. Such a build must not run once format 2 is written.
//
// A claim lists the names of definitions that its worker has, and can run. A run with another one
// is not granted: the reply is the text. So no attempt begins without its definition. If it is
// also missing in Redis, which only a foreign write can cause, the run fails with that reason. The
// next run with the same definition restores the text, for all runs that name it then.
//
// This is format 2 (see package space). In format 1 each body has the text itself. Format 1 is
// written as long as a session of an older build lives, and always read: runs that were made then
// keep such a body until they end. No script converts them, so least_format remains 1; a build that
// raises it must convert them first.
//
// # Definitions of finished runs
//
// The final record of a run has the first 6 characters of the name of its definition, in the field
// of the hold, which a final record does not need otherwise. That is short, since there are very
// many records, and enough to tell the definitions of one job apart: of 100, two have the same 6 in
// one of ten million cases, and then both count as not kept. Each job has a set of the definitions
// that it keeps for its finished runs (the key made), by their last use: the time at which the text
// was stored, or later, the last body that named it was removed. [Ledger.Made] finds the name that
// begins with these characters in the set of the job, and returns the text.
//
//   - A run ends no later than the last use of its definition, or a body still names that. So the
//     set needs no count of the records that refer to a definition: if the oldest finished run of
//     the job has ended after the last use, none does.
//   - A job keeps the 100 definitions that were last used, and 1 MiB of texts at most, but always
//     the newest. Nothing else bounds a job that gets a new definition every minute.
//   - A definition that is not in the set when its last body is removed has left it because of that
//     bound, or an older build has stored it. Its text goes with the body.
//
// The end of a run does nothing more for this: where it removed the text with the last body, it now
// writes the time of the last use instead. Only a script that stores a new text (embody) adds it to
// the set, and drops what is too old or too much. When the worker on duty measures the histories,
// it looks for sets that have definitions which are too old ([Ledger.TidyHistories]). A purge
// ([Ledger.TrimHistory]) drops them, too, and [Ledger.Forget] removes all of a job.
//
// An exact count of the final records that refer to each text would need a read of every record
// that a history trims, and an older build that trims would leave it wrong forever. A last use can
// only be too late, and then costs the memory of a text for some time.
//
// This needs no new format, and is part of format 2: a run that was made while format 1 was
// written, or before the first session, has no reference. A build from before this reads the field
// as that of a hold, which means nothing in a final record. It ends runs without the reference, and
// removes a text with its last body although finished runs refer to it; these then have no
// definition until a run with the same one is made again. It forgets a job without its set, which
// the worker on duty then tidies. A loss of data loses the set together with the histories.
//
// No definition is kept of ticks that never became due (skipped, missed), of requests that failed
// when they were adopted, and of runs that another worker reported as ended after a loss of data.
// The error is [ErrNotKept] then, and where the text for a reference is missing, unless the
// definition is the active one of the job.
//
// # Definitions of newer builds
//
// Builds differ, too. A definition is JSON, and a newer build may add keys without a new format of
// the space (see package locks), since each process checks for unknown keys ([jobs.Job.CheckKeys]),
// in nested objects as well. This process cannot do what such a key requests, so it leaves the
// definition to one that knows the key:
//
//   - a worker declines its runs, before it takes a lock, and sets them aside for a worker that
//     knows the key;
//   - it adopts no request for the job; the request stays in the queue;
//   - it makes no run of a tick by it. Where its own definition takes over with another trigger, it
//     leaves the ticks up to now to a worker that knows the old definition until the oldest has
//     been due for a minute. Then they are recorded as missed, at the times that the known keys
//     give;
//   - a request or a reopened run gets the definition byte by byte as it was read, so no key is
//     lost. Where the key belongs to lock, the bundle of the run is unknown, and the call is
//     refused;
//   - views show the definition without the key, and its problem.
//
// Workers execute what these definitions contain, so they are signed where a key is set
// ([Ledger.Sign]; the format is in package jobs). The process that takes a definition from its
// config signs it. A definition that was read from Redis is written back unchanged, with its
// signature, and a process with a key does so only if that signature is valid: no process may turn
// an unverified definition into a valid one. A worker verifies the definition that a claim brings,
// and hands out nothing of one that it cannot trust ([Claimed].Refused). Registering a definition
// repairs a missing or different signature. Ticks that an untrusted definition decides are recorded
// as failed. Hashes cover the definition without its signature.
//
// # Runs that lead to others
//
// A request may name the run from within which it is made ([Request].Parent), and a replay under a
// new key names the run of its tick. The context of a handler has its run ([jobs.RunOf]), which a
// request that names none takes as its parent. That is only a claim: the environment of a command
// can be copied, or be that of another namespace. So the script that makes the run records the
// parent only if that is outstanding, or in the history of the same job.
//
// A run of a tick has the session that decided it in its record, and any other run has nothing
// there. So that field has the parent of such a run. A run without a parent does not grow by this,
// and no new format is needed: a build from before parents keeps the field as it is, in all
// records, and shows the parent as if it were that session. The fast path of enqueue is for runs
// without a parent.
//
// That field also has the trace context of a request (package trace), behind the parent and a
// blank, which no id of a run contains: so each attempt, on whichever worker, continues the trace
// of the requester, also after the run was reopened. It is at most 569 bytes long, and a run
// without one does not grow. Builds from before that keep the field, too, and show the context
// behind the parent. The run of a tick has none: the IDs of its spans follow from its record.
//
// The children of a run are in one entry of a hash: their number and the first 20 of them. It is
// kept for the 10,000 runs that last made a first child ([Ledger.Children]), so it needs no sweep,
// and no script that trims a history must know it. An entry also has the time at which its run was
// made: a later run with the same id does not inherit the children. A loss of data loses the
// children, while each child that is re-asserted keeps its parent.
//
// # Messages
//
// A definition names targets of messages, each with its events ([jobs.Notify]). The script that
// records an end also stores a message for each target that wants to know of it: so a run that has
// ended as failed, lost or missed has exactly one message for each such target, and a worker that
// dies before or after loses and doubles none. The scripts are those that call final (finish,
// crash, cancel, expire, claim, create for runs that it replaces, refuse, skip, assert), and those
// that record the end of a run that never was outstanding: create and adopt. A run that refuse
// parks has its message then, and none when its history can be written again. Lines for ticks that
// no definition has decided have none.
//
// The first success after a message is a recovery. The fact n<job> has the targets that wait for
// it, and the script that records the success removes it. A job that is silent for too long has one
// message for each silence (silence.lua): the same fact notes which one. Every worker looks, by the
// clock of the server, for the jobs whose active definition it carries, and only when one may be
// late: once in max_silence.
//
// Of successes, only that of a run with targets reads its definition. The body of such a run is
// marked, by a blank behind its arguments, which the process writes that makes the run. The fast
// path of finish reads one fact more for such a run, and leaves a recovery to the general path.
//
//	           TakeMail              MailSent
//	waiting ──────────────> taken ───────────────> sent
//	   ^                     │  │
//	   └─── lease over ──────┘  │ MailFailed
//	   └─── pause over ─────────┴───────────────> abandoned, in the audit, after [MailFor]
//
// Messages wait by target and job. A worker takes those that wait together, in their order, as one
// batch of at most [BatchMost], whose last message is noted: a batch that is taken again contains
// the same messages, and so has the same name for its receiver. After a batch, the next one waits
// for [MailPause], so that messages of that time are combined. A worker takes only what it can send
// to; it passes over the other targets, and abandons what has waited there for [MailFor].
//
//   - At most 10,000 messages wait, and 1,000 for one target. Further ones are counted, and the
//     next batch of the target brings their number into the audit. Several batches may bring it
//     along; the first of them that is recorded adds it.
//   - A worker that dies between taking and sending, or between sending and recording, leaves its
//     batch to the one that finds it when [MailLease] is over. In the second case the target gets
//     the batch twice, under one name.
//   - A lost reply of MailSent or MailFailed is not repeated: the lease ends, and the batch is sent
//     again. A late one changes nothing once another worker has reported the end of the batch.
//   - A loss of data loses the messages that were not sent yet, and the record of those that were.
//     An end that its worker re-asserts (see below) has its message again, sent or not, under the
//     same name, which contains the token of its attempt. So a target may receive the ends of the
//     last ten minutes twice. An end of which other workers only heard has no message then; or, if
//     Redis has gone back to a time at which the run was outstanding, one of its own, with an
//     earlier token or n in its name. That is the one case in which an end can have two names. A
//     job may be reported late once more, and its next success is a recovery only of what was told
//     since.
//   - A build of the same format that knows no messages leaves the runs of a job with targets to
//     others, since their definition has a key that it does not know. But it can request such a
//     run, and end one without running it: cancel it, or close the attempt of a worker that died.
//     These ends have no message. After a success that it records, the next one is the recovery.
//   - A build from before messages ignores the mark. It creates no ticks from a definition with
//     targets, and starts no run of it; but it may end one without a message (cancel, crash). The
//     requests that it records have no mark: their failures have messages, since such an end reads
//     the definition anyway, and their successes are no recoveries. Builds from before unknown keys
//     even execute such runs, without messages.
//
// # Final records
//
// A history may contain very many runs, and most of them are alike: one attempt, which succeeded,
// and no output. So a final record omits what follows from the rest of it:
//
//   - the bundle and the last hold, which are free, and the session and the start of the last
//     attempt, which the log has. In the place of the hold, there is the reference to the
//     definition;
//   - the empty fields at its end;
//   - the log, if it has a single attempt, which succeeded: the session of that attempt replaces
//     it. The record has the number and the token of the last attempt, and the start and the end of
//     the run, which are those of that attempt.
//
// The script that ends a run omits a log only if it is exactly the text that readers make of the
// session and the record. These readers are the decoder of this package, and the script that
// reopens a run, because the log of an outstanding run is always whole.
//
// The last two omissions are part of format 2, as are definitions by name. The script makes them if
// the body of the run names its definition: such a body was written in format 2, so no live session
// is of a build that can only read format 1. Otherwise it writes the fields and the log whole. Both
// layouts are always read.
//
// # How fast a queue flows
//
// Each worker counts the attempts that it begins, in memory, and sends the counts of its queues
// every few seconds ([Ledger.Began]). The same script takes a sample of a queue: how many runs are
// due, and how many attempts have begun. Two samples give the rate of what began, and with the
// growth of the due runs that of what came ([Ledger.Flows]). No script of a run counts anything: a
// command in each would cost more than all of this. The totals that asynq keeps do not show the
// flow of runs, since a run that a worker claims directly has no delivery there, and a delivery
// that finds no slot counts twice.
//
// The samples of a queue are one key, which expires a minute after the last worker has served the
// queue. So they never outlive what they describe, and an emptied Redis begins anew. A crash loses
// the counts of some seconds.
//
// # What happens when
//
//   - a worker dies between creating a run and delivering it: the push is not confirmed, and the
//     sweep repeats it. A push that the sweeping process itself still has pending is not repeated;
//   - a worker dies between fetching a delivery and claiming its run: the queue has the fetch on
//     record, and the sweep pushes the delivery again when the session has ended ([Ledger.Ended]);
//   - the queue loses a delivery: the look-ups find it ([Ledger.Sent]), and it is pushed again;
//   - a worker dies in an attempt, or loses its lease: its session ends, and [Ledger.Crash] makes
//     the run due again, or ends it. A worker that survives reports what it cut off
//     ([Ledger.LostLease]);
//   - a host dies each time that it runs a certain run: no parent is left to report a crash. After
//     [MaxLostLeases] in a row that no worker has confirmed, the run has failed. A lower bound
//     would end runs that meet some outages in which their workers are replaced, as in a rolling
//     restart of hosts; without a bound such a run would bring hosts down forever;
//   - a reply is lost: every call may be sent again, and its comment states the effect.
//
// # When Redis loses data
//
// A failover loses the last writes, a restart without persistence all of them. The lock space
// detects that and begins a grace period (see package locks), in which nothing is created or
// claimed, and each worker re-asserts what it remembers ([Ledger.Remember], [Ledger.Assert]), after
// its locks:
//
//   - cursors: the highest one wins, and a tick counts as one if the worker has started its run. If
//     a worker that never knew a job has registered it since, the job returns to its former cursor.
//     A job whose cursor in Redis is lower than that of its worker was carried in the meantime, so
//     it does not begin anew. A job that only other workers carried returns to its former cursor
//     as well, unless none has carried it for GoneAfter since: then it was removed;
//   - its own attempts, with their records: those that run, those at runs that wait for the next
//     attempt, and the ends of the last ten minutes, which are sent again as they were sent. So a
//     finish without a reply is also an end;
//   - ends of other workers' runs that it has learned from the news of its polls: of every tick,
//     and of requests that had more than one attempt;
//   - which runs of ticks are outstanding: the news report changes, and a worker that has just
//     started, or has missed news, reads the whole list in the background, in pages
//     ([Ledger.Mirror]): a poll costs the same however long the list is. Those runs become due
//     again, by the definition that the worker carries.
//
// A worker may assert late, after others have begun. Until it has asserted everything that it
// knows, it therefore learns nothing from Redis: its polls report no news, cursors that others have
// moved do not count, and no page of outstanding runs is read (lags in lib/news.lua). Otherwise it
// would forget what the others did not know. It asserts its attempts at outstanding runs, and the
// due runs that it has made itself in the last seconds, before its cursors, which say that their
// ticks are decided.
//
// In whatever order these facts arrive, the furthest wins: an end, then the attempt with the
// highest token, then a due run. For what no live worker knew, each job gets one line in its
// history (lost). A worker that comes when the grace period is over is refused; its session then
// ends, too.
//
// A session is not renewed before its worker has asserted what it knows, and a fleet may have ended
// more runs in ten minutes than Redis can write in one grace period. So a worker first asserts what
// happened last: what runs, the last 300 ends of its own attempts, and the last 1,000 of which it
// has heard. It looks up which ends Redis has kept, which after a failover are nearly all, and
// asserts the others; an end that is older than a full history is none of them, unless its run is
// still outstanding. Older ends follow while the worker works on ([Ledger.AssertMore]), until the
// grace period is over.
//
// # What is not promised
//
//   - That runs of different jobs start in the order in which they became due: waits are ordered by
//     when they began, and queues have weights.
//   - That a finished run can be read forever: the history is trimmed.
//   - That a request is adopted only once by a worker that pauses for more than a minute in the
//     middle of the adoption, if its lease is longer than that.
//   - That a request is adopted only once if its word is older than ten minutes, its first adoption
//     had no reply, and Redis has set its clock back in between.
//   - That a request with a generated id is adopted only once if its worker died before the queue
//     had ended it, the queue took longer than ten minutes to deliver it again, and the history had
//     dropped its run by then.
//   - After a loss of data: requests that no worker had started, requests made by hand (pauses,
//     spans to skip, the audit), outputs, ticks of jobs that no worker carried at the time, ticks
//     between the cursor and a trigger change at the same moment, and what happened in the last
//     second before the loss, if the process that knew it died too. Run Redis with persistence.
package ledger
