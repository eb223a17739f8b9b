package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// limits of a sweep: how much of each kind it does at a time, and when a delivery is looked after.
var limits = ledger.SweepLimits{Most: 200, Unconfirmed: 2 * time.Second, LookUp: 10 * time.Second}

// sweeps makes good, while this worker has duty, for what others left undone: twice a second, when a pause between
// attempts is over, and when woken.
func (s *Scheduler) sweeps(ctx context.Context) {
	timer := time.NewTimer(dutyEvery)
	defer timer.Stop()
	for {
		woken := false
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
			woken = true
		case <-timer.C:
		}
		wait := dutyEvery
		if woken || s.duty.Load() {
			wait = min(wait, s.sweep(ctx))
		}
		timer.Reset(wait)
	}
}

// sweep does one round and returns how long to wait until the next, if nothing happens before.
func (s *Scheduler) sweep(ctx context.Context) time.Duration {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	sweep, err := s.o.Ledger.Sweep(call, limits)
	if err != nil {
		s.failed(ctx, "sweep", err)
		return again
	}
	due := sweep.Due
	for _, dead := range sweep.Dead {
		runs, err := s.takeOver(call, dead)
		if err != nil {
			s.failed(ctx, "take over a run whose worker has gone", err)
		}
		due = append(due, runs...)
	}
	for _, late := range sweep.Late {
		runs, err := s.expire(call, late)
		if err != nil {
			s.failed(ctx, "end a run whose time is over", err)
		}
		due = append(due, runs...)
	}
	for _, run := range sweep.Broken {
		runs, err := s.refuse(call, ledger.Refusal{Run: run, Cause: ledger.ErrUnreadable})
		if err != nil {
			s.failed(ctx, "end a run that cannot be read", err)
		}
		due = append(due, runs...)
	}
	if len(due) > 0 {
		s.o.Deliver(ctx, due)
	}
	s.lookUp(ctx, sweep.LookUp)
	if sweep.More {
		return 0
	}
	if sweep.Next >= 0 {
		return max(sweep.Next, time.Millisecond)
	}
	return dutyEvery
}

// takeOver closes the attempt of a run whose session has ended.
func (s *Scheduler) takeOver(ctx context.Context, dead ledger.Dead) ([]ledger.Due, error) {
	job, err := s.o.Ledger.Definition(ctx, dead.Run)
	if errors.Is(err, ledger.ErrUnknown) || ledger.Final(err) { // unless it has ended meanwhile
		return s.refuse(ctx, ledger.Refusal{Run: dead.Run, Token: dead.Token, Cause: fmt.Errorf("its worker has died or lost its lease, and it cannot be run again: %w", err)})
	}
	if err != nil {
		return nil, err
	}
	due, closed, err := s.o.Ledger.Crash(ctx, dead, job)
	if ledger.Final(err) {
		return s.refuse(ctx, ledger.Refusal{Run: dead.Run, Token: dead.Token, Cause: fmt.Errorf("its worker has died or lost its lease, which could not be recorded: %w", err)})
	}
	if err != nil || !closed {
		return due, err
	}
	s.o.Logger.WarnContext(ctx, "worker gone, its run is taken over", "job", dead.Job, "run", dead.Run, "token", dead.Token)
	return due, nil
}

// refuse ends a run that cannot be worked with.
func (s *Scheduler) refuse(ctx context.Context, refusal ledger.Refusal) ([]ledger.Due, error) {
	outcome, due, err := s.o.Ledger.Refuse(ctx, refusal)
	if err == nil && outcome != ledger.RefusedNot {
		s.often.WarnContext(ctx, "a run that cannot be worked with was ended", "run", refusal.Run, "outcome", outcome, "error", refusal.Cause)
	}
	return due, err
}

// expire looks after a run that may not start any more, or has waited for its locks long enough.
func (s *Scheduler) expire(ctx context.Context, run jobs.RunID) ([]ledger.Due, error) {
	job, err := s.o.Ledger.Definition(ctx, run)
	if errors.Is(err, ledger.ErrUnknown) || ledger.Final(err) {
		job, err = new(jobs.Job), nil // it has ended meanwhile, and what is left of it goes; or it was parked as unreadable
	}
	if err != nil {
		return nil, err
	}
	return s.o.Ledger.Expire(ctx, run, job)
}

// lookUp asks after deliveries that have been in their queues for a while.
func (s *Scheduler) lookUp(ctx context.Context, deliveries []ledger.Due) {
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	var there, due []ledger.Due
	for _, delivery := range deliveries {
		alive, err := s.o.Delivered(call, delivery)
		if err != nil {
			s.failed(ctx, "look up deliveries", err)
			return
		}
		if alive {
			there = append(there, delivery)
			continue
		}
		runs, err := s.o.Ledger.Repush(call, delivery)
		if err != nil {
			s.failed(ctx, "repeat a lost delivery", err)
			if ledger.Final(err) {
				continue // the others need not wait for this one
			}
			return
		}
		due = append(due, runs...)
	}
	if err := s.o.Ledger.Confirm(call, there); err != nil {
		s.failed(ctx, "confirm deliveries", err)
	}
	if len(due) > 0 {
		s.o.Deliver(ctx, due)
	}
}
