package web

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"lockstep/locks/space"
	"lockstep/scheduler"
	"lockstep/scheduler/ledger"
)

// Metrics are the counts of this process' worker, for /metrics. Give [Metrics.Attempt] and
// [Metrics.Hook] to the worker and the whole to [Options]. No label has a value that a run brings,
// nor a user, a run or a host: their number is unbounded. See "Metrics" in the package's doc.
type Metrics struct {
	slots    prometheus.Gauge
	running  prometheus.Gauge
	stuck    prometheus.Gauge
	delay    prometheus.Histogram
	waited   prometheus.Histogram
	took     *prometheus.HistogramVec // by job
	scripts  *prometheus.HistogramVec // by script
	refused  *prometheus.CounterVec   // by what is wrong with the signature
	rejected *prometheus.CounterVec   // by call
	repeated *prometheus.CounterVec   // by reason
	left     prometheus.Counter
	spans    prometheus.Counter
	build    *prometheus.GaugeVec

	jobs int // how many jobs have labels of their own

	mu    sync.Mutex
	named map[string]bool // jobs with a label of their own in took; guarded by mu
}

// The buckets of histograms, in seconds, for scrapers that take no native ones. Each is also a
// native histogram.
var (
	// From a tick to the start of its run. The aim on an idle fleet is a median under 50 ms and
	// 99 % under 250 ms; missed ticks that run all the same fall beyond the last one.
	startDelays = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	// A run may take milliseconds or hours, and so may its wait for locks.
	runTimes = []float64{.01, .1, .5, 1, 5, 15, 60, 300, 900, 3600, 14400}
	// A script takes a round trip, or longer when Redis is busy or slow to reach.
	scriptTimes = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 2.5}
)

// otherJobs is the label of all jobs beyond the number of those with labels of their own. It is not
// a name that a job can have.
const otherJobs = "_other"

// histogram returns the options of a histogram that is both classic and native.
func histogram(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
	}
}

// NewMetrics starts the counts of a worker of this version with this number of slots. At most this
// number of jobs have labels of their own; the others are _other.
func NewMetrics(version string, slots, jobs int) *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		jobs: jobs, named: make(map[string]bool),
		slots:   gauge("lockstep_slots", "How many attempts may run at a time on this worker."),
		running: gauge("lockstep_attempts_running", "Attempts that run on this worker now."),
		stuck: gauge("lockstep_attempts_stuck",
			"Attempts on this worker that continue after their timeout, or after another end of their context; they keep their slots and locks."),
		delay: prometheus.NewHistogram(histogram("lockstep_tick_start_delay_seconds",
			"From a tick, or for a job with jitter from when it became due, to the start of its run on this worker, whatever it waited for; by Redis' clock.", startDelays)),
		waited: prometheus.NewHistogram(histogram("lockstep_lock_wait_seconds",
			"How long a run that has started on this worker had waited for its locks, 0 for one that did not wait; by Redis' clock.", runTimes)),
		took: prometheus.NewHistogramVec(histogram("lockstep_run_duration_seconds",
			"From the first start of a run to its end, which this worker has recorded, with the pauses between its attempts.", runTimes), []string{"job"}),
		scripts: prometheus.NewHistogramVec(histogram("lockstep_script_duration_seconds",
			"From sending a script to Redis to its reply, by script. Those that are sent together take as long as all of them.", scriptTimes), []string{"script"}),
		refused: counters("lockstep_runs_refused_total",
			"Runs that this worker refused since their definition could not be trusted, by its signature: unsigned or wrong.", "signature"),
		rejected: counters("lockstep_rejected_calls_total",
			"Calls for a run that Redis rejected permanently, by call: claim or finish. The run ends as failed, or is parked.", "call"),
		repeated: counters("lockstep_deliveries_repeated_total",
			"Deliveries that this worker pushed again, by reason: unconfirmed, lost (its queue no longer has it) or session_ended (a worker had fetched it).", "reason"),
		left: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lockstep_deliveries_left_total",
			Help: "Deliveries that this worker left to the sweep, since too many waited to be pushed.",
		}),
		spans: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lockstep_spans_lost_total",
			Help: "Spans that were not exported, since the receiver did not take them or too many waited for it.",
		}),
		build: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lockstep_build_info", Help: "Version and identity of this process; always 1.",
		}, []string{"version", "go_version"}),
	}
	m.slots.Set(float64(slots))
	for _, kind := range []string{"unsigned", "wrong"} {
		m.refused.WithLabelValues(kind)
	}
	for _, call := range []string{"claim", "finish"} {
		m.rejected.WithLabelValues(call)
	}
	for _, reason := range scheduler.Reasons {
		m.repeated.WithLabelValues(reason)
	}
	m.build.WithLabelValues(version, runtime.Version()).Set(1)
	return m
}

