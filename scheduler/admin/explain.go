package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler"
	"lockstep/scheduler/cronspec"
	"lockstep/scheduler/ledger"
)

// Explanation is why a tick of a job ran, or did not, from what was recorded when it happened.
type Explanation struct {
	Job        string   `json:"job"`
	Tick       TickTime `json:"tick"`  // null: the job had no tick then
	Local      string   `json:"local"` // the requested instant, in the job's time zone
	Outcome    Text     `json:"outcome"`
	RunID      Text     `json:"run_id"`
	Steps      []Step   `json:"steps"` // in the order in which they happened
	Conclusion string   `json:"conclusion"`

	// WaitingFor is why the run does not run; see [Run].
	WaitingFor *WaitingFor `json:"waiting_for,omitempty"`
}

// Step is one thing that happened to a tick, or should have.
type Step struct {
	OK   bool   `json:"ok"`
	Name string `json:"step"` // due, decided, paused, lock, waited, attempt, ...
	Text string `json:"text"`
}

// Explain describes the tick of a job at an instant, or, with the zero time, the last decided one.
func (r *Reader) Explain(ctx context.Context, job string, at time.Time) (*Explanation, error) {
	known, err := r.book.Job(ctx, job)
	if err != nil {
		return nil, err
	}
	now, err := r.now(ctx)
	if err != nil {
		return nil, err
	}
	trigger, err := scheduler.Trigger(known.Job)
	switch {
	case err != nil:
		return nil, fmt.Errorf("job %s: %w", job, err)
	case trigger == nil:
		return nil, fmt.Errorf("job %s: %w: it has no schedule, so it has no ticks; see its runs", job, ErrInvalid)
	}
	s := &explainer{known: known, trigger: trigger, zone: trigger.Location(), now: now}
	if zone, err := cronspec.LoadZone(known.Job.Timezone); err == nil {
		s.zone = zone
	}
	if at.IsZero() {
		if at, err = r.lastTick(ctx, known); err != nil {
			return nil, err
		}
		if at.IsZero() {
			return nil, unknownError(fmt.Sprintf("job %s: no tick of it is on record", job))
		}
	}
	if s.record, err = r.tickRecord(ctx, known, at); err != nil {
		return nil, err
	}
	if s.record != nil {
		if s.waits, err = r.waitingFor(ctx, s.record); err != nil {
			return nil, err
		}
		if err := r.overlapped(ctx, s); err != nil {
			return nil, err
		}
	}
	return s.tell(at), nil
}

const (
	lastTickWithin = 1000 // entries of a history that are searched for the last tick
	// entries of a history, from a tick on, that are searched for a line for many ticks
	rangeWithin = 2000
	usualOf     = 200 // finished runs of a job from which its usual duration is computed
)

// lastTick returns the last decided tick of a job that has a record, or the zero time.
func (r *Reader) lastTick(ctx context.Context, job ledger.JobRecord) (time.Time, error) {
	name := job.Job.Name
	if record, err := r.find(ctx, jobs.TickRunID(name, job.Cursor)); err != nil || record != nil {
		return job.Cursor, err
	}
	// The cursor is not a tick when the job is new or its trigger has changed, and has no record of
	// its own when a line for many ticks includes it.
	open, err := r.book.OpenEntries(ctx, ledger.IndexJob, name, "", 1)
	if err != nil {
		return time.Time{}, err
	}
	ended, err := r.book.EndedEntries(ctx, []ledger.EndedPage{{Job: name, Most: lastTickWithin}})
	if err != nil {
		return time.Time{}, err
	}
	var last time.Time
	later := func(id jobs.RunID) {
		if tick, _, is := ticksOf(id); is && tick.After(last) {
			last = tick
		}
	}
	for _, entry := range open {
		later(entry.Run)
	}
	for _, entry := range ended[0] {
		later(entry.Run)
	}
	return last, nil
}

// ticksOf returns the tick in the id of a record, or the first and the last of a line for many
// ticks.
func ticksOf(id jobs.RunID) (first, last time.Time, is bool) {
	if tick, is := id.Tick(); is {
		return tick, tick, true
	}
	from, to, is := strings.Cut(string(id), "..")
	if !is {
		return first, last, false
	}
	first, is = jobs.RunID(from).Tick()
	last, err := time.Parse(time.RFC3339, to)
	return first, last, is && err == nil
}

