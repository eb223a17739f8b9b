package scheduler

import (
	"context"
	"fmt"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/cronspec"
	"lockstep/scheduler/ledger"
)

// jobSet is a set of jobs and the state derived from it. The second part changes while the set is
// registered and used.
type jobSet struct {
	definitions []*ledger.Encoded
	own         map[string]*ledger.Encoded // by job
	digest      string                     // of all definitions
	registered  bool                       // all of them, since Redis has lost data the last time

	alarms  alarms             // of the jobs with a trigger
	drift   map[string]bool    // jobs with an active definition that differs from the set's
	pending map[string]*change // definitions that are about to become active with another trigger
	// the jobs in pending, and others, in the order in which they change
	changes  []string
	changed  int // definitions that have become active since that was last logged
	triggers triggers
}

// triggerKey is what two jobs with the same ticks have in common.
type triggerKey struct {
	schedule, timezone string
	every              time.Duration
}

func newJobSet(list []*jobs.Job) (*jobSet, error) {
	digest, definitions, err := ledger.Digest(list)
	if err != nil {
		return nil, err
	}
	triggers, err := triggersOf(list)
	if err != nil {
		return nil, err
	}
	set := &jobSet{definitions: definitions, own: make(map[string]*ledger.Encoded, len(list)), digest: digest, drift: make(map[string]bool),
		pending: make(map[string]*change), triggers: triggers}
	for i, job := range list {
		set.own[job.Name] = definitions[i]
		if trigger := triggers[keyOf(job)]; trigger != nil {
			set.alarms.add(&alarm{job: job, next: trigger.Next})
		}
	}
	return set, nil
}

// carried returns the definition of a job if the set has the one with this hash, else nil.
func (set *jobSet) carried(job, hash string) *jobs.Job {
	if own := set.own[job]; own != nil && own.Hash == hash {
		return own.Job
	}
	return nil
}

func keyOf(job *jobs.Job) triggerKey { return triggerKey{job.Schedule, job.Timezone, job.Every} }

// triggers are the schedules of jobs; nil for jobs without one. Schedules never change, so many
// jobs may share one.
type triggers map[triggerKey]*cronspec.Schedule

// of returns the schedule of a job, or nil for a job that has none.
func (t triggers) of(job *jobs.Job) (*cronspec.Schedule, error) {
	if known, ok := t[keyOf(job)]; ok {
		return known, nil
	}
	trigger, err := Trigger(job)
	if err == nil {
		t[keyOf(job)] = trigger
	}
	return trigger, err
}

func triggersOf(list []*jobs.Job) (triggers, error) {
	all := make(triggers)
	for _, job := range list {
		if _, err := all.of(job); err != nil {
			return nil, fmt.Errorf("job %s: %w", job.Name, err)
		}
	}
	return all, nil
}

// CheckJobs returns an error if a [Scheduler] cannot use the triggers of these jobs.
func CheckJobs(list []*jobs.Job) error {
	_, err := triggersOf(list)
	return err
}

// SetJobs replaces all jobs as soon as the new ones are registered; until then, and permanently if
// the error is not nil, the old ones stay. A job with a changed trigger switches to it as in a
// rolling deploy: the old trigger decides its ticks up to now. Existing runs keep the definition
// they were made with.
func (s *Scheduler) SetJobs(list []*jobs.Job) error {
	set, err := newJobSet(list)
	if err != nil {
		return err
	}
	s.next.Store(set)
	signal(s.changed)
	return nil
}

// takeOverJobs starts to replace the jobs by those of SetJobs. It registers all of them, including
// unchanged ones: from then on the worker carries them under another digest.
func (s *Scheduler) takeOverJobs(ctx context.Context) {
	set, r := s.next.Load(), s.registering
	if set == nil || r != nil && r.set == set {
		return
	}
	if r != nil && r.set != s.set {
		if r.set.digest == set.digest { // it is the same set
			s.next.CompareAndSwap(set, r.set)
			return
		}
		s.leaveConfig(ctx, r.set.digest) // the newer set also replaces this one
		s.o.Ledger.Carries(s.set.definitions)
	}
	if set.digest == s.set.digest {
		s.next.CompareAndSwap(set, nil) // unless newer ones exist already
		switch {
		case r == nil || r.set == s.set:
			return
		case s.set.registered:
			s.registering = nil
			return
		}
		set = s.set
	}
	s.begin(set, set.definitions)
}
