package space

import (
	"context"
	"embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Each script has its own file, which describes its arguments and replies. Before it come its fast
// paths, if it has some (<name>.fast.lua, and then <name>.handoff.lua), and what they use of the
// keys, of lib and of slow, see [Link]. A fast path for many requests at once is a separate script
// (<name>.all.lua).
//
//go:embed scripts
var scriptFiles embed.FS

// A Script is one of the scripts of the space, by the name of its file.
type Script string

const (
	Acquire    Script = "acquire"
	AcquireAll Script = "acquire.all"
	Assert     Script = "assert"
	Card       Script = "card"
	Check      Script = "check"
	Close      Script = "close"
	Declare    Script = "declare"
	Downgrade  Script = "downgrade"
	Generation Script = "generation"
	Greet      Script = "greet"
	Holders    Script = "holders"
	List       Script = "list"
	Notify     Script = "notify"
	Open       Script = "open"
	PastPage   Script = "past"
	Reap       Script = "reap"
	Release    Script = "release"
	ReleaseAll Script = "release.all"
	Renew      Script = "renew"
	Revoke     Script = "revoke"
	Sessions   Script = "sessions"
	Undeclare  Script = "undeclare"
	Valid      Script = "valid"
)

// scripts has all of them.
var scripts = lazily(
	Acquire, AcquireAll, Assert, Card, Check, Close, Declare, Downgrade, Generation, Greet, Holders, List, Notify, Open, PastPage,
	Reap, Release, ReleaseAll, Renew, Revoke, Sessions, Undeclare, Valid,
)

func lazily(all ...Script) map[Script]func() *redis.Script {
	assemble := make(map[Script]func() *redis.Script, len(all))
	for _, s := range all {
		assemble[s] = Named("locks/"+string(s), func() string { return s.Source(Format) })
	}
	return assemble
}

// Named returns a script that is assembled when it is sent for the first time, and stays the same
// from then on. [NameOf] knows its name by then. Assembling all scripts would take a worker longer
// than the rest of its start, and the guard of a command sends none.
func Named(name string, text func() string) func() *redis.Script {
	return sync.OnceValue(func() *redis.Script {
		script := redis.NewScript(text())
		assembled.Store(script.Hash(), name)
		return script
	})
}

var assembled sync.Map // hash of a script -> its name

// NameOf returns the name of a script that this process may have sent, by its hash, or "".
func NameOf(hash string) string {
	name, _ := assembled.Load(hash)
	text, _ := name.(string)
	return text
}

// Scripts returns all scripts of the space, sorted by name.
func Scripts() []Script { return slices.Sorted(maps.Keys(scripts)) }

// ScriptNames returns the names of the scripts of the space, by the hashes in SLOWLOG and MONITOR.
func ScriptNames() map[string]string {
	names := make(map[string]string, len(scripts))
	for _, s := range Scripts() {
		names[s.Hash()] = string(s)
	}
	return names
}

// Redis returns the script as it is sent.
func (s Script) Redis() *redis.Script { return scripts[s]() }

// Hash returns the hash by which Redis knows the script.
func (s Script) Hash() string { return s.Redis().Hash() }

// Source assembles the script as a build does that writes the given format. A fast path runs before
// the guard or without it: an acquire finds no live session in a space that was raised beyond its
// build, and a release removes a hold only if it is exactly as it was written.
func (s Script) Source(format int) string {
	switch s {
	case Acquire, Release:
		return linkFor(format, "", readScript(string(s)), readScript(string(s)+".fast"), readScript(string(s)+".handoff"))
	case AcquireAll, ReleaseAll:
		return linkFor(format, "", "", readScript(string(s)))
	}
	return linkFor(format, "", readScript(string(s)))
}

func readScript(name string) string {
	source, err := scriptFiles.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic(err) // it is embedded
	}
	return string(source)
}

// readLibrary reads files of the library, one after the other.
func readLibrary(folder string, names ...string) string {
	var b strings.Builder
	for _, name := range names {
		b.WriteString(readScript(folder + name))
	}
	return b.String()
}

// Run sends a script once. If the server does not know it yet, it sends the text.
func Run(ctx context.Context, rdb redis.Scripter, script Script, keys []string, args ...any) (Reply, error) {
	return RunText(ctx, rdb, script.Redis(), keys, args...)
}

// RunText is [Run] for a script that is assembled already.
func RunText(ctx context.Context, rdb redis.Scripter, script *redis.Script, keys []string, args ...any) (Reply, error) {
	return RunFor(ctx, rdb, BuildOf(rdb), As(rdb, script), keys, args...)
}

// RunFor sends a script of the build that writes the given format.
func RunFor(ctx context.Context, rdb redis.Scripter, build int, script *redis.Script, keys []string, args ...any) (Reply, error) {
	answer, err := script.Run(ctx, rdb, keys, args...).Result()
	if err != nil {
		return nil, Explain(err, NamespaceOf(keys[0]), build)
	}
	return ToReply(answer), nil
}

// Unexpected reports a reply that the protocol does not know.
func Unexpected(script string, r Reply) error {
	return fmt.Errorf("locks: unexpected reply of script %s: %q", script, r.At(0))
}
