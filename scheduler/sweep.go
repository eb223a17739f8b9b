package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
)

const (
	sweepMost   = 200                   // entries of each kind in one sweep
	sweepGroup  = 50                    // runs that a sweep ends or hands back together
	unconfirmed = 2 * time.Second       // after which a push that was not confirmed is repeated
	roomPause   = 20 * time.Millisecond // until a sweep looks for room for pushes again
	// until the end of a run that Redis has refused is tried again
	refusedPause = time.Minute

	// between two looks at what sessions have fetched, however often the sweep is woken
	fetchedLeast = 50 * time.Millisecond

	// between two looks for lists that dead senders have left, and for how long such a list has
	// been staged: a living sender is sooner done. The worker on duty may be of a build from before
	// such lists; the others wait for it this many times as long
	listsEvery = 5 * time.Second
	listsLeast = 10 * time.Second
	listsWait  = 3

	lookUpAfter = 2 * time.Second // after which a confirmed delivery is looked up in its queue
	// deliveries that are looked up together: at a round trip of 10 ms, pages of this size get
	// through 1,000,000 of them within lookUpPass
	lookUpPage = 1000
	// between two looks, if one takes longer than dutyEvery
	lookUpPause = 10 * time.Millisecond
	// deliveries that are looked up every dutyEvery, if that many exist
	lookUpLeast = 2000
	lookUpPass  = time.Minute // within which a larger backlog is looked up once
)

// Reasons for which a delivery is pushed again, as the log and [Options].OnRepeated have them.
const (
	Unconfirmed = "unconfirmed" // its push was not confirmed in time
	Lost        = "lost"        // its queue no longer has it
	// a worker had fetched it, and its session ended before the claim
	SessionEnded = "session_ended"
)

// Reasons lists all of them.
var Reasons = []string{Unconfirmed, Lost, SessionEnded}

// repeated logs and counts deliveries that are pushed again.
func (s *Scheduler) repeated(ctx context.Context, reason string, n int) {
	if n == 0 {
		return
	}
	s.againLog.WarnContext(ctx, "deliveries are pushed again", "reason", reason, "deliveries", n, "since_start", s.againCount[reason].Add(int64(n)))
	if s.o.OnRepeated != nil {
		s.o.OnRepeated(reason, n)
	}
}

// sweeps repairs, while this worker has duty, what others left undone: twice a second, when a pause
// between attempts is over, and when woken.
func (s *Scheduler) sweeps(ctx context.Context) {
	timer := time.NewTimer(dutyEvery)
	defer timer.Stop()
	var looked time.Time // time of the last look at what sessions have fetched
	// a wake-up may be for the end of a session, and its fetches were not looked at since
	asked := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
			asked = true
		case <-timer.C:
		}
		wait := dutyEvery
		if asked || s.duty.Load() {
			wait = min(wait, s.sweep(ctx))
			every := dutyEvery
			if asked {
				every = fetchedLeast
			}
			if left := every - time.Since(looked); left > 0 {
				wait = min(wait, left)
			} else {
				looked, asked = time.Now(), false
				s.sweepFetched(ctx)
			}
		}
		timer.Reset(wait)
	}
}

// sweep does one round and returns how long to wait until the next, unless it is woken earlier.
func (s *Scheduler) sweep(ctx context.Context) time.Duration {
	call, cancel := context.WithTimeout(ctx, callLimit)
	sweep, err := s.o.Ledger.Sweep(call, ledger.SweepLimits{Most: sweepMost, Unconfirmed: unconfirmed, Room: s.o.Pushes.Room, Pending: s.o.Pushes.Pending})
	cancel()
	if err != nil {
		s.failed(ctx, "sweep", err)
		return again
	}
	s.repeated(ctx, Unconfirmed, sweep.Repeated)
	// These do not wait for the rest of the round: some were offered their locks, for a moment.
	if len(sweep.Due) > 0 {
		s.o.Deliver(ctx, sweep.Due)
	}
	done := inGroups(ctx, s, sweep.Dead, s.takeOver)
	done = inGroups(ctx, s, sweep.Late, s.expire) && done
	done = inGroups(ctx, s, sweep.Broken, s.refuseBroken) && done
	if sweep.More {
		switch {
		case !done: // the same ones would be found at once
			return again
		case s.o.Pushes.Room() == 0:
			return roomPause
		}
		return 0
	}
	if sweep.Next >= 0 {
		return max(sweep.Next, time.Millisecond)
	}
	return dutyEvery
}

// inGroups handles what a sweep has found in groups, each in a few round trips and with a time
// limit of its own, and delivers the runs that become due thereby. It returns false if a call
// failed, and then stops if the time of a group was over.
func inGroups[T any](ctx context.Context, s *Scheduler, all []T, handle func(ctx context.Context, some []T) (due []ledger.Due, ok bool)) bool {
	done := true
	for some := range slices.Chunk(all, sweepGroup) {
		began := time.Now()
		due, ok := handle(ctx, some)
		if len(due) > 0 {
			s.o.Deliver(ctx, due)
		}
		if done = done && ok; time.Since(began) >= callLimit {
			return false
		}
	}
	return done
}

