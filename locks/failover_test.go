package locks_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// A fleet is a group of clients that hold locks while their Redis is harmed, and a witness of every
// grant.
type fleet struct {
	t       *testing.T
	clients []*locks.Client
	held    []*locks.Hold // held by the clients, never released
	more    []string      // names that are held besides those of holdAll
	highest locks.Token   // the highest that any of them has seen
}

// The lease of the fleets is short, because the grace period is longer.
const fleetLease = 6 * time.Second

func newFleet(t *testing.T, rdb redis.UniversalClient, o locks.Options, n int) *fleet {
	t.Helper()
	f := &fleet{t: t}
	for i := range n {
		o.Name = fmt.Sprint("member", i)
		f.clients = append(f.clients, openClient(t, rdb, o))
	}
	return f
}

// hold acquires a lock for one of the clients, to be kept.
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

// holdAll makes the clients hold every kind of lock: exclusive, shared, permits, nested, and a
// bundle.
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

// names returns the names that no other client may be granted.
func (f *fleet) names() (names []string) {
	for i := range f.clients {
		names = append(names, fmt.Sprint("own", i), fmt.Sprint("also", i), fmt.Sprint("up", i))
	}
	return append(append(names, "rates"), f.more...)
}

// besiege makes a client that knows nothing of the others try to get what they hold, until the
// returned function is called. Any grant is an error.
func (f *fleet) besiege(rdb redis.UniversalClient, o locks.Options) (end func()) {
	return f.siege(func(ctx context.Context) *locks.Client {
		for ctx.Err() == nil {
			if c, err := locks.Open(ctx, rdb, o); err == nil {
				return c
			}
			_ = sleep(ctx, 20*time.Millisecond)
		}
		return nil
	})
}

// besiegeFrom does the same with an existing client.
func (f *fleet) besiegeFrom(c *locks.Client) (end func()) {
	return f.siege(func(context.Context) *locks.Client { return c })
}

