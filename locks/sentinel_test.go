package locks_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// failoverClient returns a client that follows the master, as a user of the topology's members.
func failoverClient(t *testing.T, s *redistest.Sentinel, user string) *redis.Client {
	t.Helper()
	o := s.FailoverOptions()
	if user != "" {
		o.Username, o.Password = user, "secret"
	}
	rdb := redis.NewFailoverClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// limitUser gives a user all rights except the dangerous ones, and INFO. Without INFO a client
// could not detect that a replica was promoted, so it is refused.
func limitUser(t *testing.T, s *redistest.Sentinel, user string) {
	t.Helper()
	set := func(rights ...any) {
		t.Helper()
		for _, member := range s.Members() { // rights are not replicated
			if err := member.Client(t).Do(t.Context(), append([]any{"ACL", "SETUSER", user}, rights...)...).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	set("on", ">secret", "~*", "&*", "+@all", "-@dangerous")
	c, err := patientOpen(t.Context(), failoverClient(t, s, user), locks.Options{Namespace: "ns"})
	if !errors.Is(err, locks.ErrServer) || c != nil {
		t.Fatalf("got %v for a user without INFO, want it refused", err)
	}
	set("+info")
}

// TestWorkFollowsTheMasterThatSentinelNames replaces a master in each way, at the pace of Sentinel
// as it is shipped. A client holds a lock; one that was connected before, and one that knows only
// the new master, want it.
func TestWorkFollowsTheMasterThatSentinelNames(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it starts whole topologies and waits for grace periods")
	}
	type harm func(context.Context, *redistest.Sentinel) error
	failover := func(ctx context.Context, s *redistest.Sentinel) error { return s.Failover(ctx) }
	strand := func(ctx context.Context, s *redistest.Sentinel) error { return s.Strand(ctx) }
	kill := func(ctx context.Context, s *redistest.Sentinel) error {
		old, err := s.Master(ctx)
		if err != nil {
			return err
		}
		old.Kill()
		_, err = s.AwaitMaster(ctx, old)
		return err
	}
	for name, test := range map[string]struct {
		harm     harm
		replicas int           // that a master needs to accept writes
		lease    time.Duration // a short one where clients see no outage
		survives bool          // the work continues on the new master; otherwise it may be cut off
		user     string        // with limited rights
	}{
		"orderly failover":               {failover, 0, 10 * time.Second, true, ""},
		"master that clients reach":      {strand, 0, 10 * time.Second, true, ""},
		"crash":                          {kill, 0, 6 * time.Second, false, ""},
		"orderly failover, min-replicas": {failover, 1, 20 * time.Second, true, ""},
		"reachable master, min-replicas": {strand, 1, 20 * time.Second, true, ""},
		"crash, min-replicas":            {kill, 1, 6 * time.Second, false, ""},
		"orderly failover, limited user": {failover, 0, 10 * time.Second, true, "app"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.NewSentinel(t, redistest.SentinelOptions{
				Replicas: 2, MinReplicasToWrite: test.replicas, ShippedPace: true, DownAfter: 2 * time.Second,
			})
			if test.user != "" {
				limitUser(t, s, test.user)
			}
			connect := func() *redis.Client { return failoverClient(t, s, test.user) }
			o := locks.Options{Namespace: "ns", Lease: test.lease}
			open := func(name string) *locks.Client {
				o := o
				o.Name = name
				// a new master has no replica for a moment
				eventually(t, "Redis takes writes", func() bool {
					return connect().Set(t.Context(), "written", 1, 0).Err() == nil
				})
				return openClient(t, connect(), o)
			}
			worker, waiter := open("worker"), open("waiter")
			hold, err := worker.Acquire(t.Context(), locks.Exclusive("job"))
			if err != nil {
				t.Fatal(err)
			}
			awaitWrites(t, s.Client(t), "written")

			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			defer running.Wait()
			defer cancel()
			// want makes a client wait for the lock, and hold it for a moment when the work has
			// ended.
			want := func(c *locks.Client) {
				for ctx.Err() == nil {
					got, err := c.Acquire(ctx, locks.Exclusive("job"))
					if err != nil {
						continue // its session was cut off, or ctx has ended
					}
					if cause := context.Cause(hold.Context()); cause == nil {
						t.Errorf("%s was granted token %s while the work under token %s continues", got.Session(), got.Token(), hold.Token())
					}
					_ = sleep(ctx, 50*time.Millisecond)
					if err := got.Release(); err != nil && !errors.Is(err, locks.ErrLost) {
						t.Error(err)
					}
				}
			}
			running.Go(func() { want(waiter) })
			began := time.Now()
			if err := test.harm(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			switched := time.Now()
			stranger := open("stranger") // a new connection, so to the new master
			running.Go(func() { want(stranger) })

			// The grace period of the new master ends a lease after its first connection; until
			// then nothing is granted.
			bound := within(t, test.lease+30*time.Second)
			for i, c := range []*locks.Client{stranger, waiter, worker} {
				got, err := c.Acquire(bound, locks.Exclusive(fmt.Sprint("fresh", i)))
				if err != nil {
					t.Fatalf("%s cannot work on the new master after %s: %v", c.Session(), time.Since(switched).Round(time.Millisecond), err)
				}
				release(t, got)
			}
			t.Logf("switched after %s, all can work after another %s; the work: %v", switched.Sub(began).Round(time.Millisecond),
				time.Since(switched).Round(time.Millisecond), hold.Lost())
			if cause := context.Cause(hold.Context()); cause != nil && test.survives {
				t.Errorf("the work was ended: %v", cause)
			}
			if hold.Context().Err() != nil {
				return
			}
			// The new master knows what continues.
			master, err := s.Master(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			space, err := locks.NewSpace(master.Client(t), "ns")
			if err != nil {
				t.Fatal(err)
			}
			record, err := space.HeldBy(t.Context(), "job")
			if err != nil {
				t.Fatal(err)
			}
			if record.Holder(hold.Token()) == nil && hold.Context().Err() == nil {
				t.Errorf("the work continues under token %s, and on the new master the lock is held by %+v", hold.Token(), record.Holds)
			}
			release(t, hold)
		})
	}
}
