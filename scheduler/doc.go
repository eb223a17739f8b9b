// Package scheduler says when a run is made, and that none is forgotten. Its folders do the rest: cronspec computes
// ticks, ledger records them, queue carries deliveries, worker does the work, admin shows it.
//
// # Ticks
//
// Every worker knows every job and its cursor, the last tick that was decided. It computes next(cursor), never
// next(now): a tick that came while nobody was there is then simply a tick that is still to decide, and the job's
// policy says whether it runs. A [Scheduler] keeps an alarm for the next tick of each job. When it goes off, the ticks
// since the cursor are put to the ledger, which takes them only from the cursor they were computed from: whoever comes
// first decides, and to the others it says how far that was.
//
// So that not all come at once, one worker has duty: it creates at the tick, while the others read once a second whose
// cursor has moved and create what is then still undecided though it came [overdue] ago. Nothing rests on duty but
// speed and the number of commands. It passes on when its holder's session has ended, or when it has not asked for a
// second.
//
// Alarms go by the server's time: what the last poll said and what has passed since. A worker whose clock is ten
// minutes off fires at the right moment.
//
// # Definitions
//
// A worker creates the ticks of a job only while its definition is the active one (see the ledger); it learns that with
// every poll. One that has drifted asks every five seconds whether it is active again. A worker whose definition is to
// become active with another trigger first decides the ticks up to now by the old one.
//
// However many definitions there are, ticks are not late for them: they are registered, and those with another trigger made
// active, in batches, with polls and ticks in between. Definitions whose job has a tick soon by the old trigger go first.
//
// [Scheduler.SetJobs] is a deploy of one worker: the new set is registered whole, under its own digest, before it takes
// the place of the old one, whose digest nobody may carry from then on.
//
// # The sweep
//
// The worker on duty also repairs what went wrong. It repeats pushes that were not confirmed, looks up deliveries in their
// queues, pushes again what a session had fetched when it ended, makes due what was scheduled or waits for its next attempt,
// picks up what the lock space has offered to waiting runs, closes the attempts of workers whose sessions have ended, and ends
// runs that may not start any more or have waited for their locks long enough. It does so twice a second, and at once when the
// lock space wakes it: when a run was offered its bundle, and when a parent process has ended the session of its worker. If no
// worker with duty is left then, the worker that is woken sweeps.
//
// Any number of runs may become due at one instant. A [Pusher] keeps a bounded number of deliveries, one per run and the newest
// one, and the sweep makes no more runs due than the pusher has room for; the others stay where they are until the next
// sweep. A push gets a new n only when it was not confirmed in time and this process does not still have it to do: a new n
// makes the delivery under the old one stale, so a sweep that is faster than the pusher would otherwise make all deliveries
// stale before they are pushed.
//
// Confirmed deliveries are looked up in pages, the oldest first: all of them each two seconds while they are few, and a
// larger backlog within a minute, so that look-ups take a small and constant part of Redis' time. They need not find what a
// dead worker had fetched, since that is on record (see package queue).
//
// Once a second it compares which queues are paused with what the lock space knows of it, since tools of others pause
// queues, too: the runs of a paused queue are offered no locks.
//
// # Not promised
//
// A tick may be decided late: by some milliseconds by who has duty, by up to a second and a half when that one has just
// died. How late it was stands in its record.
package scheduler
