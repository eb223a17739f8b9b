package space

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

// The exploration visits every state of small worlds, while the random histories visit a few states
// of large ones. It drives the model, which the histories compare with the scripts, and then
// repeats some of its paths on the scripts.
//
// A world bounds how many requests are open at a time, what they ask for, and how deep they nest.
// It does not bound how many requests follow each other: states that differ only in the names of
// requests count as one, so a world is finite. In each state, requests are made, aged, released,
// downgraded and canceled in every possible order, as by any number of processes and goroutines.
//
// In every state of every world:
//
//   - No request is stuck: each wait is granted, refused or asked again once the other requests
//     release what they hold.
//   - No two incompatible holds coexist, and no grant exceeds a limit of permits.
//   - No later request passes an aged wait, except a nested one that this wait depends on: it would
//     not be granted before that one is, whatever else ends.
//   - A request that is refused as a deadlock would have waited forever.
//   - After an acquire or a release on a fast path, which looks only at the queues of its own
//     names, something keeps each wait from its bundle.
//   - No name is granted inside the crash delay of a session that was ended after a crash.
//
// Requests age in any order, as with clients of different Options.ReserveAfter. In the world of
// amounts they age in the order in which they came: with different values, a nested request can
// pass an aged wait that would depend on it only if each request took all permits.
//
// The exploration lacks: waits and offers of the space, AtMost, raised limits, TryAcquire, MaxHold
// and MinHold, sessions that expire, a second crash, lost data and grace periods, messages that are
// lost, late or doubled, searches that are cut short and work that is left to the next script, and
// more open requests than its worlds have. Random histories and directed tests have all of these
// but the last.

// A world sets the limits of an exploration.
type world struct {
	name    string
	bundles [][]string // the bundles that requests ask for; names have one letter
	open    int        // requests at a time
	deep    int        // how deep a request may be nested
	limits  []int64    // of the permits p, one declared after the other
	// waits age in the order in which they arrived, as with one Options.ReserveAfter for all
	// clients
	even  bool
	swaps []string // pairs of names that may be swapped without a difference
	lets  string   // the moves beside asking, releasing and aging: letters of move.kind
	delay int64    // crash delay of session 1, ms; 0: there is no session 1
}

func worlds() []world {
	return []world{
		{name: "bundles", bundles: [][]string{{"xa"}, {"xb"}, {"xa", "xb"}}, open: 4, deep: 2, swaps: []string{"ab"}, lets: "c"},
		{name: "shares", bundles: [][]string{{"xa"}, {"sa"}, {"xb"}, {"sb"}}, open: 4, deep: 2, swaps: []string{"ab"}, lets: "cd"},
		{name: "upgrades", bundles: [][]string{{"xa"}, {"sa"}, {"xb"}}, open: 5, deep: 1},
		{name: "three names", bundles: [][]string{{"xa"}, {"xb"}, {"xc"}, {"xa", "xb"}}, open: 4, deep: 1, swaps: []string{"ab"}},
		{name: "permits", bundles: [][]string{{"p1:p"}, {"xb"}}, open: 5, deep: 1, limits: []int64{2, 1}},
		{name: "crashes", bundles: [][]string{{"xa"}, {"sa"}, {"xa", "xb"}}, open: 4, deep: 1, delay: 1_000_000},
		{name: "amounts", bundles: [][]string{{"p1:p"}, {"p2:p"}, {"xb"}}, open: 5, deep: 1, limits: []int64{3, 2}, even: true},
	}
}

// A move is one thing that happens.
type move struct {
	// a ask, g ask again, r release, c cancel, o grow old, d downgrade, l lower the limit, x crash,
	// e a delay ends
	kind byte
	slot int // the request
	in   int // a: the request it is nested in, -1 for none
	what int // a: the bundle; l: which waits are taken out of circles, see untied
	by   int // a: the session
}

