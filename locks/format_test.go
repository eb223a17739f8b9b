package locks

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

// build returns what a client impersonates to act as a build that writes the given format.
func build(format int) *impersonator {
	others := make(map[*redis.Script]*redis.Script)
	for name, script := range scripts {
		others[script()] = redis.NewScript(sourceFor(name, format))
	}
	return &impersonator{format: format, script: func(script *redis.Script) *redis.Script {
		if other := others[script]; other != nil {
			return other
		}
		return script // it is of that build already
	}}
}

// openBuild opens a client of a build that writes the given format, with the shortest lease.
func openBuild(t *testing.T, rdb redis.UniversalClient, namespace string, format int, more ...func(*Options)) *Client {
	t.Helper()
	o := Options{Namespace: namespace, Name: "test", Lease: minLease, Grace: -1, impersonate: build(format)}
	for _, change := range more {
		change(&o)
	}
	c, err := Open(t.Context(), rdb, o)
	if err != nil {
		t.Fatalf("open a client of format %d: %v", format, err)
	}
	t.Cleanup(func() { closeBuild(t, c) })
	return c
}

func closeBuild(t *testing.T, c *Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

// renewed renews a session and waits until that is done.
func renewed(t *testing.T, c *Client) {
	t.Helper()
	s, _, err := c.current()
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	answer := s.answer
	s.mu.Unlock()
	c.Doubt()
	select {
	case <-answer:
	case <-s.dead:
		t.Fatalf("the session has ended: %v", s.why())
	case <-time.After(20 * time.Second):
		t.Fatal("no renewal was answered for 20s")
	}
}

func wantFormats(t *testing.T, c *Client, when string, want Formats) {
	t.Helper()
	got, err := c.Space().Formats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("%s: got %+v, want %+v", when, got, want)
	}
}

// A newer layout is written only while every live session is of a build that knows it. Later no
// older one is written again.
func TestFormatIsRaisedWhenEveryLiveSessionKnowsIt(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		namespace := redistest.Namespace(t)
		older := openBuild(t, rdb, namespace, 1)
		wantFormats(t, older, "made by format 1", Formats{1, 1})
		newer, another := openBuild(t, rdb, namespace, 2), openBuild(t, rdb, namespace, 2)
		renewed(t, newer)
		renewed(t, older)
		wantFormats(t, newer, "while a session knows format 1 only", Formats{1, 1})
		if got := newer.written.Load(); got != 1 {
			t.Errorf("the newer build writes format %d beside the older one, want 1", got)
		}
		closeBuild(t, older)
		renewed(t, newer)
		wantFormats(t, newer, "when the older build has left", Formats{2, 1})
		renewed(t, another)
		if got := another.written.Load(); got != 2 {
			t.Errorf("another newer build writes format %d after the raise, want 2", got)
		}

		_, err := Open(t.Context(), rdb, Options{Namespace: namespace, impersonate: build(1)})
		var refused *FormatError
		if !errors.Is(err, ErrFormat) || !errors.As(err, &refused) {
			t.Fatalf("the older build came back: got %v, want a FormatError", err)
		}
		if !Refused(err) {
			t.Errorf("%v does not count as a final reply", err)
		}
		if want := (FormatError{Namespace: namespace, Written: "2", Least: 1, Build: 1, reply: refused.reply}); *refused != want {
			t.Errorf("got %+v, want %+v", *refused, want)
		}
		closeBuild(t, another)
		closeBuild(t, newer)
		if _, err := Open(t.Context(), rdb, Options{Namespace: namespace, impersonate: build(1)}); !errors.Is(err, ErrFormat) {
			t.Errorf("the older build came when no session was open: got %v, want %v", err, ErrFormat)
		}
		next := openBuild(t, rdb, namespace, 2)
		wantFormats(t, next, "opened again", Formats{2, 1})
		if _, err := Open(t.Context(), rdb, Options{Namespace: namespace, impersonate: build(3)}); !errors.Is(err, ErrFormat) {
			t.Errorf("a build that reads 2 and 3 met data of format 1: got %v, want %v", err, ErrFormat)
		}
	})
}

// An opening raises the number as well: the whole fleet may be replaced at once.
func TestFirstSessionOfANewerBuildRaisesTheFormat(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		namespace := redistest.Namespace(t)
		closeBuild(t, openBuild(t, rdb, namespace, 1))
		newer := openBuild(t, rdb, namespace, 2)
		wantFormats(t, newer, "opened alone", Formats{2, 1})
		if got := newer.written.Load(); got != 2 {
			t.Errorf("the newer build writes format %d, want 2", got)
		}
		fresh := openBuild(t, rdb, redistest.Namespace(t), 2)
		wantFormats(t, fresh, "a new space", Formats{2, 2})
	})
}

