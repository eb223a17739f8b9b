package redistest_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

// owner returns the master of a key and its replica, nil while no node knows it.
func owner(t *testing.T, c *redistest.Cluster, key string) (master, replica *redistest.Server) {
	t.Helper()
	master, replicas, err := c.NodeFor(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if len(replicas) > 0 {
		replica = replicas[0]
	}
	return master, replica
}

// another returns a node that began as a master, other than the given one.
func another(c *redistest.Cluster, not *redistest.Server) *redistest.Server {
	for _, m := range c.Members() {
		if m != not {
			return m
		}
	}
	panic("a cluster of one")
}

// setAndWait writes to the master of a key, and returns when its replica has it.
func setAndWait(t *testing.T, c *redistest.Cluster, key, value string) {
	t.Helper()
	master, _ := owner(t, c, key)
	pipe := master.Client(t).Pipeline()
	pipe.Set(t.Context(), key, value, 0)
	acks := pipe.Do(t.Context(), "WAIT", 1, 10_000)
	if _, err := pipe.Exec(t.Context()); err != nil || acks.Val() != int64(1) {
		t.Fatalf("%v replicas have the write (%v), want 1", acks.Val(), err)
	}
}

// One cluster for several rules: it takes over two seconds to start.
func TestCluster(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, redistest.ClusterOptions{NodeTimeout: 5 * time.Second})
	rdb := c.Client(t)

	t.Run("every key has a master with a replica", func(t *testing.T) {
		masters := make(map[*redistest.Server]bool)
		for i := range 30 {
			key := fmt.Sprint("key", i)
			if err := rdb.Set(t.Context(), key, i, 0).Err(); err != nil {
				t.Fatal(err)
			}
			master, replica := owner(t, c, key)
			masters[master] = true
			if got := master.Client(t).Get(t.Context(), key).Val(); got != fmt.Sprint(i) {
				t.Errorf("the master of %s has %q, want %d", key, got, i)
			}
			if role, err := replica.Client(t).Do(t.Context(), "ROLE").Slice(); err != nil || role[0] != "slave" {
				t.Errorf("got role %v (%v), want slave", role, err)
			}
		}
		if len(masters) != 3 {
			t.Errorf("30 keys are on %d masters, want 3", len(masters))
		}
	})

	t.Run("a takeover keeps what was waited for", func(t *testing.T) {
		setAndWait(t, c, "{a}", "v")
		old, replica := owner(t, c, "{a}")
		if err := c.TakeOver(t.Context(), "{a}"); err != nil {
			t.Fatal(err)
		}
		if master, _ := owner(t, c, "{a}"); master != replica {
			t.Errorf("the master is %s, want the replica %s of %s", master.URL(), replica.URL(), old.URL())
		}
		eventually(t, "the client reads from the new master", func() bool { return rdb.Get(t.Context(), "{a}").Val() == "v" })
	})

	t.Run("a failover goes back", func(t *testing.T) {
		if err := c.AwaitReplicas(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, replica := owner(t, c, "{a}")
		if err := c.Failover(t.Context(), "{a}"); err != nil {
			t.Fatal(err)
		}
		if master, _ := owner(t, c, "{a}"); master != replica {
			t.Errorf("the master is %s, want %s", master.URL(), replica.URL())
		}
	})

	t.Run("a slot moves under a client that writes", func(t *testing.T) {
		from, _ := owner(t, c, "{m}")
		to := another(c, from)
		var writing sync.WaitGroup
		var rounds atomic.Int64
		stop := make(chan struct{})
		writing.Go(func() {
			for {
				for i := range 20 {
					if err := rdb.Incr(t.Context(), fmt.Sprint("{m}", i)).Err(); err != nil {
						t.Errorf("while the slot moved: %v", err)
						return
					}
				}
				rounds.Add(1)
				select {
				case <-stop:
					return
				default:
				}
			}
		})
		eventually(t, "all keys are there", func() bool { return rounds.Load() > 0 })
		if err := c.MoveSlot(t.Context(), "{m}", to); err != nil {
			t.Error(err)
		}
		close(stop)
		writing.Wait()
		if master, _ := owner(t, c, "{m}"); master != to {
			t.Errorf("the slot is at %s, want %s", master.URL(), to.URL())
		}
		for i := range 20 {
			if got, err := rdb.Get(t.Context(), fmt.Sprint("{m}", i)).Int64(); err != nil || got != rounds.Load() {
				t.Errorf("key %d counts %d (%v), want %d", i, got, err, rounds.Load())
			}
		}
		if err := from.Client(t).Get(t.Context(), "{m}1").Err(); err == nil || !strings.HasPrefix(err.Error(), "MOVED") {
			t.Errorf("the old master says %v, want MOVED", err)
		}
	})

	t.Run("a slot in the middle of its move", func(t *testing.T) {
		from, _ := owner(t, c, "{h}")
		for _, key := range []string{"{h}1", "{h}2"} {
			if err := rdb.Set(t.Context(), key, "v", 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		move, err := c.BeginMove(t.Context(), "{h}", another(c, from))
		if err != nil {
			t.Fatal(err)
		}
		if err := move.Keys(t.Context(), "{h}1"); err != nil {
			t.Fatal(err)
		}
		if err := from.Client(t).Get(t.Context(), "{h}1").Err(); err == nil || !strings.HasPrefix(err.Error(), "ASK") {
			t.Errorf("the old master says %v for a key that has gone, want ASK", err)
		}
		if got, err := from.Client(t).Get(t.Context(), "{h}2").Result(); got != "v" {
			t.Errorf("got %q (%v) for a key that is still there", got, err)
		}
		if got, err := rdb.Get(t.Context(), "{h}1").Result(); got != "v" {
			t.Errorf("the client got %q (%v), want to be led by ASK", got, err)
		}
		if err := move.Finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"{h}1", "{h}2"} {
			if got, err := rdb.Get(t.Context(), key).Result(); got != "v" {
				t.Errorf("%s is %q (%v) after the move", key, got, err)
			}
		}
		if _, err := c.BeginMove(t.Context(), "{h}", another(c, from)); err == nil {
			t.Error("the slot moved to where it is")
		}
	})

	t.Run("the URL names the nodes", func(t *testing.T) {
		hosts, ok := strings.CutPrefix(c.URL(), "redis-cluster://")
		if !ok {
			t.Fatalf("got %s", c.URL())
		}
		other := redis.NewClusterClient(&redis.ClusterOptions{Addrs: strings.Split(hosts, ",")})
		defer other.Close()
		if err := other.Ping(t.Context()).Err(); err != nil {
			t.Error(err)
		}
	})
}

func TestClusterReplacesADeadMaster(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, redistest.ClusterOptions{})
	setAndWait(t, c, "{a}", "v")
	old, replica := owner(t, c, "{a}")
	old.Kill()
	master, err := c.AwaitMaster(t.Context(), "{a}", old)
	if err != nil {
		t.Fatal(err)
	}
	if master != replica {
		t.Errorf("the master is %s, want %s", master.URL(), replica.URL())
	}
	rdb := c.Client(t)
	if got, err := rdb.Get(t.Context(), "{a}").Result(); got != "v" {
		t.Errorf("got %q (%v), want v", got, err)
	}
	if err := old.RestartEmpty(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the old master is a replica of the new one", func() bool {
		master, replicas, err := c.NodeFor(t.Context(), "{a}")
		return err == nil && master == replica && len(replicas) == 1 && replicas[0] == old
	})
	if err := c.AwaitReplicas(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestClusterOfTwoMastersIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := redistest.StartCluster(t.Context(), redistest.ClusterOptions{Masters: 2}); err == nil {
		t.Error("it started")
	}
}
