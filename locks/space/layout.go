package space

import (
	"fmt"
	"strings"
	"sync"
)

// keys are the keys of a lock space, in the order of KEYS, which is the same in every script. They
// have the hash tag of its namespace. A script names them in capitals: EXP is KEYS[1].
//
// Names contain no control bytes, so \0 and \31 are safe separators. Times are server milliseconds,
// tokens at least server microseconds. Scripts print both with %.0f, because tostring and .. keep
// only 14 digits.
var keys = []struct{ name, kind string }{
	// The timer wheel, score = server ms; members by their first byte:
	//   - s<session> the end of a session; 0: it was closed in order, 1: it was ended after a crash
	//   - w<request> the deadline of a wait
	//   - o<request> the end of an offer
	//   - m<hold> the end of a hold with a limit on its length
	//   - d<hold> the end of a resting hold
	//   - g<resource>\0<ticket> work list: walk this queue from that ticket on
	//   - G<resource> work list: walk all queues from that resource on
	//   - c<name>\0<ticket> work list: examine the waits for these permits from that ticket on,
	//     because their limit was lowered, see untie
	//   - k<class>\0<ticket> work list: keep back, or let go, the waits of that class from that
	//     ticket on
	//   - e the grace period, score 0: always due, so that no script takes its fast path meanwhile
	{"exp", "zset"},
	// resource -> how it is occupied:
	//   - x<hold> exclusively
	//   - u<hold> the same, over a share of an ancestor of the hold
	//   - o<request> reserved for an exclusive offer
	//   - s<n> shared by n holds and offers
	//   - p<used>:<limit>:<version> a declared number of permits; it stays when none is used
	{"own", "hash"},
	// A StoredHold, all scores 0.
	{"hold", "zset"},
	// request -> its StoredWait
	{"wait", "hash"},
	// All scores 0: resource \0 ticket \0 mode \0 reserve (ms) \0 request. One FIFO per resource,
	// only of waits in state w. The ticket of a nested request is below 10^15, any other's above.
	// So nested requests come first in every queue. They still yield to a wait whose reserve time
	// was over when they came, see older.
	{"q", "zset"},
	// All scores 0:
	//   - session \0 w \0 request: the waits of a session
	//   - @ \0 o \0 request: offers that are not picked up yet
	//   - ~r resource \0 x<hold> or o<request>: the sharers of a resource
	//   - ~u hold \0 request: the waits nested in a hold
	//   - ~l lease (ms, 9 digits) \0 session: the leases in use
	//   - ~k class \0 ticket \0 request: the space's waits of a class
	{"idx", "zset"},
	// By field:
	//   - format: the layout that is written now
	//   - format_by: the version of the build that began to write it, if its session's card has one
	//   - least_format: the oldest layout that data may still have
	//   - card:<session>: begins with the highest format that its build can write
	//   - rev:<session>: the revision of the last message to it
	//   - ticket: the last one
	//   - desk: the session that picks up offers
	//   - kept: the classes of the space's waits that get no offers, joined by \31
	//   - id, epoch (grows when data was lost), server (its run ID), see lib/server.lua
	//   - grace: nothing is granted before that time, ms
	//   - lost: 1 if the grace period is for a loss of data
	//   - at:<session>: the epoch in which it last asserted everything it holds, a space, its lease
	//   - keep: for how long the space keeps entries in endings, ms, a blank, and how many; 0 0:
	//     none
	//   - endings_gone: how many elements were removed from the front of endings
	//   - endings_since: since when no other build keeps entries elsewhere, ms
	{"meta", "hash"},
	// The last token.
	{"seq", "string"},
	// How holds and waits have ended, in the order of their ends. An element is one of:
	//   - the time of the end, ms, \31 and a StoredEntry, up to 140 bytes of them
	//   - \31 and the next bytes of the entry before it, up to 140 in all. So the number of
	//     elements bounds their memory, too: an element takes 150 bytes
	//   - a time, ms, at which the space began to keep entries
	//
	// The first one begins with a time. Without the key, the space keeps none: see keep in meta.
	// Builds that do not know it write none: some kept entries in a stream, past, which retain
	// removes.
	{"endings", "list"},
}

