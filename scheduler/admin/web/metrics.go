package web

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lockstep/locks"
	"lockstep/scheduler"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// Metrics are the counts of this process' worker, for /metrics. Give [Metrics.Attempt] to the
// worker and the whole to [Options]. No label has a value that a run brings, nor a user, a run or a
// host: their number is unbounded.
type Metrics struct {
	slots    prometheus.Gauge
	running  prometheus.Gauge
	stuck    prometheus.Gauge
	delay    prometheus.Histogram
	ended    *prometheus.CounterVec // by job and the state of the run
	refused  *prometheus.CounterVec // by what is wrong with the signature
	rejected *prometheus.CounterVec // by call
	repeated *prometheus.CounterVec // by reason
	left     prometheus.Counter
	build    *prometheus.GaugeVec
}

// startDelays are the buckets of the time from a tick to the start of its run. The aim on an idle
// fleet is a median under 50 ms and 99 % under 250 ms; missed ticks that run all the same fall
// beyond the last one.
var startDelays = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// NewMetrics starts the counts of a worker of this version with this number of slots.
func NewMetrics(version string, slots int) *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		slots:   gauge("lockstep_slots", "How many attempts may run at a time on this worker."),
		running: gauge("lockstep_attempts_running", "Attempts that run on this worker now."),
		stuck: gauge("lockstep_attempts_stuck",
			"Attempts on this worker that continue after their timeout, or after another end of their context; they keep their slots and locks."),
		delay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "lockstep_tick_start_delay_seconds", Buckets: startDelays,
			Help: "From a tick, or for a job with jitter from when it became due, to the start of its run on this worker, whatever it waited for; by Redis' clock.",
		}),
		ended: counters("lockstep_runs_ended_total",
			"Runs whose end this worker has recorded, by job and outcome.", "job", "outcome"),
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
	record := claimed.Record
	if first := record.Last(); record.Trigger == ledger.TriggerSchedule && first.Number == 1 {
		due := record.Tick
		if claimed.Job.Jitter > 0 && record.DueSince.After(due) {
			due = record.DueSince
		}
		m.delay.Observe(max(0, first.Started.Sub(due)).Seconds())
	}
	return func(finished *ledger.Finished) {
		m.running.Dec()
		if finished != nil && finished.Verdict == ledger.FinishRecorded && finished.State.Final() {
			m.ended.WithLabelValues(record.Job, string(finished.State)).Inc()
		}
	}
}

// Refused counts a run that was refused because of the signature of its definition.
func (m *Metrics) Refused(kind string) { m.refused.WithLabelValues(kind).Inc() }

// Stuck sets how many attempts are stuck, see [worker.Options].
func (m *Metrics) Stuck(n int) { m.stuck.Set(float64(n)) }

// Rejected counts a call for a run that Redis has rejected, see [worker.Options].
func (m *Metrics) Rejected(call string) { m.rejected.WithLabelValues(call).Inc() }

// Repeated counts deliveries that were pushed again, see [worker.Options].
func (m *Metrics) Repeated(reason string, n int) { m.repeated.WithLabelValues(reason).Add(float64(n)) }

// Left counts deliveries that were left to the sweep.
func (m *Metrics) Left(n int) { m.left.Add(float64(n)) }

// metrics returns the handler of /metrics: the counts of this process, and the state of the lock
// space, read during the request. An outage of Redis removes only the latter, so that an alert can
// detect it.
func (s *Server) metrics() func(http.ResponseWriter, *http.Request) error {
	own := prometheus.NewRegistry()
	own.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if m := s.o.Metrics; m != nil {
		own.MustRegister(m.slots, m.running, m.stuck, m.delay, m.ended, m.refused, m.rejected, m.repeated, m.left, m.build)
	}
	return func(w http.ResponseWriter, r *http.Request) error {
		sight := &sight{config: s.config(), worker: locks.SessionID(s.o.Worker())}
		sight.snapshot, sight.err = s.snapshot(r.Context())
		if sight.err == nil {
			sight.due, sight.err = shared(r.Context(), s.read, "due", func(ctx context.Context) (map[admin.WaitReason]int, error) {
				return s.o.Reader.DueBy(ctx, sight.snapshot)
			})
		}
		if err := s.o.Unready(); errors.Is(err, worker.ErrRedis) {
			sight.unusable = true
		}
		seen := prometheus.NewRegistry()
		seen.MustRegister(sight)
		promhttp.HandlerFor(prometheus.Gatherers{own, seen}, promhttp.HandlerOpts{}).ServeHTTP(w, r)
		return nil
	}
}

