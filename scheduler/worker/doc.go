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
// An attempt keeps its slot until its finish is answered. If the finish made a run due, because it freed what that run waited
// for, the attempt passes its slot to that run. Behind a backlog there is no other free slot, the delivery of the run would
// go to the end of the queue, and its locks would be reserved in vain. If a run goes first that has waited, too, and whose
// delivery is still in its queue, the slot is for that run. If any other run goes first, the slot is for the next delivery.
// When locks were freed by another process and no slot is free, the first slot that becomes free within a moment is for the
// run that was offered them, under the same rule.
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
// A run that crashed may be what killed its worker. While it is unclear which of the runs under that worker did, each of
// them is a suspect, and a worker has one place for a suspect, beside the slot that it takes as well: a second one is put
// off, offered to all workers again after a pause. So what a poison run has taken down with it, it does not take down again.
//
// A suspect is cleared in two ways. It survives: an attempt ends without a crash, or runs for longer than those that crashed.
// Or another suspect of the same death dies again without it: that one most likely caused both deaths, which clears all
// others that ran in either of them. The ledger decides that when it closes the attempts. A lost lease is no death: it makes no
// suspects.
//
// A suspect that has run for longer than its crashed attempts leaves the place, if another crash does not end the run. Then
// the next suspect may start beside it. After its second crash a suspect runs beside no other run that has crashed before,
// cleared ones included. The same holds for every run that another crash ends, suspect or not, since the blame is never
// certain: a poison run that kills its worker later each time looks like one that has survived. So no run fails for the crashes
// of another one.
//
// # A lost lease
//
// A worker that cannot renew its session cuts off its attempts, and waits until nothing of them runs. It then reports each of
// them under its next session ([ledger.Ledger.LostLease]): the run is due at once, and the ledger knows that the worker
// survived. A sweep may have closed the attempt first.
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
// meanwhile; after a lost lease the run is handed back, and nothing else of it is recorded, for another worker may have
// it; a canceled run ends as that; in a drain the run is handed back and nothing is counted; the same holds for a command that died of a SIGTERM which
// another process sent (jobs.ErrTerminated), if the worker itself begins to drain within a second. Everything else is a
// failure, retried by the job's policy.
//
// An executor that does not return keeps its slot and its locks. A cutoff after its context has ended the attempt is
// stuck ([Stuck]): the worker's card, a log line and Options.OnStuck tell of it until the executor returns.
//
// The arguments of an attempt are those of its run, from which its locks are read. Only if they are the same as those of
// the definition does it get the definition's with their ${...} replaced. They differ for a run that brought its own, and
// for a tick that was retried after its job had changed.
//
// # Runs that a worker cannot do
//
// A worker may lack the handler of a run, or not know a key of its definition. Its claim is declined before a lock is taken
// (see [ledger.Ledger.Limit]), and it sets the run aside ([ledger.Ledger.SetAside]): the run stays due, under what it needs,
// and no delivery of it is in a queue, where workers that cannot do it would fetch it again and again. Workers are told of the
// first such run, and with each poll that there are some. One that can do them picks them in its free slots until there are
// none; that takes as many runs as it has slots, so others may pick, too. Where a worker of an older build serves the
// queue, which picks nothing, the run is pushed again after a second instead. What was set aside before such a worker came is
// pushed for it, some each second.
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
//
// A handler that does not return within a cutoff after that is left behind: Run returns a [StuckError], and the session
// goes on, since the handler still works under its locks. Only the end of the process stops it. The process that sees this
// one die records the ends of these attempts, which are hand-backs as a rule, and ends the session.
package worker
