package cmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/locks/redistest"
)

// TestJobsInheritNoCredentials runs a command that looks at its environment, and at the arguments
// and the environment of its guard.
func TestJobsInheritNoCredentials(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-5f0c81"
	seen := filepath.Join(t.TempDir(), "seen")
	f, server := newPack(t, `
worker: {env: [PATH, "KEPT_*"]}
jobs:
  looks: {command: [sh, -c, 'env; tr "\0" "\n" < /proc/$PPID/environ; tr "\0" "\n" < /proc/$PPID/cmdline', "-"], env: {OWN: "1"}}
  alone:
    command: [sh, -c, 'lockstep lock exec --exclusive inner -- true; echo "code $?"']
  nested:
    command: [sh, -c, 'lockstep lock exec --exclusive inner -- sh -c "echo holds \$LOCKSTEP_LOCKS"']
    env: {REDIS_URL: "${REDIS_URL}"}
`, "LOCKSTEP_REDIS__PASSWORD_FILE="+seen, "KEPT_A=a", "KEPT_B=b", "OTHER=hunter2-other")
	if err := os.WriteFile(seen, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := server.Client(t).ConfigSet(t.Context(), "requirepass", secret).Err(); err != nil {
		t.Fatal(err)
	}
	// The URL contains the password too, as lock exec in a job needs it.
	for i, entry := range f.env {
		if strings.HasPrefix(entry, "REDIS_URL=") {
			f.env[i] = "REDIS_URL=" + strings.Replace(server.URL(), "unix://", "unix://:"+secret+"@", 1)
		}
	}
	f.startAll(1)
	output := func(job string) string {
		t.Helper()
		run := f.enqueue(job, "a")
		f.await(run, "succeeded")
		stdout, stderr, code := runTool(t, f.env, "run", "output", string(run))
		if code != 0 {
			t.Fatalf("run output: %d, %s", code, stderr)
		}
		return stdout
	}
	looks := output("looks")
	for _, want := range []string{"KEPT_A=a\n", "KEPT_B=b\n", "OWN=1\n", "PATH=", "LOCKSTEP_JOB=looks\n", "guard:\nlooks#a\n"} {
		if !strings.Contains(looks, want) {
			t.Errorf("the command sees\n%s\nwant %q in it", looks, want)
		}
	}
	command, guard, _ := strings.Cut(looks, "GORACE=")
	for _, no := range []string{secret, "REDIS_URL=", "LOCKSTEP_REDIS__", "LOCKSTEP_LOCKS__", "LOCKSTEP_ADMIN__"} {
		if strings.Contains(looks, no) {
			t.Errorf("the command, or its guard, has %s", no)
		}
	}
	if strings.Contains(command, "OTHER=") || guard == "" {
		t.Errorf("the command inherits what worker.env does not name:\n%s", command)
	}
	if got := output("alone"); !strings.Contains(got, "a job does not inherit the Redis settings of its worker") || !strings.HasSuffix(got, "code 2\n") {
		t.Errorf("lock exec without Redis: got %s", got)
	}
	if got := output("nested"); !strings.Contains(got, `holds ["inner"]`) || strings.Contains(got, secret) {
		t.Errorf("lock exec with the job's own REDIS_URL: got %s", got)
	}
}

// A password in the arguments is visible to every user of the host; one in a file is not.
func TestPasswordInTheArgumentsCausesAWarning(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-5f0c81"
	server := redistest.New(t, redistest.Options{})
	if err := server.Client(t).ConfigSet(t.Context(), "requirepass", secret).Err(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := toolEnv(t)
	withPassword := strings.Replace(server.URL(), "unix://", "unix://:"+secret+"@", 1)
	stdout, stderr, code := runTool(t, env, "lock", "ls", "--redis", withPassword)
	if code != 0 || !strings.Contains(stderr, "warning: --redis unix://(hidden)@") || strings.Contains(stdout+stderr, secret) {
		t.Errorf("with a password: got %d, %s%s", code, stdout, stderr)
	}
	if stdout, stderr, code = runTool(t, env, "lock", "ls", "--redis", server.URL(), "--redis-password-file", file); code != 0 || strings.Contains(stderr, "warning") {
		t.Errorf("with a file: got %d, %s%s", code, stdout, stderr)
	}
	if _, stderr, code = runTool(t, env, "lock", "ls", "--redis", server.URL()); code != exitRedis {
		t.Errorf("without: got %d, %s", code, stderr)
	}
	// An unknown parameter is refused by name, without its value, wherever the URL comes from.
	config := filepath.Join(t.TempDir(), "lockstep.yaml")
	if err := os.WriteFile(config, []byte("redis: {url: 'redis://127.0.0.1:1/0?password="+secret+"', namespace: 'a b'}\njobs: {a: {http: {url: 'https://h/?key="+secret+"', method: got}}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	unknown := "redis://127.0.0.1:1/0?password=" + secret
	fromEnv := filepath.Join(t.TempDir(), "env.yaml")
	if err := os.WriteFile(fromEnv, []byte("redis: {url: '${SHOP_REDIS}'}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		env, where string
		args       []string
	}{
		{"", config + ":1:14", []string{"check", config}},
		{"", config + ":1:14", []string{"doctor", "-c", config}},
		{"", config + ":1:14", []string{"lock", "ls", "-c", config}},
		{"", "--redis", []string{"lock", "ls", "--redis", unknown}},
		{"SHOP_REDIS=" + unknown, fromEnv + ":1:14", []string{"check", fromEnv}},
		{"REDIS_URL=" + unknown, "REDIS_URL", []string{"lock", "ls"}},
		{"LOCKSTEP_REDIS__URL=" + unknown, "LOCKSTEP_REDIS__URL", []string{"lock", "ls"}},
	} {
		stdout, stderr, code := runTool(t, toolEnv(t, test.env), test.args...)
		shown := stdout + stderr
		if code == 0 || strings.Contains(shown, secret) || !strings.Contains(shown, test.where) || !strings.Contains(shown, "unknown parameter password") ||
			!strings.Contains(shown, "takes no parameters") {
			t.Errorf("%s %v: got %d\n%s\nwant the unknown parameter by name at %s, and no value", test.env, test.args, code, shown, test.where)
		}
	}
}

// lock exec declares permits itself if the config has them.
func TestLockExecDeclaresThePermitsOfItsConfig(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	config := filepath.Join(t.TempDir(), "lockstep.yaml")
	// A job with an error, or a secret of another host, does not matter here.
	if err := os.WriteFile(config, []byte("permits: {partner-api: {limit: 3}}\njobs: {a: {command: [x, '${NOT_SET}']}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := toolEnv(t, "REDIS_URL="+server.URL(), "LOCKSTEP_CONFIG="+config)
	for range 2 { // the second time, they are already declared
		stdout, stderr, code := runTool(t, env, "lock", "exec", "--permits", "partner-api=2", "--wait", "0s", "--", "sh", "-c", "echo $LOCKSTEP_LOCKS")
		if code != 0 || stdout != "[\"partner-api\"]\n" {
			t.Errorf("got %d, %s%s", code, stdout, stderr)
		}
	}
	if _, stderr, code := runTool(t, env, "lock", "exec", "--permits", "other=1", "--wait", "0s", "--", "true"); code != exitUsage || !strings.Contains(stderr, "no permits of \"other\" are declared") {
		t.Errorf("permits that the config lacks: got %d, %s", code, stderr)
	}
	if _, stderr, code := runTool(t, env, "lock", "exec", "--permits", "partner-api=4", "--wait", "0s", "--", "true"); code == 0 {
		t.Errorf("more than there are: got %d, %s", code, stderr)
	}
}

// check and doctor warn of files that others can read or write.
func TestFilePermissionsAreChecked(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	folder := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	world, group, own := write("world", "a", 0o644), write("group", "b", 0o640), write("own", "c", 0o400)
	link := filepath.Join(folder, "link")
	if err := os.Symlink(world, link); err != nil {
		t.Fatal(err)
	}
	config := write("lockstep.yaml", "admin: {auth: {mode: token, token_file: "+own+"}}\n"+
		"jobs: {a: {command: [x, '${file:"+group+"}', '${file:"+link+"}', '${file:"+own+"}']}}\n", 0o666)
	env := toolEnv(t, "REDIS_URL="+server.URL())
	stdout, stderr, code := runTool(t, env, "check", config)
	want := config + ": warning: every user of this host can write this config (mode 0666), and thereby make workers run any command; chmod o-w [file-rights]\n" +
		group + ": warning: the group of this secret of ${file:" + group + "} can read or write it (mode 0640); chmod 600; for a secret of Kubernetes: defaultMode: 0400 [file-rights]\n" +
		link + ": warning: every user of this host can read or write this secret of ${file:" + link + "} (mode 0644); chmod 600; for a secret of Kubernetes: defaultMode: 0400 [file-rights]\n" +
		"3 warnings in 1 file, 1 job\n"
	if code != 0 || stdout != want {
		t.Errorf("check: got %d\n%s%s\nwant\n%s", code, stdout, stderr, want)
	}
	stdout, _, _ = runTool(t, env, "doctor", "-c", config, "-o", "json")
	for _, path := range []string{config, group, link} {
		if !strings.Contains(stdout, `"on": "`+path+`"`) {
			t.Errorf("doctor: got %s, want %s in it", stdout, path)
		}
	}
	if strings.Contains(stdout, own) {
		t.Errorf("doctor: got %s, want nothing about %s", stdout, own)
	}
}
