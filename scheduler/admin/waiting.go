package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// WaitingFor is why an unfinished run does not run.
type WaitingFor struct {
	Reason WaitReason `json:"reason"`
	Text   string     `json:"text"` // the reason in a sentence that names the obstacle

	RunID  Text `json:"run_id,omitempty"` // for suspect, and for locks that a run holds: that run
	Worker Text `json:"worker,omitempty"` // of that run
	// for slot and behind: how many runs of its queue have been due for longer
	Ahead int `json:"ahead,omitempty"`
}

// WaitReason is why a run does not run, in one word. Later versions may have more of them.
type WaitReason string

const (
	WaitsTime    WaitReason = "time"    // it is scheduled, or its next attempt is
	WaitsLocks   WaitReason = "locks"   // others hold its locks, or wait for them in front of it
	WaitsPaused  WaitReason = "paused"  // its queue is paused
	WaitsWorker  WaitReason = "worker"  // no worker serves its queue
	WaitsHandler WaitReason = "handler" // no worker that serves its queue has its handler
	// it has crashed, and every worker runs another run that it must not run beside
	WaitsSuspect WaitReason = "suspect"
	WaitsSlot    WaitReason = "slot"     // all slots of the workers that could run it are busy
	WaitsBehind  WaitReason = "behind"   // others of its queue have been due for longer
	WaitsStart   WaitReason = "delivery" // nothing is in its way: a worker is about to start it
	WaitsParked  WaitReason = "parked"   // it has failed, and cannot be moved to its job's history
)

// DueReasons returns the possible reasons of a due run, in the order in which they are checked.
func DueReasons() []WaitReason {
	return []WaitReason{WaitsPaused, WaitsWorker, WaitsHandler, WaitsSuspect, WaitsSlot, WaitsBehind, WaitsStart}
}

// conditions are the facts that decide whether a due run can start.
type conditions struct {
	paused   []string // queues
	sessions []session
	served   map[string]bool // queues of which a worker starts runs
}

func newConditions(paused []string, sessions []session) *conditions {
	c := &conditions{paused, sessions, make(map[string]bool)}
	for _, s := range sessions {
		for queue := range s.card.Queues {
			c.served[queue] = c.served[queue] || s.serves(queue)
		}
	}
	return c
}

// conditions reads the pauses and the workers' cards. It reads no holds.
func (r *Reader) conditions(ctx context.Context) (*conditions, error) {
	paused, err := r.book.Paused(ctx)
	if err != nil {
		return nil, err
	}
	records, _, err := r.space.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	sessions := make([]session, len(records))
	for i, record := range records {
		sessions[i] = newSession(record)
	}
	return newConditions(paused, sessions), nil
}

// waitingFor returns why a run does not run; nil for a running or finished run.
func (r *Reader) waitingFor(ctx context.Context, record *ledger.Record) (*WaitingFor, error) {
	switch {
	case handedBack(record): // perhaps because the worker lacks its handler
	case record.Parked, record.State.Facts().Index == ledger.IndexTime:
		return undue(record, nil), nil
	case record.State == ledger.StateWaiting:
		paused, err := r.book.Paused(ctx)
		return undue(record, paused), err
	case record.State != ledger.StateDue:
		return nil, nil
	}
	c, err := r.conditions(ctx)
	if err != nil {
		return nil, err
	}
	if record.State == ledger.StateDue {
		need, err := r.book.NeedOf(ctx, record)
		if err != nil {
			return nil, err
		}
		if w := c.unable(record.Queue, need); w != nil {
			return w, nil
		}
	}
	job, err := r.book.Definition(ctx, record.ID)
	switch {
	case err == nil:
	case errors.Is(err, ledger.ErrUnknown) || ledger.Final(err):
		job = nil // it has just ended, or its claim will end it
	default:
		return nil, err
	}
	ahead := 0
	if record.State == ledger.StateDue {
		if ahead, err = r.book.Ahead(ctx, record); err != nil {
			return nil, err
		}
	}
	return c.whyNot(record, job, ahead), nil
}

// handedBack reports whether a run waits for a moment because the worker of its last attempt could
// not do it, or drained.
func handedBack(record *ledger.Record) bool {
	last := record.Last()
	return record.State == ledger.StateScheduled && last != nil && last.Outcome == ledger.AttemptHandedBack
}

