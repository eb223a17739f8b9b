package locks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"lockstep/locks/bootclock"
	"lockstep/locks/redistest"
	"lockstep/locks/space"
)

// quick is a short lease that survives a busy machine: it is renewed every 2 s, and its cutoff is
// 1.2 s.
const quick = 3 * minLease

// renewal bounds how long it takes until the next renewal has got its reply: a third of the lease,
// and a busy machine. An error that no renewal finds is not found at all.
const renewal = quick/renewalsPerLease + 5*time.Second

// opened opens a client with a quick lease in a new space, and closes it when the test ends.
func opened(t testing.TB, rdb redis.UniversalClient, namespace string) *Client {
	t.Helper()
	o := Options{Namespace: namespace, Name: "test", Lease: quick, Grace: -1}
	c, err := Open(t.Context(), rdb, o)
	for range 30 { // on a busy machine a command may take longer than Open allows
		if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded) {
			break
		}
		c, err = Open(t.Context(), rdb, o)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Second)
		defer cancel()
		_ = c.Close(ctx)
	})
	return c
}

// patient bounds what no test judges, such as a close: a busy machine may stall for a minute.
const patient = 3 * time.Minute

// eventually returns how long it took until a condition held.
func eventually(t testing.TB, what string, holds func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for time.Since(began) < 30*time.Second {
		if holds() {
			return time.Since(began)
		}
		time.Sleep(2 * time.Millisecond)
	}
	t.Fatalf("not within 30 s: %s", what)
	return 0
}

func (c *Client) listing(t testing.TB) *Listing {
	t.Helper()
	listing, err := c.space.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return listing
}

// raw runs a script as an intruder would send it.
func (c *Client) raw(t testing.TB, script space.Script, args ...any) []string {
	t.Helper()
	return c.rawText(t, script.Redis(), args...)
}

func (c *Client) rawText(t testing.TB, script *redis.Script, args ...any) []string {
	t.Helper()
	reply, err := space.RunText(t.Context(), c.rdb, script, c.space.keys, args...)
	if err != nil {
		t.Fatal(err)
	}
	return texts(reply)
}

func texts(r space.Reply) []string {
	out := make([]string, len(r))
	for i := range r {
		out[i] = r.At(i)
	}
	return out
}

// asks returns the arguments of an acquire of exclusive items, without special options.
func asks(session, id string, wait, patience int64, items ...string) []any {
	args := []any{session, id, fmt.Sprintf("%d\x1f%d\x1f\x1f", wait, patience), "", strings.Join(items, "\x1f")}
	for _, item := range items {
		args = append(args, strings.TrimPrefix(item, "x"))
	}
	return args
}

// exclusively returns an exclusive bundle of names.
func exclusively(names ...string) []Item {
	items := make([]Item, len(names))
	for i, name := range names {
		items[i] = Item{Name: name, Mode: ModeExclusive}
	}
	return items
}

// soak multiplies the length of tests: LOCKSTEP_SOAK=100 go test.
func soak() int {
	n, _ := strconv.Atoi(os.Getenv("LOCKSTEP_SOAK"))
	return max(1, n)
}

// keepBusy keeps requests of the client in flight, until the test ends.
func (c *Client) keepBusy(t testing.TB) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for i := range 4 {
		running.Go(func() {
			for ctx.Err() == nil {
				hold, err := c.Acquire(ctx, Exclusive(fmt.Sprint("busy", i%2)))
				if err != nil {
					continue
				}
				_ = hold.Release()
			}
		})
	}
	t.Cleanup(func() { cancel(); running.Wait() })
}

func TestHoldWithoutARequestIsReleasedWithinARenewal(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c := opened(t, rdb, redistest.Namespace(t))
		mine, err := c.Acquire(t.Context(), Exclusive("mine"))
		if err != nil {
			t.Fatal(err)
		}
		session := string(c.Session())
		stray := session + ".777"
		if got := c.raw(t, space.Acquire, asks(session, stray, 0, 0, "xa")...); got[0] != "granted" {
			t.Fatalf("got %q", got)
		}
		if got := c.raw(t, space.Acquire, asks(session, stray+"8", 0, 0, "xmine")...); got[0] != "waiting" {
			t.Fatalf("got %q", got)
		}
		took := eventually(t, "the strays are removed", func() bool {
			l := c.listing(t)
			return len(l.Holds) == 1 && len(l.Waits) == 0
		})
		if took > renewal {
			t.Errorf("took %s, want one renewal", took)
		}
		if err := mine.Release(); err != nil {
			t.Errorf("the hold that was asked for: %v", err)
		}
	})
}

