package space

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

// A rig runs the scripts of one space by hand. With virtual time they read the clock from the meta
// hash, where the test sets it, instead of from TIME.
type rig struct {
	ctx  context.Context
	rdb  redis.UniversalClient
	keys []string

	source  func(string) string // changes every script; nil: unchanged
	scripts map[string]*redis.Script
	us      int64    // virtual time; 0: the server's
	past    []string // what dump has read of the key endings, see pastText
}

// newRig makes a rig with a space called "space" in its first epoch.
func newRig(t testing.TB, rdb redis.UniversalClient) *rig {
	t.Helper()
	r := &rig{
		ctx: t.Context(), rdb: rdb, keys: KeysOf(redistest.Namespace(t)), scripts: make(map[string]*redis.Script),
	}
	if err := rdb.HSet(r.ctx, r.keys[6], "id", "space", "epoch", "1", "server", "").Err(); err != nil {
		t.Fatal(err)
	}
	// The key makes the space keep what ends.
	if err := rdb.RPush(r.ctx, r.keys[8], time.Now().UnixMilli()).Err(); err != nil {
		t.Fatal(err)
	}
	return r
}

// clockCall is how the scripts read the time.
const clockCall = "call('TIME')"

// serverCall is how the scripts identify their server; replicationCall, if it hides its run ID.
const (
	serverCall      = "redis.pcall('INFO', 'server')"
	replicationCall = "redis.pcall('INFO', 'replication')"
)

// virtualTime makes a script take time and server from values that the test has set.
func virtualTime(source string) string {
	source = strings.ReplaceAll(source, clockCall, "call('HMGET', KEYS[7], 'test:s', 'test:us')")
	return strings.ReplaceAll(source, serverCall, "call('HGET', KEYS[7], 'test:server')")
}

// run sends a script once; name is a file's, or Lua of a test.
func (r *rig) run(name string, args ...any) (Reply, error) {
	script := r.scripts[name]
	if script == nil {
		source := Link("", "", name)
		if !strings.ContainsAny(name, "\n ") {
			source = Script(name).Source(Format)
		}
		if r.us != 0 {
			source = virtualTime(source)
		}
		if r.source != nil {
			source = r.source(source)
		}
		script = redis.NewScript(source)
		r.scripts[name] = script
	}
	return RunText(r.ctx, r.rdb, script, r.keys, args...)
}

// do is run for scripts that must succeed. It returns the reply as text.
func (r *rig) do(t testing.TB, name string, args ...any) []string {
	t.Helper()
	answer, err := r.run(name, args...)
	if err != nil {
		t.Fatalf("%s %v: %v", name, args, err)
	}
	return texts(answer)
}

// open opens a session in the space called "space".
func (r *rig) open(t testing.TB, session string, lease int) []string {
	t.Helper()
	return r.do(t, "open", session, lease, "{}", "space", 0)
}

// ask is a request without special options.
func ask(session, id string, wait, patience int64, items ...string) modelAsk {
	return modelAsk{session: session, id: id, wait: wait, patience: patience, items: items}
}

func (r *rig) acquire(t testing.TB, session, id string, wait, patience int64, items ...string) []string {
	t.Helper()
	return r.do(t, "acquire", ask(session, id, wait, patience, items...).args()...)
}

func texts(r Reply) []string {
	out := make([]string, len(r))
	for i := range r {
		out[i] = r.At(i)
	}
	return out
}

func (r *rig) setTime(us int64) error {
	r.us = us
	return r.rdb.HSet(r.ctx, r.keys[6], "test:s", us/1e6, "test:us", us%1e6).Err()
}

// dump is the content of a space.
type dump struct {
	exp  map[string]int64
	own  map[string]string
	hold []string
	wait map[string]string
	q    []string
	idx  []string
	meta map[string]string // without cards and the test's clock
	seq  string
	past []string // all that has ended, sorted
}

func (r *rig) dump() (*dump, error) {
	pipe := r.rdb.Pipeline()
	exp := pipe.ZRangeWithScores(r.ctx, r.keys[0], 0, -1)
	own := pipe.HGetAll(r.ctx, r.keys[1])
	hold := pipe.ZRange(r.ctx, r.keys[2], 0, -1)
	wait := pipe.HGetAll(r.ctx, r.keys[3])
	q := pipe.ZRange(r.ctx, r.keys[4], 0, -1)
	idx := pipe.ZRange(r.ctx, r.keys[5], 0, -1)
	meta := pipe.HGetAll(r.ctx, r.keys[6])
	seq := pipe.Get(r.ctx, r.keys[7])
	past := pipe.LRange(r.ctx, r.keys[8], 0, -1)
	pipe.LTrim(r.ctx, r.keys[8], -1, -1) // and is not read again
	if _, err := pipe.Exec(r.ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("dump: %w", err)
	}
	d := &dump{
		exp: make(map[string]int64), own: own.Val(), hold: hold.Val(), wait: wait.Val(), q: q.Val(), idx: idx.Val(),
		meta: make(map[string]string), seq: seq.Val(),
	}
	r.past = append(r.past, pastTexts(past.Val()[min(1, len(past.Val())):])...)
	d.past = slices.Sorted(slices.Values(r.past))
	for _, z := range exp.Val() {
		d.exp[z.Member.(string)] = int64(z.Score)
	}
	for field, value := range meta.Val() {
		kind, _, _ := strings.Cut(field, ":")
		if kind != "card" && kind != "test" {
			d.meta[field] = value
		}
	}
	return d, nil
}

