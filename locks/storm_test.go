package locks_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// weather is the faults of a proxy for single requests all the time, in a storm; long silences are
// added.
var weather = map[string]redistest.Faults{
	"late": {
		RequestDelay: time.Millisecond, ReplyDelay: time.Millisecond,
		RequestJitter: 8 * time.Millisecond, ReplyJitter: 8 * time.Millisecond,
	},
	"twice":  {Commands: []string{"evalsha"}, Resend: 0.2},
	"echoes": {Commands: []string{"evalsha"}, Repeat: 0.1, RepeatDelay: 20 * time.Millisecond},
	"torn":   {Commands: []string{"evalsha"}, LoseReplies: 0.004, CutReplies: 0.02, ReplyJitter: 2 * time.Millisecond},
	"all": {
		Commands: []string{"evalsha"}, RequestJitter: 4 * time.Millisecond, ReplyJitter: 4 * time.Millisecond,
		Resend: 0.05, Repeat: 0.05, RepeatDelay: 100 * time.Millisecond, LoseReplies: 0.002, CutReplies: 0.01,
	},
}

// silences are the faults of a proxy for all requests now and then.
var silences = []redistest.Faults{
	{DropRequests: true, DropReplies: true}, {HoldRequests: true}, {HoldReplies: true}, {DropReplies: true}, {Refuse: true},
}

// storm makes the weather at a proxy until ctx ends: now and then everything is silent for up to
// longest.
func storm(ctx context.Context, p *redistest.Proxy, random *rand.Rand, usual redistest.Faults, longest time.Duration) {
	pause := func(d time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	for ctx.Err() == nil {
		p.Set(usual)
		pause(time.Duration(300+random.IntN(900)) * time.Millisecond)
		silence := silences[random.IntN(len(silences))]
		p.Set(silence)
		if silence.Refuse || random.IntN(3) == 0 {
			p.Cut()
		}
		length := longest
		if random.IntN(2) == 0 {
			length /= 20 // too short for any loss
		}
		pause(time.Duration(random.Int64N(int64(length))))
	}
	p.Set(redistest.Faults{})
	p.Cut()
}

// stormLease is short, so that silences outlast it. Its cutoff is 600 ms: a busy machine must not
// look like a fault.
const stormLease = 3 * time.Second

// TestNoOverlapInAStorm makes many goroutines of several clients, each behind a bad network, take
// bundles in all modes and ways, nested, limited, canceled.
func TestNoOverlapInAStorm(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	for name, usual := range weather {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := redistest.Namespace(t)
			j := newJournal()
			healthy := openClient(t, server.Client(t), locks.Options{Namespace: ns, Name: "healthy"})
			declarePool(t, healthy)
			ctx := atLeast(t, span(4*time.Second), func() bool { return j.began() > 0 })
			var storms sync.WaitGroup
			var actors cast
			seed := uint64(time.Now().UnixNano())
			for i := range 3 {
				p := server.Proxy(t)
				random := rand.New(rand.NewPCG(seed, uint64(i)))
				c := openClient(t, p.Client(t), locks.Options{Namespace: ns, Name: fmt.Sprint("storm", i), Lease: stormLease})
				storms.Go(func() { storm(ctx, p, random, usual, stormLease*3/2) })
				for k := range 4 {
					actors = append(actors, &actor{
						client: c, journal: j, rand: rand.New(rand.NewPCG(seed, uint64(10*i+k+10))), depth: 2, limits: true, loses: true,
					})
				}
			}
			for k := range 2 {
				actors = append(actors, &actor{
					client: healthy, journal: j, rand: rand.New(rand.NewPCG(seed, uint64(k+100))), depth: 2, limits: true, loses: true,
				})
			}
			actors.act(ctx)
			storms.Wait()
			took := emptied(t, healthy)
			t.Logf("seed %d: all was given back %s after the last one had ended", seed, took.Round(time.Millisecond))
			if took > 3*stormLease { // one renewal, after the connections are back
				t.Errorf("the last was given back after %s", took)
			}
			j.verify(t)
		})
	}
}

// TestStormFindsFaults plants faults in scripts and in an actor, each of which must show in the
// journal of a short storm.
func TestStormFindsFaults(t *testing.T) {
	t.Parallel()
	for _, fault := range []struct{ name, old, new, want string }{
		{"every request is granted", "if by then return names[i], by end", "", "held twice"},
		{"readers are not looked at", "elseif kind == 's' and mode == 'x' then", "elseif false then", "held twice"},
		{"one permit too many", "if used + wants[i] > most then", "if used + wants[i] > most + 1 then", "4 of 3"},
		{"one too many may share", "sub(owner, 2) - wants[i] >= 0 then", "sub(owner, 2) - wants[i] >= 1 then", "3 of 2"},
		{"a downgrade keeps nobody out", "call('HSET', OWN, unpack(shares))", "call('HDEL', OWN, unpack(changed))", "held twice"},
		{"an upgrade forgets the sharers", "for _ in pairs(nested or {}) do size = size + 1 end", "size = 0", "held twice"},
		{"a short job frees its lock at once", "if rest > now and not at_once then", "if false then", "keeps it for"},
		{"a release frees what others have", "keepHold(how, id, hold, rest > 0", "call('HDEL', OWN, 'c')\n  keepHold(how, id, hold, rest > 0", "held twice"},
		{"a token is its microsecond's", "n == 1 and micros or string.format('%.0f', micros + n - 1)", "string.format('%.0f', micros % 1e6 + 1)", "does not grow"},
		{"an actor is deaf", "", "", "held twice"},
	} {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			server, ns := redistest.Shared(t), redistest.Namespace(t)
			j := newJournal()
			ctx, cancel := context.WithTimeout(t.Context(), 4*patient)
			defer cancel()
			var running sync.WaitGroup
			defer running.Wait()
			defer cancel()
			for i := range 2 {
				p := server.Proxy(t)
				c := openClient(t, p.Client(t), locks.Options{Namespace: ns, Name: fmt.Sprint("faulty", i), Lease: 2 * time.Second})
				if i == 0 {
					declarePool(t, c)
				}
				if fault.old != "" {
					locks.Plant(t, c, fault.old, fault.new)
				} else if i == 0 { // a deaf actor needs a silence
					running.Go(func() {
						storm(ctx, p, rand.New(rand.NewPCG(1, 1)), redistest.Faults{}, 5*time.Second)
					})
				}
				for k := range 4 {
					a := &actor{
						client: c, journal: j, rand: rand.New(rand.NewPCG(uint64(i), uint64(k))), depth: 2,
						limits: fault.want == "keeps it for", loses: true, deaf: fault.old == "",
						waits: time.Second, // a fault may also leave requests waiting for nothing
					}
					running.Go(func() { a.rounds(ctx) })
				}
			}
			for ctx.Err() == nil {
				time.Sleep(50 * time.Millisecond)
				faults, _ := j.check()
				if slices.ContainsFunc(faults, func(found string) bool { return strings.Contains(found, fault.want) }) {
					return
				}
			}
			t.Error("the journal does not show it")
		})
	}
}
