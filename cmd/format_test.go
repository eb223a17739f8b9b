package cmd

import (
	"fmt"
	"strings"
	"testing"

	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/locks/space"
)

// Every command that reads or acts refuses a namespace in a format that this build does not know,
// and says what to do. A worker does not start there.
func TestUnknownFormatIsRefusedByEveryCommand(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	rdb := server.Client(t)
	env := toolEnv(t, "REDIS_URL="+server.URL())
	config := writeFile(t, "lockstep.yaml", "jobs: {a: {command: [\"true\"]}}\nadmin: {listen: \"127.0.0.1:0\"}\n")
	const newer = space.Format + 1
	if err := rdb.HSet(t.Context(), "{lockstep}:meta", "format", newer, "least_format", space.Format, "format_by", "v9.1.0").Err(); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("stores format %d, and this build reads format %d and %d: use version v9.1.0, which began to write format %[1]d, or a newer one, or another redis.namespace",
		newer, space.Format-1, space.Format)
	for _, line := range []string{
		"start -c " + config, "lock ls", "lock show a", "lock waits", "lock exec --exclusive a -- true", "run ls", "run show a#1",
		"job ls", "job show a", "worker ls", "enqueue a", "doctor",
	} {
		stdout, stderr, code := runTool(t, env, strings.Fields(line)...)
		if code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("lockstep %s: exit code %d, %s; want %d and %q", line, code, stderr, exitUsage, want)
		}
		if line == "doctor" && !strings.Contains(stdout, fmt.Sprint("format ", newer)) {
			t.Errorf("doctor has no finding about the format:\n%s", stdout)
		}
	}
	if keys, err := rdb.Keys(t.Context(), "*").Result(); err != nil || len(keys) != 1 {
		t.Errorf("got keys %v, %v after the refusals; want the one that was there", keys, err)
	}
}

// The oldest builds do not look at the format. doctor names their sessions where a newer format is
// written.
func TestDoctorNamesASessionThatCannotReadTheFormat(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	rdb := server.Client(t)
	client, err := locks.Open(t.Context(), rdb, locks.Options{Namespace: "lockstep"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := client.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	if err := rdb.HSet(t.Context(), "{lockstep}:meta", "card:"+string(client.Session()), `{"host":"h"}`).Err(); err != nil {
		t.Fatal(err)
	}
	stdout, _, _ := runTool(t, toolEnv(t, "REDIS_URL="+server.URL()), "doctor")
	want := fmt.Sprintf("its build writes format 1 and does not check that format %d is written", space.Format)
	if !strings.Contains(stdout, want) || !strings.Contains(stdout, string(client.Session())) {
		t.Errorf("doctor prints\n%s\nwant %q, and the session", stdout, want)
	}
}
