package space

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A model is the specification of the lock space: slow, obvious, and without a bound on the work of
// one step. It gives the reply of every operation and the content of all keys after it.
type model struct {
	us       int64
	ticket   int64
	seq      int64
	ends     map[string]int64 // session -> ms
	revs     map[string]int64
	holds    map[string]*modelHold
	waits    map[string]*modelWait
	offered  map[string]bool // offers that are not picked up yet
	declared map[string]modelPermits
	kept     []string // classes of runs that get no offers

	server string // the run ID of the server, "" if it is hidden
	id     string // "" for an empty space
	epoch  int64
	format int    // of what is stored; 0 before the space has a number
	knows  string // the server that the space knows
	grace  int64  // ms; 0: none
	lost   bool
	at     map[string]string
	leases map[string]int64

	past []string // how holds and waits have ended, see pastText

	flaw string // a rule that is broken, for the exploration to find; "" for none
}

// The flaws that a model can have.
const (
	flawHolder     = "the search for circles sees an upgrade, and not the share below it"
	flawLimit      = "a lowered limit is not checked for circles"
	flawNoBar      = "nested requests pass aged waits"
	flawNestedPass = "nested requests pass aged nested waits"
	flawBarAll     = "a nested request gives way to a wait that depends on it"
	flawOrder      = "the end of a crashed session is an orderly one"
	flawRelease    = "the fast path of a release looks at the queue of its last name alone"
	flawAcquire    = "the fast path of an acquire looks at no queue"
)

type modelPermits struct{ limit, version int64 }

type modelHold struct {
	session, info, asked string
	token, since         int64
	limits               modelLimits
	items                []string
	// rests: 0, or the time until which its bundle stays taken after its end.
	rests  int64
	counts int64 // when the count of the longest time began
}

// modelLimits are, in ms, the longest and the shortest time of a hold, and its delay after a crash.
type modelLimits struct{ most, least, crash int64 }

func (l modelLimits) String() string {
	if l == (modelLimits{}) {
		return ""
	}
	return fmt.Sprintf("%d,%d,%d", l.most, l.least, l.crash)
}

type modelWait struct {
	id, session, info string
	ticket            int64
	since, reserve    int64
	deadline          int64 // 0: none
	state             string
	lapse             int64
	limits            modelLimits
	class             string // of a run's wait
	under             []string
	items             []string
}

// nestedTickets is above the tickets of nested requests, which come first.
const nestedTickets = 1_000_000_000_000_000

func newModel(us int64) *model {
	return &model{
		us: us, ends: map[string]int64{}, revs: map[string]int64{}, holds: map[string]*modelHold{},
		waits: map[string]*modelWait{}, offered: map[string]bool{}, declared: map[string]modelPermits{},
		id: "space", epoch: 1, at: map[string]string{}, leases: map[string]int64{},
	}
}

func (m *model) now() int64 { return m.us / 1000 }

func (m *model) alive(session string) bool { return m.ends[session] > m.now() }

// parseItem splits an item: x, s, c or p; its number, 0 without one; the name.
func parseItem(item string) (mode byte, n int64, name string) {
	mode, name = item[0], item[1:]
	if mode == 'c' || mode == 'p' {
		number, rest, _ := strings.Cut(name, ":")
		n, name = Int(number), rest
	}
	return mode, n, name
}

// want returns what a bundle wants of a resource: its mode, 0 for nothing, and the number.
func want(items []string, resource string) (byte, int64) {
	for _, item := range items {
		if mode, n, name := parseItem(item); name == resource {
			return mode, n
		}
	}
	return 0, 0
}

// occupant is one hold or offer on a resource.
type occupant struct {
	tag  string // x<hold> or o<request>
	mode byte
	n    int64
}