// find returns the record of a run, or nil.
func (r *Reader) find(ctx context.Context, id jobs.RunID) (*ledger.Record, error) {
	record, err := r.book.FindRecord(ctx, id)
	if errors.Is(err, ledger.ErrUnknown) {
		return nil, nil
	}
	return record, err
}

// tickRecord returns the record of a tick, or of the line for many ticks that includes it; nil when
// there is none.
func (r *Reader) tickRecord(ctx context.Context, job ledger.JobRecord, at time.Time) (*ledger.Record, error) {
	name := job.Job.Name
	if record, err := r.find(ctx, jobs.TickRunID(name, at)); err != nil || record != nil || at.After(job.Cursor) {
		return record, err
	}
	// The first worker after the ticks writes the line for them, so it is among the first entries
	// since then.
	counts, err := r.book.CountEnded(ctx, name, at)
	if err != nil {
		return nil, err
	}
	for skip, left := max(0, counts-rangeWithin), min(counts, rangeWithin); left > 0; {
		parts, err := r.book.EndedEntries(ctx, []ledger.EndedPage{{Job: name, Skip: skip, Most: left}})
		if err != nil {
			return nil, err
		}
		for _, entry := range parts[0] {
			if first, last, is := ticksOf(entry.Run); is && !last.Equal(first) && !at.Before(first) && !at.After(last) {
				return r.find(ctx, entry.Run)
			}
		}
		if len(parts[0]) == 0 {
			break
		}
		skip, left = skip+len(parts[0]), left-len(parts[0])
	}
	return nil, nil
}

// overlapped reads the facts about a tick that was skipped because of another run: that run, and
// how long others took.
func (r *Reader) overlapped(ctx context.Context, s *explainer) (err error) {
	id, _, is := s.overlap()
	if !is {
		return nil
	}
	if s.other, err = r.find(ctx, id); err != nil || s.other == nil {
		return err
	}
	parts, err := r.book.EndedEntries(ctx, []ledger.EndedPage{{Job: s.known.Job.Name, Most: usualOf}})
	if err != nil {
		return err
	}
	records, err := r.book.EndedRecords(ctx, parts[0])
	for _, record := range records {
		if record != nil && record.State == ledger.StateSucceeded {
			s.took = append(s.took, record.Finished.Sub(record.Started))
		}
	}
	return err
}

// explainer has the known facts about a job, and explains one tick from them.
type explainer struct {
	known   ledger.JobRecord
	trigger *cronspec.Schedule
	zone    *time.Location
	now     time.Time
	record  *ledger.Record  // of the tick or the run to explain; nil: it has none
	waits   *WaitingFor     // why that run does not run
	other   *ledger.Record  // the run that caused the skip; nil: none, or it is no longer kept
	took    []time.Duration // of the last finished runs that succeeded, if the explanation needs it
	e       *Explanation
}

func (s *explainer) say(ok bool, name, format string, args ...any) {
	s.e.Steps = append(s.e.Steps, Step{ok, name, fmt.Sprintf(format, args...)})
}

func (s *explainer) conclude(format string, args ...any) *Explanation {
	s.e.Conclusion = fmt.Sprintf(format, args...)
	return s.e
}

// local formats an instant in the job's time zone, with the date when it differs from that of the
// tick.
func (s *explainer) local(at time.Time) string {
	at = at.In(s.zone)
	if day := s.e.Tick.In(s.zone); at.YearDay() == day.YearDay() && at.Year() == day.Year() {
		return at.Format("15:04:05.000")
	}
	return at.Format("Mon 2006-01-02 15:04:05")
}

