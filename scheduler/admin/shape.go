package admin

import (
	"encoding/json"
	"slices"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// Run is one piece of work and what became of it.
type Run struct {
	ID         jobs.RunID      `json:"id"`
	Job        string          `json:"job"`
	Trigger    ledger.Trigger  `json:"trigger"`
	Tick       TickTime        `json:"tick"` // null for a run without one
	State      ledger.State    `json:"state"`
	Reason     Text            `json:"reason"` // why it was skipped, missed, canceled, lost, or failed without an attempt's error
	Args       json.RawMessage `json:"args"`   // null in a list when they have more than 1 KiB
	Queue      string          `json:"queue"`
	CreatedAt  Instant         `json:"created_at"`
	StartedAt  Instant         `json:"started_at"` // of its first attempt
	FinishedAt Instant         `json:"finished_at"`
	Crashes    int             `json:"crashes"`
	Attempts   []Attempt       `json:"attempts"` // in order; the last one of a running run has no end

	// DueAt is when a scheduled or retrying run becomes due. Other runs do not have the field.
	DueAt Instant `json:"due_at,omitzero"`

	// WaitingFor says why a run that is not finished does not run. It is in the answer about one run alone; runs that run or
	// are over do not have the field, nor do lists.
	WaitingFor *WaitingFor `json:"waiting_for,omitempty"`
}

// Attempt is one try at a run.
type Attempt struct {
	Number     int             `json:"attempt"`
	Worker     locks.SessionID `json:"worker"`
	Token      locks.Token     `json:"token"`
	StartedAt  Instant         `json:"started_at"`
	FinishedAt Instant         `json:"finished_at"`
	Outcome    Text            `json:"outcome"` // succeeded, failed, crashed, lost lease, canceled, handed back
	Error      Text            `json:"error"`

	// Times is how many attempts were declined one after the other for the same error, when no worker could do the run; they
	// are one entry, that of the last. FirstAt is when the first of them started. Other attempts do not have the fields.
	Times   int     `json:"times,omitempty"`
	FirstAt Instant `json:"first_at,omitzero"`

	// Stuck says that the attempt continues after the end of its context. It is in the answer about one run alone; other
	// attempts do not have the field.
	Stuck *Stuck `json:"stuck,omitempty"`
}

// Stuck says since when an attempt continues after the end of its context, as a handler does that ignores it. The
// attempt keeps its slot and its locks.
type Stuck struct {
	Since   Instant `json:"since"`   // when its context ended
	Because string  `json:"because"` // the timeout, a cancellation, a drain
}

// Lock is one resource, who holds it and who waits for it.
type Lock struct {
	Name    string     `json:"lock"`
	Mode    locks.Mode `json:"mode"`    // of who has it, else of who wants it: exclusive, shared, permits
	Limit   *int       `json:"limit"`   // of permits: how many there are
	Holders []Holder   `json:"holders"` // none: it is free, or reserved for the first of the waits
	Waits   []Wait     `json:"waits"`   // in order

	// Used is how many permits are taken, reserved ones included. Locks of other modes do not have the field.
	Used *int `json:"used,omitempty"`
}

// Modes tells which resources of a bundle are not held or wanted exclusively. What is empty is left out.
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

// Of returns how a resource of the bundle is held or wanted.
func (m Modes) Of(name string) locks.Mode {
	switch {
	case m.Permits[name] > 0:
		return locks.ModePermits
	case slices.Contains(m.Shared, name):
		return locks.ModeShared
	}
	return locks.ModeExclusive
}

// Holder is a hold: a granted bundle and who has it.
type Holder struct {
	Worker    locks.SessionID `json:"worker"` // or the session of a user of the lock library
	Host      Text            `json:"host"`
	PID       int             `json:"pid"` // 0 when it is not known
	Job       Text            `json:"job"`
	RunID     Text            `json:"run_id"`
	HoldID    locks.HoldID    `json:"hold_id"`
	Token     locks.Token     `json:"token"`
	Bundle    []string        `json:"bundle"` // all it holds, the run's own resource included
	Since     Instant         `json:"since"`
	Held      Seconds         `json:"held_seconds"`
	LeaseLeft Seconds         `json:"lease_left_seconds"` // 0: the session is over, its locks are about to pass on
	Modes

	// Resting tells that nobody works under it any more: its locks stay taken for what LeaseLeft says. Others do not have
	// the field.
	Resting bool `json:"resting,omitempty"`

	// Asked tells that somebody wants the locks back. Others do not have the field.
	Asked *Asked `json:"asked,omitempty"`

	// Stuck says that the attempt continues after the end of its context. Others do not have the field.
	Stuck *Stuck `json:"stuck,omitempty"`

	// Info is what a holder that is no run told about itself. Runs do not have the field.
	Info json.RawMessage `json:"info,omitempty"`
}

// Asked is who wants locks back from their holder.
type Asked struct {
	Force  string `json:"force"` // ask: the holder decides; take: its work is ended
	By     Text   `json:"by"`
	Reason Text   `json:"reason"`
}

// Purpose says in one word or line what the lock is held for: the id of a run, the command of `lock exec`, or "".
func (h *Holder) Purpose() string { return purpose(h.RunID, h.Info) }

// Locks returns the names that a list of locks shows for this hold: its bundle without the run's own resource, unless
// there is nothing else.
func (h *Holder) Locks() []string { return visible(h.Bundle) }

// Wait is a queued request for a bundle.
type Wait struct {
	ID        locks.HoldID    `json:"wait_id"`
	Worker    Text            `json:"worker"` // null for a run's: it waits without a worker
	Job       Text            `json:"job"`
	RunID     Text            `json:"run_id"`
	State     locks.WaitState `json:"state"` // waiting, offered (reserved for it for a moment), lapsed (an offer was not taken), kept (its queue is paused)
	Since     Instant         `json:"since"`
	Waited    Seconds         `json:"waited_seconds"`
	Wants     []string        `json:"wants"`      // without the run's own resource
	BlockedBy []string        `json:"blocked_by"` // ids of runs, or of what is no run
	Modes

	// Info is what a waiting request that is no run's told about itself. Runs do not have the field.
	Info json.RawMessage `json:"info,omitempty"`

	// Blockers has one for each of BlockedBy.
	Blockers []Blocker `json:"-"`

	ticket uint64
}

// Purpose says in one word or line what is waited for: the id of a run, the command of `lock exec`, or "".
func (w *Wait) Purpose() string { return purpose(w.RunID, w.Info) }

// Blocker is who keeps a wait waiting.
type Blocker struct {
	ID     string          // as in BlockedBy
	Worker locks.SessionID // "" for a run that waits itself
	Waits  bool            // it does not hold anything yet: it is in front
}

// Worker is one replica.
type Worker struct {
	ID        locks.SessionID `json:"id"`
	Host      string          `json:"host"`
	PID       int             `json:"pid"`
	Version   string          `json:"version"`
	Config    string          `json:"config"` // a digest of its configuration
	State     string          `json:"state"`  // ready, draining, gone
	Slots     int             `json:"slots"`
	Busy      int             `json:"busy"`   // runs that run there
	Queues    map[string]int  `json:"queues"` // served, with their weights
	StartedAt Instant         `json:"started_at"`
	LeaseLeft Seconds         `json:"lease_left_seconds"`
	Drifted   int             `json:"drifted"`              // jobs of which another definition than its own is active
	Admin     Text            `json:"admin"`                // host:port of its API and page
	Clock     Seconds         `json:"clock_offset_seconds"` // by how much its host's clock is ahead of Redis'
	Ticket    string          `json:"-"`                    // [Options.Ticket] of its API; "" for none

	Key      string            `json:"signing_key,omitempty"`     // the id of the key that signs definitions there
	Refused  int               `json:"refused_runs,omitempty"`    // runs that it refused since their definition could not be trusted
	Disputed map[string]string `json:"disputed_queues,omitempty"` // served queues that were given to another namespace: which
}

// Gone is the state of a worker whose lease is over. It vanishes as soon as somebody takes care of what it left.
const Gone = "gone"

// WhoAmI is who asks, as the worker that answers sees it.
type WhoAmI struct {
	User Text     `json:"user"` // null where nobody has to sign in
	Mode AuthMode `json:"mode"`
}

// Tick is one due time of a job and what became of it.
type Tick struct {
	Job       string          `json:"job"`
	Tick      TickTime        `json:"tick"`
	Outcome   string          `json:"outcome"` // succeeded, failed, skipped, missed, canceled, lost, pending
	Reason    Text            `json:"reason"`
	RunID     jobs.RunID      `json:"run_id"`
	DecidedAt Instant         `json:"decided_at"`
	DecidedBy locks.SessionID `json:"decided_by"`

	// Upto is the last tick of a line that stands for many missed ones. Other lines do not have the field.
	Upto TickTime `json:"upto,omitzero"`
}

// Pending is the outcome of a tick whose run is not finished.
const Pending = "pending"

// Act is what a person or a program did. Repeats of one are one act: the same actor did the same to the same thing.
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

// NextTick is a tick that is still to come.
type NextTick struct {
	Job  string   `json:"job"`
	Tick TickTime `json:"tick"`
	In   Seconds  `json:"in_seconds"`
}

// Job is a definition as the ledger knows it, and how it stands.
type Job struct {
	Name        string `json:"job"`
	Description Text   `json:"description"`

	// The trigger. A job without one runs when it is enqueued or by hand.
	Schedule Text     `json:"schedule"` // cron text
	Every    *Seconds `json:"every_seconds"`
	Timezone Text     `json:"timezone"`
	Words    Text     `json:"words"` // the trigger in plain words; null where there are none for it
	NextTick TickTime `json:"next_tick"`
	Cursor   Instant  `json:"cursor"` // up to here every tick is decided

	// The work: one of the three.
	Kind    string   `json:"kind"` // command, http, handler
	Command []string `json:"command,omitempty"`
	HTTP    *Call    `json:"http,omitempty"`
	Handler string   `json:"handler,omitempty"`

	Args       json.RawMessage `json:"args"` // default arguments
	Queue      string          `json:"queue"`
	Locks      []string        `json:"locks"` // what an attempt holds beside its run; with the placeholders of the config
	Timeout    *Seconds        `json:"timeout_seconds"`
	Retry      Retry           `json:"retry"`
	Overlap    jobs.Overlap    `json:"overlap"`
	MaxQueued  int             `json:"max_queued"`
	OnMissed   jobs.OnMissed   `json:"on_missed"`
	OnCrash    jobs.OnCrash    `json:"on_crash"`
	MaxCrashes int             `json:"max_crashes"`

	StartDeadline *Seconds `json:"start_deadline_seconds"`
	Jitter        *Seconds `json:"jitter_seconds"`
	MaxSilence    *Seconds `json:"max_silence_seconds"`

	Paused      Text    `json:"paused"` // who paused it and why, or that its definition does; null when its ticks run
	QueuePaused bool    `json:"queue_paused"`
	LastSuccess Instant `json:"last_success_at"`
	Late        bool    `json:"late"`    // there was no success for longer than max_silence
	Drifted     bool    `json:"drifted"` // workers that are there carry another definition of it
	Carried     bool    `json:"carried"` // false: it was removed, since no worker that is there carries it

	Definition Text `json:"definition"` // the hash of the active one, which this shows

	Running     int  `json:"running"`     // runs
	Outstanding int  `json:"outstanding"` // runs that are not finished, the running ones included
	LastRun     *Run `json:"last_run"`    // the last that finished; skipped and missed ticks are no runs

	// Problem says why the trigger cannot be computed on this machine. Other jobs do not have the field.
	Problem Text `json:"problem,omitempty"`
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
		DueAt: Instant{record.At}, Attempts: make([]Attempt, len(record.Attempts)),
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

func newTick(record *ledger.Record) Tick {
	tick := Tick{
		Job: record.Job, Tick: TickTime{record.Tick}, Outcome: string(record.State), Reason: Text(record.Reason),
		RunID: record.ID, DecidedAt: Instant{record.Created}, DecidedBy: record.By, Upto: TickTime{record.Upto},
	}
	if !record.State.Final() {
		tick.Outcome = Pending
	}
	return tick
}

// took returns how long a run has taken from its first attempt on.
func (r *Run) took() time.Duration { return r.FinishedAt.Sub(r.StartedAt.Time) }
