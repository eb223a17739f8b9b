package guard_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"lockstep/locks"
	"lockstep/locks/guard"
	"lockstep/locks/redistest"
)

func TestMain(m *testing.M) { redistest.Main(withPostgres{m}) }

// withPostgres stops the tests' PostgreSQL before redistest looks for goroutines that are left.
type withPostgres struct{ m *testing.M }

func (w withPostgres) Run() int {
	code := w.m.Run()
	if err := stopPostgres(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}

// patient is a bound that only a broken test reaches.
const patient = 30 * time.Second

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits for a condition that somebody else brings about.
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