// describe formats a path, one move per line.
func (w *world) describe(path []move) string {
	var b strings.Builder
	for _, mv := range path {
		b.WriteString("\n  ")
		switch mv.kind {
		case 'a':
			fmt.Fprintf(&b, "%d asks for %v", mv.slot, w.bundles[mv.what])
			if mv.in >= 0 {
				fmt.Fprintf(&b, " inside %d", mv.in)
			}
			if mv.by > 0 {
				fmt.Fprintf(&b, " in session %d", mv.by)
			}
		case 'l':
			b.WriteString("the limit is lowered")
		case 'x':
			b.WriteString("session 1 crashes")
		case 'e':
			b.WriteString("the crash delay ends")
		default:
			fmt.Fprintf(&b, "%d %s", mv.slot, map[byte]string{
				'g': "asks again", 'r': "is released", 'c': "is canceled", 'o': "is aged", 'd': "is downgraded",
			}[mv.kind])
		}
	}
	return b.String()
}

const (
	worldBegins = 1_750_000_000_000_000 // µs
	worldLease  = 999_999_999           // ms
	never       = 100_000_000           // ms: no wait gets this old unless a move ages it
)

func worldSession(by int) string { return fmt.Sprintf("s%d.x", by) }

func slotID(by, slot int) string { return fmt.Sprintf("%s.%d", worldSession(by), slot) }

// A state is one state of a world.
type state struct {
	*world
	m        *model
	open     map[int]modelAsk // the requests, by slot
	again    map[int]bool     // those that were taken out of a circle
	lowered  int
	crashed  bool
	delays   []delayed
	patience int64    // of the next request, ms
	asked    []string // the waits that the next lowered limit takes out; nil: see untied
	reply    []string // to the last move
	at       int      // its place in the exploration
}

// delayed is a name that must not be granted yet.
type delayed struct {
	mode byte
	name string
	upto int64
}

func (w *world) start(flaw string) *state {
	s := &state{
		world: w, m: newModel(worldBegins), open: make(map[int]modelAsk), again: make(map[int]bool), patience: never,
	}
	s.m.flaw = flaw
	for by := range w.sessions() {
		s.m.ends[worldSession(by)] = math.MaxInt64
	}
	if len(w.limits) > 0 {
		s.m.declared["p"] = modelPermits{w.limits[0], 1}
	}
	return s
}

func (w *world) sessions() int {
	if w.delay > 0 {
		return 2
	}
	return 1
}

func (s *state) clone() *state {
	c := *s
	c.m, c.open, c.again, c.delays = s.m.clone(), maps.Clone(s.open), maps.Clone(s.again), slices.Clone(s.delays)
	return &c
}

func (s *state) hold(slot int) *modelHold {
	if h := s.m.holds[s.open[slot].id]; h != nil && h.rests == 0 {
		return h
	}
	return nil
}

func (s *state) wait(slot int) *modelWait { return s.m.waits[s.open[slot].id] }

// inside reports whether another open request is inside the one of a slot.
func (s *state) inside(slot int) bool {
	for _, a := range s.open {
		if slices.Contains(a.under, s.open[slot].id) {
			return true
		}
	}
	return false
}

// asks returns the requests that can be made now.
func (s *state) asks() (moves []move) {
	if len(s.open) >= s.world.open {
		return nil
	}
	slot := 0
	for s.open[slot].id != "" {
		slot++
	}
	for by := range s.sessions() {
		if by == 1 && s.crashed {
			continue
		}
		for what := range s.bundles {
			moves = append(moves, move{kind: 'a', slot: slot, in: -1, what: what, by: by})
		}
		for in, outer := range s.open {
			if s.hold(in) == nil || outer.session != worldSession(by) || len(outer.under) >= s.deep {
				continue
			}
			for what := range s.bundles {
				if !s.covers(in, s.bundles[what]) {
					moves = append(moves, move{kind: 'a', slot: slot, in: in, what: what, by: by})
				}
			}
		}
	}
	return moves
}

// covers reports whether a hold, or one that it is nested in, has a part of a bundle already. The
// client does not ask for that again.
func (s *state) covers(slot int, bundle []string) bool {
	for _, id := range append(slices.Clone(s.open[slot].under), s.open[slot].id) {
		for _, item := range bundle {
			mode, _, name := parseItem(item)
			if has, _ := want(s.m.holds[id].items, name); has == 'x' || has != 0 && has == mode {
				return true
			}
		}
	}
	return false
}