// pastTexts returns what a dump has of the entries in a part of the key endings.
func pastTexts(elements []string) (all []string) {
	for i := 0; i < len(elements); i++ {
		at, text, is := strings.Cut(elements[i], "\x1f")
		for ; i+1 < len(elements) && strings.HasPrefix(elements[i+1], "\x1f"); i++ {
			text += elements[i+1][1:]
		}
		if is {
			f, _ := entries.Parse(text)
			all = append(all, pastText(at, f))
		}
	}
	return all
}

// check returns what is wrong in a dump, by the invariants of the package doc alone. now is in ms.
// settled: no work may be left.
func (d *dump) check(now int64, settled bool) error {
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }

	type user struct {
		tag, mode string
		n         int64
	}
	users := make(map[string][]user) // of each resource
	idx := make(map[string]bool)
	use := func(items []string, tag string) {
		for _, item := range items {
			mode, n, name := parseItem(item)
			users[name] = append(users[name], user{tag, string(mode), max(1, n)})
			if mode != 'x' {
				idx["~r"+name+"\x00"+tag] = true
			}
		}
	}
	held := make(map[string]bool)
	for _, member := range d.hold {
		f, _ := Holds.Parse(member)
		session, id, _ := strings.Cut(f.Session, "\x00")
		held[id] = true
		use(FieldsOf(f.Items), "x"+id)
		if d.seq < f.Token || len(d.seq) < len(f.Token) {
			fault("hold %s has token %s, above the last one %s", id, f.Token, d.seq)
		}
		if _, rests := d.exp["d"+id]; rests != (session == "@") {
			fault("hold %s of %s: the end of its rest is on the wheel: %v", id, session, rests)
		}
	}
	aligning := false
	for member := range d.exp {
		aligning = aligning || member[0] == 'k'
	}
	type queued struct{ ticket, mode, reserve, since string }
	queues := make(map[string][]queued)
	q := make(map[string]bool)
	for id, record := range d.wait {
		f, _ := Waits.Parse(record)
		if held[id] {
			fault("%s waits and holds", id)
		}
		idx[f.Session+"\x00w\x00"+id] = true
		for _, hold := range strings.Fields(f.Under) {
			idx["~u"+hold+"\x00"+id] = true
		}
		if f.Session == "@" && f.Limits != "" {
			idx["~k"+f.Limits+"\x00"+f.Ticket+"\x00"+id] = true
		}
		back := f.Session == "@" && slices.Contains(strings.Split(d.meta["kept"], "\x1f"), f.Limits)
		if !aligning && (back && f.State == "w" || !back && f.State == "k") {
			fault("%s of class %s is in state %s, kept back are %q", id, f.Limits, f.State, d.meta["kept"])
		}
		if f.State == "o" {
			use(FieldsOf(f.Items), "o"+id)
		}
		for _, item := range FieldsOf(f.Items) {
			mode, n, name := parseItem(item)
			text := string(mode)
			if n > 0 {
				text += fmt.Sprint(n)
			}
			if f.State == "w" {
				q[name+"\x00"+f.Ticket+"\x00"+text+"\x00"+f.Reserve+"\x00"+id] = true
				queues[name] = append(queues[name], queued{f.Ticket, text, f.Reserve, f.Since})
			}
		}
		if _, ok := d.exp["o"+id]; ok != (f.State == "o") {
			fault("%s is in state %s, its offer's end is on the wheel: %v", id, f.State, ok)
		}
	}

	// Do the occupants of a resource agree with its key?
	limits := make(map[string]int64)
	for name, by := range d.own {
		if len(users[name]) == 0 && by[0] != 'p' {
			fault("%s is occupied by %s, which nothing explains", name, by)
		}
	}
	for name, on := range users {
		var alone, shared []string
		var taken int64
		for _, u := range on {
			switch u.mode {
			case "x":
				alone = append(alone, u.tag)
			case "p":
				taken += u.n
				shared = append(shared, u.tag)
			default:
				taken++
				shared = append(shared, u.tag)
			}
		}
		by := d.own[name]
		switch {
		case len(alone) > 1:
			fault("%s is held alone by %q", name, alone)
		case by == "":
			fault("%s is not occupied, want %v", name, on)
		case len(alone) == 1 && by[1:] != alone[0][1:]:
			fault("%s is occupied by %s, want %s", name, by, alone[0])
		case len(alone) == 1 && len(shared) > 0 && by[0] != 'u':
			fault("%s is occupied by %s over %q", name, by, shared)
		case len(alone) == 0 && by[0] == 's' && by != fmt.Sprintf("s%d", taken):
			fault("%s is occupied by %s, want %v", name, by, on)
		case len(alone) == 0 && by[0] == 'p' && !strings.HasPrefix(by, fmt.Sprintf("p%d:", taken)):
			fault("%s is occupied by %s, want %v", name, by, on)
		}
	}
	for name, by := range d.own {
		if by[0] == 'p' {
			limits[name] = Int(strings.Split(by, ":")[1])
		}
	}

	for _, member := range d.q {
		if !q[member] {
			fault("queue has %q, which no wait explains", member)
		}
		delete(q, member)
	}
	for member := range q {
		fault("queue lacks %q", member)
	}
	for field, at := range d.meta {
		if session, ok := strings.CutPrefix(field, "at:"); ok {
			_, lease, _ := strings.Cut(at, " ")
			idx[fmt.Sprintf("~l%09d\x00%s", Int(lease), session)] = true
		}
	}
	for _, member := range d.idx {
		if strings.HasPrefix(member, "@\x00o\x00") {
			if _, ok := d.wait[member[4:]]; !ok {
				fault("index has the offer %q, which has no wait", member)
			}
			continue
		}
		if !idx[member] {
			fault("index has %q, which nothing explains", member)
		}
		delete(idx, member)
	}
	for member := range idx {
		fault("index lacks %q", member)
	}
	work := make(map[string]string) // resource -> the ticket from which on it is still to be walked
	for member := range d.exp {
		id := member[1:]
		switch member[0] {
		case 'w', 'o':
			if d.wait[id] == "" {
				fault("timer wheel has %q, which has no wait", member)
			}
		case 'm', 'd':
			if !held[id] {
				fault("timer wheel has %q, which has no hold", member)
			}
		case 'k':
			if settled {
				fault("waits are still to be kept back or let go: %q", member)
			}
		case 'g':
			name, ticket, _ := strings.Cut(id, "\x00")
			if from, ok := work[name]; !ok || ticket < from {
				work[name] = ticket
			}
			if settled {
				fault("work is left: %q", member)
			}
		}
	}

	if _, pauses := d.exp["e"]; pauses != (d.meta["grace"] != "") {
		fault("grace until %q, its end is on the wheel: %v", d.meta["grace"], pauses)
	} else if pauses && !settled {
		return report(faults) // nothing is granted
	}

	if aligning {
		return report(faults) // some waits are not in their final places yet
	}

	// No grantable request waits.
