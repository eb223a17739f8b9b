package locks_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// TestCloseDuringEverything closes a client while its actors are at work, some of them behind a
// network that is bad or silent. Every call returns, every context ends, and Redis keeps nothing
// for longer than the lease. The check at the end of the package's tests finds goroutines that are
// left.
func TestCloseDuringEverything(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]redistest.Faults{
		"healthy": {}, "bad": weather["all"], "late": weather["late"],
		"silent": {DropRequests: true, DropReplies: true}, "held": {HoldReplies: true}, "refused": {Refuse: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, ns := redistest.Shared(t), redistest.Namespace(t)
			direct := openClient(t, server.Client(t), locks.Options{Namespace: ns, Lease: stormLease})
			declarePool(t, direct)
			j := newJournal()
			seed := uint64(time.Now().UnixNano())
			for round := range 2 * min(locks.Soak(), 50) {
				random := rand.New(rand.NewPCG(seed, uint64(round)))
				p, err := redistest.NewProxy(t.Context(), "unix", server.RedisOptions().Addr)
				if err != nil {
					t.Fatal(err)
				}
				var c *locks.Client
				eventually(t, "it is open", func() bool { // a busy machine may be too slow once
					c, err = locks.Open(t.Context(), p.Client(t), locks.Options{Namespace: ns, Lease: stormLease})
					return err == nil
				})
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				for i := range 8 {
					a := &actor{
						client: c, journal: j, rand: rand.New(rand.NewPCG(seed, uint64(100*round+i))), depth: 2, limits: true, loses: true, closes: true,
					}
					running.Go(func() { a.rounds(ctx) })
				}
				running.Go(func() { // what actors do not do
					for ctx.Err() == nil {
						_ = c.Extension().SetCard(ctx, []byte(`{"a": 1}`))
						if r, err := c.Extension().Begin(); err == nil {
							r.Drop()
						}
						time.Sleep(time.Millisecond)
					}
				})
				hold := acquire(t, c, locks.Exclusive("closed"))
				if joined, err := c.Join(ctx, hold.ID()); err == nil {
					running.Go(func() {
						<-joined.Context().Done()
						_ = joined.Release()
					})
				}
				eventually(t, "an actor has a lock", func() bool { return j.began() > round })
				time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
				p.Set(faults)
				time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
				closing, stop := context.WithTimeout(t.Context(), time.Second)
				err = c.Close(closing)
				stop()
				if err != nil && (name == "healthy" || name == "late") && closing.Err() == nil {
					t.Errorf("seed %d: close: %v", seed, err)
				}
				<-hold.Context().Done()
				if cause := context.Cause(hold.Context()); !errors.Is(cause, locks.ErrClosed) && !errors.Is(cause, locks.ErrLost) {
					t.Errorf("seed %d: got cause %v, want ErrClosed", seed, cause)
				}
				if _, err := c.Acquire(t.Context(), locks.Exclusive("a")); !errors.Is(err, locks.ErrClosed) {
					t.Errorf("seed %d: got %v after close, want ErrClosed", seed, err)
				}
				cancel()
				running.Wait()
				p.Close()
			}
			took := emptied(t, direct)
			t.Logf("seed %d: all was given back %s after the last one was closed", seed, took.Round(time.Millisecond))
			j.verify(t)
		})
	}
}