func (f *fleet) siege(open func(context.Context) *locks.Client) (end func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	var running sync.WaitGroup
	var refused, paused atomic.Int64
	running.Go(func() {
		c := open(ctx)
		if c == nil {
			return
		}
		defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
		names := f.names()
		slices.Reverse(names) // what was lost first
		for ctx.Err() == nil {
			began := time.Now()
			for _, name := range names {
				hold, err := c.TryAcquire(ctx, locks.Exclusive(name))
				if err == nil {
					f.t.Errorf("%s was granted to another client, token %s", name, hold.Token())
					return // and it keeps the lock: once is enough
				}
				if errors.Is(err, locks.ErrBusy) {
					refused.Add(1)
				}
				if errors.Is(err, locks.ErrGrace) {
					paused.Add(1)
				}
			}
			if hold, err := c.TryAcquire(ctx, locks.Permits("seats", 1)); err == nil {
				f.t.Errorf("one permit too many was granted, token %s", hold.Token())
				_ = hold.Release()
			}
			_ = sleep(ctx, 4*time.Since(began)) // the fleet needs the CPU as well
		}
	})
	return func() {
		eventually(f.t, "a request was refused", func() bool { return f.t.Failed() || refused.Load() > int64(len(f.names())) })
		cancel()
		running.Wait()
		if paused.Load() == 0 {
			f.t.Error("no request met the grace period: the test proves nothing")
		}
	}
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

// survives checks that all holds are still valid, also in Redis, and can be released.
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
			f := newFleet(t, rdb, locks.Options{Namespace: "ns", Lease: fleetLease}, 3)
			f.holdAll()
			// A client waits, and keeps waiting.
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
			// A client that knew nothing of the space would be granted at once, unless one of the
			// fleet had created it: that is the limit described in the package doc, and the purpose
			// of a set grace period.
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

// TestClientThatMissesTheGracePeriodIsCutOff prevents a client from learning that the space was
// emptied. Its work must end before its lock is granted to another client; this process reads both
// times.
func TestClientThatMissesTheGracePeriodIsCutOff(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	rdb, proxy := server.Client(t), server.Proxy(t)
	o := locks.Options{Namespace: "ns", Lease: fleetLease}
	f := newFleet(t, rdb, o, 1)
	o.Name = "away"
	away := openClient(t, proxy.Client(t), o)
	if _, err := away.Declare(t.Context(), "seats", locks.PermitLimit{Permits: 2, Version: 1}); err != nil {
		t.Fatal(err)
	}
	hold := acquire(t, away, locks.Exclusive("a"))
	kept := f.hold(0, t.Context(), locks.Exclusive("b"))
	var ended time.Time
	var running sync.WaitGroup
	running.Go(func() {
		<-hold.Context().Done()
		ended = time.Now()
	})
	proxy.Set(redistest.Faults{HoldRequests: true})
	if err := rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	next := acquire(t, f.clients[0], locks.Exclusive("a"))
	granted := time.Now()
	running.Wait()
	if !ended.Before(granted) {
		t.Errorf("the work ended %s after the next grant", ended.Sub(granted))
	}
	if cause := context.Cause(hold.Context()); !errors.Is(cause, locks.ErrLost) {
		t.Errorf("got cause %v", cause)
	}
	if next.Token() <= hold.Token() || kept.Context().Err() != nil {
		t.Errorf("got token %s after %s; the hold of the connected client: %v", next.Token(), hold.Token(), kept.Lost())
	}
	// Its earlier commands arrive now, late.
	proxy.Set(redistest.Faults{})
	again := acquire(t, away, locks.Exclusive("c"))
	if again.Session() == hold.Session() {
		t.Errorf("it continues in session %s", again.Session())
	}
	// It alone knew of these, and has declared them again.
	acquire(t, f.clients[0], locks.Permits("seats", 2))
	if next.Context().Err() != nil {
		t.Errorf("the hold that was granted meanwhile has ended: %v", next.Lost())
	}
}

// TestActsOnANewServerGrantNothing runs the first scripts on a server that may lack the last writes
// from a connection that was not greeted there. They free what is held as far as that server knows,
// and a client waits for it. The server lost that a lock had passed to a third client meanwhile,
// which cannot assert it yet.
func TestActsOnANewServerGrantNothing(t *testing.T) {
	t.Parallel()
	type act func(t *testing.T, s *locks.Space, gone, rests *locks.Hold) error
	endSession := func(t *testing.T, s *locks.Space, gone, _ *locks.Hold) error {
		return s.EndSession(t.Context(), gone.Session())
	}
	seize := func(t *testing.T, s *locks.Space, _, rests *locks.Hold) error {
		_, err := s.Revoke(t.Context(), "rests", rests.Token(), locks.Seize, why)
		return err
	}
	for name, acts := range map[string][]act{
		"a session is ended": {seize, endSession}, "a lock is seized": {endSession, seize},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.New(t, redistest.Options{})
			rdb, proxy, dead := server.Client(t), server.Proxy(t), server.Proxy(t)
			// The lease outlives an outage of 5.5 s; no request passes a wait because that is old.
			o := locks.Options{Namespace: "ns", Lease: 12 * time.Second, ReserveAfter: time.Hour}
			f := newFleet(t, proxy.Client(t), o, 3)
			o.Name = "gone"
			gone := acquire(t, openClient(t, dead.Client(t), o), locks.Exclusive("bill"))
			rests := acquire(t, f.clients[0], locks.Exclusive("rests"), locks.MinHold(time.Hour))
			release(t, rests)
			taken, err := f.clients[1].Acquire(t.Context(), locks.Exclusive("taken"))
			if err != nil {
				t.Fatal(err)
			}
			got := make(chan *locks.Hold, 1)
			go func() {
				defer close(got)
				hold, err := f.clients[2].Acquire(t.Context(), locks.Exclusive("bill", "rests"))
				if err != nil {
					t.Error(err)
					return
				}
				got <- hold
			}()
			eventually(t, "it waits", func() bool { return len(waits(t, f.clients[0])) == 1 })
			if err := rdb.Save(t.Context()).Err(); err != nil { // later writes are lost
				t.Fatal(err)
			}
			release(t, gone)
			dead.Set(redistest.Faults{DropRequests: true, DropReplies: true})
			kept := f.hold(0, t.Context(), locks.Exclusive("bill"))
			proxy.Set(redistest.Faults{Refuse: true})
			proxy.Cut()
			server.Kill()
			if err := server.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}

			space, err := locks.NewSpace(rdb, "ns")
			if err != nil {
				t.Fatal(err)
			}
			holder := func(name string) locks.Token {
				t.Helper()
				record, err := space.HeldBy(t.Context(), name)
				if err != nil {
					t.Fatal(err)
				}
				if len(record.Holds) == 0 {
					return 0
				}
				return record.Holds[0].Token
			}
			if holder("bill") != gone.Token() || holder("rests") != rests.Token() {
				t.Fatal("the server has not lost what it had to")
			}
			if _, err := space.Revoke(t.Context(), "taken", taken.Token(), locks.Seize, why); err != nil {
				t.Fatal(err)
			}
			for _, act := range acts {
				if err := act(t, space, gone, rests); err != nil {
					t.Fatal(err)
				}
			}
			if holder("bill") != 0 || holder("rests") != 0 {
				t.Errorf("held under the tokens %s and %s, want them free and no request granted", holder("bill"), holder("rests"))
			}
			if holder("taken") != taken.Token() {
				t.Error("what was taken is not kept for its holder to hear it")
			}
			proxy.Set(redistest.Faults{})
			f.awaitGrants(1) // the grace period is over
			if holder("bill") != kept.Token() {
				t.Errorf("held under token %s, want %s", holder("bill"), kept.Token())
			}
			eventually(t, "the returning client learns that its lock was taken", func() bool { return taken.Context().Err() != nil })
			if err := taken.Release(); !errors.Is(err, locks.ErrRevoked) {
				t.Errorf("got %v from the release of what was taken", err)
			}
			release(t, kept)
			next := <-got
			if next == nil || next.Token() <= kept.Token() {
				t.Fatalf("got %+v after token %s", next, kept.Token())
			}
			release(t, next)
		})
	}
}

