package locks

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/locks/bootclock"
	"lockstep/locks/redistest"
)

// steppedClock is the clock of a machine that sleeps, or on which the wall clock is set.
type steppedClock struct {
	wall atomic.Int64 // ns by which the wall clock was set
	boot atomic.Int64 // ns that only the boot clock counted
}

func (c *steppedClock) clock() *clock {
	return &clock{
		now:  time.Now,
		boot: func() time.Duration { return bootclock.Now() + time.Duration(c.boot.Load()) },
		wall: func() time.Time { return time.Now().Add(time.Duration(c.wall.Load())) },
	}
}

// TestContextEndsBeforeTheNextGrant cuts holders off from Redis, in many ways and at random
// moments, while the clocks of their machines are set. In every trial their work must end before
// another client is granted the lock.
func TestContextEndsBeforeTheNextGrant(t *testing.T) {
	t.Parallel()
	silent := redistest.Faults{DropRequests: true, DropReplies: true}
	for _, way := range []struct {
		name   string
		before redistest.Faults // until the silence
		faults redistest.Faults
		step   func(c *steppedClock)
	}{
		{"silence", redistest.Faults{}, silent, nil},
		{"only requests are lost", redistest.Faults{}, redistest.Faults{DropRequests: true}, nil},
		{"only replies are lost", redistest.Faults{}, redistest.Faults{DropReplies: true}, nil},
		{"replies are held back", redistest.Faults{}, redistest.Faults{HoldReplies: true}, nil},
		{"silence after slowness", redistest.Faults{ReplyDelay: 120 * time.Millisecond, ReplyJitter: 100 * time.Millisecond}, silent, nil},
		{"slower and slower", redistest.Faults{ReplyDelay: 200 * time.Millisecond}, redistest.Faults{ReplyDelay: time.Second}, nil},
		{"set forward", redistest.Faults{}, silent, func(c *steppedClock) { c.wall.Store(int64(time.Hour)) }},
		{"set back", redistest.Faults{}, silent, func(c *steppedClock) { c.wall.Store(-int64(time.Hour)) }},
		{"slept", redistest.Faults{}, silent, func(c *steppedClock) { c.boot.Store(int64(time.Minute)) }},
		{"set back, with a network", redistest.Faults{}, redistest.Faults{}, func(c *steppedClock) { c.wall.Store(-int64(time.Hour)) }},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var least time.Duration
			for range min(soak(), 50) {
				var trials sync.WaitGroup
				for trial := range 5 {
					trials.Go(func() {
						margin, err := cutOffTrial(t, trial, way.before, way.faults, way.step)
						if err != nil {
							t.Error(err)
						}
						mu.Lock()
						defer mu.Unlock()
						if least == 0 || margin < least {
							least = margin
						}
					})
				}
				trials.Wait()
			}
			t.Logf("the context ended %s before the next grant, at the least", least.Round(time.Millisecond))
		})
	}
}

// cutOffTrial returns how long before the next grant the last holder was seen at work.
func cutOffTrial(t *testing.T, trial int, before, faults redistest.Faults, step func(*steppedClock)) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	server, ns := redistest.Shared(t), redistest.Namespace(t)
	p, err := redistest.NewProxy(ctx, "unix", server.RedisOptions().Addr)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	clock := new(steppedClock)
	var c *Client
	for c == nil { // a busy machine may take longer than one command may
		if c, err = Open(ctx, p.Client(t), Options{Namespace: ns, Name: "cut", Lease: minLease, clock: clock.clock()}); ctx.Err() != nil {
			return 0, err
		}
	}
	defer func() { closeSoon(t, c) }()
	direct := opened(t, server.Client(t), ns)
	hold, err := c.Acquire(ctx, Exclusive("a"))
	if err != nil {
		return 0, err
	}
	var working sync.WaitGroup
	var worked time.Time // the last time after which the context was seen alive
	working.Go(func() {
		for {
			at := time.Now()
			if hold.Context().Err() != nil {
				return
			}
			worked = at
			time.Sleep(time.Millisecond)
		}
	})
	p.Set(before)
	// Trials differ in the moment between two renewals.
	time.Sleep(minLease/2 + time.Duration(trial)*150*time.Millisecond)
	p.Set(faults)
	if step != nil {
		step(clock)
	}
	// Only the clock is at fault: the session is renewed, or ends.
	if !faults.DropRequests && !faults.DropReplies && !faults.HoldReplies && faults.ReplyDelay == 0 {
		time.Sleep(2 * minLease)
		if hold.Context().Err() == nil {
			if err := hold.Release(); err != nil {
				return 0, err
			}
		}
	}
	next, err := direct.Acquire(ctx, Exclusive("a"))
	if err != nil {
		return 0, err
	}
	granted := time.Now()
	working.Wait()
	p.Set(redistest.Faults{})
	p.Cut()
	if !worked.Before(granted) {
		return 0, fmt.Errorf("trial %d: at work %s after the next grant", trial, worked.Sub(granted))
	}
	return granted.Sub(worked), next.Release()
}

// TestAStepOfTheWallClockEndsNoWork: Redis replies, so the lease is valid, and the limits of a hold
// are counted by the other clocks.
func TestAStepOfTheWallClockEndsNoWork(t *testing.T) {
	t.Parallel()
	for _, step := range []time.Duration{8 * time.Second, time.Hour, -time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			t.Parallel()
			clock := new(steppedClock)
			ns := redistest.Namespace(t)
			c, err := Open(t.Context(), redistest.Client(t), Options{Namespace: ns, Name: "stepped", Lease: quick, clock: clock.clock()})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { closeSoon(t, c) }()
			plain, err := c.Acquire(t.Context(), Exclusive("plain"))
			if err != nil {
				t.Fatal(err)
			}
			limited, err := c.Acquire(t.Context(), Exclusive("limited"), MaxHold(30*time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			clock.wall.Store(int64(step))
			timer := time.NewTimer(2 * minLease)
			defer timer.Stop()
			select {
			case <-plain.Context().Done():
				t.Errorf("the work ended: %v", context.Cause(plain.Context()))
			case <-limited.Context().Done():
				t.Errorf("the work with a limit ended: %v", context.Cause(limited.Context()))
			case <-timer.C:
			}
			for _, hold := range []*Hold{plain, limited} {
				if err := hold.Release(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func closeSoon(t *testing.T, c *Client) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Second)
	defer cancel()
	_ = c.Close(ctx)
}
