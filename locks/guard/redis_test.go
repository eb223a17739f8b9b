package guard_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/guard"
	"lockstep/locks/redistest"
)

// TestNoScriptIsAssembledBeforeMain: many programs import the package and send none.
func TestNoScriptIsAssembledBeforeMain(t *testing.T) {
	t.Parallel()
	if early {
		t.Error("a package variable assembles a script")
	}
	noError(t, newRedis(t, redistest.Client(t)).Check(within(t), 1, "a"))
	if !guard.Assembled() {
		t.Error("assembled scripts are not noticed")
	}
}

// newRedis returns a guard with records that no other test sees.
func newRedis(t testing.TB, rdb redis.Scripter) *guard.Redis {
	t.Helper()
	g, err := guard.NewRedis(rdb, guard.RedisOptions{Prefix: redistest.Namespace(t)})
	noError(t, err)
	return g
}

func TestSetRefusesAnOlderToken(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		g, ctx := newRedis(t, rdb), within(t)
		key := redistest.Namespace(t)
		set := func(token locks.Token, value any) error { return g.Set(ctx, token, "bill:1", key, value, 0) }
		get := func() string { return rdb.Get(ctx, key).Val() }

		noError(t, set(10, "ten"))
		noError(t, set(11, "eleven"))
		wantStale(t, set(10, "ten again"), "bill:1", 10, 11)
		if got := get(); got != "eleven" {
			t.Errorf("the key is %q, want eleven", got)
		}
		noError(t, set(11, []byte("a\x00\xff"))) // any bytes
		if got := get(); got != "a\x00\xff" {
			t.Errorf("the key is %q", got)
		}
		noError(t, set(11, 4711))
		noError(t, set(11, 4711)) // the same command once more
		if got := get(); got != "4711" {
			t.Errorf("the key is %q, want 4711", got)
		}
	})
}

func TestSetTakesAnExpiry(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		g, ctx := newRedis(t, rdb), within(t)
		key := redistest.Namespace(t)
		noError(t, g.Set(ctx, 1, "a", key, "v", time.Hour))
		if left := rdb.PTTL(ctx, key).Val(); left <= 59*time.Minute || left > time.Hour {
			t.Errorf("the key expires in %s, want an hour", left)
		}
		noError(t, g.Set(ctx, 1, "a", key, "v", 0))
		if left := rdb.PTTL(ctx, key).Val(); left != -1 {
			t.Errorf("the key expires in %s, want never", left)
		}
		for _, expire := range []time.Duration{-1, redis.KeepTTL, time.Microsecond} {
			if err := g.Set(ctx, 1, "a", key, "w", expire); !errors.Is(err, guard.ErrInvalid) {
				t.Errorf("expiry after %s: got %v, want ErrInvalid", expire, err)
			}
		}
	})
}

func TestKeepBoundsARecord(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		ctx, prefix := within(t), redistest.Namespace(t)
		record := prefix + "{a}"
		days, err := guard.NewRedis(rdb, guard.RedisOptions{Prefix: prefix, Keep: 48 * time.Hour})
		noError(t, err)
		noError(t, days.Check(ctx, 10, "a"))
		noError(t, rdb.Expire(ctx, record, time.Minute).Err())
		noError(t, days.Check(ctx, 10, "a")) // each check counts, even under the same token
		if left := rdb.PTTL(ctx, record).Val(); left <= 47*time.Hour || left > 48*time.Hour {
			t.Errorf("the record stays for %s, want 48h", left)
		}
		noError(t, rdb.Expire(ctx, record, time.Hour).Err())
		wantStale(t, days.Check(ctx, 9, "a"), "a", 9, 10)
		if left := rdb.PTTL(ctx, record).Val(); left > time.Hour {
			t.Errorf("a refused check made the record stay for %s", left)
		}
		forever, err := guard.NewRedis(rdb, guard.RedisOptions{Prefix: prefix})
		noError(t, err)
		noError(t, forever.Check(ctx, 10, "a"))
		if left := rdb.PTTL(ctx, record).Val(); left != -1 {
			t.Errorf("the record stays for %s, want for ever", left)
		}
		for _, keep := range []time.Duration{-time.Hour, 7, 999 * time.Millisecond} {
			if _, err := guard.NewRedis(rdb, guard.RedisOptions{Keep: keep}); err == nil {
				t.Errorf("Keep %s is accepted", keep)
			}
		}
	})
}

