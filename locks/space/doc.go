// Package space is what Redis stores for locks: keys, records, and the scripts that read and write
// them. Package locks has the clients that take locks, and is what most programs need. Packages
// with scripts of their own that grant and free in the space, such as the ledger of the scheduler,
// use this one. So do programs that show everything that is stored, such as the pages of the
// scheduler.
//
//   - layout.go describes each key and the fields of each record, for Go and for the scripts.
//     [Space.Keys] returns the keys in the order of KEYS.
//   - [Script] names the scripts, which make every decision, one at a time, by the server's clock.
//     Each file describes its arguments and its reply.
//   - scripts/lib has the functions that scripts share, by nouns. scripts/slow has those of the
//     slow path, which waits, ends, and passes on: settle grants what was freed to the waits for
//     it, and reap handles what is due.
//   - [Link] assembles a script of another package, and the fast path before it, with the functions
//     of the space that they use.
//   - [Run] sends a script once. It returns a [Reply], which [Read] reads field by field.
//     [Passing], [Lasting] and [Unsent] tell apart the errors of a command. [Insist] repeats it
//     with a growing pause ([Backoff]).
//   - [Space.Read], [Space.HeldBy], [Space.Sessions] and [Space.Permits] list what is stored, and
//     [Space.Past] lists what has ended. They write nothing.
//
// # Scripts of other packages
//
// They name no key of the space, and use only these names of its library (a test of package ledger
// enforces that). They may name the fields of its records, as in H_TOKEN, and those of other
// records ([RecordOf]).
//
//   - call, sub, format, concat, US: redis.call, functions of Lua, and the separator \31
//   - now, ms, micros: the server's time in ms, the same as text, and in microseconds as text
//   - ends: when a session ends, or nil if it has ended
//   - quiet: whether nothing is due
//   - fields, bundle: split a record; the names and the items at its end
//   - newestFormat: whether the space is written in the format of this build
//   - live: whether a session lives and nothing is due
//   - awaited, occupied, noneIn: which names are waited for; or held, too; whether others are not
//   - draw, take: issues tokens; writes holds of free exclusive bundles
//   - asGranted, giveBack: which of these holds exist; ends them
//   - grant: grants a free bundle of any kind, and draws its token
//   - valid: whether a hold belongs to its session
//   - freePlain: ends a hold that is as simple as most
//   - everLost, reasserting: whether the space has ever lost data; and sessions are re-asserting it
//   - generation: which space this is, in which epoch
//   - keptBack: the classes of waits that get no offers
//   - takeDesk: makes a session the one that picks up offers
//   - sessionsByLease, cardOf: the sessions, and what each publishes about itself
//   - notify, notifyAll: send a message to a session, and to live sessions
//   - space: creates the slow path, S
//   - S.grace: for how long nothing is granted
//   - S.unfit, S.blocked, S.describe: what keeps a request from its bundle
//   - S.park, S.drop, S.visit: a request begins to wait; its wait ends; its queues are walked
//   - S.ticket, S.patience, S.move, S.among: what is known of a wait, the next one of a class
//   - S.free: ends a hold
//   - S.keep: which classes of waits get no offers
//   - S.settle, S.reap, S.more: grant what was freed, handle what is due; whether work is left
//   - S.offers, S.findOffers, S.pickUp, S.lapse: offers of this script, and of others; an offer is
//     picked up, or lapses
//
// # Waits of the space
//
// A wait can also belong to the space instead of a session. Runs of the scheduler wait that way,
// without a worker. Such a wait is not granted its bundle but offered it: the bundle is reserved
// for some seconds, the session that acts as the desk is notified (OnOffer of
// locks.ExtensionOptions), and a script of package ledger turns the offer into a hold. An offer
// that is not taken lapses; the wait keeps its ticket.
//
// Each wait of the space has a class (the run's queue). A class can be kept back while no worker
// would take an offer. Its waits then leave the queues, block no other request and get no offers.
// They keep their tickets. The script that lets the class go puts them back into their places and
// offers what is free.
//
// # What is kept
//
// Each script that ends a hold or a wait appends how it ended to a list ([Entry]), unless the space
// keeps nothing. Three functions do so for all paths: giveBack (the fast ones) and S.free end a
// hold, and forget ends a wait. A time and a number bound the list ([Keep]); the last client that
// declares some has set them. An element takes at most 150 bytes of memory, and a larger record
// takes several. Old ones are removed with about every hundredth element and with each renewal, so
// up to a hundred more than the bounds may remain. The elements are numbered from the first one
// that the space has ever had: a reader continues at a number. An entry never makes a script fail:
// when memory is full, or the key has another type, the end of a hold is not kept.
//
// A hold that Redis itself did not end has no entry: one that it lost with its data, or one of a
// session that came back too late to re-assert it.
//
// # Format
//
// Everything stored under the hash tag of a namespace, including the ledger of the packages above,
// has one layout number. {ns}:meta holds format, the layout that is written now, and least_format,
// the oldest layout that data may still have. This build writes format [Format], and a build that
// writes format N reads N-1 and N. A space without a number has format 1, unless the types of its
// keys show that it is even older.
//
// During a rolling upgrade, builds that write N-1 and N share a space. Each session's card begins
// with the highest format that its build can write; a card without one means 1. As long as one live
// session can only write N-1, all builds write N-1. The number is raised as soon as every live
// session can write N, by the script that opens a session or by a renewal of a session that can
// write more than is written. It is never lowered. It is not raised during a grace period, since a
// session that has not asserted yet may be of the older build. With the number, the version of the
// build that raises it is stored, if its card has a member "version": the refusal of an older build
// names it.
//
// A build that does not know the format is refused with [ErrFormat]. Every script begins with a
// guard that reads both numbers and replies with that refusal before it writes anything, so no
// check can race with a raise. The fast paths of acquire, claim and finish come before the guard:
// they need a live session, and while that session is live the number is never raised beyond its
// build. The fast path of release removes a hold only if it is exactly as it was written. The fast
// paths of a hand-off write waits, so they compare the number themselves. A session whose lease has
// ended no longer counts. If its process returns after a raise, it cannot open another session, and
// Client.Failed of package locks reports that.
//
// The client that recreates a space after a loss of data sets its number: the format that this
// client last saw or, if it has seen none, its own. So a new client of a newer build may shut out
// sessions of the older one that have not come back yet. Their work is cut off as after a late
// assertion.
//
// Formats 1 and 2 differ in the ledger alone (see package ledger).
//
// To change the layout, raise [Format] by one. Write the old layout wherever the guard's WRITTEN is
// below FORMAT, and skip the fast paths there. Read both layouts. A script takes the number that it
// writes by from the guard, never from its client. Convert what is left of the old layout, and
// raise least_format in the script that converts the last of it: the build after the next one
// depends on that. A new field in a hash, a new key, or a new member of a JSON object that older
// builds ignore needs no new format.
package space
