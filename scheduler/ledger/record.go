package ledger

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/trace"
)

// Trigger is what made a run.
type Trigger string

const (
	TriggerSchedule Trigger = "schedule"
	TriggerEnqueue  Trigger = "enqueue"
	TriggerHand     Trigger = "hand"
)

// Record is the ledger's record of one run.
type Record struct {
	ID      jobs.RunID
	Job     string
	Queue   string
	Trigger Trigger
	Tick    time.Time // zero: the run has none
	Upto    time.Time // the last tick of a line for a range of ticks; else zero
	State   State
	Reason  string // why it is skipped, missed, canceled, lost or failed without an attempt's error
	Args    json.RawMessage

	// Templated is true for a request whose Args are the text of its job's definition, with ${...}
	// that a worker replaces.
	Templated bool

	Created  time.Time
	By       locks.SessionID // the worker that decided the tick; "" without one
	Parent   jobs.RunID      // the run from which it was made; "" without one
	Trace    trace.Context   // of the request; none for the run of a tick
	At       time.Time       // in StateScheduled and StateRetrying: when it becomes due
	DueSince time.Time       // when it first became due; zero until then
	Started  time.Time       // its first attempt; zero until then
	Finished time.Time       // zero while outstanding
	Fails    int             // attempts that failed
	// attempts that ended with their worker's process, as its parent reported
	Crashes int
	StartBy time.Time // it must not start after this instant; zero: no limit
	Waited  time.Time // when it first began to wait for its bundle; zero: never
	Blocker *Blocker  // what blocked it then; nil: it never waited
	// it has ended and stays outstanding, since its job's history could not be written
	Parked bool
	Stop   string // why its worker was asked to stop it; "": it was not

	// Made refers to the definition that a finished run was made with: see [Ledger.Made]. "": none
	// is kept of it.
	Made string

	// Items are the bundle of its attempts. Only [Ledger.OpenRecords] reads them.
	Items []locks.Item

	// Attempts in order; the last one is open (Finished zero) while the run is running. If their
	// log became long, most of those in the middle are left out, as the gaps in their numbers show.
	Attempts []AttemptRecord
}

// Last returns the last attempt, or nil when none has begun.
func (r *Record) Last() *AttemptRecord {
	if len(r.Attempts) == 0 {
		return nil
	}
	return &r.Attempts[len(r.Attempts)-1]
}

// Traced returns what the spans of the run need. A run that was reopened has another span than
// before: it has been due since later than its first attempt.
func (r *Record) Traced() trace.Run {
	key := string(r.ID) + "\x00" + string(r.By)
	if r.Tick.IsZero() { // an id may name another run later
		key += fmt.Sprint(r.Created.UnixMilli())
	}
	again := ""
	if !r.Started.IsZero() && r.DueSince.After(r.Started) {
		again = fmt.Sprint(r.DueSince.UnixMilli())
	}
	return trace.Run{ID: string(r.ID), Job: r.Job, Queue: r.Queue, Trigger: string(r.Trigger), Tick: r.Tick, Created: r.Created,
		Key: key, Again: again, Kept: r.Trace}
}

// storedTrace returns a trace context as the end of [storedRun].By.
func storedTrace(c trace.Context) string {
	switch {
	case c.Parent == "":
		return ""
	case c.State == "":
		return " " + c.Parent
	}
	return " " + c.Parent + " " + c.State
}

// Blocker is what kept a run from its bundle.
type Blocker struct {
	Resource string
	Session  locks.SessionID // "" without a holder: it was reserved for an older wait
	Run      jobs.RunID      // of the holder or the older wait; "" when that was not a run's
	Token    locks.Token     // of the hold; 0 without one
	Since    time.Time       // of the hold or the wait
}

// AttemptRecord is one try at a run.
type AttemptRecord struct {
	Number   int
	Worker   locks.SessionID
	Token    locks.Token
	Hold     locks.HoldID // of an open attempt; "" for a closed one
	Started  time.Time
	Finished time.Time
	// succeeded, failed, crashed, lost lease, handed back, canceled; "" while it is open
	Outcome string
	Error   string

	// of a crash: the run did not cause it, since a run that was suspected before crashed again
	// then or later
	Cleared bool
	// of a lost lease: the worker has come back and reported that nothing of the attempt runs
	Confirmed bool

	// A run that no worker can do is declined again and again. Attempts that were declined for the
	// same error are one record, that of the last of them; First is when the first of them started.
	Times int // at least 1
	First time.Time
}

