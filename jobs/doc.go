// Package jobs defines what can run: the definition of a job, the work behind it, what an attempt
// receives, and what it may return. The scheduler decides when a job runs, and makes it run once.
//
// # Where to start
//
// A program with its own Go code makes one [Registry], adds its handlers with [Handle], and passes
// it to cmd.Main. It opens what the handlers need in [Registry.OnStart], which only the process
// that runs the handlers calls. A handler reads its input from its [Run] and reports its result as
// an error: see [Permanent] and [RetryAfter]. Jobs that need no Go code use [lockstep/jobs/command]
// and [lockstep/jobs/http].
//
// # An attempt
//
// A worker acquires the locks of a run (see [Job.Resources]) before it calls [Executor.Execute],
// and holds them until Execute has returned. So an executor has one duty above all others: when
// Execute returns, nothing of the work may still run.
//
//	Execute returns                       the worker records
//	nil                                   succeeded
//	an error made with Permanent          failed, without a retry
//	an error made with RetryAfter         failed attempt; the next one after that pause
//	any other error, and a panic          failed attempt; the next one after Retry.Delay
//	an error after ctx ended              depends on context.Cause(ctx), see below
//
// ctx ends with a cause: [ErrTimeout] (a failed attempt), [ErrDrain] (the run is handed back, and
// nothing is counted), [ErrCanceled] (the run is canceled), or locks.ErrLost (the worker could not
// keep the lease, and another worker may soon hold the locks). An executor includes the cause in
// the error that it returns, even if the code below it reports only "context canceled".
//
// ctx also carries the span of the attempt's work, so the instrumentation of the libraries that a
// handler uses continues its trace. In a worker that exports no spans, it is the span of the run's
// requester, if there was one.
//
// # Runs that lead to others
//
// A handler may ask for further runs. The ctx of a handler names its run ([RunOf]), and a request
// that is made with it has that run as its parent: views name each to the other. A second attempt
// asks again, so give each request an ID that follows from the arguments of the run: then it finds
// the run that the first attempt asked for. A command has its run in LOCKSTEP_RUN_ID, and an HTTP
// job in the header Lockstep-Run-Id; "lockstep enqueue" and the API read them there.
//
// # Effects that happen once
//
// A network error or a crash can repeat an attempt. Two facts let a handler guard its effects where
// they happen:
//
//   - [Run.IdempotencyKey] is the same for all attempts of a run and for no other run.
//   - [Run.Token] grows with every grant of the locks. A target that keeps the highest token it has
//     seen, and refuses a lower one, is safe from a worker that was paused in the middle of a write
//     and wakes up later.
//
// # Secrets
//
// A definition contains ${...}. The values that replace them exist only in the memory of the worker
// that runs an attempt ([Secret]). A command may print them (set -x), and a server may echo them.
// So the output of an attempt and its final error pass through a [Redactor], which puts the ${...}
// back, before they are shortened, stored or logged.
//
// # Lock keys
//
// A job can lock what its arguments name: "bill:{bill_ids[*]}" is one key for each element of that
// list. [ParseKey] has the rules.
//
// # What is not promised
//
// A worker cannot stop a Go handler that ignores its context: the handler keeps its slot, and after
// the lease has expired, only the token keeps its writes out. Code that must be stoppable belongs
// in a command, which the worker can kill.
package jobs
