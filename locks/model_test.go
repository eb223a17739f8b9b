package locks

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A model is the lock space as it is meant: slow, obvious, and without a bound on what one step may do. It gives the
// reply of every operation and what all keys hold after it.
type model struct {
	us      int64
	ticket  int64
	seq     int64
	ends    map[string]int64 // session -> ms
	revs    map[string]int64
	holds   map[string]*modelHold
	waits   map[string]*modelWait
	offered map[string]bool // offers that nobody picked up
}

type modelHold struct {
	session, info string
	token, since  int64
	names         []string
}

type modelWait struct {
	id, session, info string
	ticket            int64
	since, reserve    int64
	deadline          int64 // 0: none
	state             string
	lapse             int64
	names             []string
}

func newModel(us int64) *model {
	return &model{
		us: us, ends: map[string]int64{}, revs: map[string]int64{}, holds: map[string]*modelHold{},
		waits: map[string]*modelWait{}, offered: map[string]bool{},
	}
}

func (m *model) now() int64 { return m.us / 1000 }

func (m *model) alive(session string) bool { return m.ends[session] > m.now() }

// owner returns who occupies a resource: "", x<hold> or o<request>.
func (m *model) owner(name string) string {
	for id, h := range m.holds {
		if slices.Contains(h.names, name) {
			return "x" + id
		}
	}
	for id, w := range m.waits {
		if w.state == "o" && slices.Contains(w.names, name) {
			return "o" + id
		}
	}
	return ""
}

// inOrder returns the waits that stand in the queues, the oldest first.
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

// barred tells whether an older wait than ticket (0: than nobody's) reserves a resource.
func (m *model) barred(name string, ticket int64) string {
	for _, w := range m.inOrder() {
		if (ticket == 0 || w.ticket < ticket) && w.reserve <= m.now() && slices.Contains(w.names, name) {
			return "w" + w.id
		}
	}
	return ""
}

// blocked is who is in the way of a bundle; claim: an older ticket beats younger offers, which it returns.
func (m *model) blocked(names []string, ticket int64, self string) (resource, by string, beaten []string) {
	for _, name := range names {
		owner := m.owner(name)
		if owner == "" || owner == "o"+self {
			continue
		}
		if owner[0] == 'o' && ticket != 0 && ticket < m.waits[owner[1:]].ticket {
			beaten = append(beaten, owner[1:])
			continue
		}
		return name, owner, nil
	}
	for _, name := range names {
		if m.owner(name) == "o"+self {
			continue
		}
		if by := m.barred(name, ticket); by != "" && by != "w"+self {
			return name, by, nil
		}
	}
	return "", "", beaten
}

func (m *model) take(id, session, info string, names []string) string {
	m.seq = max(m.seq+1, m.us)
	m.holds[id] = &modelHold{session, info, m.seq, m.now(), names}
	return fmt.Sprint(m.seq)
}

// settle grants to whoever can be granted, the oldest first.
func (m *model) settle() {
	for _, w := range m.inOrder() {
		if w.session != "@" && !m.alive(w.session) {
			continue
		}
		if resource, _, beaten := m.blocked(w.names, w.ticket, w.id); resource != "" || len(beaten) > 0 {
			continue
		}
		if w.session == "@" {
			w.state, w.lapse = "o", m.now()+2000
			m.offered[w.id] = true
			continue
		}
		delete(m.waits, w.id)
		m.take(w.id, w.session, w.info, w.names)
		m.revs[w.session]++
	}
}

func (m *model) drop(id string) bool {
	_, ok := m.waits[id]
	delete(m.waits, id)
	delete(m.offered, id)
	return ok
}

func (m *model) isDue() bool {
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
	return false
}

func (m *model) reap() {
	now := m.now()
	for session, at := range m.ends {
		if at > now {
			continue
		}
		for id, h := range m.holds {
			if h.session == session {
				delete(m.holds, id)
			}
		}
		for id, w := range m.waits {
			if w.session == session {
				m.drop(id)
			}
		}
		delete(m.ends, session)
		delete(m.revs, session)
	}
	for id, w := range m.waits {
		switch {
		case w.deadline != 0 && w.deadline <= now:
			m.drop(id)
		case w.state == "o" && w.lapse <= now:
			w.state = "l"
		}
	}
	m.settle()
}

