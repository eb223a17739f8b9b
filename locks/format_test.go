package locks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
	"lockstep/locks/space"
)

// build returns what a client impersonates to act as a build that writes the given format.
func build(format int) *space.Impersonator {
	others := make(map[*redis.Script]*redis.Script)
	for _, script := range space.Scripts() {
		others[script.Redis()] = redis.NewScript(script.Source(format))
	}
	return &space.Impersonator{Format: format, Script: func(script *redis.Script) *redis.Script {
		if other := others[script]; other != nil {
			return other
		}
		return script // it is of that build already
	}}
}

// openBuild opens a client of a build that writes the given format. Its lease is short, and
// outlives a stall of a busy machine.
func openBuild(t *testing.T, rdb redis.UniversalClient, namespace string, format int, more ...func(*Options)) *Client {
	t.Helper()
	o := Options{Namespace: namespace, Name: "test", Lease: time.Minute, Grace: -1, impersonate: build(format)}
	for _, change := range more {
		change(&o)
	}
	var c *Client
	// A busy machine may be too slow once.
	eventually(t, fmt.Sprintf("a client of format %d is open", format), func() (open bool) {
		var err error
		if c, err = Open(t.Context(), rdb, o); errors.Is(err, ErrFormat) {
			t.Fatalf("open a client of format %d: %v", format, err)
		}
		return err == nil
	})
	t.Cleanup(func() { closeBuild(t, c) })
	return c
}

// emptyAndOpen empties the server of a client, and opens a session of a build that writes the given
// format, in one step: the client cannot be the first to return.
func emptyAndOpen(t *testing.T, c *Client, format int) {
	t.Helper()
	pipe := c.rdb.TxPipeline()
	pipe.FlushAll(t.Context())
	build(format).Script(space.Open.Redis()).Eval(t.Context(), pipe, c.space.keys, "first.x", quick.Milliseconds(),
		string(space.Stamp(json.RawMessage("{}"), format)), "made anew", "0")
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func closeBuild(t *testing.T, c *Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patient)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

// renewed renews a session and waits until that is done. The first answer may be to a renewal that
// was sent before.
func renewed(t *testing.T, c *Client) {
	t.Helper()
	s, _, err := c.current()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s.mu.Lock()
		answer := s.renewed
		s.mu.Unlock()
		c.Extension().Doubt()
		select {
		case <-answer:
		case <-s.dead:
			t.Fatalf("the session has ended: %v", s.why())
		case <-time.After(20 * time.Second):
			t.Fatal("no renewal was answered for 20s")
		}
	}
}

func wantFormats(t *testing.T, c *Client, when string, want space.Formats) {
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
		wantFormats(t, older, "made by format 1", space.Formats{Written: 1, Least: 1})
		newer, another := openBuild(t, rdb, namespace, 2), openBuild(t, rdb, namespace, 2)
		renewed(t, newer)
		renewed(t, older)
		wantFormats(t, newer, "while a session knows format 1 only", space.Formats{Written: 1, Least: 1})
		if got := newer.written.Load(); got != 1 {
			t.Errorf("the newer build writes format %d beside the older one, want 1", got)
		}
		closeBuild(t, older)
		renewed(t, newer)
		wantFormats(t, newer, "when the older build has left", space.Formats{Written: 2, Least: 1})
		renewed(t, another)
		if got := another.written.Load(); got != 2 {
			t.Errorf("another newer build writes format %d after the raise, want 2", got)
		}

		_, err := Open(t.Context(), rdb, Options{Namespace: namespace, impersonate: build(1)})
		var refused *space.FormatError
		if !errors.Is(err, ErrFormat) || !errors.As(err, &refused) {
			t.Fatalf("the older build came back: got %v, want a FormatError", err)
		}
		if !space.Refused(err) {
			t.Errorf("%v does not count as a final reply", err)
		}
		want := *refused // with the reply of Redis
		want.Namespace, want.Written, want.Least, want.Detail, want.Build = namespace, "2", 1, "", 1
		if *refused != want {
			t.Errorf("got %+v, want %+v", *refused, want)
		}
		closeBuild(t, another)
		closeBuild(t, newer)
		if _, err := Open(t.Context(), rdb, Options{Namespace: namespace, impersonate: build(1)}); !errors.Is(err, ErrFormat) {
			t.Errorf("the older build came when no session was open: got %v, want %v", err, ErrFormat)
		}
		next := openBuild(t, rdb, namespace, 2)
		wantFormats(t, next, "opened again", space.Formats{Written: 2, Least: 1})
		if _, err := Open(t.Context(), rdb, Options{Namespace: namespace, impersonate: build(3)}); !errors.Is(err, ErrFormat) {
			t.Errorf("a build that reads 2 and 3 met data of format 1: got %v, want %v", err, ErrFormat)
		}
	})
}

