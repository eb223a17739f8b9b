package jobs

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"strings"
	"time"
)

// RunID names one run for ever and is its idempotency key: "<job>@<tick, RFC 3339 UTC>" for a tick,
// "<job>#<id>" for a run that was enqueued or started by hand.
type RunID string

// TickRunID returns the id of the run for one tick of a job. Ticks are instants without a fraction of a second.
func TickRunID(job string, tick time.Time) RunID {
	return RunID(job + "@" + tick.UTC().Format(time.RFC3339))
}

// RequestRunID returns the id of a queued or hand-made run that its requester named id.
func RequestRunID(job, id string) RunID { return RunID(job + "#" + id) }

// Job returns the job's part of a run id, or "" when it has none.
func (id RunID) Job() string {
	if at := strings.IndexAny(string(id), "@#"); at > 0 {
		return string(id[:at])
	}
	return ""
}

// Tick returns the tick in the id of a tick's run. Other ids have none, whatever their requester put into them: of "@" and
// "#" the first one decides.
func (id RunID) Tick() (time.Time, bool) {
	at := strings.IndexAny(string(id), "@#")
	if at < 0 || id[at] != '@' {
		return time.Time{}, false
	}
	tick, err := time.Parse(time.RFC3339, string(id[at+1:]))
	return tick, err == nil
}

// replayed begins the name of a run that does a tick again under a new idempotency key.
const replayed = "replay-"

// ReplayRunID returns a new id for a run that does a tick of a job again, and with it a new idempotency key. The run is no
// tick's run, so the record of the tick stays as it is; [RunID.Replays] returns the tick.
func ReplayRunID(job string, tick, now time.Time) RunID {
	return RequestRunID(job, replayed+tick.UTC().Format(time.RFC3339)+"-"+NewRunName(now))
}

// Replays returns the tick that a run with an id of [ReplayRunID] does again. Other ids have none.
func (id RunID) Replays() (time.Time, bool) {
	text, is := strings.CutPrefix(strings.TrimPrefix(string(id), id.Job()), "#"+replayed)
	end := strings.LastIndexByte(text, '-')
	if !is || end < 0 {
		return time.Time{}, false
	}
	tick, err := time.Parse(time.RFC3339, text[:end])
	return tick, err == nil
}

// RunResource is the name of the lock that every attempt at a run holds on the run itself.
func RunResource(id RunID) string { return "run:" + string(id) }

// JobResource is the name of the lock that keeps the runs of a job with a schedule apart.
func JobResource(job string) string { return "job:" + job }

// Overlap says what happens to a tick that comes while an earlier tick's run of the same job is not finished.
type Overlap string

const (
	OverlapSkip  Overlap = "skip"  // the new tick is skipped, with the reason in the ledger
	OverlapQueue Overlap = "queue" // the new run waits, behind at most MaxQueued others; then ticks are skipped

	// OverlapAllow lets runs of the job work side by side: they do not take the job's lock.
	OverlapAllow Overlap = "allow"

	// OverlapReplace cancels the runs that have not started and asks a running one to stop; the new run waits for it.
	OverlapReplace Overlap = "replace"
)

// OnMissed says what happens to ticks that were decided more than [MissedAfter] late, because nobody was there.
type OnMissed string

const (
	MissedSkip OnMissed = "skip" // none of them runs
	MissedLast OnMissed = "last" // the newest one runs
	MissedAll  OnMissed = "all"  // the newest hundred run, one after the other
)

// MissedAfter is how late a tick may be decided before it counts as missed.
const MissedAfter = time.Minute

// OnCrash says what happens to a run whose worker died or lost its lease. Only a death counts against MaxCrashes.
type OnCrash string

const (
	CrashRerun   OnCrash = "rerun"   // another worker runs it again, at most MaxCrashes times
	CrashAbandon OnCrash = "abandon" // it is lost, for a person to decide
)

// OnBusy says what happens to a run that has waited for its bundle for Lock.Wait.
type OnBusy string

const (
	BusyRequeue OnBusy = "requeue" // it waits again, at the end of the line
	BusySkip    OnBusy = "skip"    // it is skipped
	BusyFail    OnBusy = "fail"    // it fails, for good
)

// Backoff is how the pause between failed attempts grows.
type Backoff string

const (
	BackoffFixed       Backoff = "fixed"
	BackoffLinear      Backoff = "linear"
	BackoffExponential Backoff = "exponential"
)

