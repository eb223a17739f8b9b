package space

import (
	"context"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// commits returns a group commit whose attempts wait until the test lets them return, and the
// channel on which each attempt gives its calls.
func commits(flights, most int) (c *Commit[int], attempts chan []int) {
	attempts = make(chan []int)
	c = &Commit[int]{Flights: flights, Most: most}
	c.Send = func(_ context.Context, calls []int) { attempts <- slices.Clone(calls) }
	c.Spawn = func(f func()) bool { go f(); return true }
	c.Refuse = func(calls []int) { panic("refused") }
	return c, attempts
}

func (c *Commit[T]) check(t *testing.T, flying, waiting int) {
	t.Helper()
	synctest.Wait()
	if inFlight, queued := c.Outstanding(); inFlight != flying || queued != waiting {
		t.Errorf("%d attempts in flight and %d calls queued, want %d and %d", inFlight, queued, flying, waiting)
	}
}

func TestCallsThatArriveDuringAnAttemptAreSentTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, attempts := commits(2, 3)
		if first, second, third := c.Enter(), c.Enter(), c.Enter(); !first || !second || third {
			t.Fatal("want two callers to send by themselves, and no third one")
		}
		for call := range 5 {
			c.Add(t.Context(), call)
		}
		c.check(t, 2, 5)
		c.Leave(t.Context())
		c.check(t, 2, 2) // the first three are under way
		c.Add(t.Context(), 5)
		var got [][]int
		got = append(got, <-attempts)
		c.check(t, 2, 0)
		c.Add(t.Context(), 6) // has just missed the second one
		got = append(got, <-attempts, <-attempts)
		c.check(t, 1, 0)
		c.Leave(t.Context())
		c.check(t, 0, 0)
		if want := [][]int{{0, 1, 2}, {3, 4, 5}, {6}}; !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

func TestACallThatFindsNoAttemptInFlightIsSentAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, attempts := commits(1, 3)
		for call := range 2 {
			c.Add(t.Context(), call)
			c.check(t, 1, 0)
			if got := <-attempts; !slices.Equal(got, []int{call}) {
				t.Errorf("got %v, want %v alone", got, call)
			}
			c.check(t, 0, 0)
		}
		if !c.Enter() {
			t.Error("no attempt is in flight, and a caller must not send by itself")
		}
	})
}

// TestCallsAreRefusedWhenNoGoroutineMayBegin closes the owner of a group commit while an attempt is
// in flight.
func TestCallsAreRefusedWhenNoGoroutineMayBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := commits(1, 2)
		var refused []int
		c.Spawn = func(func()) bool { return false }
		c.Refuse = func(calls []int) { refused = append(refused, calls...) }
		if !c.Enter() {
			t.Fatal("no attempt is in flight, and a caller must not send by itself")
		}
		for call := range 3 {
			c.Add(t.Context(), call)
		}
		c.Leave(t.Context())
		c.check(t, 0, 0)
		c.Add(t.Context(), 3)
		c.check(t, 0, 0)
		if want := []int{0, 1, 2, 3}; !slices.Equal(refused, want) {
			t.Errorf("refused %v, want %v", refused, want)
		}
	})
}

// TestAGoroutineMayMakeOneAttempt: then the next one begins in another goroutine.
func TestAGoroutineMayMakeOneAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, attempts := commits(1, 2)
		var spawned int
		c.Once = true
		c.Spawn = func(f func()) bool { spawned++; go f(); return true }
		if !c.Enter() {
			t.Fatal("no attempt is in flight")
		}
		for call := range 5 {
			c.Add(t.Context(), call)
		}
		c.Leave(t.Context())
		got := [][]int{<-attempts, <-attempts, <-attempts}
		c.check(t, 0, 0)
		if want := [][]int{{0, 1}, {2, 3}, {4}}; !reflect.DeepEqual(got, want) || spawned != 3 {
			t.Errorf("got %v by %d goroutines, want %v by 3", got, spawned, want)
		}
	})
}

func TestACallThatWaitsIsWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, attempts := commits(1, 2)
		c.Enter()
		for call := range 4 {
			c.Add(t.Context(), call)
		}
		withdraw := func(call int, want bool) {
			t.Helper()
			if got := c.Withdraw(func(other int) bool { return other == call }); got != want {
				t.Errorf("call %d is withdrawn: %t, want %t", call, got, want)
			}
		}
		withdraw(1, true)
		withdraw(1, false)
		c.Leave(t.Context())
		c.check(t, 1, 1) // 0 and 2 are being sent
		withdraw(2, false)
		withdraw(3, true)
		if got := <-attempts; !slices.Equal(got, []int{0, 2}) {
			t.Errorf("got %v, want 0 and 2", got)
		}
		c.check(t, 0, 0)
	})
}

// TestOneAttemptIsInFlightWhileRedisIsNear lets attempts take no time, and then a long one.
func TestOneAttemptIsInFlightWhileRedisIsNear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, attempts := commits(3, 2)
		c.Near = time.Millisecond
		for range 3 {
			if !c.Enter() {
				t.Fatal("want three callers to send by themselves while nothing is known")
			}
		}
		for call := range 8 {
			c.Add(t.Context(), call)
		}
		for range 3 {
			c.Leave(t.Context())
		}
		c.check(t, 3, 2)
		for left := 2; left > 0; left-- { // the others leave the last calls to one attempt
			<-attempts
			c.check(t, left, 2)
		}
		<-attempts
		c.check(t, 1, 0)
		<-attempts
		c.check(t, 0, 0)

		for range nearFor {
			c.Add(t.Context(), 0)
			if c.Enter() {
				t.Fatal("want one attempt in flight while Redis is near")
			}
			time.Sleep(c.Near)
			<-attempts
			c.check(t, 0, 0)
		}
		for range 2 {
			if !c.Enter() {
				t.Error("want several attempts in flight while Redis is far")
			}
		}
	})
}

// TestAnAttemptThatDoesNotReturnHoldsUpNoOthers lets the only attempt hang while Redis is near. Of
// the calls after that, only the first ones wait for it.
func TestAnAttemptThatDoesNotReturnHoldsUpNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, attempts := commits(3, 2)
		c.Near = time.Millisecond
		c.Add(t.Context(), 0)
		<-attempts
		c.check(t, 0, 0)
		if !c.Enter() || c.Enter() {
			t.Fatal("want one attempt in flight while Redis is near")
		}
		c.Add(t.Context(), 1)
		c.check(t, 1, 1)
		time.Sleep(stalled * c.Near)
		c.check(t, 2, 0)
		if got := <-attempts; !slices.Equal(got, []int{1}) {
			t.Errorf("got %v, want the call that waited", got)
		}
		c.check(t, 1, 0)
		began := time.Now()
		c.Add(t.Context(), 2)
		if got := <-attempts; !slices.Equal(got, []int{2}) || !time.Now().Equal(began) {
			t.Errorf("got %v after %s, want the next call at once", got, time.Since(began))
		}
		c.check(t, 1, 0)
		time.Sleep(farFor)
		c.Add(t.Context(), 3)
		<-attempts
		c.check(t, 1, 0)
		c.Add(t.Context(), 4)
		c.check(t, 1, 1) // Redis is near again
		c.Leave(t.Context())
		if got := <-attempts; !slices.Equal(got, []int{4}) {
			t.Errorf("got %v, want the call that waited", got)
		}
		c.check(t, 0, 0)
	})
}