// moves returns all moves that are possible in a state.
func (s *state) moves() (moves []move) {
	moves = s.asks()
	for slot := range s.open {
		h, w := s.hold(slot), s.wait(slot)
		switch {
		case h != nil:
			if !s.inside(slot) {
				moves = append(moves, move{kind: 'r', slot: slot})
			}
			if strings.Contains(s.lets, "d") && slices.ContainsFunc(h.items, func(item string) bool { return item[0] == 'x' }) {
				moves = append(moves, move{kind: 'd', slot: slot})
			}
		case w != nil:
			before := func(other *modelWait) bool { return other.reserve > s.m.now() && other.since < w.since }
			if w.reserve > s.m.now() && !(s.even && slices.ContainsFunc(s.m.inOrder(), before)) {
				moves = append(moves, move{kind: 'o', slot: slot})
			}
			if strings.Contains(s.lets, "c") {
				moves = append(moves, move{kind: 'c', slot: slot})
			}
		case s.again[slot]:
			moves = append(moves, move{kind: 'g', slot: slot})
		}
	}
	for what := range 2 {
		if s.lowered+1 < len(s.limits) {
			moves = append(moves, move{kind: 'l', what: what})
		}
	}
	if s.delay > 0 && !s.crashed {
		moves = append(moves, move{kind: 'x'})
	}
	for _, h := range s.m.holds {
		if h.rests != 0 {
			moves = append(moves, move{kind: 'e'})
			break
		}
	}
	slices.SortFunc(moves, func(a, b move) int {
		return cmp.Or(
			cmp.Compare(a.kind, b.kind), cmp.Compare(a.slot, b.slot), cmp.Compare(a.in, b.in), cmp.Compare(a.what, b.what),
			cmp.Compare(a.by, b.by),
		)
	})
	return moves
}

// request is the request of a step.
func (s *state) request(mv move) modelAsk {
	a := modelAsk{
		session: worldSession(mv.by), id: slotID(mv.by, mv.slot), patience: s.patience, items: s.bundles[mv.what],
	}
	if mv.in >= 0 {
		outer := s.open[mv.in]
		a.under = append(slices.Clone(outer.under), outer.id)
	}
	if mv.by == 1 {
		a.limits.crash = s.delay
	}
	return a
}

// do makes a step, and returns what is wrong with it. refused means that it changed nothing.
func (s *state) do(mv move) (refused bool, err error) {
	before := s.m
	s.m = before.clone()
	m := s.m
	m.us += 1000
	a := s.open[mv.slot]
	switch mv.kind {
	case 'a', 'g':
		if mv.kind == 'a' {
			a = s.request(mv)
		}
		s.reply = m.acquire(a)
		switch s.reply[0] {
		case "granted", "waiting":
			s.open[mv.slot] = a
			delete(s.again, mv.slot)
		case "deadlock":
			delete(s.open, mv.slot)
			delete(s.again, mv.slot)
			if err := s.deadlocked(before, a); err != nil {
				return true, err
			}
			return mv.kind == 'a', nil
		default:
			return false, fmt.Errorf("%s: %q", a.id, s.reply)
		}
	case 'r', 'c':
		s.reply = m.release(a.id, s.quick(mv.slot))
		delete(s.open, mv.slot)
	case 'o':
		m.waits[a.id].reserve = min(m.waits[a.id].reserve, m.now())
		s.reply = nil
	case 'd':
		s.reply = m.downgrade(a.id, itemNames(m.holds[a.id].items))
	case 'l':
		s.lowered++
		limit, version := s.limits[s.lowered], int64(s.lowered+1)
		asked := s.asked
		if asked == nil {
			asked = m.untied("p", limit, version, mv.what == 1)
		}
		for slot, a := range s.open {
			if slices.Contains(asked, a.id) {
				s.again[slot] = true
			}
		}
		s.reply = m.declare("p", limit, version, asked)
	case 'x':
		s.crashed = true
		for slot, a := range s.open {
			if a.session != worldSession(1) {
				continue
			}
			if h := s.hold(slot); h != nil {
				for _, item := range h.items {
					s.delays = append(s.delays, delayed{item[0], item[1:], m.now() + s.delay})
				}
			}
			delete(s.open, slot)
		}
		s.reply = m.close(worldSession(1), true)
	case 'e':
		for _, h := range m.holds {
			if h.rests != 0 {
				m.us = max(m.us, h.rests*1000)
			}
		}
		m.reap()
		s.reply = []string{m.soonest()}
	}
	if err := s.passes(before); err != nil {
		return false, err
	}
	if mv.kind == 'a' || mv.kind == 'r' {
		if err := s.grantable(); err != nil {
			return false, err
		}
	}
	return false, s.check()
}

