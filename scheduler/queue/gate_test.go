package queue

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"lockstep/scheduler/ledger"
)

// unbounded has an unlimited number of slots.
type unbounded struct{}

func (unbounded) Acquire(ctx context.Context) error { return ctx.Err() }
func (unbounded) More(most int) int                 { return most }
func (unbounded) Release(int)                       {}
func (unbounded) HasFree() bool                     { return true }

func passes(ctx context.Context, g *gate) error {
	_, _, err := g.pass(ctx)
	return err
}

// emptyNow is the reply to a pass that has just begun.
func (g *gate) emptyNow() {
	_, at := g.finds()
	g.empty(at)
}

// polls runs fetchers that find nothing for d, and returns the number of polls.
func polls(t *testing.T, g *gate, fetchers int, d time.Duration, result func()) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var (
		running sync.WaitGroup
		mu      sync.Mutex
		n       int
	)
	for range fetchers {
		running.Go(func() {
			for passes(ctx, g) == nil {
				mu.Lock()
				n++
				mu.Unlock()
				result()
			}
		})
	}
	running.Wait()
	return n
}

func TestIdleQueueCostsTheSameWhateverTheNumberOfFetchers(t *testing.T) {
	for _, fetchers := range []int{1, 4, 16} {
		synctest.Test(t, func(t *testing.T) {
			g := newGate(100*time.Millisecond, unbounded{}, slog.New(slog.DiscardHandler))
			g.open()
			if n := polls(t, g, fetchers, 100*time.Second, g.emptyNow); n < 900 || n > 1100 {
				t.Errorf("%d fetchers looked %d times in 100 s, want 1000", fetchers, n)
			}
		})
	}
}

// TestIdleQueueIsPolledOnceASecondByDefault, with a half more or less: a delivery for which no
// worker is woken waits that long.
func TestIdleQueueIsPolledOnceASecondByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := NewServer(nil, Options{
			Queues: map[string]int{"default": 1}, Handle: func(context.Context, []ledger.Due) {}, Slots: unbounded{},
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		s.gate.open()
		const n = 1000
		began := time.Now()
		last, shortest, longest := began, time.Hour, time.Duration(0)
		for i := range n + 1 {
			if err := passes(t.Context(), s.gate); err != nil {
				t.Fatal(err)
			}
			s.gate.emptyNow()
			if pause := time.Since(last); i > 0 { // the first pass begins at once
				shortest, longest = min(shortest, pause), max(longest, pause)
			}
			last = time.Now()
		}
		// That no pause of a thousand is in the first or last tenth never happens by chance.
		if shortest < 500*time.Millisecond || shortest > 600*time.Millisecond || longest < 1400*time.Millisecond || longest > 1500*time.Millisecond {
			t.Errorf("the pauses between polls were %v to %v, want 0.5 s to 1.5 s", shortest, longest)
		}
		if mean := last.Sub(began) / n; mean < 900*time.Millisecond || mean > 1100*time.Millisecond {
			t.Errorf("the mean pause between polls was %v, want 1 s", mean)
		}
	})
}

func TestSpreadIsFromHalfToOneAndAHalf(t *testing.T) {
	g := new(gate)
	for d, want := range map[time.Duration][2]time.Duration{1: {0, 1}, 2: {1, 3}, 10: {5, 15}} {
		seen := make(map[time.Duration]bool)
		for range 10_000 {
			seen[g.spread(d)] = true
		}
		got := slices.Sorted(maps.Keys(seen))
		if least, most := got[0], got[len(got)-1]; least != want[0] || most != want[1] || len(got) != int(most-least)+1 {
			t.Errorf("spread(%d) returns %d, want each from %d to %d", d, got, want[0], want[1])
		}
	}
}

func TestFailingRedisIsPolledSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(100*time.Millisecond, unbounded{}, slog.New(slog.DiscardHandler))
		g.open()
		away := errors.New("connection refused")
		if n := polls(t, g, 4, 100*time.Second, func() { g.failed(away) }); n > 230 {
			t.Errorf("it was asked %d times in 100 s, want 200", n)
		}
	})
}

func TestAWorkerThatCannotStartRunsFetchesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := counted{free: make(chan struct{}, 1)}
		s.Release(1)
		g := newGate(100*time.Millisecond, s, slog.New(slog.DiscardHandler))
		g.open()
		g.found() // so all fetchers could continue without waiting
		var can atomic.Bool
		var asked atomic.Int32
		g.ready = func() bool { asked.Add(1); return can.Load() }
		if n := polls(t, g, 4, 100*time.Second, g.found); n != 0 {
			t.Errorf("%d fetches passed, want none", n)
		}
		if n := asked.Load(); n < 100 || n > 1000 {
			t.Errorf("it was asked %d times in 100 s, want about twice a second", n)
		}
		if len(s.free) != 1 {
			t.Error("the slot is still taken")
		}
		can.Store(true)
		if err := passes(t.Context(), g); err != nil {
			t.Error(err)
		}
	})
}

// counted has one slot.
type counted struct{ free chan struct{} }

