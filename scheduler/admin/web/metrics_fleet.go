package web

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lockstep/locks"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// metrics returns the handler of /metrics: the counts of this process, what it sees of itself, and,
// if its worker has duty, the state of the fleet, read during the request. An outage of Redis
// removes only what is in Redis, so that an alert can detect it.
func (s *Server) metrics() func(http.ResponseWriter, *http.Request) error {
	own := prometheus.NewRegistry()
	own.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	counts := new(totals)
	if m := s.o.Metrics; m != nil {
		own.MustRegister(m.collectors()...)
		counts.most = m.jobs
	}
	return func(w http.ResponseWriter, r *http.Request) error {
		sight := &sight{config: s.config(), worker: locks.SessionID(s.o.Worker())}
		sight.snapshot, sight.err = s.snapshot(r.Context())
		if sight.err == nil {
			sight.fleet, sight.err = s.fleet(r.Context(), sight.worker, sight.snapshot, counts)
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

// fleet is what only the worker on duty shows.
type fleet struct {
	due    map[admin.WaitReason]int // due runs
	grace  time.Duration
	queues []admin.Queue
	vitals vitals
	unsent []admin.Unsent
	counts map[ledger.Total]int64
}

// vitals are those of the jobs with labels of their own, and the sums of the others.
type vitals struct {
	jobs   []admin.Vitals
	others admin.Vitals
	more   bool // there are others
}

// fleet reads the state of the fleet if this process' worker has duty; else it returns nil.
func (s *Server) fleet(ctx context.Context, self locks.SessionID, snapshot *admin.Snapshot, counts *totals) (*fleet, error) {
	duty, err := shared(ctx, s.read, "duty", s.o.Reader.Duty)
	if err != nil || self == "" || duty != self {
		return nil, err
	}
	f := new(fleet)
	f.due, err = shared(ctx, s.read, "due", func(ctx context.Context) (map[admin.WaitReason]int, error) {
		return s.o.Reader.DueBy(ctx, snapshot)
	})
	if err != nil {
		return nil, err
	}
	if f.grace, err = shared(ctx, s.read, "grace", s.o.Reader.GraceLeft); err != nil {
		return nil, err
	}
	if f.queues, err = shared(ctx, s.read, "queues", s.o.Reader.Queues); err != nil && !errors.Is(err, ledger.ErrUnknown) {
		return nil, err
	}
	f.vitals, err = shared(ctx, s.read, "vitals", func(ctx context.Context) (v vitals, err error) {
		v.jobs, v.others, err = s.o.Reader.Vitals(ctx, counts.most)
		v.more = len(v.jobs) == counts.most
		return v, err
	})
	if err != nil {
		return nil, err
	}
	if f.unsent, err = shared(ctx, s.read, "unsent", s.o.Reader.Unsent); err != nil {
		return nil, err
	}
	read, err := shared(ctx, s.read, "totals", s.o.Reader.Totals)
	if err != nil {
		return nil, err
	}
	f.counts = counts.take(read, f.vitals.jobs)
	return f, nil
}

// totals turns the totals of the ledger into counters, which must never fall while Redis keeps its
// data: Prometheus takes a fall for a restart, and adds the whole value to a rate. A failover may
// take the last ends along, which come back when workers re-assert them; and a job without a label
// of its own may get one, or be forgotten.
type totals struct {
	most int // how many jobs have labels of their own

	mu    sync.Mutex
	since time.Time              // of the last read totals; guarded by mu, as the rest
	high  map[ledger.Total]int64 // the highest value of each that was read
	other map[ledger.Total]int64 // the sums of the increases of those without a label of their own
}

// take takes newly read totals, and returns the counters: of the jobs with labels, also those that
// are still 0, since a rate does not see the first value of a counter.
func (c *totals) take(read *ledger.Totals, jobs []admin.Vitals) map[ledger.Total]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.high == nil || !c.since.Equal(read.Since) {
		c.since, c.high, c.other = read.Since, make(map[ledger.Total]int64), make(map[ledger.Total]int64)
	}
	counters := make(map[ledger.Total]int64)
	labeled := make(map[string]bool, len(jobs))
	for _, job := range jobs {
		labeled[job.Job] = true
		addZeros(counters, job)
	}
	for total, n := range read.Counts {
		if more := n - c.high[total]; more > 0 {
			c.high[total] = n
			if !labeled[total.Job] {
				of := total
				of.Job = otherJobs
				c.other[of] += more
			}
		}
	}
	for total, n := range c.high {
		if _, kept := read.Counts[total]; !kept {
			delete(c.high, total) // its job was forgotten, and would begin anew
		} else if labeled[total.Job] {
			counters[total] = n
		}
	}
	maps.Copy(counters, c.other)
	return counters
}

// addZeros adds the counters that a job has from the start.
func addZeros(counters map[ledger.Total]int64, job admin.Vitals) {
	trigger := ledger.TriggerEnqueue
	if job.Scheduled {
		trigger = ledger.TriggerSchedule
	}
	for _, facts := range ledger.States() {
		if !facts.Final {
			continue
		}
		counters[ledger.Total{Of: ledger.EndedRun, Job: job.Job, Outcome: string(facts.State), Trigger: trigger}] = 0
		if job.Scheduled {
			counters[ledger.Total{Of: ledger.EndedTick, Job: job.Job, Outcome: string(facts.State)}] = 0
		}
	}
	for _, outcome := range ledger.AttemptOutcomes() {
		counters[ledger.Total{Of: ledger.EndedAttempt, Job: job.Job, Outcome: outcome}] = 0
	}
}

// sight is what one request for metrics sees besides the counts of its process.
type sight struct {
	config   *admin.Config // nil: it has none
	worker   locks.SessionID
	snapshot *admin.Snapshot
	fleet    *fleet // nil: this worker has no duty
	err      error  // the lock space or the ledger cannot be read

	// the worker can start no run, because its session is in doubt or Redis takes no writes
	unusable bool
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Of each worker.
var (
	descRedisUp = desc("lockstep_redis_up", "Whether the lock space and the ledger could be read just now, and this worker's session is certain and its writes are accepted.")
	descDuty    = desc("lockstep_duty", "Whether this worker has duty: it alone shows the metrics of the fleet.")
	descLease   = desc("lockstep_session_lease_left_seconds", "Remaining time of this worker's lease, by Redis' clock.")
	descClock   = desc("lockstep_clock_skew_seconds", "How far this host's clock is ahead of Redis'; negative: behind.")
	descDispute = desc("lockstep_queues_disputed", "Queues that this worker serves although they belong to another namespace.")

	descConfig     = desc("lockstep_config_info", "Which config this worker has; always 1.", "digest")
	descConfigJobs = desc("lockstep_config_jobs", "Jobs of the config that this worker has.")
	descReloads    = desc("lockstep_config_reloads_total", "Reloads of the config, by what became of them: taken or refused.", "outcome")
	descReloaded   = desc("lockstep_config_last_reload_successful", "Whether the last reload of the config, if there was one, was taken.")
	descLoaded     = desc("lockstep_config_last_load_timestamp_seconds", "When the config that this worker has was loaded.")
	descRestart    = desc("lockstep_config_restart_needed", "Whether the files have settings that this worker takes only when it is restarted.")
)

// Of the fleet, from the worker on duty.
var (
	descHolds   = desc("lockstep_holds", "Bundles that are held now.")
	descWaits   = desc("lockstep_waits", "Requests that wait for their bundle now.")
	descLongest = desc("lockstep_longest_wait_seconds", "How long the request that waits for its bundle for the longest time has waited; 0: none waits.")
	descWorkers = desc("lockstep_workers", "Workers with a valid lease, by state.", "state")
	descGrace   = desc("lockstep_grace_left_seconds", "How long no lock is granted any more, since Redis has lost data and workers re-assert what they hold.")

	descDue = desc("lockstep_due_runs", "Runs that are due and do not run yet, by the reason: paused, worker, handler, suspect, slot, behind or delivery. Only the oldest of each queue are looked at, the others count as behind them.", "reason")

	descDepth  = desc("lockstep_queue_due_runs", "Runs of a queue that are due and do not run yet.", "queue")
	descOldest = desc("lockstep_queue_oldest_seconds", "How long the first of the due runs of a queue has been due; 0: none is.", "queue")
	descPaused = desc("lockstep_queue_paused", "Whether a queue is paused.", "queue")

	descLate        = desc("lockstep_job_late", "Whether a job had no success for longer than its max_silence; under _other, how many.", "job")
	descRunning     = desc("lockstep_job_runs_running", "Runs of a job that run.", "job")
	descOutstanding = desc("lockstep_job_runs_outstanding", "Runs of a job that have not ended.", "job")
	descDrifted     = desc("lockstep_job_drifted", "Whether a live worker carries another definition of a job than the active one.", "job")
	descSuccess     = desc("lockstep_job_last_success_timestamp_seconds", "When a run of a job last succeeded.", "job")
	descEnd         = desc("lockstep_job_last_end_timestamp_seconds", "When a run or a tick of a job last came to an end that is still kept.", "job")

	descUnsent    = desc("lockstep_messages_waiting", "Messages that wait to be sent to a target; a target without any has none.", "target")
	descUnsentAge = desc("lockstep_messages_oldest_seconds", "How long the first of the messages to a target has waited.", "target")

	descRuns     = desc("lockstep_runs_ended_total", "Runs that ended, whatever ended them. A run that is reopened ends again.", "job", "outcome", "trigger")
	descTicks    = desc("lockstep_ticks_total", "Ticks that came to their outcome, also those that never became a run.", "job", "outcome")
	descAttempts = desc("lockstep_attempts_total", "Attempts that ended.", "job", "outcome")
)

// Describe sends nothing: a sight is the only collector of its registry, and is collected once.
func (s *sight) Describe(chan<- *prometheus.Desc) {}

// A teller sends metrics.
type teller func(what *prometheus.Desc, value float64, labels ...string)

// Collect sends the metrics of this request.
func (s *sight) Collect(to chan<- prometheus.Metric) {
	of := func(kind prometheus.ValueType) teller {
		return func(what *prometheus.Desc, value float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(what, kind, value, labels...)
		}
	}
	tell, count := of(prometheus.GaugeValue), of(prometheus.CounterValue)
	if c := s.config; c != nil {
		tell(descConfig, 1, c.Digest)
		tell(descConfigJobs, float64(c.Jobs))
		count(descReloads, float64(c.Reloads), "taken")
		count(descReloads, float64(c.Refused), "refused")
		tell(descReloaded, truth(!wasRefused(c)))
		tell(descLoaded, unixSeconds(c.LoadedAt.Time))
		tell(descRestart, truth(len(c.NeedsRestart) > 0))
	}
	tell(descRedisUp, truth(s.err == nil && !s.unusable))
	if s.err != nil {
		return
	}
	for _, w := range s.snapshot.Workers() {
		if w.ID == s.worker {
			tell(descLease, time.Duration(w.LeaseLeft).Seconds())
			tell(descClock, time.Duration(w.Clock).Seconds())
			tell(descDispute, float64(len(w.Disputed)))
		}
	}
	tell(descDuty, truth(s.fleet != nil))
	if s.fleet != nil {
		s.tellSpace(tell)
		s.fleet.tell(tell)
		s.fleet.count(count)
	}
}

// tellSpace tells what the snapshot has of the whole lock space.
func (s *sight) tellSpace(tell teller) {
	held := 0
	for i := range s.snapshot.Holders {
		if !s.snapshot.Holders[i].Resting {
			held++
		}
	}
	tell(descHolds, float64(held))
	tell(descWaits, float64(len(s.snapshot.Waits)))
	var longest time.Duration
	for i := range s.snapshot.Waits {
		longest = max(longest, time.Duration(s.snapshot.Waits[i].Waited))
	}
	tell(descLongest, longest.Seconds())
	states := map[string]int{"ready": 0, "draining": 0}
	for _, w := range s.snapshot.Workers() {
		if w.State != admin.Gone { // the space keeps an ended session for a while, to report it
			states[w.State]++
		}
	}
	for state, n := range states {
		tell(descWorkers, float64(n), state)
	}
}

func (f *fleet) tell(tell teller) {
	tell(descGrace, f.grace.Seconds())
	for _, reason := range admin.DueReasons() {
		tell(descDue, float64(f.due[reason]), string(reason))
	}
	for _, q := range f.queues {
		if q.Workers == 0 && q.Due == 0 {
			continue // another namespace's, or a plain asynq client's: anyone may name one
		}
		var oldest time.Duration
		if q.Oldest != nil {
			oldest = time.Duration(*q.Oldest)
		}
		tell(descDepth, float64(q.Due), q.Name)
		tell(descOldest, oldest.Seconds(), q.Name)
		tell(descPaused, truth(q.Paused), q.Name)
	}
	for _, u := range f.unsent {
		tell(descUnsent, float64(u.Messages), u.Target)
		tell(descUnsentAge, u.Oldest.Seconds(), u.Target)
	}
	for _, job := range f.vitals.jobs {
		tellNumbers(tell, job.Job, job)
		tell(descDrifted, truth(job.Drifted), job.Job)
		if !job.LastSuccess.IsZero() {
			tell(descSuccess, unixSeconds(job.LastSuccess), job.Job)
		}
		if !job.LastEnd.IsZero() {
			tell(descEnd, unixSeconds(job.LastEnd), job.Job)
		}
	}
	if f.vitals.more {
		tellNumbers(tell, otherJobs, f.vitals.others)
	}
}

// tellNumbers tells what is also summed up for the jobs without labels of their own.
func tellNumbers(tell teller, label string, of admin.Vitals) {
	tell(descLate, float64(of.Late), label)
	tell(descRunning, float64(of.Running), label)
	tell(descOutstanding, float64(of.Outstanding), label)
}

func (f *fleet) count(count teller) {
	for total, n := range f.counts {
		switch total.Of {
		case ledger.EndedRun:
			count(descRuns, float64(n), total.Job, total.Outcome, string(total.Trigger))
		case ledger.EndedTick:
			count(descTicks, float64(n), total.Job, total.Outcome)
		case ledger.EndedAttempt:
			count(descAttempts, float64(n), total.Job, total.Outcome)
		}
	}
}

func unixSeconds(t time.Time) float64 {
	return float64(t.UnixMilli()) / float64(time.Second/time.Millisecond)
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
