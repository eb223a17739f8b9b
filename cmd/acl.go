package cmd

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"lockstep/configs"
)

// A role is a purpose of a Redis user, with the least rights that it needs.
type role struct {
	name     string
	purpose  string
	keys     []string // patterns
	channels []string // patterns
	commands []string // in lower case, each once, sorted
}

// Commands by purpose. Scripts run with the rights of their caller, so the commands that scripts
// call count too. A test compares these lists with the texts of our scripts and of asynq's.
var (
	// Every client connects and sends scripts.
	aclConnect = []string{"ping", "select", "eval", "evalsha", "time"}

	// Reads of the lock space, the ledger and the queues.
	aclRead = []string{"exists", "get", "hexists", "hget", "hgetall", "hkeys", "hlen", "hmget", "hscan", "hstrlen", "lindex", "llen", "lrange", "smembers", "type", "xrange", "xrevrange",
		"zcard", "zcount", "zlexcount", "zmscore", "zrange", "zrangebylex", "zrangebyscore", "zrevrange", "zrevrangebylex", "zscore"}

	// Writes by our scripts and by pausing a queue.
	aclWrite = []string{"del", "expireat", "hdel", "hincrby", "hset", "hsetnx", "incrby", "lrem", "ltrim", "publish", "rpush", "rpushx", "set", "setnx", "xadd", "xdel", "xtrim", "zadd",
		"zrem", "multi", "exec"}

	// Enqueuing a task the way asynq's client does it.
	aclSend = []string{"sadd", "exists", "hset", "lpush", "zadd"}

	// The rest that a running asynq server needs: fetching, heartbeats, recovery.
	aclServe = []string{"expire", "incr", "lpush", "rpoplpush", "setex", "srem", "subscribe", "unsubscribe", "zremrangebyrank", "zremrangebyscore"}
)

// roles returns the Redis users that an installation needs, the most powerful first.
func roles(settings configs.Settings, queues []string) []role {
	space := "{" + glob(settings.Redis.Namespace) + "}:"
	owners, announced, notify := "lockstep:queues", "asynq:queues", space+"to:*"
	var all, sent []string
	for _, q := range queues {
		own := "asynq:{" + glob(q) + "}:"
		all = append(all, own+"*")
		sent = append(sent, own+"t:*", own+"pending", own+"scheduled")
	}
	list := []role{
		{"worker", "lockstep start", slices.Concat([]string{space + "*", owners, announced, "asynq:servers*", "asynq:workers*"}, all),
			[]string{notify, "asynq:cancel"}, slices.Concat(aclConnect, aclRead, aclWrite, aclSend, aclServe, []string{"info", "config|get"})},
		{"operator", "the commands that act (run, cancel, pause, release), lock exec, run output -f, and enqueue with --wait",
			slices.Concat([]string{space + "*", owners, announced}, all), []string{notify},
			slices.Concat(aclConnect, aclRead, aclWrite, aclSend, []string{"info", "config|get", "subscribe", "unsubscribe"})},
		{"reader", "the commands that read (ls, show, explain), doctor", slices.Concat([]string{space + "*", owners, announced}, all), nil,
			slices.Concat(aclConnect, aclRead, []string{"info", "config|get"})},
		{"producer", "lockstep enqueue and plain asynq clients", slices.Concat([]string{announced}, sent), nil,
			slices.Concat([]string{"ping", "select", "eval", "evalsha"}, aclSend)},
	}
	topology, _ := settings.Redis.Topology()
	for i := range list {
		if topology == "redis-cluster" {
			list[i].commands = append(list[i].commands, "cluster|slots", "readonly", "command")
		}
		slices.Sort(list[i].commands)
		list[i].commands = slices.Compact(list[i].commands)
	}
	return list
}

// sentinelRole is the user of redis.sentinel, which all processes use at the sentinels. Sentinels
// have no keys.
var sentinelRole = role{
	name: "sentinel", purpose: "every command, at each sentinel: redis.sentinel", channels: []string{"+switch-master", "+replica-reconf-done"},
	commands: []string{"ping", "sentinel|get-master-addr-by-name", "sentinel|sentinels", "subscribe", "unsubscribe"},
}

// glob escapes a text, so that as a pattern it matches only itself.
func glob(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(text)
}

// rule formats a role as an ACL SETUSER command for redis-cli.
func (r role) rule(namespace, password string) string {
	words := []string{"ACL", "SETUSER", namespace + "-" + r.name, "reset", "on", ">" + password}
	for _, key := range r.keys {
		words = append(words, "~"+key)
	}
	for _, channel := range r.channels {
		words = append(words, "&"+channel)
	}
	words = append(words, "-@all")
	for _, command := range r.commands {
		words = append(words, "+"+command)
	}
	return strings.Join(words, " ")
}

