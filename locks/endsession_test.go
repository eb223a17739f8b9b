package locks_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// TestEndedSessionPassesOnAndNeverComesBack ends a session when its process is only believed to be
// dead.
func TestEndedSessionPassesOnAndNeverComesBack(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		ns := redistest.Namespace(t)
		// The lease is long compared with the test, also on a busy machine: it explains nothing of
		// what follows.
		victim := openClient(t, rdb, locks.Options{Namespace: ns, Name: "victim", Lease: 2 * time.Minute})
		heir := openClient(t, rdb, locks.Options{Namespace: ns, Name: "heir", Lease: 2 * time.Minute})
		first := victim.Session()
		var lost []*locks.Hold
		for i := range 450 { // more than one call ends
			lost = append(lost, acquire(t, victim, locks.Exclusive(fmt.Sprint(i))))
		}
		granted := make(chan *locks.Hold, 1)
		go func() {
			defer close(granted)
			hold, err := heir.Acquire(within(t, patient), locks.Exclusive("0", "449"))
			if err != nil {
				t.Error(err)
				return
			}
			granted <- hold
		}()
		eventually(t, "the heir waits", func() bool { return len(waits(t, heir)) == 1 })

		began := time.Now()
		if err := heir.Space().EndSession(within(t, patient), first); err != nil {
			t.Fatal(err)
		}
		hold := <-granted
		if hold == nil {
			t.FailNow()
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("the heir has the locks after %s, want at once", took)
		}
		if last := lost[len(lost)-1]; hold.Token() <= last.Token() {
			t.Errorf("got token %s after %s", hold.Token(), last.Token())
		}
		if held := holds(t, heir); len(held) != 1 {
			t.Errorf("got %d holds, want the heir's alone", len(held))
		}

		// The victim learns of it from its own renewal, and continues under another ID.
		victim.Extension().Doubt() // it renews now, and not within 40 s
		eventually(t, "the victim has another session", func() bool { return victim.Session() != first })
		for _, h := range []*locks.Hold{lost[0], lost[449]} {
			if cause := context.Cause(h.Context()); !errors.Is(cause, locks.ErrLost) {
				t.Errorf("the context of a lost hold ended with %v, want ErrLost", cause)
			}
			if err := h.Release(); !errors.Is(err, locks.ErrLost) {
				t.Errorf("Release of a lost hold: %v, want ErrLost", err)
			}
		}
		if hold.Context().Err() != nil {
			t.Error("the heir's hold ended with the victim's")
		}
		for _, id := range []locks.SessionID{first, "nobody.x"} {
			if err := heir.Space().EndSession(within(t, patient), id); err != nil {
				t.Errorf("end %s, which is not there: %v", id, err)
			}
		}
	})
}

// TestEndOfASessionNotifiesTheDesk proves that the session that picks up work of an ended session
// is notified, even if the ended session was the one that would have done it.
func TestEndOfASessionNotifiesTheDesk(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		ns := redistest.Namespace(t)
		open := func(name string) (*locks.Client, <-chan struct{}) {
			told := make(chan struct{}, 100)
			return openClient(t, rdb, locks.Options{
				Namespace: ns, Name: name, Lease: time.Minute, Extension: locks.ExtensionOptions{OnOffer: func() { told <- struct{}{} }},
			}), told
		}
		hears := func(who string, told <-chan struct{}) {
			t.Helper()
			select {
			case <-told:
			case <-time.After(patient):
				t.Fatalf("%s is not notified", who)
			}
		}
		desk, atDesk := open("desk")
		_, other := open("other")
		victim, _ := open("victim")
		if err := rdb.HSet(t.Context(), desk.Space().Keys()[6], "desk", string(desk.Session())).Err(); err != nil {
			t.Fatal(err)
		}
		space, err := locks.NewSpace(rdb, ns)
		if err != nil {
			t.Fatal(err)
		}
		if err := space.EndSession(within(t, patient), victim.Session()); err != nil {
			t.Fatal(err)
		}
		hears("the desk", atDesk)
		if len(other) != 0 {
			t.Error("others were notified although the desk is alive")
		}
		if err := space.EndSession(within(t, patient), desk.Session()); err != nil {
			t.Fatal(err)
		}
		hears("another one, when the desk has ended,", other)
	})
}

// TestEndedSessionIsACrash keeps the bundle of a dead process taken for its crash delay, and passes
// on that of a closed client at once.
func TestEndedSessionIsACrash(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		ns := redistest.Namespace(t)
		open := func(name string) *locks.Client { // with a lease that no slow script outlasts
			return openClient(t, rdb, locks.Options{Namespace: ns, Name: name, Lease: time.Minute})
		}
		victim, heir := open("victim"), open("heir")
		const delay = time.Second
		var bundles []string
		for i := range 250 { // more than one call ends
			bundles = append(bundles, fmt.Sprint(i))
			acquire(t, victim, locks.Exclusive(bundles[i]), locks.CrashDelay(delay))
		}
		began := time.Now()
		if err := heir.Space().EndSession(within(t, patient), victim.Session()); err != nil {
			t.Fatal(err)
		}
		release(t, acquire(t, heir, locks.Exclusive(bundles...)))
		if took := time.Since(began); took < delay {
			t.Errorf("granted %s after the session was ended, want the crash delay of %s", took, delay)
		}

		closing := open("closing")
		acquire(t, closing, locks.Exclusive("orderly"), locks.CrashDelay(time.Hour))
		if err := closing.Close(within(t, patient)); err != nil {
			t.Fatal(err)
		}
		release(t, acquireAtOnce(t, heir, locks.Exclusive("orderly")))
	})
}

func TestEndSessionEndsWithItsContext(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	space, err := locks.NewSpace(server.Client(t), "n")
	if err != nil {
		t.Fatal(err)
	}
	server.Kill()
	began := time.Now()
	if err := space.EndSession(within(t, 300*time.Millisecond), "a.x"); err == nil {
		t.Error("got nil of a Redis that is not there")
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("ended after %s, want soon after 300ms", took)
	}
}
