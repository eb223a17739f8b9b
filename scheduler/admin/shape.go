package admin

import (
	"encoding/json"
	"slices"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/ledger"
)

// Run is one piece of work and its outcome.
type Run struct {
	ID      jobs.RunID     `json:"id"`
	Job     string         `json:"job"`
	Trigger ledger.Trigger `json:"trigger"`
	Tick    TickTime       `json:"tick"` // null for a run without one
	State   ledger.State   `json:"state"`
	// why it was skipped, missed, canceled, lost, or failed without an attempt's error
	Reason Text `json:"reason"`
	// null in a list when they have more than 1 KiB; see [Reader]
	Args       json.RawMessage `json:"args"`
	Queue      string          `json:"queue"`
	CreatedAt  Instant         `json:"created_at"`
	StartedAt  Instant         `json:"started_at"` // of its first attempt
	FinishedAt Instant         `json:"finished_at"`
	Crashes    int             `json:"crashes"`
	// in order; the last one of a running run has no end
	Attempts []Attempt `json:"attempts"`

	// DueAt is when a scheduled or retrying run becomes due. Other runs do not have the field.
	DueAt Instant `json:"due_at,omitzero"`

	// WaitingFor is why an unfinished run does not run. Only the answer about a single run has it;
	// running and finished runs do not have the field, nor do lists.
	WaitingFor *WaitingFor `json:"waiting_for,omitempty"`

	// Unusual is by how much a running run exceeds the usual duration of its job's runs, in words.
	// Only the answer of [Reader.Run] has it; other runs do not have the field.
	Unusual Text `json:"unusual,omitempty"`

	// Definition is the one that the run was made with. Of finished runs, Redis keeps the last 100
	// of each job; those with an older one do not have the field, nor do ticks that never became
	// due. Only the answer of [Reader.Run] has it.
	Definition *RunDefinition `json:"definition,omitempty"`

	// Parent is the run from within which it was made, or whose tick it repeats under a new key.
	// Other runs do not have the field.
	Parent Text `json:"parent,omitempty"`
	// TraceID is the trace of its requester, which its attempts continue. A run without one, such
	// as that of a tick, does not have the field.
	TraceID Text `json:"trace_id,omitempty"`
	// LedTo is the runs that have this one as their parent. Only the answer of [Reader.Run] has it;
	// a run without such runs does not have the field.
	LedTo *LedTo `json:"led_to,omitempty"`
}

// LedTo is the runs that a run led to.
type LedTo struct {
	Runs []jobs.RunID `json:"runs"` // the first of them, at most 20
	More int          `json:"more"` // the number of the others
}

// Attempt is one try at a run.
type Attempt struct {
	Number     int             `json:"attempt"`
	Worker     locks.SessionID `json:"worker"`
	Token      locks.Token     `json:"token"`
	StartedAt  Instant         `json:"started_at"`
	FinishedAt Instant         `json:"finished_at"`
	// succeeded, failed, crashed, lost lease, canceled, handed back
	Outcome Text `json:"outcome"`
	Error   Text `json:"error"`

	// Times is how many attempts in a row were declined for the same error because no worker could
	// do the run; they are one entry, that of the last. FirstAt is when the first of them started.
	// Other attempts do not have the fields.
	Times   int     `json:"times,omitempty"`
	FirstAt Instant `json:"first_at,omitzero"`

	// Stuck is set when the attempt continues after the end of its context. Only the answer about a
	// single run has it; other attempts do not have the field.
	Stuck *Stuck `json:"stuck,omitempty"`
}

// Stuck is since when an attempt continues after the end of its context, because its handler
// ignores it. The attempt keeps its slot and its locks.
type Stuck struct {
	Since   Instant `json:"since"`   // end of its context
	Because string  `json:"because"` // the timeout, a cancellation, a drain
}

// Lock is one resource, its holders and its waiters.
type Lock struct {
	Name string `json:"lock"`
	// of the holders, else of the waiters: exclusive, shared, permits
	Mode    locks.Mode `json:"mode"`
	Limit   *int       `json:"limit"`   // of permits: their number
	Holders []Holder   `json:"holders"` // none: it is free, or reserved for the first of the waits
	Waits   []Wait     `json:"waits"`   // in order

	// Used is how many permits are taken, including reserved ones. Locks of other modes do not have
	// the field.
	Used *int `json:"used,omitempty"`
}

// Modes are the resources of a bundle that are not held or wanted exclusively. Empty fields are
// omitted.
type Modes struct {
	Shared  []string       `json:"shared,omitempty"`
	Permits map[string]int `json:"permits,omitempty"` // how many of each
}