// queuesOf returns the queues that a config names.
func queuesOf(config *configs.Config) []string {
	names := maps.Clone(config.Settings.Worker.Queues)
	if names == nil {
		names = make(map[string]int)
	}
	for _, job := range config.Jobs {
		names[job.Queue] = 1
	}
	return slices.Sorted(maps.Keys(names))
}

// acl prints the least rights of each role.
func (t *tool) acl(config *configs.Config) error {
	var b strings.Builder
	list := roles(config.Settings, queuesOf(config))
	if topology, _ := config.Settings.Redis.Topology(); topology == "redis-sentinel" {
		list = append(list, sentinelRole)
	}
	for _, r := range list {
		fmt.Fprintf(&b, "# %s: %s\n%s\n", r.name, r.purpose, r.rule(config.Settings.Redis.Namespace, "CHANGE-ME"))
	}
	return t.write(b.String())
}

// rightsScript asks the server which commands the user has no right to run, without executing them.
// ARGV: commands with their arguments, each joined by spaces into one string. It returns the
// indexes of the refused ones, or -1 if the server cannot tell (before Redis 7.0).
var rightsScript = redis.NewScript(`
if not redis.acl_check_cmd then return {-1} end
local missing = {}
for i = 1, #ARGV do
  local words = {}
  for word in string.gmatch(ARGV[i], '%S+') do words[#words + 1] = word end
  local known, may = pcall(redis.acl_check_cmd, unpack(words))
  if known and not may then missing[#missing + 1] = i end
end
return missing`)

// keyless maps each command that names no key to arguments for a check.
var keyless = map[string]string{"ping": "", "select": "0", "eval": "x 0", "evalsha": "x 0", "time": "", "multi": "", "exec": "", "info": "",
	"config|get": "save", "cluster|slots": "", "readonly": "", "command": ""}

// lacking returns the rules that would give a user the rights it lacks for a role. known is false
// if the server cannot tell.
func lacking(ctx context.Context, rdb redis.UniversalClient, r role) (missing []string, known bool, err error) {
	var args []any
	var rules []string
	ask := func(rule, command string, arguments ...string) {
		words := append([]string{strings.ReplaceAll(command, "|", " ")}, arguments...)
		args, rules = append(args, strings.Join(words, " ")), append(rules, rule)
	}
	for _, key := range r.keys {
		ask("~"+key, "exists", sample(key))
	}
	for _, command := range r.commands {
		switch arguments, plain := keyless[command]; {
		case plain:
			ask("+"+command, command, arguments)
		case command == "publish":
			for _, channel := range r.channels {
				ask("+publish &"+channel, command, sample(channel), "x")
			}
		case command == "subscribe" || command == "unsubscribe":
			for _, channel := range r.channels {
				ask("+"+command+" &"+channel, command, sample(channel))
			}
		default: // some commands have a second key
			ask("+"+command, command, sample(r.keys[0]), sample(r.keys[0]), sample(r.keys[0]))
		}
	}
	numbers, err := rightsScript.Run(ctx, rdb, nil, args...).Int64Slice()
	switch {
	case redis.HasErrorPrefix(err, "NOPERM"):
		return []string{"+eval", "+evalsha"}, true, nil
	case err != nil:
		return nil, false, err
	case len(numbers) > 0 && numbers[0] < 0:
		return nil, false, nil
	}
	for _, n := range numbers {
		missing = append(missing, rules[n-1])
	}
	return missing, true, nil
}

// sample returns a name that matches a pattern of ours.
func sample(pattern string) string {
	return strings.ReplaceAll(strings.TrimSuffix(pattern, "*"), `\`, "") + map[bool]string{true: "x"}[strings.HasSuffix(pattern, "*")]
}

// rights checks what the config's Redis user may do.
func (d *doctor) rights(ctx context.Context, conn *connection, config *configs.Config) error {
	settings := conn.settings
	queues := slices.Sorted(maps.Keys(settings.Worker.Queues))
	if config != nil {
		queues = queuesOf(config)
	}
	var first []string
	for _, r := range roles(settings, queues) {
		missing, known, err := lacking(ctx, conn.rdb, r)
		if err != nil {
			return err
		}
		if !known {
			d.say(levelNote, "rights", "", "this Redis cannot report what its user may do (7.0 and newer can); lockstep doctor --acl prints the rights that it needs")
			return nil
		}
		if len(missing) == 0 {
			if first == nil {
				d.say(levelOK, "rights", "", "this user has all rights of the role %s", r.name)
			} else {
				d.say(levelNote, "rights", "", "this user has all rights of the role %s; a worker also needs: %s", r.name, strings.Join(first, " "))
			}
			return nil
		}
		if first == nil {
			first = missing
		}
	}
	d.say(levelError, "rights", "", "this user lacks rights of a worker: add %s; lockstep doctor --acl prints whole users", strings.Join(first, " "))
	return nil
}
