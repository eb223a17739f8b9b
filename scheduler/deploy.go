package scheduler

import (
	"context"
	"slices"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// One step of a deploy registers or activates this many definitions, which are several batches, so
// that while Redis works on one batch the next is prepared and the reply to the last is read. Polls
// and ticks come after each step.
// The batches of one step of a deploy overlap, so longer steps take less time in all. But ticks and
// polls wait for the end of a step.
const (
	stepLeast = 4                      // batches
	stepMost  = 16                     // batches
	stepTime  = 300 * time.Millisecond // after a step that took longer, the next one is short

	settleStep = 100 // absences of jobs that are settled together
)

// registration registers definitions with the ledger, batch by batch, with ticks and polls in
// between, however many definitions there are.
type registration struct {
	// the set of these definitions; it becomes the scheduler's once a whole one is registered
	set     *jobSet
	whole   bool              // the definitions are the whole set, not a part
	anew    bool              // Redis had lost data: polls start from what this registration reads
	left    []*ledger.Encoded // not registered yet
	session locks.SessionID   // with which it began
	asked   bool              // some definitions have been registered
}

// change is a definition that becomes active in place of one with another trigger. The old trigger
// decides the ticks up to then.
type change struct {
	job    *jobs.Job
	own    *ledger.Encoded // job, encoded
	old    *jobs.Job
	hash   string                    // of old
	next   func(time.Time) time.Time // by the old trigger; nil: it has none
	cursor time.Time
	at     time.Time // the first tick by the old trigger; zero: none
}

// move sets the cursor that the change begins from.
func (c *change) move(cursor time.Time) {
	c.cursor, c.at = cursor, time.Time{}
	if c.next != nil {
		c.at = c.next(cursor)
	}
}

// begin starts to register some or all definitions of a set.
func (s *Scheduler) begin(set *jobSet, definitions []*ledger.Encoded) {
	r := s.registering
	anew := r != nil && r.anew && !r.asked // polls still start from before the loss
	s.registering = &registration{set: set, whole: len(definitions) == len(set.definitions), anew: anew, left: definitions, session: s.o.Session()}
}

// beginAgain starts to register everything again: the ledger has dropped some of it.
func (s *Scheduler) beginAgain() {
	set := s.set
	set.registered = false
	if r := s.registering; r != nil && r.whole {
		set = r.set
	}
	s.begin(set, set.definitions)
}

// beginAnew is beginAgain after a loss of data.
func (s *Scheduler) beginAnew() {
	s.beginAgain()
	s.registering.anew = true
}

// deploy does the next step for a new set of jobs or a change of the active definitions: it
// registers a batch of definitions, or activates a batch, or settles some absences of jobs that
// returned. It returns how long to wait until the next step; an hour when nothing is left.
func (s *Scheduler) deploy(ctx context.Context, now *serverTime) time.Duration {
	if wait := time.Until(s.deployAfter); wait > 0 {
		return wait
	}
	ok := true
	began := time.Now()
	if s.registering != nil {
		ok = s.register(ctx, now)
	} else if len(s.set.changes) > 0 {
		ok = s.activate(ctx, now.told)
	} else if len(s.absences) > 0 {
		ok = s.settle(ctx)
	}
	switch took := time.Since(began); {
	case took > stepTime:
		s.step = stepLeast
	case took < stepTime/2:
		s.step = min(2*s.step, stepMost)
	}
	switch {
	case !ok:
		s.deployAfter = time.Now().Add(again)
		return again
	case s.registering == nil && len(s.set.changes) == 0 && len(s.absences) == 0:
		return time.Hour
	}
	return 0
}

// register registers the next batch, and sets the alarms by the standing of its definitions. After
// the last batch the set replaces the scheduler's. It returns false after an error, unless nothing
// is left all the same.
func (s *Scheduler) register(ctx context.Context, now *serverTime) (ok bool) {
	r := s.registering
	some := r.left[:min(len(r.left), s.step*ledger.RegisterBatch)]
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	// the old definitions are mostly those of the set before
	registered, err := s.o.Ledger.RegisterEncoded(call, r.set.digest, some, r.whole && len(some) == len(r.left), s.set.carried)
	if err != nil {
		s.failed(ctx, "register jobs", err)
		if len(registered.Jobs) == 0 {
			return false
		}
	}
	if err == nil || now.told.IsZero() { // with an error, the last reply may be seconds old
		now.set(registered.Now)
	}
	if s.carries.IsZero() {
		s.carries = registered.Now
	}
	if !r.asked && (s.revision < 0 || r.anew) {
		s.revision = registered.Revision
	}
	r.asked = true
	for name, standing := range registered.Jobs {
		if standing.Standing == ledger.StandingChange {
			s.willChange(ctx, r.set, name, standing)
		} else {
			r.set.resolve(name)
		}
		if standing.Absence != nil {
			s.absences[name] = standing.Absence
		}
		r.set.alarms.move(name, standing.Cursor)
		s.stands(ctx, r.set, name, standing.Standing == ledger.StandingActive)
	}
	r.left = r.left[len(some):]
	if err != nil { // a slow Redis may never answer all of a step: the next one sends the others
		others := slices.DeleteFunc(slices.Clone(some), func(e *ledger.Encoded) bool {
			_, ok := registered.Jobs[e.Job.Name]
			return ok
		})
		r.left = append(others, r.left...)
	}
	if len(r.left) > 0 {
		return err == nil
	}
	s.registering = nil
	if r.whole {
		if registered.Now.After(s.carries) {
			s.carries = registered.Now
		}
		r.set.registered = true
		s.under = r.session
		if s.o.Registered != nil {
			s.o.Registered()
			s.o.Registered = nil
		}
	}
	s.replace(ctx, r.set)
	s.set.sortChanges()
	s.tellDrift(ctx)
	return true
}

// replace makes a registered set the scheduler's.
func (s *Scheduler) replace(ctx context.Context, set *jobSet) {
	if set == s.set {
		return
	}
	before := s.set.digest
	s.set = set
	s.o.Ledger.Carries(set.definitions)
	s.next.CompareAndSwap(set, nil) // unless newer ones exist already
	s.leaveConfig(ctx, before)
}

// leaveConfig reports to the ledger that this worker no longer carries the config with a digest.
func (s *Scheduler) leaveConfig(ctx context.Context, digest string) {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if err := s.o.Ledger.Leave(call, s.o.Session(), digest, 0); err != nil {
		s.o.Logger.DebugContext(ctx, "the old definitions seem carried for a while", "error", err)
	}
}

// willChange notes that a definition becomes active as soon as the ticks by the old trigger are
// decided.
func (s *Scheduler) willChange(ctx context.Context, set *jobSet, name string, standing ledger.RegisteredJob) {
	trigger, err := set.triggers.of(standing.Old)
	// another worker could compute it: this machine's zone files lack what others have
	if err != nil {
		s.often.ErrorContext(ctx, "the old trigger of a job cannot be computed here, another worker must change it", "job", name, "error", err)
		set.resolve(name)
		s.unsure = true
		return
	}
	own := set.own[name]
	c := &change{job: own.Job, own: own, old: standing.Old, hash: standing.OldHash}
	if trigger != nil {
		c.next = trigger.Next
	}
	c.move(standing.Cursor)
	if set.pending[name] == nil {
		set.changes = append(set.changes, name)
	}
	set.pending[name] = c
}

// resolve notes that no change of a definition is pending. Its text is not needed any more.
func (set *jobSet) resolve(name string) {
	delete(set.pending, name)
	set.own[name].Forget()
}

// sortChanges orders the changes by their next ticks by the old triggers, so that those ticks are
// as little late as possible.
func (set *jobSet) sortChanges() {
	set.changes = slices.DeleteFunc(set.changes, func(name string) bool { return set.pending[name] == nil })
	slices.SortStableFunc(set.changes, func(a, b string) int { return compareTicks(set.pending[a].at, set.pending[b].at) })
}

// takeChanges returns the next changes, and the ticks to decide first: at most a batch of each,
// except that the ticks of one job stay together.
func (s *Scheduler) takeChanges(ctx context.Context, now time.Time) (changes []*change, decisions []ledger.Decision) {
	for len(changes) < s.step*ledger.ActivateBatch && len(decisions) < batch && len(s.set.changes) > 0 {
		name := s.set.changes[0]
		s.set.changes = s.set.changes[1:]
		c := s.set.pending[name]
		if c == nil {
			continue
		}
		delete(s.set.pending, name)
		some, ok := s.beforeChange(ctx, c, now)
		if !ok {
			continue
		}
		changes, decisions = append(changes, c), append(decisions, some...)
	}
	return changes, decisions
}

// beforeChange decides the ticks of a job up to now by its old trigger. If the old definition has
// keys that this build does not know, beforeChange leaves the ticks to a worker that knows them, as
// long as one may still come, and returns false. After that it records them as missed, at the times
// that the known keys give.
func (s *Scheduler) beforeChange(ctx context.Context, c *change, now time.Time) (decisions []ledger.Decision, ok bool) {
	if c.next != nil {
		decisions = decide(c.old, c.next, c.cursor, now, s.o.Session())
	}
	unknown := c.old.CheckKeys()
	if unknown == nil || len(decisions) == 0 {
		return decisions, true
	}
	if leave(decisions, now) {
		s.often.InfoContext(ctx, "ticks are left to a worker of a newer build", "job", c.job.Name, "error", unknown)
		s.unsure = true
		return nil, false
	}
	missAll(decisions, unknown)
	s.o.Logger.WarnContext(ctx, "no worker knows the old definition of a job: its ticks up to now are missed", "job", c.job.Name, "error", unknown)
	return decisions, true
}

// activate makes the next definitions active, each after the ticks of its job up to now were
// decided by the old trigger: for several jobs together. now is a time that the server reported. It
// returns false when none became active because a call failed, or must not be made yet.
func (s *Scheduler) activate(ctx context.Context, now time.Time) (ok bool) {
	changes, decisions := s.takeChanges(ctx, now)
	if len(changes) == 0 {
		return true
	}
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	failed := s.decideBefore(call, changes, decisions)
	var activations []ledger.Activation
	var sent []*change
	for _, c := range changes {
		if failed[c.job.Name] {
			continue
		}
		upto := now
		if c.cursor.After(upto) {
			upto = c.cursor
		}
		sent = append(sent, c)
		activations = append(activations, ledger.Activation{Job: c.job, From: c.old, Seen: c.cursor, Cursor: upto, Encoded: c.own, FromHash: c.hash})
	}
	active := 0
	for i, result := range s.o.Ledger.Activate(call, activations) {
		c := sent[i]
		switch {
		case result.Err != nil:
			s.failed(ctx, "change the trigger of a job", result.Err)
			s.retry(c)
		// another worker has decided ticks by the old trigger in the meantime
		case result.Moved && !result.Cursor.IsZero():
			c.move(result.Cursor)
			s.retry(c)
		case result.Early || result.Grace > 0:
			s.retry(c)
		case result.Moved || result.Inactive: // the next check for drift finds it again
			s.unsure = true
		default:
			c.own.Forget()
			s.set.alarms.move(c.job.Name, result.Cursor)
			s.stands(ctx, s.set, c.job.Name, true)
			active++
		}
	}
	s.set.changed += active
	if len(s.set.pending) == 0 || active == 0 {
		if s.set.changed > 0 {
			s.o.Logger.InfoContext(ctx, "triggers of jobs have changed", "jobs", s.set.changed, "left", len(s.set.pending))
		}
		s.set.changed = 0
	}
	s.tellDrift(ctx)
	return active > 0 || len(s.set.pending) == 0
}

// decideBefore records the ticks that precede changes and has their runs delivered. It moves the
// cursors of the changes, and returns the jobs with changes that must wait.
func (s *Scheduler) decideBefore(ctx context.Context, changes []*change, decisions []ledger.Decision) (failed map[string]bool) {
	byName := make(map[string]*change, len(changes))
	for _, c := range changes {
		byName[c.job.Name] = c
	}
	failed = make(map[string]bool)
	var due []ledger.Due
	began := time.Now()
	for i, created := range s.o.Ledger.Create(ctx, decisions) {
		s.traceMade(ctx, &decisions[i], &created, began)
		name := decisions[i].Job.Name
		c := byName[name]
		due = append(due, created.Due...)
		switch {
		case failed[name]:
			continue
		case created.Err != nil:
			s.failed(ctx, "create ticks", created.Err)
		case created.Moved && !created.Cursor.IsZero():
			c.move(created.Cursor)
		case created.Moved || created.Inactive: // the next check for drift finds it again
			failed[name], s.unsure = true, true
			continue
		case created.Early || created.Grace > 0 || created.More:
		default:
			c.move(created.Cursor)
			continue
		}
		failed[name] = true
		s.retry(c)
	}
	if len(due) > 0 {
		s.o.Deliver(ctx, due)
	}
	return failed
}

// retry puts a change back.
func (s *Scheduler) retry(c *change) {
	if s.set.pending[c.job.Name] == nil {
		s.set.changes = append(s.set.changes, c.job.Name)
	}
	s.set.pending[c.job.Name] = c
}

// moved applies what a poll reports about a job: to the set, and to one that is being registered. A
// job without a cursor was removed by a person. This worker was absent at that time, else it would
// have been refused. So for this worker the job has drifted, and is registered again.
func (s *Scheduler) moved(ctx context.Context, job string, moved ledger.Moved) {
	sets := []*jobSet{s.set}
	if s.registering != nil && s.registering.set != s.set {
		sets = append(sets, s.registering.set)
	}
	if _, ok := s.set.own[job]; ok && moved.Cursor.IsZero() {
		s.o.Logger.WarnContext(ctx, "a job was removed while this worker was absent: it is registered again and begins now", "job", job)
	}
	for _, set := range sets {
		set.alarms.move(job, moved.Cursor)
		own := set.own[job]
		if own == nil {
			continue
		}
		s.stands(ctx, set, job, moved.Active == own.Hash)
		if c := set.pending[job]; c != nil && (moved.Active == own.Hash || moved.Cursor.IsZero()) {
			set.resolve(job)
		} else if c != nil {
			c.move(moved.Cursor)
		}
	}
}

// settle has a line written for the ticks of some absences. It returns false when none could be
// settled.
func (s *Scheduler) settle(ctx context.Context) (ok bool) {
	var some []ledger.Settlement
	counted := 0
	for _, absence := range s.absences {
		trigger, err := s.set.triggers.of(absence.Old)
		line, ticks := absent(absence, trigger, err)
		some = append(some, ledger.Settlement{Absence: absence, Line: line, By: s.o.Session()})
		if counted += ticks; len(some) == settleStep || counted >= countMost {
			break
		}
	}
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	written, last := 0, ""
	for i, settled := range s.o.Ledger.Settle(call, some) {
		if settled.Err != nil {
			s.failed(ctx, "settle an absence", settled.Err)
			continue
		}
		job := some[i].Absence.Job
		delete(s.absences, job)
		ok = true
		if settled.Written {
			written, last = written+1, job
		}
	}
	if written > 0 {
		s.often.WarnContext(ctx, "ticks were missed because no worker carried their jobs", "jobs", written, "job", last)
	}
	return ok
}