// whyNot is why for any run that does not run. A handed-back run is due again in a moment, so the
// delay is the reason only if a worker could then start the run.
func (c *conditions) whyNot(record *ledger.Record, job *jobs.Job, ahead int) *WaitingFor {
	switch {
	case record.State == ledger.StateDue:
		return c.why(record, job, ahead)
	case handedBack(record):
		if w := c.why(record, job, 0); w.Reason == WaitsPaused || w.Reason == WaitsWorker || w.Reason == WaitsHandler {
			return w
		}
	}
	return undue(record, c.paused)
}

// undue returns why a run that is not due does not run.
func undue(record *ledger.Record, paused []string) *WaitingFor {
	facts := record.State.Facts()
	switch {
	case record.Parked:
		return &WaitingFor{Reason: WaitsParked, Text: "it has failed and is parked: its job's history refuses it. Once that is repaired, " +
			"it is moved there within a minute; lockstep run cancel " + string(record.ID) + " tries again at once"}
	case facts.Index == ledger.IndexTime:
		return &WaitingFor{Reason: WaitsTime, Text: fmt.Sprintf(facts.Until, record.At.UTC().Format(time.RFC3339))}
	case slices.Contains(paused, record.Queue):
		return isPaused(record.Queue)
	}
	w := &WaitingFor{Reason: WaitsLocks, Text: "it waits for its locks (see: lockstep lock waits)"}
	if b := record.Blocker; b != nil {
		w.RunID, w.Worker = Text(b.Run), Text(b.Session)
		switch {
		case b.Session != "" && b.Run != "":
			w.Text = fmt.Sprintf("when it began to wait, %s was held by %s on %s (see: lockstep lock waits)", b.Resource, b.Run, b.Session)
		case b.Session != "":
			w.Text = fmt.Sprintf("when it began to wait, %s was held by %s (see: lockstep lock waits)", b.Resource, b.Session)
		default:
			w.Text = fmt.Sprintf("when it began to wait, others waited for %s in front of it (see: lockstep lock waits)", b.Resource)
		}
	}
	return w
}

func isPaused(queue string) *WaitingFor {
	return &WaitingFor{Reason: WaitsPaused, Text: fmt.Sprintf("its queue %s is paused: lockstep queue resume %[1]s", queue)}
}

// why returns why a due run does not run. job is its definition, or the active one of its job, or
// nil if neither is known. ahead is how many runs of its queue have been due for longer.
func (c *conditions) why(record *ledger.Record, job *jobs.Job, ahead int) *WaitingFor {
	if slices.Contains(c.paused, record.Queue) {
		return isPaused(record.Queue)
	}
	handler := ""
	if job != nil {
		handler = job.Handler
	}
	serve := c.serve(record.Queue)
	able := slices.DeleteFunc(slices.Clone(serve), func(s session) bool { return !s.card.Has(handler) })
	if len(serve) == 0 {
		return &WaitingFor{Reason: WaitsWorker, Text: fmt.Sprintf("no worker serves its queue %s: start one, or add the queue to worker.queues", record.Queue)}
	}
	if len(able) == 0 {
		return lacks(record.Queue, "has handler "+handler)
	}
	if w := crowded(record, job, able); w != nil {
		return w
	}
	slots, busy, free := 0, 0, false
	for _, s := range able {
		slots, busy = slots+s.card.Slots, busy+s.card.Busy
		free = free || s.card.Busy < s.card.Slots
	}
	behind := ""
	if ahead > 0 {
		behind = fmt.Sprintf("%s of its queue %s %s been due for longer", runs(ahead), record.Queue, map[bool]string{true: "has", false: "have"}[ahead == 1])
	}
	switch {
	case !free:
		text := fmt.Sprintf("no slot is free: %d of %d are busy on %s that could run it", busy, slots, many(len(able), "the one worker", "the %d workers"))
		if behind != "" {
			text += "; " + behind
		}
		return &WaitingFor{Reason: WaitsSlot, Text: text, Ahead: ahead}
	case behind != "":
		return &WaitingFor{Reason: WaitsBehind, Text: behind, Ahead: ahead}
	}
	return &WaitingFor{Reason: WaitsStart, Text: "nothing is in its way, a worker is about to start it"}
}

