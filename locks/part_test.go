package locks

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
	"lockstep/locks/space"
)

func TestBadRequestsAreRefusedUnsent(t *testing.T) {
	t.Parallel()
	c := opened(t, redistest.Client(t), redistest.Namespace(t))
	sent := &calls{hash: space.Acquire.Hash()}
	c.rdb.AddHook(sent)
	numbered := func(n int) []string {
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprint("r", i)
		}
		return names
	}
	long := strings.Repeat("x", space.MaxName)
	for _, bad := range []struct {
		name  string
		parts []Part
		says  string
	}{
		{"nothing", nil, "add locks.Exclusive(name)"},
		{"an empty list", []Part{Exclusive()}, "add locks.Exclusive(name)"},
		{"an empty name", []Part{Exclusive("a", "")}, "name is empty"},
		{"a long name", []Part{Exclusive(long + "y")}, "has 513 bytes; use at most 512"},
		{"not UTF-8", []Part{Exclusive("a\xff")}, `"a\xff" is not UTF-8`},
		{"NUL", []Part{Exclusive("a\x00b")}, `"a\x00b" has a control character at byte 1`},
		{"a unit separator", []Part{Exclusive("\x1f")}, "control character"},
		{"a newline", []Part{Exclusive("a\n")}, "control character"},
		{"DEL", []Part{Exclusive("a\x7f")}, "control character"},
		{"a C1 control", []Part{Exclusive("a\u0085")}, "control character"},
		{"1,001 names", []Part{Exclusive(numbered(1001)...)}, "1001 resources"},
		{"1,001 names in several parts", []Part{Exclusive(numbered(999)...), Shared("s"), Permits("p", 1)}, "1001 resources"},
		{"no shared names", []Part{Shared()}, "add locks.Exclusive(name)"},
		{"a bad shared name", []Part{Exclusive("a"), Shared("b", "")}, "name is empty"},
		{"a bad limited name", []Part{Exclusive("a"), AtMost(2, "b\x00")}, "control character"},
		{"a bad name of permits", []Part{Exclusive("a"), Permits(long+"y", 1)}, "has 513 bytes"},
		{"no permits", []Part{Permits("a", 0)}, `0 permits of "a"; ask for 1 to 1000000`},
		{"negative permits", []Part{Permits("a", -1)}, `-1 permits of "a"`},
		{"very many permits", []Part{Permits("a", math.MaxInt)}, `permits of "a"; ask for 1 to 1000000`},
		{"shared by nobody", []Part{AtMost(0, "a")}, "at most 0 may share a resource"},
		{"shared by less", []Part{AtMost(-1, "a")}, "at most -1 may share"},
		{"shared by very many", []Part{AtMost(math.MaxInt, "a")}, "use 1 to 1000000"},
		{"exclusive and shared", []Part{Exclusive("b", "a"), Shared("a")}, `"a" is asked for twice, as exclusive and as shared`},
		{"exclusive and permits", []Part{Permits("a", 2), Exclusive("a")}, `"a" is asked for twice, as exclusive and as 2 permits`},
		{"shared and permits", []Part{Permits("a", 2), Shared("a")}, `"a" is asked for twice, as 2 permits and as shared`},
		{"two limits", []Part{AtMost(2, "a"), AtMost(3, "a")}, `"a" is asked for twice, as shared by at most 2 and as shared by at most 3`},
		{"two numbers of permits", []Part{Permits("a", 2), Permits("a", 1)}, `"a" is asked for twice, as 1 permits and as 2 permits`},
		{"a negative max hold", []Part{Exclusive("a"), MaxHold(-1)}, "a max hold of -1ns is negative"},
		{"a negative min hold", []Part{Exclusive("a"), MinHold(-1)}, "a min hold of -1ns is negative"},
		{"a negative crash delay", []Part{Exclusive("a"), CrashDelay(-1)}, "a crash delay of -1ns is negative"},
		{"a max hold of two years", []Part{Exclusive("a"), MaxHold(2 * maxLimit)}, "longer than a year; leave it out"},
		{"a max hold of a nanosecond", []Part{Exclusive("a"), MaxHold(1)}, "shorter than a millisecond"},
		{"a negative wait", []Part{Exclusive("a"), Wait(-1)}, "negative"},
		{"info that is no JSON", []Part{Exclusive("a"), Info(json.RawMessage("{"))}, "info is not JSON"},
		{"large info", []Part{Exclusive("a"), Info(json.RawMessage(`"` + strings.Repeat("x", maxInfo) + `"`))}, "at most 4096"},
	} {
		t.Run(bad.name, func(t *testing.T) {
			for _, acquire := range []func() (*Hold, error){
				func() (*Hold, error) { return c.Acquire(t.Context(), bad.parts...) },
				func() (*Hold, error) { return c.TryAcquire(t.Context(), bad.parts...) },
			} {
				hold, err := acquire()
				if hold != nil || !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), bad.says) {
					t.Errorf("got %v, %v; want ErrInvalid that says %q", hold, err, bad.says)
				}
				if strings.ContainsAny(err.Error(), "\n\x00") || len(err.Error()) > 300 {
					t.Errorf("the error is not one readable line: %q", err)
				}
			}
		})
	}
	if n := sent.n.Load(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
	for _, good := range [][]string{
		{long}, {" "}, {"a b"}, {"日本語"}, {"{a}"}, {"a:b*[c]"}, {"\U0010FFFF"}, {"x"}, {"-"}, {"(", "["}, numbered(1000),
		append(numbered(1000), numbered(1000)...),
	} {
		hold, err := c.TryAcquire(t.Context(), Exclusive(good...))
		if err != nil {
			t.Errorf("%.80q: %v", good, err)
			continue
		}
		slices.Sort(good)
		if want := slices.Compact(good); !slices.Equal(hold.Names(), want) {
			t.Errorf("got %d names, want %d", len(hold.Names()), len(want))
		}
		if listing, err := c.space.Read(t.Context()); err != nil || len(listing.Holds) != 1 ||
			!slices.Equal(listing.Holds[0].Names, hold.Names()) {
			t.Errorf("listed as %.200v, %v", listing, err)
		}
		if err := hold.Release(); err != nil {
			t.Error(err)
		}
	}
}

