// Package locks takes named locks in Redis, many at once, and ends the work under them before the
// locks can pass to another client.
//
//	client, err := locks.Open(ctx, rdb, locks.Options{})   // one per process; Close it at the end
//	hold, err := client.Acquire(ctx, locks.Exclusive("bill:1001", "bill:1002"))
//	defer hold.Release()
//	work(hold.Context(), hold.Token())
//
// Which call to use:
//
//   - [Open] returns the [Client] of this process. [Client.Close] ends it.
//   - [Client.Acquire] waits until the whole bundle is free. [Wait] bounds the waiting.
//   - [Client.TryAcquire] never waits. The error names the holder in the way.
//   - [Exclusive], [Shared], [AtMost] and [Permits] set the mode of each resource. A bundle can mix
//     them. [Client.Declare] sets how many permits a resource has.
//   - Package rule declares the locks of a function beside it, by names made from its arguments.
//   - [Hold.Context] is the context to work under. It ends while the lock is still yours.
//   - [Hold.Token] goes to every system that can refuse an older token. Nothing else protects it
//     from the late writes of a paused process.
//   - [Hold.Release] passes the bundle on to the waiters.
//   - [Client.Acquire] with a hold's context asks for more under that hold. [Client.Join] enters
//     the hold of another process.
//   - [MaxHold], [MinHold] and [CrashDelay] bound a hold from above and from below.
//   - [Client.Space] and [NewSpace] return the [Space]. Its calls [space.Space.Read],
//     [space.Space.HeldBy] and [space.Space.Sessions] list holders, waiters and live sessions
//     without taking a lock. Package space describes what they return. [Space.Revoke] takes a lock
//     back.
//   - [Client.Extension] is for a program that grants bundles in scripts of its own, as the ledger
//     of the scheduler does. No other program needs it, or its [Request] and [Grant].
//
// README.md beside this file shows how locks of other libraries translate to these calls.
//
// # The problem
//
// A lock in Redis is a lease: when its holder dies, it must pass on by itself. So it can also pass
// on while its holder is alive but stopped, cut off from the network, or just slow. Then two
// processes work under one lock. Bundles of several locks add two problems. Taken one after the
// other, they deadlock. Taken all or none by trying again and again, large bundles starve. And a
// lost reply leaves a lock behind, and its holder does not know that it has it.
//
// # Words
//
// A resource is a name. A bundle is the set of resources that one request asks for, each in a mode;
// they are granted together or not at all. A hold is a granted bundle, a wait is a queued request.
// A request is nested in the hold whose context it has, and in all holds that this one is nested
// in. It re-enters the resources that those holds already have. A hold rests when no work runs
// under it anymore and its bundle stays taken (MinHold, CrashDelay).
//
// A session is the lease of one client in Redis. All its holds and waits live and die with it, so
// one command renews any number of them. The space is everything stored for one namespace: eight
// keys with one hash tag, written only by Lua scripts. A token is a number that grows with every
// grant of the space. A request ID is used once. When the request is granted, it becomes the ID of
// the hold.
//
// # How it works
//
// Scripts make every decision, one at a time, by the server's clock. Package space has the scripts,
// and describes what they store.
//
// A request for a free bundle is granted in one round trip. Otherwise it gets a ticket and joins
// the queue of each of its resources. The script that frees a resource walks the queue from the
// oldest ticket and grants to the first request that can get its whole bundle. So the next holder
// has the lock before the releaser has its reply, and learns of it by one message. Until a request
// is as old as Options.ReserveAfter, later requests may pass it while another part of its bundle is
// held. After that, no request for one of its resources passes it.
//
// A resource is held exclusively by one hold or shared by many. If a number of permits was declared
// for it, its holds together have at most that many permits. A declared resource has no other mode.
// Incompatible requests wait. A request that can never be granted as written gets an error.
//
//	open ──granted──────────────▶ held ──Release──▶ over
//	  │                            ▲ │
//	  ├─queued─▶ waiting ──granted─┘ └─session lost─▶ lost: context ends, cause ErrLost
//	  │            │
//	  └─refused────┴─limit, canceled, session lost─▶ over
//
// The timer wheel in Redis holds everything that falls due with time: ends of sessions, limits of
// waits. Every script handles a bounded number of due entries before its own work. Since no other
// client may call for hours, a client with a waiting request calls at the moment the next entry
// falls due. It learns of that entry from each reply, those to its renewals included. When a
// released hold must stay taken for some time, a message tells one of the clients that wait for it.
//
// # Nesting
//
// Re-entry follows the context, not the caller: work under [Hold.Context] is under that hold's
// locks. A nested request asks Redis only for the resources that none of its outer holds has. If
// none is left, it sends nothing. A hold is freed when its last user leaves; the users are the hold
// itself and the holds that re-enter it. A hold outside the chain of contexts, such as a sibling's,
// is as busy as any other.
//
// An exclusive request for a resource that an outer hold shares is an upgrade. It waits until no
// other hold shares the resource. Its release leaves the share as it was. [Hold.Downgrade] goes the
// other way.
//
// A nested request comes before plain ones, since its process keeps other resources taken while it
// waits. But no request may starve: once a request, plain or nested, has waited for
// Options.ReserveAfter, later nested requests wait behind it. The exception is an aged request that
// waits, directly or through others, for a hold that the nested request is inside. Waiting behind
// that one would be a deadlock, so the nested request passes it. This is decided anew whenever a
// request is queued, and it ignores amounts: a request that waits for one of three permits depends
// on all three holders. A nested request also passes when the search for such a dependency is cut
// short.
//
// A holder that waits for more can deadlock. So the script that queues a nested request checks for
// a cycle first. If the request would close a cycle, it is the youngest in that cycle: it is not
// queued and gets a [DeadlockError] that names the others. Two holders that share a resource and
// both upgrade it form such a cycle. A request that waits for permits is part of a cycle only if
// the holders outside the cycle cannot return enough permits. Below an upgrade, the holders of the
// share count, too. So the end of an upgrade never closes a cycle that was not found when its last
// request was queued.
//
// A lowered limit ([Client.Declare]) can close a cycle among requests that already wait. The script
// that lowers it examines the nested requests that wait for these permits. It takes the youngest
// wait of each cycle out of the queues and has its client ask again; that request gets the
// [DeadlockError]. Requests for more permits than the new limit allows leave the queues the same
// way and get [ErrInvalid]. A run of the scheduler fails with that reason.
//
// A search reads a bounded number of holds and waits, so that it does not keep Redis busy. Holds
// without nested waits cost it nothing. A hold that the search does not reach counts as one that
// never ends. The request is then refused with [DeadlockError].Cut set, rather than left in a
// possible deadlock.
//
// # Taking back
//
// A hold ends before its release when its session is lost, when [MaxHold] is over, or when it is
// revoked. In every case the context ends first, in this process, with a cause that is [ErrLost].
// The bundle passes on when the holder has released it. After a limit or a lost session it passes
// on at the latest Client.Cutoff later. Only [Seize] does not wait for the holder. A revocation
// names the hold by its token, so it never touches a later grant of the lock.
//
// # The watchdog
//
// Each renewal is counted from before it was sent. For one lease from that moment, less a margin
// for clock rates, Redis cannot have given the session's locks to another client. Every hold's
// context ends earlier, with the cause [ErrLost], by Client.Cutoff: 3 s, or a fifth of the lease if
// that is less. At the end of that time the session is dead in this process, whatever Redis replies
// later, and a new one is opened. An error never moves the deadline, and the goroutine that checks
// it does no I/O. Elapsed time is the larger of the monotonic and the boot clock's, because the
// monotonic clock stops while the machine sleeps.
//
// The wall clock does not count as elapsed time, because it can be set: chrony steps it after a
// resume. A step of the wall clock alone makes the client renew the session at once. If the lease
// would be over by the wall clock, Redis has Client.Cutoff to reply; without a reply, work ends as
// at the end of the lease. All other clocks may have stopped, as in a virtual machine that was
// paused. If the session has ended in Redis, the reply says so and ends it here.
//
// # Nothing stays held without an owner
//
// Every script may be sent twice: it is keyed by an ID that is never used again. A command without
// a reply is sent again until it gets one or the session is dead. When the caller's context ends,
// the call returns at once; the request is released in the background once its reply is in.
//
// A copy of a command that was stuck in the network and is applied later would take a hold without
// an owner. If a command of a request got no reply, such a copy may exist, so the client releases
// that request once more at every renewal, for two minutes. Other copies show in the number of
// holds and waits that the session has in Redis, which every renewal returns. When the open
// requests do not explain that number, the client compares its table with Redis and releases
// whatever it does not know. While requests are in flight, the number may match by chance. So after
// three renewals in a row that proved nothing, the client compares in any case. Such a hold is
// therefore released after one renewal, or on a busy session after four: a lease and a third.
//
// The same comparison finds grants with a lost message: each grant has a revision, and the renewal
// returns the last one.
//
// # Many callers
//
// Redis runs one script at a time, and calling a script costs more than what most of the scripts
// do. So acquires and releases have a fast path. It serves exclusive bundles that are not nested
// and have no limits, as long as no request waits for any of their names and, for an acquire,
// nothing is due. The fast path takes ten commands for the pair, before Redis creates any function
// of the long path. While requests wait for other names, it takes one more command per name.
//
// A name that many requests contend for has a second fast path. Such an acquire of one name begins
// to wait behind the exclusive hold on it, and a release passes the name to the first request in
// its queue, if that asks for this name alone. The two scripts of a hand-off take 38 commands, and
// create few functions: less than half of the time of the long path.
//
// Requests that many goroutines make while two calls are in flight share one script, which takes
// the fast path for each. That costs about nine commands for all of them. Each request is granted
// by itself, or left to be sent alone. If a caller's context ends, it does not wait for any of
// that.
//
// The fast paths do exactly what the long path would do. An acquire yields only to requests in the
// queues of its names, and takes nothing that another request waits for. A release frees only its
// own names, so only requests in their queues can pass. On the first fast path, neither changes
// what a waiting request depends on (see Nesting): such a chain leads from a request to the holders
// of the resources that it waits for, and no request waits for these names. A wait that has an
// offer or a lapsed one, or that is kept back is in no queue. Either its reservation occupies the
// names, or it is not granted until it is back in the queues.
//
// # When Redis loses data
//
// A failover loses the last writes; a restart without persistence and FLUSHALL lose everything.
// Redis could then grant resources that are still in use, unless their holders re-assert them
// first. The space has a random ID and an epoch, and remembers the run ID of its server. A session
// knows the ID, and the epoch in which it last asserted everything it holds.
//
// A new server is detected by its run ID, which space/scripts/greet.lua compares on every new
// connection before anything else is sent over it. A replica of a cluster may take over under
// connections that exist already, so a node is greeted again before the first script that it
// receives as the master. Renewals compare, too, for proxies that keep connections. An emptied
// space is detected by its missing or different ID.
//
// The run ID comes from INFO, so a client needs the right +info: [Open] refuses to start without
// it, and the client logs an error if it is withdrawn later. Where a provider hides the run ID, the
// replication ID (master_replid) takes its place. It changes with a restart and a promotion, and
// sometimes without one (when the first replica connects, or an hour after the last one left),
// which costs a grace period. Where both are hidden, a new server is not detected, and
// [CheckServer] warns.
//
// Some scripts arrive over connections that were not greeted: [Space.Revoke], [Space.EndSession]
// and the operations of packages above use their caller's. None of them requests a bundle, but what
// they free may go to a waiter. So a script that is about to grant to a wait compares the server
// first. If the server is another one, the script starts a grace period of the longest lease that
// Redis knows of, instead of granting. The next connection that is greeted begins the epoch and
// extends the grace period as needed. Reading never starts one.
//
// Detection starts a grace period and, on another server, a new epoch. During the grace period no
// bundle is granted or offered; releases are accepted. Every session's lease ends with it, whatever
// the last server's clock said. It lasts as long as the longest lease in use, plus the time for
// which clients may still renew on a replaced master: half of cluster-node-timeout on Cluster,
// min-replicas-max-lag where min-replicas-to-write is set, and 4 s on Sentinel (5 s with TLS) where
// it is not (Options.Grace). So a client that was not heard during the grace period has been cut
// off before it ends.
//
// On Sentinel, a replaced master may keep replying until a sentinel makes it a replica. By default
// that takes 8 to 18 s, or forever if no sentinel reaches it. So each client asks Sentinel once a
// second (every two with TLS) which server is the master, and at once after a READONLY or
// NOREPLICAS reply. It closes its connections to any other server and sends commands that were in
// flight again, to the new master. With min-replicas-to-write, run one replica more than it
// demands: a new master refuses writes until enough of the others have joined it, and if it must
// wait for the old master, that takes those 8 to 18 s.
//
// On Cluster, a master that stops names no successor, and go-redis keeps its view of the slots for
// up to a minute. So after a command without a reply, or one that says CLUSTERDOWN, each client
// looks at the slots again, and so does the client that [Open] was given. A node that is silent for
// 2.5 s counts as stopped.
//
// When the reply to its renewal names another epoch or ID, each session re-asserts:
//
//   - the permits that its client has declared;
//   - the highest token that it has seen, so that the next one is higher;
//   - its holds, in pages, each as it was granted. That includes holds that a limit ended and that
//     are not released yet, but no hold with a release under way.
//
// Until its last page is accepted, the session's renewals are refused and its deadline does not
// move. Afterward the client compares its table with Redis: it releases again what was released
// meanwhile, and asks again for waits that are missing, at the end of the queue. A session that
// asserts after the grace period is late and is cut off. A client that was cut off declares its
// permits again when it opens its next session.
//
// Of two holds on one resource, the one with the higher token wins: its holder was granted later,
// by a server that did not know of the other. Of permits, those with the lowest tokens lose. A
// holder that loses is notified at once, and its work ends with the cause [ErrLost]. Permits that
// no client has declared again have a limit equal to the number asserted, until a client declares
// them. When the grace period ends, holds that no session asserted are released, and then all waits
// are examined.
//
// A space that is created on a server younger than the lease waits a second before its first grant.
// A client that knew another space there reconnects within that time and turns the second into a
// full grace period. The same happens as long as nothing was granted in the new space.
//
// Some cases remain. In a space that was emptied on a server that kept running (FLUSHALL), or after
// more than that second, a client that never knew the space may be granted a lock before its holder
// has asserted it. The holder is then late and is cut off within a third of the lease. Setting
// Options.Grace, which every new space waits for, closes that gap. A hold is lost if its holder
// died in the same moment as the data. A master that is cut off from its replicas and has no
// min-replicas-to-write may keep running for longer than the grace period ([CheckServer] warns). A
// script of another package that takes a bundle at once, not through a wait, must be sent over
// [Extension.Redis]. Otherwise a promoted server may grant it a lock that it does not know to be
// held.
//
// # Format
//
// All data of a namespace has one layout number, which package space describes. During a rolling
// upgrade, builds that write layouts N-1 and N share a namespace. A build that does not know the
// layout is refused with [ErrFormat]. A session whose lease has ended does not keep the layout from
// being raised. If its process returns afterward, it cannot open another session, and
// [Client.Failed] reports that.
//
// # Invariants
//
//  1. A resource is exclusive to one hold or offer; or it is shared, at each grant by no more holds
//     than that request allowed; or, at each grant, no more of its permits are in use than are
//     declared. Inside an outer hold's share, a nested hold may have the resource exclusively while
//     no other hold shares it.
//  2. A bundle is held whole or not at all.
//  3. After every script no wait is grantable, except during a grace period, or if the script hit
//     its limit of work. In the second case the timer wheel has an entry for that queue which is
//     due now, and the reply tells the caller to call again. A wait that is kept back is not
//     grantable.
//  4. Tokens grow: max(last + 1, server time in µs). This holds even if all keys are lost, unless
//     the clock is set back then.
//  5. Everything in a session's index is in its client's table, or is released within one renewal;
//     on a busy session within four.
//  6. The context of a hold ends before the lease of its session ends in Redis.
//  7. If every hold that has no nested waits ends, every wait is granted that asks for no more
//     permits than are declared.
//
// # When something fails
//
//   - The holder's process dies: its locks pass on when the lease ends, 15 s by default, to the
//     first in line. A parent that learns of the death ends the session at once
//     ([Space.EndSession]). In both cases the locks stay taken for their [CrashDelay]. A client
//     that is closed in order has no such delay.
//   - Redis is unreachable for less than 2/3 of the lease less the cutoff: nothing happens. If it
//     is unreachable for longer, all work under the session is canceled, and requests keep trying
//     and queue in the next session.
//   - Redis loses data: nothing is granted for about a lease, and live holds continue (see above).
//   - The process is stopped or suspended past its lease: its contexts end within 100 ms of its
//     resuming. Tokens cover what it does in between.
//   - The subscriber's connection breaks: the client learns of grants at the next renewal, or when
//     the connection is back.
//
// # What is not promised
//
// The hooks of the caller's go-redis client are not part of its options, and go-redis offers no way
// to read them. This package's own clients have only the hooks of [Options].Instrument.
//
// A handler that ignores its context can keep working after its lock has passed on, and a write
// that was sent before can arrive late. The token must be checked where the effect happens. Redis'
// clock must not be set forward, and the clock rates of machines must agree within 0.1 %. When a
// lock is seized, two holders may work at once for a while.
//
// The caller passes the context on. A request with an unrelated context is not nested and waits for
// its own process like any other. If that process in turn waits for the request, no script can see
// the cycle. Bundles cannot deadlock, but nested requests can, and one of them gets an error:
// asking for everything in one bundle is better. Where hundreds of nested requests wait for each
// other, a request that would have closed no cycle may be refused ([DeadlockError].Cut). Holds of
// different spaces know nothing of each other.
//
// However long a request has waited, nested requests that it depends on pass it. So do nested
// requests that arrived before it had waited for Options.ReserveAfter.
//
// A request for more than 32 resources checks only the oldest waiting request of each. If clients
// have different Options.ReserveAfter, it can pass one with a short time that is queued behind one
// with a long time. A script also checks at most about 500 old requests for such a bundle.
//
// Shared requests, and AtMost requests with a higher limit, can pass an AtMost request, however
// long it has waited. It is granted when few enough holds share the resource.
//
// MinHold and CrashDelay keep others out, nothing more: they are stored in Redis and are lost with
// its data. The limit of a request ([AtMost]) applies to that request, not to requests with another
// limit.
package locks
