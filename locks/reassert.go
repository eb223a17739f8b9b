package locks

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"time"

	"lockstep/locks/space"
)

// newborn is how long a space that was created on a young server grants nothing, as in open.lua.
const newborn = time.Second

// errLate means that a session came too late to assert what it holds.
var errLate = fmt.Errorf("%w: redis has lost data, and the grace period for re-asserting its holds was over", errEnded)

// errDoubled is why a hold ends that lost to a stronger one.
var errDoubled = fmt.Errorf("%w: redis has lost data, and a younger hold has a part of the bundle", ErrLost)

// generation identifies the space that a session knows: an ID, and an epoch that grows whenever the
// space may have lost writes.
type generation struct{ id, epoch string }

// saw keeps the highest token that this client has seen. No later grant may have a lower one,
// whatever Redis lost.
func (c *Client) saw(token Token) {
	for {
		highest := c.highest.Load()
		if uint64(token) <= highest || c.highest.CompareAndSwap(highest, uint64(token)) {
			return
		}
	}
}

// A page of an assertion is bounded by its cost for Redis: its names, of which those that are not
// exclusive count several times, and its bytes. It has at least one hold, and a hold has at most
// 1,000 names.
const (
	assertNames = 256
	assertBytes = 64 << 10
	// assertSlow is the cost of a name in another mode, or of a nested request, in exclusive names.
	assertSlow = 6
)

// reclaim asserts what the session holds, after the reply to a renewal named another generation
// than the session knows. The session is renewed only after its last page was accepted. A hold that
// was asserted in a generation is not asserted in it again. So if an assertion takes longer than
// one renewal may take, the next renewal continues it.
func (s *session) reclaim(ctx context.Context, gen generation) error {
	recovered := s.client.extension.Recover == nil
	if err := s.client.redeclare(ctx, gen); err != nil {
		return err
	}
	queue := s.toAssert(gen)
	for {
		page, rest := s.page(queue)
		accepted, next, refused, err := s.assert(ctx, gen, page, len(rest) == 0 && recovered)
		if err != nil {
			return err
		}
		if !accepted {
			if err := s.client.redeclare(ctx, next); err != nil {
				return err
			}
			gen, queue, recovered = next, s.toAssert(next), s.client.extension.Recover == nil
			continue
		}
		gen, queue = next, rest
		s.asserted(gen, page, refused)
		if len(rest) > 0 {
			continue
		}
		if !recovered {
			if err := s.client.extension.Recover(ctx, s.id, gen.id+" "+gen.epoch); err != nil {
				return err
			}
			recovered, queue = true, s.toAssert(gen)
			continue
		}
		if queue = s.toAssert(gen); len(queue) == 0 {
			s.reasserted(gen)
			return nil
		}
	}
}

// An assertion is one hold that Redis may have lost.
type assertion struct {
	request *request
	token   Token
	member  string // the hold's record in Redis, encoded with its page
	under   string
}

// toAssert returns the holds that were not asserted in a generation, the oldest first. It sorts all
// of them, so it is called once for each round of pages, not for each page.
func (s *session) toAssert(gen generation) []assertion {
	s.mu.Lock()
	var queue []assertion
	for _, r := range s.requests {
		if r.assertable() && (r.assertedIn != gen || gen.id == "") {
			queue = append(queue, assertion{request: r, token: r.granted.token})
		}
	}
	s.mu.Unlock()
	slices.SortFunc(queue, func(a, b assertion) int { return cmp.Compare(a.token, b.token) })
	return queue
}

// assertable reports whether a request has a hold to assert. A hold that is being released is none.
// A hold that has ended without a release, as by its limits, is one, since its holder may not have
// stopped. A request of another package has no bundle here until [Request.Granted]. If Redis loses
// its hold before, its script is sent again and decides. The caller holds the session's mu.
func (r *request) assertable() bool {
	granted := r.state == held && r.hold == nil || r.hold != nil && !r.hold.done
	return granted && len(r.items) > 0 && r.refused == nil
}

// page encodes the next page of an assertion and returns the holds that follow it. It leaves out
// holds that were released meanwhile.
func (s *session) page(queue []assertion) (page, rest []assertion) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names, bytes := 0, 0
	for i, a := range queue {
		r := a.request
		if !r.assertable() {
			continue
		}
		a.member, a.under = s.member(r), r.under
		names += assertCost(r)
		bytes += len(a.member) + len(a.under)
		if len(page) > 0 && (names > assertNames || bytes > assertBytes) {
			return page, queue[i:]
		}
		page = append(page, a)
	}
	return page, nil
}

// assertCost returns the cost of a hold in a page, in exclusive names.
func assertCost(r *request) int {
	cost := len(r.items)
	for _, item := range r.items {
		if item.Mode != ModeExclusive || r.under != "" {
			cost += assertSlow - 1
		}
	}
	return cost
}

// member encodes a hold as the space stores it. The caller holds mu.
func (s *session) member(r *request) string {
	asked := ""
	if r.hold != nil && r.hold.wanted != nil {
		asked = r.hold.wanted.Text()
	} else if r.revoked != nil {
		asked = r.revoked.Text()
	}
	return space.Holds.Text(&space.StoredHold{
		Session: string(s.id) + "\x00" + string(r.id), Token: r.granted.token.String(),
		Since: strconv.FormatInt(r.granted.since.UnixMilli(), 10), Limits: r.limits, Asked: asked, Info: string(r.info),
		Items: space.JoinItems(r.items),
	})
}

