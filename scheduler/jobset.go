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
	digest, err := ledger.Digest(list)
	if err != nil {
		return nil, err
	}
	set := &jobSet{jobs: list, own: make(map[string]definition, len(list)), digest: digest}
	triggers := make(map[triggerKey]*cronspec.Schedule) // never change, so that many jobs may share one
	for _, job := range list {
		hash, err := ledger.Hash(job)
		if err != nil {
			return nil, err
		}
		set.own[job.Name] = definition{job, hash}
		key := triggerKey{job.Schedule, job.Timezone, job.Every}
		trigger, known := triggers[key]
		if !known {
			if trigger, err = Trigger(job); err != nil {
				return nil, fmt.Errorf("job %s: %w", job.Name, err)
			}
			triggers[key] = trigger
		}
		if trigger != nil {
			set.alarms.add(&alarm{job: job, next: trigger.Next})
		}
	}
	return set, nil
}

// CheckJobs tells whether jobs have triggers that a [Scheduler] can use.
func CheckJobs(list []*jobs.Job) error {
	_, err := newJobSet(list)
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
	if set.digest != s.set.digest {
		if _, ok := s.register(ctx, now, set, set.jobs); !ok {
			return
		}
	}
	s.next.CompareAndSwap(set, nil) // unless there are newer ones already
}