func (m *model) park(id, session, info string, names []string, patience, limit int64) {
	w := m.waits[id]
	if w == nil {
		m.ticket++
		w = &modelWait{
			id: id, session: session, info: info, ticket: m.ticket, since: m.now(), reserve: m.now() + patience, names: names,
		}
		if limit != 0 {
			w.deadline = m.now() + limit
		}
		m.waits[id] = w
	}
	w.state = "w"
}

// The operations. Each returns what the script replies, without what it describes.

func (m *model) open(session string, lease int64) []string {
	if _, ok := m.ends[session]; ok {
		return []string{"taken"}
	}
	m.ends[session] = m.now() + lease
	return []string{"open", fmt.Sprint(m.now())}
}

func (m *model) renew(session string, lease int64) []string {
	if !m.alive(session) {
		return []string{"dead"}
	}
	m.ends[session] = m.now() + lease
	if m.isDue() {
		m.reap()
	}
	count := 0
	for _, h := range m.holds {
		if h.session == session {
			count++
		}
	}
	for _, w := range m.waits {
		if w.session == session {
			count++
		}
	}
	return []string{"ok", fmt.Sprint(m.now()), fmt.Sprint(m.revs[session]), fmt.Sprint(count), m.soonest()}
}

func (m *model) soonest() string {
	soonest := int64(-1)
	see := func(at int64) {
		if at != 0 && (soonest < 0 || at < soonest) {
			soonest = at
		}
	}
	for _, at := range m.ends {
		see(at)
	}
	for _, w := range m.waits {
		see(w.deadline)
		if w.state == "o" {
			see(w.lapse)
		}
	}
	if soonest < 0 {
		return "-1"
	}
	return fmt.Sprint(max(0, soonest-m.now()))
}

// acquire's wait is -1, 0 or a limit in ms.
func (m *model) acquire(session, id, info string, wait, patience int64, names []string) []string {
	if !m.alive(session) {
		return []string{"dead"}
	}
	if m.isDue() {
		m.reap()
	}
	if h := m.holds[id]; h != nil {
		return []string{"granted", fmt.Sprint(h.token), fmt.Sprint(h.since)}
	}
	if w := m.waits[id]; w != nil {
		if wait == -1 {
			m.drop(id)
			m.settle()
		} else {
			return m.describe([]string{"waiting", m.soonest()}, names, w.ticket, id)
		}
	}
	if resource, _, _ := m.blocked(names, 0, id); resource == "" {
		token := m.take(id, session, info, names)
		return []string{"granted", token, fmt.Sprint(m.now())}
	}
	if wait == -1 {
		return m.describe([]string{"busy", m.soonest()}, names, 0, id)
	}
	described := m.describe(nil, names, 0, id)
	m.park(id, session, info, names, patience, wait)
	// It counts itself among those that wait for the resource.
	n := parseInt(described[7])
	described[7] = fmt.Sprint(n + 1)
	return append([]string{"waiting", m.soonest()}, described...)
}

// describe appends who is in the way.
func (m *model) describe(to, names []string, ticket int64, self string) []string {
	name, by, _ := m.blocked(names, ticket, self)
	if name == "" {
		return to
	}
	queue := 0
	for _, w := range m.inOrder() {
		if slices.Contains(w.names, name) {
			queue++
		}
	}
	if by[0] == 'x' {
		h := m.holds[by[1:]]
		left := max(0, m.ends[h.session]-m.now())
		return append(to, name, h.session, by[1:], h.info, fmt.Sprint(h.token), fmt.Sprint(m.now()-h.since),
			fmt.Sprint(left), fmt.Sprint(queue))
	}
	w := m.waits[by[1:]]
	return append(to, name, "", w.id, w.info, "0", fmt.Sprint(m.now()-w.since), "0", fmt.Sprint(queue))
}

