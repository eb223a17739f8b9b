// Command bench measures the lock library (lockstep/locks) side by side with three others
// (bsm/redislock, redsync and rueidislock), and jobs through lockstep side by side with plain
// asynq.
//
//	go run .                        # everything, about half an hour
//	go run . -short                 # faster, and rougher
//	go run . -run 'pairs|shares'    # selected measurements
//	go run . -o json
//
// It is a module of its own, so that the other libraries stay out of lockstep's go.mod. It needs no
// running server: each measurement starts its own redis-server on a free port of the loopback
// interface and stops it afterward.
//
// # Why ratios
//
// The speed of a machine depends on the hardware, on its neighbors, and on the minute. The ratio of
// two libraries in the same second depends on much less. So the libraries take turns: in each
// round, each of them runs for a short time at each load, in an order that rotates with every
// round, and each round yields its own ratio. The printed figure is the median over the rounds.
// Most targets are set for ratios and for counts of commands. Those in units of time, such as the
// server's time of a pair, and for rates, are only as good as the machine. The load average is
// printed before and after, to show how busy the machine was.
//
// # Measurements
//
// pairs: lock and unlock of distinct resources, one for each of 1, 64 and 512 goroutines that share
// one client. There is no contention, so the cost is two round trips to Redis. Besides pairs per
// second, the table has three costs of a pair. "server" is the time that Redis reports for its
// commands (INFO commandstats, only of the commands that a client sent, because the time of a
// script includes its commands). "redis cpu" is the CPU time of its main thread, which also covers
// reading requests and writing replies and is less disturbed by neighbors. "client cpu" is the CPU
// time of this process. On a busy machine, the ratio of these two CPU costs is more meaningful than
// that of the throughputs, which depends on which process got a core.
//
// waits: the same for locks alone, compared with a space in which one request waits for a name that
// no other request needs. Such a request must cost the others next to nothing: their scripts look
// only at the queues of their own names.
//
// delayed: pairs through a proxy that delays each direction. The proxy measures its round trip with
// PINGs and the table shows it, because timers round short delays up. Here, the client's cost
// includes the proxy's.
//
// handoff: n goroutines request the same resource, release it at once and request it again.
// Scripts, messages (PUBLISH), all commands including those inside scripts, and bytes sent by Redis
// are divided by the grants. The invalidations that Redis sends to caching clients (rueidislock)
// are in no count of commands, but they are in the bytes. The grants per second are not a race:
// without an order of waiters, the resource mostly returns to its last holder, which is cheap, and
// the next table shows the price.
//
// Where a hand-off's time goes: on a machine where rueidislock takes 40 µs of the server's time for
// a grant, the long paths of acquire and release took 360 µs. They create some 80 functions at each
// call, 0.35 µs each with what Redis spends on collecting them, and call 53 commands. Their second
// fast paths create ten and call 33, and take 110 to 190 µs, with 0.8 to 1 of rueidislock's grants
// per second. A request at a time leaves Redis' caches cold: an empty script then takes 7 to 9 µs,
// and each command in it 3 to 5. Of the commands, half write or remove the six entries of a wait
// and its hold; INFO takes 12 µs, and without it a server that lacks the last writes could grant.
// So the two targets in time, 45 µs and 8,000 grants a second, are missed. On the machine where
// they were set, rueidislock took 12 µs: a quarter of 45, as here.
//
// shares: ten goroutines of one client, then ten processes, request the same resource, hold it for
// a millisecond and request it again. The table compares how often each of them got it: the most
// served with the least served, and the largest deviation from an equal share.
//
// partition: the connections of a holder to Redis fall silent: nothing is refused, nothing arrives.
// Another client with healthy connections waits for the lock. When does the holder learn that it
// must stop, and when does the other client get the lock? In between, both work. The trials begin
// at different points of the renewal interval, since the worst one counts. For libraries that
// neither renew nor report a loss (redislock, redsync), the holder runs the loop that users write
// by hand: extend every third of the lease, stop at the first error.
//
// renewal: the commands that keep n held resources alive, per renewal interval.
//
// kept: the server's time of a pair, and of a hand-off, in two lock spaces that take turns: one
// keeps how each hold and each wait has ended, the other does not. The difference is what appending
// the entry costs an end: both build it. Ends that share a script also share the command that
// appends them. In a script that ends 32 holds, building and appending take 2.7 µs of a pair's 14
// µs; with one command for each end, they took 4 to 5. Below it is the memory that an entry takes.
//
// admin: each page of the admin server beside very many jobs, runs, holds, waits and workers: the
// server's time, the size of the page, and the longest of the commands that it sends to Redis. The
// first page of a process may lack what depends on all jobs, which it has not read yet.
//
// bundle: 40 goroutines each take one of ten resources for some milliseconds, again and again; one
// more requests all ten. How often does it get them, and what does that cost the others? Libraries
// without bundles take the ten one after the other, in the order of their names. That cannot
// deadlock, but it holds some while it waits for others.
//
// ask: requests, without doing them. 16 goroutines ask one by one, each waiting for its reply, with
// lockstep and with plain asynq; then four goroutines of lockstep ask in lists of 1,000. A request
// counts when it is recorded and its delivery is in the queue, which the measurement checks.
//
// wake: one request at a time, from a client that is no worker, to four idle workers. How long does
// it take until its handler begins? The push wakes a sleeping worker; asynq's servers poll once a
// second, as they do by default.
//
// ticks: twenty jobs have a tick every second, and one, five or twenty workers have nothing else to
// do. How late do the runs begin? A tick that is due alone begins after 3 to 4 ms, so most of what
// twenty take is that they wait for each other. The commands of a tick are those beyond what the
// same workers send without ticks. They must not grow with the number of workers. With twenty, each
// tick may wake a worker of its own, and scripts that served several ticks serve one: they grow by
// that, and by no more.
//
// jobs: 16 goroutines enqueue a number of jobs, then one worker of concurrency 64 does them, with
// lockstep and with plain asynq. asynq only carries them; lockstep records each run, locks it and a
// record that its arguments name, and keeps its outcome. jobs-delayed: the same with Redis 1 ms
// away, where round trips dominate.
//
// Both phases have their own line, and one line covers both. The time of doing begins with the end
// of the first job, which leaves out the start of the worker. Besides the rates, the table has the
// costs of a job. Their ratios are more meaningful on a busy machine: reads by Redis from its
// sockets, about one for each round trip, as a pipeline is read at once; scripts, and the server's
// time in them; the CPU time of Redis' main thread and of this process.
//
// Where a job's time goes when it is enqueued: one round trip records the run, and the caller has
// its reply. The push to its queue and the confirmation follow in batches; if they are lost, a
// sweep repeats them. Requests of several goroutines share these three scripts. In scripts that
// follow each other without a pause, a request in a batch of 16 then takes 13 µs of the server's
// CPU time for the record, 5 for the delivery and 4 for the confirmation, where asynq's own script
// takes 7: five entries in hashes and sorted sets are 7 of these 13 µs. On a busy machine, with
// round trips, it was 32 µs beside 18 of asynq.
//
// Where it goes when it is done: doing takes 0.4 scripts. Deliveries are fetched up to sixteen at a
// time, claimed in one script, and finished together. One at a time, a claim is some thirteen Redis
// calls inside a script and a finish twenty; in batches, they share these calls, and each run keeps
// only its entries in the ledger's sets: two dozen, of which asynq, which remembers nothing, has
// eight. So doing costs Redis up to twice as much as with asynq, and this process less. While Redis
// has its own core, lockstep is faster, because asynq's one fetch at a time keeps neither process
// busy; if both share what is left of a machine, the sum decides.
//
// Tried for enqueuing: the push and its confirmation before the reply (three round trips instead of
// one: 0.22 and 0.3 of asynq's rate, before requests shared scripts). A new lock space grants
// nothing for a second; runs claimed in that second wait and take six times as long, so the
// measurement begins after it. Two scripts of records in flight, each of half the requests: more
// work for Redis, and the same rate. A list of 1,000 requests shares everything that can be shared,
// and takes 13 µs of Redis' CPU a request. asynq's own script, which only pushes the delivery, also
// takes 13, with its round trip. So a list is not three times as fast as asynq's requests.
//
// slots, slots-delayed: the same with 16 slots. Here a slot's time decides, in round trips: five
// when a slot waited for the fetch, the claim, the finish before its own and its own (0.8 and 3.4
// of asynq's rate); three without the finish (1.0 and 5.3); two when deliveries are fetched ahead
// of slots (1.2 and 6.7); and with three finishes in flight instead of one, and twice as many ends
// without a reply as slots, 1.2 and 9. Twice as many deliveries ahead add nothing. Next to Redis,
// several finishes and claims in flight only made each one smaller: with one of them, a run takes
// 0.45 scripts instead of 0.8.
//
// adopt: plain asynq clients enqueue the tasks, and lockstep's worker adopts each as a run. Its
// time of doing begins with the first fetch of a task: many tasks may become runs before the first
// of these ends. A task takes 90 µs of Redis' CPU where asynq takes 50: some 12 for the fetch, 17
// for its record, 25 for the claim and 30 for the finish. The runs that find no slot at once wait
// for one in hand: pushing them, and fetching their deliveries, took another 5, and several small
// claims and finishes in flight took 10 (0.75 to 0.86 of asynq's rate, and 0.9 to 1.0 now).
//
// commands: twenty commands at once, as runs and without lockstep. How long does it take from the
// request until a command runs? Between the two are the record, the delivery, the claim and the
// start of a guard: this program once more, for each command. So the CPU time of a guard has a
// target, too.
//
// mixed: everything at once for five minutes. 10,000 jobs have ticks every two seconds to every
// minute, 1,000 of them with three of 200 bills each; four workers of 16 slots run them beside a
// queue that is never empty. A sampler looks for runs that wait although their bundle is free, and
// for bundles that are reserved for a run which has no slot yet. Its cost of a run is compared with
// the mean of two measurements of runs alone, one before the five minutes and one after them, since
// the machine may change meanwhile. With each minute, 9,800 ticks come at once. For each of them
// Redis' core works some 70 µs to record the run and 90 µs to do it, so they need 1.6 s of that
// core, and the runs of the queue, which take turns with them, as much again; with four workers and
// this process on two cores, the last of them begins after 5 s. The runs that get their bundle in
// that time are due later than those thousands, and do not pass them: their bundle stays reserved
// for two seconds, and they start at their turn. On a machine half as fast, the ticks are recorded
// after 4.7 s (8.2 s when all workers began with the same ones), and the last run of a chain that
// waits for one bill begins after 13 s. Tried without a gain: several connections for the records
// of 500 ticks.
//
// Where a lock's time goes, with one goroutine: a pair is two round trips for each library, some 60
// µs of system calls and wake-ups on both sides. In addition, redislock sets one key with a plain
// command and deletes it with a script of two (11 µs of the server's time), and locks calls two
// scripts (23 µs). Of that, an empty script with this space's eight keys takes 4 to 5 µs; the seven
// commands of the acquire (the queue, the time, the timer wheel, the session, the occupation, the
// last token, the record) take 8, joining token and record 3; the three commands of the release 3.
// In this process, the contexts of holds, the table of requests and two deadlines cost 10 µs more
// than redislock. Tried without a gain worth its price: fewer commands in the acquire (each is a
// check without which a grant is wrong), the record as a hash field instead of a member, GETSET for
// SET GET, printing the token with format, ranges of the timer wheel instead of a count. So a pair
// takes one and a half times as long as redislock's with one goroutine; with more, waiting callers
// share each round trip, and the ratio turns around.
//
// waits-runs: how many runs a worker does per second while 200 others wait for a bill that stays
// held, and while none waits.
//
// size: 100,000 runs, or as many as -size says, become due at one instant, and one worker does
// them. The rate is compared with that of a steady stream, where at most 1,000 runs are outstanding
// and each is recorded while others are done: the same process and the same Redis pay for both.
// asynq must never have more than 10,000 deliveries beyond the outstanding runs, and the heap must
// not grow with the number of runs.
//
// size-outstanding: a worker starts on a Redis that is 10 ms away, once without outstanding runs
// and once with as many as -size says, all scheduled for tomorrow. When has it done a run that it
// must first make due, for which it needs duty and a sweep? How late are ticks, and how long does
// it take to read the jobs and the first 50 runs? How much memory of Redis does a run with a
// definition of 672 bytes take while it is outstanding, and after it has ended without output?
//
// size-triggers: one reload gives other triggers to as many jobs as -size says, with Redis 1 ms
// away, while one more job has a tick every second. How long does that take, and how late are the
// ticks meanwhile?
//
// capacity-runs, capacity-idle and capacity-memory: the tables of configs/deploy/README.md for
// planning, as Markdown. What does a run of each kind cost Redis, from its tick or request to its
// record? What does a worker without work send, and how many commands do its scripts call? How many
// bytes does each thing take that is stored? The kinds of runs take turns, and the medians count.
// The CPU time of Redis' main thread also covers reading requests and writing replies; the time in
// scripts, from INFO commandstats, grows when other processes take the core away. Figures of
// another machine are only as good as their ratios.
//
// phases: the server's time of each script in each phase of a lock and of a run, in a call and per
// pair, request or run. Redis logs its scripts meanwhile, so the sums are a little above those of
// the other tables. It shows where a phase's time goes before anybody asks a profiler.
//
// scripts: the cost of each script of lockstep for Redis, in a namespace with 100,000 holds, 10,000
// waits and 100,000 outstanding runs, in its most expensive use: no script may keep Redis busy for
// more than 5 ms. There is no peer to compare with. Each use is repeated, and the fastest time of
// each call counts. It takes half a minute on a quiet machine; -short takes a tenth of the
// namespace.
//
// # Equal conditions
//
// Each process has one client with default options: a pool of ten connections per core for the
// three that use go-redis, rueidis' own pipelining for rueidislock, with a majority of one key, as
// there is one Redis. All use the same lease. Each library waits as its documentation shows first:
// redislock asks every 100 ms, redsync after 50 to 250 ms, rueidislock when Redis invalidates the
// key, and locks receives a message. Two settings differ so that a measurement ends: rueidislock
// has more than its 20 ms for a try, and asks again after a second if several goroutines of one
// client request the same resource (peer_rueidislock.go explains why).
//
// The others lack features that locks has: a fencing token, a record of which client holds what
// since when, an order of waiters, one renewal for all locks. The comparison covers the price for a
// user, not the benefit.
package main
