package locks

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A bubble is a watchdog in fake time, over a network that a test breaks.
type bubble struct {
	*watchdog
	start time.Time
	boot  func() time.Duration

	stepped atomic.Int64 // ns by which the wall clock was set

	mu       sync.Mutex
	outage   error         // of every renewal
	hang     bool          // renewals get no answer until their context ends
	latency  time.Duration // of every renewal
	sent     []time.Duration
	cutAt    time.Duration
	endAt    time.Duration
	cutCause error
	endCause error
}

func newBubble(lease time.Duration) *bubble {
	b := &bubble{start: time.Now(), cutAt: -1, endAt: -1}
	b.boot = b.elapsed // in a bubble the real boot clock keeps counting real time
	b.watchdog = &watchdog{
		lease: lease,
		clock: clock{now: time.Now, boot: func() time.Duration { return b.boot() }, wall: func() time.Time { return time.Now().Add(time.Duration(b.stepped.Load())) }},
		renew: b.answer,
		cut:   func(cause error) { b.cutAt, b.cutCause = b.elapsed(), cause },
		end:   func(cause error) { b.endAt, b.endCause = b.elapsed(), cause },
		each:  func() {},
		soon:  make(chan struct{}, 1),
	}
	b.from = b.clock.read()
	return b
}

func (b *bubble) elapsed() time.Duration { return time.Since(b.start) }

func (b *bubble) answer(ctx context.Context) (time.Duration, error) {
	b.mu.Lock()
	outage, hang, latency := b.outage, b.hang, b.latency
	b.sent = append(b.sent, b.elapsed())
	b.mu.Unlock()
	if hang {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	time.Sleep(latency)
	return b.lease, outage
}

func (b *bubble) set(outage error, hang bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.outage, b.hang = outage, hang
}

// during runs the watchdog while f runs, and then stops it.
func (b *bubble) during(t *testing.T, f func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { b.run(ctx) })
	f()
	synctest.Wait()
	cancel()
	running.Wait()
}

func TestRenewsThreeTimesPerLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(15 * time.Second)
		b.latency = 30 * time.Millisecond
		b.during(t, func() { time.Sleep(time.Hour) })
		if got, want := len(b.sent), 720; got < want-5 || got > want {
			t.Errorf("got %d renewals in an hour, want about %d", got, want)
		}
		if b.cutAt >= 0 || b.endAt >= 0 {
			t.Errorf("cut off at %s, ended at %s without an outage", b.cutAt, b.endAt)
		}
	})
}

// TestStalledProcessIsNamedAsTheReason makes the clocks jump, as they do for a process that was
// stopped. A network outage causes no such stall.
func TestStalledProcessIsNamedAsTheReason(t *testing.T) {
	t.Parallel()
	const reason = "this process did not run for"
	for name, test := range map[string]struct {
		jump   time.Duration
		outage error
		want   bool
	}{
		"jump": {20 * time.Second, nil, true}, "outage": {0, errors.New("refused"), false},
		"jump that the session survived": {5 * time.Second, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(15 * time.Second)
				var jumped atomic.Int64
				b.boot = func() time.Duration { return b.elapsed() + time.Duration(jumped.Load()) }
				b.during(t, func() {
					time.Sleep(time.Minute + lookEvery/2) // beside all renewals and looks
					jumped.Store(int64(test.jump))
					time.Sleep(time.Minute)
					b.set(errors.Join(test.outage, errors.New("down")), false)
					time.Sleep(time.Minute)
				})
				if b.endCause == nil || strings.Contains(b.endCause.Error(), reason) != test.want {
					t.Errorf("the session ended with %v; want the stall named: %t", b.endCause, test.want)
				}
			})
		})
	}
}

