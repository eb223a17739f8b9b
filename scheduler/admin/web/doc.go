// Package web shows the state of a fleet of workers over HTTP: as JSON, as pages, and as metrics.
// It also changes things: acts go through the [admin.Operator], and a request can make its worker
// read its config again. Package admin has the shapes of the answers, and the reader behind them.
//
// # Use
//
// A worker opens its address with [Listen], defines the sign-in with [NewSignIn], makes a [Server]
// with [New] and runs it with [Serve].
//
// # Paths
//
//	/                            the pages: the overview, and below it /jobs /jobs/{job}
//	                             /jobs/{job}/explain /runs /runs/{id} /locks /locks/{lock} /timeline
//	                             /workers /workers/{id} /queues /config /audit /jobs/next, with the
//	                             parameters of the API
//	/livez                       200 while the process serves; it does not ask Redis
//	/readyz                      200 while the worker may take runs, else 503: it drains, its
//	                             session is in doubt, or Redis takes no writes
//	/metrics                     for Prometheus: see Metrics
//	/api/v1/jobs                 ?note=: only those that are late, paused, queue paused, drifted,
//	                             carried by no worker, or in a queue that no worker serves
//	/api/v1/jobs/{job}           and jobs/{job}/ticks, jobs/{job}/explain?at= or ?run=
//	/api/v1/jobs/next            the next ticks of all jobs, the soonest first; ?until=: before a
//	                             time, or within a duration from now, ?job= ?queue=. A job with the
//	                             name next is in jobs?job=next
//	/api/v1/runs                 the outstanding ones first, then the finished ones; ?group=error:
//	                             counted by their errors, as admin.ErrorGroup
//	/api/v1/runs/{id}            with "waiting_for": why it does not run; "unusual": by how much a
//	                             running one exceeds the usual duration of its job's runs; and
//	                             "definition": the one that it was made with, if it is kept.
//	                             "parent" is the run from within which it was made, and "led_to"
//	                             those made from it; "trace_id" is the trace of its requester
//	/api/v1/runs/{id}/output     ?attempt=: the end of that attempt's output, else of the last one
//	                             that has printed something, as plain text
//	                             ?follow=true: what the attempts print while they print it, see Live
//	                             output
//	/api/v1/locks                and locks/{lock}: a lock without a holder is not an error, its
//	                             list of holders is empty
//	/api/v1/waits                in the order of their tickets
//	/api/v1/holds                ?since= &until= &worker= &lock= &job= &kind=: the holds and waits
//	                             of a window, present and ended ones. &group= worker, lock or job:
//	                             its items are groups of the page's entries. "kept_since": since
//	                             when all that ended is known
//	/api/v1/workers              and workers/{id}
//	/api/v1/queues               and queues/{queue}: what is due, how many runs come and begin, and
//	                             the actor and the reason of a pause
//	/api/v1/overview             what the page shows, with at most so much of each kind
//	/api/v1/config               of the worker that serves it: its config, and why its last reload
//	                             was refused; config/jobs: its jobs, and where each is defined
//	/api/v1/audit                the acts of people and programs, newest first
//	/api/v1/whoami               the client's identity: {"user", "mode", "role"}
//	/api/v1/events               what changes, as server-sent events: see below
//	/api/v1/openapi.json         these paths, as OpenAPI 3.1: see below
//
// These answer GET and HEAD and change nothing. The following take POST:
//
//	/api/v1/jobs/{job}/run       {"args", "id", "reason"}; jobs/{job}/pause and resume {"reason"}
//	/api/v1/jobs/{job}/replay    {"from", "to", "new_keys", "reason", "dry_run"}: run the ticks of a
//	                             span (again); jobs/{job}/skip, without new_keys: they do not run.
//	                             An error between two ticks says how many of them run again, and
//	                             from which one to continue
//	/api/v1/enqueue              {"job", "args", "id", "in", "at", "parent"}; 201 with the new run,
//	                             200 when the run already existed. parent is the run that asks, else
//	                             the header Lockstep-Run-Id, which an HTTP job sends to its service.
//	                             The headers traceparent and tracestate, here and in jobs/{job}/run,
//	                             are kept with the run, and its attempts continue that trace; an
//	                             invalid one is ignored.
//	                             ?wait=, a duration of at most 5m: reply when the run has ended, or
//	                             after that time with 202 and the run as it is, as also when 64
//	                             requests wait already.
//	                             {"items": [...], "atomic"}: up to 1,000 of them, with the same
//	                             fields, in at most 8 MiB. The reply is 207, and has {"status",
//	                             "id", "state", "error"} for each item, with the status that it
//	                             would have alone: one with an error does not affect the others.
//	                             With atomic, all of them are recorded, or, with an error that
//	                             names the first bad one (items[3]), none; they have at most 1 MiB
//	                             of args and lock keys. An item that is sent again needs its id,
//	                             or it is a new run
//	/api/v1/runs/{id}/cancel     and runs/{id}/retry {"reason"}
//	/api/v1/runs/cancel          and runs/retry {"reason", "dry_run", "expect"}: all runs that the
//	                             filters in the query find, at most 10,000; at least one filter. The
//	                             reply has the counts, as admin.Bulk; the refusal of one run does
//	                             not affect the others. 409 when not as many runs match as expected
//	/api/v1/workers/{id}/drain   {"reason"}
//	/api/v1/locks/{lock}/release {"token", "reason", "force"}; 409 when the token is not a present
//	                             holder's. With force the lock passes on at once: two holders may
//	                             then work at the same time
//	/api/v1/queues/{queue}/pause and resume {"reason"}
//	/api/v1/config/reload        {"worker"}: load the config again. 200 when the new config is in
//	                             use, 422 when the old one stays
//	/api/v1/config/check         what a reload would find: errors, warnings, changed jobs
//
// The body may be omitted where no field of it is needed. The reply is the changed object. With
// dry_run, the reply has what would be done, and nothing is done. A request that a page of another
// origin sends is refused (403).
//
// A browser acts on pages of their own, such as /jobs/{job}/pause or /locks/{lock}/release?token=.
// GET describes the outcome from the present state and asks for a reason; POST with that form acts
// and shows the result. When the state has changed since the page was drawn, POST does nothing and
// asks again (409). A job has pause, resume, run, replay and skip, a run cancel and retry, a lock
// release, a worker drain, a queue pause and resume. A user without the necessary role gets 403.
//
// /runs/cancel and /runs/retry act on many runs: on those that a form names, as run for each,
// at most the 50 of a page, or on all that the filters in the query find. The question counts them
// by state, and says which of the selected ones are skipped, and why; above 100 runs the number
// must be typed. Its form has fixed times instead of durations, and an until, so runs that are made
// later are not among them. POST compares the runs, and what would happen to each, with what the
// question said, and then acts on exactly those that it has compared; with fewer=yes it also acts
// when fewer of them are left. /runs?select=page is the list with all boxes checked.
//
// admin.base_path is the path under which a reverse proxy shows the server, and all links begin
// with it. The proxy may keep it in the requests that it passes on, or remove it: every path above
// is served with and without it, the probes too. When all connections are at work (see Connections
// below), only probes without it are answered.
//
// An id in a path is escaped: "#" is %23, "/" is %2F. A list is {"items": [...], "next_cursor":
// null} and takes ?limit=, 1 to 1,000, by default 100; to get the next page, send next_cursor as
// ?cursor=. Package admin describes the order of runs and ticks: a list ends where next_cursor is
// null, even if its last pages are short or empty. An unknown parameter is an error, so that a
// misspelled filter does not return everything. The filters of each list are in package admin:
// ?q=, ?job=, ?state=, ?worker=, ?lock=, ?queue=, ?since=, ?until= and ?error=, as far as the list
// has them.
//
// Errors are application/problem+json (RFC 9457), or a small page for a browser that opens a path
// outside the API: 400 for a bad parameter or body, 401, 403, 404, 405, 409 for an act that the
// state of its object does not allow or that was meant for another worker, 413 for a body that is
// too large, 429 for too many sign-ins, 500 when Redis refuses permanently (a missing right), and
// 503 while Redis cannot be read or written to.
//
// # One read a second
//
// A page loads itself again when the events name a part of the state that it shows, and every five
// seconds; without events it does so every second. However many clients there are, each thing is
// read at most once a second and all of them get that answer; a client that asks during the read
// waits for it. An answer is kept for five times as long as its read took, up to half a minute, so
// that an installation with very much to show does not spend its Redis on being looked at. The
// overview shows the first few of each kind and counts the rest; a page of a list has 50 rows and a
// link to the next ones. Long names and texts are cut, so no page exceeds 200 KiB. The timeline
// draws at most 320 bars: it merges those that are too close, and says so.
//
// # Events
//
// /api/v1/events is a stream of server-sent events (text/event-stream) for pages and scripts that
// follow what happens:
//
//	$ curl -N http://127.0.0.1:9620/api/v1/events
//	: lockstep
//	retry: 2000
//
//	event: run
//	data: {"id":"settle-bills#01K9B7ZK3M5W","job":"settle-bills","state":"running","was":"waiting"}
//
//	id: 3f9k2mqa-17
//	event: overview
//	data: {"revision":17,"at":"2026-11-23T20:05:01.000Z","sections":["locks","runs"],"more_runs":0}
//
// An event overview names the sections that have changed: workers, locks (holds), waits, jobs,
// runs, config (of the worker that serves), audit. Fields that change with time alone, such as
// held_seconds, are in no section. The first overview of a stream names all sections. A stream that
// a client opens again, with Last-Event-ID, begins with what has changed since then, or with all
// sections if that is not known any more.
//
// The events run before an overview are the runs that have changed their state. "was" is null for a
// run that was not seen before. The events are for watching, not for accounting: one that lasts
// less than a second may be missed, and so may some of very many at once, which more_runs counts.
// The lists of runs and the ledger behind them miss nothing.
//
// An event problem, {"status", "title", "detail"}, reports that Redis cannot be read. The next
// overview, possibly without sections, reports that it can be read.
//
// A stream adds at most one revision a second. It asks as any client does, so 100 streams cost
// Redis no more than one, and without a stream nothing is read. A comment follows at the latest 15
// seconds after the last event. A stream ends when the server stops, when its user may not sign in
// any more (checked every 15 seconds), and when its client takes more than 10 seconds to read what
// was sent. A server takes 128 streams; one more gets 503. A browser opens only six connections to
// a server of HTTP/1.1, so a page should close its stream while it is hidden.
//
// # The document of the API
//
// /api/v1/openapi.json is for generated clients and for checks of answers. It has the paths that
// this server answers, their parameters, requests, answers and problems, and the security scheme of
// admin.auth.mode. It is made at the first request, from the table in which each path is registered
// and from the Go types of the answers, so it cannot lack a path or a field. Null and missing
// differ in it as they do in the answers: a field that is always there may be null, one that may be
// missing is not. The tests of cmd/contract check it with a validator, and by a client that is
// generated from it.
//
// This package makes the document itself. A framework that makes it, such as huma, has its own form
// of handlers, and makes its own decisions about bodies, errors and schemas: for the same
// document, it would need all handlers rewritten, and half of these decisions undone.
//
// # Live output
//
// runs/{id}/output?follow=true is a stream of server-sent events until the run has ended, for an
// EventSource or curl -N. The data of each is a JSON object, a [admin.FollowEvent]:
//
//	waiting  {"text"}: why the run does not run yet
//	attempt  {"attempt", "worker", "state", "text"}: it is running, or how it has ended, and its
//	         error
//	output   {"attempt", "from", "to", "text"}: a part of the output, and its place in bytes (from 0
//	         is omitted); or with "stored" the end of the output of an attempt that was not followed
//	note     {"attempt", "text"}: why output is missing
//	end      {"state", "text"}: how the run has ended; the client closes the stream
//
// The first output is the end of what the attempt has printed so far. The next attempt is followed,
// too, on whatever worker it runs. The ID of an event is the place up to which the client has the
// output: an EventSource that has lost its connection gets the rest. Output arrives within about a
// second. A stream is sent a comment every 15 seconds; 64 streams are served at a time. When the
// server has no connection left, a stream makes room for another client.
//
// # Pages that stay current
//
// The script of a page, page/live.js, follows the events. When they name a section that the page
// shows, htmx fetches the page again and morphs it in place: elements with the same id stay the
// same, so the rows of a list have ids. A hidden or paused page asks for nothing and holds no
// connection. Without scripts a page has a link that loads it again.
//
// page/htmx.min.js is dist/htmx.min.js of the npm package htmx.org, version 4.0.1, unchanged; its
// license is page/htmx.LICENSE. The pages give it no attributes: live.js calls it, and hx-ignore
// keeps it from acting on any, so no text of a page becomes code.
//
// # When Redis cannot be read
//
// The API and the pages answer 503. The overview does so with a banner that gives the reason, above
// the last data it read and their time; another page that is open keeps its data below the banner.
// /livez stays 200: a probe that asks Redis would restart all workers in an outage. /metrics
// continues to serve what the process itself counts, and reports lockstep_redis_up 0 instead of the
// metrics of the fleet. A Redis that can be read but takes no writes, for example because its
// memory is full, also makes lockstep_redis_up 0.
//
// # Metrics
//
// Each worker shows what only it knows: its slots and attempts, its lease and clock, its config,
// and how long its runs, their starts and waits, and its scripts took. The worker on duty also
// shows the fleet: jobs, queues, locks, workers, and the counters of ends, which are the totals of
// the ledger (see package ledger) and therefore miss no end, whichever process wrote it. When duty
// moves, the worker that had it shows them no more, so a sum over all workers is right within a
// scrape or two.
//
// The counters continue with their values on the next worker. To Prometheus, that is a new series,
// whose first value no rate sees; and while the old and the new series overlap, a rate over their
// sum sees a restart. The maximum over all workers has neither: the rules in configs/deploy record
// it, and a rate over that is exact, also for a run that ends with its worker's death. Counters
// have no created timestamp for the same reason: it would make a scraper that uses it add the whole
// value again whenever duty moves.
//
// A job has labels of its own if it is among the first metrics.jobs by name; the others are summed
// up under _other. In the durations of runs, it is among the first of them that ended on the
// worker. If there are others, and duty moves after a job was forgotten or changed sides, the
// counters of _other may fall, which a rate takes for a restart. So they may fall for all jobs if a
// failover takes the last ends along, and duty moves before the workers have re-asserted them.
//
// # Access
//
// /livez, /readyz and /metrics are open to every client, under any host name. For everything else
// admin.auth.mode decides:
//
//	none    every client, at a loopback address. Any other address answers 403, so that nothing is
//	        open by accident
//	basic   user and password, of one user (password_file) or of many (users_file, made by
//	        htpasswd -B -C 12)
//	token   Authorization: Bearer, for scripts: no browser sends it by itself
//	proxy   the user that a reverse proxy names in a header, when the request comes from one of its
//	        addresses
//
// Without them the answer is 401 with a challenge. whoami shows the signed-in user, and the audit
// keeps the name with the address that the request came from.
//
// # Roles
//
// Each user has a role, and may do what the roles above it may do, too:
//
//	viewer    reads everything. env, headers and secret args of jobs are shown to no user
//	operator  starts, pauses and resumes jobs, replays and skips their ticks, enqueues, cancels and
//	          retries runs, pauses and resumes queues, and asks the holder of a lock to release it
//	admin     releases locks by force, drains workers, makes them load or check a config, and
//	          forgets jobs and permits
//
// The rest is 403 and names the role that is needed. Where the role of a user comes from:
//
//	none    every client is an admin
//	basic   the third field of a line of the users file, name:hash:role. A user without a role is a
//	        viewer. In a file without any role all users are admins, as they were before there
//	        were roles; check, doctor and start warn about that. The one user of password_file is
//	        an admin
//	token   the file of the token: token_file for admins, operator_token_file, viewer_token_file
//	proxy   the groups in groups_header, separated by commas or by |, and the lists admins,
//	        operators and viewers, in which * is a group of every user. The highest role counts; a
//	        user without one gets 403 for everything. Without groups_header every user is an admin
//
// admin.read_only makes every user a viewer. It does not bind the command line, which works on
// Redis, nor its requests to load a config again.
//
// # Files
//
// The files are read for each request: a change takes effect at once, and while a file cannot be
// read, the answer is 503 and the log has the reason. A comparison takes the same time whatever is
// wrong; with a users file, the time of its most costly hash. So time reveals neither a password
// nor which users exist. check, doctor and start warn about hashes of a cost below 10.
//
// A sign-in with credentials that were not right before takes a token from two buckets: the bucket
// of its address (10, then one in 5 seconds; an IPv6 address counts by its /64) and that of all
// addresses (20, then 3 a second). Without a token the answer is 429 with Retry-After, after a
// second. Right credentials are remembered for a day, in memory and hashed, with the address that
// they came from and until the file changes: they need no token and never wait, so guessers cannot
// lock out a user with an earlier sign-in. One hash is computed at a time, so that guessers do not
// take the processors from the jobs. Refused sign-ins are logged, at most one a second. Mode proxy
// compares no secret, so it limits nothing here: the proxy does that. Behind a proxy in mode basic
// or token, all clients have the proxy's address and share its bucket.
//
// # The log of actions
//
// The worker that serves also logs each action, and each refused one: refused because of its
// sign-in, its origin, its body, or the state of its object. Requests for runs and refusals that
// repeat within a minute are one line with their number; a refusal leaves nothing in Redis.
//
// # Host names
//
// A web page can make a name of its own point to 127.0.0.1; its requests then come from the browser
// of this machine, and have the page's origin (DNS rebinding). So in modes none and proxy a request
// is answered only under an IP address, localhost, or a name of admin.hosts, and gets 403 under any
// other. In modes basic and token the browser has no password or token for such a name; there the
// check is made only if admin.hosts is set. In mode none a request with a header Forwarded,
// X-Forwarded-... or X-Real-Ip also gets 403: a reverse proxy in front would let in all of its
// clients.
//
// # Connections
//
// The jobs run in the process that serves, so the memory that clients can take is bounded. [Serve]
// takes 384 connections at a time. One more closes the least needed one: the oldest that is idle,
// else the oldest that has sent nothing, else the oldest that is sending its request, else the
// stream of events that has been quiet for longest, else the oldest that is slow to read its reply.
// When all are at work, 32 more are accepted for probes; other requests get 503 with Retry-After on
// them. A header may take 5 seconds and 64 KiB, a whole request 10 seconds, a body 1 MiB; of bodies
// above 16 KiB, 32 are read at a time, and one that takes more than a second makes room for
// another.
//
// The command line works on Redis and signs in nowhere. Only one request goes to a worker, to load
// its config again, and it carries a ticket: a random text that each worker makes at its start and
// keeps in its session's card, where every client that can read Redis can read it. The ticket opens
// nothing else, and the API does not show it.
//
// # Not promised
//
// There is no TLS: on a network where others can listen, put a reverse proxy with TLS in front. In
// mode none every program that can open a port of this machine can read and act, and make the
// worker read its config files again; in mode proxy every program at one of the proxies' addresses
// can name any user and group.
//
// A guesser at the address of a signed-in user (the same host, a NAT, a proxy in front of
// mode basic) gets 256 guesses a second at that user's password, and no more; other guessers get
// the 12 a minute of their bucket. A guesser that makes more than 256 requests at a time locks out
// the users at its own address. A guesser with very many addresses can keep users from signing in
// for the first time, though not those with an earlier sign-in.
package web