// quick reports whether the client uses the fast path to release what a slot has.
func (s *state) quick(slot int) bool {
	h := s.hold(slot)
	return h != nil && s.open[slot].plain() && slices.Equal(h.items, s.open[slot].items)
}

// grantable returns an error if a grantable wait was not granted.
func (s *state) grantable() error {
	for _, w := range s.m.inOrder() {
		if name, _, beaten := s.m.blocked(w.asker()); name == "" && len(beaten) == 0 && s.m.alive(w.session) {
			return fmt.Errorf("%s waits, and nothing is in its way", w.id)
		}
	}
	return nil
}

func itemNames(items []string) (names []string) {
	for _, item := range items {
		_, _, name := parseItem(item)
		names = append(names, name)
	}
	return names
}

// deadlocked checks that a request which was refused would have waited forever.
func (s *state) deadlocked(before *model, a modelAsk) error {
	m := before.clone()
	m.flaw = ""
	m.us += 1000
	m.park(a.id, a.session, "", a.items, never, 0, a.limits, a.under)
	if !slices.ContainsFunc(m.endless(), func(text string) bool { return strings.HasPrefix(text, a.id+" ") }) {
		return fmt.Errorf("%s is refused as a deadlock, and would not have waited forever", a.id)
	}
	return nil
}

// untied returns the waits that a lowered limit takes out: the youngest one in a circle, until
// there is no circle; or the youngest one of those that wait for these permits. The one that the
// scripts remove is between the two.
func (m *model) untied(name string, limit, version int64, these bool) (asked []string) {
	c := m.clone()
	c.declared[name] = modelPermits{limit, version}
	for found := m.flaw != flawLimit; found; {
		found = false
		queue := c.inOrder()
		slices.Reverse(queue)
		for _, w := range queue {
			mode, _ := want(w.items, name)
			if len(w.under) > 0 && (mode != 0 || !these) && c.circle(w.items, w.under) {
				asked, found = append(asked, w.id), c.drop(w.id, "d")
				break
			}
		}
	}
	return asked
}

// check returns what is wrong with a state, without looking at how it came about.
func (s *state) check() error {
	names := make(map[string]bool)
	for _, h := range s.m.holds {
		for _, item := range h.items {
			_, _, name := parseItem(item)
			names[name] = true
		}
	}
	under := make(map[string][]string)
	for _, a := range s.open {
		under[a.id] = a.under
	}
	for name := range names {
		on := s.m.occupants(name)
		for _, one := range on {
			for _, other := range on {
				// all of it is taken from before the crash
				if h := s.m.holds[one.tag[1:]]; h.rests != 0 {
					continue
				}
				if one.mode == 'x' && one != other && !(other.mode != 'x' && slices.Contains(under[one.tag[1:]], other.tag[1:])) {
					return fmt.Errorf("%s is held by %s, and by %s", name, one.tag[1:], other.tag[1:])
				}
			}
		}
	}
	if len(s.m.waits) == 0 || len(s.again) > 0 {
		return nil
	}
	for slot := range s.open {
		if s.hold(slot) != nil && !s.inside(slot) {
			return nil
		}
	}
	for _, h := range s.m.holds {
		if h.rests != 0 {
			return nil
		}
	}
	return errors.New("stuck: requests wait, and no hold ends by itself")
}

