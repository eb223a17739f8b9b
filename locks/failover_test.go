package locks_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// A fleet is some clients that hold things while their Redis comes to harm, and a witness of every grant.
type fleet struct {
	t       *testing.T
	clients []*locks.Client
	held    []*locks.Hold // by the clients, to be kept
	highest locks.Token   // that any of them has seen
}

// lease of the fleets: short, for the grace time is longer.
const fleetLease = 3 * time.Second

func newFleet(t *testing.T, rdb redis.UniversalClient, namespace string, n int) *fleet {
	t.Helper()
	f := &fleet{t: t}
	for i := range n {
		f.clients = append(f.clients, openClient(t, rdb, locks.Options{
			Namespace: namespace, Name: fmt.Sprint("member", i), Lease: fleetLease, Grace: -1,
		}))
	}
	return f
}

// hold acquires something for one of the clients, to be kept.
func (f *fleet) hold(client int, ctx context.Context, parts ...locks.Part) *locks.Hold {
	f.t.Helper()
	hold, err := f.clients[client].Acquire(ctx, parts...)
	if err != nil {
		f.t.Fatalf("acquire: %v", err)
	}
	f.held = append(f.held, hold)
	f.highest = max(f.highest, hold.Token())
	return hold
}

// holdAll has the clients hold something of every kind: alone, shared, permits, nested, and a bundle.
func (f *fleet) holdAll() {
	f.t.Helper()
	ctx := f.t.Context()
	for i, c := range f.clients {
		if _, err := c.Declare(ctx, "seats", locks.PermitLimit{Permits: 2 * len(f.clients), Version: 1}); err != nil {
			f.t.Fatal(err)
		}
		f.hold(i, ctx, locks.Exclusive(fmt.Sprint("own", i), fmt.Sprint("also", i)))
		f.hold(i, ctx, locks.Shared("rates"), locks.Permits("seats", 2))
		outer := f.hold(i, ctx, locks.Shared(fmt.Sprint("up", i)))
		f.hold(i, outer.Context(), locks.Exclusive(fmt.Sprint("up", i)))
	}
}

// names returns what nobody else may be granted.
func (f *fleet) names() (names []string) {
	for i := range f.clients {
		names = append(names, fmt.Sprint("own", i), fmt.Sprint("also", i), fmt.Sprint("up", i))
	}
	return append(names, "rates")
}

// besiege has a client that knows nothing of the others try to get what they hold, until the function it returns is
// called. Being granted any of it is an error.
func (f *fleet) besiege(rdb redis.UniversalClient, o locks.Options) (end func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		var c *locks.Client
		for c == nil {
			var err error
			if c, err = locks.Open(ctx, rdb, o); err != nil {
				if sleep(ctx, 20*time.Millisecond) != nil {
					return
				}
			}
		}
		defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
		for round := 0; ctx.Err() == nil; round++ {
			for _, name := range f.names() {
				hold, err := c.TryAcquire(ctx, locks.Exclusive(name))
				if err == nil {
					f.t.Errorf("%s was granted to somebody else, token %s", name, hold.Token())
					_ = hold.Release()
				}
			}
			if hold, err := c.TryAcquire(ctx, locks.Permits("seats", 1)); err == nil {
				f.t.Errorf("one permit too many was granted, token %s", hold.Token())
				_ = hold.Release()
			}
			_ = sleep(ctx, 20*time.Millisecond)
		}
	})
	return func() { cancel(); running.Wait() }
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// awaitGrants waits until the space grants again, and checks that tokens have grown.
func (f *fleet) awaitGrants(client int) {
	f.t.Helper()
	hold := acquire(f.t, f.clients[client], locks.Exclusive("fresh"))
	if hold.Token() <= f.highest {
		f.t.Errorf("got token %s after %s", hold.Token(), f.highest)
	}
	release(f.t, hold)
}

// survives checks that all that is held is held still, in Redis too, and can be given back.
func (f *fleet) survives() {
	f.t.Helper()
	for _, hold := range f.held {
		if err := context.Cause(hold.Context()); err != nil {
			f.t.Errorf("%s of %s ended: %v", hold.Names(), hold.Session(), err)
		}
	}
	listed := make(map[locks.HoldID]locks.HoldRecord)
	for _, record := range holds(f.t, f.clients[0]) {
		listed[record.ID] = record
	}
	for _, hold := range f.held {
		if record := listed[hold.ID()]; record.Token != hold.Token() || fmt.Sprint(record.Items) != fmt.Sprint(hold.Items()) {
			f.t.Errorf("redis has %+v, want %v with token %s", record, hold.Items(), hold.Token())
		}
	}
	for i := len(f.held) - 1; i >= 0; i-- { // the inner ones first
		release(f.t, f.held[i])
	}
	f.held = nil
	for _, name := range f.names() {
		release(f.t, acquire(f.t, f.clients[0], locks.Exclusive(name)))
	}
}

func TestHoldsSurviveTheLossOfAllData(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(context.Context, *redistest.Server, *redis.Client) error{
		"flushed": func(ctx context.Context, _ *redistest.Server, rdb *redis.Client) error {
			return rdb.FlushAll(ctx).Err()
		},
		"restarted empty": func(ctx context.Context, s *redistest.Server, _ *redis.Client) error { return s.RestartEmpty(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.New(t, redistest.Options{})
			rdb := server.Client(t)
			f := newFleet(t, rdb, "ns", 3)
			f.holdAll()
			// Somebody waits, and goes on waiting.
			got := make(chan *locks.Hold, 1)
			go func() {
				defer close(got)
				hold, err := f.clients[1].Acquire(t.Context(), locks.Exclusive("own0"))
				if err != nil {
					t.Error(err)
					return
				}
				got <- hold
			}()
			eventually(t, "it waits", func() bool { return len(waits(t, f.clients[0])) == 1 })
			sessions := make([]locks.SessionID, len(f.clients))
			for i, c := range f.clients {
				sessions[i] = c.Session()
			}
			if err := harm(t.Context(), server, rdb); err != nil {
				t.Fatal(err)
			}
			// Whoever knew nothing of the space would be granted at once, unless one of the fleet had made it: that is the
			// limit that the package doc tells, and what a set grace time is for.
			end := f.besiege(rdb, locks.Options{Namespace: "ns", Name: "stranger", Lease: fleetLease, Grace: 2 * fleetLease})
			f.awaitGrants(2)
			eventually(t, "it waits again", func() bool { return len(waits(t, f.clients[0])) == 1 })
			end()
			for i, c := range f.clients {
				if c.Session() != sessions[i] {
					t.Errorf("client %d is in session %s, was in %s", i, c.Session(), sessions[i])
				}
			}
			first := f.held[0]
			release(t, first)
			f.held = f.held[1:]
			waited := <-got
			if waited == nil || waited.Token() <= first.Token() {
				t.Fatalf("got %+v for the wait", waited)
			}
			release(t, waited)
			f.survives()
		})
	}
}
