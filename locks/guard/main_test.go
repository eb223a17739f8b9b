package guard_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"lockstep/locks"
	"lockstep/locks/guard"
	"lockstep/locks/guard/pgtest"
	"lockstep/locks/redistest"
)

// early reports whether a script was assembled before main.
var early bool

func TestMain(m *testing.M) {
	early = guard.Assembled()
	redistest.Main(pgtest.Tests(m))
}

// patient is a bound that only a broken test reaches.
const patient = 2 * time.Minute

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits for a condition that another goroutine brings about.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for ctx := within(t); !holds(); {
		select {
		case <-ctx.Done():
			t.Fatalf("not within %s: %s", patient, what)
		case <-tick.C:
		}
	}
}

func wantStale(t testing.TB, err error, resource string, token, seen locks.Token) {
	t.Helper()
	want := guard.StaleError{Resource: resource, Token: token, Seen: seen}
	var got *guard.StaleError
	if !errors.Is(err, guard.ErrStale) || !errors.As(err, &got) || *got != want {
		t.Errorf("got %v, want %v", err, &want)
	}
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