// assert sends one page. If the space has another generation by now, nothing was accepted.
func (s *session) assert(ctx context.Context, gen generation, page []assertion, last bool) (accepted bool, next generation, refused []HoldID, err error) {
	c := s.client
	c.mu.Lock()
	card := c.card
	c.mu.Unlock()
	least, margin := c.recovery.args()
	args := []any{
		string(s.id), c.lease.Milliseconds(), string(card), gen.id, gen.epoch, c.newSpace(), least, margin,
		strconv.FormatUint(c.highest.Load(), 10), "0",
	}
	if last {
		args[9] = "1"
	}
	for _, a := range page {
		args = append(args, a.member, a.under)
	}
	// A client that is being closed must not re-assert what it has just released.
	s.asserting.Lock()
	defer s.asserting.Unlock()
	if why := s.why(); why != nil {
		return false, gen, nil, why
	}
	r, err := space.Run(ctx, c.beat, space.Assert, c.space.keys, args...)
	if err != nil {
		return false, gen, nil, err
	}
	switch r.At(0) {
	case "ok":
		for i := 4; i < len(r); i++ {
			refused = append(refused, HoldID(r.At(i)))
		}
		c.reaper.due(space.Millis(r.NumberAt(3)))
		return true, generation{r.At(1), r.At(2)}, refused, nil
	case "again":
		return false, generation{r.At(1), r.At(2)}, nil, nil
	case "late":
		return false, gen, nil, errLate
	}
	return false, gen, nil, space.Unexpected("assert", r)
}

// asserted records the result of a page.
func (s *session) asserted(gen generation, page []assertion, refused []HoldID) {
	var lost []*Hold
	s.mu.Lock()
	for _, a := range page {
		r := a.request
		r.assertedIn = gen
		if !slices.Contains(refused, r.id) {
			continue
		}
		r.refused = errDoubled // for a caller that does not have the hold yet
		if h := r.hold; h != nil && h.valid() {
			h.lose(errDoubled)
			s.become(r, over)
			delete(s.limited, h)
			lost = append(lost, h)
		}
	}
	s.mu.Unlock()
	for _, h := range lost {
		h.cancel(errDoubled)
		s.client.log.Warn("lock has another holder after redis lost data", slog.String("hold", string(h.id)),
			slog.Any("locks", h.Names()))
	}
}

// reasserted ends an assertion. The table is then compared with the rest in Redis: requests with
// lost waits ask again, and holds that were released during the assertion are released again.
func (s *session) reasserted(gen generation) {
	s.mu.Lock()
	s.gen = gen
	s.received, s.published = 0, 0 // the revisions may have gone back
	s.mu.Unlock()
	s.client.mu.Lock()
	s.client.gen = gen
	s.client.mu.Unlock()
	s.client.log.Warn("redis has lost data or was replaced; all holds were re-asserted",
		slog.String("session", string(s.id)))
	s.recompare()
}

// redeclareMost is how many limits are declared in one round trip.
const redeclareMost = 200

// redeclare declares again the permits that this client has declared, since they bound how many may
// be held. It does so once for each generation, and continues where an error has stopped it.
func (c *Client) redeclare(ctx context.Context, gen generation) error {
	c.mu.Lock()
	if c.redeclared.gen != gen || gen.id == "" {
		c.redeclared.gen, c.redeclared.names = gen, slices.Collect(maps.Keys(c.declared))
	}
	left := c.redeclared.names
	c.mu.Unlock()
	for some := range slices.Chunk(left, redeclareMost) {
		if err := c.redeclareSome(ctx, some); err != nil {
			return err
		}
		c.mu.Lock()
		c.redeclared.names = c.redeclared.names[len(some):]
		c.mu.Unlock()
	}
	return nil
}

// redeclareWithin is redeclare for at most as long as one command may take.
func (c *Client) redeclareWithin(ctx context.Context, try time.Duration, gen generation) error {
	ctx, cancel := context.WithTimeout(ctx, try)
	defer cancel()
	return c.redeclare(ctx, gen)
}

func (c *Client) redeclareSome(ctx context.Context, names []string) error {
	pipe := c.beat.Pipeline()
	loaded := false
	for _, name := range names {
		c.mu.Lock()
		limit, is := c.declared[name]
		c.mu.Unlock()
		if !is { // Undeclare has removed it meanwhile
			continue
		}
		args := []any{name, limit.Permits, limit.Version}
		if !loaded { // makes sure that Redis has the script
			if _, err := space.Run(ctx, c.beat, space.Declare, c.space.keys, args...); err != nil {
				return err
			}
			loaded = true
			continue
		}
		space.Declare.Redis().EvalSha(ctx, pipe, c.space.keys, args...)
	}
	if pipe.Len() == 0 {
		return nil
	}
	// A limit that contradicts the holds has no effect, and is not an error.
	_, err := pipe.Exec(ctx)
	return err
}