// TestCutsOffBeforeTheLeaseEnds proves the promise: whatever the network does after some renewal,
// work is canceled cutoff before the end of trust, and the session is dead before the lease can
// have run out in Redis.
func TestCutsOffBeforeTheLeaseEnds(t *testing.T) {
	t.Parallel()
	for _, lease := range []time.Duration{minLease, defaultLease, 40 * time.Second, maxLease} {
		for _, network := range []string{"hangs", "refuses"} {
			t.Run(lease.String()+" "+network, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					b := newBubble(lease)
					b.during(t, func() {
						time.Sleep(10*lease + time.Duration(rand.Int64N(int64(lease/3))))
						b.set(errors.New("refused"), network == "hangs")
						time.Sleep(2 * lease)
					})
					last := b.from.at.Sub(b.start) // the last renewal that got a reply
					if b.cutAt < 0 || b.endAt < 0 {
						t.Fatalf("cut off at %s, ended at %s, want both", b.cutAt, b.endAt)
					}
					if want := last + lease - cutoffOf(lease) - lease/1000; b.cutAt > want {
						t.Errorf("cut off %s after the last renewal, want at most %s", b.cutAt-last, want-last)
					}
					if want := last + lease - lease/1000; b.endAt > want {
						t.Errorf("ended %s after the last renewal, want at most %s", b.endAt-last, want-last)
					}
					if early := last + trustOf(lease) - cutoffOf(lease); b.cutAt < early {
						t.Errorf("cut off %s after the last renewal, although it had until %s", b.cutAt-last, early-last)
					}
					if !errors.Is(b.cutCause, ErrLost) || !errors.Is(b.endCause, ErrLost) {
						t.Errorf("got causes %v and %v, want ErrLost", b.cutCause, b.endCause)
					}
					var tries int
					for _, at := range b.sent {
						if at > last && at < b.cutAt {
							tries++
						}
						if at >= b.cutAt {
							t.Errorf("renewed at %s, after the cut-off at %s", at, b.cutAt)
						}
					}
					if tries < 2 {
						t.Errorf("tried %d times within the window", tries)
					}
				})
			})
		}
	}
}

func TestSurvivesAnOutageOfThePromisedLength(t *testing.T) {
	t.Parallel()
	for _, lease := range []time.Duration{minLease, 15 * time.Second} {
		for _, network := range []string{"hangs", "refuses", "refuses for longer"} {
			t.Run(lease.String()+" "+network, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					b := newBubble(lease)
					b.during(t, func() {
						// The outage begins at the worst moment: right before a renewal. A hanging
						// command needs its own timeout before it is sent again.
						length := Outage(lease).Truncate(100 * time.Millisecond)
						switch network {
						case "hangs":
							length -= tryOf(lease)
						case "refuses for longer":
							length += 3 * lookEvery
						}
						time.Sleep(2*lease/renewalsPerLease - time.Millisecond)
						b.set(errors.New("refused"), network == "hangs")
						time.Sleep(length)
						b.set(nil, false)
						time.Sleep(time.Minute)
					})
					if cut := b.cutAt >= 0; cut != (network == "refuses for longer") {
						t.Errorf("cut off: %t, at %s: %v", cut, b.cutAt, b.cutCause)
					}
				})
			})
		}
	}
}

func TestSlowReplyCountsFromWhenItsRenewalWasSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(15 * time.Second)
		b.latency = 2 * time.Second
		b.during(t, func() {
			time.Sleep(7100 * time.Millisecond) // sent at 5 s, reply at 7 s
			b.set(nil, true)
			time.Sleep(time.Minute)
		})
		if want := 5*time.Second + b.lease; b.endAt >= want || b.endAt < want-time.Second {
			t.Errorf("ended at %s, want just before %s", b.endAt, want)
		}
	})
}

func TestUnknownSessionIsCutOffAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(15 * time.Second)
		b.during(t, func() {
			b.set(errEnded, false)
			time.Sleep(time.Minute)
		})
		if b.cutAt != 5*time.Second || b.endAt != 5*time.Second || len(b.sent) != 1 {
			t.Errorf("cut off at %s, ended at %s after %d renewals, want all at the first renewal",
				b.cutAt, b.endAt, len(b.sent))
		}
	})
}

// TestSleptTimeCounts makes clocks jump as they do when a machine was suspended (the monotonic
// clock stopped, the boot clock did not) and when its wall clock is set back, which prolongs
// nothing.
func TestSleptTimeCounts(t *testing.T) {
	t.Parallel()
	t.Run("suspend", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := newBubble(15 * time.Second)
			var slept atomic.Int64
			b.boot = func() time.Duration { return b.elapsed() + time.Duration(slept.Load()) }
			b.during(t, func() {
				time.Sleep(7 * time.Second)
				slept.Store(int64(time.Minute))
				time.Sleep(2 * lookEvery)
			})
			if b.endAt < 0 || b.endAt > 7*time.Second+lookEvery || b.now() != ended {
				t.Errorf("ended at %s, want at once after the suspend at 7 s", b.endAt)
			}
		})
	})
	t.Run("clock set back", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			b := newBubble(15 * time.Second)
			b.during(t, func() {
				time.Sleep(7 * time.Second)
				b.stepped.Store(int64(-time.Hour))
				b.set(nil, true)
				time.Sleep(time.Minute)
			})
			if want := 5*time.Second + b.lease; b.endAt < 0 || b.endAt >= want {
				t.Errorf("ended at %s, want before %s: the boot clock counts on", b.endAt, want)
			}
		})
	})
}