// FuzzParts looks for accepted requests that break what the scripts rely on, and for refusals
// without the right error.
func FuzzParts(f *testing.F) {
	for _, seed := range []string{"a", "", "a\x00", "\x1f", "é", "\xff", "s:1", strings.Repeat("é", 256)} {
		f.Add(seed, "b", "c", "d", 1, int64(0), int64(0), "null")
		f.Add("a", seed, seed, "d", -1, int64(-1), int64(time.Second), seed)
		f.Add("a", "b", "c", seed, math.MaxInt, int64(math.MaxInt64), int64(math.MinInt64), `{"run": "x"}`)
	}
	f.Fuzz(func(t *testing.T, exclusive, shared, limited, permits string, n int, wait, limit int64, info string) {
		d := time.Duration(limit)
		o, err := newSpec([]Part{
			Exclusive(exclusive), Shared(shared), AtMost(n, limited), Permits(permits, n), Wait(time.Duration(wait)),
			MaxHold(d), MinHold(d), CrashDelay(d), Info(json.RawMessage(info)),
		})
		if err != nil {
			if text := err.Error(); o != nil || !errors.Is(err, ErrInvalid) || strings.ContainsFunc(text, unicode.IsControl) {
				t.Errorf("got %v, %q; want ErrInvalid on one line", o, text)
			}
			return
		}
		if n < 1 || wait < 0 || limit < 0 || o.limits.most > maxLimit || !json.Valid(o.info) || len(o.info) > maxInfo {
			t.Errorf("got %+v", o)
		}
		want := []Item{
			{Name: exclusive, Mode: ModeExclusive}, {Name: shared, Mode: ModeShared},
			{Name: limited, Mode: ModeShared, N: n}, {Name: permits, Mode: ModePermits, N: n},
		}
		for i, item := range o.items {
			read, err := space.ParseItem(item.String())
			if err != nil || read != item || !slices.Contains(want, item) || i > 0 && o.items[i-1].Name >= item.Name {
				t.Errorf("item %d of %+v: read as %v, %v", i, o.items, read, err)
			}
			if len(item.Name) > space.MaxName || !utf8.ValidString(item.Name) || strings.ContainsFunc(item.Name, unicode.IsControl) {
				t.Errorf("%q was accepted", item.Name)
			}
		}
		// a name in two modes is refused, so nothing can have been merged
		if len(o.items) != len(want) {
			t.Errorf("got %+v of %+v", o.items, want)
		}
	})
}

