package web

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"lockstep/jobs"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// measured is a server of the worker "web-1.x7k2m9qa" of the fleet, with metrics. It has duty.
func measured(t *testing.T, f *fakes.Fake, config *admin.Config) (*Server, *Metrics) {
	t.Helper()
	m := NewMetrics("v1.2.3", 8, 2)
	f.OnDuty = "web-1.x7k2m9qa"
	s, err := New(Options{
		Reader: readerOf(f), Worker: func() string { return "web-1.x7k2m9qa" }, Logger: slog.New(slog.DiscardHandler),
		Config: func() *admin.Config { return config }, Metrics: m,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, m
}

// tells checks that the metrics have these lines, and that the linter accepts them.
func tells(t *testing.T, s *Server, lines ...string) (body string) {
	t.Helper()
	w := get(s, "/metrics")
	body = w.Body.String()
	if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Fatalf("got %d, %s:\n%s", w.Code, w.Header().Get("Content-Type"), body)
	}
	for _, line := range lines {
		if !strings.Contains("\n"+body, "\n"+line+"\n") {
			t.Errorf("there is no line %q", line)
		}
	}
	if t.Failed() {
		t.Log(body)
	}
	found, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		t.Error(err)
	}
	for _, problem := range found {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
	return body
}

func TestMetricsDescribeTheConfig(t *testing.T) {
	t.Parallel()
	config := &admin.Config{Digest: "9f2c1e", Jobs: 4, LoadedAt: admin.Instant{Time: fakes.Noon}, Reloads: 2}
	s, _ := measured(t, fakes.Fleet(), config)
	good := []string{
		`lockstep_config_info{digest="9f2c1e"} 1`, "lockstep_config_jobs 4", `lockstep_config_reloads_total{outcome="taken"} 2`,
		"lockstep_config_last_load_timestamp_seconds 1.7952624e+09", "lockstep_config_restart_needed 0",
		`lockstep_build_info{go_version="` + runtime.Version() + `",version="v1.2.3"} 1`,
	}
	tells(t, s, append(good, `lockstep_config_reloads_total{outcome="refused"} 0`, "lockstep_config_last_reload_successful 1")...)

	// the rest is that of the old one
	config.Refused, config.RefusedAt = 1, admin.Instant{Time: fakes.Noon.Add(time.Minute)}
	tells(t, s, append(good, `lockstep_config_reloads_total{outcome="refused"} 1`, "lockstep_config_last_reload_successful 0")...)

	config.NeedsRestart = []string{"worker.concurrency"}
	tells(t, s, "lockstep_config_restart_needed 1")
}

func TestMetricsDescribeTheLockSpace(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	s, _ := measured(t, f, nil)
	body := tells(t, s, "lockstep_redis_up 1", fmt.Sprintf("lockstep_holds %d", len(f.Listing.Holds)),
		fmt.Sprintf("lockstep_waits %d", len(f.Listing.Waits)), `lockstep_workers{state="ready"} 1`, `lockstep_workers{state="draining"} 1`, "lockstep_session_lease_left_seconds 12", "lockstep_slots 8")
	if strings.Contains(body, "lockstep_config") {
		t.Errorf("metrics of a config that is not there:\n%s", body)
	}

	// A full Redis can be read, but the worker cannot work with it.
	full, err := New(Options{Reader: readerOf(f), Unready: func() error { return fmt.Errorf("%w: OOM", worker.ErrRedis) }})
	if err != nil {
		t.Fatal(err)
	}
	tells(t, full, "lockstep_redis_up 0", "lockstep_duty 0")

	// In an outage the process' own counts are still served.
	f.Fail("connection refused")
	s, _ = measured(t, f, nil)
	body = tells(t, s, "lockstep_redis_up 0", "lockstep_slots 8")
	for _, unknown := range []string{"lockstep_holds", "lockstep_workers", "lockstep_session"} {
		if strings.Contains(body, unknown) {
			t.Errorf("%s is told although nobody knows", unknown)
		}
	}
}

func TestMetricsCountDueRunsByTheirReason(t *testing.T) {
	t.Parallel()
	due := func(queue string, n, crashes int) *ledger.Record {
		return &ledger.Record{ID: jobs.RunID(fmt.Sprintf("j#%s%d", queue, n)), Job: "j", Queue: queue, State: ledger.StateDue, Crashes: crashes}
	}
	f := fakes.Crew(worker.Card{State: "ready", Handlers: []string{"h"}, Suspect: "j#poison", Queues: map[string]int{"default": 1, "off": 1}})
	f.PausedQueues = []string{"off"}
	f.Queues = []ledger.DueQueue{
		{Name: "default", Due: 50, Oldest: []*ledger.Record{due("default", 0, 0), due("default", 1, 1), due("default", 2, 0)}},
		{Name: "nobody", Due: 7, Oldest: []*ledger.Record{due("nobody", 0, 0)}},
		{Name: "off", Due: 30, Oldest: []*ledger.Record{due("off", 0, 0)}},
	}
	s, _ := measured(t, f, nil)
	tells(t, s, `lockstep_due_runs{reason="delivery"} 1`, `lockstep_due_runs{reason="suspect"} 1`, `lockstep_due_runs{reason="behind"} 48`,
		`lockstep_due_runs{reason="worker"} 7`, `lockstep_due_runs{reason="paused"} 30`, `lockstep_due_runs{reason="slot"} 0`,
		`lockstep_due_runs{reason="handler"} 0`)
}

func TestMetricsCountARunThatAnotherCrashEndsByTheRuleOfTheWorkers(t *testing.T) {
	t.Parallel()
	f := fakes.Crew(worker.Card{State: "ready", Handlers: []string{"h"}, Beside: 1})
	cleared := []ledger.AttemptRecord{{Number: 1, Started: fakes.Noon, Finished: fakes.Noon.Add(time.Second), Outcome: "crashed", Cleared: true}}
	f.Queues = []ledger.DueQueue{{Name: "default", Due: 1, Oldest: []*ledger.Record{
		{ID: "j#x", Job: "j", Queue: "default", State: ledger.StateDue, Crashes: 1, Attempts: cleared},
	}}}
	for most, want := range map[int]string{2: "suspect", 3: "delivery"} {
		f.Registered[0].Job.MaxCrashes = most
		s, _ := measured(t, f, nil)
		tells(t, s, fmt.Sprintf("lockstep_due_runs{reason=%q} 1", want))
	}
}

func TestMetricsCountAttempts(t *testing.T) {
	t.Parallel()
	s, m := measured(t, fakes.Fleet(), nil)
	begin := func(job *jobs.Job, trigger ledger.Trigger, late time.Duration, before ...ledger.AttemptRecord) func(*ledger.Finished) {
		record := &ledger.Record{
			ID: "a run with args", Job: job.Name, Trigger: trigger, Tick: fakes.Noon, DueSince: fakes.Noon.Add(20 * time.Second),
			Attempts: append(before, ledger.AttemptRecord{Number: len(before) + 1, Worker: "web-1.x7k2m9qa", Started: fakes.Noon.Add(late)}),
		}
		return m.Attempt(&ledger.Claimed{Record: record, Job: job})
	}
	backup, spread := &jobs.Job{Name: "backup"}, &jobs.Job{Name: "spread", Jitter: time.Minute}
	first := begin(backup, ledger.TriggerSchedule, 30*time.Millisecond)
	// due after 20 s
	second := begin(spread, ledger.TriggerSchedule, 20*time.Second+200*time.Millisecond)
	third := begin(backup, ledger.TriggerSchedule, time.Hour, ledger.AttemptRecord{Number: 1})
	fourth := begin(backup, ledger.TriggerEnqueue, time.Hour)
	tells(t, s, "lockstep_attempts_running 4", `lockstep_tick_start_delay_seconds_bucket{le="0.025"} 0`,
		`lockstep_tick_start_delay_seconds_bucket{le="0.05"} 1`, `lockstep_tick_start_delay_seconds_bucket{le="0.25"} 2`,
		"lockstep_tick_start_delay_seconds_count 2")

	first(&ledger.Finished{Verdict: ledger.FinishRecorded, State: ledger.StateSucceeded})
	// the run continues
	second(&ledger.Finished{Verdict: ledger.FinishRecorded, State: ledger.StateRetrying})
	// another attempt's failure
	third(&ledger.Finished{Verdict: ledger.FinishFenced, State: ledger.StateFailed})
	fourth(nil)
	begin(backup, ledger.TriggerHand, 0)(&ledger.Finished{Verdict: ledger.FinishRecorded, State: ledger.StateFailed})
	body := tells(t, s, "lockstep_attempts_running 0", `lockstep_run_duration_seconds_count{job="backup"} 2`, "lockstep_lock_wait_seconds_count 4")
	if strings.Contains(body, `job="spread"`) || strings.Contains(body, "a run with args") || strings.Contains(body, "web-1") {
		t.Errorf("more is told than should be:\n%s", body)
	}

	// Two jobs have labels of their own.
	for _, name := range []string{"spread", "third", "fourth"} {
		begin(&jobs.Job{Name: name}, ledger.TriggerEnqueue, 0)(&ledger.Finished{Verdict: ledger.FinishRecorded, State: ledger.StateFailed})
	}
	tells(t, s, `lockstep_run_duration_seconds_count{job="backup"} 2`, `lockstep_run_duration_seconds_count{job="spread"} 1`,
		`lockstep_run_duration_seconds_count{job="_other"} 2`)
}

func TestARunThatWaitedForItsLocksIsMeasured(t *testing.T) {
	t.Parallel()
	s, m := measured(t, fakes.Fleet(), nil)
	m.Attempt(&ledger.Claimed{Job: &jobs.Job{Name: "j"}, Record: &ledger.Record{
		Job: "j", Trigger: ledger.TriggerEnqueue, Waited: fakes.Noon, Started: fakes.Noon.Add(10 * time.Second),
		Attempts: []ledger.AttemptRecord{{Number: 1, Started: fakes.Noon.Add(10 * time.Second)}},
	}})
	tells(t, s, `lockstep_lock_wait_seconds_bucket{le="5"} 0`, `lockstep_lock_wait_seconds_bucket{le="15"} 1`, "lockstep_lock_wait_seconds_sum 10")
}

func TestHistogramsAreAlsoNative(t *testing.T) {
	t.Parallel()
	s, m := measured(t, fakes.Fleet(), nil)
	m.took.WithLabelValues("j").Observe(1)
	m.scripts.WithLabelValues("ledger/claim").Observe(.001)
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited")
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	decoder, found := expfmt.NewDecoder(w.Body, expfmt.ResponseFormat(w.Header())), 0
	for {
		var family dto.MetricFamily
		if err := decoder.Decode(&family); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if family.GetType() == dto.MetricType_HISTOGRAM && strings.HasPrefix(family.GetName(), "lockstep_") {
			found++
			if h := family.GetMetric()[0].GetHistogram(); h.Schema == nil || len(h.GetBucket()) == 0 {
				t.Errorf("%s is not both native and classic: %v", family.GetName(), h)
			}
		}
	}
	if found != 4 {
		t.Errorf("%d histograms, want 4", found)
	}
}

// TestOnlyTheWorkerOnDutyShowsTheFleet, so that a sum over all workers is right.
func TestOnlyTheWorkerOnDutyShowsTheFleet(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	s, _ := measured(t, f, nil)
	tells(t, s, "lockstep_duty 1", `lockstep_workers{state="ready"} 1`)

	other := fakes.Fleet()
	s, _ = measured(t, other, nil)
	other.OnDuty = "web-2.p91qd3f7"
	body := tells(t, s, "lockstep_duty 0", "lockstep_redis_up 1", "lockstep_session_lease_left_seconds 12", "lockstep_clock_skew_seconds 0")
	of := regexp.MustCompile(`(?m)^lockstep_(holds|waits|workers|due_runs|queue_|job_|runs_ended|ticks_|attempts_total|grace|longest|messages)`)
	if found := of.FindString(body); found != "" {
		t.Errorf("a worker without duty shows %s", found)
	}
}

func TestMetricsDescribeJobsQueuesAndLocks(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	f.Grace = 3 * time.Second
	f.Mailboxes = []ledger.MailOf{{Target: "ops", Waiting: 2, Since: fakes.Noon.Add(-time.Minute)}, {Target: "hook", Sent: 1}}
	f.Registered[0].LastSuccess, f.Registered[0].Silent = fakes.Noon.Add(-2*time.Hour), fakes.Noon.Add(-2*time.Hour)
	f.Registered[0].Job.MaxSilence = time.Hour
	f.Registered[2].Job.MaxSilence, f.Registered[2].Silent = time.Hour, fakes.Noon.Add(-3*time.Hour)
	f.Queues = []ledger.DueQueue{{Name: "default", Due: 7, Oldest: []*ledger.Record{{ID: "j#1", DueSince: fakes.Noon.Add(-time.Minute)}}}}
	s, _ := measured(t, f, nil)
	body := tells(t, s, "lockstep_grace_left_seconds 3", `lockstep_messages_waiting{target="ops"} 2`, `lockstep_messages_oldest_seconds{target="ops"} 60`,
		`lockstep_job_late{job="nightly-backup"} 1`, `lockstep_job_late{job="settle-bills"} 0`, `lockstep_job_late{job="_other"} 1`,
		`lockstep_job_runs_running{job="nightly-backup"} 1`, `lockstep_job_runs_outstanding{job="settle-bills"} 3`,
		`lockstep_job_last_success_timestamp_seconds{job="nightly-backup"} 1.7952552e+09`,
		`lockstep_queue_due_runs{queue="default"} 7`, `lockstep_queue_oldest_seconds{queue="default"} 60`, `lockstep_queue_paused{queue="critical"} 1`)
	if strings.Contains(body, `target="hook"`) {
		t.Error("a target without messages that wait has a metric")
	}
}

func TestTotalsBecomeCountersThatNeverFall(t *testing.T) {
	t.Parallel()
	run := func(job string) ledger.Total {
		return ledger.Total{Of: ledger.EndedRun, Job: job, Outcome: "failed", Trigger: ledger.TriggerSchedule}
	}
	c := new(totals)
	for _, step := range []struct {
		what         string
		since        int64
		labeled      []string
		a, b         int64 // what the ledger has
		wantA, wantB int64 // of their own labels; -1: none
		wantOther    int64 // -1: none
	}{
		{"b has no label of its own", 1, []string{"a"}, 5, 7, 5, -1, 7},
		{"both go on", 1, []string{"a"}, 6, 9, 6, -1, 9},
		{"Redis has lost some ends", 1, []string{"a"}, 4, 8, 6, -1, 9},
		{"which are asserted again", 1, []string{"a"}, 7, 10, 7, -1, 10},
		{"b gets a label", 1, []string{"a", "b"}, 7, 11, 7, 11, 10},
		{"and loses it", 1, []string{"a"}, 7, 12, 7, -1, 11},
		{"a is forgotten", 1, nil, 0, 12, -1, -1, 11},
		{"and begins anew", 1, []string{"a"}, 1, 12, 1, -1, 11},
		{"Redis has lost everything", 2, []string{"a"}, 1, 2, 1, -1, 2},
	} {
		read := &ledger.Totals{Since: time.Unix(step.since, 0), Counts: make(map[ledger.Total]int64)}
		for job, n := range map[string]int64{"a": step.a, "b": step.b} {
			if n > 0 {
				read.Counts[run(job)] = n
			}
		}
		var vitals []admin.Vitals
		for _, job := range step.labeled {
			vitals = append(vitals, admin.Vitals{Job: job, Scheduled: true})
		}
		got := c.take(read, vitals)
		for job, want := range map[string]int64{"a": step.wantA, "b": step.wantB, otherJobs: step.wantOther} {
			if n, is := got[run(job)]; is != (want >= 0) || is && n != want {
				t.Errorf("%s: %s is %d (%t), want %d", step.what, job, n, is, want)
			}
		}
	}
}

// TestACounterBeginsWithZero: a rate does not see the first value of a counter, which would be the
// first lost run.
func TestACounterBeginsWithZero(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	f.Counts.Counts = map[ledger.Total]int64{{Of: ledger.EndedRun, Job: "settle-bills", Outcome: "succeeded", Trigger: ledger.TriggerHand}: 4,
		{Of: ledger.EndedTick, Job: "warm-cache", Outcome: "missed"}: 3}
	s, _ := measured(t, f, nil)
	tells(t, s, `lockstep_runs_ended_total{job="nightly-backup",outcome="lost",trigger="schedule"} 0`,
		`lockstep_ticks_total{job="nightly-backup",outcome="missed"} 0`, `lockstep_attempts_total{job="nightly-backup",outcome="crashed"} 0`,
		`lockstep_runs_ended_total{job="settle-bills",outcome="succeeded",trigger="hand"} 4`,
		`lockstep_runs_ended_total{job="settle-bills",outcome="failed",trigger="enqueue"} 0`, `lockstep_ticks_total{job="_other",outcome="missed"} 3`)
}
