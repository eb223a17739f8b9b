package jobs

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// RunID identifies one run permanently and is its idempotency key: "<job>@<tick, RFC 3339 UTC>" for
// a tick, "<job>#<id>" for a run that was enqueued or started by hand.
type RunID string

// TickRunID returns the ID of the run for one tick of a job. A tick has no fraction of a second.
func TickRunID(job string, tick time.Time) RunID {
	return RunID(job + "@" + tick.UTC().Format(time.RFC3339))
}

// RequestRunID returns the ID of a run that was enqueued or started by hand and that its requester
// named id.
func RequestRunID(job, id string) RunID { return RunID(job + "#" + id) }

// Job returns the name of the job in a run ID, or "" if there is none.
func (id RunID) Job() string {
	if at := strings.IndexAny(string(id), "@#"); at > 0 {
		return string(id[:at])
	}
	return ""
}

// Tick returns the tick in the ID of a tick's run, and false for any other ID. The first "@" or "#"
// decides which kind it is, because the requester's part of an ID may contain both.
func (id RunID) Tick() (time.Time, bool) {
	at := strings.IndexAny(string(id), "@#")
	if at < 0 || id[at] != '@' {
		return time.Time{}, false
	}
	tick, err := time.Parse(time.RFC3339, string(id[at+1:]))
	return tick, err == nil
}

// replayed is the prefix of the name of a run that repeats a tick under a new idempotency key.
const replayed = "replay-"

// ReplayRunID returns a new ID, and thereby a new idempotency key, for a run that repeats a tick of
// a job. That run does not belong to the tick, so the record of the tick does not change.
// [RunID.Replays] returns the tick.
func ReplayRunID(job string, tick, now time.Time) RunID {
	return RequestRunID(job, replayed+tick.UTC().Format(time.RFC3339)+"-"+NewRunName(now))
}

// Replays returns the tick that a run with an ID from [ReplayRunID] repeats, and false for any
// other ID.
func (id RunID) Replays() (time.Time, bool) {
	text, is := strings.CutPrefix(strings.TrimPrefix(string(id), id.Job()), "#"+replayed)
	end := strings.LastIndexByte(text, '-')
	if !is || end < 0 {
		return time.Time{}, false
	}
	tick, err := time.Parse(time.RFC3339, text[:end])
	return tick, err == nil
}

// RunResource is the name of the lock that each attempt holds on its run.
func RunResource(id RunID) string { return "run:" + string(id) }

// JobResource is the name of the lock that keeps the runs of a scheduled job from overlapping.
func JobResource(job string) string { return "job:" + job }

// Overlap says what happens to a tick that becomes due before the job's previous run has finished.
type Overlap string

const (
	OverlapSkip Overlap = "skip" // the tick is skipped, and the ledger keeps the reason
	// the run waits behind at most MaxQueued others; further ticks are skipped
	OverlapQueue Overlap = "queue"

	// OverlapAllow lets runs of the job overlap: they do not take the job's lock.
	OverlapAllow Overlap = "allow"

	// OverlapReplace cancels the runs that have not started and asks a running one to stop. The new
	// run waits for it.
	OverlapReplace Overlap = "replace"
)

// OnMissed says what happens to ticks that were decided more than [MissedAfter] late, because no
// worker was running.
type OnMissed string

const (
	MissedSkip OnMissed = "skip" // none of them runs
	MissedLast OnMissed = "last" // the newest one runs
	MissedAll  OnMissed = "all"  // the newest hundred run, one after another
)

// MissedAfter is the delay after which an undecided tick counts as missed.
const MissedAfter = time.Minute

// OnCrash says what happens to a run after its worker died or lost its lease. Only a death counts
// against MaxCrashes.
type OnCrash string

const (
	CrashRerun   OnCrash = "rerun"   // another worker reruns it, at most MaxCrashes times
	CrashAbandon OnCrash = "abandon" // it is marked lost, and a person decides
)

