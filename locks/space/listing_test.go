package space

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

func TestKeysAndSource(t *testing.T) {
	t.Parallel()
	space := On(redistest.Client(t), KeysOf("n-1"))
	want := strings.Fields("{n-1}:exp {n-1}:own {n-1}:hold {n-1}:wait {n-1}:q {n-1}:idx {n-1}:meta {n-1}:seq {n-1}:endings")
	if got := space.Keys(); !slices.Equal(got, want) {
		t.Errorf("got keys %q, want %q", got, want)
	}
	_ = append(space.Keys(), "mine")
	space.Keys()[0] = "changed"
	if got := space.Keys(); !slices.Equal(got, want) {
		t.Errorf("got keys %q after a caller changed its copy", got)
	}
	if !strings.Contains(Link("", "", "return grant()"), "local function grant(") {
		t.Error("the source lacks take")
	}
}

// TestListing reads a space with holds, waits of all states and sessions, in more than one page.
func TestListing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		r := newRig(t, rdb)
		space := On(rdb, r.keys)
		if err := rdb.Del(t.Context(), r.keys...).Err(); err != nil {
			t.Fatal(err)
		}
		empty, err := space.Read(t.Context())
		if err != nil || len(empty.Holds)+len(empty.Waits) != 0 || empty.At.IsZero() {
			t.Errorf("got %+v, %v of an empty space", empty, err)
		}
		if n, err := rdb.Exists(t.Context(), r.keys...).Result(); err != nil || n != 0 {
			t.Errorf("reading created %d keys (%v)", n, err)
		}

		r.do(t, "open", "s.b", 60_000, `{"host":"x"}`, "space", 0)
		r.open(t, "s.c", 60_000)
		first := ask("s.b", "s.b.1", 0, 1000, "xa", "xb")
		first.info = `{"i":1}`
		r.do(t, "acquire", first.args()...)
		r.acquire(t, "s.c", "s.c.1", 0, 0, "xb", "xc")
		r.acquire(t, "s.b", "s.b.2", 0, 0, "xc")
		r.do(t, claimLua, "run", "s.b.9", "s.b", 1000, "xa")
		r.do(t, claimLua, "run2", "s.b.10", "s.b", 1000, "xd")
		r.do(t, claimLua, "run3", "s.b.11", "s.b", 1000, "xd")
		r.do(t, "release", "s.b.10") // offers d to run3

		listing, err := space.Read(t.Context())
		if err != nil || len(listing.Holds) != 1 || len(listing.Waits) != 4 {
			t.Fatalf("got %+v, %v", listing, err)
		}
		holds, waits, at := listing.Holds, listing.Waits, listing.At
		if since := time.Since(at); since < -time.Minute || since > time.Minute {
			t.Errorf("got server time %s", at)
		}
		h := holds[0]
		if h.ID != "s.b.1" || h.Session != "s.b" || h.Token == 0 || string(h.Info) != `{"i":1}` ||
			!slices.Equal(h.Names, []string{"a", "b"}) || h.Since.After(at) || h.LeaseLeft <= 0 || h.LeaseLeft > time.Minute {
			t.Errorf("got %+v", h)
		}
		type brief struct {
			request HoldID
			session SessionID
			state   WaitState
			names   string
		}
		var got []brief
		for i, w := range waits {
			got = append(got, brief{w.Request, w.Session, w.State, strings.Join(w.Names, " ")})
			if w.Ticket != nestedTickets+uint64(i+1) || w.Since.After(at) {
				t.Errorf("got %+v, want ticket %d", w, i+1)
			}
		}
		want := []brief{
			{"s.c.1", "s.c", Waiting, "b c"}, {"s.b.2", "s.b", Waiting, "c"}, {"run", "", Waiting, "a"}, {"run3", "", Offered, "d"},
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		wantBlocked := map[HoldID][]HoldID{"s.c.1": {"s.b.1"}, "s.b.2": {"s.c.1"}, "run": {"s.b.1"}}
		if got := BlockedBy(holds, waits); !reflect.DeepEqual(got, wantBlocked) {
			t.Errorf("got %v, want %v", got, wantBlocked)
		}
		if some, err := space.Read(t.Context(), "s.c", "@"); err != nil || len(some.Waits) != 3 {
			t.Errorf("got %+v, %v for one session and the space", some, err)
		}
		sessions, _, err := space.Sessions(t.Context())
		if err != nil || len(sessions) != 2 || sessions[0].ID != "s.b" || string(sessions[0].Card) != `{"host":"x"}` ||
			sessions[0].LeaseLeft <= 0 {
			t.Errorf("got %+v, %v", sessions, err)
		}

		// Pages: entries of one session and of its neighbor in the index.
		for i := range 1100 {
			r.acquire(t, "s.c", fmt.Sprint("s.c.", 100+i), 0, 0, fmt.Sprint("xr", i))
		}
		some, err := space.Read(t.Context(), "s.c")
		if err != nil || len(some.Holds) != 1100 {
			t.Errorf("got %d holds, %v, want 1100", len(some.Holds), err)
		}
		all, err := space.Read(t.Context())
		if err != nil || len(all.Holds) != 1101 || len(all.Waits) != 4 {
			t.Errorf("got %d holds and %d waits, %v", len(all.Holds), len(all.Waits), err)
		}
	})
}

func TestBlockedByNamesTheHolderAndTheWaitInFront(t *testing.T) {
	t.Parallel()
	holds := []HoldRecord{{ID: "h", Items: exclusively([]string{"a", "b"})}}
	wait := func(ticket uint64, request HoldID, state WaitState, names ...string) WaitRecord {
		return WaitRecord{Request: request, Ticket: ticket, State: state, Items: exclusively(names)}
	}
	got := BlockedBy(holds, []WaitRecord{
		wait(5, "w5", Waiting, "a"),
		wait(1, "w1", Waiting, "a", "c"),
		wait(2, "w2", Offered, "d"),
		wait(3, "w3", Lapsed, "a"),
		wait(4, "w4", Waiting, "a", "b", "d"),
	})
	want := map[HoldID][]HoldID{"w1": {"h"}, "w4": {"h", "w1", "w2"}, "w5": {"h", "w4"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTokensAreTextInJSON(t *testing.T) {
	t.Parallel()
	const token = Token(1<<53 - 1)
	text, err := json.Marshal(map[string]Token{"token": token})
	if err != nil || string(text) != `{"token":"9007199254740991"}` {
		t.Errorf("got %s, %v", text, err)
	}
	var back map[string]Token
	if err := json.Unmarshal(text, &back); err != nil || back["token"] != token {
		t.Errorf("got %v, %v", back, err)
	}
	for _, bad := range []string{"", "-1", "1e3", "9007199254740992", "x"} {
		if got, err := ParseToken(bad); err == nil {
			t.Errorf("%q: got %s", bad, got)
		}
	}
}

// exclusively returns an exclusive bundle of names.
func exclusively(names []string) []Item {
	items := make([]Item, len(names))
	for i, name := range names {
		items[i] = Item{Name: name, Mode: ModeExclusive}
	}
	return items
}
