package guard

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
)

// Each script has its own file, which describes its arguments and replies. fence.lua comes before
// each of them.
//
//go:embed scripts/*.lua
var scriptFiles embed.FS

var (
	checkScript = NewScript(readScript("check"))
	setScript   = NewScript(readScript("set"))
)

func readScript(name string) string {
	source, err := scriptFiles.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic(err) // it is embedded
	}
	return string(source)
}

// RedisOptions are the settings of a [Redis] guard.
type RedisOptions struct {
	// Prefix begins the name of each record. Guards of the same effects need the same prefix.
	// Default "lockstep:guard".
	Prefix string

	// Keep is how long a record stays after the last check that it passed. 0, the default, means
	// forever, at about 100 bytes per name. A resource without a record accepts any token, so Keep
	// must be longer than any holder can be stopped and then resume. At least 1 s; days are a good
	// value. (Redis may evict a key with a limit earlier, under a maxmemory-policy that begins with
	// volatile.)
	Keep time.Duration
}

const (
	defaultPrefix = "lockstep:guard"
	minKeep       = time.Second // a smaller value is more likely in the wrong unit than intended
)

// Redis guards keys in Redis, by a record of each resource beside them. [Redis.Set] is for one
// value, [Redis.Run] for anything else that a script can do. [Redis.Check] writes only the record,
// for the moment when a holder begins to read, and makes Redis a [Store]. It is safe for concurrent
// use.
//
// The record of resource r is the key <prefix>{r}, or <prefix>:<r> if r has a hash tag of its own.
// So on Redis Cluster it is in the slot of a key named r, or with the same hash tag: resource
// "bill:{4711}", key "{4711}:total". Redis refuses keys of several slots in one call. To check
// bundles of arbitrary names there, give Prefix a hash tag: then all records are in its slot.
//
// Redis must not evict the records: use maxmemory-policy noeviction, or volatile-* without Keep.
type Redis struct {
	rdb    redis.Scripter
	prefix string
	keep   int64 // ms; 0: forever
}

// NewRedis returns a guard that sends its scripts through rdb, which the caller keeps and closes.
// It dials nothing. Error: Keep is negative or below 1 s.
func NewRedis(rdb redis.Scripter, o RedisOptions) (*Redis, error) {
	if o.Prefix == "" {
		o.Prefix = defaultPrefix
	}
	if o.Keep < 0 || o.Keep > 0 && o.Keep < minKeep {
		return nil, fmt.Errorf("guard: RedisOptions.Keep %s: want 0 (forever) or at least %s", o.Keep, minKeep)
	}
	return &Redis{rdb, o.Prefix, o.Keep.Milliseconds()}, nil
}

// record returns the key of a resource's record. No two resources share one: the byte after the
// prefix shows how to read the rest.
func (g *Redis) record(resource string) string {
	if open := strings.IndexByte(resource, '{'); open >= 0 {
		if length := strings.IndexByte(resource[open+1:], '}'); length > 0 {
			return g.prefix + ":" + resource
		}
	}
	// A brace would end the hash tag. Such a name shares its slot with no other.
	if strings.Contains(resource, "}") {
		return g.prefix + ":" + resource
	}
	return g.prefix + "{" + resource + "}"
}

// Check records token for all resources, or for none; it implements [Store]. It does not protect an
// effect that follows it; use [Redis.Set] or [Redis.Run] for that.
func (g *Redis) Check(ctx context.Context, token locks.Token, resources ...string) error {
	if err := g.Run(ctx, checkScript, token, resources, nil).Err(); err != nil {
		if errors.Is(err, ErrStale) {
			return err // it names everything already
		}
		return fmt.Errorf("check token %s of %s: %w", token, brief(resources), err)
	}
	return nil
}

// Set sets key to value, unless resource has seen a higher token: then key is unchanged and the
// error is a [*StaleError]. value is anything that go-redis accepts. The key expires after expire;
// 0 means never, as for SET.
//
// Sending it twice is harmless, unless the copy arrives after a later write under the same token:
// that sets the key back. go-redis sends again by itself when a reply is late, unless its
// MaxRetries is -1.
func (g *Redis) Set(ctx context.Context, token locks.Token, resource, key string, value any, expire time.Duration) error {
	if expire < 0 || expire > 0 && expire < time.Millisecond {
		return fmt.Errorf("%w: key %q expires after %s: want 0 (never) or at least 1ms", ErrInvalid, key, expire)
	}
	cmd := g.Run(ctx, setScript, token, []string{resource}, []string{key}, value, expire.Milliseconds())
	if err := cmd.Err(); err != nil {
		if errors.Is(err, ErrStale) {
			return err
		}
		return fmt.Errorf("set key %q under token %s of %s: %w", key, token, resource, err)
	}
	return nil
}

// A Script is Lua that runs after the check of a token; see [NewScript].
type Script struct {
	lua    string
	once   sync.Once
	script *redis.Script // the check and lua, once it was sent
}

// NewScript makes a script for [Redis.Run]. Write its Lua as usual: it sees the KEYS and ARGV that
// Run receives, and its reply is Run's. It must not begin with a "#!" line, and Redis counts its
// lines from those of the check before it. The token is recorded before the script runs, even if
// the script then fails.
func NewScript(lua string) *Script { return &Script{lua: lua} }

// assemble puts the check before the script. NewScript does not, because it often runs before main,
// also in processes that never send the script.
func (s *Script) assemble() *redis.Script {
	s.once.Do(func() { s.script = redis.NewScript(readScript("fence") + s.lua) })
	return s.script
}

// Run runs script if no resource has seen a higher token. Otherwise nothing is written and the
// error of the command is a [*StaleError]. All keys that script uses must be among keys.
//
// Sending the check twice is harmless. Whether that holds for script is for its author to know:
// INCR counts twice if go-redis sends it again after a late reply. Set MaxRetries to -1 there, or
// let the script remember the run's idempotency key.
func (g *Redis) Run(
	ctx context.Context, script *Script, token locks.Token, resources, keys []string, args ...any,
) *redis.Cmd {
	resources, err := prepare(token, resources)
	if err != nil {
		return failed(ctx, err)
	}
	allKeys := make([]string, 0, len(resources)+len(keys))
	for _, resource := range resources {
		allKeys = append(allKeys, g.record(resource))
	}
	allKeys = append(allKeys, keys...)
	allArgs := append([]any{token.String(), len(resources), g.keep}, args...)
	cmd := script.assemble().Run(ctx, g.rdb, allKeys, allArgs...)
	if err := cmd.Err(); err != nil {
		cmd.SetErr(g.explain(err, token, resources))
	}
	return cmd
}

func failed(ctx context.Context, err error) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(err)
	return cmd
}

// explain turns the refusal of fence.lua into a StaleError, and returns any other error unchanged.
// Among these are redis.Nil, which is a script's reply, and missing rights.
func (g *Redis) explain(err error, token locks.Token, resources []string) error {
	var refused redis.Error
	if !errors.As(err, &refused) {
		return err
	}
	fields := strings.SplitN(refused.Error(), " ", 3)
	if len(fields) != 3 || fields[0] != "LOCKSTEPSTALE" {
		return err
	}
	i, err := strconv.Atoi(fields[1])
	if err != nil || i < 1 || i > len(resources) {
		return fmt.Errorf("guard: unexpected reply of a script: %w", refused)
	}
	resource := resources[i-1]
	seen, err := locks.ParseToken(fields[2])
	if err != nil {
		return fmt.Errorf("guard: the record %s is broken: %w", g.record(resource), err)
	}
	return &StaleError{resource, token, seen}
}
