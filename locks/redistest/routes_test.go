package redistest_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

func TestRoutedClientOfSentinelMeetsTheFaults(t *testing.T) {
	t.Parallel()
	s := redistest.NewSentinel(t, redistest.SentinelOptions{})
	routes := s.Routes(t)
	o := s.FailoverOptions()
	o.Dialer = routes.Dial
	rdb := redis.NewFailoverClient(o)
	defer rdb.Close()
	if err := rdb.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	old := s.Members()[0]
	routes.To(old).Set(redistest.Faults{Resend: 1, Commands: []string{"incr"}})
	if got, err := rdb.Incr(t.Context(), "n").Result(); err != nil || got != 2 {
		t.Errorf("got %d (%v), want 2: it was sent twice", got, err)
	}
	routes.Set(redistest.Faults{DropRequests: true, DropReplies: true})
	if err := rdb.Ping(within(t, 50*time.Millisecond)).Err(); err == nil {
		t.Error("a client that is cut off got an answer")
	}
	// The others do not notice.
	if got, err := s.Client(t).Incr(t.Context(), "n").Result(); err != nil || got != 3 {
		t.Errorf("another client got %d (%v), want 3", got, err)
	}
	if err := s.AwaitReplicas(t.Context()); err != nil {
		t.Error(err)
	}
	routes.Set(redistest.Faults{})
	routes.Cut()
	eventually(t, "the client is back", func() bool { return rdb.Ping(t.Context()).Err() == nil })
	// It follows a failover, on routes as before.
	if err := s.Failover(t.Context()); err != nil {
		t.Fatal(err)
	}
	master, err := s.Master(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the client writes to the new master", func() bool {
		return rdb.Set(t.Context(), "after", "v", 0).Err() == nil && master.Client(t).Get(t.Context(), "after").Val() == "v"
	})
	routes.To(master).Set(redistest.Faults{Resend: 1, Commands: []string{"incr"}})
	if got, err := rdb.Incr(t.Context(), "m").Result(); err != nil || got != 2 {
		t.Errorf("after the failover: got %d (%v), want 2", got, err)
	}
}

func TestRoutedClientOfAClusterMeetsTheFaults(t *testing.T) {
	t.Parallel()
	c := redistest.NewCluster(t, redistest.ClusterOptions{Replicas: -1, NodeTimeout: 5 * time.Second})
	routes := c.Routes(t)
	o := c.ClusterOptions()
	o.Dialer = routes.Dial
	rdb := redis.NewClusterClient(o)
	defer rdb.Close()
	if err := rdb.Set(t.Context(), "{a}", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	from, _ := owner(t, c, "{a}")
	to := another(c, from)
	routes.To(from).Set(redistest.Faults{Resend: 1, Commands: []string{"incr"}})
	if got, err := rdb.Incr(t.Context(), "{a}1").Result(); err != nil || got != 2 {
		t.Errorf("got %d (%v), want 2: it was sent twice", got, err)
	}
	if err := c.MoveSlot(t.Context(), "{a}", to); err != nil {
		t.Fatal(err)
	}
	if got, err := rdb.Incr(t.Context(), "{a}1").Result(); err != nil || got != 3 {
		t.Errorf("got %d (%v), want 3: the slot is where requests are sent once", got, err)
	}
	routes.To(to).Set(redistest.Faults{Refuse: true})
	routes.Cut()
	if err := rdb.Get(within(t, 5*time.Second), "{a}").Err(); err == nil {
		t.Error("a client that is refused got an answer")
	}
	if got, err := c.Client(t).Get(t.Context(), "{a}").Result(); got != "v" {
		t.Errorf("another client got %q (%v), want v", got, err)
	}
	routes.Set(redistest.Faults{})
	eventually(t, "the client is back", func() bool { return rdb.Get(t.Context(), "{a}").Val() == "v" })
}
