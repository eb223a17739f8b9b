package cmd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/configs"
	"lockstep/locks/redistest"
)

// called matches a command in the text of a script.
var called = regexp.MustCompile(`call\(["']([A-Za-z]+)["']`)

func calledIn(t *testing.T, pattern string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d files are %s: %v", len(paths), pattern, err)
	}
	commands := make(map[string]string)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range called.FindAllStringSubmatch(string(text), -1) {
			commands[strings.ToLower(match[1])] = path
		}
	}
	return commands
}

func roleNamed(t *testing.T, name string) role {
	t.Helper()
	for _, r := range roles(configs.Settings{Redis: configs.Redis{Namespace: "shop"}}, []string{"default"}) {
		if r.name == name {
			return r
		}
	}
	t.Fatalf("there is no role %s", name)
	return role{}
}

func TestRightsHaveEveryCommandOfTheScripts(t *testing.T) {
	t.Parallel()
	asynq, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/hibiken/asynq").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ role, scripts string }{
		{"worker", "../locks/space/scripts/*.lua"},
		{"worker", "../locks/space/scripts/*/*.lua"},
		{"worker", "../scheduler/ledger/scripts/*.lua"},
		{"worker", "../scheduler/ledger/scripts/lib/*.lua"},
		{"worker", "../scheduler/queue/scripts/*.lua"},
		{"worker", filepath.Join(strings.TrimSpace(string(asynq)), "internal", "rdb", "rdb.go")},
		{"operator", "../locks/space/scripts/*.lua"},
		{"operator", "../locks/space/scripts/*/*.lua"},
		{"operator", "../scheduler/ledger/scripts/*.lua"},
		{"operator", "../scheduler/ledger/scripts/lib/*.lua"},
		{"reader", "../locks/space/scripts/list.lua"},
		{"reader", "../locks/space/scripts/sessions.lua"},
		{"reader", "../scheduler/ledger/scripts/open.lua"},
		{"reader", "../scheduler/ledger/scripts/outstanding.lua"},
		{"reader", "../scheduler/ledger/scripts/history.lua"},
		{"reader", "../scheduler/ledger/scripts/find.lua"},
	} {
		have := roleNamed(t, c.role).commands
		for command, path := range calledIn(t, c.scripts) {
			if !slices.Contains(have, command) {
				t.Errorf("a %s has no right to call %s, which %s does", c.role, command, path)
			}
		}
	}
}

func TestReaderAndProducerHaveNoExtraCommands(t *testing.T) {
	t.Parallel()
	reader, producer := roleNamed(t, "reader"), roleNamed(t, "producer")
	for _, write := range slices.Concat(aclWrite, aclServe, aclSend) {
		if slices.Contains(reader.commands, write) && !slices.Contains(aclRead, write) {
			t.Errorf("a reader may %s", write)
		}
	}
	for _, key := range producer.keys {
		if !strings.HasPrefix(key, "asynq:") {
			t.Errorf("a producer reaches %s", key)
		}
	}
	if want := []string{"eval", "evalsha", "exists", "hset", "lpush", "ping", "sadd", "select", "zadd"}; !slices.Equal(producer.commands, want) {
		t.Errorf("a producer may %q, want %q", producer.commands, want)
	}
}

