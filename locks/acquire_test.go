package locks_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/bootclock"
	"lockstep/locks/redistest"
	"lockstep/locks/space"
)

func TestRefusedBundleLeavesNothingHeld(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		ns := redistest.Namespace(t)
		c := openClient(t, rdb, locks.Options{Namespace: ns})
		first := acquire(t, c, locks.Exclusive("b"), locks.Info(json.RawMessage(`{"job": "x"}`)))

		_, err := c.TryAcquire(t.Context(), locks.Exclusive("c", "b", "a"))
		var busy *locks.BusyError
		if !errors.As(err, &busy) || !errors.Is(err, locks.ErrBusy) {
			t.Fatalf("got %v, want a BusyError", err)
		}
		if busy.Resource != "b" || busy.Hold != first.ID() || busy.Holder != c.Session() || busy.Token != first.Token() ||
			busy.Info != `{"job":"x"}` || busy.LeaseLeft <= 0 || busy.Waited != 0 {
			t.Errorf("got %+v, want the hold %s in the way", busy, first.ID())
		}
		if want := []string{"a", "b", "c"}; !slices.Equal(busy.Bundle, want) {
			t.Errorf("got bundle %v, want %v", busy.Bundle, want)
		}
		if got := holds(t, c); len(got) != 1 || got[0].ID != first.ID() {
			t.Errorf("got holds %+v, want the first alone", got)
		}
		for _, name := range []string{"a", "c"} {
			hold, err := c.TryAcquire(t.Context(), locks.Exclusive(name))
			if err != nil {
				t.Fatalf("%s of the refused bundle: %v", name, err)
			}
			release(t, hold)
		}
		release(t, first)
		if got := holds(t, c); len(got) != 0 {
			t.Errorf("got holds %+v after all releases", got)
		}
	})
}

func TestHoldDescribesItsGrant(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t)})
		hold := acquire(t, c, locks.Exclusive("b", "a", "b"), locks.Exclusive("ä/ö"))
		if got, want := hold.Names(), []string{"a", "b", "ä/ö"}; !slices.Equal(got, want) {
			t.Errorf("got names %q, want %q", got, want)
		}
		if !strings.HasPrefix(string(hold.ID()), string(c.Session())+".") || hold.Session() != c.Session() {
			t.Errorf("got id %s of session %s, want one of session %s", hold.ID(), hold.Session(), c.Session())
		}
		if age := time.Since(hold.Since()); age < -time.Minute || age > time.Minute {
			t.Errorf("got since %s", hold.Since())
		}
		got := holds(t, c)
		want := locks.HoldRecord{
			ID: hold.ID(), Session: c.Session(), Token: hold.Token(), Since: hold.Since(), Names: hold.Names(),
			Items: hold.Items(),
		}
		if len(got) == 1 {
			want.LeaseLeft = got[0].LeaseLeft
		}
		if len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(want) || want.LeaseLeft <= 0 {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if by := hold.KillBy() - bootclock.Now(); by <= c.Lease()/2 || by >= c.Lease() {
			t.Errorf("got KillBy in %s, want in a little less than the lease", by)
		}
		release(t, hold)
		if hold.KillBy() > bootclock.Now() {
			t.Error("KillBy is in the future after the release")
		}
	})
}

func TestReleaseTwiceReleasesOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t)})
		first := acquire(t, c, locks.Exclusive("a"))
		release(t, first)
		if err := context.Cause(first.Context()); err == nil || errors.Is(err, locks.ErrLost) {
			t.Errorf("got cause %v after the release, want one that is not ErrLost", err)
		}
		second := acquire(t, c, locks.Exclusive("a"))
		release(t, first)
		if got := holds(t, c); len(got) != 1 || got[0].ID != second.ID() {
			t.Errorf("got holds %+v, want the second one untouched", got)
		}
		if second.Token() <= first.Token() {
			t.Errorf("got token %s after %s", second.Token(), first.Token())
		}
	})
}

func TestReleasePassesOnInOrder(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		ns := redistest.Namespace(t)
		clients := []*locks.Client{
			openClient(t, rdb, locks.Options{Namespace: ns}), openClient(t, rdb, locks.Options{Namespace: ns}),
		}
		hold := acquire(t, clients[0], locks.Exclusive("a"))
		const waiters = 6
		var mu sync.Mutex
		var order []int
		var tokens []locks.Token
		var running sync.WaitGroup
		for i := range waiters {
			c := clients[i%2]
			running.Go(func() {
				hold, err := c.Acquire(within(t, patient), locks.Exclusive("a"))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order, tokens = append(order, i), append(tokens, hold.Token())
				mu.Unlock()
				if err := hold.Release(); err != nil {
					t.Error(err)
				}
			})
			eventually(t, "the request is queued", func() bool { return len(waits(t, clients[0])) == i+1 })
		}
		release(t, hold)
		running.Wait()
		if want := []int{0, 1, 2, 3, 4, 5}; !slices.Equal(order, want) {
			t.Errorf("got order %v, want %v", order, want)
		}
		if !slices.IsSorted(tokens) {
			t.Errorf("tokens do not grow: %v", tokens)
		}
	})
}

