package scheduler

import (
	"testing"
	"time"

	"lockstep/jobs"
)

// reloads has a scheduler take over jobs.
func (f *returning) reloads(s *Scheduler, list ...*jobs.Job) {
	f.Helper()
	if err := s.SetJobs(list); err != nil {
		f.Fatal(err)
	}
	s.takeOverJobs(f.Context())
}

// TestAReloadBackToJobsThatAreNotRegisteredRegistersThem: two reloads come before the first jobs
// are registered, and the second one brings these back.
func TestAReloadBackToJobsThatAreNotRegisteredRegistersThem(t *testing.T) {
	job, other := returningJob("j", time.Hour), returningJob("other", time.Hour)
	f := newReturning(t, job)
	s := f.scheduler(f.ledger, job)
	registered := false
	s.o.Registered = func() { registered = true }
	f.reloads(s, other)
	f.reloads(s, job)
	f.deploys(s)
	if !registered || s.revision < 0 || s.set.own["j"] == nil {
		t.Errorf("registered %v, revision %d, jobs %v, want the first jobs registered", registered, s.revision, s.set.own)
	}
}

// TestAReloadKeepsThatRedisHasLostData: it comes while all jobs are about to be registered again,
// and so does the one after it, which brings the first jobs back. Polls must start from the
// revision after the loss.
func TestAReloadKeepsThatRedisHasLostData(t *testing.T) {
	job, other := returningJob("j", time.Hour), returningJob("other", time.Hour)
	for name, last := range map[string]*jobs.Job{"to other jobs": other, "back to the first jobs": job} {
		t.Run(name, func(t *testing.T) {
			f := newReturning(t, job)
			s := f.scheduler(f.ledger, job)
			f.deploys(s)
			s.revision = 1000
			s.beginAnew()
			f.reloads(s, other)
			if last == job {
				f.reloads(s, job)
			}
			f.deploys(s)
			if s.revision >= 1000 || s.set.own[last.Name] == nil {
				t.Errorf("revision %d, jobs %v, want %s, and polls to start anew", s.revision, s.set.own, last.Name)
			}
		})
	}
}
