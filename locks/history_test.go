package locks

import (
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

// claimLua is what a claim of the ledger does to the lock space.
// ARGV: 1 run  2 hold  3 session  4 patience, ms  5... items
const claimLua = `
local run, hold, session, patience = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if not ends(session) then return {'dead'} end
local names, items = {}, {}
for i = 5, #ARGV do
  items[i - 4] = ARGV[i]
  names[i - 4] = sub(ARGV[i], 2)
end
local S = space()
S.reap()
local wait = S.wait(run)
if wait then names, items = bundle(wait, W_ITEMS) end
local resource, _, beaten = S.blocked(names, wait and wait[2], run)
if resource then
  S.park(run, '@', '', items, patience)
  S.settle()
  S.tell()
  return {'parked'}
end
for i = 1, #beaten do S.lapse(beaten[i]) end
S.drop(run)
local token = take(hold, session, '', items)
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

// soak multiplies the length of random histories: LOCKSTEP_SOAK=100 go test.
func soak() int {
	n, _ := strconv.Atoi(os.Getenv("LOCKSTEP_SOAK"))
	return max(1, n)
}

// A history is a sequence of random operations on a rig and on the model.
type history struct {
	*rig
	model    *model
	rand     *rand.Rand
	strict   bool // the model holds; else only the invariants, since each script does less than all that is due
	sessions []string
	drawn    int
	sent     map[string]sentAcquire // requests that may be sent again
	log      []string
}

type sentAcquire struct {
	session string
	wait    int64
	args    []any
	names   []string
}

func newHistory(r *rig, seed uint64) (*history, error) {
	h := &history{
		rig: r, rand: rand.New(rand.NewPCG(seed, 0)), strict: true, sent: map[string]sentAcquire{},
		model: newModel(1_750_000_000_000_000),
	}
	return h, h.setTime(h.model.us)
}

// bundle draws names; a bundle of 1 to 3 of 6 resources makes most requests meet others.
func (h *history) bundle() (names []string, items []any) {
	all := []string{"a", "a2", "b", "c", "d d", "é"}
	h.rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	names = all[:1+h.rand.IntN(3)]
	slices.Sort(names)
	for _, name := range names {
		items = append(items, "x"+name)
	}
	return names, items
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// known draws the id of something that was asked for: of holds out of so many, else of waits.
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
	var got reply
	var err error
	var want []string
	var what string
	note := func(format string, args ...any) { what = fmt.Sprintf(format, args...) }
	m := h.model
	if len(h.sessions) == 0 {
		h.sessions = append(h.sessions, "s0.x")
	}
	session := pick(h.rand, h.sessions...)
	for range 4 { // mostly one that lives
		if !m.alive(session) {
			session = pick(h.rand, h.sessions...)
		}
	}
	switch dice := h.rand.IntN(100); {
	case dice < 6:
		session = fmt.Sprintf("s%d.x", h.rand.IntN(5))
		lease := int64(pick(h.rand, 50, 500, 5000, 60_000, 60_000))
		note("open %s %d", session, lease)
		got, err = h.run("open", session, lease, "{}")
		want = m.open(session, lease)
		if want[0] == "open" && !slices.Contains(h.sessions, session) {
			h.sessions = append(h.sessions, session)
		}
	case dice < 12:
		lease := int64(pick(h.rand, 50, 500, 5000, 60_000, 60_000))
		note("renew %s %d", session, lease)
		got, err = h.run("renew", session, lease)
		want = m.renew(session, lease)
	case dice < 40:
		h.drawn++
		id := fmt.Sprintf("%s.%d", session, h.drawn)
		names, items := h.bundle()
		wait := int64(pick(h.rand, -1, 0, 0, 0, 0, 30, 3000))
		patience := int64(pick(h.rand, 0, 40, 1000))
		sent := sentAcquire{session, wait, append([]any{session, id, "i" + id, wait, patience}, items...), names}
		h.sent[id] = sent
		note("acquire %v", sent.args)
		got, err = h.run("acquire", sent.args...)
		want = m.acquire(session, id, "i"+id, wait, patience, names)
	case dice < 45: // the same again, or a wait's last try
		id := h.known(1, 3)
		sent, ok := h.sent[id]
		if !ok {
			return nil
		}
		wait := sent.wait
		if _, waits := m.waits[id]; waits && h.rand.IntN(3) == 0 {
			wait = -1
		}
		args := slices.Clone(sent.args)
		args[3] = wait
		note("acquire again %v", args)
		got, err = h.run("acquire", args...)
		want = m.acquire(sent.session, id, "i"+id, wait, args[4].(int64), sent.names)
	case dice < 70:
		id := h.known(5, 6)
		args := []any{id}
		held := m.holds[id]
		quick := held != nil && h.rand.IntN(2) == 0
		if _, ok := h.sent[id]; !ok && !h.strict {
			quick = false // which bundle a claim took, the model does not know then
		}
		if quick {
			args = append(args, held.session)
			for _, name := range held.names {
				args = append(args, name)
			}
		}
		note("release %v", args)
		got, err = h.run("release", args...)
		want = m.release(id, quick)
	case dice < 71:
		note("close %s", session)
		got, err = h.run("close", session)
		want = m.close(session)
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
		names, items := h.bundle()
		patience := int64(pick(h.rand, 0, 40, 1000))
		note("claim %s %s %v", run, hold, names)
		got, err = h.run(claimLua, append([]any{run, hold, session, patience}, items...)...)
		want = m.claim(run, hold, session, patience, names)
	case dice < 91+h.rand.IntN(2):
		note("pick")
		got, err = h.run(pickLua)
		want = []string{fmt.Sprint(len(m.offered))}
		clear(m.offered)
	default:
		m.us += int64(pick(h.rand, 1, 999, 1000, 10_000, 30_000, 60_000, 300_000, 2_100_000))
		note("time %d", m.us)
		err = h.setTime(m.us)
	}
	h.log = append(h.log, what)
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
	return nil
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

// TestScriptsDoAsTheModel drives the scripts and the model through the same random histories, compares every reply, and
// after every operation all that stands in the keys.
func TestScriptsDoAsTheModel(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		histories, steps := 8, 500
		if strings.HasSuffix(t.Name(), "miniredis") {
			histories, steps = 3, 250
		}
		for range histories * soak() {
			seed := uint64(time.Now().UnixNano())
			h, err := newHistory(newRig(t, rdb), seed)
			if err == nil {
				err = h.steps(steps)
			}
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	})
}

// TestCheckerCatchesFaults plants faults in the scripts, each of which the histories have to find.
func TestCheckerCatchesFaults(t *testing.T) {
	t.Parallel()
	for _, fault := range []struct{ name, old, new string }{
		{"release grants to nobody", "S.settle()\nS.reap()", "S.reap()"},
		{"who drops a wait frees nobody", "free(names) -- also", "-- also"},
		{"lapse frees nothing", "store(id, wait)\n    free(names)", "store(id, wait)"},
		{"young waits are never passed", "format('%.0f', now + patience)", "format('%.0f', now)"},
		{"old waits are passed", "if tonumber(reserve) <= now and id ~= self", "if false"},
		{"a queue is taken from its end", "not first or head.ticket < first.ticket", "not first or head.ticket > first.ticket"},
		{"the dead are granted", "if wait[1] == '@' or ends(wait[1]) then", "if true then"},
		{"tokens follow the clock", "if last and last >= us then", "if false then"},
		{"a bundle is granted in part", "if owner and owner ~= mine then", "if owner and owner ~= mine and i < 2 then"},
		{"a second copy queues again", "local wait = S.wait(id)\nif wait and", "local wait\nif wait and"},
		{"an old ticket does not beat an offer", "if not (offered and ticket < offered[2])", "if true"},
	} {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			planted := false
			for seed := range uint64(20) {
				r := newRig(t, redistest.Client(t))
				r.source = func(source string) string {
					planted = planted || strings.Contains(source, fault.old)
					return strings.ReplaceAll(source, fault.old, fault.new)
				}
				h, err := newHistory(r, seed)
				if err == nil {
					err = h.steps(500)
				}
				if !planted {
					t.Fatalf("the fault is not in the scripts: %q is not there", fault.old)
				}
				if err != nil {
					return
				}
			}
			t.Error("no history found it")
		})
	}
}

// TestBoundedWorkIsFinishedLater has each script do so little of what is due that work is always left over, and checks
// that nothing but that keeps a wait from its grant.
func TestBoundedWorkIsFinishedLater(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		const bounds, tight = "= 64, 16, 200, 2000, 16", "= 2, 2, 3, 4, 2"
		histories, steps := 6, 300
		if strings.HasSuffix(t.Name(), "miniredis") {
			histories, steps = 2, 150
		}
		for range histories * soak() {
			seed := uint64(time.Now().UnixNano())
			r := newRig(t, rdb)
			r.source = func(source string) string {
				if !strings.Contains(source, bounds) {
					t.Fatalf("space.lua has no bounds %q", bounds)
				}
				return strings.Replace(source, bounds, tight, 1)
			}
			h, err := newHistory(r, seed)
			if err != nil {
				t.Fatal(err)
			}
			h.strict = false
			for range steps / 50 {
				if err := h.steps(50); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				calls := 0
				for {
					next := h.do(t, "reap")
					if next[0] != "0" {
						break
					}
					if calls++; calls > 1000 {
						t.Fatalf("seed %d: work is still left after %d calls", seed, calls)
					}
				}
				d, err := h.dump()
				if err == nil {
					err = d.check(h.model.now(), true)
				}
				if err != nil {
					t.Fatalf("seed %d, all done: %v", seed, err)
				}
			}
		}
	})
}
