package locks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

// A rig runs the scripts of one space by hand. With virtual time they read the clock from the meta hash, where the test
// sets it, instead of from TIME.
type rig struct {
	ctx  context.Context
	rdb  redis.UniversalClient
	keys []string

	source  func(string) string // changes every script, nil: as it is
	scripts map[string]*redis.Script
	us      int64 // virtual time; 0: the server's
}

func newRig(t testing.TB, rdb redis.UniversalClient) *rig {
	return &rig{
		ctx: t.Context(), rdb: rdb, keys: spaceKeys(redistest.Namespace(t)), scripts: make(map[string]*redis.Script),
	}
}

// clockCall is how the scripts read the time. There is one such place.
const clockCall = "call('TIME')"

func virtualTime(source string) string {
	if strings.Count(source, clockCall) != 1 {
		panic("the scripts have to read the clock in one place: " + clockCall)
	}
	return strings.Replace(source, clockCall, "call('HMGET', KEYS[7], 'test:s', 'test:us')", 1)
}

// run sends a script once; name is a file's, or Lua of a test.
func (r *rig) run(name string, args ...any) (reply, error) {
	script := r.scripts[name]
	if script == nil {
		body := name
		if !strings.ContainsAny(name, "\n ") {
			body = readScript(name)
		}
		source := spaceSource + body
		if r.us != 0 {
			source = virtualTime(source)
		}
		if r.source != nil {
			source = r.source(source)
		}
		script = redis.NewScript(source)
		r.scripts[name] = script
	}
	return runScript(r.ctx, r.rdb, script, r.keys, args...)
}

// do is run for scripts that have to succeed. It returns the reply as text.
func (r *rig) do(t testing.TB, name string, args ...any) []string {
	t.Helper()
	answer, err := r.run(name, args...)
	if err != nil {
		t.Fatalf("%s %v: %v", name, args, err)
	}
	return texts(answer)
}

func texts(r reply) []string {
	out := make([]string, len(r))
	for i := range r {
		out[i] = r.text(i)
	}
	return out
}

func (r *rig) setTime(us int64) error {
	r.us = us
	return r.rdb.HSet(r.ctx, r.keys[6], "test:s", us/1e6, "test:us", us%1e6).Err()
}

// dump is all that stands in a space.
type dump struct {
	exp  map[string]int64
	own  map[string]string
	hold map[string]string
	wait map[string]string
	q    []string
	idx  []string
	meta map[string]string // without cards and the test's clock
	seq  string
}

func (r *rig) dump() (*dump, error) {
	pipe := r.rdb.Pipeline()
	exp := pipe.ZRangeWithScores(r.ctx, r.keys[0], 0, -1)
	own := pipe.HGetAll(r.ctx, r.keys[1])
	hold := pipe.HGetAll(r.ctx, r.keys[2])
	wait := pipe.HGetAll(r.ctx, r.keys[3])
	q := pipe.ZRange(r.ctx, r.keys[4], 0, -1)
	idx := pipe.ZRange(r.ctx, r.keys[5], 0, -1)
	meta := pipe.HGetAll(r.ctx, r.keys[6])
	seq := pipe.Get(r.ctx, r.keys[7])
	if _, err := pipe.Exec(r.ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("dump: %w", err)
	}
	d := &dump{
		exp: make(map[string]int64), own: own.Val(), hold: hold.Val(), wait: wait.Val(), q: q.Val(), idx: idx.Val(),
		meta: make(map[string]string), seq: seq.Val(),
	}
	for _, z := range exp.Val() {
		d.exp[z.Member.(string)] = int64(z.Score)
	}
	for field, value := range meta.Val() {
		if !strings.HasPrefix(field, "card:") && !strings.HasPrefix(field, "test:") {
			d.meta[field] = value
		}
	}
	return d, nil
}

// check tells what is wrong in a dump, by the invariants of the package doc alone. now is in ms. settled: no work may
// be left.
func (d *dump) check(now int64, settled bool) error {
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	fields := func(record string) []string { return strings.Split(record, "\x1f") }

	own := make(map[string]string)
	idx := make(map[string]bool)
	for id, record := range d.hold {
		f := fields(record)
		for _, item := range f[4:] {
			if by, ok := own[item[1:]]; ok {
				fault("%s is held by %s and by %s", item[1:], by, id)
			}
			own[item[1:]] = "x" + id
		}
		idx[f[0]+"\x00h\x00"+id] = true
		if d.seq < f[1] || len(d.seq) < len(f[1]) {
			fault("hold %s has token %s, above the last one %s", id, f[1], d.seq)
		}
	}
	type queued struct{ ticket, reserve, id, session string }
	queues := make(map[string][]queued)
	q := make(map[string]bool)
	for id, record := range d.wait {
		f := fields(record)
		if _, ok := d.hold[id]; ok {
			fault("%s waits and holds", id)
		}
		idx[f[0]+"\x00w\x00"+id] = true
		for _, item := range f[6:] {
			name := item[1:]
			switch f[3] {
			case "o":
				if by, ok := own[name]; ok {
					fault("%s is offered to %s and has %s", name, id, by)
				}
				own[name] = "o" + id
			case "w":
				q[name+"\x00"+f[1]+"\x00x\x00"+f[4]+"\x00"+id] = true
				queues[name] = append(queues[name], queued{f[1], f[4], id, f[0]})
			}
		}
		if _, ok := d.exp["o"+id]; ok != (f[3] == "o") {
			fault("%s is in state %s, its offer's end is on the wheel: %v", id, f[3], ok)
		}
	}
	for name, by := range d.own {
		if own[name] != by {
			fault("%s is occupied by %s, want %q", name, by, own[name])
		}
	}
	for name, by := range own {
		if d.own[name] == "" {
			fault("%s is not occupied, want %s", name, by)
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
	work := make(map[string]string) // resource -> from which ticket on it is still to be walked
	for member := range d.exp {
		id := member[1:]
		switch member[0] {
		case 'w', 'o':
			if d.wait[id] == "" {
				fault("timer wheel has %q, which has no wait", member)
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

	// Nobody who could be granted waits.
waits:
	for id, record := range d.wait {
		f := fields(record)
		if f[3] != "w" {
			continue
		}
		if f[0] != "@" && d.exp["s"+f[0]] <= now {
			continue // its session has ended
		}
		for _, item := range f[6:] {
			name := item[1:]
			if d.own[name] != "" {
				continue waits
			}
			if from, ok := work[name]; ok && from <= f[1] {
				continue waits
			}
			for _, other := range queues[name] {
				if other.ticket < f[1] && parseInt(other.reserve) <= now {
					continue waits
				}
			}
		}
		fault("%s waits although nothing is in its way", id)
	}
	if len(faults) > 0 {
		return fmt.Errorf("%s", strings.Join(faults, "; "))
	}
	return nil
}
