package locks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
	"lockstep/locks/space"
)

// A command that its sender abandons costs its connection, and the next one waits for another.
func TestLockFarFromRedisKeepsItsConnection(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	watch, far := server.Client(t), server.Proxy(t)
	opened := func() string {
		stats, err := watch.Info(t.Context(), "stats").Result()
		_, after, ok := strings.Cut(stats, "total_connections_received:")
		if err != nil || !ok {
			t.Fatalf("got %q, %v", stats, err)
		}
		n, _, _ := strings.Cut(after, "\r")
		return n
	}
	pair := func(c *Client) {
		t.Helper()
		before := opened()
		hold, err := c.Acquire(t.Context(), Exclusive("a"))
		if err != nil {
			t.Fatal(err)
		}
		if err := hold.Release(); err != nil {
			t.Fatal(err)
		}
		if after := opened(); after != before {
			t.Errorf("%s connections were opened before it, and %s after it", before, after)
		}
	}
	delay := redistest.Faults{RequestDelay: 2 * maxInline}
	for name, test := range map[string]struct {
		atOpen redistest.Faults
		learn  func(*Client)
	}{
		"from the start": {delay, func(*Client) {}},
		"since a while": {redistest.Faults{}, func(c *Client) {
			far.Set(delay)
			for range 2 { // the next renewal may have been sent before
				s, _, err := c.current()
				if err != nil {
					t.Fatal(err)
				}
				s.mu.Lock()
				renewed := s.renewed
				s.mu.Unlock()
				s.dog.hurry()
				<-renewed
			}
		}},
	} {
		far.Set(test.atOpen)
		c, err := Open(t.Context(), far.Client(t), Options{Lease: time.Minute})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
		test.learn(c)
		pair(c)
		far.Set(redistest.Faults{})
	}
}

// In quiet times only renewals show how far Redis is. The next one has its reply or is abandoned a
// third of the lease and a try after the last one.
func TestClientKnowsThatRedisIsFarUntilTheNextRenewal(t *testing.T) {
	t.Parallel()
	for _, lease := range []time.Duration{minLease, defaultLease, ClusterLease, maxLease} {
		t.Run(lease.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSender(nil, space.KeysOf("ns"), lease, minTry, func(func()) bool { return false })
				s.took(maxInline)
				time.Sleep(lease/renewalsPerLease + tryOf(lease) - time.Millisecond)
				if !s.slow() {
					t.Error("the first lock before the renewal is sent as if Redis were near")
				}
			})
		})
	}
}

// A gate keeps what callers send themselves until it is opened, so that all requests of others are
// collected meanwhile. It counts the scripts by hash, and can break an attempt to send collected
// ones.
type gate struct {
	open chan struct{}

	mu    sync.Mutex
	sent  map[string]int
	after error // of the next pipeline: it is sent, and its sender gets this error
}

func (g *gate) DialHook(next redis.DialHook) redis.DialHook { return next }

func (g *gate) note(cmds ...redis.Cmder) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, cmd := range cmds {
		if args := cmd.Args(); len(args) > 1 {
			g.sent[fmt.Sprint(args[1])]++
		}
	}
}

func (g *gate) count(script space.Script) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sent[script.Hash()]
}

func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); len(args) > 1 && (args[1] == space.Acquire.Hash() || args[1] == space.Release.Hash()) {
			<-g.open
			ctx = context.WithoutCancel(ctx) // it has waited here, not for Redis
		}
		g.note(cmd)
		return next(ctx, cmd)
	}
}

func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		g.note(cmds...)
		err := next(ctx, cmds)
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.after != nil {
			err, g.after = g.after, nil
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
		}
		return err
	}
}

// together makes calls so that those after the first two are sent together.
func (c *Client) together(t *testing.T, g *gate, calls ...func()) {
	t.Helper()
	g.open = make(chan struct{})
	var running sync.WaitGroup
	defer running.Wait()
	defer close(g.open)
	for i, call := range calls {
		running.Go(call)
		eventually(t, "the calls", func() bool {
			inFlight, queued := c.sender.commit.Outstanding()
			return inFlight+queued == i+1
		})
	}
}

// gated opens a client behind a gate. The server has the scripts already, so each is sent once.
func gated(t *testing.T) (*Client, *gate) {
	t.Helper()
	rdb := redistest.Client(t)
	for _, script := range []space.Script{space.Acquire, space.AcquireAll, space.Release, space.ReleaseAll} {
		if err := script.Redis().Load(t.Context(), rdb).Err(); err != nil {
			t.Fatal(err)
		}
	}
	c := opened(t, rdb, redistest.Namespace(t))
	g := &gate{sent: make(map[string]int)}
	c.rdb.AddHook(g)
	return c, g
}

// acquireTogether takes one lock after the other, each of 1 to 3 unique names, nearly all by one
// script.
func (c *Client) acquireTogether(t *testing.T, g *gate, n int) []*Hold {
	t.Helper()
	held := make([]*Hold, n)
	var calls []func()
	for i := range n {
		names := []string{fmt.Sprint("a", i), fmt.Sprint("b", i), fmt.Sprint("c", i)}[:1+i%3]
		calls = append(calls, func() {
			var err error
			if held[i], err = c.Acquire(t.Context(), Exclusive(names...), Info(fmt.Appendf(nil, `{"n":%d}`, i))); err != nil {
				t.Error(err)
			}
		})
	}
	c.together(t, g, calls...)
	if t.Failed() {
		t.FailNow()
	}
	return held
}

