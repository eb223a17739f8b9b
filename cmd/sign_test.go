package cmd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockstep/locks/redistest"
)

// TestUnsignedCommandIsNotRun acts as a client that can write to Redis, has no key, and
// asks for commands of its own.
func TestUnsignedCommandIsNotRun(t *testing.T) {
	t.Parallel()
	const key = "LOCKSTEP_REDIS__SIGN_KEY=0123456789abcdef0123456789abcdef"
	dir := t.TempDir()
	proof, secret := filepath.Join(dir, "proof"), filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := redistest.New(t, redistest.Options{})
	plain := toolEnv(t, "REDIS_URL="+server.URL(), "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:0")
	owner := append(plain[:len(plain):len(plain)], key)
	config := writeFile(t, "lockstep.yaml", "jobs: {hello: {command: [\"true\"]}}\n")
	evil := writeFile(t, "evil.yaml", `
jobs:
  hello: {command: [sh, -c, "echo hello > `+proof+`"]}
  steal: {command: [sh, -c, "echo ${file:`+secret+`} > `+proof+`"]}
`)

	launch(t, owner, "start", "-c", config)
	type worker struct {
		Admin   string
		Key     string `json:"signing_key"`
		Refused int    `json:"refused_runs"`
	}
	var workers []worker
	eventually(t, time.Minute, "a worker", func() bool {
		workers = ask[[]worker](t, plain, "worker", "ls")
		return len(workers) == 1
	})
	eventually(t, time.Minute, "its job", func() bool { return len(ask[[]any](t, plain, "job", "ls")) == 1 })
	if len(workers[0].Key) != 8 {
		t.Errorf("the worker shows the key %q, want the id of one", workers[0].Key)
	}

	// Clients without the key may ask for registered jobs too: they pass on the definition as it
	// was signed.
	for _, env := range [][]string{owner, plain} {
		if _, stderr, code := runTool(t, env, "enqueue", "hello", "--wait=30s"); code != 0 {
			t.Errorf("a registered job: exit code %d: %s", code, stderr)
		}
	}
	for _, env := range [][]string{plain, append(plain[:len(plain):len(plain)], strings.ToUpper(key))} {
		_, stderr, code := runTool(t, env, "enqueue", "steal", "-c", evil, "--wait=30s")
		if code != exitRun || !strings.Contains(stderr, "redis.sign_key_file") {
			t.Errorf("a job of no config: exit code %d, want %d and the reason: %s", code, exitRun, stderr)
		}
	}
	// The client writes a definition itself, in place of the registered one and in place of a
	// run's.
	rdb := server.Client(t)
	planted := `{"name":"hello","command":["sh","-c","echo planted > ` + proof + `"],"queue":"default","retry":{"max":0},"history":{"runs":9,"for":9000000000}}`
	if err := rdb.HSet(t.Context(), "{lockstep}:def", "hello", planted).Err(); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := runTool(t, plain, "enqueue", "hello", "--wait=30s"); code != exitRun || !strings.Contains(stderr, "is not signed") {
		t.Errorf("a planted definition: exit code %d, want %d and the reason: %s", code, exitRun, stderr)
	}
	if _, stderr, code := runTool(t, owner, "enqueue", "hello"); code != exitUsage || !strings.Contains(stderr, "is not signed") {
		t.Errorf("a planted definition by a client with the key: exit code %d, want it refused: %s", code, stderr)
	}
	if _, err := os.Stat(proof); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a command ran that is in no config: %v", err)
	}

	_, metrics := fetch(t, "http://"+workers[0].Admin+"/metrics")
	for _, want := range []string{`lockstep_runs_refused_total{signature="unsigned"} 2`, `lockstep_runs_refused_total{signature="wrong"} 1`} {
		if !strings.Contains(string(metrics), want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
	eventually(t, time.Minute, "the worker to show all refusals", func() bool {
		workers = ask[[]worker](t, plain, "worker", "ls")
		return len(workers) == 1 && workers[0].Refused == 3
	})
	stdout, _, code := runTool(t, owner, "doctor")
	for _, want := range []string{"definitions are signed here with key " + workers[0].Key, "it has refused 3 runs", "is not signed with a key of this config (hello)"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("doctor does not say %q: %s", want, stdout)
		}
	}
	if code != exitFailed {
		t.Errorf("doctor exits with %d, want %d", code, exitFailed)
	}
	if stdout, _, _ := runTool(t, plain, "doctor"); !strings.Contains(stdout, "definitions are not signed: any client that can write to this Redis") {
		t.Errorf("doctor without a key does not say what that means: %s", stdout)
	}
}

func TestKeyIsNeverShownAndABadOnePreventsTheStart(t *testing.T) {
	t.Parallel()
	const key = "0123456789abcdef0123456789abcdef"
	server := redistest.New(t, redistest.Options{})
	env := toolEnv(t, "REDIS_URL="+server.URL(), "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:0")
	config := writeFile(t, "lockstep.yaml", "jobs: {hello: {command: [\"true\"]}}\n")
	withKey := append(env[:len(env):len(env)], "LOCKSTEP_REDIS__SIGN_KEY="+key)
	for _, args := range [][]string{{"config", "show", "-c", config}, {"config", "show", "-c", config, "-o", "json"}, {"doctor", "-c", config}, {"check", config}} {
		stdout, stderr, _ := runTool(t, withKey, args...)
		if strings.Contains(stdout+stderr, key) {
			t.Errorf("lockstep %s prints the key", strings.Join(args, " "))
		}
		if args[0] == "config" && !strings.Contains(stdout, "(hidden)") {
			t.Errorf("lockstep %s does not say that there is a key: %s", strings.Join(args, " "), stdout)
		}
	}
	for name, c := range map[string]struct{ file, want string }{
		"short":   {writeFile(t, "short", "0123456789abcdef0123456789abcde\n"), "31 bytes: at least 32"},
		"missing": {filepath.Join(t.TempDir(), "none"), "no such file"},
	} {
		broken := append(env[:len(env):len(env)], "LOCKSTEP_REDIS__SIGN_KEY_FILE="+c.file)
		if _, stderr, code := runTool(t, broken, "start", "-c", config); code != exitConfig || !strings.Contains(stderr, c.want) ||
			!strings.Contains(stderr, "redis.sign_key_file") {
			t.Errorf("%s key: exit code %d, want %d: %s", name, code, exitConfig, stderr)
		}
	}
}
