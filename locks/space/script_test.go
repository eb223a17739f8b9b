package space

import (
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

// TestScriptsSentTwiceChangeNothing sends every script in every situation again and compares all
// keys.
func TestScriptsSentTwiceChangeNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		r := newRig(t, rdb)
		if err := r.setTime(1_750_000_000_000_000); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			script, reply, again string
			args                 []any
		}{
			{"open", "open", "taken", []any{"s", 60_000, "{}", "space", 0}},
			{"renew", "ok", "ok", []any{"s", 60_000, "space", "1", 0, 0}},
			{"card", "ok", "ok", []any{"s", `{"a":1}`}},
			{"acquire", "granted", "granted", ask("s", "s.1", 0, 1000, "xa", "xb").args()},
			{"acquire", "waiting", "waiting", ask("s", "s.2", 0, 1000, "xb", "xc").args()},
			{"acquire", "waiting", "waiting", ask("s", "s.3", 500, 0, "xa").args()},
			{"acquire", "busy", "busy", ask("s", "s.4", -1, 1000, "xa").args()},
			{"acquire", "dead", "dead", ask("nobody", "nobody.1", -1, 1000, "xz").args()},
			{"acquire", "busy", "busy", ask("s", "s.3", -1, 0, "xa").args()}, // a wait's last try
			{"release", "released", "gone", []any{"s.1"}},                    // passes b to s.2
			{"acquire", "granted", "granted", ask("s", "s.2", 0, 1000, "xb", "xc").args()},
			{"acquire", "waiting", "waiting", ask("s", "s.5", 0, 1000, "xb").args()},
			{"release", "cancelled", "gone", []any{"s.5"}},
			{"release", "released", "gone", []any{"s.2", "s\x00s.2\x1f1750000000000001\x1f1750000000000\x1f\x1f\x1f\x1fxb\x1fxc", "b", "c"}},
			{"acquire.all", "11", "", []any{2, "s.6", "s.7", 1, 2, "a", "b", "c", "s", "\x1fxa", "\x1fxb\x1fxc"}},
			{"acquire.all", "01", "", []any{2, "s.6", "s.8", 1, 1, "a", "d", "s", "\x1fxa", "\x1fxd"}},
			{"release.all", "101", "", []any{
				3, "s\x00s.7\x1f1750000000000003\x1f1750000000000\x1f\x1f\x1f\x1fxb\x1fxc", "s\x00s.6\x1f1\x1f1\x1f\x1f\x1f\x1fxa",
				"s\x00s.8\x1f1750000000000004\x1f1750000000000\x1f\x1f\x1f\x1fxd", 2, 1, 1, "b", "c", "a", "d",
			}},
			{"reap", "60000", "60000", nil},
			{"close", "ended", "ended", []any{"s"}},
			{"renew", "dead", "dead", []any{"s", 60_000, "space", "1", 0, 0}},
			{"card", "dead", "dead", []any{"s", "{}"}},
		} {
			var dumps [2]*dump
			for i, want := range []string{step.reply, step.again} {
				if got := r.do(t, step.script, step.args...); got[0] != want {
					t.Errorf("%s %v, sending %d: got %q, want %s", step.script, step.args, i+1, got, want)
				}
				var err error
				if dumps[i], err = r.dump(); err != nil {
					t.Fatal(err)
				}
			}
			if err := dumps[1].differs(dumps[0]); err != nil {
				t.Errorf("%s %v: sending it again changed %v", step.script, step.args, err)
			}
			if err := dumps[0].check(r.us/1000, true); err != nil {
				t.Errorf("%s %v: %v", step.script, step.args, err)
			}
		}
	})
}