func (c *Client) releaseTogether(t *testing.T, g *gate, holds []*Hold) {
	t.Helper()
	var calls []func()
	for _, hold := range holds {
		calls = append(calls, func() {
			if err := hold.Release(); err != nil {
				t.Error(err)
			}
		})
	}
	c.together(t, g, calls...)
}

// sameHolds compares the content of Redis with the holds.
func (c *Client) sameHolds(t *testing.T, holds []*Hold) {
	t.Helper()
	listing, err := c.Space().Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	records := listing.Holds
	if len(records) != len(holds) {
		t.Errorf("redis has %d holds, want %d", len(records), len(holds))
	}
	tokens := make(map[Token]bool)
	for _, hold := range holds {
		i := slices.IndexFunc(records, func(r HoldRecord) bool { return r.ID == hold.ID() })
		if i < 0 {
			t.Errorf("redis does not have %s", hold.ID())
			continue
		}
		r := records[i]
		if r.Token != hold.Token() || !slices.Equal(r.Items, hold.Items()) || !r.Since.Equal(hold.Since()) || tokens[r.Token] {
			t.Errorf("redis has %+v, want token %s since %s, items %v, a token of its own", r, hold.Token(), hold.Since(), hold.Items())
		}
		tokens[r.Token] = true
	}
}

func TestRequestsOfManyShareOneScript(t *testing.T) {
	t.Parallel()
	c, g := gated(t)
	held := c.acquireTogether(t, g, 22)
	c.sameHolds(t, held)
	c.releaseTogether(t, g, held)
	c.sameHolds(t, nil)
	for _, script := range []struct {
		name      string
		one, many space.Script
	}{{"acquire", space.Acquire, space.AcquireAll}, {"release", space.Release, space.ReleaseAll}} {
		if one, many := g.count(script.one), g.count(script.many); one != 2 || many != 1 {
			t.Errorf("%s: %d scripts for one and %d for many, want 2 and 1", script.name, one, many)
		}
	}
}

// TestServerThatForgotTheScriptsGetsThemAgain flushes the scripts of calls that are about to be
// sent.
func TestServerThatForgotTheScriptsGetsThemAgain(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{}) // its own: its scripts are flushed
	c := opened(t, server.Client(t), "ns")
	g := &gate{sent: make(map[string]int)}
	c.rdb.AddHook(g)
	flush := func() {
		if err := server.Client(t).ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	flush()
	held := c.acquireTogether(t, g, 8)
	c.sameHolds(t, held)
	flush()
	c.releaseTogether(t, g, held)
	c.sameHolds(t, nil)
}

// TestRequestsThatASharedScriptCannotServeAreSentAlone has some requests for held resources, and
// one for a resource that another one of the batch wants.
func TestRequestsThatASharedScriptCannotServeAreSentAlone(t *testing.T) {
	t.Parallel()
	c, g := gated(t)
	other := opened(t, redistest.Client(t), c.namespace)
	inTheWay, err := other.Acquire(t.Context(), Exclusive("held"))
	if err != nil {
		t.Fatal(err)
	}
	held := make([]*Hold, 7)
	take := func(i int, parts ...Part) func() {
		return func() {
			var err error
			if held[i], err = c.Acquire(t.Context(), parts...); err != nil {
				t.Error(err)
			}
		}
	}
	busy := func(parts ...Part) func() {
		return func() {
			if hold, err := c.TryAcquire(t.Context(), parts...); !errors.Is(err, ErrBusy) {
				t.Errorf("got %v, %v, want busy", hold, err)
			}
		}
	}
	c.together(t, g, take(0, Exclusive("first")), take(1, Exclusive("second")),
		take(2, Exclusive("free")), busy(Exclusive("held")), busy(Exclusive("more", "held")), take(3, Exclusive("more")),
		take(4, Shared("read")), take(5, Exclusive("x", "y")), busy(Exclusive("y", "z")), take(6, Exclusive("z")))
	if t.Failed() {
		t.FailNow()
	}
	c.sameHolds(t, append(held, inTheWay))

	// A waiter is granted what the releases free, although they could share one script.
	granted := make(chan *Hold, 1)
	go func() {
		hold, err := other.Acquire(t.Context(), Exclusive("x", "z"))
		if err != nil {
			t.Error(err)
		}
		granted <- hold
	}()
	eventually(t, "a wait", func() bool { return len(other.listing(t).Waits) == 1 })
	c.releaseTogether(t, g, held)
	c.sameHolds(t, []*Hold{inTheWay, <-granted})
}

// TestSharedScriptWithALostReplyIsSentAgain loses the reply to a script for many that was applied.
func TestSharedScriptWithALostReplyIsSentAgain(t *testing.T) {
	t.Parallel()
	c, g := gated(t)
	g.after = io.ErrUnexpectedEOF
	held := c.acquireTogether(t, g, 12)
	c.sameHolds(t, held)
	c.sender.mu.Lock()
	// If one script asked for them again, they would be refused, because they are held.
	c.sender.aloneUntil = time.Time{}
	c.sender.mu.Unlock()
	g.mu.Lock()
	g.after = io.ErrUnexpectedEOF
	g.mu.Unlock()
	c.releaseTogether(t, g, held)
	c.sameHolds(t, nil)
	if g.after != nil || g.count(space.AcquireAll) == 0 || g.count(space.ReleaseAll) == 0 {
		t.Error("no answer to a script for many was lost: the test proves nothing")
	}
}