// takeOver closes attempts after their sessions have ended.
func (s *Scheduler) takeOver(ctx context.Context, dead []ledger.Dead) (due []ledger.Due, ok bool) {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	runs := make([]jobs.RunID, len(dead))
	for i, d := range dead {
		runs[i] = d.Run
	}
	ok = true
	failed := func(err error) {
		s.failed(ctx, "take over a run of a lost worker", err)
		ok = false
	}
	refuse := func(d ledger.Dead, cause error) {
		freed, err := s.refuse(call, ledger.Refusal{Run: d.Run, Token: d.Token, Cause: cause})
		if err != nil {
			failed(err)
		}
		due = append(due, freed...)
	}
	var closings []ledger.Closing
	for i, d := range s.o.Ledger.Definitions(call, runs) {
		switch {
		case d.Err == nil:
			closings = append(closings, ledger.Closing{Dead: dead[i], Job: d.Job})
		// unless it has ended in the meantime
		case errors.Is(d.Err, ledger.ErrUnknown) || ledger.Final(d.Err):
			refuse(dead[i], fmt.Errorf("its worker has died or lost its lease, and it cannot be run again: %w", d.Err))
		default:
			failed(d.Err)
		}
	}
	for i, closed := range s.o.Ledger.CrashAll(call, closings) {
		d := closings[i].Dead
		switch {
		case ledger.Final(closed.Err):
			refuse(d, fmt.Errorf("its worker has died or lost its lease, which could not be recorded: %w", closed.Err))
		case closed.Err != nil:
			failed(closed.Err)
		case closed.Closed != nil:
			s.o.Logger.WarnContext(ctx, "a run was taken over", "job", d.Job, "run", d.Run, "token", d.Token,
				"attempt", closed.Outcome, "state", closed.State)
			due = append(due, closed.Due...)
			s.o.Ledger.TraceEnd(call, s.o.Tracer, d.Run, d.Token)
		}
	}
	return due, ok
}

// refuse ends a run that cannot be processed.
func (s *Scheduler) refuse(ctx context.Context, refusal ledger.Refusal) ([]ledger.Due, error) {
	outcome, due, err := s.o.Ledger.Refuse(ctx, refusal)
	if err == nil && outcome != ledger.RefusalNone {
		s.often.WarnContext(ctx, "a run that cannot be processed was ended", "run", refusal.Run, "outcome", outcome, "error", refusal.Cause)
	}
	return due, err
}

// expire handles runs that must not start any more, or have waited too long for their locks. Runs
// whose end Redis refuses stay as they are, and are tried again later.
func (s *Scheduler) expire(ctx context.Context, late []jobs.RunID) (due []ledger.Due, ok bool) {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	ok = true
	failed := func(err error) {
		s.failed(ctx, "end a run whose time is over", err)
		ok = false
	}
	var expiries []ledger.Expiry
	for i, d := range s.o.Ledger.Definitions(call, late) {
		switch {
		case d.Err == nil:
			expiries = append(expiries, ledger.Expiry{Run: late[i], Job: d.Job})
		// it has ended in the meantime, and its remains are removed; or it was parked as unreadable
		case errors.Is(d.Err, ledger.ErrUnknown) || ledger.Final(d.Err):
			expiries = append(expiries, ledger.Expiry{Run: late[i], Job: new(jobs.Job)})
		default:
			failed(d.Err)
		}
	}
	var refused []jobs.RunID
	for i, expired := range s.o.Ledger.ExpireAll(call, expiries) {
		due = append(due, expired.Due...)
		if expired.Ended {
			s.o.Ledger.TraceEnd(call, s.o.Tracer, expiries[i].Run, 0)
		}
		if expired.Err != nil {
			failed(expired.Err)
		}
		if ledger.Final(expired.Err) {
			refused = append(refused, expiries[i].Run)
		}
	}
	if len(refused) > 0 {
		if err := s.o.Ledger.Postpone(call, refused, refusedPause); err != nil {
			failed(err)
		}
	}
	return due, ok
}

// refuseBroken ends runs with unreadable records.
func (s *Scheduler) refuseBroken(ctx context.Context, runs []jobs.RunID) (due []ledger.Due, ok bool) {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	ok = true
	for _, run := range runs {
		freed, err := s.refuse(call, ledger.Refusal{Run: run, Cause: ledger.ErrUnreadable})
		if err != nil {
			s.failed(ctx, "end a run that cannot be read", err)
			ok = false
		}
		due = append(due, freed...)
	}
	return due, ok
}