// TestLateAcquireIsReleasedWithinARenewal makes the acquire of an abandoned request arrive after
// its cancellation. On a busy session the count of a renewal cannot show that; the suspicion of the
// request can.
func TestLateAcquireIsReleasedWithinARenewal(t *testing.T) {
	t.Parallel()
	for _, busy := range []bool{false, true} {
		t.Run(fmt.Sprint("busy ", busy), func(t *testing.T) {
			t.Parallel()
			c := opened(t, redistest.Client(t), redistest.Namespace(t))
			if busy {
				c.keepBusy(t)
			}
			s, _, err := c.current()
			if err != nil {
				t.Fatal(err)
			}
			r, err := s.begin(exclusively("a"))
			if err != nil {
				t.Fatal(err)
			}
			s.mu.Lock()
			r.doubt = true // it was sent, and got no reply
			s.mu.Unlock()
			s.abandon(t.Context(), r)
			eventually(t, "the cancellation was answered", func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return r.state == over
			})
			if got := c.raw(t, space.Acquire, asks(string(s.id), string(r.id), 0, 0, "xa")...); got[0] != "granted" {
				t.Fatalf("got %q", got)
			}
			took := eventually(t, "the late hold is released", func() bool {
				return !slices.ContainsFunc(c.listing(t).Holds, func(h HoldRecord) bool { return h.ID == r.id })
			})
			if took > renewal {
				t.Errorf("took %s, want one renewal", took)
			}
		})
	}
}

func TestHoldThatRedisLostIsLost(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c := opened(t, rdb, redistest.Namespace(t))
		hold, err := c.Acquire(t.Context(), Exclusive("a"))
		if err != nil {
			t.Fatal(err)
		}
		other, err := c.Acquire(t.Context(), Exclusive("b"))
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		c.raw(t, space.Release, string(hold.ID()))
		<-hold.Context().Done()
		if took := time.Since(began); took > renewal {
			t.Errorf("took %s, want one renewal", took)
		}
		if cause := context.Cause(hold.Context()); !errors.Is(cause, ErrLost) {
			t.Errorf("got cause %v, want ErrLost", cause)
		}
		if err := hold.Release(); !errors.Is(err, ErrLost) {
			t.Errorf("got %v from Release, want ErrLost", err)
		}
		if hold.KillBy() > bootclock.Now() {
			t.Error("KillBy of the lost hold lies in the future")
		}
		if other.Context().Err() != nil {
			t.Error("the other hold ended too")
		}
		if err := other.Release(); err != nil {
			t.Error(err)
		}
	})
}

// silent is release without its messages.
var silent = sync.OnceValue(func() *redis.Script {
	return redis.NewScript(strings.Replace(space.Release.Source(space.Format), "call('PUBLISH', ", "select('#', ", 1))
})

func TestGrantIsFoundWithoutItsMessage(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		ns := redistest.Namespace(t)
		c, other := opened(t, rdb, ns), opened(t, rdb, ns)
		hold, err := other.Acquire(t.Context(), Exclusive("a"))
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan *Hold, 1)
		go func() {
			defer close(got)
			hold, err := c.Acquire(t.Context(), Exclusive("a"))
			if err != nil {
				t.Error(err)
				return
			}
			got <- hold
		}()
		eventually(t, "it waits", func() bool { return len(c.listing(t).Waits) == 1 })
		began := time.Now()
		c.rawText(t, silent(), string(hold.ID()))
		granted := <-got
		if took := time.Since(began); took > renewal {
			t.Errorf("took %s, want one renewal", took)
		}
		if granted == nil || granted.Token() <= hold.Token() {
			t.Errorf("got %v", granted)
		}
	})
}

