// Package jobs says what can run: the definition of a job, the work behind it, and what an attempt is told and may
// answer. When it runs, and that it runs once, is the business of the scheduler.
//
// # Which name to reach for
//
// A program with its own Go code makes one [Registry], adds its handlers with [Handle] and gives it to cmd.Main. It
// opens what they need in [Registry.OnStart], which is called in the process that runs them, and in no other. A
// handler reads what it needs from its [Run] and answers with an error: see [Permanent] and [RetryAfter]. Jobs that
// need no Go code are done by [lockstep/jobs/command] and [lockstep/jobs/http].
//
// # An attempt
//
// A worker holds the locks of the run (see [Job.Resources]) before it calls [Executor.Execute], and until it has
// returned. So an executor has one duty above all others: when Execute returns, nothing of the work may go on.
//
//	Execute returns                       the worker records
//	nil                                   succeeded
//	an error made with Permanent          failed, for good
//	an error made with RetryAfter         failed attempt; the next one after that pause
//	any other error, and a panic          failed attempt; the next one after Retry.Delay
//	an error after ctx ended              what context.Cause(ctx) says, see below
//
// ctx ends with a cause: [ErrTimeout] (a failed attempt), [ErrDrain] (handed back, nothing is counted) or
// locks.ErrLost (the lease could not be kept: another worker may soon hold the locks). An executor lets the cause
// show in the error that it returns, also where the code below it says only "context canceled".
//
// # What a handler is told
//
// Two facts let the effect of a run be guarded where it happens, however often a network or a crash makes it be tried:
//
//   - [Run.IdempotencyKey] stays the same over all attempts of a run and belongs to no other run.
//   - [Run.Token] grows with every grant of the locks. Whoever keeps the highest one seen and refuses a lower one is
//     safe from a worker that was paused in the middle of a write and wakes up later.
//
// # Secrets
//
// A definition holds ${...}; the values that replace them exist only in the memory of the worker that runs an attempt
// ([Secret]). A command may print them (set -x), and a server may echo them. So all that an attempt prints, and the error
// it ends with, pass through a [Redactor], which puts the ${...} back, before they are shortened, stored or logged.
//
// # Lock keys
//
// A job may lock what its arguments name: "bill:{bill_ids[*]}" is one key for each element of that list. [ParseKey]
// has the rules.
//
// # What is not promised
//
// A Go handler that ignores its context cannot be stopped: it keeps its slot, and once the lease is over only the
// token keeps its writes out. Code that must be stoppable belongs into a command, which can be killed.
package jobs