// No script of a build touches a space that is written in a format unknown to the build.
func TestScriptsRefuseAnotherFormatBeforeTheyWrite(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		for name, spoil := range map[string]func(r *rig) error{
			"higher": func(r *rig) error {
				return r.rdb.HSet(r.ctx, r.keys[6], "format", Format+1, "least_format", Format).Err()
			},
			"no word": func(r *rig) error { return r.rdb.HSet(r.ctx, r.keys[6], "format", "two").Err() },
			"older, with a hash of holds": func(r *rig) error {
				return errors.Join(r.rdb.Del(r.ctx, r.keys[2]).Err(), r.rdb.HSet(r.ctx, r.keys[2], "s.1", "s").Err())
			},
			"older, without leases": func(r *rig) error {
				return r.rdb.HDel(r.ctx, r.keys[6], "id", "at:s").Err()
			},
		} {
			r := newRig(t, rdb)
			r.open(t, "s", 60_000)
			r.acquire(t, "s", "s.1", -1, 0, "xa")
			r.do(t, "acquire", ask("s", "s.2", 0, 0, "xa").args()...)
			if name != "higher" {
				if err := r.rdb.HDel(r.ctx, r.keys[6], "format", "least_format").Err(); err != nil {
					t.Fatal(err)
				}
			}
			if err := spoil(r); err != nil {
				t.Fatal(err)
			}
			before := dumpAll(t, r)
			// All requests for a have a wait before them. Otherwise acquire would take its fast
			// path, which checks for a live session instead: a build has none in a space that was
			// raised beyond it.
			for script, args := range map[string][]any{
				"open": {"t", 60_000, "{}", "space", 0}, "renew": {"s", 60_000, "space", "1", 0, 0}, "card": {"s", "{}"},
				"acquire": ask("s", "s.3", -1, 0, "xa").args(), "release": {"s.1"}, "reap": nil, "close": {"s"},
				"declare": {"p", 2, 1}, "downgrade": {"s.1", "a"}, "revoke": {"a", "1", "t", "{}"}, "greet": {0, 0},
				"assert": {"s", 60_000, "{}", "space", "1", "other", 0, 0, "0", "1"}, "list": {"h", "-", "+", 10},
				"sessions": nil, "holders": {"a", 10}, "stands": {"s.1"}, "place": {"s"}, "check": nil, "rouse": nil,
			} {
				answer, err := r.run(script, args...)
				var refused *FormatError
				if !errors.As(err, &refused) || refused.Namespace != namespaceOf(r.keys[0]) {
					t.Errorf("%s: script %s replied %v, %v; want a FormatError", name, script, answer, err)
				}
				if strings.HasPrefix(name, "older") && refused != nil && (refused.Written != "0" || refused.Detail == "") {
					t.Errorf("%s: script %s: got %+v, want the age of the data with a detail", name, script, refused)
				}
			}
			if after := dumpAll(t, r); !maps.Equal(before, after) {
				t.Errorf("%s: refusals changed the keys from\n%v\nto\n%v", name, before, after)
			}
		}
	})
}

// dumpAll reads the keys of a rig's space, whatever their types.
func dumpAll(t *testing.T, r *rig) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, key := range r.keys {
		kind, err := r.rdb.Type(r.ctx, key).Result()
		if err != nil {
			t.Fatal(err)
		}
		var value any
		switch kind {
		case "hash":
			value, err = r.rdb.HGetAll(r.ctx, key).Result()
		case "zset":
			value, err = r.rdb.ZRangeWithScores(r.ctx, key, 0, -1).Result()
		case "string":
			value, err = r.rdb.Get(r.ctx, key).Result()
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		all[key] = kind + " " + string(text)
	}
	return all
}