// TestReadingANewServerLeavesItAsItIs reads the whole space on a server that it does not know.
func TestReadingANewServerLeavesItAsItIs(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	rdb := server.Client(t)
	c := openClient(t, rdb, locks.Options{Namespace: "ns", Lease: time.Minute})
	token := acquire(t, c, locks.Exclusive("a")).Token()
	keys := c.Space().Keys()
	if err := rdb.HSet(t.Context(), keys[6], "server", "another").Err(); err != nil {
		t.Fatal(err)
	}
	dump := func() (all []string) {
		for _, key := range keys {
			all = append(all, rdb.Dump(t.Context(), key).Val())
		}
		return all
	}
	before := dump()
	reader, err := locks.NewSpace(server.Client(t), "ns")
	if err != nil {
		t.Fatal(err)
	}
	if listing, err := reader.Read(t.Context()); err != nil || len(listing.Holds) != 1 {
		t.Errorf("got %+v, %v", listing, err)
	}
	if sessions, _, err := reader.Sessions(t.Context()); err != nil || len(sessions) != 1 {
		t.Errorf("got %+v, %v", sessions, err)
	}
	if record, err := reader.HeldBy(t.Context(), "a"); err != nil || record.Holder(token) == nil {
		t.Errorf("got %+v, %v", record, err)
	}
	if _, err := reader.Permits(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if !slices.Equal(dump(), before) {
		t.Error("reading has changed the space")
	}
}

// loseReplication cuts a replica off from its master, while both stay up: later writes are lost
// when the replica takes over.
func loseReplication(t *testing.T, master, replica *redistest.Server) {
	t.Helper()
	down := replica.Client(t)
	for name, value := range map[string]string{"masteruser": "nobody", "masterauth": "nothing"} {
		if err := down.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := master.Client(t).Do(t.Context(), "CLIENT", "KILL", "TYPE", "replica").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the replica is cut off", func() bool {
		return strings.Contains(down.Info(t.Context(), "replication").Val(), "master_link_status:down")
	})
}

