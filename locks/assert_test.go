package locks

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/locks/redistest"
	"lockstep/locks/space"
)

// rival asserts a resource under a token for a session without a client, and returns the reply.
func rival(t *testing.T, c *Client, at generation, token Token) []string {
	t.Helper()
	member := strings.Join([]string{"rival.x\x00rival.x.1", token.String(), "1", "", "", "", "xa"}, "\x1f")
	return c.raw(t, space.Assert, "rival.x", 60_000, "{}", at.id, at.epoch, "the rival's", 10_000, 0, token.String(), "1", member, "")
}

// TestOfTwoHoldersTheHigherTokenWins makes another session assert the same resource, before and
// after the client does.
func TestOfTwoHoldersTheHigherTokenWins(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		for _, stronger := range []bool{true, false} {
			t.Run(fmt.Sprintf("first %v, stronger %v", first, stronger), func(t *testing.T) {
				t.Parallel()
				c := opened(t, redistest.New(t, redistest.Options{}).Client(t), "ns")
				hold, err := c.Acquire(t.Context(), Exclusive("a", "b"))
				if err != nil {
					t.Fatal(err)
				}
				other, err := c.Acquire(t.Context(), Exclusive("c"))
				if err != nil {
					t.Fatal(err)
				}
				token := hold.Token() - 1
				if stronger {
					token = other.Token() + 1
				}
				session := c.Session()
				pipe := c.rdb.TxPipeline()
				pipe.FlushAll(t.Context())
				if first {
					space.Assert.Redis().Eval(t.Context(), pipe, c.space.keys, "rival.x", 60_000, "{}", "", "", "the rival's", 10_000, 0, "0", "1")
				}
				if _, err := pipe.Exec(t.Context()); err != nil {
					t.Fatal(err)
				}
				s, _, err := c.current()
				if err != nil {
					t.Fatal(err)
				}
				at := func() generation {
					known := c.raw(t, space.Generation, string(session))
					return generation{known[0], known[1]}
				}
				if !first {
					eventually(t, "it has said what it holds", func() bool {
						s.mu.Lock()
						defer s.mu.Unlock()
						return s.gen == at() && s.gen.id != ""
					})
				}
				got := rival(t, c, at(), token)
				refused := len(got) > 4
				if !first && refused == stronger {
					t.Errorf("got %q for a rival that came second", got)
				}
				if stronger {
					<-hold.Context().Done()
					if cause := context.Cause(hold.Context()); !errors.Is(cause, ErrLost) {
						t.Errorf("got cause %v", cause)
					}
					if err := hold.Release(); !errors.Is(err, ErrLost) {
						t.Errorf("got %v from Release", err)
					}
				}
				eventually(t, "it has said what it holds", func() bool {
					s.mu.Lock()
					defer s.mu.Unlock()
					return s.gen == at()
				})
				if !stronger {
					if err := hold.Release(); err != nil {
						t.Errorf("the stronger hold: %v", err)
					}
				}
				if err := other.Release(); err != nil || c.Session() != session {
					t.Errorf("the other hold: %v, in session %s after %s", err, c.Session(), session)
				}
				var ids []HoldID
				for _, h := range c.listing(t).Holds {
					ids = append(ids, h.ID)
				}
				if stronger != (len(ids) == 1) || len(ids) > 1 {
					t.Errorf("left are %q", ids)
				}
			})
		}
	}
}

// TestManyHoldsAreReassertedWhileOthersComeAndGo loses all data under a client that has some pages
// of holds and keeps acquiring and releasing. In the end Redis has exactly what it holds.
func TestManyHoldsAreReassertedWhileOthersComeAndGo(t *testing.T) {
	t.Parallel()
	rdb := redistest.New(t, redistest.Options{}).Client(t)
	c := opened(t, rdb, "ns")
	kept := make(map[HoldID]*Hold)
	for i := range 3*assertNames + 7 {
		hold, err := c.Acquire(t.Context(), Exclusive(fmt.Sprint("kept", i)), MaxHold(time.Hour), Info([]byte(`{"n":1}`)))
		if err != nil {
			t.Fatal(err)
		}
		kept[hold.ID()] = hold
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for i := range 8 {
		running.Go(func() {
			for ctx.Err() == nil {
				hold, err := c.Acquire(ctx, Exclusive(fmt.Sprint("busy", i%3)))
				if err != nil {
					continue
				}
				if err := hold.Release(); err != nil && !errors.Is(err, ErrLost) {
					t.Errorf("release: %v", err)
				}
			}
		})
	}
	for range 3 {
		s, _, err := c.current()
		if err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		was := s.gen
		s.mu.Unlock()
		if err := rdb.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it has said what it holds", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.gen != was
		})
	}
	hold, err := c.Acquire(t.Context(), Exclusive("after")) // the grace period is over
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	running.Wait()
	if err := hold.Release(); err != nil {
		t.Error(err)
	}
	for _, hold := range kept {
		if hold.Context().Err() != nil {
			t.Fatalf("%s ended: %v", hold.Names(), context.Cause(hold.Context()))
		}
	}
	eventually(t, "the released holds have ended", func() bool { return len(c.listing(t).Holds) == len(kept) })
	for _, record := range c.listing(t).Holds {
		hold := kept[record.ID]
		if hold == nil || record.Token != hold.Token() || string(record.Info) != `{"n":1}` {
			t.Fatalf("got %+v, want %+v", record, hold)
		}
	}
}