func newModes(items []locks.Item) Modes {
	var m Modes
	for _, item := range items {
		switch item.Mode {
		case locks.ModeShared:
			m.Shared = append(m.Shared, item.Name)
		case locks.ModePermits:
			if m.Permits == nil {
				m.Permits = make(map[string]int)
			}
			m.Permits[item.Name] = item.N
		case locks.ModeExclusive:
		}
	}
	return m
}

// Of returns the mode in which a resource of the bundle is held or wanted.
func (m Modes) Of(name string) locks.Mode {
	switch {
	case m.Permits[name] > 0:
		return locks.ModePermits
	case slices.Contains(m.Shared, name):
		return locks.ModeShared
	}
	return locks.ModeExclusive
}

// Holder is a hold: a granted bundle and its owner.
type Holder struct {
	Worker locks.SessionID `json:"worker"` // or the session of a user of the lock library
	Host   Text            `json:"host"`
	PID    int             `json:"pid"` // 0 when it is not known
	Job    Text            `json:"job"`
	RunID  Text            `json:"run_id"`
	HoldID locks.HoldID    `json:"hold_id"`
	Token  locks.Token     `json:"token"`
	Bundle []string        `json:"bundle"` // everything it holds, including the run's own resource
	Since  Instant         `json:"since"`
	Held   Seconds         `json:"held_seconds"`
	// 0: the session is over, its locks are about to pass on
	LeaseLeft Seconds `json:"lease_left_seconds"`
	Modes

	// Resting is true when no worker works under the hold any more: its locks stay taken for
	// LeaseLeft. Others do not have the field.
	Resting bool `json:"resting,omitempty"`

	// Asked is set when the locks were requested back. Others do not have the field.
	Asked *Asked `json:"asked,omitempty"`

	// Stuck is set when the attempt continues after the end of its context. Others do not have the
	// field.
	Stuck *Stuck `json:"stuck,omitempty"`

	// Info is what a holder that is not a run tells about itself. Runs do not have the field.
	Info json.RawMessage `json:"info,omitempty"`
}

// Asked is a request to a holder to release its locks.
type Asked struct {
	Force  string `json:"force"` // ask: the holder decides; take: its work is canceled
	By     Text   `json:"by"`
	Reason Text   `json:"reason"`
}

// Purpose returns what the lock is held for, in one word or line: the id of a run, the command of
// `lock exec`, or "".
func (h *Holder) Purpose() string { return purpose(h.RunID, h.Info) }

// Locks returns the names that a list of locks shows for this hold: its bundle without the run's
// own resource, unless the bundle has nothing else.
func (h *Holder) Locks() []string { return visible(h.Bundle) }

// Wait is a queued request for a bundle.
type Wait struct {
	ID     locks.HoldID `json:"wait_id"`
	Worker Text         `json:"worker"` // null for a run's: it waits without a worker
	Job    Text         `json:"job"`
	RunID  Text         `json:"run_id"`
	// waiting, offered (reserved for it for a moment), lapsed (an offer was not taken), kept (its
	// queue is paused)
	State     space.WaitState `json:"state"`
	Since     Instant         `json:"since"`
	Waited    Seconds         `json:"waited_seconds"`
	Wants     []string        `json:"wants"`      // without the run's own resource
	BlockedBy []string        `json:"blocked_by"` // ids of runs, or of other clients' requests
	Modes

	// Info is what a waiting request of a client that is not a run tells about itself. Runs do not
	// have the field.
	Info json.RawMessage `json:"info,omitempty"`

	// Blockers has one for each of BlockedBy.
	Blockers []Blocker `json:"-"`

	Ticket uint64 `json:"-"` // the order of the waits
}

// Purpose returns what the request waits for, in one word or line: the id of a run, the command of
// `lock exec`, or "".
func (w *Wait) Purpose() string { return purpose(w.RunID, w.Info) }

// Blocker is a hold or an earlier wait that keeps a wait waiting.
type Blocker struct {
	ID     string          // as in BlockedBy
	Worker locks.SessionID // "" for a run that waits itself
	Waits  bool            // it does not hold anything yet: it is in front
}