func TestTokensGrowWhateverHappens(t *testing.T) {
	t.Parallel()
	for name, rdb := range map[string]func() redis.UniversalClient{
		"redis":     func() redis.UniversalClient { return redistest.New(t, redistest.Options{}).Client(t) },
		"miniredis": func() redis.UniversalClient { return redistest.Mini(t) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rdb()) // its own server: it is flushed
			var last int64
			n := 0
			grows := func(when string) {
				t.Helper()
				r.open(t, "s", 60_000)
				for range 3 {
					n++
					got := r.acquire(t, "s", fmt.Sprint("s.", n), -1, 0, fmt.Sprint("x", n))
					if got[0] != "granted" || Int(got[1]) <= last {
						t.Errorf("%s: got %q after token %d", when, got, last)
					}
					last = Int(got[1])
				}
			}
			grows("at first")
			// The clock is set back: the last values are ahead of it.
			last = time.Now().Add(time.Hour).UnixMicro()
			if err := r.rdb.Set(r.ctx, r.keys[7], last, 0).Err(); err != nil {
				t.Fatal(err)
			}
			grows("with the clock an hour back")
			if want := time.Now().Add(time.Hour).UnixMicro(); last > want {
				t.Errorf("got token %d, want at most %d", last, want)
			}
			last = time.Now().UnixMicro() // tokens issued since have no effect on another clock
			if err := r.rdb.FlushAll(r.ctx).Err(); err != nil {
				t.Fatal(err)
			}
			grows("after FLUSHALL")
			if err := r.rdb.Set(r.ctx, r.keys[7], int64(1)<<53-10, 0).Err(); err != nil {
				t.Fatal(err)
			}
			last = 0
			grows("near 2^53")
			if want := int64(1)<<53 - 10 + 3; last != want {
				t.Errorf("got token %d, want %d: it lost digits", last, want)
			}
		})
	}
}

// TestFastPathIsShort counts the commands inside the scripts when nothing is due and no request
// waits.
func TestFastPathIsShort(t *testing.T) {
	t.Parallel()
	// its own server: its statistics are reset
	r := newRig(t, redistest.New(t, redistest.Options{}).Client(t))
	r.open(t, "s", 60_000)
	inside := func(script string, args ...any) int {
		t.Helper()
		r.do(t, "reap")
		if err := redis.NewScript(Script(script).Source(Format)).Load(r.ctx, r.rdb).Err(); err != nil {
			t.Fatal(err)
		}
		if err := r.rdb.ConfigResetStat(r.ctx).Err(); err != nil {
			t.Fatal(err)
		}
		r.do(t, script, args...)
		n := 0
		for command, calls := range commandStats(t, r.rdb) {
			if command != "evalsha" && command != "config|resetstat" && command != "info" {
				n += calls
			}
		}
		return n
	}
	items := ask("s", "s.1", 0, 1000, "xa", "xb", "xc").args()
	if got := inside("acquire", items...); got >= 10 {
		t.Errorf("acquire makes %d calls, want under 10", got)
	}
	member := r.do(t, "list", "h", "-", "+", 10)[2]
	if got := inside("release", "s.1", member, "a", "b", "c"); got > 6 {
		t.Errorf("release makes %d calls, want at most 6", got)
	}
	if got := r.do(t, "list", "h", "-", "+", 10); len(got) != 2 {
		t.Errorf("got %q after the release", got)
	}
	if got := inside("acquire.all", 2, "s.2", "s.3", 2, 1, "a", "b", "c", "s", "\x1fxa\x1fxb", "\x1fxc"); got > 10 {
		t.Errorf("acquire.all makes %d calls, want at most 10", got)
	}
	members := r.do(t, "list", "h", "-", "+", 10)
	if got := inside("release.all", 2, members[2], members[5], 2, 1, "a", "b", "c"); got > 8 {
		t.Errorf("release.all makes %d calls, want at most 8", got)
	}
	if got := r.do(t, "list", "h", "-", "+", 10); len(got) != 2 {
		t.Errorf("got %q after the releases", got)
	}
}