func TestWaitThatRedisLostIsQueuedAgain(t *testing.T) {
	t.Parallel()
	c := opened(t, redistest.Client(t), redistest.Namespace(t))
	hold, err := c.Acquire(t.Context(), Exclusive("a"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		hold, err := c.Acquire(t.Context(), Exclusive("a"))
		if err == nil {
			err = hold.Release()
		}
		done <- err
	}()
	var wait []WaitRecord
	eventually(t, "it waits", func() bool { wait = c.listing(t).Waits; return len(wait) == 1 })
	c.raw(t, space.Release, string(wait[0].Request))
	took := eventually(t, "it waits again", func() bool {
		again := c.listing(t).Waits
		return len(again) == 1 && again[0].Ticket > wait[0].Ticket
	})
	if took > renewal {
		t.Errorf("took %s, want one renewal", took)
	}
	if err := hold.Release(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestWaitThatEndsBeforeItsReplyIsHandledIsQueuedAgain has the message that a wait was taken out of
// the queues overtake the reply that it waits, on the way to the caller.
func TestWaitThatEndsBeforeItsReplyIsHandledIsQueuedAgain(t *testing.T) {
	t.Parallel()
	c := opened(t, redistest.Client(t), redistest.Namespace(t))
	hold, err := c.Acquire(t.Context(), Exclusive("a"))
	if err != nil {
		t.Fatal(err)
	}
	o, err := newSpec([]Part{Exclusive("a")})
	if err != nil {
		t.Fatal(err)
	}
	s := hold.request.session
	for range 20 { // the caller may happen to handle the reply first
		r, err := s.begin(o.items)
		if err != nil {
			t.Fatal(err)
		}
		acq := &acquisition{client: c, spec: o, nest: &nest{rest: o.items}, began: time.Now()}
		reply, err := space.Run(t.Context(), c.rdb, space.Acquire, c.space.keys, acq.args(r)...)
		if err != nil || reply.At(0) != "waiting" {
			t.Fatalf("got %q, %v", reply, err)
		}
		_, a := s.answered(t.Context(), r, outcome{reply: reply})
		c.raw(t, space.Release, string(r.id))
		s.unqueued(r.id, 0)
		answers := make(chan outcome, 1)
		answers <- a
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := acq.await(ctx, s, r, nil, answers)
			done <- err
		}()
		eventually(t, "it waits again", func() bool { return len(c.listing(t).Waits) == 1 })
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		eventually(t, "it has left the queue", func() bool { return len(c.listing(t).Waits) == 0 })
	}
	if err := hold.Release(); err != nil {
		t.Error(err)
	}
}

// calls counts how often a client has sent a script and got a reply.
type calls struct {
	hash string // "": of all of them
	n    atomic.Int64
}

func (h *calls) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *calls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if args := cmd.Args(); len(args) > 1 && args[1] == h.hash || h.hash == "" && cmd.Name() == "evalsha" {
			h.n.Add(1)
		}
		return err
	}
}

func (h *calls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// interlude calls a function after the first reply to a script, before the client gets it.
type interlude struct {
	hash string
	once sync.Once
	call func()
}

func (h *interlude) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *interlude) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if args := cmd.Args(); err == nil && len(args) > 1 && args[1] == h.hash {
			h.once.Do(h.call)
		}
		return err
	}
}

