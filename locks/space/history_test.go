package space

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

// claimLua does to the lock space what a claim of the ledger does.
// ARGV: 1 run  2 hold  3 session  4 patience, ms  5... items
const claimLua = `
local run, hold, session, patience = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local class = 'class' .. string.byte(run, -1) % 2
if not ends(session) then return {'dead'} end
local items, _ = {}, nil
for i = 5, #ARGV do items[i - 4] = ARGV[i] end
local S = space()
S.reap()
if S.grace() then
  S.tell()
  return {'grace'}
end
local wait = S.wait(run)
if wait then _, items = bundle(wait, W_ITEMS) end
local why = S.unfit(items)
if why then
  S.tell()
  return {why}
end
local resource, _, beaten = S.blocked(items, wait and wait[2], run)
if resource then
  S.park(run, '@', '', items, patience, nil, class)
  S.settle()
  S.tell()
  return {'parked'}
end
for i = 1, #beaten do S.lapse(beaten[i]) end
S.drop(run, 'g')
local token = grant(hold, session, '', items)
S.settle()
S.tell()
return {'granted', token}
`

// pickLua picks offers up, as the desk does.
const pickLua = `
local offers = call('ZRANGEBYLEX', IDX, '[@\0o\0', '(@\0o\1')
for i = 1, #offers do call('ZREM', IDX, offers[i]) end
return {#offers}
`

// keepLua does what the ledger does when queues are paused and resumed.
// ARGV: classes that get no offers, in order
const keepLua = `
local S, names = space(), {}
for i = 1, #ARGV do names[i] = ARGV[i] end
local changed = S.keep(names)
S.settle()
S.tell()
return {changed and 'changed' or 'same'}
`

// soak multiplies the length of random histories: LOCKSTEP_SOAK=100 go test.
func soak() int {
	n, _ := strconv.Atoi(os.Getenv("LOCKSTEP_SOAK"))
	return max(1, n)
}

// historySeed is the seed of a random history: LOCKSTEP_SEED repeats one that failed.
func historySeed() uint64 {
	if seed, err := strconv.ParseUint(os.Getenv("LOCKSTEP_SEED"), 10, 64); err == nil {
		return seed
	}
	return uint64(time.Now().UnixNano())
}

// A history is a sequence of random operations on a rig and on the model.
type history struct {
	*rig
	model *model
	rand  *rand.Rand
	// strict means that the reply must be the model's. Otherwise only the invariants are checked,
	// since each script does less than everything due.
	strict   bool
	sessions []string
	drawn    int
	sent     map[string]modelAsk // requests that may be sent again
	had      []modelClaim        // earlier holds, the last ones last
	loses    bool                // the space is lost now and then, in part or completely
	// nests means that most requests are nested and wait, limits change often, and little else
	// happens.
	nests  bool
	queues bool // see contend
	// saved is the content of a copy of the space that may take over, nil without one.
	saved *model
	log   []string
}

func newHistory(r *rig, seed uint64) (*history, error) {
	h := &history{
		rig: r, rand: rand.New(rand.NewPCG(seed, 0)), strict: true, sent: map[string]modelAsk{},
		model: newModel(1_750_000_000_000_000),
	}
	return h, h.setTime(h.model.us)
}

// contend makes most requests be for one of two names alone, exclusively, in a space that is
// written in the format of this build: then scripts hand such a name off on their fast paths.
func (h *history) contend() error {
	h.queues, h.model.format = true, Format
	return h.rdb.HSet(h.ctx, h.keys[6], "format", Format, "least_format", Format).Err()
}

