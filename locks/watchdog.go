package locks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// The parts of a lease. All of them are counted from before the last successful renewal was
// sent:
//
//	0          lease/3                       trust-cutoff   trust-cutoff/3   trust    lease
//	|- renewed -|- tried again, many times -----|- work ends ----|- killed ----|- dead -|- passes on
//
// trust is the lease less a margin. In the margin go 0.1 % by which clock rates may differ, and the
// pace at which passed time is looked at.
const (
	renewalsPerLease = 3
	// lookEvery is how often the clocks are read for the cut-off; a part of the margin.
	lookEvery = 100 * time.Millisecond
	maxCutoff = 3 * time.Second
)

func trustOf(lease time.Duration) time.Duration { return lease - lease/1000 - lookEvery }

// cutoffOf returns how long before the end of trust work is canceled: the time a handler gets to
// react.
func cutoffOf(lease time.Duration) time.Duration { return min(maxCutoff, lease/5) }

// killAfter returns how long canceled work may take to end before its processes are killed.
func killAfter(cutoff time.Duration) time.Duration { return cutoff * 2 / 3 }

// Outage returns how long Redis may be unreachable before a session with this lease cuts off its
// work. When an outage begins, the last renewal may already be a third of a lease old.
func Outage(lease time.Duration) time.Duration {
	return trustOf(lease) - cutoffOf(lease) - lease/renewalsPerLease
}

// ClusterLease is a lease that outlives a failover of a Redis Cluster with its default timeout.
// That takes 16 to 17 seconds, and up to 2.5 more until a client leaves a master that is silent:
// see [Outage].
const ClusterLease = 40 * time.Second

// tryOf returns how long one command of the watchdog may take before it is abandoned and sent
// again.
func tryOf(lease time.Duration) time.Duration { return lease / 6 }

// errEnded says that Redis does not know the session any more.
var errEnded = errors.New("redis no longer knows the session")

// A watchdog keeps one session alive, and ends the work that depends on it when it cannot. Two
// goroutines do that: one renews, and may hang in the network for as long as it likes; the other
// one looks at the clocks, does no I/O, and cuts off. Only a renewal that was answered moves the
// deadline, and it is counted from before that renewal was sent.
//
// A step of the wall clock alone makes the watchdog renew at once. If the wall clock then says that
// it is time to cut off, and the other clocks do not, that is a doubt: Redis has cutoff to answer a
// renewal. A reply settles it, and without one the work is cut off as if the lease were about to
// end.
//
// States: alive -> cut -> ended; it never goes back. Once cut it renews no more, since what has
// stopped working must not keep its locks: they pass on when the lease ends.
type watchdog struct {
	lease time.Duration
	clock clock
	// renew sends one renewal and returns how long the lease goes from when Redis applied it;
	// errEnded when the session has ended, [ErrFormat] when this build must not touch the space any
	// more, and any other error when it is not known.
	renew func(ctx context.Context) (time.Duration, error)
	// cut is called once, before end: stop all work, it may be about to lose its locks.
	cut  func(cause error)
	end  func(cause error) // called once: from now on others may hold what this session held
	each func()            // called whenever the clocks are looked at
	soon chan struct{}     // buffer 1: renew at once; nil where no caller needs it

	mu     sync.Mutex
	from   instant // read before the last renewal that was answered was sent; guarded by mu
	state  watchdogState
	last   error   // of the last renewal, nil when it was answered; guarded by mu
	looked instant // when look last read the clocks; guarded by mu
	// stalled is the longest time between two looks since the last renewal. Guarded by mu.
	stalled time.Duration
	// doubt is when the wall clock alone first said that it is time to cut off; zero if it does
	// not. Guarded by mu.
	doubt instant
}

// longStep is how far the wall clock must be stepped between two looks to have the session renewed
// at once.
const longStep = 500 * time.Millisecond

// longStall is how late a look at the clocks must be before the end of a session names it as a
// reason.
const longStall = time.Second

type watchdogState int

const (
	alive watchdogState = iota
	cutOff
	ended
)

// run returns when the session has ended here, or ctx. from is the instant before the session was
// opened.
func (w *watchdog) run(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { defer stop(); w.look(ctx) })
	w.keep(ctx)
	<-ctx.Done() // look ends it
}

// keep renews until the session is cut off, or ctx ends.
func (w *watchdog) keep(ctx context.Context) {
	pause := w.lease / renewalsPerLease
	for {
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-w.soon:
			timer.Stop()
		case <-timer.C:
		}
		rest := w.left() - cutoffOf(w.lease)
		if rest <= 0 {
			return
		}
		sent := w.clock.read()
		try, cancel := context.WithTimeout(ctx, min(rest, tryOf(w.lease)))
		left, err := w.renew(try)
		cancel()
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil:
			w.renewed(sent, left)
			pause = max(0, w.lease/renewalsPerLease-w.clock.since(sent))
		case errors.Is(err, errEnded), errors.Is(err, ErrFormat):
			w.lose(ended, err)
			return
		default:
			w.note(err)
			// The pause that this adds to an outage must be small beside the lease.
			pause = max(10*time.Millisecond, w.lease/300)
		}
	}
}

