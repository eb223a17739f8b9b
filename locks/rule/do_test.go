package rule_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/locks/rule"
)

type base struct {
	Tenant string `json:"tenant"`
}

type line struct {
	SKU  string `json:"sku"`
	Gone string `json:"-"`
	priv string //nolint:unused // a key must not read it
}

// bills are arguments with about everything that Go's JSON has.
type bills struct {
	base
	*line
	IDs     []int             `json:"ids"`
	Account *struct{ ID int } `json:"account,omitempty"`
	Lines   []line            `json:"lines"`
	Pair    [2]string         `json:"pair"`
	Labels  map[string]string `json:"labels"`
	Open    any               `json:"open"`
	Raw     json.RawMessage   `json:"raw"`
	Key     []byte            `json:"key"`
	When    time.Time         `json:"when"`
	Plain   bool
}

func newRule[A any](t testing.TB, o rule.Options) *rule.Rule[A] {
	t.Helper()
	r, err := rule.New[A](o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRuleNamesTheBundleOfACall(t *testing.T) {
	t.Parallel()
	args := bills{
		base: base{"acme"}, line: &line{SKU: "x"}, IDs: []int{1002, 1001, 1002}, Lines: []line{{SKU: "a"}, {SKU: "b"}},
		Pair: [2]string{"l", "r"}, Labels: map[string]string{"env": "prod"}, Open: map[string]any{"deep": []int{7}},
		Raw: json.RawMessage(`{"n": 12345678901234567890}`), Key: []byte{1}, When: time.Unix(0, 0).UTC(), Plain: true,
	}
	args.Account = &struct{ ID int }{7}
	r := newRule[bills](t, rule.Options{
		Prefix:    "shop:",
		Exclusive: []string{"bill:{ids[*]}", "account:{account.ID}", "fixed", "{sku}", "{tenant}/{Plain}", "{open.deep[0]}", "{raw.n}"},
		Shared:    []string{"line:{lines[*].sku}", "{pair[1]}", "env:{labels.env}", "{key}", "{when}"},
		Permits:   map[string]int{"partner:{tenant}": 2},
	})
	items, err := r.Items(args)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, item := range items {
		got = append(got, item.String())
	}
	want := "x:12345678901234567890 x:7 s:AQ== x:account:7 x:acme/true x:bill:1001 x:bill:1002 s:env:prod x:fixed s:line:a s:line:b " +
		"p2:partner:acme s:r x:x s:1970-01-01T00:00:00Z"
	for _, text := range strings.Fields(want) {
		kind, name, _ := strings.Cut(text, ":")
		sep := map[bool]string{true: ":", false: ""}[strings.HasPrefix(kind, "p")]
		if text = kind + sep + "shop:" + name; !strings.Contains(" "+strings.Join(got, " ")+" ", " "+text+" ") {
			t.Errorf("%s is not among %q", text, got)
		}
	}
	if n := len(strings.Fields(want)); len(got) != n {
		t.Errorf("got %d names, want %d: %q", len(got), n, got)
	}
}

func TestBadRulesAreRefusedAtStart(t *testing.T) {
	t.Parallel()
	exclusive := func(keys ...string) rule.Options { return rule.Options{Exclusive: keys} }
	for _, bad := range []struct {
		o    rule.Options
		says string
	}{
		{rule.Options{}, "it names nothing to lock"},
		{exclusive("bill:{ids[*]"), `byte 5: "{" without "}"`},
		{exclusive(""), "name is empty"},
		{exclusive("a\x00{tenant}"), "control character"},
		{rule.Options{Prefix: "a\n", Exclusive: []string{"{tenant}"}}, "prefix: invalid lock request: the resource"},
		{rule.Options{Prefix: strings.Repeat("p", 500), Exclusive: []string{"bill:{tenant}-1234567"}}, "513 bytes"},
		{exclusive("bill:{id}"), `field "id" of the args is missing: a rule_test.bills has Plain, account, ids, key,`},
		{exclusive("{Tenant}"), `field "Tenant" of the args is missing`},
		{exclusive("{lines[*].Gone}"), `field "lines[*].Gone" of the args is missing: a rule_test.line has sku`},
		{exclusive("{lines[0].priv}"), `field "lines[0].priv" of the args is missing`},
		{exclusive("{ids}"), `field "ids" of the args is a list; want a string, a number or a bool`},
		{exclusive("{account}"), `field "account" of the args is an object; want`},
		{exclusive("{ids[*].x}"), `field "ids[*]" of the args is a number, not an object`},
		{exclusive("{tenant[0]}"), `field "tenant" of the args is a string, not a list`},
		{exclusive("{Plain.x}"), `field "Plain" of the args is a bool, not an object`},
		{exclusive("{key[0]}"), `field "key" of the args is a string, not a list`},
		{exclusive("{pair[2]}"), `field "pair[2]" of the args is missing: the list has 2 elements`},
		{exclusive("{[0]}"), `the args are an object, not a list`},
		{rule.Options{Exclusive: []string{"a"}, Shared: []string{"a"}}, `the resource "a" is asked for twice, as exclusive and as shared`},
		{rule.Options{Permits: map[string]int{"a": 0}}, `0 permits of "a"`},
		{rule.Options{Permits: map[string]int{"a": -1}}, `-1 permits of "a"`},
		{rule.Options{Exclusive: []string{"a"}, Wait: -1}, "negative"},
		{rule.Options{Exclusive: []string{"a"}, OnBusy: rule.BusySkip, Wait: -1}, "negative"},
		{rule.Options{Exclusive: []string{"a"}, OnBusy: "requeue"}, `OnBusy is "requeue"`},
		{rule.Options{Exclusive: []string{"a"}, MaxHold: -1}, "max hold of -1ns is negative"},
		{rule.Options{Exclusive: []string{"a"}, MinHold: -1}, "min hold of -1ns is negative"},
		{rule.Options{Exclusive: []string{"a"}, CrashDelay: -1}, "crash delay of -1ns is negative"},
		{rule.Options{Exclusive: []string{"a"}, Info: json.RawMessage("{")}, "info is not JSON"},
	} {
		r, err := rule.New[bills](bad.o)
		if r != nil || !errors.Is(err, locks.ErrInvalid) || !strings.Contains(err.Error(), bad.says) || !strings.HasPrefix(err.Error(), "lock rule: ") {
			t.Errorf("%+v: got %v, want ErrInvalid that says %q", bad.o, err, bad.says)
		}
	}
	// Only the arguments show what the type leaves open.
	for _, err := range []error{
		second(rule.New[any](exclusive("{a.b[*].c}"))),
		second(rule.New[json.RawMessage](exclusive("{[*]}"))),
		second(rule.New[map[string]any](exclusive("{a.b}"))),
		second(rule.New[bills](exclusive("{open.a.b}", "{raw[0]}"))),
	} {
		if err != nil {
			t.Error(err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestArgumentsThatGiveNoBundle(t *testing.T) {
	t.Parallel()
	r := newRule[any](t, rule.Options{Exclusive: []string{"b:{ids[*]}"}, Shared: []string{"s:{ids[0]}", "{same}"}})
	many := make([]int, 1001)
	for i := range many {
		many[i] = i
	}
	for _, test := range []struct {
		args any
		says string
	}{
		{nil, `field "ids" of the args is missing`},
		{map[string]any{"ids": []int{}}, `field "ids[0]" of the args is missing: the list has 0 elements`},
		{map[string]any{"ids": []int{1}, "same": "b:1"}, `the resource "b:1" is asked for twice`},
		{map[string]any{"ids": []int{1}, "same": ""}, "name is empty"},
		{map[string]any{"ids": many, "same": "x"}, "more than 1000 different keys"},
		{map[string]any{"ids": many[:1000], "same": "x"}, "1002 resources"},
		{make(chan int), "unsupported type"},
		{json.RawMessage("{"), "args of a json.RawMessage"},
	} {
		items, err := r.Items(test.args)
		if items != nil || !errors.Is(err, locks.ErrInvalid) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%.60v: got %v, %v; want ErrInvalid that says %q", test.args, items, err, test.says)
		}
	}
	empty := newRule[any](t, rule.Options{Exclusive: []string{"b:{ids[*]}"}})
	if _, err := empty.Items(map[string]any{"ids": []int{}}); !errors.Is(err, locks.ErrInvalid) || !strings.Contains(err.Error(), "name nothing to lock") {
		t.Errorf("an empty list: got %v", err)
	}
}

func TestDoHoldsWhileItWorks(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		c := openClient(t, rdb)
		r := newRule[base](t, rule.Options{Exclusive: []string{"t:{tenant}"}, Info: json.RawMessage(`{"job":"x"}`)})
		bad := errors.New("it broke")
		for _, want := range []error{nil, bad} {
			err := rule.Do(t.Context(), c, r, base{"acme"}, func(ctx context.Context, hold *locks.Hold) error {
				records := holds(t, c)
				if len(records) != 1 || records[0].ID != hold.ID() || fmt.Sprint(hold.Names()) != "[t:acme]" ||
					string(records[0].Info) != `{"job":"x"}` {
					t.Errorf("got %+v while it works", records)
				}
				if ctx != hold.Context() || locks.FromContext(ctx) != hold || !c.IsHeld(ctx, "t:acme") {
					t.Error("the work's context is not the hold's")
				}
				return want
			})
			if !errors.Is(err, want) || want == nil && err != nil {
				t.Errorf("got %v, want %v", err, want)
			}
			if records := holds(t, c); len(records) != 0 {
				t.Errorf("got %+v after it", records)
			}
		}
		func() {
			defer func() {
				if got := recover(); got != "oops" {
					t.Errorf("recovered %v, want the panic of the work", got)
				}
			}()
			_ = rule.Do(t.Context(), c, r, base{"acme"}, func(context.Context, *locks.Hold) error { panic("oops") })
		}()
		if records := holds(t, c); len(records) != 0 {
			t.Errorf("got %+v after a panic", records)
		}
		never := func(context.Context, *locks.Hold) error { t.Error("it was called"); return nil }
		if err := rule.Do(t.Context(), c, r, base{"a\nb"}, never); !errors.Is(err, locks.ErrInvalid) {
			t.Errorf("a bad name: got %v", err)
		}
		if locks.FromContext(t.Context()) != nil {
			t.Error("a context without a hold has one")
		}
	})
}

func TestBusyPolicies(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		c := openClient(t, rdb)
		held, err := c.Acquire(within(t), locks.Exclusive("a"))
		if err != nil {
			t.Fatal(err)
		}
		for _, test := range []struct {
			onBusy rule.Busy
			wait   time.Duration
			fails  bool
			queued bool
		}{
			{rule.BusyWait, 20 * time.Millisecond, true, true},
			{rule.BusyFail, 0, true, false},
			{rule.BusyFail, 20 * time.Millisecond, true, true},
			{rule.BusySkip, 0, false, false},
			{rule.BusySkip, 20 * time.Millisecond, false, true},
		} {
			r := newRule[any](t, rule.Options{Exclusive: []string{"a"}, OnBusy: test.onBusy, Wait: test.wait})
			err := rule.Do(t.Context(), c, r, nil, func(context.Context, *locks.Hold) error {
				t.Error("it was called")
				return nil
			})
			var busy *locks.BusyError
			if errors.As(err, &busy) != test.fails || !test.fails && err != nil {
				t.Errorf("%q %s: got %v", test.onBusy, test.wait, err)
			}
			if busy != nil && (busy.Waited >= test.wait) != test.queued && test.wait > 0 {
				t.Errorf("%q %s: waited %s", test.onBusy, test.wait, busy.Waited)
			}
		}
		// A caller that stops waiting did not find it busy, so nothing is skipped.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r := newRule[any](t, rule.Options{Exclusive: []string{"a"}, OnBusy: rule.BusySkip, Wait: time.Hour})
		never := func(context.Context, *locks.Hold) error { t.Error("it was called"); return nil }
		if err := rule.Do(ctx, c, r, nil, never); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: got %v", err)
		}
		// Without a limit it waits in line.
		r = newRule[any](t, rule.Options{Exclusive: []string{"a"}})
		done := make(chan error, 1)
		worked := 0
		go func() {
			done <- rule.Do(t.Context(), c, r, nil, func(context.Context, *locks.Hold) error { worked++; return nil })
		}()
		for waits := 0; waits == 0; {
			listing, err := c.Space().Read(within(t))
			if err != nil {
				t.Fatal(err)
			}
			waits = len(listing.Waits)
		}
		if err := held.Release(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil || worked != 1 {
			t.Errorf("got %v, worked %d times", err, worked)
		}
	})
}

func TestDoReportsALostLock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		c := openClient(t, rdb)
		r := newRule[any](t, rule.Options{Exclusive: []string{"a"}})
		bad := errors.New("it broke")
		for _, work := range []error{nil, bad, context.Canceled} {
			err := rule.Do(t.Context(), c, r, nil, func(ctx context.Context, hold *locks.Hold) error {
				if _, err := c.Space().Revoke(ctx, "a", hold.Token(), locks.Take, locks.Revocation{By: "ada"}); err != nil {
					t.Error(err)
				}
				<-ctx.Done()
				return work
			})
			if !errors.Is(err, locks.ErrRevoked) || !errors.Is(err, locks.ErrLost) || work != nil && !errors.Is(err, work) {
				t.Errorf("the work returned %v: got %v, want that and ErrRevoked", work, err)
			}
		}
		if records := holds(t, c); len(records) != 0 {
			t.Errorf("got %+v after all", records)
		}
	})
}

func TestWrappedCallsNest(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		c := openClient(t, rdb)
		r := newRule[base](t, rule.Options{Exclusive: []string{"t:{tenant}"}, OnBusy: rule.BusyFail})
		var depths []string
		var settle func(ctx context.Context, args base) error
		settle = rule.Wrap(c, r, func(ctx context.Context, args base) error {
			depths = append(depths, args.Tenant)
			if n := len(holds(t, c)); n != 1 {
				t.Errorf("%d holds at depth %d", n, len(depths))
			}
			if len(depths) < 3 {
				return settle(ctx, args)
			}
			// another context is another holder
			if err := settle(t.Context(), args); !errors.Is(err, locks.ErrBusy) {
				t.Errorf("outside: got %v, want ErrBusy", err)
			}
			return nil
		})
		if err := settle(t.Context(), base{"acme"}); err != nil || len(depths) != 3 {
			t.Errorf("got %v at depths %v", err, depths)
		}
		if records := holds(t, c); len(records) != 0 {
			t.Errorf("got %+v after all", records)
		}
	})
}