// save makes a copy of the space, as a replica has it.
func (h *history) save() error {
	h.saved = h.model.clone()
	for i, key := range h.keys[:8] { // what has ended stays as it is
		if err := h.rdb.Copy(h.ctx, key, h.copyOf(i), 0, true).Err(); err != nil {
			return err
		}
		if n, err := h.rdb.Exists(h.ctx, key).Result(); err != nil || n == 0 {
			if err := errors.Join(err, h.rdb.Del(h.ctx, h.copyOf(i)).Err()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h *history) copyOf(key int) string { return h.keys[key] + ":copy" }

// lose makes the copy take over or, without one, an empty server: everything done since is lost.
func (h *history) lose() error {
	greets := h.rand.IntN(2) == 0
	us, server := h.model.us, h.model.server
	past := h.model.past
	if h.saved != nil {
		us = max(us, h.saved.us)
	}
	us += int64(h.rand.IntN(3)) * 1_000_000
	// Only if the new server is detected may its clock be behind the last one's. That needs a space
	// that knew the one before.
	if greets && (h.saved == nil || h.saved.knows != "") {
		us -= 1_000_000
	}
	// FLUSHALL leaves the server as it is
	if h.saved != nil || server == "" || h.rand.IntN(2) == 0 {
		server = fmt.Sprintf("%08x", h.rand.Uint32())
	}
	h.model = h.saved
	if h.saved == nil {
		h.model = newModel(us)
		h.model.id = ""
	}
	h.model = h.model.clone()
	h.model.us, h.model.server, h.model.past = us, server, past
	for i, key := range h.keys[:8] {
		var err error
		if n, _ := h.rdb.Exists(h.ctx, h.copyOf(i)).Result(); h.saved == nil || n == 0 {
			err = h.rdb.Del(h.ctx, key).Err()
		} else {
			err = h.rdb.Copy(h.ctx, h.copyOf(i), key, 0, true).Err()
		}
		if err != nil {
			return err
		}
	}
	if err := h.rdb.HSet(h.ctx, h.keys[6], "test:server", fmt.Sprintf("run_id:%s\r\nuptime_in_seconds:%d", server, modelUptime)).Err(); err != nil {
		return err
	}
	if err := h.setTime(us); err != nil || !greets {
		return err
	}
	_, err := h.run("greet", 900, 30)
	h.model.notice(900, 30)
	return err
}

// remember records the current state of every hold.
func (h *history) remember() {
	for id, hold := range h.model.clone().holds {
		if hold.rests == 0 {
			h.had = slices.DeleteFunc(h.had, func(c modelClaim) bool { return c.id == id })
			h.had = append(h.had, modelClaim{id, *hold, h.sent[id].under})
		}
	}
	h.had = h.had[max(0, len(h.had)-60):]
}

// say draws what a session asserts, from all holds that it ever had.
func (h *history) say(session string) (claims []modelClaim, highest int64) {
	for _, c := range h.had {
		if c.hold.session == session && h.rand.IntN(4) > 0 {
			claims = append(claims, c)
			highest = max(highest, c.hold.token)
		}
	}
	slices.SortFunc(claims, func(a, b modelClaim) int { return cmp.Compare(a.hold.token, b.hold.token) })
	return claims, highest
}

// member encodes it as the session does.
func (c modelClaim) member() string {
	h := c.hold
	return Holds.Text(&StoredHold{
		Session: h.session + "\x00" + c.id, Token: fmt.Sprint(h.token), Since: fmt.Sprint(h.since), Limits: h.limits.String(),
		Asked: h.asked, Info: h.info, Items: strings.Join(h.items, "\x1f"),
	})
}

// widen makes the scripts do in one step what the model does, without a bound.
func widen(t testing.TB, source string) string {
	return replaceBounds(t, source, "= 640, 640, 2000, 20000, 16, 1e6, 2")
}

func replaceBounds(t testing.TB, source, bounds string) string {
	const real = "= 64, 64, 100, 250, 16, 500, 32"
	if !strings.Contains(readScript("slow/work"), real) {
		t.Fatalf("work.lua has no bounds %q", real)
	}
	const wide = "= 4, 16, 32, 500"
	if !strings.Contains(readScript("slow/work"), wide) {
		t.Fatalf("work.lua has no bounds %q", wide)
	}
	const few = "last - first > 8 and 8 or 0"
	if !strings.Contains(readScript("lib/take"), few) {
		t.Fatalf("take.lua has no bounds %q", few)
	}
	// Small bundles take the paths of large ones, too: two names are looked for from queue to
	// queue, and three in groups.
	source = strings.ReplaceAll(source, few, "last > first and 2 or 0")
	source = strings.Replace(source, wide, "= 2, 2, 1e6, 500", 1)
	return strings.Replace(source, real, bounds, 1)
}

// bundle draws items. A bundle of 1 to 3 of a few resources makes most requests meet others.
func (h *history) bundle() (items []string) {
	if h.queues && h.rand.IntN(5) > 0 {
		return []string{pick(h.rand, "xa", "xd d")}
	}
	names := []string{"a", "a2", "b", "c", "d d", "é", "p", "q"}
	h.rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	names = names[:1+h.rand.IntN(3)]
	slices.Sort(names)
	for _, name := range names {
		mode := pick(h.rand, "x", "x", "x", "s", "s", "c1:", "c2:")
		if (name == "p" || name == "q") && h.rand.IntN(20) > 0 {
			mode = pick(h.rand, "p1:", "p1:", "p2:", "p3:")
		}
		items = append(items, mode+name)
	}
	return items
}

// ask draws a request.
func (h *history) ask(session string) modelAsk {
	h.drawn++
	a := modelAsk{session: session, id: fmt.Sprintf("%s.%d", session, h.drawn), items: h.bundle()}
	a.info = "i" + a.id
	a.wait = int64(pick(h.rand, -1, 0, 0, 0, 0, 30, 3000))
	a.patience = int64(pick(h.rand, 0, 40, 1000))
	if h.nests {
		a.wait = 0
	}
	if h.queues && h.rand.IntN(8) > 0 {
		return a
	}
	if h.rand.IntN(4) == 0 || h.nests && h.rand.IntN(3) > 0 {
		for range 1 + h.rand.IntN(2) {
			if id := h.known(1, 1); !slices.Contains(a.under, id) {
				a.under = append(a.under, id)
			}
		}
	}
	if h.rand.IntN(4) == 0 {
		a.limits = modelLimits{
			int64(pick(h.rand, 0, 0, 40, 900)), int64(pick(h.rand, 0, 0, 50, 400, 3000)), int64(pick(h.rand, 0, 70, 3000)),
		}
	}
	return a
}

func (a modelAsk) args() []any {
	args := []any{
		a.session, a.id,
		fmt.Sprintf("%d\x1f%d\x1f%s\x1f%s", a.wait, a.patience, strings.Join(a.under, " "), a.limits),
		a.info, strings.Join(a.items, "\x1f"),
	}
	if a.plain() {
		args = append(args, argNames(a.items)...)
	}
	return args
}

// plainAsk draws a request that can share a script with others, sometimes one that was sent before.
func (h *history) plainAsk(session string) modelAsk {
	if a, ok := h.sent[h.known(1, 1)]; ok && a.plain() && a.session == session && h.rand.IntN(2) == 0 {
		return a
	}
	h.drawn++
	a := modelAsk{session: session, id: fmt.Sprintf("%s.%d", session, h.drawn), items: h.bundle()}
	a.info = "i" + a.id
	for i, item := range a.items {
		_, _, name := parseItem(item)
		a.items[i] = "x" + name
	}
	h.sent[a.id] = a
	return a
}

// plainClaim draws a hold that can be released together with others: as it is, as it was, or an
// earlier one.
func (h *history) plainClaim() (c modelClaim, ok bool) {
	if id := h.known(1, 1); h.model.holds[id] != nil && h.rand.IntN(4) > 0 {
		c = modelClaim{id, *h.model.holds[id], nil}
	} else if len(h.had) > 0 {
		c = pick(h.rand, h.had...)
	}
	a, ok := h.sent[c.id]
	return c, ok && a.plain() && slices.Equal(a.items, c.hold.items)
}

func acquireAllArgs(asks []modelAsk) []any {
	ids, counts, names, records := []any{len(asks)}, []any{}, []any{}, []any{asks[0].session}
	for _, a := range asks {
		ids, counts, names = append(ids, a.id), append(counts, len(a.items)), append(names, argNames(a.items)...)
		records = append(records, a.info+"\x1f"+strings.Join(a.items, "\x1f"))
	}
	return slices.Concat(ids, counts, names, records)
}

func releaseAllArgs(claims []modelClaim) []any {
	members, counts, names := []any{len(claims)}, []any{}, []any{}
	for _, c := range claims {
		members, counts = append(members, c.member()), append(counts, len(c.hold.items))
		names = append(names, argNames(c.hold.items)...)
	}
	return slices.Concat(members, counts, names)
}

func argNames(items []string) (names []any) {
	for _, item := range items {
		_, _, name := parseItem(item)
		names = append(names, name)
	}
	return names
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// known draws the ID of an earlier request: a hold in a share of the cases, otherwise a wait.
func (h *history) known(holds, outOf int) string {
	ids := slices.Sorted(maps.Keys(h.model.holds))
	if h.rand.IntN(outOf) >= holds {
		ids = slices.Sorted(maps.Keys(h.model.waits))
	}
	if len(ids) == 0 || h.rand.IntN(20) == 0 {
		return "nobody.1"
	}
	return ids[h.rand.IntN(len(ids))]
}

// step does one random operation and compares.
func (h *history) step() error {
	var got Reply
	var err error
	var want []string
	var what string
	note := func(format string, args ...any) { what = fmt.Sprintf(format, args...) }
	m := h.model
	if len(h.sessions) == 0 {
		h.sessions = append(h.sessions, "s0.x")
	}
	session := pick(h.rand, h.sessions...)
	for range 4 { // mostly one that is alive
		if !m.alive(session) {
			session = pick(h.rand, h.sessions...)
		}
	}
	dice := h.rand.IntN(100)
	if h.nests && h.rand.IntN(4) > 0 {
		dice = pick(h.rand, 20, 20, 20, 20, 20, 20, 50, 50, 66, 66, 99)
		if len(m.holds) == 0 || len(h.sessions) < 2 {
			dice = 0
		}
	}
	if h.loses {
		more := h.rand.IntN(300)
		for _, w := range m.waits { // so that a loss often leaves an offer
			if w.state == "o" && more >= 290 {
				more = 0
			}
		}
		switch {
		case more < 3:
			h.log = append(h.log, "save")
			return h.save()
		case more < 6:
			if h.rand.IntN(3) == 0 {
				h.saved = nil
			}
			h.log = append(h.log, fmt.Sprint("lose ", h.saved != nil))
			return h.lose()
		case more < 9:
			dice = -2
		case more < 40 && (m.lost || m.id == ""):
			dice = -1
		}
	}
	switch {
	case dice == -2:
		least, margin := int64(pick(h.rand, 10, 900, 5000)), int64(pick(h.rand, 0, 30))
		note("greet %d %d", least, margin)
		got, err = h.run("greet", least, margin)
		want = []string{m.notice(least, margin)}
	case dice == -1:
		lease := m.leases[session]
		if lease == 0 {
			lease = int64(pick(h.rand, 50, 500, 5000))
		}
		id, epoch := m.generation()
		if h.rand.IntN(10) == 0 {
			epoch = "1"
		}
		h.drawn++
		fresh := fmt.Sprintf("space%d", h.drawn)
		least, margin, last := int64(pick(h.rand, 10, 900)), int64(pick(h.rand, 0, 30)), h.rand.IntN(3) > 0
		claims, highest := h.say(session)
		final := "0"
		if last {
			final = "1"
		}
		args := []any{session, lease, "{}", id, epoch, fresh, least, margin, highest, final}
		for _, c := range claims {
			args = append(args, c.member(), strings.Join(c.under, " "))
		}
		note("assert %q", args)
		got, err = h.run("assert", args...)
		want = m.assert(session, lease, id, epoch, fresh, least, margin, highest, last, claims)
	case dice < 6:
		session = fmt.Sprintf("s%d.x", h.rand.IntN(5))
		lease := int64(pick(h.rand, 50, 500, 500, 5000, 60_000))
		pause, id := pick(h.rand, "", "0", "300"), fmt.Sprintf("space%d", h.drawn)
		note("open %s %d %q", session, lease, pause)
		got, err = h.run("open", session, lease, "{}", id, pause)
		want = m.open(session, lease, id, pause)
		if want[0] == "open" && !slices.Contains(h.sessions, session) {
			h.sessions = append(h.sessions, session)
		}
	case dice < 12:
		lease, least, margin := m.leases[session], int64(pick(h.rand, 10, 900)), int64(pick(h.rand, 0, 30))
		id, epoch := m.generation()
		if h.rand.IntN(10) == 0 {
			epoch = "1"
		}
		note("renew %s %d %s %s", session, lease, id, epoch)
		got, err = h.run("renew", session, lease, id, epoch, least, margin)
		want = m.renew(session, lease, id, epoch, least, margin)
	case dice < 16:
		var asks []modelAsk
		for range 1 + h.rand.IntN(4) {
			asks = append(asks, h.plainAsk(session))
		}
		note("acquire all %q", acquireAllArgs(asks))
		got, err = h.run("acquire.all", acquireAllArgs(asks)...)
		want = m.acquireAll(asks)
	case dice < 40:
		a := h.ask(session)
		h.sent[a.id] = a
		note("acquire %q", a.args())
		got, err = h.run("acquire", a.args()...)
		want = m.acquire(a)
		if err == nil && want[0] == "deadlock" && got.At(0) == "deadlock" {
			err = m.checkCircle(a, texts(got)[1:])
			want = texts(got)
		}
	case dice < 45: // the same again, or a wait's last try
		id := h.known(1, 3)
		a, ok := h.sent[id]
		if !ok {
			return nil
		}
		if _, waits := m.waits[id]; waits && h.rand.IntN(3) == 0 {
			a.wait = -1
		}
		note("acquire again %q", a.args())
		got, err = h.run("acquire", a.args()...)
		want = m.acquire(a)
		if want[0] == "deadlock" { // existing holds are not checked again; a loss may leave some
			want = texts(got)
		}
	case dice < 48:
		var claims []modelClaim
		for range 1 + h.rand.IntN(4) {
			if c, ok := h.plainClaim(); ok {
				claims = append(claims, c)
			}
		}
		if len(claims) == 0 {
			return nil
		}
		note("release all %q", releaseAllArgs(claims))
		got, err = h.run("release.all", releaseAllArgs(claims)...)
		want = m.releaseAll(claims)
	case dice < 66:
		id := h.known(5, 6)
		args := []any{id}
		a, ok := h.sent[id]
		held := m.holds[id]
		quick := ok && held != nil && a.plain() && slices.Equal(a.items, held.items) && h.rand.IntN(2) == 0
		if quick {
			args = append(append(args, modelClaim{id, *held, nil}.member()), argNames(held.items)...)
		}
		note("release %q", args)
		got, err = h.run("release", args...)
		want = m.release(id, quick)
	case dice < 67:
		name, limit, version := pick(h.rand, "p", "q", "q", "b"), int64(1+h.rand.IntN(4)), int64(h.rand.IntN(h.drawn/40+2))
		if name == "b" && h.rand.IntN(10) > 0 {
			name = "p"
		}
		note("declare %s %d %d", name, limit, version)
		got, err = h.run("declare", name, limit, version)
		var asked []string
		if err == nil && h.strict {
			asked, err = h.askedAgain()
		}
		if err == nil {
			err = m.checkAsked(name, limit, version, asked)
		}
		want = m.declare(name, limit, version, asked)
	case dice < 68:
		id := h.known(1, 1)
		names := []string{"nobody's"}
		if held := m.holds[id]; held != nil {
			names = names[:0]
			for _, name := range argNames(held.items) {
				if h.rand.IntN(2) == 0 {
					names = append(names, name.(string))
				}
			}
		}
		args := []any{id}
		for _, name := range names {
			args = append(args, name)
		}
		note("downgrade %q", args)
		got, err = h.run("downgrade", args...)
		want = m.downgrade(id, names)
	case dice < 70:
		id, how := h.known(1, 1), pick(h.rand, "a", "t", "f")
		name, token := "a", int64(1)
		if held := m.holds[id]; held != nil {
			_, _, name = parseItem(pick(h.rand, held.items...))
			token = held.token - int64(h.rand.IntN(4)/3)
		}
		note("revoke %s %d %s", name, token, how)
		got, err = h.run("revoke", name, token, how, `{"reason":"test"}`)
		want = m.revoke(name, token, how)
	case dice < 71:
		crashed, how := h.rand.IntN(2) == 0, ""
		if crashed {
			how = "crashed"
		}
		note("close %s %q", session, how)
		got, err = h.run("close", session, how)
		want = m.close(session, crashed)
	case dice < 74:
		note("reap")
		got, err = h.run("reap")
		m.reap()
		want = []string{m.soonest()}
	case dice < 91:
		h.drawn++
		run := fmt.Sprintf("run%d", h.rand.IntN(6))
		if offered := slices.Sorted(maps.Keys(m.offered)); len(offered) > 0 && h.rand.IntN(2) > 0 {
			run = pick(h.rand, offered...)
		}
		hold := fmt.Sprintf("%s.%d", session, h.drawn)
		items := h.bundle()
		patience := int64(pick(h.rand, 0, 40, 1000))
		args := []any{run, hold, session, patience}
		for _, item := range items {
			args = append(args, item)
		}
		note("claim %q", args)
		got, err = h.run(claimLua, args...)
		want = m.claim(run, hold, session, patience, items)
	case dice < 91+h.rand.IntN(2):
		note("pick")
		got, err = h.run(pickLua)
		want = []string{fmt.Sprint(len(m.offered))}
		clear(m.offered)
	case dice < 94:
		var args []any
		var kept []string
		for _, class := range []string{"class0", "class1", "nobody's"} {
			if h.rand.IntN(3) == 0 {
				args, kept = append(args, class), append(kept, class)
			}
		}
		note("keep %q", kept)
		got, err = h.run(keepLua, args...)
		want = m.keep(kept)
	default:
		m.us += int64(pick(h.rand, 1, 999, 1000, 10_000, 30_000, 60_000, 300_000, 2_100_000))
		note("time %d", m.us)
		err = h.setTime(m.us)
	}
	h.log = append(h.log, what)
	h.remember()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if h.strict && !slices.Equal(texts(got), want) {
		return fmt.Errorf("%s: reply:\n got %q\nwant %q", what, texts(got), want)
	}
	d, err := h.dump()
	if err != nil {
		return err
	}
	if err := d.check(m.now(), false); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if !h.strict {
		return nil
	}
	if err := d.differs(m.dump()); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if len(h.log)%8 != 0 {
		return nil // what waits forever still does so then
	}
	if circle := m.endless(); len(circle) > 0 {
		return fmt.Errorf("%s: these wait forever: %q", what, circle)
	}
	return nil
}

// askedAgain returns the nested waits that a declaration has just taken out, in their order, by how
// they ended.
func (h *history) askedAgain() (asked []string, err error) {
	if _, err := h.dump(); err != nil { // reads h.past
		return nil, err
	}
	ended := make(map[string]int)
	timeless := func(entry string) string {
		_, text, _ := strings.Cut(entry, " ")
		return text
	}
	for _, entry := range h.past {
		ended[timeless(entry)]++
	}
	for _, entry := range h.model.past {
		ended[timeless(entry)]--
	}
	ids := make(map[string]string)
	for id, w := range h.model.waits {
		ids[timeless(w.entry(0, "d"))] = id
	}
	for _, entry := range slices.Backward(h.past) { // the last ones are new
		if id, ok := ids[timeless(entry)]; ok && ended[timeless(entry)] > 0 {
			ended[timeless(entry)]--
			asked = append(asked, id)
		}
	}
	slices.Reverse(asked)
	return asked, nil
}

func (h *history) steps(n int) error {
	for range n {
		if err := h.step(); err != nil {
			last := h.log[max(0, len(h.log)-12):]
			return fmt.Errorf("after %d operations: %w\nthe last ones:\n  %s", len(h.log), err, strings.Join(last, "\n  "))
		}
	}
	return nil
}

// TestScriptsDoAsTheModel drives the scripts and the model through the same random histories. It
// compares every reply and, after every operation, the content of all keys.
func TestScriptsDoAsTheModel(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		histories, steps := 8, 500
		switch {
		case strings.HasSuffix(t.Name(), "miniredis"):
			histories, steps = 3, 250
		case soak() > 1:
			histories = 20 // a million operations with make soak
		}
		t.Logf("%d operations", histories*soak()*steps)
		for range histories * soak() {
			seed := historySeed()
			r := newRig(t, rdb)
			r.source = func(source string) string { return widen(t, source) }
			h, err := newHistory(r, seed)
			if err == nil {
				if h.nests = seed%4 == 0; seed%4 == 1 {
					err = h.contend()
				}
			}
			if err == nil {
				err = h.steps(steps)
			}
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	})
}

// TestLostDataIsReasserted repeatedly loses the last writes of the space, or all of it, and makes
// sessions assert holds, rightly and wrongly.
func TestLostDataIsReasserted(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		histories, steps := 8, 500
		if strings.HasSuffix(t.Name(), "miniredis") {
			histories, steps = 3, 250
		}
		for range histories * soak() {
			seed := historySeed()
			r := newRig(t, rdb)
			r.source = func(source string) string { return widen(t, source) }
			h, err := newHistory(r, seed)
			if err == nil {
				if h.loses = true; seed%2 == 1 {
					err = h.contend()
				}
			}
			if err == nil {
				err = h.steps(steps)
			}
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	})
}

// TestCheckerCatchesFaults plants faults in the scripts, each of which the histories must find. It
// begins with the history that is known to find the fault; when the histories have changed, the
// others follow.
func TestCheckerCatchesFaults(t *testing.T) {
	t.Parallel()
	for _, fault := range []struct {
		first          uint64 // history
		name, old, new string
	}{
		{0, "one of many is granted what another has just got", "taken[ARGV[j]] = true", ""},
		{0, "one of many is granted a part", "noneIn(taken, ARGV, name, after - 1)", "noneIn(taken, ARGV, name, name)"},
		{0, "many are granted what is held", "if owners[i - first + 1] then set[list[i]] = true end", ""},
		{15, "many are granted while something is due", "return redis.call('ZCOUNT', KEYS[1], '-inf', ms) == 0 and", "return"},
		{0, "many are granted to a session there is not", " == 0 and redis.call('HEXISTS', KEYS[7], 'card:' .. session) == 1", " == 0"},
		{0, "many have one token", "first + k - 1", "first"},
		{1, "many are released and no wait gets them", "there[i] and noneIn(queues, ARGV, name, after - 1)", "there[i]"},
		{0, "many are granted past waits", "awaited(list, first, last) or {}", "{}"},
		{3, "a release on the fast path gives to no wait", "(not queues or noneIn(queues, ARGV, 3, #ARGV))", "true"},
		{15, "a release on the fast path looks at its first name alone", "awaited(ARGV, 3, #ARGV)", "awaited(ARGV, 3, 3)"},
		{2, "an acquire on the fast path passes old waits", "(not queues or noneIn(queues, ARGV, 6, #ARGV))", "true"},
		{0, "the fast paths see fewer queues than there are", "if not member then return found end", "if true then return found end"},
		{5, "one of many that is released belongs to another", "there[i] and noneIn", "noneIn"},
		{0, "release grants to no waiter", "S.settle()\nS.reap()", ""},
		{0, "a wait that is dropped frees no other", "unbar(names, wait) -- it may", "-- it may"},
		{0, "a release frees no waiter", "free(names)\n  local by", "local by"},
		{0, "young waits are never passed", "format('%.0f', now + patience)", "format('%.0f', now)"},
		{1, "old waits are passed", "local counts = reserve <= now and", "local counts = false and"},
		{1, "a queue is taken from its end", "heap[math.floor(at / 2)] > ticket", "heap[math.floor(at / 2)] < ticket"},
		{52, "the dead are granted", "(wait[W_SESSION] == '@' or ends(wait[W_SESSION]))", "true"},
		{0, "tokens follow the clock", "if not last or last + 0 < first then", "if true then"},
		{0, "a bundle is granted in part", "if by then return names[i], by end", "if by and i < 2 then return names[i], by end"},
		{1, "a second copy queues again", "local wait = S.wait(id)\nif wait and", "local wait\nif wait and"},
		{12, "an old ticket does not beat an offer", "if not wait or ticket >= wait[W_TICKET] then", "if true then"},
		{0, "readers are not counted", "owner and sub(owner, 2) + 1 or 1", "1"},
		{1, "a reader passes an old writer", "local alone = mode == 'x' or other == 'x'", "local alone = mode == 'x'"},
		{0, "one permit too many", "if used + wants[i] > most then", "if used + wants[i] > most + 1 then"},
		{0, "an older version sets the limit", "= tonumber(ARGV[3]) > tonumber(version)", "= true"},
		{5, "an upgrade forgets the sharers", "for i = 1, #over do call", "for i = 1, 0 do call"},
		{1, "later nested requests pass an old plain wait", "counts = reserve < (self and tonumber(self[W_SINCE]) or now) and", "counts = false and"},
		{3, "nested: later nested requests pass an old nested wait", "if nested then upto = '(' .. name .. '\\1' end\n  local", "if nested then from, upto = from .. NESTED, '(' .. name .. '\\1' end\n  local"},
		{6, "nested: a wait bars what it depends on through an old nested wait", "if nested then upto = '(' .. name .. '\\1' end\n      local", "if nested then from, upto = from .. NESTED, '(' .. name .. '\\1' end\n      local"},
		{8, "a nested request that came first is barred", "reserve < (self and tonumber(self[W_SINCE]) or now)", "reserve <= now"},
		{1, "a plain wait bars what it waits for", "not (spent > SEARCH or leads(S.wait(id), nested, self and self.id))", "true"},
		{4, "a nested newcomer bars the plain wait that bars it", "counts = tonumber(S.wait(id)[W_SINCE]) <= tonumber(self[W_RESERVE])", "counts = true"},
		{9, "a plain wait that ends leaves nested ones barred", "for i = 1, S.nests and #names or 0 do front", "for i = 1, 0 do front"},
		{5, "nested: a plain wait bars what it comes to wait for", "if not new or wait[W_UNDER] ~= '' then S.reach(wait) end", ""},
		{1, "a wait for more permits than there are stays", "if mode ~= 'p' or tonumber(n) > most then S.dismiss(S.wait(id)) end", ""},
		{0, "a run that comes back waits for more permits than there are", "and wait[W_STATE] == 'k' and S.unfit(items) then", "and false then"},
		{5, "nested: an upgrade hides the share below it", "elseif (kind == 's' or kind == 'u') and (mode == 'x' or mode == 'c') then\n        local shared", "elseif kind == 's' and (mode == 'x' or mode == 'c') then\n        local shared"},
		{0, "nested: a lowered limit closes a circle", "if less then S.untie(name, '') end", ""},
		{7, "nested: what rests is in a circle", "and not rests(id) then examine", "then examine"},
		{0, "a process that died was closed in order", "crashed and '1' or '0'", "'0'"},
		{0, "bounded: queues that no script came to are forgotten", "later(left)", ""},
		{0, "bounded: waits behind those looked at are forgotten", "for i = 1, #heap do", "for i = 1, 0 do"},
		{0, "bounded: a part of an ended session stays", "ended < #holds + #waits or #holds + #waits == left", "false"},
		{0, "bounded: what was due is dropped", "if #freed >= NAMES then", "if #freed >= NAMES then call('ZREM', EXP, due[i])"},
		{1, "a circle is not seen", "if nested[step[1]] then", "if false then"},
		{0, "nested: permits of others are a circle", "if used + n - most > others then", "most = n if true then"},
		{9, "permits are never a circle", "{shared, most - n}", "{shared, most}"},
		{11, "a circle beside the request is not seen", "if blockedBy(asks[id]) and", "if false and"},
		{0, "a hand-off grants while something is due", "call('ZCOUNT', KEYS[1], '-inf', ms) == 0 and", ""},
		{0, "a hand-off leaves the limit of a wait", "call('ZREM', KEYS[1], 'w' .. id)", ""},
		{13, "losing: a hand-off does not look at the server", "'run_id:' .. server .. '\\r', 1, true)", "'', 1, true)"},
		{0, "a hand-off lets a request wait without its limit", "if wait ~= '0' then", "if false then"},
		{0, "a hand-off lets a request wait twice", "'\\0w\\0' .. id) == 1 then", "'\\0w\\0' .. id) then"},
		{0, "a hand-off lets a request wait while something is due", "soonest + 0 > now and card", "card"},
		{0, "a hand-off keeps the end of the hold alone", "keepEnd(ms, nil, 'hr' .. record,", "keepEnd(ms, nil, 'hr' .. record, nil and"},
		{0, "a release on a fast path is not kept", "keepEnd(at or clock[1]", "tostring(at or clock[1]"},
		{0, "a hold that ends on the slow path is not kept", "keepHold(how, id, hold, rest > 0", "tostring(how, id, hold, rest > 0"},
		{0, "a wait that ends is not kept", "keepEnd(ms, 'w' .. how,", "tostring(ms, 'w' .. how,"},
		{2, "an end on a fast path has another time", "string.sub('00000' .. clock[2], -6, -4)", "'000'"},
		{0, "a lost lease is kept as a crash", "due[i + 1] == '1' and 'c' or due[i + 1] ~= '0' and 'l' or nil", "due[i + 1] ~= '0' and 'c' or nil"},
		{0, "a revoked hold is kept as released", "how = how or hold[H_ASKED] ~= '' and 'v' or 'r'", "how = how or 'r'"},
		{0, "a wait's end is kept as canceled", "how or 'k', resource", "'k', resource"},
		{0, "the rest of a hold is not kept", "rest > 0 and format('%.0f', rest) or ''", "''"},
		{0, "a short job frees its lock at once", "if rest > now and not at_once then", "if false then"},
		{14, "a crash is an orderly end", "([^\\31]*)'), how)", "([^\\31]*)'))"},
		{0, "what is held too long is kept", "if most > 0 then call('ZADD', EXP, format", "if false then call('ZADD', EXP, format"},
		{0, "a revoke hits any holder", "if record and record[H_TOKEN] == token then", "if record then"},
		{0, "a wait that is kept back is offered its bundle", "wait[W_STATE] = wait[W_SESSION] == '@' and kept(wait[W_LIMITS]) and 'k' or 'w'", "wait[W_STATE] = 'w'"},
		{0, "a wait that is kept back blocks others", "call('ZREM', Q, unpack(queued(wait, id)))\n    else", "else"},
		{1, "a wait that steps back frees no other", "unbar(bundle(wait, W_ITEMS), wait)", "if state == 'w' then unbar(bundle(wait, W_ITEMS), wait) end"},
		{1, "a wait that is let go is forgotten", "unbar(bundle(wait, W_ITEMS), wait)", "if state == 'k' then unbar(bundle(wait, W_ITEMS), wait) end"},
		{4, "losing: no grace period is kept", "not S.grace() and S.resumes == 0 then", "true then"},
		{0, "losing: a new client is granted at once", "if S.grace() then -- also", "if false then -- also"},
		{0, "losing: another server is not noticed", "if not run or server == run then return 'known' end", "if true then return 'known' end"},
		{15, "losing: a server without a greeting grants", "if unknown then", "if false then"},
		{0, "losing: the longest lease does not count", "math.max(tonumber(least), longest + margin)", "tonumber(least)"},
		{0, "losing: the dead are asserted forever", "now + math.max(tonumber(ARGV[2]), left)), 's'", "now + 1e9), 's'"},
		{3, "losing: a late assertion counts", "if not left or not (lost", "if false and (lost"},
		{2, "losing: the weaker hold wins", "if tonumber(held(others[j])[H_TOKEN]) >= tonumber(record[H_TOKEN]) then", "if false then"},
		{3, "losing: the stronger hold falls", "if tonumber(held(others[j])[H_TOKEN]) >= tonumber(record[H_TOKEN]) then", "if true then"},
		{3, "losing: one rival is left", "for i = 1, #holds do -- one may", "for i = 1, math.min(1, #holds) do -- one may"},
		{2, "losing: the rival is not notified", "if ends(whose) then\n        S.inform", "if false then\n        S.inform"},
		{53, "losing: offers stay", "for i = 1, #offers do S.lapse(offers[i]) end\n  for", "for"},
		{9, "losing: permits are not bounded", "if grown(version) or over <= 0 then", "if true then"},
		{16, "losing: undeclared permits are refused", "if grown(version) then call('HSET'", "if false then call('HSET'"},
		{28, "losing: what it is nested in is its rival", "if not (nested and nested[others[i]]) then holds", "if true then holds"},
		{2, "losing: tokens begin again", "if ARGV[9] ~= '0' and", "if false and"},
		{0, "losing: a part is taken for the whole", "ARGV[10] == '1' and epoch or ''", "epoch"},
		{3, "losing: a page of another generation counts", "if ARGV[4] ~= (id or '') or ARGV[5] ~= (epoch or '') then", "if false then"},
		{2, "losing: a longest time is forgotten", "local most = limit(limits)\n", "local most = 0\n"},
		{9, "losing: what rests is not taken back", "local rests = known and known[H_SESSION] == '@'", "local rests = false"},
	} {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			planted, bounded := false, strings.HasPrefix(fault.name, "bounded")
			const histories = 200
			for i := range uint64(histories) {
				seed := (fault.first + i) % histories
				r := newRig(t, redistest.Client(t))
				r.source = func(source string) string {
					planted = planted || strings.Contains(source, expand(fault.old))
					source = strings.ReplaceAll(source, expand(fault.old), expand(fault.new))
					if bounded {
						return narrow(t, source)
					}
					return widen(t, source)
				}
				h, err := newHistory(r, seed)
				if err == nil && bounded {
					err = h.finishedLater(300)
				} else if err == nil {
					h.loses, h.nests = strings.HasPrefix(fault.name, "losing"), strings.HasPrefix(fault.name, "nested")
					if strings.Contains(fault.name, "hand-off") {
						err = h.contend()
					}
					if err == nil {
						err = h.steps(500)
					}
				}
				if err != nil && planted {
					t.Logf("found in history %d", seed)
					return
				}
			}
			if !planted {
				t.Fatalf("the fault is not in the scripts: %q is not there", fault.old)
			}
			t.Error("no history found it")
		})
	}
}

