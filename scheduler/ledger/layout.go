package ledger

import "lockstep/locks/space"

// ownKeys are the keys of the ledger, which follow those of the lock space in KEYS. They are the
// same in every script, which names them in capitals: RUN is KEYS[10].
//
// A run's wait in the lock space is called +<run>, and its class there is the run's queue.
var ownKeys = []string{
	// HASH run -> its storedRun, outstanding runs only
	"run",
	// HASH run -> arguments (JSON), \31, and its definition: @ and its name, see defs; in format 1,
	// and if the run was made before format 2 was written, the definition itself (JSON). A blank
	// before the arguments of a request: they are those of the definition, and have ${...}. A blank
	// after the arguments: the definition has targets of messages
	"body",
	// HASH run -> its closed attempts, JSON objects joined by commas; of many, see close in
	// lib/attempt.lua, not all
	"log",
	// ZSET run, score = server ms at which a scheduled or retrying run becomes due
	"timer",
	// ZSET all scores 0: queue \0 due since (ms, 16 digits) \0 run. The due runs
	"ready",
	// ZSET run, score = server ms of its last n, or at which a process last had it to push; its
	// delivery is not confirmed yet
	"push",
	// ZSET run, score = server ms at which its delivery was last known to be in the queue
	"sent",
	// ZSET all scores 0: session \0 run. The running runs
	"busy",
	// ZSET all scores 0: job \0 tick (ms, 16 digits; zeros without one) \0 run. The outstanding
	// runs
	"open",
	// HASH job -> the last decided tick, server ms
	"cursor",
	// HASH job -> definition, JSON
	"def",
	// ZSET job, score = the revision at which its cursor last moved, or at which it was forgotten
	"rev",
	// HASH by field:
	//   - pauses:<queue>: the last pauses of a queue: from, "-", to or nothing, server ms,
	//     separated by blanks
	//   - rev: the last revision
	//   - duty: the session that creates and sweeps for all
	//   - looked: where the sweep continues to check running runs
	//   - config:<digest>: ms at which a worker with it last polled, or earlier when its workers
	//     have left it
	//   - was:<digest>: the true ms of that poll, after they left it, until all of its definitions
	//     are registered again
	//   - since:<digest>: ms since which one has polled without a long pause
	//   - carry:<session>: the digest it last polled with
	//   - order: the highest of definitions
	//   - dropped: ms at which a registration last dropped a definition, or a config of one
	//   - leaves: how many configs were left
	//   - unfit: the session on duty, if some of its definitions have drifted
	//   - ends: ms at which the key ends was last completed
	"ledger",
	// ZSET of what is remembered:
	//   - run, score = server ms until which the id of a request is remembered
	//   - \0 and the word of an adopted request, score = server ms until which that is remembered
	//   - \1 and a job that was forgotten, score = server ms of that + 7 days
	//   - \2 and a job without a definition if a worker has re-asserted its cursor, score = server
	//     ms of that + 7 days
	"ids",
	// ZSET run, score = server ms after which it must not start, or has waited long enough for its
	// bundle
	"late",
	// ZSET all scores 0: session \0 run. The runs that a worker must stop; with no run: all, it
	// must drain
	"ask",
	// HASH by the first letter of the field, then the job:
	//   - g<job>: ms from which its silence counts: s<ms> its last success, r<ms> it never had one
	//   - p<job>: the actor and the reason of its pause
	//   - v<job>: the hash of its active definition, then a storedCarried for each that is carried;
	//     joined by \31
	//   - s<job>: spans of ticks to skip: from, to (ms), actor and reason; joined by \30, and by
	//     \31
	//   - n<job>: what its next success recovers from: the g<job> for which it was reported late,
	//     or nothing, then the targets that have received a message since its last success and want
	//     to know of the next one; joined by \30
	//   - m<job>: its absence: no worker carried it, it has begun anew, and the ticks up to then
	//     have no line yet. Its last cursor before, the one that it began anew with (ms), and the
	//     trigger before; joined by \30
	//   - a<run>, the first run of an adopted id that was used again, for as long as that is in
	//     ids: how many runs that id has had, and the words of its last requests; joined by \30
	"facts",
	// STREAM the acts of people: fields e, a JSON object, n, how many times, and f, ms of the first
	// of them
	"audit",
	// STREAM which runs became outstanding or ended: fields r, the run, and s, its final state or
	// ""
	"news",
	// ZSET all scores 0: session \0 run. The runs that crashed when the process of the session
	// died, and may have caused that. While attempts of that session are still to be closed, also
	//   - !session: its process has died
	//   - ?session \0 run: a run that was suspected before that death
	"died",
	// ZSET all scores 0: queue \0 what the run needs \0 due since (ms, 16 digits) \0 run. Due runs
	// that were set aside, because the worker with the delivery cannot do them. They have no
	// delivery until a worker that can do them picks them. The entry goes with the run. Where a
	// queue has more than 64 needs, one may remain of a run that is no longer due, or that is due
	// since later or in another queue; pick.lua removes it
	"aside",
	// HASH the definitions that bodies name, or that histories keep (see made), each once: @<name>
	// -> the definition (JSON), #<name> -> how many bodies name it. A name is a hash of the text,
	// with its signature; the process that sends the text computes it.
	//
	// A script that writes a body adds 1 to the number of bodies that name its definition, and the
	// text if it is missing. The script that removes the body subtracts 1. With the last of them it
	// removes the text, unless the history of the job keeps it. So defs has a text for as long as
	// an outstanding run names it, or a history keeps it. embody and disembody (lib/body.lua) do
	// that, and the fast paths of enqueue and finish.
	"defs",
	// HASH of counts that only grow, see "Totals" in doc.go. The parts of a field are joined by
	// \31:
	//   - r, outcome, trigger, job: runs that ended. A success also counts as that of an attempt;
	//     with the outcome late it does not: its attempt was counted with another one before
	//   - t, outcome, job: ticks that ended without a run
	//   - a, outcome, job: attempts that ended in another way than by success
	//   - since: server ms at which a poll first found no such field
	"totals",
	// ZSET all scores 0: target \0 job \0 number (16 digits) \0 a storedMessage. The messages that
	// were not sent yet, in their order. The job is empty for messages that concern none
	"mail",
	// ZSET target \0 job, score = server ms from which its messages may be sent. Every target and
	// job with a message in mail is a member
	"post",
	// HASH by field:
	//   - number: that of the last message
	//   - batch:<target> \0 <job>: a storedBatch, while some of its messages are being sent, or
	//     wait for another try
	//   - sent:<target>, unsent:<target>: how many of its messages were sent, and how many could
	//     not be sent and are in the audit
	//   - dropped:<target>: how many were not stored, since too many were waiting
	//   - silent:<target>: how many of these the audit does not have yet
	//   - error:<target>: ms of its last failure and the error, joined by \31, until a message is
	//     sent
	"mailed",
	// ZSET job, score = minus server ms of the last end in its history, or of a later one: see
	// [Ledger.EndedJobs]. A build from before it does not write it
	"ends",
}

