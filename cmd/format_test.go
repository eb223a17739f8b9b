package cmd

import (
	"strings"
	"testing"

	"lockstep/locks/redistest"
)

// Every command that reads or acts refuses a namespace in a format that this build does not know,
// and says what to do. A worker does not start there.
func TestUnknownFormatIsRefusedByEveryCommand(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	rdb := server.Client(t)
	env := toolEnv(t, "REDIS_URL="+server.URL())
	config := writeFile(t, "lockstep.yaml", "jobs: {a: {command: [\"true\"]}}\nadmin: {listen: \"127.0.0.1:0\"}\n")
	if err := rdb.HSet(t.Context(), "{lockstep}:meta", "format", 2, "least_format", 1).Err(); err != nil {
		t.Fatal(err)
	}
	const want = `stores format 2, and this build reads format 1: use a build that knows format 2, or another redis.namespace`
	for _, line := range []string{
		"start -c " + config, "lock ls", "lock show a", "lock waits", "lock exec --exclusive a -- true", "run ls", "run show a#1",
		"job ls", "job show a", "worker ls", "enqueue a", "doctor",
	} {
		stdout, stderr, code := runTool(t, env, strings.Fields(line)...)
		if code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("lockstep %s: exit code %d, %s; want %d and %q", line, code, stderr, exitUsage, want)
		}
		if line == "doctor" && !strings.Contains(stdout, "format 2") {
			t.Errorf("doctor has no finding about the format:\n%s", stdout)
		}
	}
	if keys, err := rdb.Keys(t.Context(), "*").Result(); err != nil || len(keys) != 1 {
		t.Errorf("got keys %v, %v after the refusals; want the one that was there", keys, err)
	}
}