func TestScriptSeesItsOwnKeysAndArguments(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		g, ctx := newRedis(t, rdb), within(t)
		echo := guard.NewScript(`
			local out = {tostring(#KEYS), tostring(#ARGV)}
			for _, k in ipairs(KEYS) do out[#out + 1] = k end
			for _, a in ipairs(ARGV) do out[#out + 1] = a end
			return out`)
		got, err := g.Run(ctx, echo, 10, []string{"a", "b"}, []string{"k1", "k2"}, "v", 7).StringSlice()
		noError(t, err)
		if want := []string{"2", "2", "k1", "k2", "v", "7"}; !slices.Equal(got, want) {
			t.Errorf("the script has seen %q, want %q", got, want)
		}
		got, err = g.Run(ctx, echo, 10, []string{"a"}, nil).StringSlice()
		noError(t, err)
		if want := []string{"0", "0"}; !slices.Equal(got, want) {
			t.Errorf("the script has seen %q, want %q", got, want)
		}
	})
}

func TestRepliesOfAScriptStayAsTheyAre(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		g, ctx := newRedis(t, rdb), within(t)
		run := func(lua string) *redis.Cmd { return g.Run(ctx, guard.NewScript(lua), 10, []string{"a"}, nil) }
		if err := run(`return nil`).Err(); err != redis.Nil { //nolint:errorlint // its users compare by ==
			t.Errorf("nil: got %v, want redis.Nil itself", err)
		}
		if err := run(``).Err(); err != redis.Nil { //nolint:errorlint // as above
			t.Errorf("no return: got %v, want redis.Nil itself", err)
		}
		if n, err := run(`return 7`).Int(); n != 7 || err != nil {
			t.Errorf("7: got %d, %v", n, err)
		}
		err := run(`return redis.error_reply('MINE is broken')`).Err()
		if err == nil || err.Error() != "MINE is broken" || errors.Is(err, guard.ErrStale) {
			t.Errorf("an error: got %v", err)
		}
	})
}

func TestStaleScriptDoesNothing(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		g, ctx := newRedis(t, rdb), within(t)
		key := redistest.Namespace(t)
		incr := guard.NewScript(`return redis.call('INCRBY', KEYS[1], ARGV[1])`)
		run := func(token locks.Token, by int, resources ...string) (int, error) {
			return g.Run(ctx, incr, token, resources, []string{key}, by).Int()
		}
		n, err := run(11, 5, "a")
		if n != 5 || err != nil {
			t.Fatalf("got %d, %v; want 5", n, err)
		}
		_, err = run(10, 1, "b", "a")
		wantStale(t, err, "a", 10, 11)
		if _, err := run(0, 1, "a"); !errors.Is(err, guard.ErrInvalid) {
			t.Errorf("token 0: got %v, want ErrInvalid", err)
		}
		if n, err := run(11, 0, "a"); n != 5 || err != nil {
			t.Errorf("got %d, %v; want 5 still", n, err)
		}
		if n, err := run(1, 0, "b"); n != 5 || err != nil {
			t.Errorf("the refused bundle was recorded in part: %d, %v", n, err)
		}
	})
}

func TestBrokenRecordRefusesEveryToken(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		ctx, prefix := within(t), redistest.Namespace(t)
		g, err := guard.NewRedis(rdb, guard.RedisOptions{Prefix: prefix})
		noError(t, err)
		key := redistest.Namespace(t)
		for _, junk := range []string{"", "hello you", "nan", "-nan", "1e", "inf"} {
			noError(t, rdb.Set(ctx, prefix+"{a}", junk, 0).Err())
			err := g.Set(ctx, 10, "a", key, "v", 0)
			if err == nil || errors.Is(err, guard.ErrStale) {
				t.Errorf("record %q: got %v, want an error that is not ErrStale", junk, err)
			} else if !strings.Contains(err.Error(), prefix+"{a}") {
				t.Errorf("record %q: %v does not name it", junk, err)
			}
		}
		noError(t, rdb.Del(ctx, prefix+"{a}").Err())
		noError(t, rdb.LPush(ctx, prefix+"{a}", "x").Err())
		if err := g.Set(ctx, 10, "a", key, "v", 0); err == nil || errors.Is(err, guard.ErrStale) {
			t.Errorf("a list as record: got %v, want an error that is not ErrStale", err)
		}
		if n := rdb.Exists(ctx, key).Val(); n != 0 {
			t.Error("the key was set")
		}
	})
}

