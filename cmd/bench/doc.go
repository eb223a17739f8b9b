// Command bench measures the lock library (lockstep/locks) side by side with three others (bsm/redislock, redsync
// and rueidislock), and jobs through lockstep side by side with plain asynq.
//
//	go run .                        # all of it, some five minutes
//	go run . -short                 # a minute and a half, rougher
//	go run . -run 'pairs|shares'    # some of it
//	go run . -o json
//
// It is a module of its own, so that the other libraries stay out of lockstep's go.mod. Nothing has to run beforehand:
// each measurement starts a redis-server of its own on a free port of the loopback interface and stops it again.
//
// # Why ratios
//
// What a machine does in a second depends on the machine, on its neighbours, and on the minute. What one library does
// beside another one in the same second depends on much less. So the libraries take turns: in each round each of them
// runs for a short time at each load, in an order that moves on with every round, and each round yields its own ratio.
// What is printed is the median over the rounds. Targets are set for ratios and for counts of commands. One is a time,
// the server's per pair: it is worth what the machine is worth. The load average is printed, before and after, so that
// nobody has to guess how busy it was.
//
// # What is measured
//
// pairs: lock and unlock of distinct resources, one for each of 1, 64 and 512 goroutines that share one client. No
// contention: what is left is the way to Redis and back, twice. Beside the pairs per second there are three costs of a
// pair: server, the time Redis says its commands took (INFO commandstats, of the commands that a client sent, because
// the time of a script already holds that of the commands in it); redis cpu, what its main thread used, which also
// counts reading requests and writing replies and is less disturbed by neighbours; and client cpu, of this process. On a
// busy machine the ratio of these two costs tells more than that of the throughputs, which then depends on who happened
// to be given a core.
//
// waits: the same for locks alone, beside a space in which one request waits for a name that none of them wants. Such a
// request must cost the others next to nothing: their scripts look only at the queues of their own names.
//
// delayed: pairs through a proxy that delays each direction. The proxy measures its round trip with PINGs and the
// table says it, because timers round short delays up. The client's cost includes the proxy's here.
//
// handoff: n goroutines want the same resource, give it back at once and ask again. Scripts, messages (PUBLISH), all
// commands, those inside scripts included, and bytes sent by Redis are divided by the grants. Invalidations that Redis
// sends to clients that cache (rueidislock) are in no count of commands, but they are in the bytes. The grants per second
// are not a race: without an order of waiters the resource mostly goes back to who has just had it, which is cheap, and
// the next table shows who pays.
//
// shares: ten goroutines of one client, then ten processes, want the same resource, hold it for a millisecond and ask
// again. What each of them got is compared: the most served with the least served, and the greatest deviation from an
// equal share.
//
// partition: a holder's connections to Redis fall silent: nothing is refused, nothing arrives. Somebody with healthy
// connections waits for the lock. When does the holder learn that it must stop, and when is the other one granted? What
// lies between is the time in which both work. The trials begin at different points of the renewal interval, since what
// counts is the worst one. Where a library neither renews nor tells (redislock, redsync), the holder runs the loop that
// one writes by hand: extend every third of the lease, stop at the first error.
//
// renewal: commands that keep n held resources alive, per renewal interval.
//
// bundle: 40 goroutines each take one of ten resources for some milliseconds, again and again; one more wants all ten.
// How often does it get them, and what does that cost the others? Libraries without bundles take the ten one after the
// other, in the order of their names, which cannot deadlock but holds some while it waits for others.
//
// jobs: so many jobs are asked for by 16 goroutines, then done by one worker of concurrency 64, by lockstep and by plain
// asynq. asynq does no more than carry them; lockstep records each run, holds a lock on it and on a record that its
// arguments name, and keeps its outcome. jobs-delayed: the same with Redis 1 ms away, where what counts is round trips.
//
// Both phases have a line of their own, and one for both. The time of doing begins with the end of the first job, which
// leaves out how a worker starts. Beside the rates stand the costs of a job, of which the ratios tell more on a busy machine:
// reads are those of Redis from its sockets, about one for each round trip, as a pipeline is read at once; scripts, and the
// server's time in them; the CPU of Redis' main thread and of this process.
//
// Where a job's time goes: to ask takes one round trip, in which the run is recorded, and the caller has his answer; what
// then brings it to its queue and confirms that goes in batches behind him, and if it is lost, a sweep does it. That is one
// script for the record, nine commands and 25 to 40 µs of the server's time, and asynq's own one for the delivery; asynq,
// of 7 to 10 µs, has the second alone. So asking costs Redis four times of what it costs asynq, and where Redis is the
// nearest, 0.4 of its rate is what comes of that; at 1 ms it is 0.6 to 0.8. Doing takes 0.4 scripts: deliveries are fetched
// up to sixteen at a time, claimed in one script, and ended together as they end. One at a time a claim is some thirteen
// calls of Redis inside a script and a finish twenty; together they share them, and what is left of each run is its entries
// in the ledger's sets: two dozen, of which asynq, which remembers nothing, has eight. So doing costs Redis up to twice of
// what it costs asynq, and this process less: while Redis has a core of its own, lockstep is the faster one, for asynq's one
// fetch at a time keeps neither busy; where both share what is left of a machine, the sum decides.
//
// Tried for asking: the push and its confirmation before the answer (three round trips instead of one: 0.22 and 0.3 of
// asynq's rate). Not tried: one script that records what many ask for at once, as there is for claims; by the example of
// those it would halve the server's time of a record. A lock space that was just made grants nothing for a second, and
// what is claimed meanwhile has to wait and takes six times as long, so the measurement begins after that.
//
// Where a lock's time goes, of one goroutine: a pair is two round trips for each library, some 60 µs of system calls and of
// waking up on both sides. Beside that, redislock has Redis set one key by a plain command and delete it by a script of two
// (11 µs of the server's time), and locks calls two scripts (23 µs). An empty script with this space's eight keys takes 4 to
// 5 µs of that; the acquire's seven commands (who waits, the time, what is due, is there the session, occupy, the last
// token, record) take 8, joining token and record 3; the release's three commands 3. In this process its holds' contexts,
// the table of requests and two deadlines cost 10 µs more than redislock. Tried, and no gain worth its price: fewer
// commands in the acquire (each is a check without which a grant is wrong), the record as a hash field instead of a
// member, GETSET for SET GET, printing the token by format, ranges of the timer wheel instead of a count. So a pair takes
// half as long again as redislock's, at one goroutine; from a few on the call is shared by all that wait for it, and the
// ratio turns round.
//
// waits-runs: how many runs a worker does per second while 200 others wait for a bill that stays held, and while none waits.
//
// size: 100,000 runs, or as many as -size says, become due at one instant, and one worker does them. The rate is compared
// with that of a steady stream, where at most 1,000 runs are outstanding, each recorded while others are done: both are paid
// for by the same process and the same Redis. At no moment may asynq have more than 10,000 deliveries beyond the runs that
// are outstanding, and the heap may not grow with the number of runs.
//
// size-outstanding: a worker comes to a Redis that is 10 ms away, once without outstanding runs and once with as many as -size
// says, all of them scheduled for tomorrow. When has a run been done that it must first make due, for which it needs duty and a
// sweep? How late are ticks, and how long do the jobs and the first 50 runs take to be read?
//
// size-triggers: as many jobs as -size says get other triggers by one reload, with Redis 1 ms away, while one more job has a tick
// every second. How long does that take, and how late are the ticks meanwhile?
//
// scripts: what each script of lockstep costs Redis in a namespace with 100,000 holds, 10,000 waits and 100,000 outstanding
// runs, in its dearest use: no script may keep Redis busy for longer than 5 ms. There is no peer to compare with. A use is
// repeated, and the fastest time of each call counts. It takes half a minute on a quiet machine; -short takes a tenth of
// the namespace.
//
// # What is equal for all
//
// One client per process, on default options: a pool of ten connections per core for the three that use go-redis,
// rueidis' own pipelining for rueidislock, with a majority of one key, as there is one Redis. The same lease for all.
// Waiting is what each library's documentation shows first: redislock asks every 100 ms, redsync after 50 to 250 ms,
// rueidislock when Redis invalidates the key, locks is told. Two things are set so that a measurement ends: rueidislock
// has more than its 20 ms for a try, and asks again after a second where several goroutines of one client want the same
// (peer_rueidislock.go tells why).
//
// What is not equal is what the others do not do: a fencing token, a record of who holds what since when, an order of
// waiters, one renewal for all. The comparison is of what a user pays, not of what he gets.
package main