// healReplication lets a server be a replica again.
func healReplication(t *testing.T, s *redistest.Server) {
	t.Helper()
	for _, name := range []string{"masteruser", "masterauth"} {
		if err := s.Client(t).ConfigSet(t.Context(), name, "").Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// One topology for several rules.
func TestHoldsSurviveASentinelFailover(t *testing.T) {
	t.Parallel()
	s := redistest.NewSentinel(t, redistest.SentinelOptions{DownAfter: 2 * time.Second, Config: []string{"min-replicas-max-lag 6"}})
	rdb := s.Client(t)

	// The old master lives on for 5 s, as one that is cut off from the others does, and accepts
	// writes of clients that still use it.
	t.Run("the old master continues", func(t *testing.T) {
		o := locks.Options{Namespace: "forced", Lease: fleetLease}
		f := newFleet(t, rdb, o, 3)
		f.holdAll()
		given := acquire(t, f.clients[1], locks.Exclusive("given"))
		awaitWrites(t, rdb, "written")
		master, replica := s.Members()[0], s.Members()[1]
		loseReplication(t, master, replica)
		f.more = []string{"lost"}
		f.hold(0, t.Context(), locks.Exclusive("lost"))
		release(t, given) // that is lost, too
		if err := s.Failover(t.Context()); err != nil {
			t.Fatal(err)
		}
		// The old master grants this, unless the client has followed the switch already.
		if after, err := f.clients[2].TryAcquire(t.Context(), locks.Exclusive("after")); err == nil {
			f.more = append(f.more, "after")
			f.held = append(f.held, after)
			f.highest = max(f.highest, after.Token())
		} else {
			t.Logf("the old master granted nothing more: %v", err)
		}
		o.Name = "stranger"
		end := f.besiege(s.Client(t), o)
		eventually(t, "the old master is notified", func() bool {
			return strings.Contains(master.Client(t).Info(t.Context(), "replication").Val(), "role:slave")
		})
		f.awaitGrants(1)
		end()
		release(t, acquire(t, f.clients[0], locks.Exclusive("given")))
		f.survives()
		healReplication(t, replica)
		if err := s.AwaitReplicas(t.Context()); err != nil {
			t.Fatal(err)
		}
	})

	t.Run("the master is killed", func(t *testing.T) {
		const lease = 20 * time.Second // it outlives an outage of 9.2 s
		o := locks.Options{Namespace: "killed", Lease: lease, Grace: lease}
		f := newFleet(t, rdb, o, 2)
		f.holdAll()
		awaitWrites(t, rdb, "written")
		master, replica := s.Members()[1], s.Members()[0]
		loseReplication(t, master, replica)
		f.more = []string{"lost"}
		f.hold(0, t.Context(), locks.Exclusive("lost"))
		master.Kill()
		if _, err := s.AwaitMaster(t.Context(), master); err != nil {
			t.Fatal(err)
		}
		o.Name = "stranger"
		end := f.besiege(s.Client(t), o)
		f.awaitGrants(1)
		end()
		f.survives()
	})
}

// awaitWrites returns when a replica has everything written through a client before it writes a
// key.
func awaitWrites(t *testing.T, rdb redis.UniversalClient, key string) {
	t.Helper()
	pipe := rdb.Pipeline()
	pipe.Set(t.Context(), key, 1, 0)
	acks := pipe.Do(t.Context(), "WAIT", 1, 10_000)
	_, err := pipe.Exec(t.Context())
	if n, _ := acks.Val().(int64); err != nil || n < 1 {
		t.Fatalf("%v replicas have the write (%v), want 1 at least", acks.Val(), err)
	}
}

// One cluster for several rules: it takes over two seconds to start.
func TestHoldsSurviveAClusterThatChanges(t *testing.T) {
	t.Parallel()
	// half of it is added to the lease
	c := redistest.NewCluster(t, redistest.ClusterOptions{NodeTimeout: 4 * time.Second})
	// It outlives an outage of 5.5 s: six busy nodes on a busy machine alone cause one of three.
	const lease = 2 * fleetLease

	t.Run("a replica takes over", func(t *testing.T) {
		const ns = "taken"
		o := locks.Options{Namespace: ns, Lease: lease}
		f := newFleet(t, c.Client(t), o, 3)
		f.holdAll()
		given := acquire(t, f.clients[1], locks.Exclusive("given"))
		master, replicas, err := c.NodeFor(t.Context(), "{"+ns+"}")
		if err != nil {
			t.Fatal(err)
		}
		// The stranger has connections to the replica from before it became the master.
		var nodes sync.Map
		options := c.ClusterOptions()
		options.NewClient = func(o *redis.Options) *redis.Client {
			node := redis.NewClient(o)
			nodes.Store(node, o.Addr)
			return node
		}
		rdb := redis.NewClusterClient(options)
		t.Cleanup(func() { _ = rdb.Close() })
		o.Name = "stranger"
		stranger := openClient(t, rdb, o)
		connected := false
		nodes.Range(func(node, address any) bool {
			err := node.(*redis.Client).Ping(t.Context()).Err()
			connected = connected || err == nil && strings.Contains(replicas[0].URL(), address.(string))
			return true
		})
		if !connected {
			t.Fatal("there is no connection to the replica: the test proves less than it says")
		}
		awaitWrites(t, master.Client(t), "{"+ns+"}")
		loseReplication(t, master, replicas[0])
		f.more = []string{"lost"}
		f.hold(0, t.Context(), locks.Exclusive("lost"))
		release(t, given)
		end := f.besiegeFrom(stranger)
		if err := c.TakeOver(t.Context(), "{"+ns+"}"); err != nil {
			t.Fatal(err)
		}
		f.awaitGrants(2)
		end()
		release(t, acquire(t, f.clients[0], locks.Exclusive("given")))
		f.survives()
		healReplication(t, replicas[0])
		if err := c.AwaitReplicas(t.Context()); err != nil {
			t.Fatal(err)
		}
	})

	t.Run("the slot moves under load", func(t *testing.T) {
		const ns = "moved"
		o := locks.Options{Namespace: ns, Lease: lease}
		f := newFleet(t, c.Client(t), o, 3)
		f.holdAll()
		from, _, err := c.NodeFor(t.Context(), "{"+ns+"}")
		if err != nil {
			t.Fatal(err)
		}
		var to *redistest.Server
		for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			if to, _, err = c.NodeFor(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			if to != from {
				break
			}
		}
		o.Name = "stranger"
		end := f.besiege(c.Client(t), o)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for i, client := range f.clients {
			running.Go(func() {
				for ctx.Err() == nil {
					if hold, err := client.Acquire(ctx, locks.Exclusive(fmt.Sprint("busy", i%2))); err == nil {
						_ = hold.Release()
					}
				}
			})
		}
		if err := c.MoveSlot(t.Context(), "{"+ns+"}", to); err != nil {
			t.Fatal(err)
		}
		f.awaitGrants(0)
		cancel()
		running.Wait()
		end()
		f.survives()
	})

	// No reply names the new master, so the clients must look for it. When the machine also stalls,
	// that outlasts a lease of 12 s.
	for name, stop := range map[string]func(*redistest.Server) error{
		// Like a host without power.
		"the master is silent": (*redistest.Server).Pause,
		// It refuses connections.
		"the master is killed": func(s *redistest.Server) error { s.Kill(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			ns := strings.ReplaceAll(name, " ", "-")
			o := locks.Options{Namespace: ns, Lease: 2 * lease}
			callers := c.Client(t)
			f := newFleet(t, callers, o, 3)
			f.holdAll()
			master, _, err := c.NodeFor(t.Context(), "{"+ns+"}")
			if err != nil {
				t.Fatal(err)
			}
			awaitWrites(t, master.Client(t), "{"+ns+"}")
			o.Name = "stranger"
			end := f.besiege(c.Client(t), o)
			if err := stop(master); err != nil {
				t.Fatal(err)
			}
			if err := c.TakeOver(t.Context(), "{"+ns+"}"); err != nil {
				t.Fatal(err)
			}
			f.awaitGrants(2)
			end()
			f.survives()
			// The client that the others were made from has sent nothing meanwhile.
			if err := callers.Get(t.Context(), "{"+ns+"}").Err(); err != nil {
				t.Errorf("the caller's client still asks the old master: %v", err)
			}
			if err := errors.Join(master.Restart(t.Context()), c.AwaitReplicas(t.Context())); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestFaultsUnderAFailoverAreFound runs tests of this file again with faults in the scripts: each
// must fail, and report that a lock had two holders or was lost. A fault opens a window: the
// stranger must ask the new server before another client's renewal detects that server. On a busy
// machine a run can miss the window, so each fault has several runs.
func TestFaultsUnderAFailoverAreFound(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it starts whole topologies")
	}
	if os.Getenv(locks.FaultEnv) != "" {
		t.Skip("this is a run with a fault")
	}
	const runs = 12
	for name, fault := range map[string]struct{ test, from, to, says string }{
		"there is no grace period": {
			"TestHoldsSurviveTheLossOfAllData/flushed", "if S.grace() then -- also", "if false then -- also", "was granted to another client",
		},
		"connections are not greeted": {
			"TestHoldsSurviveAClusterThatChanges/a_replica", "return {notice(ARGV[1], ARGV[2])}", "return {'known'}", "was granted to another client",
		},
		"another server is not noticed": {
			"TestHoldsSurviveASentinelFailover/the_old", "if not run or server == run then return 'known' end", "if true then return 'known' end", "lock is lost",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out []byte
			for range runs {
				run := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+strings.ReplaceAll(fault.test, "/", "$/^"), "-test.timeout=2m")
				run.Env = append(os.Environ(), locks.FaultEnv+"="+fault.from+"=>"+fault.to)
				var err error
				if out, err = run.CombinedOutput(); err != nil && strings.Contains(string(out), fault.says) {
					return
				}
			}
			t.Errorf("%d runs did not fail with %q; the last one:\n%s", runs, fault.says, out)
		})
	}
}