func (h *interlude) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestTakenLockEndsTheWorkThatHasNotBegun takes a lock before its holder has the hold. Neither a
// comparison that has read the hold already nor a later request to release it may hide that.
func TestTakenLockEndsTheWorkThatHasNotBegun(t *testing.T) {
	t.Parallel()
	take, ask := space.Asked{Force: Take, Revocation: Revocation{By: "ann"}}, space.Asked{Force: Ask}
	for name, test := range map[string]struct{ before, during, after []space.Asked }{
		"before the comparison": {before: []space.Asked{take}},
		"during the comparison": {during: []space.Asked{take}},
		"after a request":       {before: []space.Asked{ask}, during: []space.Asked{take}},
		"before a request":      {after: []space.Asked{take, ask}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rdb := redistest.Client(t)
			c := opened(t, rdb, redistest.Namespace(t))
			if err := space.Generation.Redis().Load(t.Context(), rdb).Err(); err != nil {
				t.Fatal(err)
			}
			s, _, err := c.current()
			if err != nil {
				t.Fatal(err)
			}
			r, err := s.begin(exclusively("a"))
			if err != nil {
				t.Fatal(err)
			}
			got := c.raw(t, space.Acquire, asks(string(s.id), string(r.id), 0, 0, "xa")...)
			if got[0] != "granted" {
				t.Fatalf("got %q", got)
			}
			token, err := ParseToken(got[1])
			if err != nil {
				t.Fatal(err)
			}
			say := func(messages []space.Asked) {
				for _, news := range messages {
					s.revoked(r.id, news, 0)
				}
			}
			for _, news := range test.before { // the listing has them, too
				if _, err := c.Space().Revoke(t.Context(), "a", token, news.Force, news.Revocation); err != nil {
					t.Fatal(err)
				}
			}
			during := &interlude{hash: space.Generation.Hash(), call: func() { say(test.during) }}
			c.rdb.AddHook(during)
			if orphans, err := s.compareTable(t.Context(), 0); err != nil || len(orphans) > 0 {
				t.Fatalf("got %v, %v", orphans, err)
			}
			say(test.after)
			during.once.Do(func() { t.Error("the comparison did not ask for the generation: the test proves nothing") })
			hold, _ := s.admit(t.Context(), r, grant{token, time.Now()}, &spec{items: r.items}, nil)
			if cause := context.Cause(hold.Context()); !errors.Is(cause, ErrRevoked) {
				t.Errorf("got cause %v of a lock that was taken", cause)
			}
			if why := hold.Why(); why == nil || *why != take.Revocation {
				t.Errorf("got %+v", why)
			}
			_ = hold.Release()
		})
	}
}

func TestBusySessionIsNotComparedAllTheTime(t *testing.T) {
	t.Parallel()
	c := opened(t, redistest.Client(t), redistest.Namespace(t))
	compared, renewed := &calls{hash: space.List.Hash()}, &calls{hash: space.Renew.Hash()}
	c.rdb.AddHook(compared)
	c.beat.AddHook(renewed)
	c.keepBusy(t)
	for i := range 5 { // and some that stay
		if _, err := c.Acquire(t.Context(), Exclusive(fmt.Sprint("stays", i))); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "some renewals", func() bool { return renewed.n.Load() > compareEvery })
	// A message may be late on a busy machine, so one more comparison is not a fault; one per
	// renewal would be. Each lists the holds and the waits.
	if n, of := compared.n.Load(), renewed.n.Load(); n >= 2*of {
		t.Errorf("listed %d times in %d renewals, want fewer comparisons than renewals", n, of)
	}
}

// TestLateCopyOnABusySessionIsReleased applies an acquire once more after its hold was released,
// while other requests keep the counts of the renewals from proving anything.
func TestLateCopyOnABusySessionIsReleased(t *testing.T) {
	t.Parallel()
	c := opened(t, redistest.Client(t), redistest.Namespace(t))
	c.keepBusy(t)
	for i := range 3 {
		name := fmt.Sprint("a", i)
		hold, err := c.Acquire(t.Context(), Exclusive(name))
		if err != nil {
			t.Fatal(err)
		}
		if err := hold.Release(); err != nil {
			t.Fatal(err)
		}
		if got := c.raw(t, space.Acquire, asks(string(hold.Session()), string(hold.ID()), 0, 0, "x"+name)...); got[0] != "granted" {
			t.Fatalf("got %q", got)
		}
		took := eventually(t, "the late hold is released", func() bool {
			return !slices.ContainsFunc(c.listing(t).Holds, func(h HoldRecord) bool { return h.ID == hold.ID() })
		})
		if most := renewal + compareEvery*quick/renewalsPerLease; took > most {
			t.Errorf("took %s, want %s at most", took, most)
		}
	}
}