// TestWaitElsewhereLeavesTheFastPathShort counts the commands inside the scripts while requests
// wait for other names: each name of a bundle costs one more, however many requests wait, and for
// however many names.
func TestWaitElsewhereLeavesTheFastPathShort(t *testing.T) {
	t.Parallel()
	// its own server: its statistics are reset
	r := newRig(t, redistest.New(t, redistest.Options{}).Client(t))
	r.rdb.Del(r.ctx, r.keys[8]) // some entries trim what is kept
	r.open(t, "s", 600_000)
	r.open(t, "other", 600_000)
	calls := func(script string, args ...any) int {
		t.Helper()
		if err := r.rdb.ConfigResetStat(r.ctx).Err(); err != nil {
			t.Fatal(err)
		}
		r.do(t, script, args...)
		n := 0
		for command, calls := range commandStats(t, r.rdb) {
			if command != "evalsha" && command != "eval" && command != "script|load" && command != "config|resetstat" && command != "info" {
				n += calls
			}
		}
		return n
	}
	names := []any{"a", "b", "c"}
	many := make([]any, 0, 40) // for the scripts of many requests, each for one name
	for i := range 40 {
		many = append(many, fmt.Sprintf("m%02d", i))
	}
	pass := func(id string) (acquire, release, acquireAll, releaseAll int) {
		t.Helper()
		acquire = calls("acquire", ask("s", id, 0, 1000, "xa", "xb", "xc").args()...)
		held := r.do(t, "list", "h", "-", "+", 100)
		at := slices.IndexFunc(held, func(text string) bool { return strings.HasPrefix(text, "s\x00"+id+"\x1f") })
		if at < 0 {
			t.Fatalf("%s holds nothing: %q", id, held)
		}
		release = calls("release", append([]any{id, held[at]}, names...)...)

		n := len(many)
		ids, ones, infos := make([]any, n), make([]any, n), make([]any, n)
		for i, name := range many {
			ids[i], ones[i], infos[i] = fmt.Sprintf("%s-%d", id, i), 1, "\x1fx"+name.(string)
		}
		args := slices.Concat([]any{n}, ids, ones, many, []any{"s"}, infos)
		acquireAll = calls("acquire.all", args...)
		held = r.do(t, "list", "h", "-", "+", 100)
		members := make([]any, n)
		for i := range ids {
			prefix := fmt.Sprintf("s\x00%s\x1f", ids[i])
			at := slices.IndexFunc(held, func(text string) bool { return strings.HasPrefix(text, prefix) })
			if at < 0 {
				t.Fatalf("%s holds nothing: %q", ids[i], held)
			}
			members[i] = held[at]
		}
		releaseAll = calls("release.all", slices.Concat([]any{n}, members, ones, many)...)
		return acquire, release, acquireAll, releaseAll
	}
	// Redis has the scripts, and the first token of a millisecond takes no second command
	pass("s.warm")
	acquire, release, acquireAll, releaseAll := pass("s.alone")
	held := 0
	wait := func(name string) {
		t.Helper()
		held++
		for _, id := range []string{"holds", "waits"} {
			r.do(t, "acquire", ask("other", fmt.Sprintf("other.%s%d", id, held), 0, 600_000, "x"+name).args()...)
		}
	}
	check := func(when string, most int) {
		t.Helper()
		a, l, aa, la := pass("s." + when)
		for _, one := range []struct {
			script            string
			got, before, more int
		}{
			{"acquire", a, acquire, len(names)}, {"release", l, release, len(names)},
			{"acquire.all", aa, acquireAll, most}, {"release.all", la, releaseAll, most},
		} {
			if one.got > one.before+one.more+1 { // a token may take one command more
				t.Errorf("%s: %s makes %d calls, want at most %d more than the %d without a wait", when, one.script, one.got, one.more, one.before)
			}
		}
	}
	wait("bill")
	check("one", 2)
	for i := range 20 {
		r.do(t, "acquire", ask("other", fmt.Sprintf("other.more%d", i), 0, 600_000, "xbill").args()...)
	}
	check("twenty", 2)
	for i := range 30 {
		wait(fmt.Sprintf("bill%d", i))
	}
	check("thirty-names", 8+len(many))
}

// commandStats returns how often each command was called.
func commandStats(t testing.TB, rdb redis.UniversalClient) map[string]int {
	t.Helper()
	info, err := rdb.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	stats := make(map[string]int)
	for _, m := range regexp.MustCompile(`cmdstat_([^:]+):calls=(\d+)`).FindAllStringSubmatch(info, -1) {
		stats[m[1]], _ = strconv.Atoi(m[2])
	}
	return stats
}

