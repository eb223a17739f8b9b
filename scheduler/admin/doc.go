// Package admin reads the state of a fleet of workers, and carries out the acts of people on it. It
// answers: which runs are running, on which worker, and since when; which run waits for which; how
// did the last runs end? The command line uses it, and so does package web, which serves the same
// answers over HTTP.
//
// # Use
//
// A program that only reads uses a [Reader]; one that acts uses an [Operator]. Neither needs a
// server or a session: they read and write the ledger and the lock space directly, so every worker,
// and the command line beside them, give the same answer.
//
// # Shapes
//
// The types [Run], [ErrorGroup], [Lock], [Worker], [Tick], [Job], [Wait], [Entry], [NextTick],
// [Queue], [Overview], [Explanation], [Act], [Bulk], [TickSpan], [ConfigCheck] and [ConfigJob] are
// what scripts rely on, in the API and in the command line's -o json alike. Names are in
// snake_case. Times are RFC 3339 in UTC with milliseconds ([Instant]), ticks have no fraction
// ([TickTime]), durations are seconds in a field called ..._seconds ([Seconds]). Tokens and ids are
// strings. A missing value is null, and a list without elements is []. All times and ages are by
// Redis' clock, except a worker's started_at, which only its own clock knows.
//
// Besides its locks, a run holds the resource "run:<run id>", which keeps it from running twice. It
// would fill every list of locks without adding information, so lists omit it, unless a hold has
// nothing else. A [Holder]'s bundle includes it.
//
// A lock's mode is that of its holders, or, without a holder, that of its waiters. For permits, the
// lock also has the limit and the number in use (used), even when none is held. A holder names the
// resources of its bundle that it does not hold exclusively as shared or permits. A resting holder
// has been released, or its session has ended, and its locks stay taken for the rest of their min
// hold or crash delay; lease_left_seconds is that rest.
//
// The blockers of a wait are named by meaningful ids: a run by its run id, whether it holds the
// lock or waits in front, and any other client (`lock exec`, users of the lock library) by its hold
// id, which begins with the id of its session.
//
// # Lists
//
// A list of runs or ticks reads from Redis little more than the page shows, however many runs are
// outstanding and however long a history is. Outstanding runs therefore come in the order of one of
// the ledger's indexes:
//
//	no filter, a job, or     by job; of each job the latest tick first, then runs without a tick,
//	state waiting            the last id first. The ids that lockstep makes sort by time, so that
//	                         is the newest one
//	state running            by worker
//	state due                by queue, and the run that has been due for longest first
//	state scheduled or       the run that becomes due first
//	retrying
//
// With a job, a state other than running keeps the order by job. Other filters do not change the
// order. Finished runs follow the outstanding ones: the run that ended last first, those of one
// millisecond by id. Ticks of a job have the same order, so a pending tick comes before the settled
// ones, and a replayed tick is placed where its last run ended.
//
// Where no index has exactly the runs that a filter asks for, a page looks at no more than 1,000
// others. The page may then be shorter than its limit, or empty, although its cursor leads on: a
// list ends with the page that has no cursor. A cursor is valid only with the filter that produced
// it. It names a place, not a run, so it also works when that run has left the list. A run that
// ends between two pages may be listed twice, as outstanding and as finished.
//
// Finished runs of all jobs are merged from the histories of the jobs. The ledger orders the jobs
// by their last ends ([ledger.Ledger.EndedJobs]), so a page reads only the histories that may have
// its runs. A build from before this order leaves out the ends that it records; while such builds
// work, too, lists of all jobs may lack these runs for ten minutes, until the worker on duty adds
// them. If no worker has done so for a quarter of an hour, all histories are read.
//
// # Answers about all jobs
//
// The next ticks and the jobs to look at depend on each job. Reading and decoding the definitions
// of 100,000 jobs takes more than a second, so a process keeps them: a definition is read again
// when its hash has changed. The other facts (cursors, pauses, last successes) are read for each
// answer if that takes less than 100 ms. Otherwise they are kept for five times as long as their
// reading took, and at most 30 seconds. Facts about one job ([Reader.Job]), the jobs on a page of
// their list and their runs are always read anew; but which jobs a filter selects may be as old.
//
// A [Reader.Hasty] reader waits only a moment for a reading of very many jobs. Its answer is then
// that of a minute ago, or says how far the first reading is, and the next request continues it.
//
// # The history of locks
//
// Redis keeps each hold and each wait when it ends, also those of `lock exec` and of users of the
// lock library: admin.keep bounds for how long, and how many. [Reader.History] lists those of a
// window of time, with the present ones, so it shows which worker held a lock at some time, and
// what waited for it. Ends are kept in their order, so a page that looks for an early one reads all
// later ones, up to 10,000: it may be short or empty although its cursor leads on.
//
// A run waits without a worker, and a run that takes its locks without waiting has no wait. A
// granted wait of a run names what was in its way first, any other wait what was in its way last.
//
// # Filters
//
// A [Filter] selects entries of a list. The API and the command line have the same names for its
// fields, as parameters and as flags; [RunFilters] and its neighbors have those that each list
// takes, and any other is an error. All that are given must match:
//
//	q             a part of a name, an id, or a value in the args, in any case. Of runs: the id, the
//	              workers, the locks and the args, but not those of more than 1 KiB, which lists do
//	              not have. The whole id of a run finds that run at once, and no other
//	job, queue    by name
//	state         of runs and ticks their state or outcome, of jobs that of the last run, of waits
//	              and workers theirs
//	worker        the id of a worker, or the part of it before the dot: the attempts of runs, the
//	              holds and waits of locks, the object of acts
//	lock          by name: outstanding runs by their bundle, and ended ones by the bundle that they
//	              would have under the active definition of their job
//	error         a part of a reason or of the last attempt's error, in any case
//	since, until  a time, or a duration before now; since is included, until is not. A run counts by
//	              its end, or, while it is outstanding, by its creation; a tick by its due time, a
//	              wait by its start, an act by its time
//
// Finished runs are in the order of their ends, so a list reads of a history only what since and
// until leave of it. Due runs of a queue have an index. Other filters read what they then drop, and
// a page of them looks at no more than 1,000 others.
//
// [Reader.RunErrors] groups runs by the first line of their reason or error. A page of groups
// counts at most 10,000 runs, and the next page continues behind these.
//
// # The audit
//
// Redis keeps each action with its actor, reason and time, for 90 days and up to 50,000 entries:
// the acts of people, of the command line and of programs that ask for runs, and reloads of a
// config. Repeats become one entry with their number (times) and the time of the first: the same
// actor does the same to the same thing within ten minutes, or asks for runs of the same job within
// an hour. So no number of repeats pushes other entries out. A process records an actor's first
// request for a job in the step that makes the run, and counts those that follow: it records their
// number every ten seconds and when it ends, and loses at most that count when it is killed.
//
// # Acts on many runs
//
// [Reader.ToCancel] and [Reader.ToRetry] find the runs of an act on all that a filter selects, at
// most [BulkMost], and count them by state before anything is done. A filter that selects all runs
// is refused. [Reader.SelectToCancel] and [Reader.SelectToRetry] do so for runs that are named, and
// say why they skip some. [Operator.CancelRuns] and [Operator.RetryRuns] act on these runs: each by
// itself, so that the refusal of one does not affect the others, and with one entry in the audit,
// which is written first. An error that is not about one run, such as an outage, ends the act; the
// outcome has the number of runs that are left.
//
// # What a run led to
//
// A run that was made from within another one names that as its parent: the command line and
// programs say so when they ask for it, and a replay under a new key has the tick's run.
// [Reader.Run] lists the first children of a run and counts the others (see package ledger).
//
// # Rates of queues
//
// [Queue] has the runs in a minute that came and that began. Workers count the attempts that they
// begin, and send these counts every few seconds; the number of due runs is read with them
// ([ledger.Ledger.Began]). So these rates cost a run nothing, all readers see the same, and a
// change shows after some seconds. A run that ends before it has begun counts neither as one that
// came nor as one that began; each further attempt counts anew. Workers of builds from before the
// counts send none. Without a recent count the rates are null: no worker serves the queue, or the
// first one has just begun to.
//
// # The definition of a run
//
// A run keeps the definition that it was made with, whatever its job has by now. [Reader.Run] shows
// it, also after the run has ended, and reports whether it is the active one of the job. Of the
// definitions of finished runs, Redis keeps the 100 of each job that were used last, as long as a
// finished run may have them (see package ledger). A run has none if it was made with an older one,
// or ended by a build that kept none, and a tick has none that never became due.
//
// # Secret args
//
// A job names its secret args (secret_args). A [Reader] shows (hidden) in their place,
// in every answer and to every user, and compares filters with that: a search for a password finds
// nothing. Args of the definition of a run are hidden if the active definition of its job names
// them, too. The env of a job and the headers of its request are in no answer at all. The command
// line shows secret args on request, because it can read Redis anyway. Redis has the values, as the
// worker needs them. A build that does not know secret_args runs none of these jobs, and shows the
// values.
//
// # Not promised
//
// One answer is assembled from several reads, one after the other: a run may show as running in one
// place and have ended in another. The ledger's record of the run, read by its id, is
// authoritative.
package admin
