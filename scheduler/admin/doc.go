// Package admin shows what goes on in a fleet of workers: over HTTP as JSON and as a page, and, through the [Reader],
// to the command line. It answers: what runs now, on which worker, since when; who waits for whom; how did the last runs
// end. And it does what people ask for: acts through the [Operator], and having its worker read its config again.
//
// # Use
//
// A worker opens its address with [Listen], says by [NewSignIn] who is let in, makes a [Server] with [New] and runs it with
// [Serve]. A program that only
// wants to know takes a [Reader], one that acts an [Operator]. Neither needs a server or a session: they go to the ledger
// and the lock space themselves, so any worker, and the command line beside them, give the same answer.
//
// # Shapes
//
// The types [Run], [Lock], [Worker], [Tick], [Job], [Wait], [NextTick], [Explanation] and [Act] are what scripts rely on, in the API and in
// the command line's -o json alike. Names are in snake_case. Times are RFC 3339 in UTC with milliseconds ([Instant]),
// ticks have no fraction ([TickTime]), durations are seconds in a field called ..._seconds ([Seconds]). Tokens and ids
// are strings. What is not there is null, and a list without elements is []. All times and ages are by Redis' clock, but a
// worker's started_at, which only its own clock knows.
//
// A run holds, beside its locks, the resource "run:<run id>" that keeps it from running twice. It would fill every list
// of locks and tell nobody anything, so it is left out there, unless a hold has nothing else. A [Holder]'s bundle has it.
//
// A lock's mode is that of who has it, else of who wants it. Of permits there is how many there are (limit) and how many are
// taken (used), also while nobody has one; what in a bundle is not exclusive, its holder names as shared or permits. A
// holder that is resting has been released, or its session has ended, and its locks stay taken for the rest of their min
// hold or crash delay; lease_left_seconds says how long.
//
// Who is in the way of a wait is told by ids that mean something: a run by its run id, whether it holds or waits in
// front, and what is no run's (`lock exec`, users of the lock library) by its hold id, which begins with its session's.
//
// # Paths
//
//	/                            the page
//	/livez                       200 while the process serves; it asks nobody
//	/readyz                      200 while the worker may take runs, else 503: it drains, its session is in doubt, or Redis takes no writes
//	/metrics                     for Prometheus: see [Metrics]
//	/api/v1/jobs                 ?note=: only those that are late, paused, queue paused or drifted
//	/api/v1/jobs/{job}           and jobs/{job}/ticks (see Lists), jobs/{job}/explain?at= or ?run=
//	/api/v1/runs                 ?job= ?state=: the outstanding ones first, then the finished ones (see Lists)
//	/api/v1/runs/{id}            with "waiting_for": why it does not run, see [WaitingFor]; and runs/{id}/output: the tail of what its last attempt printed, as plain text
//	/api/v1/locks                and locks/{lock}: a lock that nobody holds is not an error, it has no holders
//	/api/v1/waits                in the order of their tickets
//	/api/v1/workers              and workers/{id}
//	/api/v1/config               of the worker that serves it: what it has, and why its last reload was refused
//	/api/v1/audit                what people and programs did, the last first
//	/api/v1/whoami               who asks: {"user", "mode"}
//
// These answer GET and HEAD and change nothing. The following take POST:
//
//	/api/v1/jobs/{job}/run       {"args", "id", "reason"}; jobs/{job}/pause and resume {"reason"}
//	/api/v1/enqueue              {"job", "args", "id", "in", "at"}; 201 with the new run, 200 when it was there
//	/api/v1/runs/{id}/cancel     and runs/{id}/retry {"reason"}
//	/api/v1/workers/{id}/drain   {"reason"}
//	/api/v1/locks/{lock}/release {"token", "reason", "force"}; 409 when the token is not a present holder's. With
//	                             force the lock passes on at once: two holders may then be at work at the same time
//	/api/v1/queues/{queue}/pause and resume {"reason"}
//	/api/v1/config/reload        {"worker"}: load the config again. 200 when it was taken, 422 when the old one stays
//
// The body may be left out where nothing in it is needed. The answer is the thing as it is then. What the page of another
// origin sends is refused (403).
//
// An id in a path is escaped: "#" is %23, "/" is %2F. A list is {"items": [...],
// "next_cursor": null} and takes ?limit=, 1 to 1,000, by default 100; whoever sends next_cursor back as ?cursor= gets
// what comes after. A parameter that a path does not know is an error, so that a slip of the pen in a filter does not
// answer with everything.
//
// # Lists
//
// A list of runs or ticks reads from Redis what is on the page and little more, however many runs are outstanding and however
// long a history is. So outstanding runs come in the order of an index that the ledger has:
//
//	no filter, a job, or     by job; of each job the latest tick first, then runs without a tick, the last id first. The
//	state waiting            ids that lockstep makes sort by time, so that is the newest one
//	state running            by worker
//	state due                by queue, and the run that has been due for longest first
//	state scheduled or       the run that becomes due first
//	retrying
//
// With a job, a state other than running leaves the order by job. Finished runs follow those outstanding: the run that ended
// last first, those of one millisecond by id. Ticks of a job are in the same order, so a tick that is still pending comes
// before those that were settled, and a tick that was replayed is where its last run ended.
//
// Where no index has just the runs that a filter asks for, the server looks at 1,000 others at most. The page may then be
// shorter than its limit, or empty, while next_cursor leads on: a list ends where next_cursor is null. A cursor is for the
// filter that it was given under. It names a place, not a run, so it also works when that run has left the list. A run that
// ends between two pages may be listed twice, as outstanding and as finished.
//
// Errors are application/problem+json (RFC 9457), or a small page for a browser that opens a path beside the API: 400 for a
// bad parameter or body, 401, 403, 404, 405, 409 for what cannot be done to a thing in its state or was meant for another
// worker, 413 for a body that is too large, 429 for too many sign-ins, 500 when Redis refuses for good (a missing right),
// and 503 while Redis cannot be read or written to.
//
// # One read a second
//
// Pages refresh themselves every second and scripts poll. However many there are, each thing is read at most once a
// second and everybody gets that answer; who comes while it is being read waits for it. A read that took long is kept
// five times as long as it took, up to half a minute, so that an installation with very much to show does not spend its
// Redis on being looked at. The page shows of each kind the first few and says what it leaves out.
//
// # When Redis cannot be read
//
// The API answers 503. The page answers 503 too, with a banner that says why, above what was last seen and when that
// was. /livez stays 200: a probe that asks Redis would have all workers restarted in an outage. /metrics goes on with what
// the process itself counts, and says lockstep_redis_up 0 in place of what it would see of the lock space. A Redis that
// can be read but takes no writes, because its memory is full for example, is lockstep_redis_up 0 as well.
//
// # Who is let in
//
// /livez, /readyz and /metrics are open to every client, under any host name. For all else admin.auth.mode decides:
//
//	none    every client, at a loopback address. Any other address answers 403, so that nothing is open by accident
//	basic   user and password, of one user (password_file) or of many (users_file, by htpasswd -B -C 12)
//	token   Authorization: Bearer, for scripts: no browser sends it by itself
//	proxy   the user that a reverse proxy names in a header, when the request comes from one of its addresses
//
// Without them the answer is 401 with a challenge. The user who signed in is shown by whoami and kept in the audit, with
// the address that the request came from. Every user who is let in may do everything.
//
// The files are read for each request: what is written there counts at once, and while one cannot be read, the answer is
// 503 and the log says why. A comparison takes the same time whatever is wrong, with a users file that of its most costly
// hash, so time reveals neither a password nor which users exist. Hashes of a cost below 10 are warned of by check, doctor
// and start.
//
// A sign-in with credentials that were not right before takes a token from two buckets: one of its address (10, then one in
// 5 seconds; an IPv6 address counts by its /64) and one of all addresses (20, then 3 a second). Without a token the answer
// is 429 with Retry-After, after a second. Credentials that were right are remembered for a day, in memory and hashed,
// with the address that they came from and until the file changes: they need no token and never wait, so guessers lock
// no user out who has signed in before. One hash is computed at a time, so that guessers do not take the processors from
// the jobs. Refused sign-ins are logged, at most one a second. In mode proxy no secret is compared, so nothing is limited
// here: the proxy does that. Behind a proxy in mode basic or token, all clients have the proxy's address and share its bucket.
//
// # The audit
//
// Each action is kept in Redis with its actor, reason and time, for 90 days and up to 50,000 of them: those of people, of
// the command line, of programs that ask for runs, and reloads of a config. Repeats are one entry with their number (times)
// and the time of the first: the same actor does the same to the same thing within ten minutes, or asks for runs of the same
// job within an hour. So no number of repeats pushes other entries out. A process keeps the first request of an actor for a
// job in the step that makes the run, and counts those that follow: it keeps their number every ten seconds and when it ends,
// and loses at most that when it is killed.
//
// The worker that serves also logs each action, and each one that is refused: because of its sign-in, its origin, its body,
// or the state of what it is about. Requests for runs and refusals that repeat within a minute are one line with their
// number; a refusal leaves nothing in Redis.
//
// # Host names
//
// A web page can make a name of its own point to 127.0.0.1; its requests then come from the browser of this machine, and
// are of the page's origin (DNS rebinding). So in modes none and proxy a request is answered only under an IP address,
// localhost, or a name of admin.hosts, and gets 403 under any other. In modes basic and token the browser has no password
// or token for such a name; there the check is made only if admin.hosts is set. In mode none a request with a header
// Forwarded, X-Forwarded-... or X-Real-Ip gets 403 too: a reverse proxy in front would let in all that reach it.
//
// # Connections
//
// The jobs run in the process that serves, so what clients can take of its memory is bounded. [Serve] takes 384 connections
// at a time. One more closes the least needed one: the oldest that is idle, else the oldest that has sent nothing, else the
// oldest that is sending its request, else the oldest that is slow to read its reply. When all are at work, 32 more
// are let in for probes; other requests get 503 with Retry-After there. A header may take 5 seconds and 64 KiB, a whole
// request 10 seconds, a body 1 MiB; of bodies above 16 KiB, 32 are read at a time, and one that takes more than a second
// makes room for another.
//
// The command line works on Redis and signs in nowhere. For the one thing that it asks of a worker, to load its config
// again, it brings a ticket: a random text that each worker makes at its start and keeps in its session's card, where
// those can read it who can read Redis. It opens nothing else, and the API does not show it.
//
// # Not promised
//
// There is no TLS: on a network that others can listen to, put a reverse proxy that has it in front. In mode none every
// program that can open a port of this machine can read and act, and have the worker read its config files again; in mode
// proxy every program at one of the proxies' addresses can name any user.
//
// A guesser at the address of a user who has signed in (the same host, a NAT, a proxy in front of mode basic) gets 256
// guesses a second at that user's password, and none above; other guessers get the 12 a minute of their bucket. One that
// makes more than 256 requests at a time keeps the users at its own address out. A guesser with very many addresses
// can keep users from signing in for the first time, though not those who have signed in before.
//
// One answer is put together from several reads, one after the other: a run may show as running in one place and have ended
// in another. Ask the ledger, by the run's id, for the last word.
package admin