// historyKeys come next, in scripts that can end a run: those of its job. Last, in a call with an
// entry for the audit, comes acts, a HASH: actor, act and object (a digest) -> its last entry in
// audit, n, f; joined by \31.
var historyKeys = []string{
	// HASH run -> its storedFinal
	"hist",
	// ZSET run, score = server ms of its end
	"done",
	// HASH run -> the ends of its attempts' outputs: that of the last attempt that has printed
	// something, \255 and the number of that attempt, and so on for those before it, joined by
	// \255. Outputs are UTF-8, which has no byte \255. One output without a number is that of the
	// last attempt: of the only one, if it succeeded, or of any in an older build, which kept no
	// others, and shows all of a value
	"output",
	// ZSET the name of a definition, score = server ms of its last use: those that the history of
	// the job keeps, see "Definitions of finished runs" in doc.go
	"made",
}

// liveKey and a run is the key of what the attempts at the run print while a client follows it: see
// [Ledger.Follow]. It comes last in the scripts follow and pass. Only this key and flowKey have a
// time to live, since losing them costs nothing. HASH by field:
//   - until: server ms until which a client follows the run; the key expires some seconds later
//   - token: of the attempt that passes its output on; missing when a new client needs it from the
//     tail on
//   - first: the number of the entry that begins with that tail
//   - asked: server ms at which the worker was last asked to
//   - n: the number of the last entry
//   - e0 to e31: the last entries, n in that of n % 32: its number, the attempt, where the text
//     begins and ends in the output of the attempt, 1 if that ends there, else 0, the text; joined
//     by \31
const liveKey = "live:"

// flowKey and a queue is the key of the flow of the queue: see [Ledger.Began]. It comes last in the
// script flow. It expires when no worker serves the queue, since losing it costs nothing. STRING:
// how many attempts the workers have begun at runs of the queue, then the samples of the last
// minute, the oldest first, joined by \31. A sample is server ms, how many runs were due, and how
// many attempts had begun by then, separated by blanks.
const flowKey = "flow:"

// childrenKey is the key of the runs that others were made from. It comes last, or before acts, in
// a call that names a parent. HASH by field:
//   - the id of a run: server ms at which the run was made, how many runs were made from it, and
//     the first 20 of them; joined by \31
//   - #: how many runs have made a first one
//   - #<n>: the n-th of these runs. Only the last 10,000 of them are kept
const childrenKey = "children"