// TestAStepOfTheWallClockIsADoubt: a step forward makes the watchdog renew at once, and ends
// nothing if Redis replies.
func TestAStepOfTheWallClockIsADoubt(t *testing.T) {
	t.Parallel()
	const lease, at = 15 * time.Second, 7 * time.Second // between two renewals
	for name, test := range map[string]struct {
		step    time.Duration
		hang    bool          // from the step on, no renewal gets a reply
		slow    time.Duration // of each renewal
		cut     time.Duration // after the step; negative: never
		renewed bool          // at once
	}{
		"a small correction":               {step: 100 * time.Millisecond, cut: -1},
		"8 s":                              {step: 8 * time.Second, cut: -1, renewed: true},
		"an hour":                          {step: time.Hour, cut: -1, renewed: true},
		"an hour, slow answers":            {step: time.Hour, slow: 2 * time.Second, cut: -1, renewed: true},
		"an hour, no answer":               {step: time.Hour, hang: true, cut: cutoffOf(lease), renewed: true},
		"1 s, no answer":                   {step: time.Second, hang: true, cut: trustOf(lease) - cutoffOf(lease) - 2*time.Second, renewed: true},
		"an hour back, and no answer":      {step: -time.Hour, hang: true, cut: trustOf(lease) - cutoffOf(lease) - 2*time.Second},
		"a lease, while no answer arrives": {step: lease, hang: true, cut: cutoffOf(lease), renewed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(lease)
				b.latency = test.slow
				b.during(t, func() {
					time.Sleep(at)
					b.set(nil, test.hang)
					b.stepped.Store(int64(test.step))
					time.Sleep(time.Minute)
				})
				soon := false
				for _, sent := range b.sent {
					soon = soon || sent >= at && sent <= at+lookEvery+test.slow
				}
				if soon != test.renewed {
					t.Errorf("renewed at %v; want at once after the step at %s: %t", b.sent, at, test.renewed)
				}
				switch {
				case test.cut < 0 && b.cutAt >= 0:
					t.Errorf("cut off at %s: %v", b.cutAt, b.cutCause)
				case test.cut >= 0 && (b.cutAt < at+test.cut-lookEvery || b.cutAt > at+test.cut+2*lookEvery):
					t.Errorf("cut off %s after the step, want %s", b.cutAt-at, test.cut)
				case test.cut >= 0 && (b.endAt < b.cutAt+cutoffOf(lease)-2*lookEvery || b.endAt > b.cutAt+cutoffOf(lease)+2*lookEvery):
					t.Errorf("ended %s after the cut-off, want %s", b.endAt-b.cutAt, cutoffOf(lease))
				}
			})
		})
	}
}

// TestASessionThatIsOverIsCutOffAfterAStep: the step was the only trace of a time in which all
// other clocks stopped.
func TestASessionThatIsOverIsCutOffAfterAStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(15 * time.Second)
		b.during(t, func() {
			time.Sleep(7 * time.Second)
			b.set(errEnded, false)
			b.stepped.Store(int64(time.Minute))
			time.Sleep(2 * lookEvery)
		})
		if b.endAt < 0 || b.endAt > 7*time.Second+lookEvery {
			t.Errorf("ended at %s, want at once after the step at 7 s", b.endAt)
		}
	})
}

// TestAReplyToAnEarlierRenewalSettlesNoDoubt: it was sent before the wall clock was stepped.
func TestAReplyToAnEarlierRenewalSettlesNoDoubt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(15 * time.Second)
		b.during(t, func() {
			b.mu.Lock()
			b.latency = 2 * time.Second
			b.mu.Unlock()
			time.Sleep(6 * time.Second) // a renewal is in flight since 5 s
			b.stepped.Store(int64(time.Minute))
			b.set(nil, true) // and no later one gets a reply
			time.Sleep(time.Minute)
		})
		if want := 6*time.Second + cutoffOf(15*time.Second); b.cutAt < want-lookEvery || b.cutAt > want+2*lookEvery {
			t.Errorf("cut off at %s, want %s", b.cutAt, want)
		}
	})
}

