package cmd

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestOutputIsFollowedAcrossWorkers follows a run before it starts, while it runs, and after its
// worker was killed.
func TestOutputIsFollowedAcrossWorkers(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-5f0c81"
	gate := filepath.Join(t.TempDir(), "gate")
	f, server := newPack(t, `
log: {output: true}
jobs:
  speaks:
    command:
      - sh
      - -c
      - |
        echo "attempt $LOCKSTEP_ATTEMPT begins"
        printf 'the secret is %.6s' "$SECRET"; sleep 0.3; printf '%s\n' "$SECRET" | cut -c7-
        while [ ! -e "$0" ]; do sleep 0.02; done
        echo "attempt $LOCKSTEP_ATTEMPT ends"
      - `+gate+`
    env: {SECRET: "${SECRET}"}
`, "SECRET="+secret, "LOCKSTEP_LOCKS__LEASE=60s")
	f.startAll(1)
	if _, stderr, code := runTool(t, f.env, "queue", "pause", "default", "--reason", "test"); code != 0 {
		t.Fatal(stderr)
	}
	run := f.enqueue("speaks", "x")
	first, second := launch(t, f.env, "run", "output", "-f", run), launch(t, f.env, "run", "output", run, "--follow")
	prints := func(p *process, text string) {
		t.Helper()
		eventually(t, time.Minute, p.name+" prints "+text, func() bool { return strings.Contains(p.stdout.String()+p.stderr.String(), text) })
	}
	prints(first, "run "+run+" does not run yet: ")
	if _, stderr, code := runTool(t, f.env, "queue", "resume", "default"); code != 0 {
		t.Fatal(stderr)
	}
	const one, two = "attempt 1 begins\nthe secret is ${SECRET}\n", "attempt 2 begins\nthe secret is ${SECRET}\n"
	prints(first, one)
	prints(second, one)
	second.signal(syscall.SIGINT)
	if code := second.code(20 * time.Second); code != exitInterrupted {
		t.Errorf("a follower that is interrupted exits %d, want %d", code, exitInterrupted)
	}

	f.startAll(1)
	w, _ := f.runner(run)
	w.killChild()
	prints(first, two)
	write(t, gate, "")
	if code := first.code(time.Minute); code != 0 {
		t.Errorf("a follower of a run that succeeds exits %d, want 0: %s", code, first.stderr)
	}
	if !strings.Contains(first.stderr.String(), " crashed") {
		t.Errorf("the follower does not say how the first attempt ended: %s", first.stderr)
	}
	if got, want := first.stdout.String(), one+two+"attempt 2 ends\n"; got != want {
		t.Errorf("the follower printed %q, want %q", got, want)
	}
	logs := ""
	for _, w := range f.workers {
		logs += w.stderr.String()
	}
	for what, text := range map[string]string{"the follower": first.stdout.String() + first.stderr.String(), "the log": logs} {
		if strings.Contains(text, "5f0c81") || strings.Contains(text, "hunter") {
			t.Errorf("%s has a part of the secret:\n%s", what, text)
		}
	}
	if !strings.Contains(logs, `"line":"attempt 2 ends"`) {
		t.Errorf("no log has the lines of the output:\n%s", logs)
	}
	stdout, _, code := runTool(t, f.env, "run", "output", run)
	if want := two + "attempt 2 ends\n"; code != 0 || stdout != want {
		t.Errorf("run output: exit code %d, %q; want what is stored, %q", code, stdout, want)
	}
	_, stderr, code := runTool(t, f.env, "run", "output", run, "--attempt", "1")
	if code != exitFailed || !strings.Contains(stderr, "its worker died") {
		t.Errorf("the output of the attempt that crashed: exit code %d, %s", code, stderr)
	}
	rdb := server.Client(t)
	keys, err := rdb.Keys(t.Context(), "*:live:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if left, err := rdb.TTL(t.Context(), key).Result(); err != nil || left == -1 || left > 20*time.Second {
			t.Errorf("%s stays in Redis for %s, %v; want some seconds", key, left, err)
		}
	}
	f.drain()
}
