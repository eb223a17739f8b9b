// Package queue carries deliveries over asynq, and is the only package that knows asynq.
//
// # The problem
//
// A run that is due must reach a worker that is free, soon, by weight of its queue, and not while that queue is paused.
// asynq does that well. What it does not do is remember what happened: an acknowledgement that gets lost runs a task
// again a minute later, a stalled server's late one deletes the task that another server is running, ids block for as
// long as a hash is left over, and a handler is abandoned, not waited for, at every deadline. So nothing here rests on
// the fate of an asynq task. What is sent is a [Delivery]: the words "this run may be runnable". It may come late, twice
// or never; the ledger alone knows whether the run is still to do.
//
// # A delivery
//
//		Client.Push ──> pending ──> fetched, and ended by that ──> Handle
//		                   ^                        │
//		                   └── only when the worker ┘ stops in this moment
//
//	  - It has one task type of our own, [TaskType], and the payload {namespace, run, n}.
//	  - Its asynq id is "namespace:run#n". Whoever makes a run due takes the next n, so that no id is ever used again and a
//	    conflict can only mean "already there". It is not an error.
//	  - MaxRetry is a million and the deadline the year 2200: to asynq a task without retries left is one to archive, and
//	    no timeout, or a timeout of zero, means 30 minutes. There is no Retention and no Unique: the one is only a window
//	    for id conflicts, the other a lock with a time limit.
//	  - It ends with its fetch: the script that takes it deletes it, since nothing rests on it from then on. The same script
//	    puts it on record as fetched by the session of the worker, until the worker has handled it. When the worker dies
//	    before that, [Client.Fetched] still has it.
//	  - [Options].Handle claims the run in the ledger, starts the attempt in a goroutine of its own and returns: an attempt
//	    never runs inside an asynq handler, where a lost heartbeat, a cancellation or a shutdown would leave it behind.
//
// Pushing sends many deliveries in one round trip, though asynq knows no such call: its client writes each task down for
// us, as the script that would enqueue it, and these scripts go out together. So what a task looks like stays asynq's
// business.
//
// # Tasks that are not ours
//
// A queue is asynq's and its name is as the configuration has it, so plain asynq clients reach it, and so do asynq's
// tools. A task of another type is a [Request], and [Options].Adopt says whether it is one that we know: then it is
// recorded elsewhere and the task ended, and nothing of what its sender asked asynq for (its timeout, its retries, how
// long it is kept) has a meaning any more. asynq's count of its tries is the only mark that it has been here before: an
// id alone can be used again as soon as asynq has forgotten it. So a task whose adoption is in doubt goes back counted,
// and so does one that asynq recovers from a dead worker, since our servers call an expired lease a failure.
//
// A task that nobody here knows goes back after [foreignDelay], uncounted, never archived and never ended, whatever its
// own limits say: it may belong to a program that looks at this queue too. A delivery of another namespace, or one of
// our type that cannot be read, is ended with a line in the log; that can only be a mistake, since a queue belongs to
// one namespace: [Client.Own] registers it in Redis, in a hash beside asynq's keys. That hash guards against accidents only,
// since every namespace of a Redis may write to it. So a worker refuses to start with a queue of another namespace, but keeps
// serving a queue that changes its owner later, and raises an alarm ([Options].Disputed).
//
// # Fetching
//
// An asynq server fetches one task per round trip. It would poll an empty queue on its own, would fetch what nobody here
// has a slot for, and would hammer a Redis that is away without a pause. It is therefore given a client that comes between:
// where asynq is about to fetch from a queue that it has chosen by weight, a script of ours takes what is ours from the head
// of that queue, as many deliveries as there are free slots, up to [fetchMost]. asynq's own script follows only when a task
// that is not ours stands at the head. A [Server] runs several asynq servers, so that one fetch does not wait for the
// answer of another. Their client lets a fetch pass only when
//
//   - the queues are known to belong to this namespace,
//   - it is time: all fetchers together poll an idle queue once per [Options].PollInterval, and as soon as one finds
//     something they all go on without waiting; after an error they rest for [errorPause],
//   - a slot is free, when [Options].Slots says what that is. A look at an idle queue takes one slot, others as many as
//     there are. They go to Handle together with the deliveries. A busy worker so keeps nothing from an idle one.
//
// # What happens when
//
//   - Redis is away: fetching goes on failing at a gentle pace and resumes by itself. [Client.Push] fails, and says which
//     deliveries did arrive; the sweep pushes the others again.
//   - A reply is lost. Our Redis clients send every command once (MaxRetries -1), and asynq does not send one again by
//     itself. A lost reply to a fetch loses what it has taken: Alive says so after [inHandMost]. One to a push leaves a delivery that is
//     there: the next push of that n meets it, or the next n makes it a leftover. What asynq's own script has fetched stays
//     "active" then, and Alive says that it is nobody's after [nobodyAfter]; asynq brings it again after one or two minutes,
//     and the ledger drops it.
//   - A worker dies with a delivery in hand: the record of its fetch outlives it. The sweep reads the records of all
//     sessions twice a second and when it is woken, pushes what an ended session had in hand, and removes the records.
//     Workers of earlier builds keep no such record; what they lose, Alive finds.
//   - Redis is emptied (FLUSHALL, a restart without data). Deliveries are gone; Alive says so. asynq's client does not
//     announce its queues again, and its tools then say "queue not found": Push and the running server announce them.
//   - A worker stops: no fetch is begun, what was fetched in this very moment goes back, Handle is waited for.
//
// # Not promised
//
// No order within a queue, no exactness of weights, no delivery at all: those who push keep the record from which they
// can push again. A task of somebody else that has no retries left and whose fetch was hit by a crash is archived by
// asynq itself, whether or not it was adopted by then; so a plain client had better leave its tasks some retries. And when
// another program's server, which calls an expired lease no failure, recovers a task of ours, it comes as a new one.
package queue
