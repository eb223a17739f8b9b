package cmd

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// A Go handler that ignores its context keeps its slot and its lock, which is visible, and a drain
// ends without it: the process exits, and the parent hands the run back and ends the session. The
// lease outlasts the test.
func TestDrainEndsAlthoughAHandlerIgnoresItsContext(t *testing.T) {
	t.Parallel()
	hooks := t.TempDir()
	f, _ := newPack(t, `
worker: {drain_timeout: 500ms}
defaults: {retry: {max: 1, initial: 1s}}
jobs:
  late: {handler: stubborn, timeout: 500ms, args: {effects: EFFECTS, gate: /none}, lock: {exclusive: [desk]}}
  drained: {handler: stubborn, args: {effects: EFFECTS, gate: /none}}
  abandoned: {handler: stubborn, args: {effects: EFFECTS, gate: /none}, on_crash: abandon}
`, long, withHandlers+"=1", hooksIn+"="+hooks)
	f.startAll(1)
	late, drained, abandoned := f.enqueue("late", "x"), f.enqueue("drained", "x"), f.enqueue("abandoned", "x")
	for _, run := range []string{late, drained, abandoned} {
		f.await(run, "running")
	}
	eventually(t, time.Minute, "the run shows as stuck", func() bool {
		stdout, _, _ := runTool(t, f.env, "run", "show", late)
		return strings.Contains(stdout, "stuck") && strings.Contains(stdout, "timeout: the attempt took too long")
	})
	if stdout, _, _ := runTool(t, f.env, "run", "show", drained); strings.Contains(stdout, "stuck") {
		t.Errorf("a run without a timeout shows as stuck:\n%s", stdout)
	}
	if stdout, _, _ := runTool(t, f.env, "lock", "show", "desk"); !strings.Contains(stdout, "stuck") {
		t.Errorf("its lock does not show it as stuck:\n%s", stdout)
	}
	address := pageOf(t, f.workers[0])
	if _, metrics := fetch(t, "http://"+address+"/metrics"); !strings.Contains(string(metrics), "\nlockstep_attempts_stuck 1\n") {
		t.Error("the metric does not count it")
	}
	eventually(t, 20*time.Second, "the page shows it as stuck", func() bool {
		_, page := fetch(t, "http://"+address+"/")
		return strings.Contains(string(page), "stuck")
	})

	began := time.Now()
	first := f.workers[0]
	first.signal(syscall.SIGTERM)
	if code := first.code(time.Minute); code != 0 {
		t.Errorf("exit code %d, want 0: %s", code, tail(first.stderr.String()))
	}
	t.Logf("the worker ended %s after SIGTERM, with 500ms to drain and a cutoff of 3s", time.Since(began))
	if calls := hookCalls(hooks); len(calls) != 1 || !strings.HasPrefix(calls[0], "start ") {
		t.Errorf("called %q, want no OnStop under handlers that still run", calls)
	}
	f.workers = nil
	f.startAll(1)
	for _, run := range []string{late, drained} {
		got, want := f.await(run, "succeeded"), "handed back"
		if run == late {
			want = "failed"
		}
		if len(got.Attempts) != 2 || got.Crashes != 0 || got.Attempts[0].outcome() != want {
			t.Errorf("%+v, want its first attempt %s, and no crash", got, want)
		}
	}
	if lost := f.await(abandoned, "lost"); lost.Reason == nil || !strings.Contains(*lost.Reason, "ended while the handler ignored the end of its context") {
		t.Errorf("%+v, want the reason why it is lost", lost)
	}
	f.checkOverlap()
}