// passes checks the grants of a step.
func (s *state) passes(before *model) error {
	m := s.m
	for id, h := range m.holds {
		if before.holds[id] != nil || h.rests != 0 {
			continue
		}
		slot := slices.IndexFunc(slices.Collect(maps.Values(s.open)), func(a modelAsk) bool { return a.id == id })
		if slot < 0 {
			return fmt.Errorf("%s is granted, and no open request asks for it", id)
		}
		asked := modelAsker{items: h.items, since: m.now(), reserve: math.MaxInt64}
		for _, a := range s.open {
			if a.id == id {
				asked.nested = a.under
			}
		}
		if w := before.waits[id]; w != nil {
			asked.id, asked.ticket, asked.since, asked.reserve = id, w.ticket, w.since, w.reserve
		}
		for _, item := range h.items {
			mode, _, name := parseItem(item)
			if limit := m.declared[name].limit; mode == 'p' && used(m.occupants(name)) > limit {
				return fmt.Errorf("%s is granted, and more than %d permits are taken", id, limit)
			}
			for _, d := range s.delays {
				if d.name == name && d.upto > m.now() && (d.mode == 'x' || mode == 'x') {
					return fmt.Errorf("%s is granted inside the crash delay of %s", id, name)
				}
			}
			for _, w := range m.waits {
				other, wants := want(w.items, name)
				if before.waits[w.id] == nil || before.waits[w.id].reserve > before.now() || !s.excludes(name, mode, other, wants) {
					continue
				}
				if err := s.passed(before, w, id, asked); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// excludes reports whether a grant of a name blocks a wait for it: by its mode, or because too few
// permits are left.
func (s *state) excludes(name string, mode, other byte, wants int64) bool {
	switch {
	case other == 0:
		return false
	case mode == 'p' && other == 'p':
		limit := s.limits[s.lowered]
		return wants <= limit && used(s.m.occupants(name))+wants > limit
	}
	return mode == 'x' || other == 'x'
}

// passed checks that a request which was granted past an aged wait was allowed to be.
func (s *state) passed(before *model, w *modelWait, id string, a modelAsker) error {
	switch {
	case a.ticket != 0 && a.since < w.since: // it came first
		return nil
	// it was aged before that one came
	case len(a.nested) == 0 && w.isNested() && w.since > a.reserve:
		return nil
	case len(a.nested) > 0 && a.since <= w.reserve: // it came before that one was aged
		return nil
	case len(a.nested) > 0 && s.needs(before, w.id, id, a):
		return nil
	}
	return fmt.Errorf("%s is granted past %s, which is aged and does not depend on it", id, w.id)
}

// needs reports whether a wait is never granted while a nested request waits, whatever else ends.
// No other request passes an aged wait meanwhile. It holds before the move or after it: a move can
// add a dependency of the wait, or grant it.
func (s *state) needs(before *model, wait, id string, a modelAsker) bool {
	for _, m := range []*model{before.clone(), s.m.clone()} {
		m.flaw = flawBarAll
		m.us = max(m.us, s.m.us)
		delete(m.holds, id)
		if w := before.waits[id]; w != nil {
			m.waits[id] = w
		} else {
			m.park(id, worldSession(0), "", a.items, never, 0, modelLimits{}, a.nested)
		}
		if m.waitsBehind(wait, id, a.nested) {
			return true
		}
	}
	return false
}

// waitsBehind reports whether a wait is never granted while another one is not, and while the holds
// that the other is nested in last.
func (m *model) waitsBehind(wait, other string, nested []string) bool {
	for _, w := range m.waits {
		m.us = max(m.us, w.reserve*1000)
	}
	for changed := true; changed; {
		changed = false
		for hold := range m.holds {
			inside := func(w *modelWait) bool { return slices.Contains(w.under, hold) }
			if !slices.Contains(nested, hold) && !slices.ContainsFunc(slices.Collect(maps.Values(m.waits)), inside) {
				delete(m.holds, hold)
				changed = true
			}
		}
		for _, w := range m.inOrder() {
			if w.id == other {
				continue
			}
			if name, _, _ := m.blocked(w.asker()); name == "" {
				if w.id == wait {
					return false
				}
				delete(m.waits, w.id)
				m.take(w.id, w.session, "", w.items, w.limits)
				changed = true
			}
		}
	}
	return true
}

// key is the same for states that differ only in the names of requests, in times that no rule
// compares, and in names that may be swapped.
func (s *state) key() string {
	best := s.encode("")
	for _, swap := range s.swaps {
		best = min(best, s.encode(swap))
	}
	return best
}

func (s *state) encode(swap string) string {
	items := func(items []string) string {
		text := strings.Join(items, ",")
		if swap != "" {
			text = strings.Map(func(r rune) rune {
				switch r {
				case rune(swap[0]):
					return rune(swap[1])
				case rune(swap[1]):
					return rune(swap[0])
				}
				return r
			}, text)
			parts := strings.Split(text, ",")
			slices.Sort(parts)
			text = strings.Join(parts, ",")
		}
		return text
	}
	under := make(map[string][]string)
	for _, a := range s.open {
		under[a.id] = a.under
	}
	type known struct{ text, id string }
	var holds []known
	for id, h := range s.m.holds {
		text := ""
		for _, outer := range under[id] {
			text += items(s.m.holds[outer].items) + "/"
		}
		text += items(h.items) + h.session[:2]
		if h.rests != 0 {
			text += "-"
		}
		holds = append(holds, known{text, id})
	}
	slices.SortFunc(holds, func(a, b known) int { return cmp.Or(cmp.Compare(a.text, b.text), cmp.Compare(a.id, b.id)) })
	place := map[string]byte{}
	for i, h := range holds {
		place[h.id] = byte('A' + i)
	}
	within := func(under []string) byte {
		if len(under) == 0 {
			return '.'
		}
		return place[under[len(under)-1]]
	}
	var b strings.Builder
	for _, h := range holds {
		b.WriteString(h.text)
		b.WriteByte(within(under[h.id]))
	}
	queue := s.m.inOrder()
	for _, w := range queue {
		b.WriteByte('|')
		b.WriteString(items(w.items))
		b.WriteString(w.session[:2])
		b.WriteByte(within(w.under))
		if w.reserve <= s.m.now() {
			// The nested waits are in the order of their times, so n of them arrived before it was
			// aged.
			n := byte('0')
			for _, other := range queue {
				if other.isNested() && other.since <= w.reserve {
					n++
				}
			}
			b.WriteByte(n)
		}
	}
	var again []string
	for slot := range s.again {
		again = append(again, items(s.open[slot].items)+string(within(s.open[slot].under)))
	}
	slices.Sort(again)
	fmt.Fprint(&b, again, s.lowered, s.crashed)
	for _, d := range s.delays {
		if d.upto > s.m.now() {
			b.WriteByte(d.mode)
			b.WriteString(items([]string{d.name}))
		}
	}
	return b.String()
}

// An exploration is the result of exploring a world.
type exploration struct {
	states, moves int
	worst         error    // what is wrong with the first state that breaks a rule, where it ended
	path          []move   // to that state
	paths         [][]move // to some states
}

// explore visits all states of a world breadth first, so the path to the first one that breaks a
// rule is a shortest one.
func (w *world) explore(flaw string, some int) *exploration {
	e := &exploration{}
	type link struct {
		from int
		move move
	}
	var links []link
	path := func(at int) (moves []move) {
		for ; links[at].from >= 0; at = links[at].from {
			moves = append(moves, links[at].move)
		}
		slices.Reverse(moves)
		return moves
	}
	start := w.start(flaw)
	seen := map[string]bool{start.key(): true}
	links = append(links, link{from: -1})
	for queue := []*state{start}; len(queue) > 0; queue = queue[1:] {
		s := queue[0]
		queue[0] = nil
		for _, mv := range s.moves() {
			next := s.clone()
			e.moves++
			refused, err := next.do(mv)
			if err != nil {
				e.states, e.worst, e.path = len(links), err, append(path(s.at), mv)
				return e
			}
			if refused {
				continue
			}
			if key := next.key(); !seen[key] {
				seen[key] = true
				next.at = len(links)
				links = append(links, link{s.at, mv})
				queue = append(queue, next)
			}
		}
	}
	e.states = len(links)
	for i := range some {
		e.paths = append(e.paths, path((len(links)-1)*(i+1)/some))
	}
	return e
}

// retrace makes the moves of a path by the scripts and by the model, and compares replies and keys
// after each move. It leaves out moves that are not possible. Each request has the patience by
// which it ages when the path says so.
func (w *world) retrace(t testing.TB, rdb *redis.Client, flaw string, source func(string) string, path []move) error {
	t.Helper()
	r := newRig(t, rdb)
	r.source = source
	h, err := newHistory(r, 0)
	if err != nil {
		return err
	}
	s := w.start(flaw)
	h.model = s.m
	clear(s.m.ends)
	for by := range w.sessions() {
		r.do(t, "open", worldSession(by), worldLease, "{}", "space", "0")
		s.m.open(worldSession(by), worldLease, "space", "0")
	}
	if len(w.limits) > 0 {
		r.do(t, "declare", "p", w.limits[0], 1)
	}
	ages := w.ages(path)
	for i, mv := range path {
		if !slices.Contains(s.moves(), mv) {
			s.m.us += 1000
			continue
		}
		s.patience = ages[i]
		a := s.open[mv.slot]
		if mv.kind == 'a' {
			a = s.request(mv)
		}
		script, args := "", []any{}
		switch mv.kind {
		case 'a', 'g':
			script, args = "acquire", a.args()
		case 'r', 'c':
			script, args = "release", []any{a.id}
			if s.quick(mv.slot) {
				h := s.hold(mv.slot)
				args = append(append(args, modelClaim{a.id, *h, nil}.member()), argNames(h.items)...)
			}
		case 'd':
			script, args = "downgrade", append([]any{a.id}, argNames(s.m.holds[a.id].items)...)
		case 'l':
			script, args = "declare", []any{"p", w.limits[s.lowered+1], s.lowered + 2}
		case 'x':
			script, args = "close", []any{worldSession(1), "crashed"}
		case 'e':
			script = "reap"
		}
		var got Reply
		run := func(us int64) error {
			err := h.setTime(us)
			if err == nil && script != "" {
				got, err = r.run(script, args...)
			}
			return err
		}
		h.model = s.m
		if mv.kind == 'l' { // the script decides which waits are taken out
			limit, version := w.limits[s.lowered+1], int64(s.lowered+2)
			err := run(s.m.us + 1000)
			if err == nil {
				s.asked, err = h.askedAgain()
			}
			if err == nil {
				err = s.m.checkAsked("p", limit, version, s.asked)
			}
			if err != nil {
				return err
			}
			s.asked = append([]string{}, s.asked...)
		}
		_, broken := s.do(mv)
		if mv.kind != 'l' {
			if err := run(s.m.us); err != nil {
				return err
			}
		}
		if script != "" {
			if got.At(0) == "deadlock" && s.reply[0] == "deadlock" {
				if err := s.m.checkCircle(a, texts(got)[1:]); err != nil {
					return err
				}
			} else if !slices.Equal(texts(got), s.reply) {
				return fmt.Errorf("move %d, %s %q: got %q, want %q", i, script, args, texts(got), s.reply)
			}
		}
		d, err := h.dump()
		if err == nil {
			err = d.differs(s.m.dump())
		}
		if err != nil {
			return fmt.Errorf("move %d, %s %q: %w", i, script, args, err)
		}
		if broken != nil {
			return broken
		}
	}
	return nil
}

// ages returns for each request of a path how long it takes until the path ages it, in ms.
func (w *world) ages(path []move) []int64 {
	ages := make([]int64, len(path))
	asked := make(map[int]int) // slot -> the last move by which it asks
	at, crash := make([]int64, len(path)+1), int64(0)
	for i, mv := range path {
		at[i+1] = at[i] + 1
		ages[i] = never
		switch mv.kind {
		case 'a', 'g':
			asked[mv.slot] = i
		case 'o':
			ages[asked[mv.slot]] = at[i+1] - at[asked[mv.slot]+1]
		case 'x':
			crash = at[i+1]
		case 'e':
			at[i+1] = max(at[i+1], crash+w.delay)
		}
	}
	return ages
}

// TestEveryStateOfSmallWorldsKeepsTheRules explores the worlds, and repeats some of the paths by
// the scripts. With LOCKSTEP_SOAK, the worlds have one more request, and more paths are repeated.
func TestEveryStateOfSmallWorldsKeepsTheRules(t *testing.T) {
	t.Parallel()
	for _, w := range worlds() {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			if soak() > 1 {
				w.open++
			}
			e := w.explore("", 20*soak())
			t.Logf("%d states, %d moves", e.states, e.moves)
			if e.worst != nil {
				t.Fatalf("%v, after:%s", e.worst, w.describe(e.path))
			}
			redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
				for i, path := range e.paths {
					if strings.HasSuffix(t.Name(), "miniredis") && i%5 > 0 {
						continue
					}
					if err := w.retrace(t, rdb, "", nil, path); err != nil {
						t.Fatalf("the scripts and the model differ: %v, after:%s", err, w.describe(path))
					}
				}
			})
		})
	}
}