waits:
	for id, record := range d.wait {
		f, _ := Waits.Parse(record)
		if f.State != "w" {
			continue
		}
		if f.Session != "@" && d.exp["s"+f.Session] <= now {
			continue // its session has ended
		}
		under := strings.Fields(f.Under)
		for _, item := range FieldsOf(f.Items) {
			mode, n, name := parseItem(item)
			if from, ok := work[name]; ok && from <= f.Ticket {
				continue waits
			}
			var taken int64 // what others have of it, and what older waits reserve
			for _, u := range users[name] {
				if u.mode == "x" || mode == 'x' && !slices.Contains(under, u.tag[1:]) {
					continue waits
				}
				if u.mode == "p" {
					taken += u.n
				} else {
					taken++
				}
			}
			fits := func() bool {
				return mode != 'p' && mode != 'c' || mode == 'c' && taken < n || mode == 'p' && taken+n <= limits[name]
			}
			if !fits() || (mode == 'p') != (d.own[name] != "" && d.own[name][0] == 'p') {
				continue waits
			}
			for _, other := range queues[name] {
				if Int(other.reserve) > now || mode == 'p' && other.mode[0] != 'p' {
					continue
				}
				// A wait that was this old when a nested one came comes first, unless it depends on
				// that one, which the model decides.
				plain := Int(other.ticket) >= nestedTickets
				switch {
				case len(under) > 0 && Int(other.reserve) >= Int(f.Since):
					continue
				case len(under) == 0 && (other.ticket >= f.Ticket || !plain && Int(other.since) > Int(f.Reserve)):
					continue
				}
				wants := int64(1)
				if other.mode[0] == 'p' {
					wants = Int(other.mode[1:])
				}
				if other.mode[0] == 'p' && wants > limits[name] {
					continue // it is not granted while the limit is that low
				}
				if taken += wants; mode == 'x' || other.mode == "x" || !fits() {
					continue waits
				}
			}
		}
		fault("%s waits although nothing is in its way", id)
	}
	return report(faults)
}

func report(faults []string) error {
	if len(faults) == 0 {
		return nil
	}
	return errors.New(strings.Join(faults, "; "))
}