// Entry is a hold or a wait of a history, present or ended.
type Entry struct {
	Kind EntryKind    `json:"kind"` // hold, wait
	ID   locks.HoldID `json:"id"`   // a granted wait and its hold have the same
	// or the session of a user of the lock library; null for a run's wait
	Worker Text `json:"worker"`
	// of a session that has ended, the name in its ID, which by default is its host's
	Host  Text         `json:"host"`
	Job   Text         `json:"job"`
	RunID Text         `json:"run_id"`
	Token *locks.Token `json:"token"` // null for a wait
	// all that it held or wanted, including the run's own resource
	Bundle []string `json:"bundle"`
	Modes
	From   Instant `json:"from"`
	To     Instant `json:"to"`             // null: it holds or waits now
	Lasted Seconds `json:"lasted_seconds"` // until now if it has not ended
	// Of a hold: released, lost, expired, revoked, crashed. Of a wait: granted, timed out,
	// canceled, deadlock, refused, lost, crashed. Null if it has not ended.
	Ended Text `json:"ended"`

	// RestsUntil is until when its locks stay taken after its end (min_hold, crash_delay). Others
	// do not have the field.
	RestsUntil Instant `json:"rests_until,omitzero"`

	// BlockedBy is what a wait waited for last; of a run, first. It is null for a hold, and if it
	// is not known.
	BlockedBy *EntryBlocker `json:"blocked_by"`

	// Info is what a holder that is not a run tells about itself. Runs do not have the field.
	Info json.RawMessage `json:"info,omitempty"`
}

// EntryKind is what an entry of a history was.
type EntryKind string

const (
	KindHold EntryKind = "hold"
	KindWait EntryKind = "wait"
)

// EntryBlocker is what a wait waited for.
type EntryBlocker struct {
	Lock   Text         `json:"lock"` // null if it has not ended
	ID     locks.HoldID `json:"id"`   // the hold, or the request to which the lock was offered
	Worker Text         `json:"worker"`
	RunID  Text         `json:"run_id"`
}

// Purpose returns what it held or waited for, in one word or line: the id of a run, the command of
// `lock exec`, or "".
func (e *Entry) Purpose() string { return purpose(e.RunID, e.Info) }

// Locks returns the names that a list shows for it: its bundle without the run's own resource,
// unless the bundle has nothing else.
func (e *Entry) Locks() []string { return visible(e.Bundle) }

// Worker is one replica.
type Worker struct {
	ID        locks.SessionID `json:"id"`
	Host      string          `json:"host"`
	PID       int             `json:"pid"`
	Version   string          `json:"version"`
	Config    string          `json:"config"` // a digest of its configuration
	State     string          `json:"state"`  // ready, draining, gone
	Slots     int             `json:"slots"`
	Busy      int             `json:"busy"`   // number of its running runs
	Queues    map[string]int  `json:"queues"` // served, with their weights
	StartedAt Instant         `json:"started_at"`
	LeaseLeft Seconds         `json:"lease_left_seconds"`
	// jobs of which another definition than its own is active
	Drifted int     `json:"drifted"`
	Admin   Text    `json:"admin"`                // host:port of its API and page
	Clock   Seconds `json:"clock_offset_seconds"` // by how much its host's clock is ahead of Redis'
	Pass    string  `json:"-"`                    // permits a reload through its API; "" for none

	Key string `json:"signing_key,omitempty"` // the id of the key with which it signs definitions
	// runs that it refused because their definition could not be trusted
	Refused int `json:"refused_runs,omitempty"`
	// served queues that belong to another namespace: which one
	Disputed map[string]string `json:"disputed_queues,omitempty"`
}

// Gone is the state of a worker after the end of its lease. The worker vanishes as soon as another
// worker takes over what it left.
const Gone = "gone"

// Tick is one due time of a job and its outcome.
type Tick struct {
	Job  string   `json:"job"`
	Tick TickTime `json:"tick"`
	// succeeded, failed, skipped, missed, canceled, lost, pending
	Outcome   string          `json:"outcome"`
	Reason    Text            `json:"reason"`
	RunID     jobs.RunID      `json:"run_id"`
	DecidedAt Instant         `json:"decided_at"`
	DecidedBy locks.SessionID `json:"decided_by"`

	// Upto is the last tick of a line for many missed ticks. Other lines do not have the field.
	Upto TickTime `json:"upto,omitzero"`
}

// Pending is the outcome of a tick before its run has finished.
const Pending = "pending"

// Act is an act of a person or a program. Repeats are one act: the same actor did the same to the
// same thing.
type Act struct {
	ID      string  `json:"id"`
	At      Instant `json:"at"` // of repeats: the last
	Who     string  `json:"who"`
	What    string  `json:"what"` // "pause job", "cancel run", "enqueue", ...
	On      string  `json:"on"`   // the job, run, worker or queue
	Why     Text    `json:"why"`
	Detail  Text    `json:"detail"` // of repeats: the last
	Times   int     `json:"times"`
	FirstAt Instant `json:"first_at"`
}

