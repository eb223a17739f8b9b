package scheduler

import (
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
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

// TestAnAbandonedReloadKeepsTheOrderOfTheJobs: a reload begins to register its jobs, and the next
// one brings back those before. When these return from an absence, they must not take back what was
// deployed meanwhile. The abandoned ones are new again if a reload brings them.
func TestAnAbandonedReloadKeepsTheOrderOfTheJobs(t *testing.T) {
	job := returningJob("j", time.Hour)
	reloaded, newer := *job, *job
	reloaded.Description, newer.Description = "reloaded", "newer"
	f := newReturning(t, job)
	own := f.newLedger(f.rdb)
	own.Remember()
	s := f.scheduler(own, job)
	f.deploys(s)
	registers := func(l *ledger.Ledger, digest string, job *jobs.Job, want ledger.Standing) {
		t.Helper()
		registered, err := l.Register(t.Context(), digest, []*jobs.Job{job})
		if err != nil {
			t.Fatal(err)
		}
		if got := registered.Jobs["j"].Standing; got != want {
			t.Errorf("the definition %q is %s, want %s", job.Description, got, want)
		}
	}
	f.reloads(s, &reloaded)
	abandoned := s.registering.set.digest
	registers(own, abandoned, &reloaded, ledger.StandingActive) // as its first batch does
	f.reloads(s, job)
	registers(f.ledger, "newer", &newer, ledger.StandingActive)
	long := time.Now().Add(-ledger.GoneAfter - time.Minute).UnixMilli()
	if err := f.rdb.HSet(t.Context(), f.key("ledger"), "config:"+s.set.digest, long, "config:"+abandoned, long).Err(); err != nil {
		t.Fatal(err)
	}
	registers(f.ledger, "newer", &newer, ledger.StandingActive)

	registers(own, s.set.digest, job, ledger.StandingDrifted)
	registers(f.ledger, "newer", &newer, ledger.StandingActive)
	registers(own, abandoned, &reloaded, ledger.StandingActive)
}
