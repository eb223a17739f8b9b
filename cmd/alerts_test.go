package cmd

import (
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"lockstep/scheduler/ledger"
)

// TestEveryAlertFiresForItsFault causes one fault for each alert, in one fleet that a real
// Prometheus scrapes. The rules are those that are delivered, except that no alert waits (for), and
// that their thresholds of time and number are lower; promtool tests those. Before the faults, no
// alert fires but that of a job that is late from the beginning.
func TestEveryAlertFiresForItsFault(t *testing.T) {
	t.Parallel()
	hook := newReceiver(t)
	hook.refuseAll(http.StatusInternalServerError)
	f, server := newPack(t, fmt.Sprintf(`
notify: {hook: {webhook: "%s", secret_file: %s}}
worker: {concurrency: 3, drain_timeout: 500ms, queues: {default: 3, shut: 1}}
jobs:
  late: {max_silence: 1s, command: ["true"]}
  fails: {retry: {max: 0}, command: ["false"], notify: [hook]}
  once: {command: HOLD, env: {AT: during}, on_crash: abandon}
  poison: {max_crashes: 2, command: [sh, -c, 'sleep 0.3; kill -9 $(sed -n "s/^PPid:[^0-9]*//p" /proc/$PPID/status); sleep 1000']}
  waits: {lock: {exclusive: [desk]}, command: [sleep, "1000"]}
  closed: {every: 1s, queue: shut, start_deadline: 3s, command: ["true"]}
  stubborn: {handler: stubborn, timeout: 500ms, retry: {max: 0}, args: {effects: EFFECTS, gate: /none}}
  piles: {queue: unserved, command: ["true"]}
  absent: {handler: absent}
`, hook.url, hook.key), long, withHandlers+"=1")
	f.startAll(2)
	p := startPrometheus(t, f, "lockstep_longest_wait_seconds) > 900", "lockstep_longest_wait_seconds) > 3",
		"lockstep_messages_oldest_seconds) > 900", "lockstep_messages_oldest_seconds) > 3", "lockstep_queue_due_runs:max > 100", "lockstep_queue_due_runs:max > 10")
	p.wait("sum(up)", "2")
	p.wait("sum(lockstep_duty)", "1")
	p.wait(`count(fleet:lockstep_runs_ended_total:max{job="once",outcome="lost"} == 0) > bool 0`, "1")
	p.wait(`ALERTS{alertname="LockstepJobLate",alertstate="firing",job="late"}`, "1")
	p.wait(`count(ALERTS{alertstate="firing"})`, "1")

	want := make(map[string]bool)
	for _, found := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(alertRules(t), -1) {
		want[found[1]] = true
	}
	if len(want) < 16 {
		t.Fatalf("the rules have the alerts %v, want more", want)
	}
	// These come last.
	for _, alert := range []string{"LockstepRedisUnreachable", "LockstepNoWorker"} {
		delete(want, alert)
	}
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		delete(want, "LockstepClockSkew") // no clock can be wrong there
	}
	conn := f.connection()
	pile := func(from int) {
		record, err := conn.ledger.Job(t.Context(), "piles")
		must(t, err)
		for i := range 12 {
			_, err := conn.ledger.Enqueue(t.Context(), ledger.Request{Job: record.Job, ID: fmt.Sprint(from + i), Trigger: ledger.TriggerEnqueue})
			must(t, err)
		}
	}
	run := f.enqueue("once", "x")
	f.held(run)
	worker, _ := f.runner(run)
	worker.killChild()
	f.await(run, "lost")
	f.await(f.enqueue("poison", "x"), "failed")
	f.settled()
	eventually(t, time.Minute, "both workers serve metrics again", func() bool { return len(f.measured()) == 2 })
	p.discover()

	// The third worker has another definition of a job, and another clock.
	config := filepath.Join(t.TempDir(), "canary.yaml")
	write(t, config, `jobs: {once: {description: newer, command: ["true"], on_crash: abandon}}`)
	program, env := clocked(t, 10*time.Minute)
	canary := launchProgram(t, program, slices.Concat(f.env, env, []string{"LOCKSTEP_CONFIG=" + config}), "start")
	for _, args := range [][]string{
		{"enqueue", "fails", "--id", "x"}, {"enqueue", "waits", "--id", "x"}, {"enqueue", "waits", "--id", "y"},
		{"enqueue", "stubborn", "--id", "x"}, {"enqueue", "absent", "--id", "x"}, {"queue", "pause", "shut", "--reason", "test"},
	} {
		if _, stderr, code := runTool(t, f.env, args...); code != 0 {
			t.Fatalf("lockstep %v: exit code %d: %s", args, code, stderr)
		}
	}
	eventually(t, time.Minute, "the third worker is ready", func() bool { return strings.Contains(canary.stderr.String(), "worker is ready") })
	p.discover() // duty passes to it, since the others have drifted
	pile(0)
	p.wait(`fleet:lockstep_queue_due_runs:max{queue="unserved"}`, "12")
	pile(100) // they become more
	write(t, config, "nonsense: 1\n")
	canary.signal(syscall.SIGHUP)

	fired, began := make(map[string]time.Duration), time.Now()
	defer func() {
		if t.Failed() {
			t.Logf("these have fired: %v", fired)
		}
	}()
	eventually(t, 90*time.Second, "every alert fires", func() bool {
		p.discover() // a child that a crash has replaced serves metrics at another address
		for alert := range p.firing() {
			if fired[alert] == 0 {
				fired[alert] = time.Since(began).Round(time.Millisecond)
			}
		}
		for alert := range want {
			if fired[alert] == 0 {
				return false
			}
		}
		return true
	})

	for _, reason := range []string{"worker", "handler"} {
		p.wait(fmt.Sprintf(`ALERTS{alertname="LockstepRunsWithoutWorker",alertstate="firing",reason=%q}`, reason), "1")
	}

	server.Kill()
	began = time.Now()
	eventually(t, 90*time.Second, "the alerts about Redis fire", func() bool {
		now := p.firing()
		return now["LockstepRedisUnreachable"] && now["LockstepNoWorker"]
	})
	for _, alert := range slices.Sorted(maps.Keys(fired)) {
		t.Logf("%s fired %s after the faults", alert, fired[alert])
	}
	t.Logf("without Redis, the others fired after %s", time.Since(began).Round(time.Millisecond))
}

// firing returns the alerts that fire.
func (p *prometheus) firing() map[string]bool {
	p.t.Helper()
	names := make(map[string]bool)
	for _, one := range p.samples(`ALERTS{alertstate="firing"}`) {
		names[one.Metric["alertname"]] = true
	}
	return names
}