func TestSubscriberReconnects(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{}) // its own: connections are killed
	rdb := server.Client(t)
	ns := redistest.Namespace(t)
	c, other := opened(t, rdb, ns), opened(t, rdb, ns)
	for range 3 {
		hold, err := other.Acquire(t.Context(), Exclusive("a"))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			hold, err := c.Acquire(t.Context(), Exclusive("a"))
			if err == nil {
				err = hold.Release()
			}
			done <- err
		}()
		eventually(t, "it waits", func() bool { return len(c.listing(t).Waits) == 1 })
		if err := rdb.Do(t.Context(), "CLIENT", "KILL", "TYPE", "pubsub").Err(); err != nil {
			t.Fatal(err)
		}
		if err := hold.Release(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

// TestLateSessionIsCutOff empties the space and grants a lock to a new client before the old one
// notices: its holds may have been granted and released, so they must not be re-asserted.
func TestLateSessionIsCutOff(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	rdb := server.Client(t)
	c := opened(t, rdb, "ns")
	hold, err := c.Acquire(t.Context(), Exclusive("a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Extension().SetCard(t.Context(), []byte(`{"card": 2}`)); err != nil {
		t.Fatal(err)
	}
	got := make(chan *Hold, 1)
	go func() {
		defer close(got)
		hold, err := c.Acquire(t.Context(), Exclusive("a"))
		if err != nil {
			t.Error(err)
			return
		}
		got <- hold
	}()
	eventually(t, "it waits", func() bool { return len(c.listing(t).Waits) == 1 })
	request, err := c.Extension().Begin()
	if err != nil {
		t.Fatal(err)
	}
	first := c.Session()
	began := time.Now()
	pipe := rdb.TxPipeline()
	pipe.FlushAll(t.Context())
	space.Open.Redis().Eval(t.Context(), pipe, c.space.keys, "new.x", 60_000, "{}", "another space", "0")
	granted := space.Acquire.Redis().Eval(t.Context(), pipe, c.space.keys, asks("new.x", "new.x.1", -1, 0, "xb")...)
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := texts(space.ToReply(granted.Val())); got[0] != "granted" {
		t.Fatalf("got %q for a new client", got)
	}
	<-hold.Context().Done()
	if took := time.Since(began); took > renewal {
		t.Errorf("took %s, want one renewal", took)
	}
	if cause := context.Cause(hold.Context()); !errors.Is(cause, ErrLost) {
		t.Errorf("got cause %v", cause)
	}
	<-request.Done()
	lost := request.Granted(t.Context(), Grant{Token: 1, Items: exclusively("z")})
	if cause := context.Cause(lost.Context()); !errors.Is(cause, ErrLost) {
		t.Errorf("got cause %v for a hold that was granted on a dead session", cause)
	}
	if err := lost.Release(); !errors.Is(err, ErrLost) {
		t.Errorf("got %v from its release", err)
	}
	second := <-got
	if second == nil {
		t.Fatal("the waiting request was not granted in the next session")
	}
	if second.Token() <= hold.Token() || second.Session() == first || c.Session() != second.Session() {
		t.Errorf("got token %s after %s in session %s after %s", second.Token(), hold.Token(), second.Session(), first)
	}
	if err := hold.Release(); !errors.Is(err, ErrLost) {
		t.Errorf("got %v from the release of the lost hold", err)
	}
	if second.Context().Err() != nil {
		t.Error("the release of the lost hold ended the new one")
	}
	sessions, _, err := c.space.Sessions(t.Context())
	ours := slices.IndexFunc(sessions, func(s SessionRecord) bool { return s.ID == second.Session() })
	if err != nil || len(sessions) != 2 || ours < 0 || string(sessions[ours].Card) != fmt.Sprintf(`{"format":%d,"card":2}`, space.Format) {
		t.Errorf("got sessions %+v, %v; want the new one with the card that was set last", sessions, err)
	}
}

// TestRequestOfAnotherScript does what a package does that grants by its own script.
func TestRequestOfAnotherScript(t *testing.T) {
	t.Parallel()
	c := opened(t, redistest.Client(t), redistest.Namespace(t))
	type key struct{}
	parent := context.WithValue(t.Context(), key{}, 1)
	grant := func(names ...string) *Hold {
		t.Helper()
		r, err := c.Extension().Begin()
		if err != nil {
			t.Fatal(err)
		}
		items := make([]string, len(names))
		for i, name := range names {
			items[i] = "x" + name
		}
		args := asks(string(r.Session()), string(r.ID()), -1, 0, items...)
		got := c.raw(t, space.Acquire, args...)
		if got[0] != "granted" {
			t.Fatalf("got %q", got)
		}
		token, err := ParseToken(got[1])
		if err != nil {
			t.Fatal(err)
		}
		return r.Granted(parent, Grant{Token: token, Since: time.Now(), Items: exclusively(names...)})
	}
	hold := grant("b", "a")
	if hold.Context().Value(key{}) != 1 || hold.Context().Err() != nil || !slices.Equal(hold.Names(), []string{"a", "b"}) {
		t.Errorf("got hold %+v", hold)
	}
	if err := hold.Release(); err != nil {
		t.Error(err)
	}
	hold = grant("a")
	c.Extension().Freeing(hold)
	if err := hold.Release(); err != nil || len(c.listing(t).Holds) != 0 {
		t.Errorf("got %v from Release after Freeing, and the hold is listed: %v", err, len(c.listing(t).Holds) != 0)
	}
	hold = grant("a")
	c.Extension().Freeing(hold)
	c.raw(t, space.Release, string(hold.ID())) // as a finish does
	s, _, err := c.current()
	if err != nil {
		t.Fatal(err)
	}
	s.recompare()
	eventually(t, "the table was compared", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return !s.compare
	})
	if hold.Context().Err() != nil || hold.KillBy() < bootclock.Now() {
		t.Error("the hold that is being freed counts as lost")
	}
	c.Extension().Released(hold)
	if hold.Context().Err() == nil {
		t.Error("the context is alive after Released")
	}
	if err := hold.Release(); err != nil {
		t.Errorf("got %v from Release after Released", err)
	}
	r, err := c.Extension().Begin()
	if err != nil {
		t.Fatal(err)
	}
	r.Drop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) != 0 || s.counts.listed != 0 || s.counts.stored != 0 {
		t.Errorf("the table is not empty: %+v, %+v", s.requests, s.counts)
	}
}

