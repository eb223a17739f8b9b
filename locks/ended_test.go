package locks_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// TestWaitEndedByItsContextIsNotBusy waits for a held lock until the context ends, and until the
// limit of the wait. Both errors name the holder, and only the second one is ErrBusy.
func TestWaitEndedByItsContextIsNotBusy(t *testing.T) {
	t.Parallel()
	c := openClient(t, redistest.Client(t), locks.Options{Namespace: redistest.Namespace(t)})
	held := acquire(t, c, locks.Exclusive("a"))
	shutdown := errors.New("the process shuts down")
	for name, test := range map[string]struct {
		part  locks.Part
		cause error
		busy  bool
	}{
		"canceled":  {locks.OnWait(func(*locks.BusyError) {}), shutdown, false},
		"timed out": {locks.OnWait(func(*locks.BusyError) {}), context.DeadlineExceeded, false},
		"limit":     {locks.Wait(50 * time.Millisecond), nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(within(t, patient))
			defer cancel(nil)
			if test.cause != nil {
				// Once it is queued, it knows what is in its way.
				test.part = locks.OnWait(func(*locks.BusyError) { cancel(test.cause) })
			}
			_, err := c.Acquire(ctx, locks.Exclusive("a"), test.part)
			var busy *locks.BusyError
			if !errors.As(err, &busy) || busy.Hold != held.ID() {
				t.Errorf("got %v, want an error that names the hold %s", err, held.ID())
			}
			if errors.Is(err, locks.ErrBusy) != test.busy || test.cause != nil && !errors.Is(err, test.cause) {
				t.Errorf("got %v: ErrBusy %t, want %t, and the cause %v", err, errors.Is(err, locks.ErrBusy), test.busy, test.cause)
			}
		})
	}
}

// TestHoldsWithoutTheirOwnBundleCanBeFreed makes the calls of a package with its own scripts,
// for holds that have nothing in Redis: one that re-enters another, and one that was joined.
func TestHoldsWithoutTheirOwnBundleCanBeFreed(t *testing.T) {
	t.Parallel()
	rdb, ns := redistest.Client(t), redistest.Namespace(t)
	c, child := openClient(t, rdb, locks.Options{Namespace: ns}), openClient(t, rdb, locks.Options{Namespace: ns})
	outer := acquire(t, c, locks.Exclusive("a", "b"))
	inner, err := c.Acquire(outer.Context(), locks.Exclusive("a"))
	if err != nil {
		t.Fatal(err)
	}
	joined, err := child.Join(t.Context(), outer.ID())
	if err != nil {
		t.Fatal(err)
	}
	for name, hold := range map[string]*locks.Hold{"re-entered": inner, "joined": joined} {
		c.Extension().Freeing(hold)
		if err := context.Cause(hold.Context()); err != nil {
			t.Errorf("%s: got %v after Freeing", name, err)
		}
		c.Extension().Released(hold)
		if err := hold.Release(); err != nil || hold.Context().Err() == nil {
			t.Errorf("%s: got %v from Release, context error %v", name, err, hold.Context().Err())
		}
	}
	if got := holds(t, c); len(got) != 1 {
		t.Errorf("%d holds are left, want the outer one", len(got))
	}
	release(t, outer)
	if got := holds(t, c); len(got) != 0 {
		t.Errorf("%d holds are left, want none", len(got))
	}
}

// TestHoldFreedByAScriptLeavesItsOuterHolds frees a nested hold as a script of another package
// does. The last release of the outer hold frees that one.
func TestHoldFreedByAScriptLeavesItsOuterHolds(t *testing.T) {
	t.Parallel()
	c := openClient(t, redistest.Client(t), locks.Options{Namespace: redistest.Namespace(t)})
	outer := acquire(t, c, locks.Exclusive("a"))
	// has b, and uses the outer hold
	inner, err := c.Acquire(outer.Context(), locks.Exclusive("a", "b"))
	if err != nil {
		t.Fatal(err)
	}
	release(t, outer)
	if got := holds(t, c); len(got) != 2 {
		t.Fatalf("%d holds are left while the inner one is in use, want 2", len(got))
	}
	c.Extension().Freeing(inner)
	c.Extension().Released(inner)
	eventually(t, "the outer hold is free", func() bool {
		for _, h := range holds(t, c) {
			if h.ID == outer.ID() {
				return false
			}
		}
		return true
	})
}
