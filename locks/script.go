package locks

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Each script has its own file, which describes its arguments and replies. Before it come keys.lua,
// its fast path if it has one (<name>.fast.lua), space.lua, and server.lua if the script checks
// which server it runs on. A fast path for many requests at once is a separate script
// (<name>.all.lua). awaited.lua belongs to the fast paths.
//
//go:embed scripts/*.lua
var scriptFiles embed.FS

var (
	openScript       = newScript("open")
	renewScript      = newScript("renew")
	closeScript      = newScript("close")
	cardScript       = newScript("card")
	acquireScript    = newScript("acquire")
	releaseScript    = newScript("release")
	acquireAllScript = newScript("acquire.all")
	releaseAllScript = newScript("release.all")
	reapScript       = newScript("reap")
	listScript       = newScript("list")
	sessionsScript   = newScript("sessions")
	declareScript    = newScript("declare")
	undeclareScript  = newScript("undeclare")
	downScript       = newScript("downgrade")
	revokeScript     = newScript("revoke")
	standsScript     = newScript("stands")
	holdersScript    = newScript("holders")
	greetScript      = newScript("greet")
	assertScript     = newScript("assert")
	placeScript      = newScript("place")
	checkScript      = newScript("check")
)

func readScript(name string) string {
	source, err := scriptFiles.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic(err) // it is embedded
	}
	return string(source)
}

// A lazyScript is assembled when it is called for the first time, and stays the same from then on.
// Assembling all of them takes some milliseconds, which a process that never sends one should not
// pay. The guard of each command is such a process.
type lazyScript func() *redis.Script

// scripts has all of them by name. The map is not written after the package was initialized.
var scripts = make(map[string]lazyScript)

func newScript(name string) lazyScript {
	scripts[name] = sync.OnceValue(func() *redis.Script { return redis.NewScript(scriptSource(name)) })
	return scripts[name]
}

// ScriptNames returns the names of the scripts that this package sends, by the hashes in SLOWLOG
// and MONITOR.
func ScriptNames() map[string]string {
	names := make(map[string]string, len(scripts))
	for name, script := range scripts {
		names[script().Hash()] = name
	}
	return names
}

func scriptSource(name string) string { return sourceFor(name, Format) }

// sourceFor assembles a script as a build does that writes the given format.
func sourceFor(name string, format int) string {
	fast, server, guard := "", "", guardFor(format)
	switch name {
	case "acquire", "release":
		fast = readScript(name + ".fast")
	case "acquire.all", "release.all":
		guard = "" // a fast path
	case "open", "renew", "greet", "assert":
		server = readScript("server")
	}
	return readScript("keys") + LinkFast("", fast) + guard + link(readScript("awaited")+readScript("space"), server+readScript(name))
}

// guardFor returns the guard of a build that writes the given format. A fast path runs before it or
// without it: an acquire finds no live session in a space that was raised beyond its build, and a
// release removes a hold only if it is exactly as it was written.
func guardFor(format int) string {
	return fmt.Sprintf("local FORMAT, LEAST = %d, %d\n", format, leastFormat(format)) + withoutComments(readScript("guard"))
}

// runScript sends a script once. If the server does not know it yet, it sends the text.
func runScript(ctx context.Context, rdb redis.Scripter, script lazyScript, keys []string, args ...any) (reply, error) {
	return runAssembled(ctx, rdb, script(), keys, args...)
}

func runAssembled(ctx context.Context, rdb redis.Scripter, script *redis.Script, keys []string, args ...any) (reply, error) {
	return runFor(ctx, rdb, buildOf(rdb), as(rdb, script), keys, args...)
}

// runFor sends a script of the build that writes the given format.
func runFor(ctx context.Context, rdb redis.Scripter, build int, script *redis.Script, keys []string, args ...any) (reply, error) {
	answer, err := script.Run(ctx, rdb, keys, args...).Result()
	if err != nil {
		return nil, explain(err, namespaceOf(keys[0]), build)
	}
	return toReply(answer), nil
}

// A prepared script is sent so often that its command is prepared once.
type prepared struct {
	script *redis.Script
	prefix []any // of the command: EVALSHA, hash, number of keys, keys
}

func prepare(script *redis.Script, keys []string) prepared {
	p := prepared{script, []any{"EVALSHA", script.Hash(), len(keys)}}
	for _, key := range keys {
		p.prefix = append(p.prefix, key)
	}
	return p
}

// command returns the whole command.
func (p prepared) command(args []any) []any {
	command := make([]any, 0, len(p.prefix)+len(args))
	return append(append(command, p.prefix...), args...)
}

func toReply(answer any) reply {
	switch answer := answer.(type) {
	case []any:
		return answer
	case string: // from a fast path
		r := make(reply, 0, 3)
		for field := range strings.SplitSeq(answer, "\x1f") {
			r = append(r, field)
		}
		return r
	}
	return reply{answer}
}

// reply is a script's reply: a list of strings and integers.
type reply []any

// text returns field i as a string, and "" if the reply is shorter.
func (r reply) text(i int) string {
	if i >= len(r) {
		return ""
	}
	switch field := r[i].(type) {
	case string:
		return field
	case int64:
		return strconv.FormatInt(field, 10)
	}
	return ""
}

// fieldsOf splits a record, or a list in an argument or a reply.
func fieldsOf(text string) []string { return strings.Split(text, "\x1f") }

// number returns field i as a number, and 0 if it is none.
func (r reply) number(i int) int64 {
	if i < len(r) {
		if field, ok := r[i].(int64); ok {
			return field
		}
	}
	n, _ := strconv.ParseInt(r.text(i), 10, 64)
	return n
}

// errReply reports a reply that the protocol does not know.
func errReply(script string, r reply) error {
	return fmt.Errorf("locks: unexpected reply of script %s: %q", script, r.text(0))
}

// passing reports whether an error may pass, so that the same command should be sent again. That is
// every error on the way, and every reply that is not a refusal (see [Refused]).
func passing(err error) bool {
	return !errors.Is(err, redis.ErrClosed) && !errors.Is(err, redis.Nil) && !Refused(err)
}

// lasting reports whether an error reply that may pass probably lasts until a person acts: Redis
// has no memory left, cannot write to its disk, or rejects the password. A waiting request is sent
// again all the same; a try is not.
func lasting(err error) bool {
	switch codeOf(err) {
	case "OOM", "MISCONF", "NOAUTH", "WRONGPASS":
		return true
	}
	return false
}

// unsent reports whether a command that failed with err surely never reached Redis.
func unsent(err error) bool {
	var refused redis.Error
	var op *net.OpError
	return errors.As(err, &refused) || errors.Is(err, redis.ErrPoolTimeout) || errors.As(err, &op) && op.Op == "dial"
}