// A space that was created by a build without numbers gets one, and nothing else of it changes.
func TestSpaceWithoutANumberIsFormatOne(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		namespace := redistest.Namespace(t)
		first := openBuild(t, rdb, namespace, 1)
		unnumber := func() {
			t.Helper()
			if err := rdb.HDel(t.Context(), first.space.keys[6], "format", "least_format").Err(); err != nil {
				t.Fatal(err)
			}
		}
		unnumber()
		wantFormats(t, first, "without a number", Formats{})
		if _, err := first.Space().Read(t.Context()); err != nil {
			t.Errorf("read a space without a number: %v", err)
		}
		second := openBuild(t, rdb, namespace, 2)
		wantFormats(t, second, "opened by a newer build beside format 1", Formats{1, 1})
		unnumber()
		renewed(t, first)
		wantFormats(t, first, "renewed", Formats{1, 1})
		unnumber()
		// The card of a build without numbers has no format.
		s, _, err := first.current()
		if err != nil {
			t.Fatal(err)
		}
		if err := rdb.HSet(t.Context(), first.space.keys[6], "card:"+string(s.id), `{"host":"h"}`).Err(); err != nil {
			t.Fatal(err)
		}
		renewed(t, second)
		wantFormats(t, second, "beside a card without a format", Formats{1, 1})
	})
}

// A session without a lease blocks no raise. When its process comes back after the raise, it
// learns that it cannot open another one.
func TestReturnAfterTheRaiseIsFatal(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	namespace := redistest.Namespace(t)
	proxy := server.Proxy(t)
	older := openBuild(t, proxy.Client(t), namespace, 1)
	hold, err := older.Acquire(t.Context(), Exclusive("a"))
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	newer := openBuild(t, server.Client(t), namespace, 2)
	proxy.Set(redistest.Faults{HoldRequests: true, HoldReplies: true})
	go func() {
		_, err := older.Acquire(t.Context(), Exclusive("b"))
		waiting <- err
	}()
	eventually(t, "the lease of the older build ends and the format is raised", func() bool {
		renewed(t, newer)
		formats, err := newer.Space().Formats(t.Context())
		return err == nil && formats == Formats{2, 1}
	})
	proxy.Set(redistest.Faults{})
	proxy.Cut()
	select {
	case <-older.Failed():
	case <-time.After(20 * time.Second):
		t.Fatal("the older build keeps trying to open a session")
	}
	if err := older.Err(); !errors.Is(err, ErrFormat) {
		t.Errorf("the client failed with %v, want %v", err, ErrFormat)
	}
	if err := <-waiting; !errors.Is(err, ErrFormat) {
		t.Errorf("an acquire that waited ended with %v, want %v", err, ErrFormat)
	}
	if _, err := older.TryAcquire(t.Context(), Exclusive("c")); !errors.Is(err, ErrFormat) {
		t.Errorf("a later acquire ended with %v, want %v", err, ErrFormat)
	}
	if err := hold.Lost(); !errors.Is(err, ErrLost) {
		t.Errorf("its hold: got %v, want %v", err, ErrLost)
	}
	select {
	case <-newer.Failed():
		t.Error("the newer build has failed, too")
	default:
	}
}

// The client that recreates an emptied space gives it the format of the lost one, so that no
// session of an older build is shut out; and an assertion of a newer build raises nothing.
func TestEmptiedSpaceIsNumberedByTheNextOwner(t *testing.T) {
	t.Parallel()
	t.Run("beside an older build", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.New(t, redistest.Options{}).Client(t) // its own server: it is flushed
		older, newer := openBuild(t, rdb, "space", 1), openBuild(t, rdb, "space", 2)
		kept, err := older.Acquire(t.Context(), Exclusive("a"))
		if err != nil {
			t.Fatal(err)
		}
		if err := rdb.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		renewed(t, newer)
		wantFormats(t, newer, "made anew by the newer build", Formats{1, 1})
		renewed(t, older)
		if err := kept.Lost(); err != nil {
			t.Errorf("the hold of the older build is lost: %v", err)
		}
	})
	t.Run("by an older build that comes first", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.New(t, redistest.Options{}).Client(t)
		newer := openBuild(t, rdb, "space", 2)
		wantFormats(t, newer, "new", Formats{2, 2})
		kept, err := newer.Acquire(t.Context(), Exclusive("a"))
		if err != nil {
			t.Fatal(err)
		}
		if err := rdb.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		older := openBuild(t, rdb, "space", 1)
		renewed(t, newer) // it asserts
		renewed(t, newer)
		wantFormats(t, newer, "after the newer build has asserted", Formats{1, 1})
		if got := newer.written.Load(); got != 1 {
			t.Errorf("the newer build writes format %d, want 1", got)
		}
		if err := kept.Lost(); err != nil {
			t.Errorf("the hold of the newer build is lost: %v", err)
		}
		closeBuild(t, older)
		eventually(t, "the format is raised when the grace period is over", func() bool {
			renewed(t, newer)
			formats, err := newer.Space().Formats(t.Context())
			return err == nil && formats == Formats{2, 1}
		})
	})
	t.Run("by a newer build that comes first", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.New(t, redistest.Options{}).Client(t)
		older := openBuild(t, rdb, "space", 1)
		kept, err := older.Acquire(t.Context(), Exclusive("a"))
		if err != nil {
			t.Fatal(err)
		}
		if err := rdb.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		newer := openBuild(t, rdb, "space", 2)
		wantFormats(t, newer, "made by the newer build", Formats{2, 2})
		select {
		case <-older.Failed():
		case <-time.After(20 * time.Second):
			t.Fatal("the older build continues")
		}
		if err := kept.Lost(); !errors.Is(err, ErrLost) || !errors.Is(err, ErrFormat) {
			t.Errorf("the hold of the older build: got %v, want %v with %v", err, ErrLost, ErrFormat)
		}
	})
}

