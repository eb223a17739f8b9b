package locks

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/space"
)

// An Extension is for a program that grants bundles in scripts of its own, as the ledger of the
// scheduler does: one script takes a run's bundle and starts the attempt (see package space). No
// other program needs it, or the types [Request], [Grant] and [ExtensionOptions].
//
//   - [Extension.Begin] opens the request that such a script grants. [Request.Granted] returns the
//     hold.
//   - [Extension.Freeing] and [Extension.Released] surround a script that frees a hold.
//   - [Extension.Redis] has the connections for these scripts.
type Extension struct{ client *Client }

// ExtensionOptions are the options of a client whose program needs an [Extension].
type ExtensionOptions struct {
	// Recover is called when Redis has lost data, after the session has re-asserted its holds and
	// before it is renewed. A caller that keeps more in the space than holds re-asserts it here.
	// loss identifies the loss. Since one renewal leaves little time, Recover is called again with
	// the same loss until it returns nil or the session has ended. It must not wait for grants. May
	// be nil.
	Recover func(ctx context.Context, session SessionID, loss string) error

	// OnOffer is called when waits that belong to the space were offered their bundles and this
	// session is the one that picks up offers. The goroutine that reads messages calls it, so it
	// must not block. May be nil.
	OnOffer func()

	// OnNotice receives messages that a script of another package, such as package ledger, sends
	// to this session, or to all sessions. It is called like OnOffer. A notice may be lost. May be
	// nil.
	OnNotice func(notice string)
}

// Extension returns what only a program with scripts of its own needs, see [Extension].
func (c *Client) Extension() Extension { return Extension{c} }

// Redis returns connections to the Redis of the lock space, for the caller's own scripts over the
// same keys (see package space). On each connection, before anything else is sent, the space checks
// whether it is on a new server, which may have lost data. A command is sent once and keeps its
// deadline. The connections are closed with the client.
func (e Extension) Redis() redis.UniversalClient { return e.client.rdb }

// ReserveAfter returns how long later requests may pass a waiting one of this client; 0: not at
// all.
func (e Extension) ReserveAfter() time.Duration { return e.client.patience }

// Certain returns the ID of the current session while it is surely valid: its last renewal got a
// reply in time. Otherwise the error, an [ErrLost], [ErrNoSession] or [ErrClosed], says why no work
// should begin. Work in progress is not cut off by that: see [Hold.Context].
func (e Extension) Certain() (SessionID, error) {
	s, _, err := e.client.current()
	if err != nil {
		return "", err
	}
	if err := s.dog.certain(); err != nil {
		return "", err
	}
	return s.id, nil
}

// Doubt renews the session at once. A caller uses it when Redis may have lost data; the reply
// settles that.
func (e Extension) Doubt() {
	e.client.mu.Lock()
	s := e.client.last
	e.client.mu.Unlock()
	if s != nil {
		s.dog.hurry()
	}
}

// SetCard replaces the card of the session and of later sessions of this client, see
// [Options].Card. Without a live session it returns nil: the next session brings the card.
func (e Extension) SetCard(ctx context.Context, card json.RawMessage) error {
	c := e.client
	card, err := checkCard(card, c.format)
	if err != nil {
		return fmt.Errorf("set card: %w", err)
	}
	c.mu.Lock()
	c.card = card
	s := c.session
	finished := c.finished
	c.mu.Unlock()
	switch {
	case finished:
		return fmt.Errorf("set card: %w", ErrClosed)
	case s == nil:
		return nil
	}
	if _, err := c.call(ctx, space.Card, string(s.id), string(card)); err != nil {
		return fmt.Errorf("set card: %w", err)
	}
	return nil
}

// Begin opens a request that a script of another package sends to the space. It draws the ID under
// which that script must grant. While there is no live session the error is [ErrNoSession].
func (e Extension) Begin() (*Request, error) {
	s, _, err := e.client.current()
	if err != nil {
		return nil, fmt.Errorf("begin request: %w", err)
	}
	r, err := s.begin(nil)
	if err != nil {
		return nil, fmt.Errorf("begin request: %w", s.ended())
	}
	return &Request{r}, nil
}

// A Request is one attempt to get a bundle by a script of another package: an ID under which the
// script may grant one hold. Exactly one of [Request.Granted] and [Request.Drop] ends it.
type Request struct{ *request }

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
	hold, _ := r.session.admit(parent, r.request, grant{g.Token, g.Since}, o, nil)
	return hold
}

// Drop ends a request that was refused or abandoned: it holds nothing. If a copy of it is granted
// later, the next renewal finds that, and the grant is released.
func (r *Request) Drop() { r.session.forget(r.request) }

// Freeing announces that a script of another package is about to free the hold: from now on a hold
// missing in Redis is not lost. Call Released afterward, or [Hold.Release] if the script did not
// free it. The context stays valid until then. For a hold that only re-enters others, or was
// joined, Freeing does nothing, since such a hold has nothing of its own in Redis that a script
// could free.
func (e Extension) Freeing(h *Hold) {
	if h.request == nil {
		return
	}
	s := h.request.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.valid() {
		s.become(h.request, ending)
	}
}

// Released forgets a hold that another script has freed, without asking Redis, and ends its use of
// the holds that it is nested in. A later Release returns the same as if it had freed the hold. For
// a hold that only re-enters others, or was joined, Released is the same as [Hold.Release].
func (e Extension) Released(h *Hold) {
	if h.request != nil {
		s := h.request.session
		s.mu.Lock()
		h.done = true
		s.become(h.request, over)
		s.mu.Unlock()
		h.cancel(errReleased)
	}
	_ = h.Release() // the next call returns its error, too
}
