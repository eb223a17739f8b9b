package locks

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"
)

// A Request is one attempt to get a bundle: an id under which one hold may come to be. [Client.Acquire] makes its own;
// [Client.Begin] makes one for a package that puts the request to the space with a script of its own. Exactly one of
// [Request.Granted] and [Request.Drop] ends it.
type Request struct {
	id      HoldID
	session *session

	// Guarded by session.mu. The channels are made when they are needed, which is for requests that wait.
	grant   chan grant    // buffer 1: a grant that was heard of
	recheck chan struct{} // buffer 1: the wait is not in Redis any more; ask again
	items   []Item        // what it asks of Redis, sorted
	plain   bool          // exclusive, not nested and without limits: scripts have a fast path for it
	state   requestState
	doubt   bool   // a copy of the acquire got no answer, so that it may still arrive
	late    bool   // one was answered when the hold was being released already
	asking  bool   // a goroutine is sending the acquire
	once    bool   // it only tries: a reply that lasts until a person acts ends it
	last    error  // why the acquire had to be sent again, the last time
	hold    *Hold  // once the holder has it
	revoked *Asked // that came before the holder had it
	granted grant  // once it was
	limits  string // as in its record; under and info likewise
	under   string
	info    json.RawMessage
	said    place // where this hold was last said again
	refused error // another one was stronger there
}

type requestState int

const (
	open    requestState = iota // sent or about to be; whether it stands in Redis is not known
	waiting                     // it stands in Redis, as a wait or, by now, as a hold
	held                        // it stands in Redis as a hold
	ending                      // being released, cancelled or ended; whether it still stands in Redis is not known
	over                        // forgotten
)

// grant is what tells that a request was granted.
type grant struct {
	token Token
	since time.Time
}

// channels makes the channels. The caller holds session.mu.
func (r *Request) channels() {
	if r.grant == nil {
		r.grant, r.recheck = make(chan grant, 1), make(chan struct{}, 1)
	}
}

// ID returns the id that the script has to grant under.
func (r *Request) ID() HoldID { return r.id }

// Session returns the session that the hold will stand on.
func (r *Request) Session() SessionID { return r.session.id }

// Done is closed when the session is dead in this process. What was sent may still be granted in Redis for a moment,
// but must not be acted on: stop sending.
func (r *Request) Done() <-chan struct{} { return r.session.dead }

// Cutoff returns how long before a lease ends work is told to stop, see [Client.Cutoff].
func (r *Request) Cutoff() time.Duration { return r.session.client.Cutoff() }

// Grant is what a script of another package has granted.
type Grant struct {
	Token Token
	Since time.Time // by the server's clock
	Items []Item

	// As the script wrote it into the hold's record, should Redis lose it: then the hold is said again as it was.
	Info       json.RawMessage
	MaxHold    time.Duration // as in [MaxHold]; 0 for none
	MinHold    time.Duration // as in [MinHold]; 0 for none
	CrashDelay time.Duration // as in [CrashDelay]; 0 for none
}

// Granted returns the hold after the script has granted it. Its context is derived from parent. When the session was
// cut off meanwhile, the hold is lost from the beginning: its context has ended with the cause [ErrLost].
func (r *Request) Granted(parent context.Context, g Grant) *Hold {
	items := slices.SortedFunc(slices.Values(g.Items), func(a, b Item) int { return cmp.Compare(a.Name, b.Name) })
	o := &order{items: items, limits: limits{most: g.MaxHold, least: g.MinHold, crash: g.CrashDelay}}
	r.session.mu.Lock()
	r.items, r.info, r.limits = items, g.Info, o.limits.text(r.Cutoff())
	r.session.mu.Unlock()
	hold, _ := r.session.admit(parent, r, grant{g.Token, g.Since}, o, nil) // the error is the context's cause, too
	return hold
}

// Drop ends a request that was refused or given up: it holds nothing. Should a copy of it still be granted, that is
// found at the next renewal and released.
func (r *Request) Drop() { r.session.forget(r) }