// occupants returns the offers, then the holds, on a resource, each in the order of their IDs.
func (m *model) occupants(name string) (on []occupant) {
	for _, id := range slices.Sorted(maps.Keys(m.waits)) {
		if mode, n := want(m.waits[id].items, name); mode != 0 && m.waits[id].state == "o" {
			on = append(on, occupant{"o" + id, mode, n})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(m.holds)) {
		if mode, n := want(m.holds[id].items, name); mode != 0 {
			on = append(on, occupant{"x" + id, mode, n})
		}
	}
	return on
}

// used returns how much of a resource is taken, in permits or sharers.
func used(on []occupant) (n int64) {
	for _, o := range on {
		if o.mode == 'p' {
			n += o.n
		} else {
			n++
		}
	}
	return n
}

// inOrder returns the waits in the queues, the oldest first.
func (m *model) inOrder() []*modelWait {
	var queue []*modelWait
	for _, w := range m.waits {
		if w.state == "w" {
			queue = append(queue, w)
		}
	}
	slices.SortFunc(queue, func(a, b *modelWait) int { return cmp.Compare(a.ticket, b.ticket) })
	return queue
}

// A modelAsker is a request that wants a bundle: a wait, or a new request.
type modelAsker struct {
	id             string // of a wait, "" for a new request
	items          []string
	ticket         int64  // 0: new, after all others
	self           string // a wait that may have the bundle reserved by its own offer
	since, reserve int64
	nested         []string
}

func (w *modelWait) asker() modelAsker {
	return modelAsker{id: w.id, items: w.items, ticket: w.ticket, since: w.since, reserve: w.reserve, nested: w.under}
}

// fresh is a request without a wait.
func (m *model) fresh(items, nested []string) modelAsker {
	return modelAsker{items: items, since: m.now(), reserve: math.MaxInt64, nested: nested}
}

func (w *modelWait) isNested() bool { return w.ticket < nestedTickets }

// yields reports whether a request must not pass a wait that is older than its reserve time. A
// plain request yields to an earlier ticket, except that of a nested request that came when the
// plain wait was that old already. A nested request yields to the waits, plain or nested, that were
// that old when it came, except those that depend on its holds.
func (m *model) yields(a modelAsker, w *modelWait) bool {
	switch {
	case len(a.nested) > 0 && m.flaw == flawNoBar, len(a.nested) > 0 && w.isNested() && m.flaw == flawNestedPass:
		return false
	case len(a.nested) > 0:
		return w.reserve < a.since
	case a.ticket != 0 && w.ticket >= a.ticket:
		return false
	}
	return !w.isNested() || w.since <= a.reserve
}

// barred returns the wait that a request for an item may no longer pass, or "".
func (m *model) barred(item string, a modelAsker) string {
	mode, n, name := parseItem(item)
	room := m.room(name, mode, n)
	for _, w := range m.inOrder() {
		other, wants := want(w.items, name)
		if other == 0 || w.reserve > m.now() || !m.yields(a, w) {
			continue
		}
		if other == 'p' && wants > m.declared[name].limit {
			continue // the limit was lowered: it will not be granted
		}
		if len(a.nested) > 0 && m.flaw != flawBarAll && m.depends(w, a) {
			continue // it waits for this request
		}
		if mode == 'p' && other != 'p' {
			continue // it is older than their declaration, and will never be granted
		}
		if mode == 'x' || other == 'x' {
			return w.id
		}
		if mode == 's' {
			continue
		}
		if mode == 'c' {
			wants = 1
		}
		if room -= wants; room < 0 {
			return w.id
		}
	}
	return ""
}

// room returns how much more of a resource is free beside a request for n of it.
func (m *model) room(name string, mode byte, n int64) int64 {
	switch mode {
	case 'p':
		return m.declared[name].limit - used(m.occupants(name)) - n
	case 'c':
		on := m.occupants(name)
		if len(on) > 0 && on[0].mode == 'x' {
			return n - 1
		}
		return n - 1 - used(on)
	}
	return 0
}

// conflicts reports whether a request for a resource in one mode may have to wait for a hold or a
// wait in the other mode, however much of the resource exists.
func conflicts(mode, other byte) bool {
	return (mode == 'p') == (other == 'p') && (mode != 's' || other == 'x')
}

// depends reports whether a wait cannot be granted before a nested request. That is so if the wait,
// or a wait that may be granted before it, wants something of a hold that the request is
// nested in, or of another hold in which a wait does that; or if one of these waits must yield to
// the request itself. It ignores amounts: a permit of one of three holds may be enough, and yet the
// wait depends on all of them.
func (m *model) depends(w *modelWait, a modelAsker) bool {
	seen := make(map[string]bool)
	var reaches func(w *modelWait) bool
	reaches = func(w *modelWait) bool {
		if w.id == a.id {
			return true
		}
		if seen["w"+w.id] {
			return false
		}
		seen["w"+w.id] = true
		for _, item := range w.items {
			mode, _, name := parseItem(item)
			for _, o := range m.occupants(name) {
				id := o.tag[1:]
				if o.tag[0] == 'o' || !conflicts(mode, o.mode) || seen[o.tag] || mode == 'x' && o.mode != 'x' && slices.Contains(w.under, id) {
					continue
				}
				if seen[o.tag] = true; slices.Contains(a.nested, id) {
					return true
				}
				for _, inside := range m.waits {
					if slices.Contains(inside.under, id) && reaches(inside) {
						return true
					}
				}
			}
			for _, other := range m.inOrder() {
				wants, _ := want(other.items, name)
				if wants != 0 && other != w && conflicts(mode, wants) && m.yields(w.asker(), other) && reaches(other) {
					return true
				}
			}
		}
		return false
	}
	return reaches(w)
}

// blocked returns what blocks a bundle. An older ticket beats younger offers, which it returns.
func (m *model) blocked(a modelAsker) (resource, by string, beaten []string) {
	items, ticket, nested := a.items, a.ticket, a.nested
	if w := m.waits[a.self]; w != nil && w.state == "o" {
		return "", "", nil
	}
	beat := func(tag string) bool {
		id := tag[1:]
		if ticket == 0 || ticket >= m.waits[id].ticket {
			return false
		}
		if !slices.Contains(beaten, id) {
			beaten = append(beaten, id)
		}
		return true
	}
	for _, item := range items {
		mode, n, name := parseItem(item)
		on := m.occupants(name)
		var alone, offers, holds []occupant
		for _, o := range on {
			switch {
			case o.mode == 'x':
				alone = append(alone, o)
			case o.tag[0] == 'o':
				offers = append(offers, o)
			default:
				holds = append(holds, o)
			}
		}
		needed := int64(0)
		_, declared := m.declared[name]
		switch {
		case declared != (mode == 'p'): // it was declared after the request was checked
			return name, "l", nil
		case len(alone) > 0:
			if o := alone[0]; o.tag[0] == 'x' || !beat(o.tag) {
				return name, o.tag, nil
			}
		case mode == 'x':
			for _, o := range offers {
				if !beat(o.tag) {
					return name, o.tag, nil
				}
			}
			for _, o := range holds {
				if !slices.Contains(nested, o.tag[1:]) {
					return name, o.tag, nil
				}
			}
		case mode == 'c':
			needed = used(on) + 1 - n
		case mode == 'p':
			needed = used(on) + n - m.declared[name].limit
		}
		if needed <= 0 {
			continue
		}
		slices.SortFunc(offers, func(a, b occupant) int {
			return cmp.Compare(m.waits[b.tag[1:]].ticket, m.waits[a.tag[1:]].ticket)
		})
		for _, o := range offers {
			if needed > 0 && beat(o.tag) {
				needed -= used([]occupant{o})
			}
		}
		switch {
		case needed <= 0:
		case len(holds) > 0:
			return name, holds[0].tag, nil
		case len(offers) > 0:
			return name, offers[0].tag, nil
		default:
			return name, "l", nil
		}
	}
	for _, item := range items {
		if by := m.barred(item, a); by != "" {
			_, _, name := parseItem(item)
			return name, "w" + by, nil
		}
	}
	return "", "", beaten
}

func (m *model) take(id, session, info string, items []string, limits modelLimits) string {
	m.seq = max(m.seq+1, m.us)
	m.holds[id] = &modelHold{
		session: session, info: info, token: m.seq, since: m.now(), limits: limits, items: slices.Clone(items),
		counts: m.now(),
	}
	return fmt.Sprint(m.seq)
}

// pastText is what a dump has of an entry: all but what blocked a wait. at: of the end, ms.
func pastText(at string, f StoredEntry) string {
	return strings.Join([]string{at, f.How, f.ID, f.Token, f.Since, f.Rest, f.Info, f.Items}, " ")
}

// keepHold keeps how a hold has ended.
func (m *model) keepHold(how, id string, h *modelHold) {
	f := StoredEntry{
		How: "h" + how, ID: id, Token: fmt.Sprint(h.token), Since: fmt.Sprint(h.since), Info: h.info, Items: strings.Join(h.items, "\x1f"),
	}
	if h.rests != 0 {
		f.Rest = fmt.Sprint(h.rests)
	}
	m.past = append(m.past, pastText(fmt.Sprint(m.now()), f))
}

// free ends a hold, or makes it rest. It returns false if no valid hold has that ID. how is as in
// StoredEntry, "" if its holder releases it.
func (m *model) free(id, how string, atOnce bool) bool {
	h := m.holds[id]
	if h == nil || h.rests != 0 && !atOnce {
		return false
	}
	rest := int64(0)
	if h.limits.least > 0 {
		rest = h.since + h.limits.least
	}
	if (how == "c" || how == "l") && h.limits.crash > 0 {
		rest = max(rest, m.now()+h.limits.crash)
	}
	rested := h.rests != 0 // then its end is kept already
	if rest > m.now() && !atOnce {
		h.rests = rest
	} else {
		delete(m.holds, id)
	}
	if how == "" && h.asked != "" {
		how = "v"
	}
	if !rested {
		m.keepHold(cmp.Or(how, "r"), id, h)
	}
	return true
}

// settle grants to every grantable wait, the oldest first.
func (m *model) settle() {
	if m.grace != 0 { // reap ends it
		return
	}
	for _, w := range m.inOrder() {
		if w.session != "@" && !m.alive(w.session) {
			continue
		}
		if resource, _, beaten := m.blocked(w.asker()); resource != "" || len(beaten) > 0 {
			continue
		}
		if m.strange() {
			m.pause(0, 0)
			return
		}
		if w.session == "@" {
			w.state, w.lapse = "o", m.now()+2000
			m.offered[w.id] = true
			continue
		}
		m.drop(w.id, "g")
		m.take(w.id, w.session, w.info, w.items, w.limits)
		m.revs[w.session]++
	}
}

// strange reports whether no client was greeted on the server yet.
func (m *model) strange() bool { return m.server != "" && m.knows != "" && m.server != m.knows }

// entry returns what a dump has of a wait that has ended. at: of the end, ms. how is as in
// StoredEntry.
func (w *modelWait) entry(at int64, how string) string {
	return pastText(fmt.Sprint(at), StoredEntry{
		How: "w" + how, ID: w.id, Since: fmt.Sprint(w.since), Info: w.info, Items: strings.Join(w.items, "\x1f"),
	})
}

// drop ends a wait. how is as in StoredEntry.
func (m *model) drop(id, how string) bool {
	w, ok := m.waits[id]
	if ok {
		m.past = append(m.past, w.entry(m.now(), how))
	}
	delete(m.waits, id)
	delete(m.offered, id)
	return ok
}

func (m *model) isDue() bool {
	if m.grace != 0 {
		return true
	}
	for _, at := range m.ends {
		if at <= m.now() {
			return true
		}
	}
	for _, w := range m.waits {
		if w.deadline != 0 && w.deadline <= m.now() || w.state == "o" && w.lapse <= m.now() {
			return true
		}
	}
	for _, h := range m.holds {
		if at := h.due(); at != 0 && at <= m.now() {
			return true
		}
	}
	return false
}

// due returns when a hold ends by its limits, 0 for never.
func (h *modelHold) due() int64 {
	if h.rests == 0 && h.limits.most > 0 {
		return h.counts + h.limits.most
	}
	return h.rests
}

func (m *model) reap() {
	now := m.now()
	if m.grace <= now {
		m.grace = 0
	}
	for session, at := range m.ends {
		if at > now {
			continue
		}
		how := map[int64]string{0: "", 1: "c"}[at]
		if at > 1 {
			how = "l"
		}
		for id, h := range m.holds {
			if h.session == session && h.rests == 0 {
				if h.limits.most > 0 && h.due() <= at { // the timer wheel reaches it first
					m.free(id, "e", false)
				} else {
					m.free(id, how, false)
				}
			}
		}
		for id, w := range m.waits {
			switch {
			case w.session != session:
			case w.deadline != 0 && w.deadline < at: // the timer wheel reaches it first
				m.drop(id, "t")
			default:
				m.drop(id, cmp.Or(how, "k"))
			}
		}
		delete(m.ends, session)
		delete(m.revs, session)
		delete(m.at, session)
		delete(m.leases, session)
	}
	for id, w := range m.waits {
		switch {
		case w.deadline != 0 && w.deadline <= now:
			m.drop(id, "t")
		case w.state == "o" && w.lapse <= now:
			w.state = "l"
		}
	}
	for id, h := range m.holds {
		if at := h.due(); at != 0 && at <= now {
			m.free(id, "e", h.rests != 0)
		}
	}
	m.settle()
}

func (m *model) park(id, session, info string, items []string, patience, limit int64, limits modelLimits, under []string) {
	w := m.waits[id]
	if w == nil {
		m.ticket++
		w = &modelWait{
			id: id, session: session, info: info, ticket: m.ticket, since: m.now(), reserve: m.now() + patience, items: items,
			limits: limits, under: under,
		}
		if len(under) == 0 {
			w.ticket += nestedTickets
		}
		if limit != 0 {
			w.deadline = m.now() + limit
		}
		m.waits[id] = w
	}
	w.state = "w"
}

// The operations. Each returns the reply of its script, without the descriptions in it.

func (m *model) open(session string, lease int64, id, pause string) []string {
	if _, ok := m.ends[session]; ok {
		return []string{"taken"}
	}
	if m.id == "" {
		m.id, m.epoch, m.knows, m.format = id, m.us, m.server, Format
		waits := Int(pause)
		if pause == "" && m.server != "" && lease > modelUptime*1000 {
			waits = 1000
		}
		if waits > 0 {
			m.grace = m.now() + waits
		}
	}
	m.format = cmp.Or(m.format, 1)
	m.ends[session] = m.now() + lease
	m.know(session, lease, fmt.Sprint(m.epoch))
	still := "0"
	if m.lost && m.grace > m.now() || !m.lost && m.seq == 0 {
		still = "1"
	}
	return []string{"open", fmt.Sprint(m.now()), m.id, fmt.Sprint(m.epoch), fmt.Sprint(m.longest()), still, strconv.Itoa(m.format)}
}

// modelUptime is the uptime in seconds that the server reports.
const modelUptime = 3

func (m *model) know(session string, lease int64, epoch string) {
	m.leases[session], m.at[session] = lease, fmt.Sprintf("%s %d", epoch, lease)
}

func (m *model) longest() (longest int64) {
	for _, lease := range m.leases {
		longest = max(longest, lease)
	}
	return longest
}

func (m *model) generation() (id, epoch string) {
	if m.id == "" {
		return "", ""
	}
	return m.id, fmt.Sprint(m.epoch)
}

func (m *model) pause(least, margin int64) {
	m.grace, m.lost = max(m.grace, m.now()+max(least, m.longest()+margin)), true
}

// notice begins a grace period on a server that the space does not know.
func (m *model) notice(least, margin int64) string {
	knew := m.knows
	switch {
	case m.id == "":
		return "empty"
	case m.server == "" || m.server == knew:
		return "known"
	}
	m.knows = m.server
	if knew == "" {
		return "known"
	}
	m.epoch = max(m.epoch+1, m.us)
	m.pause(least, margin)
	for session, at := range m.ends {
		if at > 1 {
			m.ends[session] = m.grace
		}
	}
	return "changed"
}

func (m *model) renew(session string, lease int64, id, epoch string, least, margin int64) []string {
	m.notice(least, margin)
	if at, now := m.generation(); at == "" || at != id || now != epoch {
		return []string{"assert", at, now}
	}
	if m.at[session] != fmt.Sprintf("%s %d", epoch, lease) || !m.alive(session) {
		return []string{"dead"}
	}
	m.ends[session] = m.now() + lease
	if m.isDue() {
		m.reap()
	}
	count := 0
	for _, h := range m.holds {
		if h.session == session && h.rests == 0 {
			count++
		}
	}
	for _, w := range m.waits {
		if w.session == session {
			count++
		}
	}
	m.format = cmp.Or(m.format, 1)
	return []string{"ok", fmt.Sprint(m.now()), fmt.Sprint(m.revs[session]), fmt.Sprint(count), m.soonest(), fmt.Sprint(m.longest()), strconv.Itoa(m.format)}
}

// A modelClaim is a hold that a session asserts.
type modelClaim struct {
	id    string
	hold  modelHold
	under []string
}

// assert handles an assertion of a session.
func (m *model) assert(session string, lease int64, id, epoch, newID string, least, margin, highest int64, last bool, claims []modelClaim) []string {
	m.notice(least, margin)
	if at, now := m.generation(); at != id || now != epoch {
		return []string{"again", at, now}
	}
	switch {
	case m.id == "":
		m.id, m.epoch, m.knows, m.format = newID, m.us, m.server, Format
		m.pause(least, margin)
	case !m.lost && m.seq == 0:
		m.pause(least, margin)
	}
	if !m.lost || m.grace <= m.now() {
		return []string{"late"}
	}
	left := m.grace - m.now()
	m.ends[session] = m.now() + max(lease, left)
	m.know(session, lease, map[bool]string{true: fmt.Sprint(m.epoch)}[last])
	m.seq = max(m.seq, highest)
	id, epoch = m.generation()
	reply := []string{"ok", id, epoch, fmt.Sprint(left)}
	for _, claim := range claims {
		claim.hold.counts = m.now()
		claim.hold.items = slices.Clone(claim.hold.items)
		switch known := m.holds[claim.id]; {
		case known != nil && known.rests != 0:
			claim.hold.items = slices.Clone(known.items) // as they are occupied
			m.holds[claim.id] = &claim.hold
		case known == nil:
			m.drop(claim.id, "g")
			if !m.admit(claim) {
				reply = append(reply, claim.id)
			}
		}
	}
	m.reap()
	return reply
}

// admit restores a hold that was lost, unless a stronger one is in its way.
func (m *model) admit(claim modelClaim) bool {
	var rivals, offers []string
	for _, item := range claim.hold.items {
		mode, n, name := parseItem(item)
		permits, declared := m.declared[name]
		if declared && mode != 'p' {
			return false
		}
		on := m.occupants(name)
		over := int64(0)
		if declared {
			if over = used(on) + n - permits.limit; over <= 0 || permits.version < 0 {
				continue
			}
		}
		slices.SortFunc(on, func(a, b occupant) int { // offers first, then the weakest
			return cmp.Compare(m.strength(a), m.strength(b))
		})
		for _, o := range on {
			switch {
			case declared && over <= 0:
			case !declared && o.mode != 'x' && (mode == 's' || mode == 'c'): // they share it
			// it is inside that one
			case !declared && o.mode != 'x' && slices.Contains(claim.under, o.tag[1:]):
			case o.tag[0] == 'o':
				offers = append(offers, o.tag[1:])
				over -= used([]occupant{o})
			default:
				rivals = append(rivals, o.tag[1:])
				over -= used([]occupant{o})
			}
		}
		if declared && over > 0 {
			return false
		}
	}
	for _, id := range rivals {
		if m.holds[id].token >= claim.hold.token {
			return false
		}
	}
	for _, id := range rivals {
		session, _, _ := cutLast(id)
		if m.free(id, "l", true) && m.alive(session) {
			m.revs[session]++
		}
	}
	for _, id := range offers {
		if w := m.waits[id]; w.state == "o" {
			w.state = "l"
		}
	}
	for _, item := range claim.hold.items {
		mode, n, name := parseItem(item)
		if permits, declared := m.declared[name]; mode == 'p' && (!declared || permits.version < 0) {
			m.declared[name] = modelPermits{used(m.occupants(name)) + n, -1}
		}
	}
	m.holds[claim.id] = &claim.hold
	return true
}

// strength orders the occupants of a resource: offers yield to any hold, holds to one with a higher
// token.
func (m *model) strength(o occupant) int64 {
	if o.tag[0] == 'o' {
		return 0
	}
	return m.holds[o.tag[1:]].token
}

// cutLast returns the session of an ID.
func cutLast(id string) (session, number string, ok bool) {
	i := strings.LastIndexByte(id, '.')
	if i < 0 {
		return "", "", false
	}
	return id[:i], id[i+1:], true
}

// clone returns a copy that shares nothing.
func (m *model) clone() *model {
	c := *m
	c.past = slices.Clip(m.past)
	c.ends, c.revs, c.offered, c.declared = maps.Clone(m.ends), maps.Clone(m.revs), maps.Clone(m.offered), maps.Clone(m.declared)
	c.at, c.leases = maps.Clone(m.at), maps.Clone(m.leases)
	c.holds, c.waits = map[string]*modelHold{}, map[string]*modelWait{}
	for id, h := range m.holds {
		hold := *h
		hold.items = slices.Clone(h.items)
		c.holds[id] = &hold
	}
	for id, w := range m.waits {
		wait := *w
		c.waits[id] = &wait
	}
	return &c
}

func (m *model) soonest() string {
	soonest := int64(-1)
	see := func(at int64) {
		if at != 0 && (soonest < 0 || at < soonest) {
			soonest = at
		}
	}
	see(m.grace)
	for _, at := range m.ends {
		see(at)
	}
	for _, w := range m.waits {
		see(w.deadline)
		if w.state == "o" {
			see(w.lapse)
		}
	}
	for _, h := range m.holds {
		see(h.due())
	}
	if soonest < 0 {
		return "-1"
	}
	return fmt.Sprint(max(0, soonest-m.now()))
}

// modelAsk is the request of an acquire. wait is -1, 0 or a limit in ms.
type modelAsk struct {
	session, id, info string
	wait, patience    int64
	under             []string
	limits            modelLimits
	items             []string
}

func (a modelAsk) nested() bool { return len(a.under) > 0 }

// plain reports whether the scripts have a fast path for it.
func (a modelAsk) plain() bool {
	shared := slices.ContainsFunc(a.items, func(item string) bool { return item[0] != 'x' })
	return !shared && !a.nested() && a.limits == (modelLimits{})
}

// awaited reports whether a request waits in the queue of one of some names: then the fast path is
// not possible.
func (m *model) awaited(items []string) bool {
	for _, w := range m.inOrder() {
		for _, item := range items {
			_, _, name := parseItem(item)
			if mode, _ := want(w.items, name); mode != 0 {
				return true
			}
		}
	}
	return false
}

// unoccupied reports whether no hold or offer has any of some names, and none is declared as
// permits.
func (m *model) unoccupied(items []string) bool {
	return !slices.ContainsFunc(items, func(item string) bool {
		_, _, name := parseItem(item)
		_, declared := m.declared[name]
		return declared || len(m.occupants(name)) > 0
	})
}

func (m *model) acquire(a modelAsk) []string {
	if !m.alive(a.session) {
		return []string{"dead"}
	}
	if m.isDue() {
		m.reap()
	}
	if h := m.holds[a.id]; h != nil {
		return []string{"granted", fmt.Sprint(h.token), fmt.Sprint(h.since)}
	}
	for _, id := range a.under {
		if h := m.holds[id]; h == nil || h.rests != 0 {
			return []string{"lost", id}
		}
	}
	if w := m.waits[a.id]; w != nil {
		if a.wait != -1 {
			return m.describe([]string{"waiting", m.soonest()}, w.asker())
		}
		m.drop(a.id, "t")
		m.settle()
	}
	if m.grace != 0 {
		return []string{"grace", fmt.Sprint(m.grace - m.now())}
	}
	if why := m.unfit(a.items); why != nil {
		return why
	}
	fast := a.plain() && m.unoccupied(a.items) && (m.flaw == flawAcquire || !m.awaited(a.items))
	if resource, _, _ := m.blocked(m.fresh(a.items, a.under)); fast || resource == "" {
		token := m.take(a.id, a.session, a.info, a.items, a.limits)
		return []string{"granted", token, fmt.Sprint(m.now())}
	}
	if a.wait == -1 {
		return m.describe([]string{"busy", m.soonest()}, m.fresh(a.items, a.under))
	}
	if a.nested() && m.circle(a.items, a.under) {
		return []string{"deadlock"}
	}
	described := m.describe(nil, m.fresh(a.items, a.under))
	m.park(a.id, a.session, a.info, a.items, a.patience, a.wait, a.limits, a.under)
	// It counts itself among those that wait for the resource.
	described[7] = fmt.Sprint(Int(described[7]) + 1)
	reply := append([]string{"waiting", m.soonest()}, described...)
	m.settle() // a wait that now depends on other holds no longer bars requests nested in them
	return reply
}

// unfit returns the reply to a request that can never be granted.
func (m *model) unfit(items []string) []string {
	for _, item := range items {
		mode, n, name := parseItem(item)
		permits, declared := m.declared[name]
		switch {
		case declared && mode != 'p':
			return []string{"mode", name, "1"}
		case !declared && mode == 'p':
			return []string{"mode", name, "0"}
		case declared && n > permits.limit:
			return []string{"limit", name, fmt.Sprint(permits.limit)}
		}
	}
	return nil
}

// A need is what a bundle waits for at one resource: holds, with the amount that each has, of which
// only so much may stay.
type need struct {
	of   map[string]int64
	stay int64
}

// needs returns what a bundle waits for. nested is what the request is nested in. An upgrade keeps
// every request out, and the share below it keeps out those that the share alone would.
func (m *model) needs(items, nested []string) (needs []need) {
	for _, item := range items {
		mode, n, name := parseItem(item)
		alone, shared := need{of: make(map[string]int64)}, need{of: make(map[string]int64)}
		for _, o := range m.occupants(name) {
			switch {
			case o.tag[0] == 'o':
			case o.mode == 'x':
				alone.of[o.tag[1:]] = 1
			case mode == 'x' && slices.Contains(nested, o.tag[1:]): // it shares with itself
			case m.flaw == flawHolder && slices.ContainsFunc(m.occupants(name), func(o occupant) bool { return o.mode == 'x' }):
			case mode == 'p' || mode == 'x' || mode == 'c':
				shared.of[o.tag[1:]] = used([]occupant{o})
			}
		}
		switch _, declared := m.declared[name]; {
		case declared != (mode == 'p'): // it waits for a declaration
			continue
		case mode == 'p':
			shared.stay = m.declared[name].limit - n
		case mode == 'c':
			shared.stay = n - 1
		}
		needs = append(needs, alone, shared)
	}
	return needs
}

// blocks reports whether holds that never end keep a request from what it needs.
func (n need) blocks(never map[string]bool) bool {
	left := int64(0)
	for id, much := range n.of {
		if never[id] {
			left += much
		}
	}
	return left > n.stay
}

// circle reports whether a bundle waits for one of the holds that the asking request is nested in,
// through the waits nested in others, so that neither ever ends.
func (m *model) circle(items, nested []string) bool {
	inside := make(map[string][]need)
	never := make(map[string]bool)
	for id, h := range m.holds {
		never[id] = h.rests == 0 // otherwise it ends by itself
		for _, w := range m.waits {
			if slices.Contains(w.under, id) {
				inside[id] = append(inside[id], m.needs(w.items, w.under)...)
			}
		}
	}
	maps.DeleteFunc(never, func(_ string, never bool) bool { return !never })
	for ends := true; ends; {
		ends = false
		for id := range never {
			blocks := func(n need) bool { return n.blocks(never) }
			if !slices.Contains(nested, id) && !slices.ContainsFunc(inside[id], blocks) {
				delete(never, id)
				ends = true
			}
		}
	}
	seen := make(map[string]bool)
	var leads func(needs []need) bool
	leads = func(needs []need) bool {
		for _, n := range needs {
			for id := range n.of {
				if !n.blocks(never) || !never[id] || seen[id] {
					continue
				}
				seen[id] = true
				if slices.Contains(nested, id) || leads(inside[id]) {
					return true
				}
			}
		}
		return false
	}
	return leads(m.needs(items, nested))
}

// checkAsked returns an error if a wait that a lowered limit took out was in no circle.
func (m *model) checkAsked(name string, limit, version int64, asked []string) error {
	c := m.clone()
	c.declared[name] = modelPermits{limit, version}
	c.dismiss(name)
	for _, id := range asked {
		w := c.waits[id]
		if w == nil || len(w.under) == 0 || !c.circle(w.items, w.under) {
			return fmt.Errorf("%s was asked again, and is in no circle", id)
		}
		c.drop(id, "d")
	}
	return nil
}

// endless returns the waits that are not granted although every hold without nested waits ends:
// those that wait for each other in a circle that no script has found. A request for permits that
// has become impossible ends its wait. Every wait is as old as it ever gets.
func (m *model) endless() []string {
	c := m.clone()
	c.server, c.grace, c.kept = "", 0, nil
	for session := range c.ends {
		c.ends[session] = math.MaxInt64
	}
	for id, w := range c.waits {
		if w.state == "o" || w.state == "l" {
			delete(c.waits, id)
			continue
		}
		w.state = "w"
		c.us = max(c.us, w.reserve*1000)
	}
	for {
		waits, holds := len(c.waits), len(c.holds)
		for id, w := range c.waits {
			if c.unfit(w.items) != nil {
				delete(c.waits, id)
			}
		}
		for id, h := range c.holds {
			inside := func(w *modelWait) bool { return slices.Contains(w.under, id) }
			if h.rests != 0 || !slices.ContainsFunc(slices.Collect(maps.Values(c.waits)), inside) {
				delete(c.holds, id)
			}
		}
		c.settle()
		for id, w := range c.waits { // an offer is taken, and the run ends
			if w.state == "o" {
				delete(c.waits, id)
			}
		}
		if len(c.waits) != waits || len(c.holds) != holds {
			continue
		}
		var stuck []string
		for _, id := range slices.Sorted(maps.Keys(c.waits)) {
			w := c.waits[id]
			name, by, _ := c.blocked(w.asker())
			stuck = append(stuck, fmt.Sprintf("%s in %q wants %q: %s has or wants %s", id, w.under, w.items, by, name))
		}
		return stuck
	}
}

// checkCircle returns what is wrong with the circle that a deadlock names.
func (m *model) checkCircle(a modelAsk, path []string) error {
	if len(path) == 0 || len(path)%3 != 0 {
		return fmt.Errorf("a circle of %d fields", len(path))
	}
	wants := [][]string{a.items}
	for i := 0; i < len(path); i += 3 {
		name, id := path[i], path[i+1]
		wanted := slices.ContainsFunc(wants, func(items []string) bool { mode, _ := want(items, name); return mode != 0 })
		if mode, _ := want(m.holds[id].items, name); !wanted || mode == 0 {
			return fmt.Errorf("circle %q: no request waits there for %s, or %s does not have it", path, name, id)
		}
		wants = nil
		for _, w := range m.waits {
			if slices.Contains(w.under, id) {
				wants = append(wants, w.items)
			}
		}
	}
	if last := path[len(path)-2]; !slices.Contains(a.under, last) {
		return fmt.Errorf("circle %q does not come back to %q", path, a.under)
	}
	return nil
}

// describe appends what is in the way.
func (m *model) describe(to []string, a modelAsker) []string {
	name, by, _ := m.blocked(a)
	if name == "" {
		return to
	}
	queue := 0
	for _, w := range m.inOrder() {
		if mode, _ := want(w.items, name); mode != 0 {
			queue++
		}
	}
	switch by[0] {
	case 'x':
		h := m.holds[by[1:]]
		session, left := h.session, max(0, m.ends[h.session]-m.now())
		if h.rests != 0 {
			session, left = "", h.rests-m.now()
		}
		return append(to, name, session, by[1:], h.info, fmt.Sprint(h.token), fmt.Sprint(m.now()-h.since),
			fmt.Sprint(left), fmt.Sprint(queue))
	case 'l':
		return append(to, name, "", "", "", "0", "0", "0", fmt.Sprint(queue))
	}
	w := m.waits[by[1:]]
	return append(to, name, "", w.id, w.info, "0", fmt.Sprint(m.now()-w.since), "0", fmt.Sprint(queue))
}

// release ends what a request has. quick: the caller names its bundle, for the fast path, which is
// possible while no request waits for one of these names.
func (m *model) release(id string, quick bool) []string {
	h := m.holds[id]
	if h != nil && h.rests == 0 && quick && !m.passesOn(h.items) {
		delete(m.holds, id)
		m.keepHold("r", id, h)
		return []string{"released"}
	}
	answer := "gone"
	if m.free(id, "", false) {
		answer = "released"
	} else if m.drop(id, "k") {
		answer = "cancelled"
	}
	m.settle()
	m.reap()
	session := string(SessionOf(HoldID(id)))
	if answer != "gone" || !m.alive(session) {
		return []string{answer, "0"}
	}
	space, epoch := m.generation()
	return []string{answer, "0", space, epoch, fmt.Sprint(m.revs[session])}
}

// passesOn reports whether a release of some names leaves the fast path, since a request waits for
// one of them.
func (m *model) passesOn(items []string) bool {
	if m.flaw == flawRelease {
		items = items[len(items)-1:]
	}
	return m.awaited(items)
}

// acquireAll grants the bundles that nothing blocks, one after the other, and changes nothing for
// the rest.
func (m *model) acquireAll(asks []modelAsk) []string {
	if m.isDue() || !m.alive(asks[0].session) {
		return []string{""}
	}
	marks, first := "", ""
	for _, a := range asks {
		if resource, _, _ := m.blocked(m.fresh(a.items, nil)); resource != "" || m.awaited(a.items) {
			marks += "0"
			continue
		}
		token := m.take(a.id, a.session, a.info, a.items, modelLimits{})
		if marks += "1"; first == "" {
			first = token
		}
	}
	if first == "" {
		return []string{""}
	}
	return []string{marks, fmt.Sprint(m.now()), first}
}

// releaseAll ends the holds that are exactly as the caller wrote them, unless a request waits.
func (m *model) releaseAll(claims []modelClaim) []string {
	marks := ""
	var gone []string
	for _, c := range claims {
		held := m.holds[c.id]
		if held == nil || (modelClaim{c.id, *held, nil}).member() != c.member() || m.awaited(held.items) {
			marks += "0"
			continue
		}
		marks += "1"
		gone = append(gone, c.id)
	}
	for _, id := range gone {
		if h := m.holds[id]; h != nil { // it may be named twice
			m.keepHold("r", id, h)
		}
		delete(m.holds, id)
	}
	if len(gone) == 0 {
		return []string{""}
	}
	return []string{marks}
}

// declare sets a limit. asked are the nested waits that the script took out because the limit
// closed a circle through them. The script decides which one of a circle that is, see checkAsked.
func (m *model) declare(name string, limit, version int64, asked []string) []string {
	if on := m.occupants(name); len(on) > 0 && on[0].mode != 'p' {
		return []string{"mode"}
	}
	known, ok := m.declared[name]
	switch {
	case ok && version == known.version && limit != known.limit:
		return []string{"differs", fmt.Sprint(known.limit), fmt.Sprint(known.version)}
	case ok && version <= known.version:
		return []string{"ok", fmt.Sprint(known.limit), fmt.Sprint(known.version)}
	}
	m.declared[name] = modelPermits{limit, version}
	if !ok || limit < known.limit {
		m.dismiss(name)
	}
	for _, id := range asked {
		w := m.waits[id]
		if m.drop(id, "d"); m.alive(w.session) {
			m.revs[w.session]++
		}
	}
	m.settle()
	m.reap()
	return []string{"ok", fmt.Sprint(limit), fmt.Sprint(version), "0"}
}

// dismiss makes requests ask again that wait for permits which were declared, and can never be
// granted.
func (m *model) dismiss(name string) {
	for _, w := range m.inOrder() {
		switch mode, n := want(w.items, name); {
		case mode == 0, mode == 'p' && n <= m.declared[name].limit:
		case w.session == "@":
			w.state = "l"
			m.offered[w.id] = true
		default:
			if m.drop(w.id, "f"); m.alive(w.session) {
				m.revs[w.session]++
			}
		}
	}
}

func (m *model) downgrade(id string, names []string) []string {
	h := m.holds[id]
	if h == nil || h.rests != 0 {
		return []string{"gone"}
	}
	for _, name := range names {
		if mode, _ := want(h.items, name); mode != 'x' && mode != 's' {
			return []string{"mode", name}
		}
	}
	for i, item := range h.items {
		if mode, _, name := parseItem(item); mode == 'x' && slices.Contains(names, name) {
			h.items[i] = "s" + name
		}
	}
	m.settle()
	m.reap()
	return []string{"ok", "0"}
}

func (m *model) revoke(name string, token int64, how string) []string {
	var id, other string
	for _, o := range m.occupants(name) {
		if o.tag[0] != 'x' {
			continue
		}
		switch h := m.holds[o.tag[1:]]; {
		// After a loss of data at the same microsecond, two holds may have one token.
		case h.token == token && (id == "" || o.mode == 'x'):
			id = o.tag[1:]
		case other == "" || o.mode == 'x':
			other = fmt.Sprint(h.token)
		}
	}
	switch {
	case id == "" && other == "":
		return []string{"free"}
	case id == "":
		return []string{"stale", other}
	}
	h := m.holds[id]
	said, ok := m.at[h.session]
	unsaid := m.strange() || m.grace > m.now() && ok && !strings.HasPrefix(said, fmt.Sprint(m.epoch, " "))
	switch {
	case how == "f" && (h.rests != 0 || !unsaid):
		m.free(id, "v", true)
	case h.rests == 0 && (how == "f" || h.asked == "" || h.asked[0] == 'a'):
		h.asked = how + `{"reason":"test"}`
	}
	if m.alive(h.session) {
		m.revs[h.session]++
	}
	m.settle()
	m.reap()
	return []string{"done", id, h.session, "0"}
}

// close ends a session, in order or after a crash. One that was closed in order keeps that status.
func (m *model) close(session string, crashed bool) []string {
	at, ok := m.ends[session]
	switch {
	case !ok && m.isDue():
		m.reap()
		fallthrough
	case !ok:
		return []string{"ended"}
	case crashed && at > 0 && m.flaw != flawOrder:
		m.ends[session] = 1
	case (!crashed || m.flaw == flawOrder) && at != 1:
		m.ends[session] = 0
	}
	m.reap()
	return []string{"ended"}
}

// claim does what a claim of the ledger does: it takes a run's bundle, by the run's ticket if it
// has one, or parks the run.
func (m *model) claim(run, hold, session string, patience int64, items []string) []string {
	if !m.alive(session) {
		return []string{"dead"}
	}
	m.reap()
	if m.grace != 0 {
		return []string{"grace"}
	}
	asker := m.fresh(items, nil)
	if w := m.waits[run]; w != nil {
		items, asker = w.items, w.asker()
		asker.self = run
	}
	if why := m.unfit(items); why != nil {
		return why[:1]
	}
	resource, _, beaten := m.blocked(asker)
	if resource != "" {
		m.park(run, "@", "", items, patience, 0, modelLimits{}, nil)
		w := m.waits[run]
		w.class = fmt.Sprint("class", (run[len(run)-1]-'0')%2)
		m.align(w)
		m.settle()
		return []string{"parked"}
	}
	for _, id := range beaten {
		m.waits[id].state = "l"
	}
	m.drop(run, "g")
	token := m.take(hold, session, "", items, modelLimits{})
	m.settle()
	return []string{"granted", token}
}

// keep sets the classes of runs that get no offers.
func (m *model) keep(classes []string) []string {
	answer := "changed"
	if slices.Equal(m.kept, classes) {
		answer = "same"
	}
	m.kept = classes
	for _, w := range m.waits {
		m.align(w)
	}
	m.settle()
	return []string{answer}
}

// align makes a run's wait step back, or return, as its class does.
func (m *model) align(w *modelWait) {
	switch back := slices.Contains(m.kept, w.class); {
	case back && w.state == "w":
		w.state = "k"
	case !back && w.state == "k" && m.unfit(w.items) != nil:
		w.state = "l"
		m.offered[w.id] = true
	case !back && w.state == "k":
		w.state = "w"
	}
}

// dump returns the expected content of the keys.
func (m *model) dump() *dump {
	d := &dump{
		exp: map[string]int64{}, own: map[string]string{}, wait: map[string]string{}, meta: map[string]string{},
	}
	for session, at := range m.ends {
		d.exp["s"+session] = at
	}
	for session, rev := range m.revs {
		d.meta["rev:"+session] = fmt.Sprint(rev)
	}
	if m.ticket > 0 {
		d.meta["ticket"] = fmt.Sprint(m.ticket)
	}
	if m.id != "" {
		d.meta["id"], d.meta["epoch"] = m.generation()
		d.meta["server"] = m.knows
	}
	if m.format != 0 {
		number := strconv.Itoa(m.format)
		d.meta["format"], d.meta["least_format"] = number, number
	}
	if m.lost {
		d.meta["lost"] = "1"
	}
	if m.grace != 0 {
		d.meta["grace"], d.exp["e"] = fmt.Sprint(m.grace), 0
	}
	if len(m.kept) > 0 {
		d.meta["kept"] = strings.Join(m.kept, "\x1f")
	}
	for session, at := range m.at {
		d.meta["at:"+session] = at
		d.idx = append(d.idx, fmt.Sprintf("~l%09d\x00%s", m.leases[session], session))
	}
	if m.seq > 0 {
		d.seq = fmt.Sprint(m.seq)
	}
	names := map[string]bool{}
	note := func(items []string) {
		for _, item := range items {
			_, _, name := parseItem(item)
			names[name] = true
		}
	}
	for name := range m.declared {
		names[name] = true
	}
	for id, h := range m.holds {
		session := h.session
		if h.rests != 0 {
			session = "@"
			d.exp["d"+id] = h.rests
		} else if h.limits.most > 0 {
			d.exp["m"+id] = h.due()
		}
		d.hold = append(d.hold, strings.Join([]string{
			session + "\x00" + id, fmt.Sprint(h.token), fmt.Sprint(h.since), h.limits.String(), h.asked, h.info,
			strings.Join(h.items, "\x1f"),
		}, "\x1f"))
		note(h.items)
	}
	for id, w := range m.waits {
		ticket := fmt.Sprintf("%016d", w.ticket)
		d.wait[id] = strings.Join([]string{
			w.session, ticket, fmt.Sprint(w.since), w.state, fmt.Sprint(w.reserve), w.limits.String() + w.class,
			strings.Join(w.under, " "), w.info, strings.Join(w.items, "\x1f"),
		}, "\x1f")
		d.idx = append(d.idx, w.session+"\x00w\x00"+id)
		for _, hold := range w.under {
			d.idx = append(d.idx, "~u"+hold+"\x00"+id)
		}
		if w.class != "" {
			d.idx = append(d.idx, "~k"+w.class+"\x00"+ticket+"\x00"+id)
		}
		if m.offered[id] {
			d.idx = append(d.idx, "@\x00o\x00"+id)
		}
		if w.deadline != 0 {
			d.exp["w"+id] = w.deadline
		}
		if w.state == "o" {
			d.exp["o"+id] = w.lapse
		}
		note(w.items)
		for _, item := range w.items {
			if mode, n, name := parseItem(item); w.state == "w" {
				text := string(mode)
				if n > 0 {
					text += fmt.Sprint(n)
				}
				d.q = append(d.q, fmt.Sprintf("%s\x00%s\x00%s\x00%d\x00%s", name, ticket, text, w.reserve, id))
			}
		}
	}
	for name := range names {
		on := m.occupants(name)
		alone := ""
		for _, o := range on {
			if o.mode == 'x' {
				alone = o.tag
			} else {
				d.idx = append(d.idx, "~r"+name+"\x00"+o.tag)
			}
		}
		permits, declared := m.declared[name]
		switch {
		case declared:
			d.own[name] = fmt.Sprintf("p%d:%d:%d", used(on), permits.limit, permits.version)
		case alone != "":
			d.own[name] = alone
		case len(on) > 0:
			d.own[name] = fmt.Sprintf("s%d", len(on))
		}
	}
	slices.Sort(d.hold)
	slices.Sort(d.q)
	slices.Sort(d.idx)
	d.past = slices.Sorted(slices.Values(m.past))
	return d
}

// differs returns the first difference between a dump and the expected one.
func (d *dump) differs(want *dump) error {
	for name, by := range d.own {
		if by[0] == 'u' { // check compares what is or was shared below it
			d.own[name] = "x" + by[1:]
		}
	}
	for _, part := range []struct {
		name      string
		got, want any
		same      bool
	}{
		{"exp", d.exp, want.exp, maps.Equal(d.exp, want.exp)},
		{"own", d.own, want.own, maps.Equal(d.own, want.own)},
		{"hold", d.hold, want.hold, slices.Equal(d.hold, want.hold)},
		{"wait", d.wait, want.wait, maps.Equal(d.wait, want.wait)},
		{"q", d.q, want.q, slices.Equal(d.q, want.q)},
		{"idx", d.idx, want.idx, slices.Equal(d.idx, want.idx)},
		{"meta", d.meta, want.meta, maps.Equal(d.meta, want.meta)},
		{"seq", d.seq, want.seq, d.seq == want.seq},
		{"past", d.past, want.past, slices.Equal(d.past, want.past)},
	} {
		if !part.same {
			return fmt.Errorf("%s:\n got %q\nwant %q", part.name, part.got, part.want)
		}
	}
	return nil
}
