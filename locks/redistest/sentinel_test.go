package redistest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

func TestSentinelFailoverMovesTheMasterAndKeepsAcknowledgedWrites(t *testing.T) {
	t.Parallel()
	s := redistest.NewSentinel(t, redistest.SentinelOptions{Replicas: 2})
	old, err := s.Master(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if old != s.Members()[0] {
		t.Errorf("the master is %s, want %s", old.URL(), s.Members()[0].URL())
	}
	rdb := s.Client(t)
	pipe := rdb.Pipeline()
	pipe.Set(t.Context(), "k", "v", 0)
	acks := pipe.Do(t.Context(), "WAIT", 2, 10_000)
	if _, err := pipe.Exec(t.Context()); err != nil || acks.Val() != int64(2) {
		t.Fatalf("%v replicas have the write (%v), want 2", acks.Val(), err)
	}
	if err := s.Failover(t.Context()); err != nil {
		t.Fatal(err)
	}
	master, err := s.Master(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if master == old {
		t.Errorf("the master is still %s", master.URL())
	}
	if replicas, err := s.Replicas(t.Context()); err != nil || len(replicas) != 2 || !slices.Contains(replicas, old) {
		t.Errorf("the replicas are %v (%v), want two, the old master among them", replicas, err)
	}
	if got, err := master.Client(t).Get(t.Context(), "k").Result(); got != "v" || err != nil {
		t.Errorf("got %q (%v), want v", got, err)
	}
	// The existing client follows.
	eventually(t, "the client writes to the new master", func() bool {
		return rdb.Set(t.Context(), "after", "v", 0).Err() == nil && master.Client(t).Get(t.Context(), "after").Val() == "v"
	})
	if err := s.AwaitReplicas(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Failover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again, err := s.Master(t.Context()); err != nil || again == master {
		t.Errorf("after a second failover the master is %v (%v), want another one", again, err)
	}
}

func TestSentinelsReplaceADeadMaster(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(*redistest.Server) error{
		"killed": func(m *redistest.Server) error { m.Kill(); return nil },
		"paused": (*redistest.Server).Pause,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.NewSentinel(t, redistest.SentinelOptions{})
			old := s.Members()[0]
			if err := old.Client(t).Set(t.Context(), "k", "old", 0).Err(); err != nil {
				t.Fatal(err)
			}
			if err := harm(old); err != nil {
				t.Fatal(err)
			}
			master, err := s.AwaitMaster(t.Context(), old)
			if err != nil {
				t.Fatal(err)
			}
			if err := master.Client(t).Set(t.Context(), "k", "new", 0).Err(); err != nil {
				t.Fatal(err)
			}
			if name == "killed" {
				return
			}
			if err := old.Resume(); err != nil {
				t.Fatal(err)
			}
			if err := s.AwaitReplicas(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := old.Client(t).Get(t.Context(), "k").Val(); got != "new" {
				t.Errorf("the old master has %q, want what was written to the new one", got)
			}
		})
	}
}

func TestMasterWithoutItsReplicaRefusesWrites(t *testing.T) {
	t.Parallel()
	s := redistest.NewSentinel(t, redistest.SentinelOptions{MinReplicasToWrite: 1})
	rdb := s.Client(t)
	if err := rdb.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	replicas, err := s.Replicas(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	replicas[0].Kill()
	eventually(t, "writes are refused", func() bool {
		err := rdb.Set(t.Context(), "k", "v", 0).Err()
		return err != nil && strings.HasPrefix(err.Error(), "NOREPLICAS")
	})
	if err := replicas[0].Restart(t.Context()); err != nil { // still as a replica
		t.Fatal(err)
	}
	eventually(t, "writes are taken again", func() bool { return rdb.Set(t.Context(), "k", "v", 0).Err() == nil })
}

func TestSentinelIsRestarted(t *testing.T) {
	t.Parallel()
	s := redistest.NewSentinel(t, redistest.SentinelOptions{Replicas: -1})
	if n := len(s.Members()); n != 1 {
		t.Errorf("got %d members, want the master alone", n)
	}
	watchers := s.Sentinels()
	watchers[0].Kill()
	watchers[1].Kill()
	rdb := s.Client(t)
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Errorf("with one sentinel left: %v", err)
	}
	if err := watchers[0].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := watchers[2].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if master, err := s.Master(t.Context()); err != nil || master != s.Members()[0] {
		t.Errorf("got master %v (%v), want the only member", master, err)
	}
}

func TestSentinelURLNamesTheSentinels(t *testing.T) {
	t.Parallel()
	s := redistest.NewSentinel(t, redistest.SentinelOptions{Replicas: -1})
	rest, ok := strings.CutPrefix(s.URL(), "redis-sentinel://")
	hosts, name, cut := strings.Cut(rest, "/0?master=")
	if !ok || !cut {
		t.Fatalf("got %s", s.URL())
	}
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: name, SentinelAddrs: strings.Split(hosts, ",")})
	defer rdb.Close()
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
}