// TestAFleetWorksUnderTheLeastRights gives every process the user that doctor --acl prints for it,
// and then asks Redis which commands it has refused.
func TestAFleetWorksUnderTheLeastRights(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{TCP: true})
	config := writeFile(t, "lockstep.yaml", `
worker: {queues: {default: 1, low: 1}}
locks: {lease: 2s}
permits: {api: {limit: 1}}
jobs:
  tick: {every: 1s, command: ["true"]}
  hello: {command: ["true"]}
  bill: {queue: low, command: [sleep, "0.3"], lock: {exclusive: [bill], permits: {api: 1}}}
  fails: {command: ["false"], retry: {max: 1, initial: 10ms}}
  long: {command: [sh, -c, "echo begins; sleep 30"]}
`)
	admin := server.Client(t)
	stdout, stderr, code := runTool(t, toolEnv(t), "doctor", "--acl", "-c", config)
	if code != 0 {
		t.Fatalf("doctor --acl: exit code %d: %s", code, stderr)
	}
	for line := range strings.Lines(stdout) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var words []any
		for _, word := range strings.Fields(strings.ReplaceAll(line, "CHANGE-ME", "secret")) {
			words = append(words, word)
		}
		if err := admin.Do(t.Context(), words...).Err(); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	as := func(user string) []string {
		url := strings.Replace(server.URL(), "redis://", "redis://lockstep-"+user+":secret@", 1)
		return toolEnv(t, "REDIS_URL="+url, "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:0", "LOCKSTEP_CONFIG="+config)
	}
	worker, operator, reader, producer := as("worker"), as("operator"), as("reader"), as("producer")
	does := func(env []string, want int, args ...string) string {
		t.Helper()
		stdout, stderr, code := runTool(t, env, args...)
		if code != want {
			t.Errorf("lockstep %s: exit code %d, want %d: %s%s", strings.Join(args, " "), code, want, stdout, stderr)
		}
		return stdout
	}
	first := launch(t, worker, "start")
	launch(t, worker, "start")
	eventually(t, time.Minute, "two workers", func() bool { return len(ask[[]any](t, reader, "worker", "ls")) == 2 })
	// A list of requests that its sender has left: the workers and doctor look at it.
	if err := admin.HSet(t.Context(), "{lockstep}:lists", "l:x", "no list", "n:x", "1 0").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "the jobs", func() bool { return len(ask[[]any](t, reader, "job", "ls")) == 5 })

	run := strings.TrimSpace(does(producer, 0, "enqueue", "hello", "--id", "p1"))
	if run != "hello#default/p1" {
		t.Errorf("a producer's run is %s", run)
	}
	later := strings.TrimSpace(does(producer, 0, "enqueue", "hello", "--in", "1s"))
	does(producer, exitUsage, "enqueue", "hello", "--wait")
	does(operator, 0, "enqueue", "hello", "--wait=30s")
	does(operator, exitRun, "enqueue", "fails", "--id", "f", "--wait=30s")
	does(operator, 0, "run", "retry", "fails#f")
	for i := range 3 {
		does(operator, 0, "enqueue", "bill", "--id", fmt.Sprint(i))
	}
	does(operator, 0, "job", "run", "long", "--id", "l")
	follower := launch(t, operator, "run", "output", "-f", "long#l")
	does(operator, 0, "lock", "exec", "--exclusive", "desk", "--", "true")
	does(operator, 0, "job", "pause", "tick")
	does(operator, 0, "job", "resume", "tick")
	does(operator, 0, "queue", "pause", "low", "--reason", "test")
	does(operator, 0, "queue", "resume", "low", "--reason", "test")
	for _, args := range [][]string{{"job", "ls"}, {"job", "show", "bill"}, {"job", "history", "tick"}, {"job", "explain", "tick"}, {"run", "ls"}, {"run", "show", "bill#0"},
		{"lock", "ls"}, {"lock", "waits"}, {"lock", "history", "desk"}, {"worker", "ls"}, {"queue", "ls"}, {"top"}, {"audit"}} {
		does(reader, 0, args...)
	}
	for _, id := range []string{run, later, "bill#0", "bill#1", "bill#2"} {
		eventually(t, time.Minute, id+" to succeed", func() bool {
			stdout, _, code := runTool(t, reader, "run", "show", id, "-o", "json")
			return code == 0 && strings.Contains(stdout, `"state": "succeeded"`)
		})
	}
	// the parent of the child ends its session and starts another child
	if child := first.worker(); child != 0 {
		_ = syscall.Kill(child, syscall.SIGKILL)
	}
	does(operator, 0, "run", "cancel", "long#l", "--yes")
	eventually(t, time.Minute, "the end of a canceled run", func() bool {
		stdout, _, _ := runTool(t, reader, "run", "show", "long#l", "-o", "json")
		return strings.Contains(stdout, `"state": "canceled"`)
	})
	if code := follower.code(30 * time.Second); code != exitRun {
		t.Errorf("a follower of the canceled run exits %d, want %d", code, exitRun)
	}
	first.signal(syscall.SIGTERM)
	first.code(30 * time.Second)

	for user, want := range map[string]string{
		"worker": "this user has all rights of the role worker", "operator": "this user has all rights of the role operator; a worker also needs: ~asynq:servers*",
		"reader": "this user has all rights of the role reader; a worker also needs: ~asynq:servers*",
	} {
		if stdout, _, _ := runTool(t, as(user), "doctor"); !strings.Contains(stdout, want) {
			t.Errorf("as %s, doctor does not say %q: %s", user, want, stdout)
		}
	}
	log, err := admin.ACLLog(t.Context(), 1000).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range log {
		// go-redis works without these.
		if entry.Object == "client|setinfo" || entry.Object == "client|maint_notifications" || entry.Object == "client" {
			continue
		}
		// enqueue asks for the format and the definition first.
		expected := entry.Username == "lockstep-producer" && slices.Contains([]string{"hget", "hmget", "hgetall", "{lockstep}:exp"}, entry.Object)
		if !expected {
			t.Errorf("Redis has refused %s to %s: %s %s", entry.Object, entry.Username, entry.Reason, entry.Context)
		}
	}

	// A producer and a reader have no right to do any of this.
	for user, commands := range map[string][][]any{
		"producer": {{"HSET", "{lockstep}:def", "hello", "{}"}, {"HGET", "{lockstep}:def", "hello"}, {"HSET", "{lockstep}:body", "x", "{}"},
			{"HSET", "lockstep:queues", "default", "thief"}, {"DEL", "asynq:{default}:pending"}, {"LRANGE", "asynq:{default}:pending", "0", "-1"},
			{"EVAL", "return redis.call('HSET', KEYS[1], 'hello', '{}')", "1", "{lockstep}:def"}, {"FLUSHALL"}, {"CONFIG", "GET", "*"}},
		"reader": {{"HSET", "{lockstep}:def", "hello", "{}"}, {"DEL", "{lockstep}:def"}, {"EVAL", "return redis.call('HSET', KEYS[1], 'hello', '{}')", "1", "{lockstep}:def"}},
		"worker": {{"FLUSHALL"}, {"CONFIG", "SET", "save", ""}, {"KEYS", "*"}, {"HSET", "{other}:def", "x", "y"}, {"HSET", "asynq:{other}:t:1", "x", "y"}},
	} {
		o := server.RedisOptions()
		o.Username, o.Password = "lockstep-"+user, "secret"
		rdb := redis.NewClient(o)
		for _, command := range commands {
			if err := rdb.Do(t.Context(), command...).Err(); err == nil || !strings.Contains(err.Error(), "NOPERM") && !strings.Contains(err.Error(), "can't run this command") {
				t.Errorf("a %s may %v: %v", user, command, err)
			}
		}
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestTheReadmeHasTheLeastRights(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	settings := configs.Settings{Redis: configs.Redis{Namespace: "lockstep"}}
	for _, r := range roles(settings, []string{"default"}) {
		if want := r.rule("lockstep", "CHANGE-ME"); !strings.Contains(string(readme), want+"\n") {
			t.Errorf("the README lacks: %s", want)
		}
	}
}
