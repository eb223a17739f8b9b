package scheduler

import (
	"context"
	"fmt"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/cronspec"
	"lockstep/scheduler/ledger"
)

// jobSet is a set of jobs with what is made of them. Only its alarms change.
type jobSet struct {
	jobs   []*jobs.Job
	own    map[string]definition
	digest string // of all definitions
	alarms alarms // of the jobs with a trigger
}

// definition is a job as this worker has it.
type definition struct {
	job  *jobs.Job
	hash string
}

// triggerKey is what two jobs with the same ticks have in common.
type triggerKey struct {
	schedule, timezone string
	every              time.Duration
}

func newJobSet(list []*jobs.Job) (*jobSet, error) {
	digest, hashes, err := ledger.Digest(list)
	if err != nil {
		return nil, err
	}
	triggers, err := triggersOf(list)
	if err != nil {
		return nil, err
	}
	set := &jobSet{jobs: list, own: make(map[string]definition, len(list)), digest: digest}
	for _, job := range list {
		set.own[job.Name] = definition{job, hashes[job.Name]}
		if trigger := triggers[keyOf(job)]; trigger != nil {
			set.alarms.add(&alarm{job: job, next: trigger.Next})
		}
	}
	return set, nil
}

func keyOf(job *jobs.Job) triggerKey { return triggerKey{job.Schedule, job.Timezone, job.Every} }

// triggersOf returns the triggers of jobs. They never change, so that many jobs may share one. Nil: such jobs have none.
func triggersOf(list []*jobs.Job) (map[triggerKey]*cronspec.Schedule, error) {
	triggers := make(map[triggerKey]*cronspec.Schedule)
	for _, job := range list {
		if _, known := triggers[keyOf(job)]; known {
			continue
		}
		trigger, err := Trigger(job)
		if err != nil {
			return nil, fmt.Errorf("job %s: %w", job.Name, err)
		}
		triggers[keyOf(job)] = trigger
	}
	return triggers, nil
}

// CheckJobs tells whether jobs have triggers that a [Scheduler] can use.
func CheckJobs(list []*jobs.Job) error {
	_, err := triggersOf(list)
	return err
}

// SetJobs replaces all jobs, as soon as they are registered; until then, and for ever if the error is not nil, the old
// ones stay. A job whose trigger changes goes over to it as in a rolling deploy: its ticks up to now are decided by the
// old one. Runs that are there keep the definition they were made with.
func (s *Scheduler) SetJobs(list []*jobs.Job) error {
	set, err := newJobSet(list)
	if err != nil {
		return err
	}
	s.next.Store(set)
	select {
	case s.changed <- struct{}{}:
	default:
	}
	return nil
}

// takeOverJobs puts what SetJobs gave in the place of the jobs. All of it is registered, also what has not changed: from
// now on it is carried under another digest. While Redis does not answer it is tried again with each round of ticks.
func (s *Scheduler) takeOverJobs(ctx context.Context, now *serverTime) {
	set := s.next.Load()
	if set == nil {
		return
	}
	if before := s.set.digest; set.digest != before {
		if _, ok := s.register(ctx, now, set, set.jobs); !ok {
			return
		}
		call, cancel := context.WithTimeout(ctx, callLimit)
		if err := s.o.Ledger.Leave(call, before); err != nil {
			s.o.Logger.DebugContext(ctx, "the old definitions seem carried for a while", "error", err)
		}
		cancel()
	}
	s.next.CompareAndSwap(set, nil) // unless there are newer ones already
}