// Attempt counts an attempt that begins. The returned function counts its end, with the ledger's
// reply, or nil when the ledger gave none.
func (m *Metrics) Attempt(claimed *ledger.Claimed) (ended func(*ledger.Finished)) {
	m.running.Inc()
	began := time.Now()
	record := claimed.Record
	last := record.Last()
	if last.Number == 1 {
		if record.Trigger == ledger.TriggerSchedule {
			due := record.Tick
			if claimed.Job.Jitter > 0 && record.DueSince.After(due) {
				due = record.DueSince
			}
			m.delay.Observe(max(0, last.Started.Sub(due)).Seconds())
		}
		var waited time.Duration
		if !record.Waited.IsZero() {
			waited = max(0, last.Started.Sub(record.Waited))
		}
		m.waited.Observe(waited.Seconds())
	}
	return func(finished *ledger.Finished) {
		m.running.Dec()
		if finished != nil && finished.Verdict == ledger.FinishRecorded && finished.State.Final() {
			took := time.Since(began)
			if !record.Started.IsZero() {
				took += max(0, last.Started.Sub(record.Started))
			}
			m.took.WithLabelValues(m.label(record.Job)).Observe(took.Seconds())
		}
	}
}

// label returns the label of a job: the first ones that end here have their own.
func (m *Metrics) label(job string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.named[job] {
		if len(m.named) >= m.jobs {
			return otherJobs
		}
		m.named[job] = true
	}
	return job
}

// Refused counts a run that was refused because of the signature of its definition.
func (m *Metrics) Refused(kind string) { m.refused.WithLabelValues(kind).Inc() }

// Stuck sets how many attempts are stuck, see [worker.Options].
func (m *Metrics) Stuck(n int) { m.stuck.Set(float64(n)) }

// Rejected counts a call for a run that Redis has rejected, see [worker.Options].
func (m *Metrics) Rejected(call string) { m.rejected.WithLabelValues(call).Inc() }

// Repeated counts deliveries that were pushed again, see [worker.Options].
func (m *Metrics) Repeated(reason string, n int) { m.repeated.WithLabelValues(reason).Add(float64(n)) }

// SpansLost counts spans that were not exported.
func (m *Metrics) SpansLost(n int) { m.spans.Add(float64(n)) }

// Left counts deliveries that were left to the sweep.
func (m *Metrics) Left(n int) { m.left.Add(float64(n)) }

// collectors returns everything that the process counts.
func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.slots, m.running, m.stuck, m.delay, m.waited, m.took, m.scripts, m.refused, m.rejected,
		m.repeated, m.left, m.spans, m.build}
}

// Hook returns a hook for a client of Redis that measures scripts.
func (m *Metrics) Hook() redis.Hook { return scriptHook{m} }

// scriptOf returns the name of the script that a command calls, or "". A script of which Redis did
// not know the hash is sent again as text, which happens once for each, and is not measured.
func scriptOf(cmd redis.Cmder) string {
	args := cmd.Args()
	if len(args) < 2 || cmd.Name() != "evalsha" {
		return ""
	}
	hash, _ := args[1].(string) // go-redis and ours pass a string
	return space.NameOf(hash)
}

type scriptHook struct{ m *Metrics }

func (h scriptHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h scriptHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		began := time.Now()
		err := next(ctx, cmd)
		if name := scriptOf(cmd); name != "" {
			h.m.scripts.WithLabelValues(name).Observe(time.Since(began).Seconds())
		}
		return err
	}
}

func (h scriptHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		began := time.Now()
		err := next(ctx, cmds)
		took := time.Since(began).Seconds()
		names := make(map[string]bool)
		for _, cmd := range cmds {
			names[scriptOf(cmd)] = true
		}
		delete(names, "")
		for name := range names {
			h.m.scripts.WithLabelValues(name).Observe(took)
		}
		return err
	}
}