// hurry renews the session at once.
func (w *watchdog) hurry() {
	select {
	case w.soon <- struct{}{}:
	default: // it is about to be
	}
}

// look cuts off when the time has come, whatever the renewal is doing.
func (w *watchdog) look(ctx context.Context) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		w.inspect()
		if w.now() == ended {
			return
		}
		w.each()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// inspect cuts off, or ends the session, if it is time.
func (w *watchdog) inspect() {
	w.mu.Lock()
	now := w.clock.read()
	stepped := false
	if w.looked != (instant{}) {
		w.stalled = max(w.stalled, now.since(w.looked))
		stepped = now.stepped(w.looked) >= longStep
	}
	w.looked = now
	byWall := trustOf(w.lease) - now.since(w.from) - now.stepped(w.from)
	// A smaller step is within the margin.
	switch doubted := byWall <= cutoffOf(w.lease) && now.stepped(w.from) >= lookEvery; {
	case !doubted && w.state == alive:
		w.doubt = instant{}
	case doubted && w.doubt == instant{}:
		w.doubt, stepped = now, true
	}
	left := w.leftAt(now)
	w.mu.Unlock()
	if stepped {
		w.hurry()
	}
	switch {
	case left <= 0:
		w.lose(ended, nil)
	case left <= cutoffOf(w.lease):
		w.lose(cutOff, nil)
	}
}

// left returns for how long the session may be trusted.
func (w *watchdog) left() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.leftAt(w.clock.read())
}

// leftAt is left at a reading of the clocks. The caller holds mu.
func (w *watchdog) leftAt(now instant) time.Duration {
	left := trustOf(w.lease) - now.since(w.from)
	if w.doubt != (instant{}) {
		left = min(left, 2*cutoffOf(w.lease)-now.since(w.doubt))
	}
	return left
}

// covered reports whether the lease was surely in force at a moment.
func (w *watchdog) covered(at time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.doubt == instant{} && instant{at: at, boot: w.from.boot}.since(w.from) < trustOf(w.lease)
}

// certain returns why the session is in doubt, or nil: it is renewed when it should be, and every
// renewal is answered.
func (w *watchdog) certain() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	since := w.clock.since(w.from)
	switch {
	case w.state != alive:
		return fmt.Errorf("%w: the session is over", ErrLost)
	case w.last != nil:
		return fmt.Errorf("%w: the last renewal of the session failed: %w", ErrLost, w.last)
	case w.doubt != instant{}:
		return fmt.Errorf("%w: the wall clock was stepped forward, and the session was not renewed since", ErrLost)
	case since > w.lease/renewalsPerLease+tryOf(w.lease)+lookEvery:
		return fmt.Errorf("%w: the session was last renewed %s ago", ErrLost, since.Round(time.Millisecond))
	}
	return nil
}

// killBy returns the reading of the boot clock by which no process under the session may live any
// more.
func (w *watchdog) killBy() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	cutoff := cutoffOf(w.lease)
	return w.from.boot + trustOf(w.lease) - cutoff + killAfter(cutoff)
}

func (w *watchdog) now() watchdogState {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

func (w *watchdog) note(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = err
}

func (w *watchdog) renewed(sent instant, left time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state != alive {
		return
	}
	if sent.since(w.doubt) >= 0 { // else a reply to what was sent before the step settles nothing
		w.doubt = instant{}
	}
	w.from, w.last, w.stalled = sent.earlier(max(0, w.lease-left)), nil, 0
}

// lose moves on to a later state and calls what belongs to it.
func (w *watchdog) lose(to watchdogState, why error) {
	w.mu.Lock()
	from := w.state
	if to <= from {
		w.mu.Unlock()
		return
	}
	w.state = to
	if why == nil {
		why = fmt.Errorf("not renewed for %s", w.clock.since(w.from).Round(time.Millisecond))
		if w.doubt != (instant{}) {
			why = fmt.Errorf("%w: the wall clock was stepped forward by %s, and no renewal was answered since", why,
				w.doubt.stepped(w.from).Round(time.Millisecond))
		}
		if w.stalled >= longStall {
			why = fmt.Errorf("%w: this process did not run for %s: it was stopped or starved, or the machine was suspended",
				why, w.stalled.Round(time.Millisecond))
		}
		if w.last != nil {
			why = fmt.Errorf("%w: %w", why, w.last)
		}
	}
	w.mu.Unlock()
	cause := fmt.Errorf("%w: %w", ErrLost, why)
	if from < cutOff {
		w.cut(cause)
	}
	if to == ended {
		w.end(cause)
	}
}