func (s *explainer) tell(at time.Time) *Explanation {
	layout := "Mon 2006-01-02 15:04 MST"
	if at.Second() != 0 {
		layout = "Mon 2006-01-02 15:04:05 MST"
	}
	s.e = &Explanation{Job: s.known.Job.Name, Tick: TickTime{at}, Local: at.In(s.zone).Format(layout), Steps: []Step{}}
	record := s.record
	isTick := s.trigger.Next(at.Add(-time.Nanosecond)).Equal(at)
	switch {
	case isTick:
		s.say(true, "due", "%s", s.words())
	case record != nil:
		s.say(true, "due", "by the schedule that the job had then")
	default:
		s.e.Tick = TickTime{}
		s.say(false, "due", "%s: the next tick is %s", s.words(), s.trigger.Next(at).In(s.zone).Format("Mon 2006-01-02 15:04:05"))
		return s.conclude("no tick of its present schedule, and none on record")
	}
	if record == nil {
		return s.unrecorded(at)
	}
	s.e.RunID, s.e.Outcome = Text(record.ID), Text(outcomeOf(record))
	by := cmp.Or(record.By, "hand") // it was replayed, and it had no record
	s.say(true, "decided", "by %s at %s (+%s)", by, s.local(record.Created), Span(record.Created.Sub(record.Tick)))
	if !record.Upto.IsZero() {
		s.say(false, "recorded", "in one line for all ticks from %s to %s", s.local(record.Tick), s.local(record.Upto))
	}
	switch record.State {
	case ledger.StateSkipped:
		return s.skipped(record)
	case ledger.StateMissed:
		s.waited(record)
		s.say(false, "started", "%s", record.Reason)
		return s.conclude("missed (%s)", record.Reason)
	}
	return s.ended(record)
}

func (s *explainer) words() string {
	text := s.trigger.String()
	if s.known.Job.Every == 0 {
		text = fmt.Sprintf("%q", text)
		if zone := s.known.Job.Timezone; zone != "" {
			text += " " + zone
		}
		if words := s.trigger.Words(); words != "" {
			text += ": " + words
		}
	}
	return text
}

// unrecorded explains a tick without a record.
func (s *explainer) unrecorded(at time.Time) *Explanation {
	switch {
	case at.After(s.now):
		s.say(false, "decided", "not yet: it is in the future, in %s", Span(at.Sub(s.now)))
		return s.conclude("not due yet")
	case at.After(s.known.Cursor):
		s.say(false, "decided", "not yet: ticks are decided up to %s", s.local(s.known.Cursor))
		return s.conclude("undecided: no worker that has the job is there, or it is about to decide it")
	}
	keep := s.known.Job.History
	s.say(false, "recorded", "not, or not any more: the last %d are kept, for %s at most; the job may also be newer than the tick", keep.Runs, Span(keep.For))
	return s.conclude("unknown: it has no record")
}

func (s *explainer) skipped(record *ledger.Record) *Explanation {
	policy, _, _ := strings.Cut(record.Reason, "; ")
	id, state, overlap := s.overlap()
	switch {
	case overlap:
		other := s.other
		if other == nil {
			s.say(false, "lock", "%s was %s; it is not on record any more", id, state)
			return s.conclude("skipped (%s)", policy)
		}
		during := during(other, record.Created)
		if during == nil {
			s.say(false, "lock", "%s was %s", id, state)
		} else {
			s.say(false, "lock", "%s was held by %s since %s, token %s", jobs.JobResource(record.Job), during.Worker,
				s.local(during.Started), during.Token)
		}
		if other.Started.IsZero() {
			return s.conclude("skipped (%s)", policy)
		}
		took := fmt.Sprintf("has taken %s so far", Span(s.now.Sub(other.Started)))
		if !other.Finished.IsZero() {
			took = "took " + Span(other.Finished.Sub(other.Started))
		}
		if usual := s.usual(); usual > 0 {
			took += "; usual is " + Span(usual)
		}
		return s.conclude("skipped (%s). That run %s.", policy, took)
	case strings.HasPrefix(record.Reason, "paused"):
		s.say(false, "paused", "%s", strings.TrimPrefix(record.Reason, "paused "))
	case strings.HasPrefix(record.Reason, "lock.wait"):
		s.waited(record)
		s.say(false, "lock", "%s", record.Reason)
		return s.conclude("skipped (lock.wait is over)")
	default:
		s.say(false, "started", "%s", record.Reason)
	}
	return s.conclude("skipped (%s)", record.Reason)
}

// overlap returns the run that caused the skip of the tick, and its state then.
func (s *explainer) overlap() (id jobs.RunID, state string, is bool) {
	policy, rest, _ := strings.Cut(s.record.Reason, "; ")
	if s.record.State != ledger.StateSkipped || !strings.HasPrefix(policy, "overlap: skip") {
		return "", "", false
	}
	name, state, _ := strings.Cut(rest, " is ")
	return jobs.RunID(name), state, true
}

