// Package locks takes named locks in Redis, many at once, and ends the work under them before they can pass to somebody
// else.
//
//	client, err := locks.Open(ctx, rdb, locks.Options{})   // one per process; Close it at the end
//	hold, err := client.Acquire(ctx, locks.Exclusive("bill:1001", "bill:1002"))
//	defer hold.Release()
//	work(hold.Context(), hold.Token())
//
// Which call to use:
//
//   - [Client.Acquire] waits until the whole bundle is free. [Wait] bounds the waiting.
//   - [Client.TryAcquire] never waits. The error says who is in the way.
//   - [Exclusive], [Shared], [AtMost] and [Permits] say how each resource is wanted; they mix in one bundle.
//   - [NewRule] with [Do] or [Wrap] declares beside the work what it locks, by names made from its arguments.
//   - [Hold.Context] is the context to work under: it ends while the lock is still yours.
//   - [Hold.Token] goes to whatever can refuse an older one: only that protects what a paused process writes late.
//   - [Client.Acquire] with a hold's context asks for more under it, [Client.Join] enters the hold of another process.
//   - [MaxHold], [ProgressWithin], [MinHold] and [CrashDelay] bound a hold from above and from below.
//   - [Space.Read], [Space.HeldBy] and [Space.Sessions] tell who holds, who waits and who lives, without a lock of one's own;
//     [Space.Revoke] takes one back.
//
// README.md beside this file says how locks from elsewhere translate to these calls.
//
// # The problem
//
// A lock in Redis is a lease: when its holder dies, it has to pass on by itself. So it can also pass on while its holder
// lives: stopped, cut off from the network, or only slow. Then two of them work. A bundle of several locks adds: taken
// one after the other they deadlock; taken all or none, by trying again and again, large bundles starve. And a reply
// that is lost leaves a lock that nobody knows he has.
//
// # Words
//
// A resource is a name. A bundle is the set of resources that one request asks for, each in a mode, granted together or not
// at all. A hold is a granted bundle, a wait is a queued request. A request is nested in the hold whose context it has, and
// in all that one is nested in; it re-enters what these have already. A hold rests when nobody works under it any more and
// its bundle stays taken (MinHold, CrashDelay). A session is the lease of one client in Redis; all its holds and
// waits stand and fall with it, so that one command renews any number of them. The space is all of it: eight keys with
// one hash tag, written by Lua scripts alone. A token is a number that grows with every grant of the space. A request id
// is used once; when it is granted, it is the hold's id.
//
// # How it works
//
// Everything that decides happens in scripts, one at a time, by the server's clock (scripts/keys.lua tells the layout).
//
// A request whose bundle is free is granted in one round trip. Else it gets a ticket and stands in the queue of each of
// its resources. The script that frees a resource walks its queue from the oldest ticket on and grants to the first
// request whose whole bundle is free; so the next holder has the lock before the releaser has its answer, and hears of it
// by one message. Until a request is as old as Options.ReserveAfter, later ones may pass it while some other part of its
// bundle is held; after that nobody who wants one of its resources may.
//
// A resource is held exclusively by one hold, or shared by many, or, once a number of permits was declared for it, by holds
// that have no more permits together than there are; a declared resource has no other mode. What is incompatible waits,
// what can never be granted as it is asked is an error.
//
//	open ──granted──────────────▶ held ──Release──▶ over
//	  │                            ▲ │
//	  ├─queued─▶ waiting ──granted─┘ └─session lost─▶ lost: context ends, cause ErrLost
//	  │            │
//	  └─refused────┴─limit, cancelled, session lost─▶ over
//
// The timer wheel in Redis holds what is due by itself: ends of sessions, limits of waits. Every script does a bounded
// amount of what is due before its own work. Since nobody else may call for hours, a client with a waiting request calls
// at the moment of the next due entry.
//
// # Nesting
//
// Re-entry goes by the context and not by who calls: what runs under [Hold.Context] works under that hold's locks. A nested
// request asks Redis only for what none of its holds has; when nothing is left, it asks nothing. A hold is freed by the last
// of those that make use of it, itself included. A hold beside the chain of contexts, a sibling's, is somebody else's.
//
// To ask exclusively for what an outer hold shares is an upgrade: it waits until no other hold shares the resource, and
// leaves the share as it was when it is released. [Hold.Downgrade] goes the other way.
//
// A nested request comes before plain ones, since its process keeps other resources taken while it waits. But no request
// must starve: once a request, plain or nested, has waited for Options.ReserveAfter, nested requests that come later wait
// behind it. The exception is a request that depends on the nested one, directly or through others: it waits for a hold
// that the nested one is inside. To wait behind that one would be a circle, so the nested request passes it. This is
// decided anew whenever a request is queued, and it takes no account of amounts: a request that waits for one of three
// permits depends on all three holders. A nested request also passes where a search is cut short.
//
// A holder that waits for more can deadlock. So a nested request that must wait is checked for a cycle, in the script that
// queues it. When it would close a circle it is the youngest in that, is not queued, and gets a [DeadlockError] that
// names the others. Two holders that share a resource and both upgrade it are such a circle. A request that waits for
// permits is in one only when too few can come back from the holders that do not wait for it. Below an upgrade, the holders
// of the share count, too, so the end of an upgrade closes no circle that was not found when its last request was queued.
//
// A lowered limit ([Client.Declare]) can close a circle among requests that wait already. The script that lowers it looks at
// the nested ones that wait for these permits, takes the youngest wait of each circle out of the queues, and has its
// client ask again. That request gets the [DeadlockError]. Requests that wait for more permits than the new limit allows leave
// the queues in the same way, and get [ErrInvalid]; a run of the scheduler fails with that reason.
//
// A search reads a bounded number of holds and waits, so that it does not keep Redis busy. Holds without waiting requests
// inside cost it nothing. What it does not get to counts as a hold that never ends: the request is refused with
// [DeadlockError.Cut] set rather than left in what may be a circle.
//
// # Taking back
//
// A hold ends before its release when its session is lost, when [MaxHold] is over, when the work makes no progress
// ([ProgressWithin]), or when somebody revokes it. Whatever it is, the context ends first, here, with a cause that is
// [ErrLost]; the bundle passes on when the holder has released it, and by a limit or a lost session at the latest
// Client.Cutoff later. Only [Seize] does not wait for the holder. A revocation names the hold by its token, so a lock that
// has moved on is left alone.
//
// # Waits of the space
//
// Waits may also belong to the space instead of a session: runs of the scheduler wait so, without a worker. Such a wait
// is not granted its bundle but offered it: the bundle is reserved for some seconds, the session that is the desk is told
// (Options.OnOffer), and a script of package ledger turns the offer into a hold. An offer that is not taken lapses; the
// wait keeps its ticket.
//
// Each of them has a class (the run's queue), and a class can be kept back, when nobody would take an offer: its waits step
// out of the queues, are in nobody's way and are offered nothing. They keep their tickets, and the script that lets the
// class go puts them back into their places and offers what is free.
//
// # The watchdog
//
// Each renewal is counted from before it was sent. Until its lease, less a margin for clock rates, has passed from then
// on, Redis surely has not given the session's locks to anybody. Some time before that moment (Client.Cutoff: 3 s, or a
// fifth of the lease if that is less) every hold's context ends with the cause [ErrLost]; at that moment the session is
// dead here, whatever Redis says later, and a new one is opened. An error never moves the deadline, and the goroutine
// that looks at it does no I/O. Passed time is the larger of what the monotonic and the boot clock say, because the first one
// stands still while the machine sleeps.
//
// The wall clock is not counted like that, because it can be set: chrony steps it after a resume. A step of it alone has the
// session renewed at once. Where the lease would be over by the wall clock, Redis has Client.Cutoff to answer, and work ends as
// at the end of the lease if it does not: all other clocks may have stood still, as in a virtual machine that was paused. A
// session that is over in Redis ends with the reply.
//
// # Nothing stays held without an owner
//
// Every script may be sent twice: it is keyed by an ID that is never used again. A command without a reply is sent again
// until it gets one or the session is dead. When the caller's context ends, the call returns at once; behind the reply, the
// request is released.
//
// What is applied later still, a copy that was stuck in the network, would be held without an owner. A request that may have
// such a copy because one of its commands got no reply is released once more at every renewal, for two minutes. For any
// other copy, every renewal returns how many holds and waits the session has in Redis: when the open requests do not
// explain that number, the client compares its table with Redis and releases what it does not know. While requests are on
// their way the number may explain itself by chance, so after three renewals in a row that proved nothing the client
// compares in any case. So such a hold is released after one renewal, and on a busy session after four: a lease and a third.
//
// The same comparison finds grants whose message was lost: each has a revision, and the renewal returns the last one.
//
// # Many callers
//
// Redis runs one script after the other, and the call of a script costs it more than what most of them do. So acquires and
// releases have a fast path: for an exclusive bundle that is not nested and has no limits, while no request waits for any of
// its names, and nothing is due at an acquire. It takes ten commands for the pair, before any function of the long path is
// made. While requests wait for other names, it takes one command more per name. And what many goroutines ask for while two
// calls are under way goes by one script, which takes the fast path for each: some nine commands for all, of which each is
// granted, or left to be asked alone, by itself. A caller whose context ends waits for none of that.
//
// The fast path does what the long path would do. An acquire gives way only to requests in the queues of its names, and takes
// nothing that another request waits for. A release frees only its names, so it lets only the requests in their queues pass.
// Nor does either of them change what a waiting request depends on (see Nesting): such a chain goes from a request to the
// holders of what it waits for, and no request waits for these names. A wait that has an offer, or whose offer lapsed, or that
// is kept back is in no queue: its reservation occupies the names, or it is not granted until it has queued again.
//
// # When Redis loses data
//
// A failover loses the last writes, a restart without persistence and FLUSHALL lose all. Then Redis may give to somebody what
// still is in use, unless those who use it say so first. The space has a random id and an epoch, and remembers the run id
// of its server; a session knows the id and the epoch in which it has said all that it holds.
//
// A new server is detected by its run ID, which scripts/greet.lua compares on every new connection before anything else is
// sent over it. A replica of a cluster may take over under connections that exist already: a node is greeted before the
// first script that it is sent as the master. Renewals compare, too, for proxies that keep connections. An emptied space is
// detected by its missing or other ID.
//
// The run ID comes from INFO, so a client needs the right +info: [Open] refuses to start without it, and logs an error when
// it is withdrawn later. Where a provider hides the run ID, the replication ID (master_replid) takes its place. It changes
// with a restart and a promotion, and sometimes without one (when the first replica connects, or an hour after the last one
// left), which costs a grace time. Where both are hidden, a new server is not detected, and [CheckServer] warns.
//
// Not every script comes over a connection that was greeted: [Space.Revoke], [Space.EndSession] and the acts of packages
// above go over their caller's. None of them asks for a bundle, but what they free may be somebody's turn. So whatever is
// about to grant to a wait compares the server first, and on another one begins a grace time instead, of the longest lease
// that Redis knows of; who is greeted next begins the epoch, and makes it as long as it has to be. Reading does not.
//
// A grace time begins then, and with another server a new epoch. In it nothing is granted and no wait is offered
// anything; what is given back is taken. Every session's lease ends with it, whatever the last server's clock
// said. It takes as long as the longest lease in use, and as clients may still renew on a master that was
// replaced: half of cluster-node-timeout on Cluster, min-replicas-max-lag where min-replicas-to-write is set, and
// 4 s on Sentinel (5 s with TLS) where it is not (Options.Grace). So a client that is not heard in it has been cut
// off before it ends.
//
// On Sentinel a replaced master may reply for a long time: until a sentinel makes it a replica, which by default
// takes 8 to 18 s, or forever, if no sentinel reaches it. So each client asks Sentinel once a second (with TLS
// every two) which server is the master, and at once when a reply is READONLY or NOREPLICAS, and closes its
// connections to any other. What it had in flight is sent again to the new master. With min-replicas-to-write,
// have one replica more than it demands: a new master refuses writes until enough of the others have come over to
// it, and one that has to wait for the old master waits those 8 to 18 s.
//
// Said again are, by each session whose renewal is answered that the epoch or the id is another one:
//
//   - the permits that its client has declared;
//   - the highest token that it has seen, so that the next one is higher;
//   - its holds, in pages, each as it was granted: also those that were ended by a limit and are not given back yet, but
//     none whose release has begun.
//
// Until its last page was accepted no renewal is answered and the session's deadline stays where it was. After it the
// table is compared with Redis: what was released meanwhile is released again, and waits that are gone are asked again, at
// the end of the queue. A session that comes after the grace time is late, and cut off.
//
// Of two holds on one resource the one with the higher token stands, since its holder was granted later, by a server that
// did not know of the other one; of permits, those with the lowest tokens fall. Who loses is told at once, and his work ends
// with the cause [ErrLost]. Permits that nobody has declared again have as many as are said to be held, until somebody does.
// What nobody says is released when the grace time ends, and then everybody who waits is looked at.
//
// A space that is made on a server younger than the lease waits a second before its first grant: whoever knew another space
// there is back within that time, and makes a full grace time of it. The same happens as long as nothing was granted in
// the new space.
//
// What remains possible: in a space that was emptied on a server that runs on (FLUSHALL), or after more than that second, a
// client that never knew it may be granted a lock before anybody who holds it has come; those come late then and are cut
// off, within a third of the lease. A set Options.Grace, which every new space waits for, closes that. A hold whose holder died
// in the same moment is gone. A master that is cut off from its replicas and has no min-replicas-to-write may
// go on for longer than the grace time ([CheckServer] says so). A script of another package that takes a bundle at once, and not
// by a wait, has to come over [Client.Redis]: on a promoted server it may else be granted what that does not know to be
// held.
//
// # Format
//
// The layout of everything that is stored under the hash tag of a namespace has one number, the ledger of the packages above
// included. {ns}:meta holds format, the layout that is written now, and least_format, the oldest one that data may still
// have. This build writes format [Format], and a build that writes format N reads N-1 and N. A space without a number is
// of format 1, unless the types of its keys show that it is older still.
//
// During a rolling upgrade builds that write N-1 and N share a space. Each session's card begins with the highest format that
// its build can write; a card without one means 1. As long as a live session can only write N-1, all builds write N-1. The
// script that opens a session, and each renewal of a session that can write more than is written, raises the number as
// soon as every live session can write N. It is never lowered. A grace time raises nothing, since a session that has not
// asserted yet may be of the older build.
//
// A build that does not know the format is refused with [ErrFormat]. Every script begins with a guard that reads both
// numbers and replies with that refusal before it writes anything, so no check can race with a raise. The fast paths of
// acquire, claim and finish come before the guard: they need a live session, and while that lives nothing is raised beyond
// its build. The fast path of release removes a hold only exactly as it was written. A session whose lease has ended counts
// no longer; if its process comes back after a raise, it cannot open another session, and [Client.Failed] says so.
//
// A space that has lost its data is numbered by the client that makes it anew: with the format that this client has known
// before, or, if it has known none, with its own. So a new client of a newer build may shut out sessions of the older one
// that have not come back yet: their work is cut off as after a late assertion.
//
// To change the layout: raise [Format] by one; write the old layout wherever the guard's WRITTEN is below FORMAT, and leave
// the fast paths there; read both. A script takes the number that it writes by from the guard, never from its client.
// Convert what is left of the old layout, and raise least_format in the script that converts the last of it: the build
// after the next one depends on that. A new field in a hash, a new key, or a new member of a JSON object that older builds
// ignore needs no new format.
//
// # Invariants
//
//  1. A resource is exclusive to one hold or offer; or shared, by no more at each grant than that request allowed; or its
//     permits in use are, at each grant, no more than are declared. Inside an outer hold's share, a nested hold may have it
//     exclusively while nobody else shares it.
//  2. A bundle is held whole or not at all.
//  3. After every script, no wait is grantable, unless a script had more to look at than it may: then the timer wheel has
//     an entry for that queue which is due now, and the reply tells the caller to call again; and unless a grace time continues.
//     A wait that is kept back is not grantable.
//  4. Tokens grow: max(last + 1, server time in µs), also when all keys are lost, unless the clock is set back then.
//  5. What is in a session's index is in its table, or is released within one renewal; on a busy session within four.
//  6. The context of a hold has ended before the lease of its session ends in Redis.
//  7. If every hold ends in which no request waits, every wait is granted that asks for no more permits than there are.
//
// # When something fails
//
//   - The holder's process dies: its locks pass on when the lease ends, 15 s by default, to the first in line. A parent
//     that knows of the death ends the session at once ([Space.EndSession]). In both cases the locks stay taken for their
//     [CrashDelay]; a client that is closed in order has none.
//   - Redis is away for less than 2/3 of the lease less the cutoff: nothing happens. For longer: all work under the
//     session is told to stop, requests go on trying and queue in the next session.
//   - Redis loses data: nothing is granted for about a lease, and live holds go on (see above).
//   - The process is stopped or suspended past its lease: when it goes on, its contexts end within 100 ms. What it does in
//     between is what tokens are for.
//   - The subscriber's connection breaks: grants are heard of at the next renewal, or when it is back.
//
// # What is not promised
//
// The hooks of the caller's go-redis client are not part of its options, and go-redis gives no way to read them: our own
// clients have those of [Options].Instrument alone.
//
// A handler that ignores its context can work on after its lock has passed on, and so can a write that was sent before
// and arrives late. Where the effect happens, the token has to be checked. Redis' clock must not be set forward, and
// clock rates of machines must agree within 0.1 %. Two work for a while when somebody seizes a lock.
//
// A context is passed on by hand: a request with another one is not nested, and waits for its own process like anybody; if
// that waits for it in turn, no script sees the circle. Bundles cannot deadlock, nested requests can, and one of them gets an
// error: to ask for all in one bundle is better. Where hundreds of nested requests wait for each other, a request may be
// refused that would have closed no circle ([DeadlockError.Cut]). Holds of different spaces know nothing of each other.
//
// A request is passed by nested ones that it depends on, however long it has waited, and by those that came before it had
// waited for Options.ReserveAfter.
//
// A request for more than 32 resources looks at the oldest waiting request of each. Where clients have different
// Options.ReserveAfter, it can pass one with a short time that stands behind one with a long time. A script also looks at no
// more than about 500 old requests for such a bundle.
//
// Shared requests, and AtMost requests with a higher limit, can pass an AtMost request, however long it has waited. It is
// granted when few enough share the resource.
//
// MinHold and CrashDelay keep others out, no more: they stand in Redis, and are gone with its data. A limit that a request
// brings along ([AtMost]) counts for that request and not for those who ask with another one.
package locks
