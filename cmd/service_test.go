package cmd

import (
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A service manager stops a service by sending SIGTERM to each of its processes (systemd's default
// KillMode), including the commands. However they end, their runs are handed back, and no failure
// is counted.
func TestTerminatingEveryProcessHandsRunsBack(t *testing.T) {
	t.Parallel()
	ready := t.TempDir() // a command leaves a file there once it has set its trap
	// The sleep may end before its shell gets the signal. The shell then starts another one.
	f, _ := newPack(t, strings.ReplaceAll(`
worker: {concurrency: 8}
defaults: {retry: {max: 0}}
jobs:
  dies: {command: [sh, -c, '[ $LOCKSTEP_ATTEMPT = 2 ] || touch READY; [ $LOCKSTEP_ATTEMPT = 2 ] || exec sleep 1000']}
  tells: {command: [sh, -c, '[ $LOCKSTEP_ATTEMPT = 2 ] && exit; trap "exit 143" TERM; touch READY; while :; do sleep 1000 & wait; done']}
  fails: {command: [sh, -c, '[ $LOCKSTEP_ATTEMPT = 2 ] && exit; trap "sleep 0.3; exit 1" TERM; touch READY; while :; do sleep 1000 & wait; done']}
  ignores: {command: [sh, -c, 'trap "" TERM; touch READY; sleep 2; [ $LOCKSTEP_ATTEMPT = 1 ]']}
`, "READY", ready+"/$LOCKSTEP_JOB"), long)
	f.startAll(1)
	var runs []string
	for _, job := range []string{"dies", "tells", "fails", "ignores"} {
		run := f.enqueue(job, "x")
		runs = append(runs, run)
		eventually(t, 20*time.Second, job+" runs", func() bool { return exists(filepath.Join(ready, job)) })
	}
	first := f.workers[0]
	// commands first, which is the worst order
	for _, pid := range slices.Backward(tree(first.Process.Pid)) {
		_ = syscall.Kill(pid, syscall.SIGTERM)
	}
	if code := first.code(time.Minute); code != 0 {
		t.Errorf("the worker ended with %d, want 0", code)
	}
	f.start()
	for _, run := range runs {
		got, want := f.await(run, "succeeded"), 2
		if strings.HasPrefix(run, "ignores") {
			want = 1
		}
		if len(got.Attempts) != want || got.Crashes != 0 {
			t.Errorf("%s: %+v, want %d attempts and no crash", run, got, want)
		}
		if want == 2 && got.Attempts[0].outcome() != "handed back" {
			t.Errorf("%s: the first attempt is %q (%s), want it handed back", run, got.Attempts[0].outcome(), textOf(got.Attempts[0].Error))
		}
	}
}

// A SIGTERM to a command alone is a failure like any other.
func TestTerminatingACommandFailsIt(t *testing.T) {
	t.Parallel()
	f, _ := newPack(t, `jobs: {dies: {command: [sh, -c, 'exec sleep 1000'], retry: {max: 0}}}`, long)
	f.startAll(1)
	run := f.enqueue("dies", "x")
	f.await(run, "running")
	var pids []int
	eventually(t, 20*time.Second, "the command runs", func() bool {
		pids = tree(f.workers[0].Process.Pid)
		return len(pids) == 4 // parent, child, guard, command
	})
	must(t, syscall.Kill(pids[3], syscall.SIGTERM))
	f.await(run, "failed")
}

// tree returns a process and all processes below it, parents before their children.
func tree(pid int) []int {
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, childrenOf(all[i])...)
	}
	return all
}
