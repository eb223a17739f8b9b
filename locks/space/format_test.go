package space

import (
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

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
				"sessions": nil, "holders": {"a", 10}, "valid": {"s.1"}, "generation": {"s"}, "check": nil, "notify": nil,
			} {
				answer, err := r.run(script, args...)
				var refused *FormatError
				if !errors.As(err, &refused) || refused.Namespace != NamespaceOf(r.keys[0]) {
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
		r.source = func(string) string { return Renew.Source(2) }
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
		r.source = func(string) string { return Open.Source(1) }
		for i := range names {
			names[i] = "s" + Token(1000+i).String()
			r.do(t, "open", names[i], 60_000, `{"format":2}`, "space", 0)
		}
		r.source = nil
		last := names[len(names)-1]
		r.do(t, "card", last, `{"format":1}`)
		r.source = func(string) string { return Renew.Source(2) }
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