// Survives reports whether a run of the job that has crashed this often survives one more crash.
func (j *Job) Survives(crashes int) bool { return crashes+1 < j.MaxCrashes }

// OnBusy says what happens to a run that could not get its bundle within Lock.Wait.
type OnBusy string

const (
	BusyRequeue OnBusy = "requeue" // it waits again, at the end of the queue
	BusySkip    OnBusy = "skip"    // it is skipped
	BusyFail    OnBusy = "fail"    // it fails, without a retry
)

// Backoff says how the pause between failed attempts grows.
type Backoff string

const (
	BackoffFixed       Backoff = "fixed"
	BackoffLinear      Backoff = "linear"
	BackoffExponential Backoff = "exponential"
)

// Job is one definition from a config file. It is stored as JSON with every run that it makes, so a
// run keeps the definition it was created with. Its texts keep their ${...}: only the worker that
// runs the job replaces them, in memory, so no secret reaches Redis. The trigger (Schedule, Every,
// Timezone) is the exception, and is stored with its values.
//
// The zero value of a field means "not set". Package configs fills in the documented defaults.
type Job struct {
	// 1 to 63 characters of [a-z0-9], with "-" only between them.
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`

	// The trigger: at most one of Schedule and Every. A job with neither runs only when it is
	// enqueued or started by hand.
	Schedule string `json:"schedule,omitempty"` // cron text
	// At least one second. The ticks are its multiples since 1970-01-01.
	Every    time.Duration `json:"every,omitempty"`
	Timezone string        `json:"timezone,omitempty"` // IANA name; "" is UTC

	// The work: exactly one of Command, HTTP and Handler. See [Kind].
	Command []string `json:"command,omitempty"` // argv, no shell
	HTTP    *HTTP    `json:"http,omitempty"`
	Handler string   `json:"handler,omitempty"` // a name in the worker's Registry

	// Env is for commands. It is added to the variables inherited from the worker and takes
	// precedence.
	Env map[string]string `json:"env,omitempty"`
	// Names of args with secret values, at any depth of the args. See [Job.HideArgs].
	SecretArgs []string `json:"secret_args,omitempty"`
	// Default arguments, a JSON value. A run may have its own.
	Args    json.RawMessage `json:"args,omitempty"`
	Queue   string          `json:"queue"`
	Timeout time.Duration   `json:"timeout,omitempty"` // limit of each attempt; 0 means none
	Retry   Retry           `json:"retry"`
	Lock    Lock            `json:"lock"`

	// Concurrency limits how many runs of the job overlap. 0 means one run of a tick at a time, and
	// any number of other runs.
	Concurrency int `json:"concurrency,omitempty"`

	Overlap Overlap `json:"overlap"`
	// For OverlapQueue. More than QueuedMost count as that many.
	MaxQueued int      `json:"max_queued"`
	OnMissed  OnMissed `json:"on_missed"`
	OnCrash   OnCrash  `json:"on_crash"`
	// A run that has crashed this often fails.
	MaxCrashes int     `json:"max_crashes"`
	History    History `json:"history"`

	// Its zero value is the default, so that builds from before this key run the jobs without it.
	Output Output `json:"output,omitzero"`

	// A tick's run that has not started this long after its tick is missed. 0 means no limit.
	StartDeadline time.Duration `json:"start_deadline,omitempty"`
	// A run becomes due at most this long after its tick. See [Job.Spread].
	Jitter time.Duration `json:"jitter,omitempty"`
	Paused bool          `json:"paused,omitempty"` // ticks are skipped
	// A job without a success for this long is late. 0 means never.
	MaxSilence time.Duration `json:"max_silence,omitempty"`

	// The targets that receive messages about the job, sorted by their names. Builds from before
	// this key leave the job to others.
	Notify []Notify `json:"notify,omitempty"`
	// The URL of a dead man's switch, see package notify.
	Ping string `json:"ping,omitempty"`

	stored stored // the text it was read from, see [ReadJob]
}

// HTTP is the request that an http job sends.
type HTTP struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers,omitempty"`
}

