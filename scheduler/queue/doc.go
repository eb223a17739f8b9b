// Package queue carries deliveries over asynq. No other package uses asynq.
//
// # The problem
//
// A due run must reach a free worker soon, by the weight of its queue, and not while that queue is
// paused. asynq does that well, but it does not remember what happened. After a lost
// acknowledgement it runs a task again a minute later. The late acknowledgement of a stalled server
// deletes the task that another server is running. An ID remains blocked while a hash is left over.
// At every deadline asynq abandons a handler instead of waiting for it. So nothing here depends on
// the fate of an asynq task. The task only delivers a [ledger.Due], a message that says "this run
// may be runnable". It may come late, twice or never. Only the ledger knows whether the run must
// still be done, and it accepts the claim of a delivery only while its N is the run's current one.
//
// # A delivery
//
//	Client.Push ──> pending ──> fetched, which also ends it ──> Handle
//	                   ^                        │
//	                   └── only when the worker ┘ is stopping at this moment
//
// Its properties:
//
//   - Its task type is our own, [TaskType], and its payload is {namespace, run, n}.
//   - Its asynq ID is "namespace:run#n". Every transition of the run into due increments n, so no
//     ID is ever reused, and a conflict can only mean that the delivery already exists. That is
//     not an error.
//   - MaxRetry is a million and the deadline is the year 2200, because asynq archives a task
//     without retries left, and gives a task without a timeout, or with a timeout of zero, 30
//     minutes. A delivery has no Retention and no Unique: the first would only add a window for ID
//     conflicts, and the second is a lock with a time limit.
//   - It ends when it is fetched. The script that fetches it deletes it, because nothing depends
//     on it anymore. The same script records it as fetched by the session of the worker until the
//     worker has handled it. If the worker dies before that, [Client.Fetched] still returns it.
//   - [Options].Handle claims the run in the ledger, starts the attempt in another goroutine, and
//     returns. An attempt never runs inside an asynq handler, because a lost heartbeat, a
//     cancellation or a shutdown would abandon it there.
//
// Push sends many deliveries in one round trip, although asynq has no such call. A [recorder]
// records the script call with which asynq's client would enqueue each task, and these calls are
// sent together. So only asynq needs to know the format of a task.
//
// # Foreign tasks
//
// A queue belongs to asynq, and its name is the one in the configuration, so plain asynq clients
// and asynq's tools can reach it. A task of another type is a [Request]. If [Options].Adopt knows
// it, Adopt records it elsewhere and the task ends. The options that its sender gave to asynq
// (timeout, retries, retention) then have no effect. An ID alone does not show that a task was here
// before, because it can be reused as soon as asynq has forgotten it. Two things do: asynq's count
// of its tries, and a random word ([Request].Word). The script that takes a task for the first time
// writes the word, and the time, into the hash of the task. asynq leaves that field alone, and
// deletes it with the task. A task that was counted before it had a word gets none, because an
// earlier build may have adopted it. asynq recovers a task that was perhaps adopted as it does for
// a dead worker: within three minutes, counted, because our servers treat an expired lease as a
// failure.
//
// The trace context in the headers of a task comes along ([Request].Trace). A task whose deadline
// has passed comes as [Request].Late. The server's clock decides about that, and about the first
// end of a lease, so a worker with a wrong clock fails no task.
//
// Tasks come in batches too: one script fetches up to [fetchMost], while a slot is free, and makes
// them active with a lease, as asynq's own script does for one task. Adopt takes all of them, and
// the slots of the fetch for their runs. Another script ends them as asynq does: with retention
// they are kept as completed, and unique locks are released. If the worker dies in between, the
// tasks are active, and asynq recovers them. A fetcher waits for an adoption, but not for long. At
// most two of its adoptions take longer, so few tasks can be in doubt.
//
// A task that this worker does not know goes back after [foreignDelay]. It is not counted, archived
// or ended, whatever its own limits say, because it may belong to another program that serves this
// queue. A delivery of another namespace, or a delivery that cannot be decoded, is ended and
// logged. It can only be a mistake, because a queue belongs to one namespace: [Client.Own]
// registers it in Redis, in a hash beside asynq's keys. That hash guards only against accidents,
// because every namespace of a Redis can write to it. So a worker refuses to start with a queue of
// another namespace. But it continues to serve a queue that changes its owner later, and raises an
// alarm ([Options].Disputed).
//
// # Fetching
//
// An asynq server fetches one task per round trip. By itself it would poll an empty queue, fetch
// tasks for which no slot is free, and retry an unreachable Redis without a pause. It therefore
// gets a Redis client that intercepts its commands. When asynq is about to fetch from a queue that
// it has chosen by weight, our script takes deliveries from the head of that queue: as many as
// slots are free, up to [fetchMost]; or foreign tasks. asynq itself finds nothing. A [Server] runs
// several asynq servers, so that one fetch does not wait for the reply to another. Of these, only
// one runs while the queues are empty. Their client lets a fetch pass only when
//
//   - the queues are known to belong to this namespace;
//   - it is time: all fetchers together poll an idle queue once per [Options].PollInterval on
//     average, and when a push wakes them. As soon as one finds something, all of them continue
//     without waiting. After an error they pause for [errorPause];
//   - a slot is free, as defined by [Options].Slots. A poll of an idle queue takes one slot, and
//     other fetches take all free ones. Handle receives the slots with the deliveries. So a busy
//     worker keeps nothing from an idle one, unless its Slots say that they are free again soon;
//   - the worker can start runs, as [Options].Ready reports. If it cannot, they pause as after an
//     error.
//
// # Waking
//
// A poll each second is cheap, and too slow for a run that was requested just now. So a fetch that
// finds a queue empty, or paused, records the session as asleep in the same step. The next push
// wakes as many sleeping workers as it has deliveries, those that fell asleep last, by a message to
// their sessions ([NoticePushed], [Server.Wake]), and removes them from the record. A worker that
// takes deliveries is not asleep. One whose slots were filled in another way passes the message on,
// so that none goes to a busy worker while another one is idle. One that finds nothing after all
// sleeps again. A message that is lost costs the time until the next poll of any idle worker: 1.5 s
// at most with [DefaultPollInterval], since the pauses between the polls of a worker are 0.5 s to
// 1.5 s. That also holds for tasks of plain asynq clients, which wake no worker, as in asynq
// itself. A worker that dies stays in the record for three polls; a message to it is lost in the
// same way.
//
// # What happens when
//
//   - Redis is unreachable: fetches fail at a slow pace and then resume. [Client.Push] fails and
//     returns the deliveries that did arrive. The sweep pushes the others again.
//   - A reply is lost. Our Redis clients send every command once (MaxRetries -1), and asynq does
//     not resend commands either. If the reply to a fetch is lost, so are its deliveries: the
//     worker removes their record with its next fetch from the queue, or after [recordsInterval],
//     and Alive reports them as lost from then on. If Redis executes the fetch only after that,
//     since a connection has stalled, Alive reports it after [inHandMost]. If the reply to a push
//     is lost, the delivery exists: the next push of that n finds it, or the next n makes it
//     obsolete. Foreign tasks stay active, and asynq recovers them. A delivery is active only if a
//     server of another program has fetched it: Alive reports it as lost after [nobodyAfter], and
//     the ledger drops it when it comes again.
//   - A worker dies with a fetched delivery: the record of its fetch survives. The sweep reads the
//     records of all sessions twice a second and when it is woken, pushes the deliveries of an
//     ended session again, and removes the records. Workers of earlier builds keep no such record;
//     Alive finds the deliveries that they lose.
//   - Redis is emptied (FLUSHALL, a restart without data). Deliveries are lost, and Alive reports
//     that. asynq's client does not announce its queues again, and asynq's tools then report "queue
//     not found". Push and the running server announce them.
//   - A worker stops: it begins no fetch, returns deliveries that it fetched at this very moment,
//     and waits for Handle.
//
// # Not promised
//
// No order within a queue, no exact weights, and no delivery at all: a caller of Push must keep a
// record from which it can push again. asynq itself archives a foreign task without retries left if
// a crash interrupted its fetch, even if it was adopted. So a plain client should give its tasks
// some retries. If a server of another program recovers one of our tasks, and does not count an
// expired lease as a failure, the task arrives uncounted: only its word shows that it was here.
package queue