// TestScriptsUseRedis62 keeps newer commands out.
func TestScriptsUseRedis62(t *testing.T) {
	t.Parallel()
	known := strings.Fields(`
		DEL EXISTS GET HDEL HEXISTS HGET HINCRBY HMGET HSET HSETNX INFO LINDEX LLEN LRANGE LTRIM PUBLISH RPUSH RPUSHX SET TIME TYPE ZADD ZCARD ZCOUNT ZLEXCOUNT ZMSCORE
		ZRANGE ZRANGEBYLEX ZRANGEBYSCORE ZREM ZREVRANGEBYLEX ZSCORE`)
	used := make(map[string]bool)
	err := fs.WalkDir(scriptFiles, "scripts", func(path string, file fs.DirEntry, err error) error {
		if err != nil || file.IsDir() {
			return err
		}
		source := readScript(strings.TrimSuffix(strings.TrimPrefix(path, "scripts/"), ".lua"))
		if strings.HasPrefix(source, "#!") {
			t.Errorf("%s: #!lua is Redis 7.0", file.Name())
		}
		for _, m := range regexp.MustCompile(`\bp?call\(('([A-Z]+)')?`).FindAllStringSubmatch(source, -1) {
			used[m[2]] = true
			if !slices.Contains(known, m[2]) {
				t.Errorf("%s calls %q, which is not known to be in Redis 6.2", file.Name(), m[2])
			}
		}
		for _, call := range []string{serverCall, replicationCall} { // their replies are read
			source = strings.Replace(source, call, "", 1)
		}
		// Of the replies to these, only a number is read, or whether they are errors.
		source = strings.NewReplacer("redis.pcall('RPUSH", "", "redis.pcall('SET'", "").Replace(source)
		if strings.Contains(source, "pcall") || strings.Contains(source, "redis.log") || strings.Contains(source, "cjson") {
			t.Errorf("%s uses more of Redis' Lua than both servers have alike", file.Name())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range known {
		if !used[command] {
			t.Errorf("%s is in the list and in no script", command)
		}
	}
}

// TestFullRedisKeepsLocks proves that, with no memory left, holds stay alive and can be released.
func TestFullRedisKeepsLocks(t *testing.T) {
	t.Parallel()
	r := newRig(t, redistest.New(t, redistest.Options{}).Client(t))
	r.open(t, "s", 60_000)
	for i := range 4 {
		r.acquire(t, "s", fmt.Sprint("s.", i), 0, 0, fmt.Sprint("x", i))
	}
	r.acquire(t, "s", "s.9", 0, 0, "x3")
	for setting, value := range map[string]string{"maxmemory": "1", "maxmemory-policy": "noeviction"} {
		if err := r.rdb.ConfigSet(r.ctx, setting, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	before, err := r.dump()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := r.run("acquire", ask("s", "s.5", 0, 0, "x5").args()...); err == nil || !Lasting(err) {
		t.Errorf("got %q, %v for an acquire, want a refusal that lasts", texts(got), err)
	}
	after, err := r.dump()
	if err != nil {
		t.Fatal(err)
	}
	if err := after.differs(before); err != nil {
		t.Errorf("the refused acquire changed %v", err)
	}
	for _, step := range [][]any{
		{"renew", "ok", "s", 60_000, "space", "1", 0, 0}, {"release", "released", "s.0"}, {"release", "released", "s.1", "s", "1"},
		{"release", "released", "s.3"}, {"close", "ended", "s"},
	} {
		if got := r.do(t, step[0].(string), step[2:]...); got[0] != step[1] {
			t.Errorf("%v: got %q", step, got)
		}
	}
}

// TestLargeSessionEndsInSteps ends a session of some hundred holds, by a close and by its lease,
// and finds everything passed on.
func TestLargeSessionEndsInSteps(t *testing.T) {
	t.Parallel()
	redistest.Large(t, func(t *testing.T, rdb *redis.Client) {
		for _, way := range []string{"close", "reap"} {
			r := newRig(t, rdb)
			if err := r.setTime(1_750_000_000_000_000); err != nil {
				t.Fatal(err)
			}
			r.open(t, "s", 1000)
			r.open(t, "heir", 60_000)
			const n = 450
			for i := range n {
				r.acquire(t, "s", fmt.Sprint("s.", i), 0, 1000, fmt.Sprint("xr", i))
				if i%3 == 0 {
					r.acquire(t, "heir", fmt.Sprint("heir.", i), 0, 1000, fmt.Sprint("xr", i))
				}
			}
			calls := 0
			for done := false; !done; calls++ {
				if calls > 20 {
					t.Fatalf("%s: not ended after %d calls", way, calls)
				}
				if way == "close" {
					done = r.do(t, "close", "s")[0] == "ended"
					continue
				}
				if calls == 0 {
					if err := r.setTime(r.us + 1_000_000); err != nil {
						t.Fatal(err)
					}
				}
				done = r.do(t, "reap")[0] != "0"
			}
			if calls < 3 {
				t.Errorf("%s: %d holds ended in %d calls, want some hundred a call", way, n, calls)
			}
			d, err := r.dump()
			if err == nil {
				err = d.check(r.us/1000, true)
			}
			if err != nil {
				t.Errorf("%s: %v", way, err)
			}
			if len(d.hold) != n/3 || len(d.wait) != 0 || len(d.exp) != 1 {
				t.Errorf("%s: got %d holds, %d waits and %d entries on the wheel, want %d, 0, 1",
					way, len(d.hold), len(d.wait), len(d.exp), n/3)
			}
		}
	})
}

// TestLongQueueIsWalkedInSteps puts the only grantable wait behind a hundred others.
func TestLongQueueIsWalkedInSteps(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		r := newRig(t, rdb)
		r.open(t, "s", 60_000)
		r.acquire(t, "s", "s.a", 0, 1000, "xa")
		r.acquire(t, "s", "s.b", 0, 1000, "xb")
		for i := range 100 {
			r.acquire(t, "s", fmt.Sprint("s.", i), 0, 600_000, "xa", "xb")
		}
		r.acquire(t, "s", "s.last", 0, 600_000, "xa")
		if got := r.do(t, "release", "s.a"); got[1] != "1" {
			t.Fatalf("got %q, want to hear of work that is left", got)
		}
		if r.do(t, "reap")[0] == "0" {
			t.Error("a second call did not finish the queue")
		}
		d, err := r.dump()
		if err != nil {
			t.Fatal(err)
		}
		if d.own["a"] != "xs.last" {
			t.Errorf("a is occupied by %q, want xs.last", d.own["a"])
		}
		if err := d.check(time.Now().UnixMilli(), true); err != nil {
			t.Error(err)
		}
	})
}

// TestGrantsGoByAge frees a bundle that an older and a younger request can use, and the younger
// one's first resource comes first.
func TestGrantsGoByAge(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		r := newRig(t, rdb)
		r.open(t, "s", 60_000)
		r.acquire(t, "s", "s.1", 0, 60_000, "xa", "xb")
		r.acquire(t, "s", "s.old", 0, 60_000, "xb")
		r.acquire(t, "s", "s.young", 0, 60_000, "xa", "xb")
		r.do(t, "release", "s.1")
		d, err := r.dump()
		if err != nil {
			t.Fatal(err)
		}
		if d.own["b"] != "xs.old" || d.own["a"] != "" {
			t.Errorf("got %v, want b passed to the older request", d.own)
		}
	})
}

// TestSearchThatIsCutShortRefuses has a chain of waits that is longer than one search, which a
// request may or may not close to a circle. The request is refused, and its error shows how far the
// search came.
func TestSearchThatIsCutShortRefuses(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		r := newRig(t, rdb)
		r.source = func(source string) string { return replaceBounds(t, source, "= 64, 64, 100, 250, 16, 12, 32") }
		r.open(t, "s", 60_000)
		const holds = 20
		for i := range holds {
			r.acquire(t, "s", fmt.Sprint("s.", i), -1, 0, fmt.Sprint("x", i))
		}
		wait := func(outer, wants int) []string {
			a := ask("s", fmt.Sprint("s.w", outer), 0, 1000, fmt.Sprint("x", wants))
			a.under = []string{fmt.Sprint("s.", outer)}
			return r.do(t, "acquire", a.args()...)
		}
		refused := 0
		for i := holds - 2; i > 0; i-- { // each waits for the next one's
			got := wait(i, i+1)
			if got[0] == "waiting" {
				continue
			}
			if refused++; got[0] != "deadlock" || got[len(got)-1] != "cut" || len(got)%3 != 2 || got[2] != fmt.Sprint("s.", i+1) {
				t.Fatalf("got %q", got)
			}
			break
		}
		if refused == 0 {
			t.Error("no search was cut short: the test proves nothing")
		}
	})
}