// TestExplorationFindsFlaws breaks one rule of the model at a time, and the exploration must find a
// state that shows it. The scripts keep the rules on the path to that state. Once the same fault is
// planted in them, they reach it, too.
func TestExplorationFindsFlaws(t *testing.T) {
	t.Parallel()
	for _, fault := range []struct {
		flaw, world, finds string
		old, new           string // the same flaw of the scripts
	}{
		{
			flawHolder, "upgrades", "stuck",
			"elseif (kind == 's' or kind == 'u') and (mode == 'x' or mode == 'c') then\n        local shared",
			"elseif kind == 's' and (mode == 'x' or mode == 'c') then\n        local shared",
		},
		{flawLimit, "permits", "stuck", "if less then S.untie(name, '') end", ""},
		{flawNoBar, "bundles", "is granted past", "counts = reserve < (self and tonumber(self[W_SINCE]) or now) and", "counts = false and"},
		{
			flawNestedPass, "shares", "is granted past", "if nested then upto = '(' .. name .. '\\1' end",
			"if nested then from, upto = from .. NESTED, '(' .. name .. '\\1' end",
		},
		{
			flawBarAll, "bundles", "stuck",
			"not (spent > SEARCH or leads(S.wait(id), nested, self and self.id))", "true",
		},
		{flawOrder, "crashes", "inside the crash delay", "crashed and '1' or '0'", "'0'"},
		{flawRelease, "bundles", "nothing is in its way", "awaited(ARGV, 3, #ARGV)", "awaited(ARGV, #ARGV, #ARGV)"},
		{flawAcquire, "bundles", "is granted past", "(not queues or noneIn(queues, ARGV, 6, #ARGV))", "true"},
	} {
		t.Run(fault.flaw, func(t *testing.T) {
			t.Parallel()
			all := worlds()
			w := all[slices.IndexFunc(all, func(w world) bool { return w.name == fault.world })]
			e := w.explore(fault.flaw, 0)
			if e.worst == nil || !strings.Contains(e.worst.Error(), fault.finds) {
				t.Fatalf("got %v in %d states, want %q", e.worst, e.states, fault.finds)
			}
			t.Logf("%v, found in %d states, after:%s", e.worst, e.states, w.describe(e.path))
			redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
				if err := w.retrace(t, rdb, "", nil, e.path); err != nil {
					t.Errorf("the scripts: %v", err)
				}
				planted := false
				plant := func(source string) string {
					planted = planted || strings.Contains(source, expand(fault.old))
					return strings.ReplaceAll(source, expand(fault.old), expand(fault.new))
				}
				if err := w.retrace(t, rdb, fault.flaw, plant, e.path); err == nil || err.Error() != e.worst.Error() {
					t.Errorf("the scripts with that fault: got %v, want %v", err, e.worst)
				}
				if !planted {
					t.Errorf("the fault is not in the scripts: %q does not occur", fault.old)
				}
			})
		})
	}
}
