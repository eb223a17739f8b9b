package cmd

import (
	"strings"
	"testing"
	"time"

	"lockstep/locks/redistest"
)

// TestDefinitionOfANewerBuildIsShownAndNotRun puts a definition into Redis with a key that this
// build does not know.
func TestDefinitionOfANewerBuildIsShownAndNotRun(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	env := toolEnv(t, "REDIS_URL="+server.URL(), "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:0")
	launch(t, env, "start", "-c", writeFile(t, "lockstep.yaml", "jobs: {hello: {command: [\"true\"]}}\n"))
	eventually(t, time.Minute, "its job", func() bool { return len(ask[[]any](t, env, "job", "ls")) == 1 })
	rdb := server.Client(t)
	const def = "{lockstep}:def"
	before, err := rdb.HGet(t.Context(), def, "hello").Result()
	if err != nil {
		t.Fatal(err)
	}
	newer := strings.Replace(before, `"retry":{`, `"retry":{"on":["x"],`, 1)
	if err := rdb.HSet(t.Context(), def, "hello", newer).Err(); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := runTool(t, env, "enqueue", "hello", "--id", "x"); code != 0 {
		t.Fatalf("enqueue: exit code %d: %s", code, stderr)
	}
	body, err := rdb.HGet(t.Context(), "{lockstep}:body", "hello#x").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, name, _ := strings.Cut(body, "\x1f")
	if definition, err := rdb.HGet(t.Context(), "{lockstep}:defs", name).Result(); err != nil || definition != newer {
		t.Errorf("the run %q has %q, %v, want the definition byte by byte: %q", body, definition, err, newer)
	}
	eventually(t, time.Minute, "the run to be left to a newer build, with the key named", func() bool {
		stdout, _, code := runTool(t, env, "run", "show", "hello#x")
		return code == 0 && strings.Contains(stdout, "no worker knows the keys of its definition (retry.on)")
	})
	for _, line := range []string{"job show hello", "doctor"} {
		if stdout, _, _ := runTool(t, env, strings.Fields(line)...); !strings.Contains(stdout, "(retry.on)") {
			t.Errorf("lockstep %s does not name the key:\n%s", line, stdout)
		}
	}
	if err := rdb.HSet(t.Context(), def, "hello", strings.Replace(before, `"lock":{`, `"lock":{"until":"x"`, 1)).Err(); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"enqueue hello", "job run hello"} {
		if _, stderr, code := runTool(t, env, strings.Fields(line)...); code != exitUsage || !strings.Contains(stderr, "(lock.until)") {
			t.Errorf("lockstep %s: exit code %d, %s; want %d and the key", line, code, stderr, exitUsage)
		}
	}
}