// TestEndOfASessionStaysAsItBegan ends sessions by many calls, in order and after a crash, while
// other calls contradict them and the server changes: each hold passes on, or rests, by the first
// of them. Faults that mix them up are found.
func TestEndOfASessionStaysAsItBegan(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		for _, fault := range []struct{ name, old, new string }{
			{"", "", ""},
			{"a later call makes another end of it", "if at and at ~= 0 and at ~= 1 then", "if at then"},
			{"a crashed session lives again", "if at and tonumber(at) > 1 then", "if at and tonumber(at) > 0 then"},
		} {
			found := false
			for _, how := range []string{"", "crashed"} {
				r := newRig(t, rdb)
				planted := fault.name == ""
				r.source = func(source string) string {
					if fault.name != "" && strings.Contains(source, fault.old) {
						source, planted = strings.ReplaceAll(source, fault.old, fault.new), true
					}
					return narrow(t, source)
				}
				server := func(id string) {
					t.Helper()
					if err := r.rdb.HSet(r.ctx, r.keys[6], "test:server", "run_id:"+id+"\r\nuptime_in_seconds:9").Err(); err != nil {
						t.Fatal(err)
					}
				}
				if err := r.setTime(1_750_000_000_000_000); err != nil {
					t.Fatal(err)
				}
				server("aa")
				r.do(t, "greet", 0, 0)
				r.open(t, "s", 60_000)
				const holds = 12
				for i := range holds {
					a := ask("s", fmt.Sprint("s.", i), -1, 0, fmt.Sprint("x", i))
					a.limits.crash = 3_600_000
					r.do(t, "acquire", a.args()...)
				}
				if got := r.do(t, "close", "s", how); got[0] != "more" {
					t.Fatalf("got %q, want a part of the end", got)
				}
				r.do(t, "close", "s", map[string]string{"": "crashed", "crashed": ""}[how])
				server("bb")
				r.do(t, "greet", 1000, 0)
				for calls := 0; calls < 100 && r.do(t, "close", "s", "")[0] != "ended"; calls++ {
				}
				d, err := r.dump()
				if err != nil {
					t.Fatal(err)
				}
				resting := 0
				for _, member := range d.hold {
					if strings.HasPrefix(member, "@") {
						resting++
					}
				}
				want := map[string]int{"": 0, "crashed": holds}[how]
				found = found || len(d.hold) != want || resting != want
				if fault.name == "" && found {
					t.Errorf("ended as %q: got %d holds, %d of them resting, want %d", how, len(d.hold), resting, want)
				}
				if !planted {
					t.Fatalf("the fault is not in the scripts: %q", fault.old)
				}
			}
			if fault.name != "" && !found {
				t.Errorf("not found: %s", fault.name)
			}
		}
	})
}