func TestScriptsNeverGoBack(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		g, ctx := newRedis(t, rdb), within(t)
		key := redistest.Namespace(t)
		push := guard.NewScript(`return redis.call('RPUSH', KEYS[1], ARGV[1])`)
		accepted, refused := storm(t, 16, 40, func(token locks.Token) error {
			return g.Run(ctx, push, token, []string{"a"}, []string{key}, token.String()).Err()
		})
		var log []locks.Token
		for _, text := range rdb.LRange(ctx, key, 0, -1).Val() {
			token, err := locks.ParseToken(text)
			noError(t, err)
			log = append(log, token)
		}
		checkLog(t, log, accepted, refused)
	})
}

// TestRecordsLieBesideTheirKeys runs on a server in cluster mode, which refuses keys of several
// slots.
func TestRecordsLieBesideTheirKeys(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{Config: []string{"cluster-enabled yes"}})
	rdb, ctx := server.Client(t), within(t)
	noError(t, rdb.ClusterAddSlotsRange(ctx, 0, 16383).Err())
	eventually(t, "the cluster is up", func() bool {
		return strings.Contains(rdb.ClusterInfo(ctx).Val(), "cluster_state:ok")
	})
	g, err := guard.NewRedis(rdb, guard.RedisOptions{})
	noError(t, err)
	for _, c := range []struct{ resource, key string }{
		{"bill:1", "bill:1"}, {"a{b", "a{b"}, {"bill:{1}", "bill:{1}"}, {"bill:{1}", "{1}:total"}, {"bill:1", "{bill:1}:total"},
		{"{{a}", "{{a}"}, {"a{b}{c}", "x{b}"},
	} {
		if err := g.Set(ctx, 10, c.resource, c.key, "v", 0); err != nil {
			t.Errorf("resource %q, key %q: %v", c.resource, c.key, err)
		}
	}
	if err := g.Set(ctx, 10, "bill:1", "bill:2", "v", 0); err == nil || !strings.HasPrefix(unwrapAll(err).Error(), "CROSSSLOT") {
		t.Errorf("another slot: got %v, want CROSSSLOT: otherwise this test proves nothing", err)
	}
	tagged, err := guard.NewRedis(rdb, guard.RedisOptions{Prefix: "{guard}"})
	noError(t, err)
	noError(t, tagged.Check(ctx, 10, "bill:1", "bill:2", "{x}", "y{z}"))
}

func unwrapAll(err error) error {
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err
}

func TestForgottenScriptIsSentAgain(t *testing.T) {
	t.Parallel()
	rdb := redistest.New(t, redistest.Options{}).Client(t)
	g, ctx := newRedis(t, rdb), within(t)
	noError(t, g.Check(ctx, 10, "a"))
	noError(t, rdb.ScriptFlush(ctx).Err())
	noError(t, g.Check(ctx, 11, "a"))
	noError(t, rdb.ScriptFlush(ctx).Err())
	wantStale(t, g.Check(ctx, 10, "a"), "a", 10, 11)
}

// TestScriptsKeepToOldCommands: GET and SET with PX are older than any Redis that is supported.
func TestScriptsKeepToOldCommands(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("scripts/*.lua")
	noError(t, err)
	if len(files) != 3 {
		t.Errorf("got %q, want three scripts", files)
	}
	calls := regexp.MustCompile(`call\(('[A-Z]+')?`)
	for _, file := range files {
		source, err := os.ReadFile(file)
		noError(t, err)
		for _, call := range calls.FindAllString(string(source), -1) {
			if call != "call('GET'" && call != "call('SET'" {
				t.Errorf("%s has %s", file, call)
			}
		}
	}
}
