// Package worker is one replica: it takes deliveries, holds the bundle of each run, executes the
// attempt, and records how it ended. Call [New], then [Worker.Run] once; it returns when everything
// that it started has stopped.
//
// # The way of a run
//
//	due ──> slot free, queue served and not paused? ──yes──> claim ──granted──> attempt ──> finish
//	          │ no                                             ^                              │
//	          v                                                │                              v
//	        pushed to its queue ──> fetched by a free worker ──┘     the runs that it freed are due
//
// A worker fetches as many deliveries as it has free slots, and a slot is taken for the claim and
// the attempt. Direct claims, of runs that this worker made due itself, share the slots and go
// last: never before a run that has been due for longer in a queue of the same or a higher weight,
// and has never crashed.
//
// While attempts here are brief ([pace]), the worker fetches ahead of its slots, up to as many
// deliveries as it has slots in all. A slot that becomes free is then for the delivery that has
// waited for one for the longest time. A delivery takes no lock before it has a slot. If attempts
// run in all slots for [seatPatience], it goes back to the head of its queue, and the worker stops
// fetching ahead: a busy worker leaves deliveries to idle ones. See [slots].
//
// An attempt keeps its slot until its finish gets a reply. If the finish made a run due, because it
// freed the locks that the run waited for, the attempt passes its slot to that run. Behind a
// backlog no other slot is free, the delivery of the run would go to the end of the queue, and its
// locks would be reserved without use. If the claim gives way to a run that has also waited, or is
// in another queue, and whose delivery is still in its queue, the slot is for that run. If it gives
// way to any other run, the slot is for the next delivery. When another process freed the locks and
// no slot is free, the first slot that becomes free is for the run that was offered them, under the
// same rule.
//
// The offer lapses after two seconds if all slots are taken for longer, or if the process or Redis
// stalls. So every 5 s each worker asks whether the next run of a queue has a lapsed offer, and the
// first slot that becomes free is for that run.
//
// The runs of one hot lock may so follow each other in a slot for as long as more of them wait, and
// no delivery is fetched meanwhile. So each 16th time a worker passes a slot on (turnEvery), the
// claim gives way to an older run of any queue, whatever its weight. The run that gives way to a
// queue of a lower weight gets the next slot that becomes free.
//
// While attempts here are brief, each gives its slot away as soon as its executor has returned and
// its finish is on its way, if that is a success. The hold stays until the reply. A run that the
// reply makes due then gets the next slot that becomes free, before all deliveries: that takes some
// milliseconds. Beside long attempts it would take as long as they do, so all keep their slots
// while one of them runs. So does an attempt that has waited for its locks itself, since others may
// wait for them too. Twice as many ends as there are slots may be without a reply. A crash between
// the two loses nothing: Redis has the hold and the attempt until the finish, with or without a
// slot.
//
// A worker without a session fetches and picks nothing. It could only push the deliveries back, to
// the end of their queue: from the time when its session is cut off until the next one is open,
// perhaps all deliveries many times.
//
// The deliveries of one fetch are claimed together: those that are plain in one script. The granted
// runs start at once. Runs that take further calls of Redis, because they are suspects or this
// worker cannot do them, are handled beside them. Attempts that end while another end is being sent
// are also finished together. So a job costs a fraction of a round trip when many are due, and
// three when one is.
//
// # Requests of plain asynq clients
//
// A task in one of the queues whose type is the name of a job here becomes a run of that job, and
// the task ends: see [ledger.Ledger.Adopt]. Its asynq options end with it; the job's policies
// apply. The run stays in the queue that the task came through, and its definition is the active
// one, which a drifted worker requests from the ledger. The tasks of one fetch are adopted
// together, and their runs take the slots of that fetch: they are claimed together, or wait in hand
// for a slot, as deliveries do. Those without a slot are pushed, for any worker. An adoption that
// gets no reply is sent again until one arrives, or until the session has ended: then asynq may
// have given the task to another worker, and this one reports nothing more about it.
//
// # Suspects
//
// A run that crashed may be what killed its worker. While it is unclear which of the runs under
// that worker did, each of them is a suspect, and a worker has one place for a suspect, in addition
// to the slot that the suspect also takes: a second one is put off, and offered to all workers
// again after a pause. So a poison run does not take down the same neighbors twice.
//
// A suspect is cleared in two ways. It survives: an attempt ends without a crash, or runs for
// longer than those that crashed. Or another suspect of the same death dies again without it: that
// one most likely caused both deaths, which clears all others that ran in either of them. The
// ledger decides that when it closes the attempts. A lost lease is not a death: it makes no
// suspects.
//
// A suspect that has run for longer than its crashed attempts leaves the place, if another crash
// does not end the run. Then the next suspect may start beside it. After its second crash a suspect
// runs beside no other run that has crashed before, including cleared ones. The same holds for
// every run that another crash ends, suspect or not, since the blame is never certain: a poison run
// that kills its worker later each time looks like one that has survived. So no run fails because
// of the crashes of another one.
//
// # A lost lease
//
// A worker that cannot renew its session cuts off its attempts, and waits until nothing of them
// runs. It then reports each of them under its next session ([ledger.Ledger.LostLease]): the run is
// due at once, and the ledger knows that the worker survived. A sweep may have closed the attempt
// first.
//
// # Doubt
//
// A claim without a reply may have been granted. It is sent again under the same hold id until a
// reply arrives or the session has ended, and its slot is kept until then; it is never abandoned. A
// finish is sent again until a reply arrives; a finish other than a success ends with its hold,
// because then the sweep counts the attempt.
//
// # The end of an attempt
//
// The context of an attempt ends, with a cause, when the lease is about to expire (locks.ErrLost),
// when the job's timeout is over (jobs.ErrTimeout), when the run is canceled (jobs.ErrCanceled), or
// when a drain has lasted too long (jobs.ErrDrain). The executor's result is then recorded as
// follows:
//
//   - No error is a success, whatever happened in the meantime.
//   - After a lost lease the run is handed back, and nothing else of it is recorded, for another
//     worker may have it.
//   - A canceled run ends as canceled.
//   - In a drain the run is handed back and nothing is counted. The same holds for a command that
//     died of a SIGTERM which another process sent (jobs.ErrTerminated), if the worker itself
//     begins to drain within a second, and for a command that its guard killed before a lease
//     expired which was renewed after all.
//   - Everything else is a failure, retried by the job's policy. That includes a Go handler's own
//     locks.ErrLost, of a lock that it has acquired beside those of its run.
//
// An executor that does not return keeps its slot and its locks. The attempt is stuck ([Stuck])
// when its executor has not returned a cutoff after the end of its context: the worker's card, a
// log line and Options.OnStuck report it until the executor returns. The card names as many stuck
// attempts as it has room for.
//
// The arguments of an attempt are those of its run, from which its locks are read. Only if they are
// equal to those of the definition does the attempt get the definition's with their ${...}
// replaced. They differ for a run that brought its own, and for a tick that was retried after its
// job had changed.
//
// # Runs that a worker cannot do
//
// A worker may lack the handler of a run, or not know a key of its definition. Its claim is
// declined before a lock is taken (see [ledger.Ledger.Limit]), and it sets the run aside
// ([ledger.Ledger.SetAside]): the run stays due, filed under its needs, and no queue has a delivery
// of it, which workers that cannot do the run would fetch again and again. Workers receive a notice
// of the first such run, and each poll reports that some exist. A worker that can do them picks
// them in its free slots until none are left; it picks as many runs as it has slots, so other
// workers can also pick. A worker of an older build picks nothing: where one serves the queue, the
// run is pushed again after a second instead. Runs that were set aside before such a worker came
// are pushed for it, some each second.
//
// # Secrets
//
// Options.Expand returns the values that replaced the ${...} of the definition. The output and the
// error of the attempt pass through a [jobs.Redactor] that knows exactly these, and the values of
// secret args (see [jobs.Job.ArgSecrets]), before the tail of the output is cut and before anything
// is stored or logged: a tail that begins in the middle of a secret would show the rest of it.
//
// With Options.LogOutput the same text goes to the log, line by line: up to 4 KiB of each line, and
// up to 1,000 lines of each attempt in a second after the first 5,000. The rest is counted.
//
// # Traces
//
// An attempt runs under a ctx that has the span of its work (package trace), and the executor
// passes that on. Without [Options].Tracer, the ctx has the context of the run's requester instead,
// if it gave one. The span of the attempt ends with its end in the ledger, and the worker that
// records the end of the run sends the span of the run. A worker that takes over a run after a
// crash sends the span of the crashed attempt.
//
// # Live output
//
// A client that follows a run ([ledger.Ledger.Follow]) makes a script send a notice to the worker
// of the run. From then on the worker passes on what the attempt prints, redacted like all of it:
// first the tail that it has kept so far, then what is new, five times a second, up to 64 KiB each
// time. A job that prints faster does not wait: its followers miss parts. Up to 16 attempts of a
// worker are followed at a time. The rest is passed on before the end of the attempt is recorded,
// so a follower that sees the end has the output.
//
// All clients read the same key, so many of them cost the worker no more than one. For a client
// that comes when the beginning is no longer in that key, the worker begins anew with the tail; the
// others skip what they have. Each client keeps the key alive for some seconds. When the last one
// has left, the key expires, the next call finds none, and the worker stops. While no client
// follows a run, nothing is sent, and only the tail is kept.
//
// # A reload
//
// [Worker.SetJobs] declares the permits of the new config, as [Worker.Run] does before any claim,
// and then makes the scheduler take over the jobs. A limit applies to all workers, so it changes
// only with a version of its own; if it is refused, the old jobs stay in place. Runs keep the
// definition they were made with.
//
// # The drain
//
// When the context of Run ends, or a drain is requested, the worker takes no new ticks and no new
// deliveries; running attempts may continue for the drain timeout; then they are canceled and their
// runs handed back; the session ends last, which frees any remaining locks.
//
// A handler that does not return within a cutoff after that is left behind: Run returns a
// [StuckError], and the session continues, since the handler still works under its locks. Only the
// end of the process stops it. The process that sees this one die records the ends of these
// attempts, usually as hand-backs, and ends the session.
package worker
