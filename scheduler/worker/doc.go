// Package worker is one replica: it takes deliveries, holds the bundle of each run, does the attempt, and records how
// it ended. Call [New], then [Worker.Run] once; it returns when all it started has stopped.
//
// # The way of a run
//
//	due ──> free slot here, queue served and not paused? ──yes──> claim ──granted──> attempt ──> finish
//	          │ no                                                  ^                              │
//	          v                                                     │                              v
//	        pushed to its queue ──> fetched by whoever has a slot ──┘              what it freed is due
//
// A slot is taken before a delivery is fetched, and kept for the claim and the attempt. Direct claims, of runs that this
// worker made due itself, share the slots and go last: never before a run that has been due for longer in a queue of
// the same or a higher weight, and has never crashed.
//
// What one fetch brings is claimed together, and attempts that end while another end is being sent are ended together:
// each in one script, as far as the runs are plain. So a job costs a fraction of a round trip when there are many, and
// three when there is one.
//
// # Requests of plain asynq clients
//
// A task in one of the queues whose type is the name of a job here becomes a run of that job, and the task ends: see
// [ledger.Ledger.Adopt]. What its sender asked asynq for ends with it; the job's policies hold. The run stays in the queue
// that the task came by, and its definition is the active one, which a worker that has drifted asks the ledger for. An
// adoption that is not answered is sent again until it is, or until the session has ended: then somebody else may have
// been given the task, and this worker says nothing more about it.
//
// # Suspects
//
// A run that has crashed before may be what kills its workers. A worker has one place for such a run, beside the slot
// that it takes as well: a second one is put off, offered to all workers again after a pause. So what a poison run has
// taken down with it, it does not take down again.
//
// The place is free again when the attempt ends, however it ends, and already when a run has run for longer than its
// crashed attempts did. Then the next suspect may start beside it. A run starts or leaves the place like that only after
// its first crash, and only if a second one does not end it. So two suspects crash together once more at most: after that
// each of them runs without other suspects. A run that has crashed once, and had an attempt since that ended in another way,
// is no suspect any more; after a second crash it stays one.
//
// # Doubt
//
// A claim that is not answered may have been granted. It is sent again under the same hold id until it is answered or
// the session has ended, and its slot is kept so long; it is never given up. A finish is sent again until it is
// answered; one that is not a success ends with its hold, because then the sweep counts the attempt.
//
// # The end of an attempt
//
// The context of an attempt ends, with a cause, when the lease is about to run out (locks.ErrLost), when the job's
// timeout is over (jobs.ErrTimeout), when the run is canceled (jobs.ErrCanceled), or when a drain has lasted too long
// (jobs.ErrDrain). What the executor then answers is recorded as follows: no error is a success, whatever happened
// meanwhile; after a lost lock nothing is recorded, for another worker may have the run; a canceled run ends as that;
// in a drain the run is handed back and nothing is counted; the same holds for a command that died of a SIGTERM which
// another process sent (jobs.ErrTerminated), if the worker itself begins to drain within a second; a run whose
// handler this worker lacks, or whose definition has keys that this build does not know, is handed back before
// anything is executed, and is due again after ten seconds, for as long as no worker can do it: attempts that were
// handed back for the same reason are one entry of the run, with their number. Everything else is a failure, retried
// by the job's policy. An executor that does not come back keeps its slot and its locks.
//
// # Secrets
//
// Options.Expand returns the values that replaced the ${...} of the definition. The output and the error of the attempt
// pass through a [jobs.Redactor] that knows exactly these, before the tail of the output is cut and before anything is
// stored or logged: a tail that begins in the middle of a secret would show the rest of it.
//
// # A reload
//
// [Worker.SetJobs] declares the permits of the new config, as [Worker.Run] does before anything is claimed, and then has
// the scheduler take over the jobs. A limit is one for all workers, so it changes only with a version of its own; what
// refuses it leaves the old jobs in place. Runs keep the definition they were made with.
//
// # The drain
//
// When the context of Run ends, or somebody asks the worker for it: no new ticks, no new deliveries; running attempts may
// go on for the drain timeout; then they are cancelled and their runs handed back; the session ends last, which frees
// whatever is left.
package worker