// TestHoldsAreReassertedBesideAnUnansweredRequest loses all data after a script of another package
// was applied and before its reply arrives: the client does not know the bundle of its request yet.
func TestHoldsAreReassertedBesideAnUnansweredRequest(t *testing.T) {
	t.Parallel()
	rdb := redistest.New(t, redistest.Options{}).Client(t)
	c := opened(t, rdb, "ns")
	hold, err := c.Acquire(t.Context(), Exclusive("a"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Extension().Begin()
	if err != nil {
		t.Fatal(err)
	}
	if got := c.raw(t, space.Acquire, asks(string(r.Session()), string(r.ID()), -1, 0, "xb")...); got[0] != "granted" {
		t.Fatalf("got %q", got)
	}
	s := r.session
	s.recompare()
	eventually(t, "the table was compared", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return r.state == held
	})
	s.mu.Lock()
	was := s.gen
	s.mu.Unlock()
	if err := rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	c.Extension().Doubt()
	eventually(t, "it has re-asserted its holds, or lost them", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.gen != was || hold.Context().Err() != nil
	})
	if err := context.Cause(hold.Context()); err != nil {
		t.Fatalf("the hold has ended: %v", err)
	}
	if left := c.listing(t).Holds; len(left) != 1 || left[0].ID != hold.ID() {
		t.Errorf("got %+v, want %s alone", left, hold.ID())
	}
	r.Drop()
	if err := hold.Release(); err != nil {
		t.Error(err)
	}
}

// TestJoinedHoldOutlivesTheLossOfAllData re-asserts a hold that another client has joined.
func TestJoinedHoldOutlivesTheLossOfAllData(t *testing.T) {
	t.Parallel()
	rdb := redistest.New(t, redistest.Options{}).Client(t)
	parent, child := opened(t, rdb, "ns"), opened(t, rdb, "ns")
	hold, err := parent.Acquire(t.Context(), Exclusive("a"))
	if err != nil {
		t.Fatal(err)
	}
	joined, err := child.Join(t.Context(), hold.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	after, err := child.Acquire(t.Context(), Exclusive("b"))
	if err != nil {
		t.Fatal(err)
	}
	if err := after.Release(); err != nil {
		t.Error(err)
	}
	if err := errors.Join(context.Cause(hold.Context()), context.Cause(joined.Context())); err != nil {
		t.Errorf("ended: %v", err)
	}
	if err := errors.Join(joined.Release(), hold.Release()); err != nil {
		t.Error(err)
	}
}

// Undeclare may remove a limit while the limits are declared again, page by page: then its name
// stays an ordinary one.
func TestPermitsThatWereUndeclaredAreNotDeclaredAgain(t *testing.T) {
	t.Parallel()
	ctx, c := t.Context(), opened(t, redistest.Client(t), redistest.Namespace(t))
	if _, err := c.Declare(ctx, "api", PermitLimit{Permits: 2, Version: 1}); err != nil {
		t.Fatal(err)
	}
	at := generation{"another", "1"}
	c.redeclared.gen, c.redeclared.names = at, []string{"undeclared", "api"}
	if err := c.redeclare(ctx, at); err != nil {
		t.Fatal(err)
	}
	declared, err := c.space.Permits(ctx, "api", "undeclared")
	if err != nil || len(declared) != 1 || declared["api"].Permits != 2 {
		t.Errorf("got %+v, %v; want the permits of api alone", declared, err)
	}
}

// TestAnOlderAssertionDoesNotUndoADowngrade: a page of an assertion arrives again after a hold of
// it was downgraded and released, while another hold shares its name. It must not make the hold
// exclusive again, for its end would then free the name under the other one.
func TestAnOlderAssertionDoesNotUndoADowngrade(t *testing.T) {
	t.Parallel()
	c := opened(t, redistest.New(t, redistest.Options{}).Client(t), "ns")
	pipe := c.rdb.TxPipeline()
	pipe.FlushAll(t.Context())
	space.Assert.Redis().Eval(t.Context(), pipe, c.space.keys, "rival.x", 60_000, "{}", "", "", "the rival's", 3_000, 0, "0", "1")
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	known := c.raw(t, space.Generation, "rival.x")
	// The first hold keeps its name for a second after it was granted.
	first := strings.Join([]string{"rival.x\x00rival.x.1", "7", fmt.Sprint(time.Now().UnixMilli()), "0,1000,0", "", "", "xa"}, "\x1f")
	second := strings.Join([]string{"rival.x\x00rival.x.2", "8", "1", "", "", "", "sa"}, "\x1f")
	page := func(member string) []string {
		return c.raw(t, space.Assert, "rival.x", 60_000, "{}", known[0], known[1], "the rival's", 3_000, 0, "8", "1", member, "")
	}
	release := func(id string) []string { return c.raw(t, space.Release, id) }
	for i, step := range []struct {
		reply []string
		want  string
	}{
		{page(first), "ok"}, {c.raw(t, space.Downgrade, "rival.x.1", "a"), "ok"}, {page(second), "ok"},
		{release("rival.x.1"), "released"}, {page(first), "ok"}, {release("rival.x.1"), "released"},
	} {
		if step.reply[0] != step.want || len(step.reply) > 4 {
			t.Errorf("step %d: got %q, want %s", i, step.reply, step.want)
		}
	}
	shared, err := c.Acquire(t.Context(), Shared("a"), Wait(20*time.Second))
	if err != nil {
		t.Fatalf("a third one shares the name: %v", err)
	}
	if err := shared.Release(); err != nil {
		t.Error(err)
	}
	if hold, err := c.TryAcquire(t.Context(), Exclusive("a")); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v, %v while the second hold shares the name, want busy", hold, err)
	}
	release("rival.x.2")
	hold, err := c.Acquire(t.Context(), Exclusive("a"), Wait(20*time.Second))
	if err != nil {
		t.Fatalf("after the end of all holds: %v", err)
	}
	if err := hold.Release(); err != nil {
		t.Error(err)
	}
}