func TestKillByMovesWithRenewals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(15 * time.Second)
		from := b.from.boot
		b.during(t, func() {
			first := b.killBy()
			if want := from + trustOf(b.lease) - time.Second; first != want {
				t.Errorf("got %s, want %s", first, want)
			}
			time.Sleep(5*time.Second + time.Millisecond)
			if got, want := b.killBy()-first, 5*time.Second; got != want {
				t.Errorf("moved by %s after a renewal, want %s", got, want)
			}
		})
	})
}

// TestInspectDoesNotWaitForTheLook makes a request return before the goroutine that reads the
// clocks does, as after the process was stopped.
func TestInspectDoesNotWaitForTheLook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(15 * time.Second)
		time.Sleep(trustOf(b.lease) - cutoffOf(b.lease) - time.Millisecond)
		if b.inspect(); b.cutAt >= 0 {
			t.Errorf("cut off at %s, too early", b.cutAt)
		}
		time.Sleep(time.Millisecond)
		if b.inspect(); b.cutAt != b.elapsed() || b.endAt >= 0 {
			t.Errorf("cut off at %s, ended at %s; want cut off now", b.cutAt, b.endAt)
		}
		b.inspect() // again: cut is called once
		time.Sleep(cutoffOf(b.lease))
		if b.inspect(); b.endAt != b.elapsed() || b.cutAt == b.endAt {
			t.Errorf("cut off at %s, ended at %s; want ended now", b.cutAt, b.endAt)
		}
		b.renewed(b.clock.read(), b.lease) // too late: it never goes back
		if b.inspect(); b.now() != ended || b.left() > 0 {
			t.Error("a late renewal revived the session")
		}
	})
}

func TestASessionIsCertainOnlyWhileItsRenewalsAreAnswered(t *testing.T) {
	t.Parallel()
	const lease = 15 * time.Second
	for name, test := range map[string]struct {
		fault func(*bubble)
		by    time.Duration // of the outage, by when it must be in doubt
	}{
		"refused connections": {func(b *bubble) { b.outage = errors.New("connection refused") }, lease/3 + time.Second},
		"no answers":          {func(b *bubble) { b.hang = true }, lease/2 + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBubble(lease)
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { b.run(ctx) })
				defer running.Wait()
				defer cancel()
				for range 60 {
					time.Sleep(time.Second)
					if err := b.certain(); err != nil {
						t.Fatalf("after %s of a good network: %v", b.elapsed(), err)
					}
				}
				time.Sleep(time.Second / 2) // beside the renewals, which begin with a second
				set := func(change func(*bubble)) { b.mu.Lock(); defer b.mu.Unlock(); change(b) }
				set(test.fault)
				time.Sleep(test.by)
				if err := b.certain(); !errors.Is(err, ErrLost) {
					t.Errorf("%s into the outage: certain() = %v, want ErrLost", test.by, err)
				}
				set(func(b *bubble) { b.outage, b.hang = nil, false })
				time.Sleep(lease/6 + time.Second)
				if err := b.certain(); err != nil {
					t.Errorf("after the outage: %v", err)
				}
				set(test.fault)
				time.Sleep(lease)
				if err := b.certain(); !errors.Is(err, ErrLost) {
					t.Errorf("after the end of the session: certain() = %v, want ErrLost", err)
				}
			})
		})
	}
}

// TestTheCutoffIsAFifthOfTheLease, and 3 s at most, as the promise says.
func TestTheCutoffIsAFifthOfTheLease(t *testing.T) {
	t.Parallel()
	for lease, want := range map[time.Duration]time.Duration{
		2 * time.Second: 400 * time.Millisecond, 10 * time.Second: 2 * time.Second, 15 * time.Second: 3 * time.Second, 40 * time.Second: 3 * time.Second,
	} {
		if got := cutoffOf(lease); got != want {
			t.Errorf("of a lease of %s: %s, want %s", lease, got, want)
		}
	}
}