// release's quick tells that the caller named the bundle.
func (m *model) release(id string, quick bool) []string {
	_, held := m.holds[id]
	if held && quick && len(m.inOrder()) == 0 {
		delete(m.holds, id)
		return []string{"released", "0"}
	}
	answer := "gone"
	if held {
		delete(m.holds, id)
		answer = "released"
	} else if m.drop(id) {
		answer = "cancelled"
	}
	m.settle()
	m.reap()
	return []string{answer, "0"}
}

func (m *model) close(session string) []string {
	if _, ok := m.ends[session]; !ok {
		return []string{"ended"}
	}
	m.ends[session] = 0
	m.reap()
	return []string{"ended"}
}

// claim is what a claim of the ledger does: it takes a run's bundle, by the run's ticket if it has one, or parks the run.
func (m *model) claim(run, hold, session string, patience int64, names []string) []string {
	if !m.alive(session) {
		return []string{"dead"}
	}
	m.reap()
	var ticket int64
	if w := m.waits[run]; w != nil {
		ticket, names = w.ticket, w.names
	}
	resource, _, beaten := m.blocked(names, ticket, run)
	if resource != "" {
		m.park(run, "@", "", names, patience, 0)
		m.settle()
		return []string{"parked"}
	}
	for _, id := range beaten {
		m.waits[id].state = "l"
	}
	m.drop(run)
	token := m.take(hold, session, "", names)
	m.settle()
	return []string{"granted", token}
}

// dump gives what the keys have to hold.
func (m *model) dump() *dump {
	d := &dump{
		exp: map[string]int64{}, own: map[string]string{}, hold: map[string]string{}, wait: map[string]string{},
		meta: map[string]string{},
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
	if m.seq > 0 {
		d.seq = fmt.Sprint(m.seq)
	}
	for id, h := range m.holds {
		d.hold[id] = strings.Join([]string{
			h.session, fmt.Sprint(h.token), fmt.Sprint(h.since), h.info, "x" + strings.Join(h.names, "\x1fx"),
		}, "\x1f")
		d.idx = append(d.idx, h.session+"\x00h\x00"+id)
		for _, name := range h.names {
			d.own[name] = "x" + id
		}
	}
	for id, w := range m.waits {
		ticket := fmt.Sprintf("%016d", w.ticket)
		d.wait[id] = strings.Join([]string{
			w.session, ticket, fmt.Sprint(w.since), w.state, fmt.Sprint(w.reserve), w.info,
			"x" + strings.Join(w.names, "\x1fx"),
		}, "\x1f")
		d.idx = append(d.idx, w.session+"\x00w\x00"+id)
		if m.offered[id] {
			d.idx = append(d.idx, "@\x00o\x00"+id)
		}
		if w.deadline != 0 {
			d.exp["w"+id] = w.deadline
		}
		for _, name := range w.names {
			switch w.state {
			case "o":
				d.own[name] = "o" + id
				d.exp["o"+id] = w.lapse
			case "w":
				d.q = append(d.q, fmt.Sprintf("%s\x00%s\x00x\x00%d\x00%s", name, ticket, w.reserve, id))
			}
		}
	}
	slices.Sort(d.q)
	slices.Sort(d.idx)
	return d
}

// differs tells the first difference between what is and what should be.
func (d *dump) differs(want *dump) error {
	for _, part := range []struct {
		name      string
		got, want any
		same      bool
	}{
		{"exp", d.exp, want.exp, maps.Equal(d.exp, want.exp)},
		{"own", d.own, want.own, maps.Equal(d.own, want.own)},
		{"hold", d.hold, want.hold, maps.Equal(d.hold, want.hold)},
		{"wait", d.wait, want.wait, maps.Equal(d.wait, want.wait)},
		{"q", d.q, want.q, slices.Equal(d.q, want.q)},
		{"idx", d.idx, want.idx, slices.Equal(d.idx, want.idx)},
		{"meta", d.meta, want.meta, maps.Equal(d.meta, want.meta)},
		{"seq", d.seq, want.seq, d.seq == want.seq},
	} {
		if !part.same {
			return fmt.Errorf("%s:\n got %q\nwant %q", part.name, part.got, part.want)
		}
	}
	return nil
}