func (s counted) Acquire(ctx context.Context) error {
	select {
	case <-s.free:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
func (s counted) More(int) int  { return 0 }
func (s counted) Release(n int) { s.free <- struct{}{} }
func (s counted) HasFree() bool { return len(s.free) > 0 }

func TestAllFetchersContinueWhenOneFindsSomething(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(time.Hour, unbounded{}, slog.New(slog.DiscardHandler))
		g.open()
		if err := passes(t.Context(), g); err != nil {
			t.Fatal(err)
		}
		passed := make(chan error)
		go func() { passed <- passes(t.Context(), g) }() // received below
		synctest.Wait()
		select {
		case err := <-passed:
			t.Fatalf("the second passed while the first was looking: %v", err)
		default:
		}
		begin := time.Now()
		g.found()
		if err := <-passed; err != nil {
			t.Error(err)
		}
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("the second waited %v more", waited)
		}
	})
}

func TestNothingPassesAClosedGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(time.Millisecond, unbounded{}, slog.New(slog.DiscardHandler))
		if n := polls(t, g, 4, time.Hour, g.emptyNow); n != 0 {
			t.Errorf("%d passed", n)
		}
	})
}

func TestLookAtAnIdleQueueTakesOneSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(time.Millisecond, unbounded{}, slog.New(slog.DiscardHandler))
		g.open()
		for _, step := range []struct {
			then func()
			want int
		}{{func() {}, 1}, {g.found, fetchMost}, {g.found, fetchMost}, {g.emptyNow, 1}, {func() { g.failed(errors.New("away")) }, 1}} {
			step.then()
			if n, _, err := g.pass(t.Context()); n != step.want || err != nil {
				t.Errorf("it took %d slots (%v), want %d", n, err, step.want)
			}
		}
	})
}

// TestAWakeLetsOnePassBegin wakes a gate in each state. A pass that found nothing before the
// message was sent, or before another pass found something, is followed by another one: Redis no
// longer counts the worker as asleep.
func TestAWakeLetsOnePassBegin(t *testing.T) {
	for name, before := range map[string][]string{
		"asleep": {"pass", "empty", "wake"}, "while it looks": {"pass", "wake", "empty"},
		"busy": {"pass", "found", "pass", "wake", "empty"}, "after an error": {"pass", "failed", "wake"},
		"another pass found it": {"pass", "found", "pass", "wake", "found", "empty"},
		"without a message":     {"pass", "found", "pass", "found", "empty"},
		"a server stops":        {"pass", "empty", "wake", "stop"},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := newGate(time.Hour, unbounded{}, slog.New(slog.DiscardHandler))
			g.open()
			began := time.Now()
			var at int64 // of the last pass
			pass := func() { _, at, _ = g.pass(t.Context()) }
			stopped, cancel := context.WithCancel(t.Context())
			cancel()
			for _, step := range before {
				map[string]func(){
					"pass": pass, "empty": func() { g.empty(at) }, "found": g.found, "wake": g.wake, "failed": func() { g.failed(errors.New("away")) },
					"stop": func() { _ = g.turn(stopped) },
				}[step]()
			}
			pass()
			if waited := time.Since(began); waited != 0 {
				t.Errorf("%s: it looked %v later, want at once", name, waited)
			}
			g.empty(at)
			pass()
			if waited := time.Since(began); waited < time.Minute {
				t.Errorf("%s: it looked again %v later, want an interval", name, waited)
			}
		})
	}
}

// TestHelpComesWithWorkAndGoesWithoutIt looks at the waits of further servers.
func TestHelpComesWithWorkAndGoesWithoutIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(time.Second, unbounded{}, slog.New(slog.DiscardHandler))
		comes, goes := make(chan struct{}), make(chan struct{})
		go func() { _ = g.awaitBacklog(t.Context()); close(comes) }()
		wants := func(what string, ch <-chan struct{}, want bool) {
			t.Helper()
			synctest.Wait()
			select {
			case <-ch:
				if !want {
					t.Fatal(what, "too early")
				}
			default:
				if want {
					t.Fatal(what, "does not happen")
				}
			}
		}
		for range 3 { // single deliveries
			g.found()
			g.emptyNow()
		}
		g.found()
		g.failed(errors.New("away"))
		g.found()
		wants("help", comes, false)
		g.found()
		wants("help", comes, true)
		go func() { g.awaitIdle(t.Context()); close(goes) }()
		time.Sleep(time.Hour)
		wants("the end of the help", goes, false)
		g.emptyNow()
		time.Sleep(helpFor - helpFor/10)
		wants("the end of the help", goes, false)
		time.Sleep(helpFor / 5)
		wants("the end of the help", goes, true)
	})
}

// TestAPauseDoesNotEndTheHelp: further servers that have had work until then stay, unless the pause
// is as long as the time without work after which they stop.
func TestAPauseDoesNotEndTheHelp(t *testing.T) {
	for name, rest := range map[string]func(*gate){
		"an error":              func(g *gate) { g.failed(errors.New("away")) },
		"no run can start here": (*gate).pause,
	} {
		synctest.Test(t, func(t *testing.T) {
			g := newGate(time.Second, unbounded{}, slog.New(slog.DiscardHandler))
			g.found()
			goes := make(chan time.Time, 1)
			go func() { g.awaitIdle(t.Context()); goes <- time.Now() }() // received below
			for range 2 {
				time.Sleep(time.Hour - time.Millisecond) // it looks a millisecond later
				rest(g)
				time.Sleep(time.Millisecond)
				synctest.Wait()
				g.found()
			}
			time.Sleep(time.Hour)
			rest(g)
			from := time.Now()
			for range 60 {
				time.Sleep(errorPause)
				rest(g)
			}
			if after := (<-goes).Sub(from); after < helpFor || after > helpFor+helpFor/10 {
				t.Errorf("%s: the help ends %v after the last work, want %v", name, after, helpFor)
			}
		})
	}
}