// crowded returns why a run that has crashed before starts on none of the workers that could run it
// now, or nil.
func crowded(record *ledger.Record, job *jobs.Job, able []session) *WaitingFor {
	if record.Crashes == 0 {
		return nil
	}
	isolation := ledger.IsolationOf(job, record.Crashes, record.Suspect())
	rule := "a worker runs one such run at a time"
	switch {
	case isolation.Alone:
		rule = "a worker runs it beside no other run that has crashed"
	case !isolation.Place:
		rule = "no worker runs it beside a crashed run that must run alone"
	}
	var by []string
	for _, s := range able {
		card := s.card
		occupied := card.Suspect != "" && card.Suspect != record.ID && (isolation.Place || card.Alone)
		switch {
		case occupied:
			by = append(by, fmt.Sprintf("%s on %s", card.Suspect, s.id))
		case isolation.Alone && card.Suspect == "" && card.Beside > 0:
			by = append(by, fmt.Sprintf("%s on %s", runs(card.Beside), s.id))
		default:
			return nil // it can start on this worker
		}
	}
	by, more := some(by, mostNamed)
	if more > 0 {
		by = append(by, fmt.Sprintf("%d more", more))
	}
	return &WaitingFor{Reason: WaitsSuspect, RunID: Text(able[0].card.Suspect), Worker: Text(able[0].id),
		Text: fmt.Sprintf("it has crashed %s, and %s; the place is taken by %s", many(record.Crashes, "once", "%d times"), rule, strings.Join(by, ", "))}
}

const mostNamed = 5 // runs that a sentence names

func runs(n int) string { return many(n, "1 run", "%d runs") }

// many returns one for 1, and any other number in a format.
func many(n int, one, format string) string {
	if n == 1 {
		return one
	}
	return fmt.Sprintf(format, n)
}

// serve returns the workers that start runs of a queue.
func (c *conditions) serve(queue string) []session {
	var serve []session
	for _, s := range c.sessions {
		if s.serves(queue) {
			serve = append(serve, s)
		}
	}
	return serve
}

// serves reports whether this is a worker that starts runs of a queue.
func (s session) serves(queue string) bool {
	_, serves := s.card.Queues[queue]
	return s.worker && serves && s.left > 0 && s.card.State != "draining"
}

func lacks(queue, what string) *WaitingFor {
	return &WaitingFor{Reason: WaitsHandler, Text: fmt.Sprintf("no worker %s, of those that serve its queue %s", what, queue)}
}

// unable returns why no worker starts the runs of a queue that were set aside for a need; nil if
// one does as soon as it has a free slot. Cards name handlers, but not the other things that
// workers may lack: no worker that was live then has these. A worker of an older build, for which
// the runs are pushed again, may have joined later.
func (c *conditions) unable(queue string, need ledger.Need) *WaitingFor {
	switch serve := c.serve(queue); {
	case need == "" || len(serve) == 0 || slices.Contains(c.paused, queue):
		return nil
	case need.Handler() == "" && slices.ContainsFunc(serve, func(s session) bool { return !s.card.Picks }):
		return nil
	case len(need.Keys()) > 0:
		return lacks(queue, fmt.Sprintf("knows the keys of its definition (%s)", strings.Join(need.Keys(), ", ")))
	case need.Handler() == "":
		return lacks(queue, "runs jobs of its kind, "+need.Work())
	case !slices.ContainsFunc(serve, func(s session) bool { return s.card.Has(need.Handler()) }):
		return lacks(queue, "has "+need.Work())
	}
	return nil
}

// Unable is a number of due runs that no worker can do.
type Unable struct {
	Queue string `json:"queue"`
	Runs  int    `json:"runs"`
	Why   string `json:"why"`
}

func (u Unable) String() string {
	return fmt.Sprintf("%s of queue %s: %s", runs(u.Runs), u.Queue, u.Why)
}

// Unable returns which due runs no worker can do, by queue and by need.
func (r *Reader) Unable(ctx context.Context) ([]Unable, error) {
	c, err := r.conditions(ctx)
	if err != nil {
		return nil, err
	}
	return r.unable(ctx, c)
}

func (r *Reader) unable(ctx context.Context, c *conditions) ([]Unable, error) {
	asides, err := r.book.Asides(ctx)
	if err != nil {
		return nil, err
	}
	var unable []Unable
	for _, aside := range asides {
		if w := c.unable(aside.Queue, aside.Need); w != nil {
			unable = append(unable, Unable{aside.Queue, aside.Runs, w.Text})
		}
	}
	return unable, nil
}