// listsKey is the key of the atomic lists that are staged: see "Lists of requests" in doc.go. It
// comes before the histories of kinds, or last. HASH by field:
//   - l:<name of a list>: a stagedList (gob)
//   - n:<name of a list>: server ms at which it was staged, a blank, and how many of its requests
//     are recorded
const listsKey = "lists"

// storedRun is a value of the key run, its fields joined by \31. The tag new is what a new run has.
// Times are server milliseconds. A field without a value is empty.
type storedRun struct {
	State string `new:"due"` // a [State]
	// N is the number of its last delivery. Each transition to due, and each out of it, increments
	// it.
	N       string `new:"0"`
	Job     string
	Queue   string
	Trigger string // a [Trigger]
	Tick    string
	Created string
	Since   string // when it first became due

	// The last attempt. A final record has neither Session nor Started.
	Token string `new:"0"`
	// Holder is its hold. A final record has here the first 6 characters of the name of the
	// definition that its body named. One of an early build has the hold, which contains a dot.
	Holder  string
	Session string // of its worker
	Attempt string `new:"0"` // its number
	Started string

	First    string // when the first attempt began
	Fails    string `new:"0"` // attempts that failed
	Crashes  string `new:"0"` // attempts that crashed
	Reason   string // of its state, see [Record]
	Finished string
	Closed   string // 1: the last attempt has ended, and is in the log
	At       string // when it becomes due, if it is scheduled or retrying
	// By is the session of the worker that decided the tick; of a run without a tick, the run from
	// which it was made, and after it, if the request had one, a blank and its trace context: the
	// traceparent, and after another blank the tracestate, if it is not empty. A build from before
	// that shows all of it as the run or the session.
	By    string
	Upto  string // the last tick of a line for a range of ticks
	Waits string // 1: it has a wait in the lock space

	Serial   string // 1: its bundle has the lock of its job, so ticks start in their order
	Deadline string // when it must not start for the first time any more
	Patience string // for how many ms it waits for its bundle
	OnBusy   string // what happens to it then
	WaitBy   string // when that is over
	Waited   string // when it first went to wait
	Blocker  string // what was in its way then, a storedBlocker
	Stop     string // why it was asked to stop
	Limits   string // of its holds, as of a [space.StoredHold]
	// Items are the bundle of its attempts, as of a hold. A final record has none.
	Items string
}

// storedFinal is a value of a key hist, its fields joined by \29. See "Final records" in doc.go for
// what it omits.
type storedFinal struct {
	Run string // a storedRun
	// Log is as a value of the key log; or @ and the session of the only attempt, which succeeded.
	Log  string
	Args string // JSON
}

// storedBlocker is what was in the way of a run, its fields joined by \30.
type storedBlocker struct {
	Resource string
	Session  string // of the holder; empty for a reservation
	ID       string // of the hold or the wait
	Info     string // of the hold or the wait, JSON
	Token    string `new:"0"` // of the hold
	Since    string // ms, of the hold or the wait
}

// storedCarried is one of the carried definitions of a job in the key facts, its fields joined by
// \30.
type storedCarried struct {
	Hash    string
	Order   string // of its first registration, a number; older builds count from 1
	Trigger string
	Configs string // the digests of the configs with it, joined by commas
}

// storedMessage is a message to a target, its fields joined by \31.
type storedMessage struct {
	ID      string // the same for each target
	Event   string // a [jobs.Event]
	At      string // when it was stored, server ms
	Run     string // empty for a message about a job or a worker
	Trigger string
	Tick    string
	Upto    string
	Attempt string // of the run's last attempt
	Started string // when the first one began
	Fails   string
	Crashes string
	Worker  string // the session of the last attempt, or the worker
	Reason  string // of the end; or what a late job or a worker has to say
	Error   string // of the last attempt, as JSON, perhaps followed by more of its entry in the log
}

// storedBatch is what one request to a target contains, its fields joined by \31.
type storedBatch struct {
	Upto  string // the number of the last message in it
	Tries string `new:"0"` // requests that have failed
}

// The layouts of the records above: R_STATE, F_LOG, B_RESOURCE, C_HASH, M_EVENT, P_UPTO.
var (
	runLayout     = space.RecordOf[storedRun]("R", 31)
	finalLayout   = space.RecordOf[storedFinal]("F", 29)
	blockerLayout = space.RecordOf[storedBlocker]("B", 30)
	carriedLayout = space.RecordOf[storedCarried]("C", 30)
	messageLayout = space.RecordOf[storedMessage]("M", 31)
	batchLayout   = space.RecordOf[storedBatch]("P", 31)
)

// expand replaces what a text of Lua names of the records. The text of a final record may name
// those of its run.
func expand(text string) string {
	for _, layout := range []interface{ Expand(string) string }{runLayout, blockerLayout, carriedLayout, finalLayout, messageLayout, batchLayout} {
		text = layout.Expand(text)
	}
	return text
}