// TickSpan is the outcome of a replay, or of a declaration that ticks are skipped.
type TickSpan struct {
	Job    string  `json:"job"`
	From   Instant `json:"from"`
	To     Instant `json:"to"`
	DryRun bool    `json:"dry_run"` // nothing was done
	Ticks  int     `json:"ticks"`   // of the span; 1001: more than 1000
	// that the replay began, or that ended as skipped because they had not started
	Runs int `json:"runs"`
}

// ConfigCheck is what a worker would have after a reload of its config, which has not happened.
type ConfigCheck struct {
	Worker   string          `json:"worker"`
	OK       bool            `json:"ok"` // there are no errors
	Files    []string        `json:"files"`
	Jobs     int             `json:"jobs"`
	Errors   []ConfigProblem `json:"errors"`
	Warnings []ConfigProblem `json:"warnings"`

	// Jobs that differ from those of the worker, at most a thousand of each; Changes counts all.
	Added   []string `json:"added"`
	Changed []string `json:"changed"`
	Removed []string `json:"removed"`
	Changes int      `json:"changes"`

	// settings with other values in the files than in the process
	NeedsRestart []string `json:"needs_restart"`
}

// Config describes the config of this process' worker: which one it is, and how the last attempt to
// load another one ended. Scripts rely on its shape.
type Config struct {
	Worker   string   `json:"worker"` // the worker that has the config
	Digest   string   `json:"digest"` // the same for workers with the same jobs
	Files    []string `json:"files"`
	Jobs     int      `json:"jobs"`
	Warnings int      `json:"warnings"`
	LoadedAt Instant  `json:"loaded_at"` // by the clock of the process, like all times here
	Reloads  int      `json:"reloads"`   // successful ones since the process began
	Refused  int      `json:"refused_reloads"`
	// time of the last reload if it was refused; else null
	RefusedAt Instant         `json:"refused_at"`
	Problems  []ConfigProblem `json:"problems"` // the reasons for the refusal
	// settings with other values in the files than in this process
	NeedsRestart []string `json:"needs_restart"`

	// where its jobs are defined, as file:line, with the path as check prints it
	Places map[string]string `json:"-"`
}

// ConfigJob is a job in the config of this process' worker. Scripts rely on its shape.
type ConfigJob struct {
	Job string `json:"job"`
	At  string `json:"at"` // where it is defined, as file:line
}

// ConfigProblem is one error in a config.
type ConfigProblem struct {
	At      string `json:"at"` // file:line:column, a variable or a flag
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    Text   `json:"hint"`
}

// NextTick is a future tick.
type NextTick struct {
	Job  string   `json:"job"`
	Tick TickTime `json:"tick"`
	In   Seconds  `json:"in_seconds"`

	// Paused is true if the job is paused: unless it is resumed, the tick is skipped.
	Paused bool `json:"paused,omitempty"`
}

// Job is a definition as the ledger knows it, and the state of the job.
type Job struct {
	Name string `json:"job"`

	Defined // by its active definition

	NextTick TickTime `json:"next_tick"`
	Cursor   Instant  `json:"cursor"` // every tick up to here is decided

	// the actor and the reason, or that the definition pauses it; null when its ticks run
	Paused      Text    `json:"paused"`
	QueuePaused bool    `json:"queue_paused"`
	QueueServed bool    `json:"queue_served"` // by a live worker that does not drain
	LastSuccess Instant `json:"last_success_at"`
	Late        bool    `json:"late"`    // without a success for longer than max_silence
	Drifted     bool    `json:"drifted"` // live workers carry another definition of it
	Carried     bool    `json:"carried"` // false: it was removed, since no live worker carries it

	// the hash of the active definition
	Definition Text `json:"definition"`

	Running     int `json:"running"`     // runs
	Outstanding int `json:"outstanding"` // runs that are not finished, including the running ones
	// the last run that finished; a tick that never became due is no run
	LastRun *Run `json:"last_run"`
}

