package locks

import (
	"encoding/json"
	"time"

	"lockstep/locks/space"
)

// A request is one attempt to get a bundle: an ID under which one hold may be granted.
// [Client.Acquire] and [Extension.Begin] make them.
type request struct {
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
func (r *request) channels() {
	if r.grant == nil {
		r.grant, r.recheck = make(chan grant, 1), make(chan struct{}, 1)
	}
}
