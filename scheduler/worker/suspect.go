package worker

import (
	"context"
	"sync"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// suspects are the running runs of this worker that have crashed before. A worker has one place for
// a suspect ([ledger.Record.Suspect]): if a run kills its workers, the others that it takes down
// become suspects with it, and no two of them share a worker while either may still be the cause. A
// cleared run takes no place, unless another crash ends it, but it does not run beside one that
// must be alone. So a poison run does not take the same neighbors down again and again. The zero
// value is ready.
type suspects struct {
	mu     sync.Mutex
	place  *guest // nil while the place is free
	beside int    // runs that have crashed before and do not take the place
}

// A guest is an attempt at a run that has crashed before. It belongs to one attempt, not to the
// run: an earlier attempt with a handler that ignores its context may still run here.
type guest struct {
	run   jobs.RunID
	since time.Time // when it took the place; zero: it never did
	alone bool      // it runs beside no other run that has crashed
}

// admit lets a run that crashed before start here, or returns nil. One that needs the place gets it
// if it is free; any other one is admitted unless the run in the place must be alone.
func (s *suspects) admit(run jobs.RunID, isolation ledger.Isolation) *guest {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case isolation.Place && (s.place != nil || s.beside > 0 && isolation.Alone):
		return nil
	case isolation.Place:
		s.place = &guest{run, time.Now(), isolation.Alone}
		return s.place
	case s.place != nil && s.place.alone:
		return nil
	}
	s.beside++
	return &guest{run: run}
}

// leave frees the place of a run that continues to run. It returns false when the run is not in the
// place.
func (s *suspects) leave(g *guest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.place != g {
		return false
	}
	s.place = nil
	s.beside++
	return true
}

// end forgets a run that has ended. Call it once for each guest.
func (s *suspects) end(g *guest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.place == g {
		s.place = nil
	} else {
		s.beside--
	}
}

// now returns the run in the place, or "", whether it must be alone, and how many others here have
// crashed before.
func (s *suspects) now() (run jobs.RunID, alone bool, beside int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.place != nil {
		run, alone = s.place.run, s.place.alone
	}
	return run, alone, s.beside
}

const (
	putOffLeast = 20 * time.Millisecond
	putOffMost  = time.Second // less than the age at which the sweep repeats an unconfirmed push
)

// pause returns how long a run that was not admitted stays away before it is offered to all workers
// again, including this one: as long as the place has been taken. So the run comes back soon when
// another worker admits it or the run in the place is short, and each time later when not.
func (s *suspects) pause() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.place == nil {
		if s.beside > 0 {
			return putOffMost
		}
		return putOffLeast
	}
	return min(max(time.Since(s.place.since), putOffLeast), putOffMost)
}

// admit lets a run that crashed before, as its claim found, start here, or returns nil.
func (w *Worker) admit(run jobs.RunID, found *ledger.Claimed) *guest {
	call, cancel := context.WithTimeout(w.attempts, callLimit)
	defer cancel()
	job, err := w.ledger.Definition(call, run)
	if err != nil {
		job = nil
	}
	return w.suspects.admit(run, ledger.IsolationOf(job, found.Crashes, found.Suspected))
}

// leavePlace frees the suspects' place when the attempt of a claim has run for longer than the
// run's crashed attempts, if the run survives one more crash: the next suspect that starts beside
// it may take it down. It returns when that has happened, or when ended is closed.
func (w *Worker) leavePlace(g *guest, claimed *ledger.Claimed, ended <-chan struct{}) {
	run, began := claimed.Record.ID, time.Now()
	if g.since.IsZero() || !claimed.Job.Survives(claimed.Record.Crashes) {
		return
	}
	record := w.crashedAttempts(run, ended)
	if record == nil {
		return
	}
	timer := time.NewTimer(time.Until(began.Add(max(time.Second, ledger.PastCrash(record.Attempts)))))
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		if w.suspects.leave(g) {
			w.log.InfoContext(w.attempts, "a run has outlived its crashed attempts, other suspects may start here", "run", run)
		}
	}
}

// crashedAttempts reads the record of a run that has crashed, again and again until Redis replies.
// It returns nil when the attempt has ended first, or the drain ends it.
func (w *Worker) crashedAttempts(run jobs.RunID, ended <-chan struct{}) *ledger.Record {
	var record *ledger.Record
	_ = ledger.Insist(func() (done bool, err error) {
		call, cancel := context.WithTimeout(w.attempts, callLimit)
		defer cancel()
		if record, _, err = w.ledger.Find(call, run); err != nil {
			w.often.WarnContext(w.attempts, "could not read the crashed attempts of a run, which keeps the suspects' place; will retry",
				"call", "crashed attempts", "run", run, "error", err)
		}
		return err == nil, err
	}, ended, w.attempts.Done())
	return record // nil with an error
}