// Defined is what a definition says. It lacks env, headers and the values of secret args.
type Defined struct {
	Description Text `json:"description"`

	// The trigger. A job without one runs when it is enqueued or by hand.
	Schedule Text     `json:"schedule"` // cron text
	Every    *Seconds `json:"every_seconds"`
	Timezone Text     `json:"timezone"`
	Words    Text     `json:"words"` // the trigger in plain words; null if it has none

	// The work. Command, HTTP and Handler are those of the kinds of these names.
	Kind    string   `json:"kind"` // as in package jobs: command, http, handler
	Work    string   `json:"-"`    // in one line, for people
	Command []string `json:"command,omitempty"`
	HTTP    *Call    `json:"http,omitempty"`
	Handler string   `json:"handler,omitempty"`

	Args  json.RawMessage `json:"args"` // default arguments
	Queue string          `json:"queue"`
	// what an attempt holds besides its run's own resource, with the placeholders of the config
	Locks      []string      `json:"locks"`
	Timeout    *Seconds      `json:"timeout_seconds"`
	Retry      Retry         `json:"retry"`
	Overlap    jobs.Overlap  `json:"overlap"`
	MaxQueued  int           `json:"max_queued"`
	OnMissed   jobs.OnMissed `json:"on_missed"`
	OnCrash    jobs.OnCrash  `json:"on_crash"`
	MaxCrashes int           `json:"max_crashes"`

	StartDeadline *Seconds `json:"start_deadline_seconds"`
	Jitter        *Seconds `json:"jitter_seconds"`
	MaxSilence    *Seconds `json:"max_silence_seconds"`

	// targets of messages about it, and their events
	Notify []jobs.Notify `json:"notify,omitempty"`

	// Problem is why the trigger cannot be computed on this machine, or why the definition cannot
	// be read as a whole. Other definitions do not have the field.
	Problem Text `json:"problem,omitempty"`
}

// RunDefinition is the definition that a run was made with.
type RunDefinition struct {
	Hash   Text `json:"hash"`   // null if the definition cannot be read
	Active bool `json:"active"` // it is the active one of the job, with which new runs are made
	Defined
}

// Call is the request that an http job sends, without its headers, which may hold secrets.
type Call struct {
	Method string `json:"method"`
	URL    string `json:"url"`
}

// Retry is how failed attempts are repeated.
type Retry struct {
	Max      int          `json:"max"`
	Backoff  jobs.Backoff `json:"backoff"`
	Initial  Seconds      `json:"initial_seconds"`
	MaxDelay Seconds      `json:"max_delay_seconds"`
}

func newRun(record *ledger.Record) Run {
	run := Run{
		ID: record.ID, Job: record.Job, Trigger: record.Trigger, Tick: TickTime{record.Tick}, State: record.State,
		Reason: Text(record.Reason), Args: record.Args, Queue: record.Queue, CreatedAt: Instant{record.Created},
		StartedAt: Instant{record.Started}, FinishedAt: Instant{record.Finished}, Crashes: record.Crashes,
		DueAt: Instant{record.At}, Parent: Text(record.Parent), TraceID: Text(record.Trace.TraceID()), Attempts: make([]Attempt, len(record.Attempts)),
	}
	if tick, is := record.ID.Replays(); is {
		run.Tick = TickTime{tick}
	}
	for i, a := range record.Attempts {
		run.Attempts[i] = Attempt{
			Number: a.Number, Worker: a.Worker, Token: a.Token, StartedAt: Instant{a.Started}, FinishedAt: Instant{a.Finished},
			Outcome: Text(a.Outcome), Error: Text(a.Error),
		}
		if a.Times > 1 {
			run.Attempts[i].Times, run.Attempts[i].FirstAt = a.Times, Instant{a.First}
		}
	}
	return run
}

// Took returns how long the run has taken, or has taken so far, from its first attempt on; "" if it
// has not started.
func (r *Run) Took(now time.Time) string {
	switch {
	case r.StartedAt.IsZero():
		return ""
	case !r.FinishedAt.IsZero():
		now = r.FinishedAt.Time
	}
	return Span(now.Sub(r.StartedAt.Time))
}

// Why explains the state of the run: its reason, or the error of its last attempt; "" for neither.
func (r *Run) Why() string {
	if r.Reason != "" {
		return string(r.Reason)
	}
	if n := len(r.Attempts); n > 0 && r.State != ledger.StateSucceeded && r.State != ledger.StateRunning {
		return string(r.Attempts[n-1].Error)
	}
	return ""
}

func newTick(record *ledger.Record) Tick {
	return Tick{
		Job: record.Job, Tick: TickTime{record.Tick}, Outcome: outcomeOf(record), Reason: Text(record.Reason),
		RunID: record.ID, DecidedAt: Instant{record.Created}, DecidedBy: record.By, Upto: TickTime{record.Upto},
	}
}

// outcomeOf returns the outcome of a tick or a run.
func outcomeOf(record *ledger.Record) string {
	if !record.State.Final() {
		return Pending
	}
	return string(record.State)
}