// Job is one definition from a config file. It is stored with every run it makes, as JSON, so a run keeps the
// definition it was created with. Texts hold their ${...} unreplaced: only the worker that runs the job replaces
// them, in memory, so that no secret reaches Redis; the trigger (Schedule, Every, Timezone) alone is stored replaced.
//
// The zero value of a field means "not set" here; configs fills in the documented defaults.
type Job struct {
	Name        string `json:"name"` // [a-z0-9] with inner "-", at most 63 characters
	Description string `json:"description,omitempty"`

	// The trigger: at most one of Schedule and Every; a job with neither runs when it is enqueued or by hand.
	Schedule string        `json:"schedule,omitempty"` // cron text
	Every    time.Duration `json:"every,omitempty"`    // at least one second, aligned to the clock
	Timezone string        `json:"timezone,omitempty"` // IANA name; "" is UTC

	// The work: exactly one of Command, HTTP and Handler.
	Command []string `json:"command,omitempty"` // argv, no shell
	HTTP    *HTTP    `json:"http,omitempty"`
	Handler string   `json:"handler,omitempty"` // a name in the worker's Registry

	Env     map[string]string `json:"env,omitempty"`  // for commands, beside what they inherit of the worker's; wins over it
	Args    json.RawMessage   `json:"args,omitempty"` // default arguments, a JSON value; a run may bring its own
	Queue   string            `json:"queue"`
	Timeout time.Duration     `json:"timeout,omitempty"` // bounds each attempt; 0: none
	Retry   Retry             `json:"retry"`
	Lock    Lock              `json:"lock"`

	Concurrency int `json:"concurrency,omitempty"` // how many of its runs may work side by side; 0: one tick's run at a time, any others

	Overlap    Overlap  `json:"overlap"`
	MaxQueued  int      `json:"max_queued"` // for OverlapQueue
	OnMissed   OnMissed `json:"on_missed"`
	OnCrash    OnCrash  `json:"on_crash"`
	MaxCrashes int      `json:"max_crashes"` // the crash that reaches it ends the run as failed
	History    History  `json:"history"`

	StartDeadline time.Duration `json:"start_deadline,omitempty"` // a tick's run that has not started so long after its tick is missed; 0: none
	Jitter        time.Duration `json:"jitter,omitempty"`         // so long at most after its tick a run becomes due (see [Job.Spread])
	Paused        bool          `json:"paused,omitempty"`         // its ticks are skipped
	MaxSilence    time.Duration `json:"max_silence,omitempty"`    // without a success for so long it shows as late; 0: never

	stored stored // where it was read from, see [ReadJob]
}

// HTTP is the request that an http job sends.
type HTTP struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers,omitempty"`
}

// Retry is how failed attempts are repeated. Only failures count against Max; crashes and hand-backs do not.
type Retry struct {
	Max      int           `json:"max"` // retries after the first attempt: 0 means one attempt
	Backoff  Backoff       `json:"backoff"`
	Initial  time.Duration `json:"initial"`
	MaxDelay time.Duration `json:"max_delay"`
}

// Lock is the bundle that each attempt holds, beside the lock of its job and of its own run.
type Lock struct {
	Exclusive []string       `json:"exclusive,omitempty"` // names, or templates that read the run's args (see [ParseKey])
	Shared    []string       `json:"shared,omitempty"`    // the same; others may share them
	Permits   map[string]int `json:"permits,omitempty"`   // resource -> permits of it; their limits are declared elsewhere

	Wait   time.Duration `json:"wait,omitempty"`    // how long a run waits for its bundle, without pauses of its queue; 0: no limit
	OnBusy OnBusy        `json:"on_busy,omitempty"` // what becomes of it then; only with Wait

	MaxHold    time.Duration `json:"max_hold,omitempty"`    // an attempt that holds it for longer has failed; 0: none
	MinHold    time.Duration `json:"min_hold,omitempty"`    // the bundle stays taken so long from the attempt's start on
	CrashDelay time.Duration `json:"crash_delay,omitempty"` // and so long after a crash
}

// History bounds what is kept of finished runs: at most Runs of them, none older than For.
type History struct {
	Runs int           `json:"runs"`
	For  time.Duration `json:"for"`
}

// Spread returns how long after a tick its run becomes due: less than Jitter, and less than the gap to the next tick. It
// depends on the job's name and the tick alone, so every replica answers the same, and different jobs of one tick do not
// start together.
func (j *Job) Spread(tick time.Time, gap time.Duration) time.Duration {
	limit := min(j.Jitter, gap).Milliseconds()
	if limit <= 0 {
		return 0
	}
	sum := sha256.Sum256([]byte(TickRunID(j.Name, tick)))
	return time.Duration(binary.BigEndian.Uint64(sum[:])%uint64(limit)) * time.Millisecond
}

// Scheduled tells whether the job has a trigger of its own.
func (j *Job) Scheduled() bool { return j.Schedule != "" || j.Every > 0 }