// Retry says how failed attempts are retried. Only failures count against Max; crashes and
// hand-backs do not.
type Retry struct {
	Max      int           `json:"max"` // retries after the first attempt; 0 means a single attempt
	Backoff  Backoff       `json:"backoff"`
	Initial  time.Duration `json:"initial"`
	MaxDelay time.Duration `json:"max_delay"`
}

// Lock is the bundle that each attempt holds, in addition to the locks of its job and its run.
type Lock struct {
	// Names, or templates that read the run's args (see [ParseKey])
	Exclusive []string `json:"exclusive,omitempty"`
	// Like Exclusive, but other runs may share them
	Shared []string `json:"shared,omitempty"`
	// Resource -> number of permits. The limits are declared elsewhere.
	Permits map[string]int `json:"permits,omitempty"`

	// How long a run waits for its bundle, not counting pauses of its queue. 0 means no limit.
	Wait time.Duration `json:"wait,omitempty"`
	// What happens to the run after Wait. Only valid with Wait.
	OnBusy OnBusy `json:"on_busy,omitempty"`

	// An attempt that holds the bundle longer than this has failed. 0 means no limit.
	MaxHold time.Duration `json:"max_hold,omitempty"`
	// The bundle stays taken for this long after the start of the attempt.
	MinHold time.Duration `json:"min_hold,omitempty"`
	// The bundle stays taken for this long after a crash.
	CrashDelay time.Duration `json:"crash_delay,omitempty"`
}

// History limits which finished runs are kept: at most Runs of them, none older than For.
type History struct {
	Runs int           `json:"runs"`
	For  time.Duration `json:"for"`
}

// Notify is a target of messages about a job. Its address belongs to the config of the workers that
// send; a definition has only its name and its events.
type Notify struct {
	Target string  `json:"target"`
	On     []Event `json:"on"`
}

// Event is what a message is about.
type Event string

const (
	EventFailed    Event = "failed"    // a run has failed, and is not tried again
	EventLost      Event = "lost"      // a run is lost: see [CrashAbandon]
	EventMissed    Event = "missed"    // a tick was missed
	EventLate      Event = "late"      // no success for longer than MaxSilence
	EventRecovered Event = "recovered" // the first success after a message about one of these
	// EventRefused says that a worker has refused to reload a config with errors. It concerns no
	// job.
	EventRefused Event = "config_refused"
)

// Events returns all events, in the order in which messages show them.
func Events() []Event {
	return []Event{EventFailed, EventLost, EventMissed, EventLate, EventRecovered, EventRefused}
}

// Notifies reports whether a target of the job receives messages about an event.
func (j *Job) Notifies(event Event) bool {
	return slices.ContainsFunc(j.Notify, func(n Notify) bool { return slices.Contains(n.On, event) })
}

// Output says how much of the output of each attempt is kept.
type Output struct {
	Keep int `json:"keep,omitempty"` // bytes, at most [MaxTail]; 0 means [DefaultTail]
}

// Size returns Keep in bytes, within its limits.
func (o Output) Size() int {
	if o.Keep <= 0 {
		return DefaultTail
	}
	return min(o.Keep, MaxTail)
}

// Spread returns how long after a tick its run becomes due: less than Jitter, and less than the gap
// to the next tick. It depends only on the job's name and the tick, so all replicas compute the
// same value, and different jobs with the same tick do not start together.
func (j *Job) Spread(tick time.Time, gap time.Duration) time.Duration {
	limit := min(j.Jitter, gap).Milliseconds()
	if limit <= 0 {
		return 0
	}
	sum := sha256.Sum256([]byte(TickRunID(j.Name, tick)))
	return time.Duration(binary.BigEndian.Uint64(sum[:])%uint64(limit)) * time.Millisecond
}

// Scheduled reports whether the job has a trigger of its own.
func (j *Job) Scheduled() bool { return j.Schedule != "" || j.Every > 0 }