// during returns the attempt at a run that was in progress at an instant, or nil.
func during(record *ledger.Record, at time.Time) *ledger.AttemptRecord {
	for i := range record.Attempts {
		a := &record.Attempts[i]
		if !a.Started.After(at) && (a.Finished.IsZero() || !a.Finished.Before(at)) {
			return a
		}
	}
	return nil
}

// usual returns the median duration of the job's last runs that succeeded; 0 when none is known.
func (s *explainer) usual() time.Duration {
	if len(s.took) == 0 {
		return 0
	}
	slices.Sort(s.took)
	return s.took[len(s.took)/2]
}

// waited adds the step that explains what kept a run from starting at once.
func (s *explainer) waited(record *ledger.Record) {
	if record.Waited.IsZero() {
		return
	}
	until := ""
	if !record.Started.IsZero() {
		until = " to " + s.local(record.Started)
	}
	b, what := record.Blocker, "its locks"
	if b != nil {
		what = b.Resource
		switch {
		case b.Session != "" && b.Run != "":
			what += fmt.Sprintf(", held by %s (%s) since %s, token %s", b.Session, b.Run, s.local(b.Since), b.Token)
		case b.Session != "":
			what += fmt.Sprintf(", held by %s since %s, token %s", b.Session, s.local(b.Since), b.Token)
		case b.Run != "":
			what += fmt.Sprintf(", for which %s waited", b.Run)
		default:
			what += ", behind an earlier tick"
		}
	}
	s.say(true, "waited", "from %s%s for %s", s.local(record.Waited), until, what)
}

func (s *explainer) attempt(a *ledger.AttemptRecord) {
	name := fmt.Sprintf("attempt %d", a.Number)
	line, _, _ := strings.Cut(a.Error, "\n")
	switch {
	case a.Finished.IsZero():
		s.say(true, name, "runs on %s since %s, token %s", a.Worker, s.local(a.Started), a.Token)
	case a.Error == "":
		s.say(a.Outcome == string(ledger.OutcomeSuccess), name, "%s on %s at %s after %s, token %s", a.Outcome, a.Worker, s.local(a.Finished),
			Span(a.Finished.Sub(a.Started)), a.Token)
	case a.Times > 1:
		s.say(false, name, "%s %d times since %s, at last on %s at %s: %s", a.Outcome, a.Times, s.local(a.First), a.Worker, s.local(a.Finished), line)
	default:
		s.say(false, name, "%s on %s at %s after %s: %s", a.Outcome, a.Worker, s.local(a.Finished), Span(a.Finished.Sub(a.Started)), line)
	}
}

// ended explains a run from its wait for locks to its end.
func (s *explainer) ended(record *ledger.Record) *Explanation {
	s.waited(record)
	for _, a := range record.Attempts {
		s.attempt(&a)
	}
	s.e.WaitingFor = s.waits
	if w := s.waits; w != nil {
		switch w.Reason {
		case WaitsPaused:
			s.say(false, "queue", "%s is paused: lockstep queue resume %[1]s", record.Queue)
			return s.conclude("%s: its queue is paused", record.State)
		case WaitsTime:
		default:
			s.say(w.Reason == WaitsStart, string(w.Reason), "%s", w.Text)
			if record.State == ledger.StateDue || record.State == ledger.StateScheduled {
				return s.conclude("%s: %s", record.State, w.Text)
			}
		}
	}
	reason := ""
	if record.Reason != "" {
		reason = " (" + record.Reason + ")"
	}
	switch {
	case record.State == ledger.StateRunning:
		return s.conclude("running")
	case record.State.Facts().Index == ledger.IndexTime:
		return s.conclude("%s: due at %s", record.State, s.local(record.At))
	case record.State == ledger.StateWaiting:
		return s.conclude("waiting for its locks")
	case record.State == ledger.StateSucceeded && !record.Started.IsZero():
		return s.conclude("succeeded after %s%s", Span(record.Finished.Sub(record.Started)), reason)
	}
	return s.conclude("%s%s", record.State, reason)
}
