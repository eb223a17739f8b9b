package worker

import (
	"context"
	"sync"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// suspect is the one place that a worker has for a run that has crashed before. If a run is what kills its workers, the
// others that it takes down with it become suspects as well. No two suspects share a worker while either may still be the
// cause, so a poison run does not take the same neighbors down again and again. The zero value is free.
type suspect struct {
	mu     sync.Mutex
	run    jobs.RunID // in the place; "" while it is free
	since  time.Time  // when run took it
	beside int        // runs that have left the place and are still running
}

// take takes the place for a run, if it is free. shares says that the run may run beside those that have left the place.
func (s *suspect) take(run jobs.RunID, shares bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != "" || s.beside > 0 && !shares {
		return false
	}
	s.run, s.since = run, time.Now()
	return true
}

// leave frees the place of a run that continues to run. It returns false when the run is not in the place.
func (s *suspect) leave(run jobs.RunID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != run {
		return false
	}
	s.run = ""
	s.beside++
	return true
}

// end frees what a run that took the place still occupies. Call it once for each successful take.
func (s *suspect) end(run jobs.RunID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == run {
		s.run = ""
	} else {
		s.beside--
	}
}

// shared reports whether runs that have left the place are still running.
func (s *suspect) shared() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.beside > 0
}

// now returns the run in the place, or "".
func (s *suspect) now() jobs.RunID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.run
}

const (
	putOffLeast = 20 * time.Millisecond
	putOffMost  = time.Second // less than an unconfirmed push may be old before the sweep repeats it
)

// pause returns how long a second suspect stays away before it is offered to all workers again, this one included: as
// long as the place has been taken. So it comes back soon when it finds another worker or this run is short, and each
// time later when it does not.
func (s *suspect) pause() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == "" {
		if s.beside > 0 {
			return putOffMost
		}
		return putOffLeast
	}
	return min(max(time.Since(s.since), putOffLeast), putOffMost)
}

// sharesAfter reports whether a run may run beside other suspects. It may do so after its first crash only, and only if
// another crash does not end it: the next one it then has to itself, or its neighbors do.
func sharesAfter(crashes int, job *jobs.Job) bool { return crashes == 1 && job.MaxCrashes > 2 }

// takePlace takes the suspects' place for a run that a claim found to have crashed before.
func (w *Worker) takePlace(run jobs.RunID, crashes int) bool {
	shares := false
	if crashes == 1 && w.suspect.shared() {
		call, cancel := context.WithTimeout(w.attempts, callLimit)
		job, err := w.ledger.Definition(call, run)
		cancel()
		shares = err == nil && sharesAfter(crashes, job)
	}
	return w.suspect.take(run, shares)
}

// leavePlace frees the suspects' place when the attempt of a claim has run for longer than those of the run that crashed.
// It returns when that has happened, or when ended is closed.
func (w *Worker) leavePlace(claimed *ledger.Claimed, ended <-chan struct{}) {
	run, began := claimed.Record.ID, time.Now()
	if !sharesAfter(claimed.Record.Crashes, claimed.Job) {
		return
	}
	call, cancel := context.WithTimeout(w.attempts, callLimit)
	record, _, err := w.ledger.Find(call, run)
	cancel()
	if err != nil {
		w.log.DebugContext(w.attempts, "the crashed attempts of a run are unknown, it keeps the suspects' place", "run", run, "error", err)
		return
	}
	timer := time.NewTimer(time.Until(began.Add(pastCrash(record.Attempts))))
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		if w.suspect.leave(run) {
			w.log.InfoContext(w.attempts, "a run that had crashed has run for longer now, others that have crashed may start here", "run", run)
		}
	}
}

// pastCrash returns how long an attempt must run to be past the point where earlier ones crashed: as long as the longest
// of these, and a quarter or at least a second more. The end of a crashed attempt is when it was noticed, so its length is
// never too short.
func pastCrash(attempts []ledger.AttemptRecord) time.Duration {
	var longest time.Duration
	for _, a := range attempts {
		if a.Outcome == ledger.CrashedAttempt {
			longest = max(longest, a.Finished.Sub(a.Started))
		}
	}
	return longest + max(longest/4, time.Second)
}