// Outcomes of attempts, in addition to those of runs.
const (
	AttemptCrashed = "crashed" // its worker's process died, as the parent reported
	// its worker's session expired or was cut off, and no parent reported a death
	AttemptLostLease  = "lost lease"
	AttemptHandedBack = "handed back" // its worker drained, or could not do it
)

// AttemptOutcomes returns every outcome that an attempt may have.
func AttemptOutcomes() []string {
	return []string{string(StateSucceeded), string(StateFailed), string(StateCanceled), AttemptCrashed, AttemptLostLease, AttemptHandedBack}
}

// Suspect reports whether the run may be what kills its workers. A worker runs one such run at a
// time. The run has crashed, was not cleared since, and has survived no attempt since: none has
// ended in another way, and none that was handed back or lost its lease had run for longer than
// those that crashed, see [PastCrash]. The record must have all attempts.
func (r *Record) Suspect() bool {
	if r.Crashes == 0 {
		return false
	}
	suspect := true // also when the attempts are lost
	for i, a := range r.Attempts {
		switch {
		case a.Finished.IsZero():
		case a.Outcome == AttemptCrashed:
			suspect = !a.Cleared
		case a.Outcome != AttemptHandedBack && a.Outcome != AttemptLostLease:
			suspect = false
		default:
			if past := PastCrash(r.Attempts[:i]); past > 0 && a.Finished.Sub(a.Started) >= past {
				suspect = false
			}
		}
	}
	return suspect
}

// Isolation is how a worker keeps a run that has crashed apart from others that have.
type Isolation struct {
	Place bool // it takes the worker's one place for suspects
	Alone bool // with Place: it runs beside no other run that has crashed
}

// IsolationOf returns the isolation of a run that has crashed this often. suspect: see
// [Record.Suspect]. After its first crash a suspect was one of several in one death, and need not
// be alone. A run that another crash ends must be, even when it was cleared: which run caused a
// death is never certain. So must a run whose definition is not known: job is nil.
func IsolationOf(job *jobs.Job, crashes int, suspect bool) Isolation {
	last := job == nil || !job.Survives(crashes)
	return Isolation{Place: suspect || last, Alone: last || suspect && crashes != 1}
}

// PastCrash returns how long an attempt must run to be past the point where earlier ones crashed:
// as long as the longest of these, and a quarter or at least a second more; 0 if none crashed. The
// end of a crashed attempt is when the crash was detected, so its length is never too short.
func PastCrash(attempts []AttemptRecord) time.Duration {
	longest := time.Duration(-1)
	for _, a := range attempts {
		if a.Outcome == AttemptCrashed {
			longest = max(longest, a.Finished.Sub(a.Started))
		}
	}
	if longest < 0 {
		return 0
	}
	return longest + max(longest/4, time.Second)
}

// decode reads a record as the scripts write it, and the bundle of its attempts.
func decode(id jobs.RunID, record, log, args string) (*Record, []locks.Item, error) {
	f, n := runLayout.Parse(record)
	if n < runLayout.Fields()-1 {
		return nil, nil, fmt.Errorf("%w: a record of %d fields for run %s", space.ErrReply, n, id)
	}
	return f.decode(id, log, args)
}

func (f *storedRun) decode(id jobs.RunID, log, args string) (*Record, []locks.Item, error) {
	var broken error
	number := func(text string) int64 {
		if text == "" {
			return 0
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil && broken == nil {
			field := slices.Index(space.FieldsOf(runLayout.Text(f)), text)
			broken = fmt.Errorf("%w: field %d of run %s: %w", space.ErrReply, field, id, err)
		}
		return n
	}
	instant := func(text string) time.Time { return millis(number(text)) }
	r := &Record{
		ID: id, Job: f.Job, Queue: f.Queue, Trigger: Trigger(f.Trigger), Tick: instant(f.Tick), Upto: instant(f.Upto),
		State: State(f.State), Reason: f.Reason, Created: instant(f.Created), By: locks.SessionID(f.By),
		At: instant(f.At), DueSince: instant(f.Since), Started: instant(f.First), Finished: instant(f.Finished),
		Fails: int(number(f.Fails)), Crashes: int(number(f.Crashes)), StartBy: instant(f.Deadline), Waited: instant(f.Waited),
		Stop: f.Stop,
	}
	if r.Tick.IsZero() {
		parent, context, _ := strings.Cut(f.By, " ")
		r.By, r.Parent = "", jobs.RunID(parent)
		r.Trace.Parent, r.Trace.State, _ = strings.Cut(context, " ")
	}
	if f.Blocker != "" {
		if r.Blocker = decodeBlocker(f.Blocker); r.Blocker == nil {
			return nil, nil, fmt.Errorf("%w: what was in the way of run %s: %q", space.ErrReply, id, f.Blocker)
		}
	}
	if args != "" {
		args, r.Templated = strings.CutPrefix(args, " ")
		r.Args = json.RawMessage(strings.TrimSuffix(args, " ")) // see markedArgs
	}
	if r.State.Facts().Index != IndexTime {
		r.At = time.Time{}
	}
	var err error
	if r.Attempts, err = decodeLog(log); err != nil {
		return nil, nil, fmt.Errorf("%w: attempts of run %s: %w", space.ErrReply, id, err)
	}
	if r.State == StateRunning {
		r.Attempts = append(r.Attempts, AttemptRecord{
			Number: int(number(f.Attempt)), Worker: locks.SessionID(f.Session), Token: locks.Token(number(f.Token)),
			Hold: locks.HoldID(f.Holder), Started: instant(f.Started), Times: 1, First: instant(f.Started),
		})
	}
	var items []locks.Item
	for _, text := range space.FieldsOf(f.Items) {
		if text == "" {
			continue
		}
		item, err := space.ParseItem(text)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: bundle of run %s: %w", space.ErrReply, id, err)
		}
		items = append(items, item)
	}
	return r, items, broken
}