// No format is raised during a grace period: a session that has not asserted yet may be of an older
// build.
func TestGracePeriodRaisesNoFormat(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		r := newRig(t, rdb)
		r.open(t, "s", 60_000)
		if err := rdb.HSet(r.ctx, r.keys[6], "format", 1, "least_format", 1).Err(); err != nil {
			t.Fatal(err)
		}
		if err := rdb.HSet(r.ctx, r.keys[6], "card:s", `{"format":2}`, "grace", time.Now().Add(time.Minute).UnixMilli()).Err(); err != nil {
			t.Fatal(err)
		}
		r.source = func(string) string { return sourceFor("renew", 2) }
		if got := r.do(t, "renew", "s", 60_000, "space", "1", 0, 0); got[6] != "1" {
			t.Errorf("got %q in a grace period, want format 1", got)
		}
		if err := rdb.HDel(r.ctx, r.keys[6], "grace").Err(); err != nil {
			t.Fatal(err)
		}
		if got := r.do(t, "renew", "s", 60_000, "space", "1", 0, 0); got[6] != "2" {
			t.Errorf("got %q after the grace period, want format 2", got)
		}
	})
}

// A raise checks every live session, also when there are more of them than one page.
func TestRaiseLooksAtEverySession(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		r := newRig(t, rdb)
		names := make([]string, 250)
		// so that no opening raises it
		r.source = func(string) string { return sourceFor("open", 1) }
		for i := range names {
			names[i] = "s" + Token(1000+i).String()
			r.do(t, "open", names[i], 60_000, `{"format":2}`, "space", 0)
		}
		r.source = nil
		last := names[len(names)-1]
		r.do(t, "card", last, `{"format":1}`)
		r.source = func(string) string { return sourceFor("renew", 2) }
		if got := r.do(t, "renew", names[0], 60_000, "space", "1", 0, 0); got[6] != "1" {
			t.Errorf("got %q beside session %s of format 1, want format 1", got, last)
		}
		// its lease has ended
		if err := rdb.ZAdd(r.ctx, r.keys[0], redis.Z{Score: 1, Member: "s" + last}).Err(); err != nil {
			t.Fatal(err)
		}
		if got := r.do(t, "renew", names[0], 60_000, "space", "1", 0, 0); got[6] != "2" {
			t.Errorf("got %q when that session has ended, want format 2", got)
		}
	})
}

// A card contains what its build can write, also a card that the caller made.
func TestCardCarriesTheFormatOfItsBuild(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c := openBuild(t, rdb, redistest.Namespace(t), 2, func(o *Options) { o.Card = json.RawMessage(`{}`) })
		empty := openBuild(t, rdb, c.namespace, 2)
		read := func() []string {
			t.Helper()
			sessions, _, err := c.Space().Sessions(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var cards []string
			for _, s := range sessions {
				if s.Format != 2 {
					t.Errorf("session %s: format %d, want 2", s.ID, s.Format)
				}
				if s.ID == c.Session() {
					cards = append(cards, string(s.Card))
				}
			}
			return cards
		}
		if got, want := read(), []string{`{"format":2}`}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if err := c.SetCard(t.Context(), json.RawMessage(`{"host": "h"}`)); err != nil {
			t.Fatal(err)
		}
		if got, want := read(), []string{`{"format":2,"host":"h"}`}; !slices.Equal(got, want) {
			t.Errorf("after SetCard: got %q, want %q", got, want)
		}
		if err := c.SetCard(t.Context(), json.RawMessage(`{"format":7}`)); !errors.Is(err, ErrInvalid) {
			t.Errorf("a card with a format of its own: got %v, want %v", err, ErrInvalid)
		}
		closeBuild(t, empty)
	})
}