// lists records what is missing of atomic lists that dead senders have left.
func (s *Scheduler) lists(ctx context.Context) {
	for looked := time.Now(); sleep(ctx, listsEvery); {
		least := listsLeast
		if !s.duty.Load() {
			if least *= listsWait; time.Since(looked) < listsEvery*listsWait {
				continue
			}
		}
		looked = time.Now()
		call, cancel := context.WithTimeout(ctx, callLimit)
		due, err := s.o.Ledger.RecordStaged(call, least)
		cancel()
		if err != nil {
			s.failed(ctx, "record lists of requests that dead senders have left", err)
		}
		if len(due) > 0 {
			s.o.Deliver(ctx, due)
		}
	}
}

// sweepFetched pushes again what sessions had fetched and not yet claimed when they ended.
func (s *Scheduler) sweepFetched(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	fetched, err := s.o.Queue.Fetched(call)
	if err != nil {
		s.failed(ctx, "read what sessions have fetched", err)
		return
	}
	bySession := make(map[locks.SessionID][]queue.Fetch)
	for _, fetch := range fetched {
		bySession[locks.SessionID(fetch.Session)] = append(bySession[locks.SessionID(fetch.Session)], fetch)
	}
	if len(bySession) == 0 {
		return
	}
	ended, err := s.o.Ledger.Ended(call, slices.Collect(maps.Keys(bySession)))
	if err != nil {
		s.failed(ctx, "find ended sessions", err)
		return
	}
	for _, session := range ended {
		var lost []ledger.Due
		for _, fetch := range bySession[session] {
			lost = append(lost, fetch.Deliveries...)
		}
		// A run that was claimed, or is due under another n, stays as it is.
		if err := s.repush(call, SessionEnded, lost); err != nil {
			s.failed(ctx, "repeat what a session had fetched", err)
			continue // its records stay for the next time
		}
		if err := s.o.Queue.Forget(call, bySession[session]); err != nil {
			s.failed(ctx, "forget what a session had fetched", err)
		}
	}
}

// repush delivers runs again after their deliveries were lost.
func (s *Scheduler) repush(ctx context.Context, reason string, gone []ledger.Due) error {
	for some := range slices.Chunk(gone, sweepMost) {
		due, err := s.o.Ledger.Repush(ctx, some...)
		if err != nil {
			return err
		}
		for i := range due {
			// Lost deliveries may have been anywhere in their queues.
			due[i].PutBack = reason == SessionEnded
		}
		s.repeated(ctx, reason, len(due))
		if len(due) > 0 {
			s.o.Deliver(ctx, due)
		}
	}
	return nil
}

// lookUps looks, while this worker has duty, for deliveries that their queues have lost. It is a
// loop of its own, since a large backlog takes many calls.
func (s *Scheduler) lookUps(ctx context.Context) {
	last := time.Now()
	for wait := dutyEvery; sleep(ctx, wait); {
		began := time.Now()
		if s.duty.Load() {
			s.lookUp(ctx, began.Sub(last))
		}
		last, wait = began, max(lookUpPause, dutyEvery-time.Since(began))
	}
}

// lookUpMost returns how many of all deliveries to look up, this long after the last time: some
// thousands, or as many as necessary to get through a larger backlog in [lookUpPass].
func lookUpMost(all int, since time.Duration) int {
	return max(lookUpLeast, int(math.Ceil(float64(all)*float64(since)/float64(lookUpPass))))
}

// lookUp looks up the deliveries that have not been looked up for the longest time, a bounded
// number of them, this long after it was last called.
func (s *Scheduler) lookUp(ctx context.Context, since time.Duration) {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	for looked, most := 0, lookUpLeast; looked < most; {
		sent, err := s.o.Ledger.Sent(call, lookUpPage, lookUpAfter)
		if err != nil {
			s.failed(ctx, "list deliveries to look up", err)
			return
		}
		if due, _ := s.refuseBroken(call, sent.Broken); len(due) > 0 {
			s.o.Deliver(ctx, due)
		}
		if !s.lookUpSome(call, sent.LookUp) || len(sent.LookUp) < lookUpPage {
			return
		}
		looked += len(sent.LookUp)
		most = max(most, lookUpMost(sent.All, since))
	}
}

// lookUpSome looks up some deliveries. It returns false when the next page must wait.
func (s *Scheduler) lookUpSome(ctx context.Context, sent []ledger.Due) bool {
	if len(sent) == 0 {
		return false
	}
	alive, err := s.o.Queue.AllAlive(ctx, sent)
	if err != nil {
		s.failed(ctx, "look up deliveries", err)
		return false
	}
	var there, gone []ledger.Due
	for i, d := range sent {
		if alive[i] {
			there = append(there, d)
		} else {
			gone = append(gone, d)
		}
	}
	if err := s.o.Ledger.Confirm(ctx, there); err != nil {
		s.failed(ctx, "confirm deliveries", err)
		return false
	}
	some := gone[:min(len(gone), s.o.Pushes.Room())]
	if err := s.repush(ctx, Lost, some); err != nil {
		s.failed(ctx, "repeat lost deliveries", err)
		return false
	}
	return len(some) == len(gone)
}
