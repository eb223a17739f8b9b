package web

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestManyAskersInASecondCostOneRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShare()
		var reads atomic.Int64
		ask := func() int64 {
			got, err := shared(t.Context(), s, "it", func(context.Context) (int64, error) {
				time.Sleep(100 * time.Millisecond)
				return reads.Add(1), nil
			})
			if err != nil {
				t.Error(err)
			}
			return got
		}
		var group sync.WaitGroup
		for i := range 100 {
			group.Go(func() {
				// some ask during the read, some after it
				time.Sleep(time.Duration(i) * time.Millisecond)
				if got := ask(); got != 1 {
					t.Errorf("got read %d, want 1", got)
				}
			})
		}
		group.Wait()
		time.Sleep(keepAtLast - 100*time.Millisecond)
		if got := ask(); got != 1 {
			t.Errorf("just before the second was over: got read %d, want 1", got)
		}
		time.Sleep(200 * time.Millisecond)
		if got := ask(); got != 2 {
			t.Errorf("after the second: got read %d, want 2", got)
		}
	})
}

func TestDifferentThingsAreReadApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShare()
		for i := range 3 * keepMost { // more than are kept: each of the last ones serves one client
			name := fmt.Sprint(i)
			got, err := shared(t.Context(), s, name, func(context.Context) (string, error) { return name, nil })
			if err != nil || got != name {
				t.Fatalf("got %q and %v, want %q", got, err, name)
			}
		}
		if n := len(s.answers); n > keepMost {
			t.Errorf("%d answers are kept, want at most %d", n, keepMost)
		}
		time.Sleep(2 * keepAtLast)
		if _, err := shared(t.Context(), s, "last", func(context.Context) (int, error) { return 0, nil }); err != nil {
			t.Fatal(err)
		}
		if n := len(s.answers); n != 1 {
			t.Errorf("%d answers are kept after their time, want 1", n)
		}
	})
}

func TestSlowReadIsKeptLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShare()
		reads := 0
		ask := func() {
			_, err := shared(t.Context(), s, "it", func(context.Context) (int, error) {
				reads++
				time.Sleep(2 * time.Second)
				return 0, nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		ask()
		time.Sleep(9 * time.Second)
		ask()
		if reads != 1 {
			t.Errorf("read %d times in 9 s, want once", reads)
		}
		time.Sleep(2 * time.Second)
		ask()
		if reads != 2 {
			t.Errorf("read %d times in 11 s, want twice", reads)
		}
	})
}

func TestErrorIsSharedAndThenReadAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShare()
		outage := errors.New("outage")
		reads := 0
		ask := func() error {
			_, err := shared(t.Context(), s, "it", func(ctx context.Context) (int, error) {
				if reads++; reads == 1 {
					<-ctx.Done() // bounded
					return 0, outage
				}
				return 0, nil
			})
			return err
		}
		for range 5 {
			if err := ask(); !errors.Is(err, outage) {
				t.Errorf("got %v, want the outage", err)
			}
		}
		time.Sleep(2 * keepAtLast)
		if err := ask(); err != nil {
			t.Errorf("after the outage: %v", err)
		}
		if reads != 2 {
			t.Errorf("read %d times, want 2", reads)
		}
	})
}

func TestReadOutlivesItsFirstAsker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShare()
		read := func(ctx context.Context) (string, error) {
			select {
			case <-time.After(time.Second):
				return "it", nil
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		}
		first, leave := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { _, _ = shared(first, s, "it", read) })
		synctest.Wait()
		group.Go(func() {
			got, err := shared(t.Context(), s, "it", read)
			if err != nil || got != "it" {
				t.Errorf("got %q and %v, want it", got, err)
			}
		})
		synctest.Wait()
		leave()
		group.Wait()
	})
}

func TestClientThatDisconnectsDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShare()
		var group sync.WaitGroup
		group.Go(func() {
			_, _ = shared(t.Context(), s, "it", func(context.Context) (int, error) {
				time.Sleep(3 * time.Second)
				return 0, nil
			})
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := shared(ctx, s, "it", func(context.Context) (int, error) { return 0, nil })
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("got %v after %s, want the deadline after 1s", err, time.Since(began))
		}
		group.Wait()
	})
}

func TestReadThatPanicsLeavesNoClientWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShare()
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			_, _ = shared(t.Context(), s, "it", func(context.Context) (int, error) { panic("a fault") })
		}()
		got, err := shared(t.Context(), s, "it", func(context.Context) (int, error) { return 7, nil })
		if err != nil || got != 7 {
			t.Errorf("got %d and %v, want 7", got, err)
		}
	})
}