// The refusal names the version of the build that began to write the format: the one that raised it
// or created the space. A build without a version leaves no other's behind.
func TestRefusalNamesTheVersionThatWroteTheFormatFirst(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		version := func(text string) func(*Options) {
			return func(o *Options) { o.Card = json.RawMessage(`{"queues":{"version":3},"version":"` + text + `"}`) }
		}
		refused := func(when, namespace string, of int, want string) {
			t.Helper()
			_, err := Open(t.Context(), rdb, Options{Namespace: namespace, impersonate: build(of)})
			refused, ok := errors.AsType[*space.FormatError](err)
			if !ok || refused.By != want {
				t.Fatalf("%s: got %v, want a FormatError with version %q", when, err, want)
			}
			if want != "" && !strings.Contains(err.Error(), "version "+want+", which began to write format") {
				t.Errorf("%s: got %v, want version %s in it", when, err, want)
			}
		}
		raised := redistest.Namespace(t)
		older := openBuild(t, rdb, raised, 1, version("v1.0.0"))
		newer := openBuild(t, rdb, raised, 2, version("v2.0.0-rc.1+dirty"))
		another := openBuild(t, rdb, raised, 2, version("v2.1.0"))
		closeBuild(t, older)
		renewed(t, newer)
		renewed(t, another)
		refused("raised by a renewal", raised, 1, "v2.0.0-rc.1+dirty")
		closeBuild(t, newer)
		closeBuild(t, another)

		created := redistest.Namespace(t)
		closeBuild(t, openBuild(t, rdb, created, 2, version("devel-0123abcd")))
		refused("created", created, 1, "devel-0123abcd")
		closeBuild(t, openBuild(t, rdb, created, 2, version("v2.1.0")))
		refused("opened again", created, 1, "devel-0123abcd")
		closeBuild(t, openBuild(t, rdb, created, 3))
		refused("raised by a build without a version", created, 2, "")
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
		wantFormats(t, newer, "opened alone", space.Formats{Written: 2, Least: 1})
		if got := newer.written.Load(); got != 2 {
			t.Errorf("the newer build writes format %d, want 2", got)
		}
		fresh := openBuild(t, rdb, redistest.Namespace(t), 2)
		wantFormats(t, fresh, "a new space", space.Formats{Written: 2, Least: 2})
	})
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
		wantFormats(t, first, "without a number", space.Formats{})
		if _, err := first.Space().Read(t.Context()); err != nil {
			t.Errorf("read a space without a number: %v", err)
		}
		second := openBuild(t, rdb, namespace, 2)
		wantFormats(t, second, "opened by a newer build beside format 1", space.Formats{Written: 1, Least: 1})
		unnumber()
		renewed(t, first)
		wantFormats(t, first, "renewed", space.Formats{Written: 1, Least: 1})
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
		wantFormats(t, second, "beside a card without a format", space.Formats{Written: 1, Least: 1})
	})
}

// A session without a lease blocks no raise. When its process comes back after the raise, it
// learns that it cannot open another one.
func TestReturnAfterTheRaiseIsFatal(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	namespace := redistest.Namespace(t)
	proxy := server.Proxy(t)
	// it ends soon
	older := openBuild(t, proxy.Client(t), namespace, 1, func(o *Options) { o.Lease = minLease })
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
		return err == nil && formats == space.Formats{Written: 2, Least: 1}
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
		wantFormats(t, newer, "made anew by the newer build", space.Formats{Written: 1, Least: 1})
		renewed(t, older)
		if err := kept.Lost(); err != nil {
			t.Errorf("the hold of the older build is lost: %v", err)
		}
	})
	t.Run("by an older build that comes first", func(t *testing.T) {
		t.Parallel()
		rdb := redistest.New(t, redistest.Options{}).Client(t)
		// the grace period is as long
		newer := openBuild(t, rdb, "space", 2, func(o *Options) { o.Lease = quick })
		wantFormats(t, newer, "new", space.Formats{Written: 2, Least: 2})
		kept, err := newer.Acquire(t.Context(), Exclusive("a"))
		if err != nil {
			t.Fatal(err)
		}
		emptyAndOpen(t, newer, 1)
		renewed(t, newer) // it asserts
		renewed(t, newer)
		wantFormats(t, newer, "after the newer build has asserted", space.Formats{Written: 1, Least: 1})
		if got := newer.written.Load(); got != 1 {
			t.Errorf("the newer build writes format %d, want 1", got)
		}
		if err := kept.Lost(); err != nil {
			t.Errorf("the hold of the newer build is lost: %v", err)
		}
		eventually(t, "the format is raised when the grace period and the session of the older build are over", func() bool {
			renewed(t, newer)
			formats, err := newer.Space().Formats(t.Context())
			return err == nil && formats == space.Formats{Written: 2, Least: 1}
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
		emptyAndOpen(t, older, 2)
		wantFormats(t, older, "made by the newer build", space.Formats{Written: 2, Least: 2})
		older.Extension().Doubt() // it learns of that now, and not by a renewal in 20 s
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
		if err := c.Extension().SetCard(t.Context(), json.RawMessage(`{"host": "h"}`)); err != nil {
			t.Fatal(err)
		}
		if got, want := read(), []string{`{"format":2,"host":"h"}`}; !slices.Equal(got, want) {
			t.Errorf("after SetCard: got %q, want %q", got, want)
		}
		if err := c.Extension().SetCard(t.Context(), json.RawMessage(`{"format":7}`)); !errors.Is(err, ErrInvalid) {
			t.Errorf("a card with a format of its own: got %v, want %v", err, ErrInvalid)
		}
		closeBuild(t, empty)
	})
}