// sight is what one request for metrics sees: the config of this process, and the lock space.
type sight struct {
	config   *admin.Config // nil: it has none
	worker   locks.SessionID
	snapshot *admin.Snapshot
	due      map[admin.WaitReason]int // due runs
	err      error                    // the lock space cannot be read

	// the worker can start no run, because its session is in doubt or Redis takes no writes
	unusable bool
}

var (
	descRedisUp = prometheus.NewDesc("lockstep_redis_up", "Whether the lock space could be read just now, and this worker's session is certain and its writes are accepted.", nil, nil)
	descHolds   = prometheus.NewDesc("lockstep_holds", "Bundles that are held now, over all workers.", nil, nil)
	descWaits   = prometheus.NewDesc("lockstep_waits", "Requests that wait for their bundle now, over all workers.", nil, nil)
	descWorkers = prometheus.NewDesc("lockstep_workers", "Workers with a valid lease, by state.", []string{"state"}, nil)
	descLease   = prometheus.NewDesc("lockstep_session_lease_left_seconds", "Remaining time of this worker's lease, by Redis' clock.", nil, nil)
	descDispute = prometheus.NewDesc("lockstep_queues_disputed", "Queues that this worker serves although they belong to another namespace.", nil, nil)

	descDue = prometheus.NewDesc("lockstep_due_runs", "Runs that are due and do not run yet, over all workers, by the reason: paused, worker, handler, suspect, slot, behind or delivery. Only the oldest of each queue are looked at, the others count as behind them.", []string{"reason"}, nil)

	descConfig     = prometheus.NewDesc("lockstep_config_info", "Which config this worker has; always 1.", []string{"digest"}, nil)
	descConfigJobs = prometheus.NewDesc("lockstep_config_jobs", "Jobs of the config that this worker has.", nil, nil)
	descReloads    = prometheus.NewDesc("lockstep_config_reloads_total", "Reloads of the config, by what became of them: taken or refused.",
		[]string{"outcome"}, nil)
	descReloaded = prometheus.NewDesc("lockstep_config_last_reload_successful",
		"Whether the last reload of the config, if there was one, was taken.", nil, nil)
	descLoaded = prometheus.NewDesc("lockstep_config_last_load_timestamp_seconds",
		"When the config that this worker has was loaded.", nil, nil)
	descRestart = prometheus.NewDesc("lockstep_config_restart_needed",
		"Whether the files have settings that this worker takes only when it is restarted.", nil, nil)
)

// Describe sends nothing: a sight is the only collector of its registry, and is collected once.
func (s *sight) Describe(chan<- *prometheus.Desc) {}

// Collect sends the metrics of this request.
func (s *sight) Collect(to chan<- prometheus.Metric) {
	tell := func(what *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(what, prometheus.GaugeValue, value, labels...)
	}
	if c := s.config; c != nil {
		tell(descConfig, 1, c.Digest)
		tell(descConfigJobs, float64(c.Jobs))
		to <- prometheus.MustNewConstMetric(descReloads, prometheus.CounterValue, float64(c.Reloads), "taken")
		to <- prometheus.MustNewConstMetric(descReloads, prometheus.CounterValue, float64(c.Refused), "refused")
		tell(descReloaded, truth(!wasRefused(c)))
		tell(descLoaded, float64(c.LoadedAt.UnixMilli())/float64(time.Second/time.Millisecond))
		tell(descRestart, truth(len(c.NeedsRestart) > 0))
	}
	tell(descRedisUp, truth(s.err == nil && !s.unusable))
	if s.err != nil {
		return
	}
	held := 0
	for i := range s.snapshot.Holders {
		if !s.snapshot.Holders[i].Resting {
			held++
		}
	}
	tell(descHolds, float64(held))
	tell(descWaits, float64(len(s.snapshot.Waits)))
	for _, reason := range admin.DueReasons() {
		tell(descDue, float64(s.due[reason]), string(reason))
	}
	states := map[string]int{"ready": 0, "draining": 0}
	for _, w := range s.snapshot.Workers() {
		states[w.State]++
		if w.ID == s.worker {
			tell(descLease, time.Duration(w.LeaseLeft).Seconds())
			tell(descDispute, float64(len(w.Disputed)))
		}
	}
	for state, n := range states {
		if state != admin.Gone { // the space keeps an ended session for a while, to report it
			tell(descWorkers, float64(n), state)
		}
	}
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