// decodeBlocker returns nil for a text that is not a blocker.
func decodeBlocker(text string) *Blocker {
	f, n := blockerLayout.Parse(text)
	if n != blockerLayout.Fields() {
		return nil
	}
	token, err1 := locks.ParseToken(f.Token)
	since, err2 := strconv.ParseInt(f.Since, 10, 64)
	if err1 != nil || err2 != nil {
		return nil
	}
	blocker := &Blocker{Resource: f.Resource, Session: locks.SessionID(f.Session), Token: token, Since: millis(since)}
	var holder struct{ Run jobs.RunID }
	// another client's info may contain anything, or nothing
	if json.Unmarshal([]byte(f.Info), &holder) == nil {
		blocker.Run = holder.Run
	}
	return blocker
}

func decodeLog(log string) ([]AttemptRecord, error) {
	var closed []struct {
		Attempt    int
		Worker     locks.SessionID
		Token      locks.Token
		StartedAt  int64 `json:"started_at"`
		FinishedAt int64 `json:"finished_at"`
		Outcome    string
		Error      string
		Cleared    bool
		Confirmed  bool
		Times      int
		FirstAt    int64 `json:"first_at"`
	}
	if log == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte("["+log+"]"), &closed); err != nil {
		return nil, err
	}
	attempts := make([]AttemptRecord, len(closed))
	for i, a := range closed {
		attempts[i] = AttemptRecord{Number: a.Attempt, Worker: a.Worker, Token: a.Token, Started: millis(a.StartedAt),
			Finished: millis(a.FinishedAt), Outcome: a.Outcome, Error: a.Error, Cleared: a.Cleared, Confirmed: a.Confirmed, Times: max(1, a.Times), First: millis(a.FirstAt)}
		if a.FirstAt == 0 {
			attempts[i].First = attempts[i].Started
		}
	}
	return attempts, nil
}

// decodeFinal reads a record of the history. It may omit the empty fields at its end, and what
// plainLog returns.
func decodeFinal(id jobs.RunID, text string) (*Record, error) {
	final, parts := finalLayout.Parse(text)
	if parts != finalLayout.Fields() {
		return nil, fmt.Errorf("%w: a final record of %d parts for run %s", space.ErrReply, parts, id)
	}
	f, n := runLayout.Parse(final.Run)
	if n < runLayout.Fields()-1 && f.Finished == "" {
		return nil, fmt.Errorf("%w: a record of %d fields for run %s", space.ErrReply, n, id)
	}
	if session, plain := strings.CutPrefix(final.Log, "@"); plain {
		final.Log = plainLog(&f, session)
	}
	record, _, err := f.decode(id, final.Log, final.Args)
	if err == nil && len(f.Holder) == madeLength && !strings.Contains(f.Holder, ".") {
		record.Made = f.Holder // records of earlier builds have a hold there
	}
	return record, err
}

// plainLog returns the log of a run that its only attempt ended with success, under this session,
// from the fields of its final record. The function of the same name in scripts/lib/attempt.lua
// returns the same.
func plainLog(f *storedRun, session string) string {
	return `{"attempt":` + f.Attempt + `,"worker":"` + session + `","token":"` + f.Token + `","started_at":` + f.First +
		`,"finished_at":` + f.Finished + `,"outcome":"succeeded","error":null}`
}