// StoredHold is a member of the key hold, its fields joined by \31.
type StoredHold struct {
	// Session is the session, \0 and the ID of the hold. The session of a resting hold is @: the
	// hold was released or its holder died, but its bundle stays taken.
	Session string
	Token   string
	Since   string // ms, of the grant
	// Limits are the longest time held, the shortest, and the delay after a crash, in ms and joined
	// by commas; empty for none.
	Limits string
	Asked  string // how it was revoked (a ask, t take), then JSON; empty if it was not
	Info   string // JSON, from its holder
	// Items are the bundle, joined by \31. An item is a mode and a name: x<name> exclusive, s<name>
	// shared, c<n>:<name> shared by at most n, p<n>:<name> n permits.
	Items string
}

// StoredWait is a value of the key wait, its fields joined by \31.
type StoredWait struct {
	// Session is @ for a wait that belongs to the space, which is offered its bundle, not granted
	// it.
	Session string
	Ticket  string
	Since   string // ms, when it was queued
	// State is w waiting, in the queues; o offered, its bundle is reserved; l its offer lapsed, and
	// it keeps its ticket; or k kept back with its class, see meta, and it keeps its ticket.
	State   string
	Reserve string // ms, until when later requests may pass
	Limits  string // as of a hold; for a wait of the space its class, empty without one
	Under   string // the holds that the request is nested in, joined by spaces
	Info    string // JSON, as of a hold
	Items   string // as of a hold
}

// StoredEntry is how a hold or a wait has ended, its fields joined by \31. From ID on, it has the
// fields of a StoredHold without its session, so that a release need not split the hold.
type StoredEntry struct {
	// How is h, for a hold, and a letter:
	//   - r released
	//   - l lost: its session lost its lease, or Redis lost data and another hold proved stronger
	//   - e expired: it was held for its longest time
	//   - v revoked
	//   - c crashed: the process of its session died
	//
	// Or it is w, for a wait, and a letter:
	//   - g granted
	//   - t timed out
	//   - k canceled
	//   - d deadlock: it was the youngest of a circle
	//   - f refused: it can never be granted as it is
	//   - l and c as for a hold
	How   string
	ID    string // of a run's wait, only its first letter
	Token string // of a hold
	Since string // ms, of the grant, or when the wait was queued
	Rest  string // ms, until when the bundle of the hold stays taken after its end; empty for none
	// Blocker is what a wait was waiting for, last or, if it is a run's, first: the resource, the
	// ID of the hold or request, and its run; joined by \30. It is empty if that is not known.
	Blocker string
	// Info is as of a hold. Of a run it is # and its ID; Items is then without the run's resource.
	Info  string
	Items string // as of a hold
}

// Holds and Waits are the layouts of the records above: H_TOKEN, W_TICKET.
var (
	Holds   = RecordOf[StoredHold]("H", 31)
	Waits   = RecordOf[StoredWait]("W", 31)
	entries = RecordOf[StoredEntry]("E", 31)
)

// expand replaces what a text of Lua names of the records and the keys.
func expand(text string) string { return Waits.Expand(Holds.Expand(text)) }

// DeclareKeys returns the declarations of keys that follow those of the space, for [Link].
func DeclareKeys(more []string) string {
	var b strings.Builder
	for i, name := range more {
		fmt.Fprintf(&b, "local %s = KEYS[%d]\n", strings.ToUpper(name), len(keys)+i+1)
	}
	return b.String()
}

var prelude = sync.OnceValue(func() string {
	var b strings.Builder
	for i, key := range keys {
		fmt.Fprintf(&b, "local %s = KEYS[%d]\n", strings.ToUpper(key.name), i+1)
	}
	return b.String() + "local call, sub, format = redis.call, string.sub, string.format\n"
})

// keyTypes returns the types of the keys as Lua writes them.
func keyTypes() string {
	var b strings.Builder
	for _, key := range keys {
		b.WriteString("'" + key.kind + "', ")
	}
	return b.String()
}
