package locks

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"lockstep/locks/space"
)

// A Request is one attempt to get a bundle: an ID under which one hold may be granted.
// [Client.Acquire] makes its own. [Client.Begin] makes one for a package that sends the request to
// the space with its own script. Exactly one of [Request.Granted] and [Request.Drop] ends it.
type Request struct {
	id      HoldID
	session *session

	// Guarded by session.mu. The channels are created when needed, which is for requests that wait.
	grant   chan grant    // buffer 1: a grant that was received
	recheck chan struct{} // buffer 1: the wait is no longer in Redis; ask again
	items   []Item        // what it asks for in Redis, sorted
	// plain means exclusive, not nested and without limits: scripts have a fast path for it
	plain      bool
	state      requestState
	doubt      bool         // a copy of the acquire got no reply, so it may still arrive
	late       bool         // a reply arrived when the hold was already being released
	asking     bool         // a goroutine is sending the acquire
	once       bool         // it only tries: a reply that lasts until a person acts ends it
	last       error        // why the acquire was sent again last
	hold       *Hold        // once the holder has it
	revoked    *space.Asked // received before the holder had it
	granted    grant        // set when it was granted
	limits     string       // as in its record; under and info likewise
	under      string
	info       json.RawMessage
	assertedIn generation // where this hold was last asserted
	refused    error      // set when a stronger hold won there
}

type requestState int

const (
	open    requestState = iota // sent or about to be; it is unknown whether Redis has it
	waiting                     // Redis has it, as a wait or, by now, as a hold
	held                        // Redis has it as a hold
	ending                      // being released, canceled or ended; Redis may or may not have it
	over                        // forgotten
)

// grant is the news that a request was granted.
type grant struct {
	token Token
	since time.Time
}

// channels creates the channels. The caller holds session.mu.
func (r *Request) channels() {
	if r.grant == nil {
		r.grant, r.recheck = make(chan grant, 1), make(chan struct{}, 1)
	}
}

// ID returns the ID under which the script must grant.
func (r *Request) ID() HoldID { return r.id }

// Session returns the session that the hold will belong to.
func (r *Request) Session() SessionID { return r.session.id }

// Done returns a channel that is closed when the session is dead in this process. Redis may still
// grant for a moment what was sent, but the caller must not act on it: stop sending.
func (r *Request) Done() <-chan struct{} { return r.session.dead }

// Cutoff returns how long before a lease ends work is canceled, see [Client.Cutoff].
func (r *Request) Cutoff() time.Duration { return r.session.client.Cutoff() }

// Grant is what a script of another package has granted.
type Grant struct {
	Token Token
	Since time.Time // by the server's clock
	Items []Item

	// As the script wrote it into the hold's record. If Redis loses the record, the hold is
	// re-asserted with these values.
	Info       json.RawMessage
	MaxHold    time.Duration // as in [MaxHold]; 0 for none
	MinHold    time.Duration // as in [MinHold]; 0 for none
	CrashDelay time.Duration // as in [CrashDelay]; 0 for none
}

// Granted returns the hold after the script has granted it. Its context is derived from parent. If
// the session was cut off meanwhile, the hold is lost from the beginning: its context has ended
// with the cause [ErrLost].
func (r *Request) Granted(parent context.Context, g Grant) *Hold {
	items := slices.SortedFunc(slices.Values(g.Items), func(a, b Item) int { return cmp.Compare(a.Name, b.Name) })
	o := &spec{items: items, limits: limits{most: g.MaxHold, least: g.MinHold, crash: g.CrashDelay}}
	r.session.mu.Lock()
	r.items, r.info, r.limits = items, g.Info, o.limits.text(r.Cutoff())
	r.session.mu.Unlock()
	// The error is the context's cause, too.
	hold, _ := r.session.admit(parent, r, grant{g.Token, g.Since}, o, nil)
	return hold
}

// Drop ends a request that was refused or abandoned: it holds nothing. If a copy of it is granted
// later, the next renewal finds that, and the grant is released.
func (r *Request) Drop() { r.session.forget(r) }
