package locks

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/locks/redistest"
)

func TestBadRequestsAreRefusedUnsent(t *testing.T) {
	t.Parallel()
	c := opened(t, redistest.Client(t), redistest.Namespace(t))
	sent := &calls{hash: acquireScript.Hash()}
	c.rdb.AddHook(sent)
	numbered := func(n int) []string {
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprint("r", i)
		}
		return names
	}
	long := strings.Repeat("x", maxName)
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
		if records, _, err := c.space.Holds(t.Context()); err != nil || len(records) != 1 ||
			!slices.Equal(records[0].Names, hold.Names()) {
			t.Errorf("listed as %.200v, %v", records, err)
		}
		if err := hold.Release(); err != nil {
			t.Error(err)
		}
	}
}

func FuzzNames(f *testing.F) {
	for _, seed := range []string{"a", "", "a\x00", "\x1f", "é", "\xff", strings.Repeat("é", 256)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		o, err := newOrder([]Part{Exclusive(name)})
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%q: %v is not ErrInvalid", name, err)
			}
			return
		}
		if strings.ContainsAny(name, "\x00\x1f") || len(name) > maxName || o.items[0].Name != name {
			t.Errorf("%q was accepted", name)
		}
	})
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
		{Options{Namespace: "a b"}, `namespace "a b"`},
		{Options{Namespace: "{a}"}, "namespace"},
		{Options{Namespace: strings.Repeat("n", 65)}, "namespace"},
		{Options{Card: json.RawMessage("[]")}, "Options.Card must be a JSON object"},
		{Options{Card: json.RawMessage("{")}, "Options.Card is not JSON"},
		{Options{Card: json.RawMessage(`{"a":"` + strings.Repeat("x", maxCard) + `"}`)}, "Options.Card has"},
	} {
		// Refused before anything is dialled: there is no client to dial with.
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