// A request that only Redis can refuse changes nothing there.
func TestUnfitRequestsChangeNothing(t *testing.T) {
	t.Parallel()
	rdb := redistest.Client(t)
	c := opened(t, rdb, redistest.Namespace(t))
	ctx := t.Context()
	if _, err := c.Declare(ctx, "p", PermitLimit{Permits: 3, Version: 2}); err != nil {
		t.Fatal(err)
	}
	hold, err := c.Acquire(ctx, Exclusive("x"), Shared("s"), Permits("p", 1))
	if err != nil {
		t.Fatal(err)
	}
	state := func() string {
		var b strings.Builder
		for _, key := range c.space.keys[1:] { // the timer wheel moves with each renewal
			dump, err := rdb.Dump(ctx, key).Result()
			if err != nil && !errors.Is(err, redis.Nil) {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "%s %q\n", key, dump)
		}
		return b.String()
	}
	before := state()
	acquire := func(parts ...Part) error {
		_, err := c.Acquire(ctx, parts...)
		return err
	}
	declare := func(name string, permits int, version int64) error {
		_, err := c.Declare(ctx, name, PermitLimit{Permits: permits, Version: version})
		return err
	}
	revoke := func(name string, token Token, force Force, why Revocation) error {
		_, err := c.space.Revoke(ctx, name, token, force, why)
		return err
	}
	for what, got := range map[string]struct{ err, want error }{
		"more permits than there are":      {acquire(Exclusive("free"), Permits("p", 4)), ErrInvalid},
		"permits of what has none":         {acquire(Exclusive("free"), Permits("x", 1)), ErrInvalid},
		"permits of an undeclared name":    {acquire(Exclusive("free"), Permits("y", 1)), ErrInvalid},
		"permits exclusively":              {acquire(Exclusive("free", "p")), ErrInvalid},
		"permits shared":                   {acquire(Exclusive("free"), Shared("p")), ErrInvalid},
		"permits shared by few":            {acquire(Exclusive("free"), AtMost(2, "p")), ErrInvalid},
		"the same version otherwise":       {declare("p", 4, 2), ErrInvalid},
		"an older version":                 {declare("p", 9, 1), nil},
		"no permits at all":                {declare("p", 0, 3), ErrInvalid},
		"negative permits":                 {declare("p", -1, 3), ErrInvalid},
		"a negative version":               {declare("p", 4, -1), ErrInvalid},
		"a huge version":                   {declare("p", 4, 1<<53), ErrInvalid},
		"permits without a name":           {declare("", 4, 3), ErrInvalid},
		"permits of what is held":          {declare("x", 4, 3), ErrBusy},
		"a free lock is downgraded":        {hold.Downgrade(ctx, "free"), ErrInvalid},
		"permits are downgraded":           {hold.Downgrade(ctx, "x", "p"), ErrInvalid},
		"another token":                    {revoke("x", hold.Token()+1, Seize, Revocation{}), ErrStale},
		"a free lock is revoked":           {revoke("free", hold.Token(), Seize, Revocation{}), ErrStale},
		"a lock without a name is revoked": {revoke("", hold.Token(), Seize, Revocation{}), ErrInvalid},
		"an unknown force":                 {revoke("x", hold.Token(), "z", Revocation{}), ErrInvalid},
		"a long reason":                    {revoke("x", hold.Token(), Take, Revocation{Reason: strings.Repeat("x", maxReason)}), ErrInvalid},
	} {
		if !errors.Is(got.err, got.want) {
			t.Errorf("%s: got %v, want %v", what, got.err, got.want)
		}
	}
	if after := state(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	if err := hold.Release(); err != nil {
		t.Error(err)
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	t.Parallel()
	for _, bad := range []struct {
		o    Options
		says string
	}{
		{Options{Lease: time.Second}, "Options.Lease is 1s; it must be 2s to 10m0s"},
		{Options{Lease: -1}, "Options.Lease"},
		{Options{Lease: time.Hour}, "Options.Lease is 1h0m0s"},
		{Options{Grace: time.Second}, "Options.Grace is 1s; it must be at least the lease, 15s"},
		{Options{Namespace: "a b"}, `namespace "a b"`},
		{Options{Namespace: "{a}"}, "namespace"},
		{Options{Namespace: strings.Repeat("n", 65)}, "namespace"},
		{Options{Card: json.RawMessage("[]")}, "Options.Card must be a JSON object"},
		{Options{Card: json.RawMessage("{")}, "Options.Card is not JSON"},
		{Options{Card: json.RawMessage(`{"a":"` + strings.Repeat("x", maxCard) + `"}`)}, "Options.Card has"},
	} {
		// Refused before anything is dialed: this client cannot dial.
		if _, err := Open(t.Context(), nil, bad.o); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), bad.says) {
			t.Errorf("%+v: got %v, want ErrInvalid that says %q", bad.o, err, bad.says)
		}
	}
	if _, err := Open(t.Context(), nil, Options{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("without a client: got %v", err)
	}
	if _, err := NewSpace(nil, "a b"); !errors.Is(err, ErrInvalid) {
		t.Errorf("NewSpace: got %v", err)
	}
}

func TestSessionNamesAreClean(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"web-1.example_x": "web-1.example_x", "a b/c": "a-b-c", "büro": "b-ro", "x\x00y": "x-y",
		strings.Repeat("n", 100): strings.Repeat("n", maxSessionName),
	} {
		if got := cleanName(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
	seen := make(map[string]bool)
	for range 1000 {
		name := randomName()
		if len(name) != 8 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") != "" || seen[name] {
			t.Fatalf("got %q", name)
		}
		seen[name] = true
	}
}