func TestLargestBundle(t *testing.T) {
	t.Parallel()
	redistest.Large(t, func(t *testing.T, rdb *redis.Client) {
		r := newRig(t, rdb)
		r.open(t, "s", 60_000)
		largest := func(id string) string {
			items := make([]string, MaxBundle)
			for i := range items {
				items[i] = fmt.Sprintf("x%0*d", MaxName, i)
			}
			return r.acquire(t, "s", id, 0, 0, items...)[0]
		}
		if got := largest("s.1"); got != "granted" {
			t.Fatalf("got %q", got)
		}
		for _, id := range []string{"s.2", "s.3"} {
			if got := largest(id); got != "waiting" {
				t.Fatalf("got %q for %s", got, id)
			}
		}
		r.do(t, "release", "s.1")
		for r.do(t, "reap")[0] == "0" { // a bundle that large gets its own script
		}
		d, err := r.dump()
		if err == nil {
			err = d.check(time.Now().UnixMilli(), true)
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(d.own) != MaxBundle || !strings.HasPrefix(d.hold[0], "s\x00s.2\x1f") {
			t.Errorf("got %d resources occupied, want %d, by s.2", len(d.own), MaxBundle)
		}
		for calls := 0; r.do(t, "close", "s")[0] != "ended"; calls++ {
			if calls > 100 {
				t.Fatalf("the session has not ended after %d calls", calls)
			}
		}
	})
}
