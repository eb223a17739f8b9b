// Package scheduler decides when a run is made, and ensures that none is forgotten. Its folders do
// the rest: cronspec computes ticks, ledger records them, queue carries deliveries, worker does the
// work, notify sends messages about it, admin shows it.
//
// # Ticks
//
// Every worker knows every job and its cursor, the last decided tick. It computes next(cursor),
// never next(now): a tick that came while no worker was up is then simply an undecided tick, and
// the job's policy determines whether it runs. A [Scheduler] keeps an alarm for the next tick of
// each job. When an alarm goes off, the scheduler submits the ticks since the cursor to the ledger,
// which accepts them only if its cursor is still the one that they were computed from: the first
// worker decides, and the others learn from the reply how far it decided.
//
// The way of a tick through the code: [Scheduler.Run] waits for the next of its alarms (alarms.go
// keeps their order). Its method create decides what becomes of the ticks (decide.go), and records
// them by [ledger.Ledger.Create] and the script create.lua. Options.Deliver is a method of the
// worker: it claims the new runs at once, or pushes their deliveries.
//
// So that the workers do not all submit at once, one of them has duty: it creates at the tick,
// while the others read once a second whose cursor has moved, and create the ticks that are still
// undecided [overdue] after their time. Duty affects only speed and the number of commands. It
// passes on when its holder's session has ended, or when the holder has not polled for a second.
//
// Alarms follow the server's time: the time in the last poll plus the time since. A worker whose
// clock is ten minutes off fires at the right moment.
//
// # Definitions
//
// A worker creates the ticks of a job only while its definition is the active one (see the ledger);
// every poll reports changes of that. A drifted worker asks every five seconds whether its
// definition is active again. A worker that activates a definition with another trigger first
// decides the ticks up to now by the old one. A worker that was absent for so long that the ledger
// may have dropped some of its definitions registers all of them again.
//
// The number of definitions does not delay ticks: definitions are registered, and those with
// another trigger activated, in batches, with polls and ticks in between. Definitions of a job that
// has a tick soon by the old trigger go first.
//
// A job that returns after no worker carried it begins anew, and its registration brings the time
// in which it was absent. The scheduler counts the ticks of that time by the old trigger and has
// one line written for them. It keeps absences until that has succeeded, and does so after all
// registrations and changes, some absences at a time.
//
// [Scheduler.SetJobs] is a deploy of one worker: the new set is registered whole, under its own
// digest, before it replaces the old one, whose digest this worker then no longer carries. A worker
// that drains meanwhile leaves both.
//
// # The sweep
//
// The worker on duty also repairs faults. It repeats pushes that were not confirmed, looks up
// deliveries in their queues, pushes again what a session had fetched when it ended, makes
// scheduled and retrying runs due, picks up the bundles that the lock space has offered to waiting
// runs, closes the attempts of workers without a session, and ends runs that must not start
// any more or have waited too long for their locks. It does so twice a second, and at once when the
// lock space wakes it: when a run was offered its bundle, and when a parent process has ended the
// session of its worker. If no worker with duty is left then, the worker that is woken sweeps.
//
// Any number of runs may become due at one instant. The pusher of a worker keeps a bounded number
// of deliveries, one per run and the newest one, and the sweep makes no more runs due than the
// pusher has room for; the others stay where they are until the next sweep. A push gets a new n
// only when it was not confirmed in time and this process does not still have it pending: a new n
// makes the delivery under the old one stale, so a sweep that is faster than the pusher would
// otherwise make all deliveries stale before they are pushed.
//
// Confirmed deliveries are looked up in pages, the oldest first: all of them every two seconds
// while they are few, and a larger backlog within a minute, so that look-ups take a small and
// constant part of Redis' time. They need not find what a dead worker had fetched, since that is on
// record (see package queue).
//
// Once a second the worker on duty compares the paused queues with the lock space's copy of the
// pause flags, since other tools also pause queues: the runs of a paused queue are offered no
// locks.
//
// # Not promised
//
// A tick may be decided late: by some milliseconds by the worker on duty, by up to a second and a
// half when that worker has just died. Its record has the delay.
package scheduler
