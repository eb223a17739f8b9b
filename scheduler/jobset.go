package scheduler

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/cronspec"
)

// jobSet is a set of jobs with an alarm for each that has a trigger.
type jobSet struct {
	jobs   []*jobs.Job
	alarms alarms
}

// triggerKey is what two jobs with the same ticks have in common.
type triggerKey struct {
	schedule, timezone string
	every              time.Duration
}

func newJobSet(list []*jobs.Job) (*jobSet, error) {
	set := &jobSet{jobs: list}
	triggers := make(map[triggerKey]*cronspec.Schedule) // never change, so that many jobs may share one
	for _, job := range list {
		key := triggerKey{job.Schedule, job.Timezone, job.Every}
		trigger, known := triggers[key]
		if !known {
			var err error
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

// SetJobs replaces all jobs, as soon as those that changed are registered; until then, and for ever if the error is not
// nil, the old ones stay. A job goes on from its cursor. Runs that are there keep the definition they were made with.
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

// takeOverJobs puts what SetJobs gave in the place of the jobs. While Redis does not answer it is tried again with each
// round of ticks.
func (s *Scheduler) takeOverJobs(ctx context.Context, now *serverTime) {
	set := s.next.Load()
	if set == nil {
		return
	}
	old := make(map[string]*jobs.Job, len(s.o.Jobs))
	for _, job := range s.o.Jobs {
		old[job.Name] = job
	}
	var changed []*jobs.Job
	for _, job := range set.jobs {
		if !reflect.DeepEqual(old[job.Name], job) {
			changed = append(changed, job)
		}
	}
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	registered, err := s.o.Ledger.Register(call, changed)
	if err != nil {
		s.failed(ctx, "register jobs", err)
		return
	}
	now.set(registered.Now)
	for job, one := range s.alarms.byName {
		set.alarms.move(job, one.cursor)
	}
	for job, cursor := range registered.Cursors {
		set.alarms.move(job, cursor)
	}
	s.o.Jobs, s.alarms = set.jobs, set.alarms
	s.next.CompareAndSwap(set, nil) // unless there are newer ones already
}