// TestCloseLeavesNothing does not run in parallel, since it counts goroutines.
func TestCloseLeavesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		ns := redistest.Namespace(t)
		if err := rdb.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		before := goleak.IgnoreCurrent()
		c, err := Open(t.Context(), rdb, Options{Namespace: ns})
		if err != nil {
			t.Fatal(err)
		}
		var held []*Hold
		for i := range 250 {
			hold, err := c.Acquire(t.Context(), Exclusive(fmt.Sprint(i)))
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, hold)
		}
		waiting := make(chan error, 1)
		go func() {
			_, err := c.Acquire(t.Context(), Exclusive("0"))
			waiting <- err
		}()
		eventually(t, "it waits", func() bool { return len(c.listing(t).Waits) == 1 })
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-waiting; !errors.Is(err, ErrClosed) {
			t.Errorf("got %v for the waiting request, want ErrClosed", err)
		}
		for _, hold := range held {
			if !errors.Is(context.Cause(hold.Context()), ErrClosed) {
				t.Fatalf("got cause %v, want ErrClosed", context.Cause(hold.Context()))
			}
			if err := hold.Release(); err != nil {
				t.Fatalf("release after close: %v", err)
			}
		}
		if err := c.Close(t.Context()); err != nil {
			t.Errorf("second close: %v", err)
		}
		_, acquireErr := c.Acquire(t.Context(), Exclusive("a"))
		_, tryErr := c.TryAcquire(t.Context(), Exclusive("a"))
		_, beginErr := c.Extension().Begin()
		for _, err := range []error{acquireErr, tryErr, beginErr, c.Extension().SetCard(t.Context(), []byte("{}"))} {
			if !errors.Is(err, ErrClosed) {
				t.Errorf("got %v after close, want ErrClosed", err)
			}
		}
		goleak.VerifyNone(t, before)
		for _, key := range space.KeysOf(ns)[:6] { // not meta and the last token
			if n, err := rdb.Exists(t.Context(), key).Result(); err != nil || n != 0 {
				t.Errorf("left over: %s (%v)", key, err)
			}
		}
	})
}