func TestWaitLimitEndsWithTheHolderNamed(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t)})
		first := acquire(t, c, locks.Exclusive("a"))
		var told []*locks.BusyError
		const limit = time.Second
		began := time.Now()
		_, err := c.Acquire(t.Context(), locks.Exclusive("a"), locks.Wait(limit),
			locks.OnWait(func(b *locks.BusyError) { told = append(told, b) }))
		var busy *locks.BusyError
		if !errors.As(err, &busy) || busy.Hold != first.ID() || busy.Waited < limit {
			t.Fatalf("got %v (%+v), want a BusyError that names %s", err, busy, first.ID())
		}
		if took := time.Since(began); took < limit {
			t.Errorf("ended after %s", took)
		}
		if len(told) != 1 || told[0].Hold != first.ID() || told[0].Waited != 0 {
			t.Errorf("OnWait got %+v", told)
		}
		if got := waits(t, c); len(got) != 0 {
			t.Errorf("still waiting: %+v", got)
		}
		release(t, first)
		release(t, acquire(t, c, locks.Exclusive("a")))
	})
}

func TestCanceledWaitIsForgotten(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t)})
		first := acquire(t, c, locks.Exclusive("a"))
		why := errors.New("changed my mind")
		ctx, cancel := context.WithCancelCause(t.Context())
		done, queued := make(chan error), make(chan struct{})
		go func() {
			_, err := c.Acquire(ctx, locks.Exclusive("a"), locks.OnWait(func(*locks.BusyError) { close(queued) }))
			done <- err
		}()
		<-queued
		if got := waits(t, c); len(got) != 1 {
			t.Errorf("got waits %+v, want one", got)
		}
		cancel(why)
		var busy *locks.BusyError
		if err := <-done; !errors.Is(err, why) || errors.Is(err, locks.ErrBusy) || !errors.As(err, &busy) {
			t.Errorf("got %v, want the cause, with what was in the way, and no ErrBusy", err)
		}
		eventually(t, "the wait has left the queue", func() bool { return len(waits(t, c)) == 0 })
		release(t, first)
		if got := holds(t, c); len(got) != 0 {
			t.Errorf("got holds %+v", got)
		}
	})
}

func TestContextOfTheRequestEndsTheHoldsContext(t *testing.T) {
	t.Parallel()
	c := openClient(t, redistest.Client(t), locks.Options{Namespace: redistest.Namespace(t)})
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "v"))
	hold, err := c.Acquire(ctx, locks.Exclusive("a"))
	if err != nil {
		t.Fatal(err)
	}
	if hold.Context().Value(key{}) != "v" {
		t.Error("the hold's context does not carry the values of the request's")
	}
	cancel()
	<-hold.Context().Done()
	if got := holds(t, c); len(got) != 1 {
		t.Errorf("got %d holds, want the hold to stay until it is released", len(got))
	}
	release(t, hold)
}

// TestWaitingBundleIsPassedOnlyWhileYoung lets a bundle wait for one of its resources and asks for
// another one.
func TestWaitingBundleIsPassedOnlyWhileYoung(t *testing.T) {
	t.Parallel()
	for name, reserveAfter := range map[string]time.Duration{"young": time.Hour, "strict order": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
				c := openClient(t, rdb, locks.Options{Namespace: redistest.Namespace(t), ReserveAfter: reserveAfter})
				first := acquire(t, c, locks.Exclusive("a"))
				done := make(chan *locks.Hold, 1)
				go func() {
					hold, err := c.Acquire(within(t, patient), locks.Exclusive("a", "b"))
					if err != nil {
						t.Error(err)
					}
					done <- hold
				}()
				eventually(t, "it waits", func() bool { return len(waits(t, c)) == 1 })
				hold, err := c.TryAcquire(t.Context(), locks.Exclusive("b"))
				if reserveAfter > 0 {
					if err != nil {
						t.Fatalf("got %v, want to pass the young bundle", err)
					}
					release(t, hold)
				} else {
					var busy *locks.BusyError
					if !errors.As(err, &busy) || busy.Holder != "" || busy.Hold != waits(t, c)[0].Request || busy.Resource != "b" {
						t.Fatalf("got %v (%+v), want b reserved for the wait", err, busy)
					}
					if !strings.Contains(err.Error(), "b is reserved for an older wait") {
						t.Errorf("the error says %q", err)
					}
				}
				release(t, first)
				if hold := <-done; hold != nil {
					release(t, hold)
				}
			})
		})
	}
}

// TestDeskIsNotifiedOfOffers offers a run's wait its bundle.
func TestDeskIsNotifiedOfOffers(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		offers := make(chan struct{}, 10)
		c := openClient(t, rdb, locks.Options{
			Namespace: redistest.Namespace(t), Extension: locks.ExtensionOptions{OnOffer: func() { offers <- struct{}{} }},
		})
		keys := c.Space().Keys()
		if err := rdb.HSet(t.Context(), keys[6], "desk", string(c.Session())).Err(); err != nil {
			t.Fatal(err)
		}
		hold := acquire(t, c, locks.Exclusive("a"))
		park := space.Link("", "", "local S = space() S.park('run', '@', '', {'xa'}, 0) S.settle() S.tell() return 'ok'")
		if err := rdb.Eval(t.Context(), park, keys).Err(); err != nil {
			t.Fatal(err)
		}
		release(t, hold)
		select {
		case <-offers:
		case <-time.After(patient):
			t.Error("the desk did not hear of the offer")
		}
		// An offer lasts 2 s, which a busy machine may need for the read.
		offered := []space.WaitState{space.Offered, space.Lapsed}
		if got := waits(t, c); len(got) != 1 || !slices.Contains(offered, got[0].State) || got[0].Session != "" {
			t.Errorf("got %+v, want the run's wait offered", got)
		}
	})
}