// ExplainRun describes what happened to a run, whatever its trigger, and why it does not run, if it
// does not.
func (r *Reader) ExplainRun(ctx context.Context, id jobs.RunID) (*Explanation, error) {
	record, err := r.book.FindRecord(ctx, id)
	if err != nil {
		return nil, err
	}
	now, err := r.now(ctx)
	if err != nil {
		return nil, err
	}
	waits, err := r.waitingFor(ctx, record)
	if err != nil {
		return nil, err
	}
	s := &explainer{zone: time.UTC, now: now, record: record, waits: waits}
	s.e = &Explanation{Job: record.Job, Tick: TickTime{record.Tick}, RunID: Text(id), Outcome: Text(outcomeOf(record)), Steps: []Step{}, WaitingFor: waits}
	at := record.Tick
	if at.IsZero() {
		at = record.Created
	}
	s.e.Local = at.UTC().Format(localLayout)
	made := map[ledger.Trigger]string{ledger.TriggerSchedule: "for a tick of its schedule", ledger.TriggerEnqueue: "by a request", ledger.TriggerHand: "by hand"}[record.Trigger]
	if record.By != "" {
		made += ", by " + string(record.By)
	}
	if record.Parent != "" {
		made += ", from " + string(record.Parent)
	}
	if !record.Created.IsZero() {
		made += " at " + record.Created.UTC().Format("Mon 2006-01-02 15:04:05.000")
	}
	s.say(true, "made", "%s, for the queue %s", made, record.Queue)
	return s.ended(record), nil
}

const localLayout = "Mon 2006-01-02 15:04:05 MST"

// Parked returns parked runs: failed ones that cannot be moved to their job's history. It looks at
// a thousand outstanding runs; all reports that no more exist.
func (r *Reader) Parked(ctx context.Context) (parked []jobs.RunID, all bool, err error) {
	outstanding, err := r.book.Outstanding(ctx, "", countPending)
	if err != nil {
		return nil, false, err
	}
	for _, record := range outstanding {
		if record.Parked {
			parked = append(parked, record.ID)
		}
	}
	return parked, len(outstanding) < countPending, nil
}

// DueBy counts due runs by why they do not run: see [DueReasons]. It looks at the oldest ones of
// each queue; younger ones are behind these.
func (r *Reader) DueBy(ctx context.Context, snapshot *Snapshot) (map[WaitReason]int, error) {
	paused, err := r.book.Paused(ctx)
	if err != nil {
		return nil, err
	}
	c := conditionsOf(snapshot, paused)
	queues, err := r.book.DueQueues(ctx, lookQueues, lookRuns)
	if err != nil {
		return nil, err
	}
	names := make(map[string]bool)
	for _, queue := range queues {
		for _, record := range queue.Oldest {
			names[record.Job] = true
		}
	}
	active, err := r.book.ActiveJobs(ctx, slices.Sorted(maps.Keys(names)))
	if err != nil {
		return nil, err
	}
	count := make(map[WaitReason]int)
	for _, reason := range DueReasons() {
		count[reason] = 0
	}
	for _, queue := range queues {
		last := WaitsBehind // of those that are not looked at
		for i, record := range queue.Oldest {
			why := c.why(record, active[record.Job], i).Reason
			count[why]++
			if why == WaitsPaused || why == WaitsWorker {
				last = why // it holds for the whole queue
			}
		}
		count[last] += max(0, queue.Due-len(queue.Oldest))
	}
	unable, err := r.unable(ctx, c)
	if err != nil {
		return nil, err
	}
	more := -count[WaitsHandler]
	for _, u := range unable {
		more += u.Runs
	}
	// runs that were not looked at, and count as behind others so far
	more = max(0, min(more, count[WaitsBehind]))
	count[WaitsHandler] += more
	count[WaitsBehind] -= more
	return count, nil
}

const (
	lookQueues = 64 // queues for which due runs are counted
	lookRuns   = 20 // due runs of each that are looked at
)

// conditionsOf makes conditions of a snapshot that was already read.
func conditionsOf(s *Snapshot, paused []string) *conditions { return newConditions(paused, s.sessions) }