// TestNoTwoHoldersAtATime makes many goroutines of several clients take random bundles, while the
// server forgets the scripts now and then.
func TestNoTwoHoldersAtATime(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	rdb := server.Client(t)
	resources := []string{"a", "b", "c", "d", "e", "f"}
	inside := make(map[string]*atomic.Int64)
	tokens := make(map[string]*atomic.Int64)
	for _, name := range resources {
		inside[name], tokens[name] = new(atomic.Int64), new(atomic.Int64)
	}
	var clients []*Client
	for range 3 {
		clients = append(clients, opened(t, rdb, "ns"))
	}
	var grants, busy atomic.Int64
	var running sync.WaitGroup
	for i := range 24 {
		random := rand.New(rand.NewPCG(uint64(i), 1))
		c := clients[i%len(clients)]
		running.Go(func() {
			for range 40 * soak() {
				bundle := make([]string, 1+random.IntN(3))
				for j := range bundle {
					bundle[j] = resources[random.IntN(len(resources))]
				}
				parts := []Part{Exclusive(bundle...)}
				ctx, cancel := context.WithCancel(t.Context())
				switch random.IntN(6) {
				case 0:
					parts = append(parts, Wait(0))
				case 1:
					parts = append(parts, Wait(time.Duration(random.IntN(4))*time.Millisecond))
				case 2:
					time.AfterFunc(time.Duration(random.IntN(4))*time.Millisecond, cancel)
				}
				hold, err := c.Acquire(ctx, parts...)
				if err != nil {
					busy.Add(1)
					cancel()
					// on a busy machine, the last reply may be late
					if !errors.Is(err, ErrBusy) && !errors.Is(err, context.Canceled) && !strings.Contains(err.Error(), "no reply within") {
						t.Error(err)
					}
					continue
				}
				grants.Add(1)
				for _, name := range hold.Names() {
					if n := inside[name].Add(1); n != 1 {
						t.Errorf("%d holders of %s", n, name)
					}
					if last := tokens[name].Swap(int64(hold.Token())); last >= int64(hold.Token()) {
						t.Errorf("token %s of %s after %d", hold.Token(), name, last)
					}
				}
				if random.IntN(3) == 0 {
					time.Sleep(time.Duration(random.IntN(500)) * time.Microsecond)
				}
				for _, name := range hold.Names() {
					inside[name].Add(-1)
				}
				if err := hold.Release(); err != nil {
					t.Error(err)
				}
				cancel()
				if random.IntN(50) == 0 {
					if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	running.Wait()
	if grants.Load() == 0 {
		t.Error("nothing was granted")
	}
	t.Logf("%d grants, %d refusals", grants.Load(), busy.Load())
	took := eventually(t, "all is given back", func() bool {
		l := clients[0].listing(t)
		return len(l.Holds) == 0 && len(l.Waits) == 0
	})
	if took > renewal {
		t.Errorf("the last was given back after %s", took)
	}
}

func TestHoldCutOffByItsLeaseKeepsItsKillTime(t *testing.T) {
	t.Parallel()
	c := opened(t, redistest.Client(t), redistest.Namespace(t))
	hold, err := c.Acquire(t.Context(), Exclusive("a"))
	if err != nil {
		t.Fatal(err)
	}
	dog := hold.request.session.dog
	dog.lose(cutOff, errors.New("no renewal succeeds"))
	if hold.Context().Err() == nil {
		t.Error("the context is alive")
	}
	if hold.KillBy() != dog.killBy() {
		t.Errorf("KillBy is %s after the cut-off, want still %s: processes may end in order", hold.KillBy(), dog.killBy())
	}
	dog.lose(ended, errors.New("the lease has run out"))
	if hold.KillBy() > 0 {
		t.Errorf("KillBy is %s after the end, want it past", hold.KillBy())
	}
}