// TestBoundedWorkIsFinishedLater makes each script do so little of the due work that some is always
// left, and checks that only that keeps a wait from its grant.
func TestBoundedWorkIsFinishedLater(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		histories, steps := 6, 300
		if strings.HasSuffix(t.Name(), "miniredis") {
			histories, steps = 2, 150
		}
		for range histories * soak() {
			seed := historySeed()
			r := newRig(t, rdb)
			r.source = func(source string) string { return narrow(t, source) }
			h, err := newHistory(r, seed)
			if err == nil {
				err = h.finishedLater(steps)
			}
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	})
}

// narrow makes each script do very little of the work that it finds.
func narrow(t testing.TB, source string) string {
	return replaceBounds(t, source, "= 2, 2, 3, 4, 2, 1e6, 2")
}

// finishedLater makes steps with scripts that leave work, and finishes that now and then.
func (h *history) finishedLater(steps int) error {
	h.strict = false
	for range steps / 50 {
		if err := h.steps(50); err != nil {
			return err
		}
		for calls := 0; ; calls++ {
			next, err := h.run("reap")
			if err != nil {
				return err
			}
			if next.At(0) != "0" {
				break
			}
			if calls > 1000 {
				return fmt.Errorf("work is still left after %d calls", calls)
			}
		}
		d, err := h.dump()
		if err == nil {
			err = d.check(h.model.now(), true)
		}
		if err != nil {
			return fmt.Errorf("all done: %w", err)
		}
		for _, member := range d.hold {
			session, _, _ := strings.Cut(member, "\x00")
			if _, lives := d.exp["s"+session]; session != "@" && !lives {
				return fmt.Errorf("all done: %q belongs to a session that has ended", member)
			}
		}
	}
	return nil
}
