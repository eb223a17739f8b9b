package redistest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// SentinelOptions describe what [NewSentinel] starts. The zero value is a master with one replica
// and without persistence.
type SentinelOptions struct {
	// Replicas is how many replicas the master has: 1 by default; negative means none.
	Replicas int

	// DownAfter is how long a server must not reply before a sentinel considers it dead, 1 s by
	// default. About 2 s later a replica has taken over. A process that a busy machine does not run
	// for that long counts as dead, too: a test that relies on having no failover needs more.
	DownAfter time.Duration

	// ShippedPace makes the sentinels as fast as they are by default, once they have found each
	// other: a new master is announced every 2 s, and a server that was a master becomes a replica
	// after 8 to 18 s. Otherwise all of that is faster.
	ShippedPace bool

	// MinReplicasToWrite is how many replicas a master needs to accept writes: 0 by default.
	// Without them it replies NOREPLICAS, a second or two after it last heard from a replica. A
	// replica that has taken over has none itself until the others have joined it.
	MinReplicasToWrite int

	// TLS makes all servers and sentinels use TLS; nil means plain text.
	TLS *TLS

	// Config has additional lines of redis.conf for the master and its replicas, such as
	// "appendonly yes".
	Config []string
}

const (
	masterName    = "lockstep"
	sentinelCount = 3
	quorum        = 2
)

// A Sentinel is a master, its replicas, and three sentinels that watch them and promote a replica
// when the master is dead. All of them are separate processes on ports of 127.0.0.1. Tests harm
// single ones through their [Server], see [Sentinel.Members] and [Sentinel.Sentinels].
// [Sentinel.Failover] changes the master in order. The methods are safe for concurrent use.
type Sentinel struct {
	tls       *TLS
	members   []*Server
	sentinels []*Server
}

// StartSentinel starts the servers and returns when each sentinel sees the master, its replicas and
// the other sentinels. ctx bounds the start, not the life, which ends with [Sentinel.Stop] or with
// this process. Tests that have a [testing.TB] use [NewSentinel].
//
// The error is [ErrMissing] if this machine has no redis-server.
func StartSentinel(ctx context.Context, o SentinelOptions) (_ *Sentinel, err error) {
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	if o.DownAfter == 0 {
		o.DownAfter = time.Second
	}
	s := &Sentinel{tls: o.TLS}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("redistest: start a sentinel topology: %w", err), s.Stop())
		}
	}()
	config := slices.Concat(replicated, []string{
		"min-replicas-to-write " + strconv.Itoa(o.MinReplicasToWrite),
		"min-replicas-max-lag 2",
	}, o.Config)
	if s.members, err = launchAll(ctx, data, 1, func(int) Options { return Options{TCP: true, TLS: o.TLS, Config: config} }); err != nil {
		return nil, err
	}
	master := s.members[0]
	config = append(config, fmt.Sprintf("replicaof 127.0.0.1 %d", master.port))
	replicas, err := launchAll(ctx, data, max(o.Replicas, 0), func(int) Options { return Options{TCP: true, TLS: o.TLS, Config: config} })
	s.members = append(s.members, replicas...)
	if err != nil {
		return nil, err
	}
	// A sentinel reads the state of a replica every ten seconds, beginning when it finds it: by
	// then the state must be good.
	for _, replica := range replicas {
		if err = settle(ctx, func(ctx context.Context) error { return replica.checkReplica(ctx, master) }); err != nil {
			return nil, err
		}
	}
	if s.sentinels, err = launchAll(ctx, sentinel, sentinelCount, func(int) Options { return Options{TCP: true, TLS: o.TLS} }); err != nil {
		return nil, err
	}
	for _, watcher := range s.sentinels {
		if err = watcher.ask(ctx, func(ctx context.Context, rdb *redis.Client) error { return watch(ctx, rdb, master, o) }); err != nil {
			return nil, err
		}
	}
	if err = settle(ctx, func(ctx context.Context) error { return s.checkWatchers(ctx, master) }); err != nil {
		return nil, err
	}
	// If a sentinel knows a server as a replica, and the server reports to be a master for four
	// times the publish period, the sentinel turns it into a replica. That includes a server that
	// another sentinel has promoted, unless the news of that arrived in time.
	pace := []any{"publish-period", 1000}
	if o.ShippedPace {
		pace = []any{"publish-period", 2000, "info-period", 10_000, "ask-period", 1000, "tilt-period", 30_000}
	}
	for _, watcher := range s.sentinels {
		if err = watcher.ask(ctx, func(ctx context.Context, rdb *redis.Client) error { return setPace(ctx, rdb, pace...) }); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// setPace makes a sentinel work faster than is good for networks of some size. A restart of the
// sentinel undoes it, and versions before Redis 7 do not know it: then everything takes longer.
func setPace(ctx context.Context, rdb *redis.Client, pace ...any) error {
	err := rdb.Do(ctx, append([]any{"SENTINEL", "DEBUG"}, pace...)...).Err()
	if err != nil && strings.Contains(strings.ToLower(err.Error()), "unknown") {
		return nil
	}
	return err
}

// watch starts the watching of a sentinel.
func watch(ctx context.Context, rdb *redis.Client, master *Server, o SentinelOptions) error {
	if err := setPace(
		ctx, rdb,
		"publish-period", 250, // how it finds the others
		"info-period", 1000, // how it sees the state of a replica
		"ask-period", 250, // how it asks the others whether they consider a master dead
		"tilt-period", 2000, // how long it does nothing after a pause
	); err != nil {
		return err
	}
	if err := rdb.Do(ctx, "SENTINEL", "MONITOR", masterName, "127.0.0.1", master.port, quorum).Err(); err != nil {
		return err
	}
	down := o.DownAfter.Milliseconds()
	return rdb.Do(ctx, "SENTINEL", "SET", masterName,
		"down-after-milliseconds", down,
		// The sentinels try a second time after twice this.
		"failover-timeout", max(3*down, 3000),
	).Err()
}

// checkWatchers reports what a running sentinel does not see yet: the others, or a replica as a
// replica.
func (s *Sentinel) checkWatchers(ctx context.Context, master *Server) error {
	for _, watcher := range s.sentinels {
		if !watcher.running() {
			continue
		}
		err := watcher.ask(ctx, func(ctx context.Context, rdb *redis.Client) error {
			if err := rdb.Do(ctx, "SENTINEL", "CKQUORUM", masterName).Err(); err != nil {
				return err
			}
			replicas, err := seen(ctx, rdb, "replicas")
			if err != nil {
				return err
			}
			sentinels, err := seen(ctx, rdb, "sentinels")
			if err != nil {
				return err
			}
			for _, m := range s.members {
				if m == master || !m.running() {
					continue
				}
				f := replicas[m.port]
				if f["flags"] != "slave" || f["role-reported"] != "slave" || f["master-link-status"] != "ok" {
					return fmt.Errorf("the sentinel at %s sees the replica %s as %q, with the role %q and the link %q",
						watcher.address(), m.address(), f["flags"], f["role-reported"], f["master-link-status"])
				}
			}
			for _, other := range s.sentinels {
				if other == watcher || !other.running() {
					continue
				}
				// Valkey 9 keeps another sentinel's report on the last master until it asks again.
				if f := sentinels[other.port]; strings.TrimSuffix(f["flags"], ",master_down") != "sentinel" {
					return fmt.Errorf("the sentinel at %s sees the one at %s as %q", watcher.address(), other.address(), f["flags"])
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// seen returns what a sentinel knows of the replicas, or of the other sentinels, by port.
func seen(ctx context.Context, rdb *redis.Client, what string) (map[int]map[string]string, error) {
	list := redis.NewMapStringStringSliceCmd(ctx, "SENTINEL", what, masterName)
	if err := rdb.Process(ctx, list); err != nil {
		return nil, err
	}
	out := make(map[int]map[string]string)
	for _, one := range list.Val() {
		port, err := strconv.Atoi(one["port"])
		if err != nil {
			return nil, err
		}
		out[port] = one
	}
	return out, nil
}

// NewSentinel starts a topology for one test and stops it when the test ends. A failure to start
// fails the test.
func NewSentinel(tb testing.TB, o SentinelOptions) *Sentinel {
	tb.Helper()
	return forTest(tb, o, StartSentinel)
}

// Stop ends all processes with SIGKILL, returns when they have exited, and removes their files.
func (s *Sentinel) Stop() error { return errors.Join(stopAll(s.sentinels), stopAll(s.members)) }

// Members returns the servers that keep the data, whatever their current role; the first one was
// the first master.
func (s *Sentinel) Members() []*Server { return slices.Clone(s.members) }

// Sentinels returns the three sentinels.
func (s *Sentinel) Sentinels() []*Server { return slices.Clone(s.sentinels) }

// URL returns the topology's address for a configuration:
// redis-sentinel://HOST:PORT,.../0?master=NAME, or rediss-sentinel.
func (s *Sentinel) URL() string {
	return fmt.Sprintf("%s://%s/0?master=%s", s.tls.scheme("-sentinel"), strings.Join(addresses(s.sentinels), ","), masterName)
}

// FailoverOptions returns fresh options for a client that follows the master, otherwise as
// [Server.RedisOptions].
func (s *Sentinel) FailoverOptions() *redis.FailoverOptions {
	return &redis.FailoverOptions{
		MasterName:            masterName,
		SentinelAddrs:         addresses(s.sentinels),
		TLSConfig:             s.tls.Client(),
		MaxRetries:            -1,
		DialerRetries:         1,
		ContextTimeoutEnabled: true,
	}
}

// Client returns a client that follows the master, closed when the test ends.
func (s *Sentinel) Client(tb testing.TB) *redis.Client {
	tb.Helper()
	return closing(tb, redis.NewFailoverClient(s.FailoverOptions()))
}

// Master returns the member that the sentinels name as the master, dead or alive. It does not ask
// sentinels that are dead or paused. While the others disagree it returns an error, which passes:
// use [Sentinel.AwaitMaster] after causing harm.
func (s *Sentinel) Master(ctx context.Context) (*Server, error) {
	master, err := s.master(ctx)
	if err != nil {
		return nil, fmt.Errorf("redistest: which is the master: %w", err)
	}
	return master, nil
}

func (s *Sentinel) master(ctx context.Context) (*Server, error) {
	var named *Server
	for _, watcher := range s.sentinels {
		if !watcher.running() {
			continue
		}
		var port int
		err := watcher.ask(ctx, func(ctx context.Context, rdb *redis.Client) (err error) {
			port, err = masterPort(ctx, rdb)
			return err
		})
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(s.members, func(m *Server) bool { return m.port == port })
		switch {
		case i < 0:
			return nil, fmt.Errorf("a sentinel names the master at port %d, which is not a member", port)
		case named != nil && named != s.members[i]:
			return nil, errors.New("the sentinels do not agree")
		}
		named = s.members[i]
	}
	if named == nil {
		return nil, errors.New("no sentinel runs")
	}
	return named, nil
}

// Replicas returns all members except [Sentinel.Master].
func (s *Sentinel) Replicas(ctx context.Context) ([]*Server, error) {
	master, err := s.Master(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(s.Members(), func(m *Server) bool { return m == master }), nil
}

// AwaitMaster waits until all running sentinels name another master than old and that one has taken
// over, and returns it. With MinReplicasToWrite it may still refuse writes then.
func (s *Sentinel) AwaitMaster(ctx context.Context, old *Server) (master *Server, err error) {
	err = settle(ctx, func(ctx context.Context) (err error) {
		if master, err = s.master(ctx); err != nil {
			return err
		}
		if master == old {
			return fmt.Errorf("the master is still %s", old.address())
		}
		return master.ask(ctx, func(ctx context.Context, rdb *redis.Client) error {
			role, err := rdb.Do(ctx, "ROLE").Slice()
			if err != nil {
				return err
			}
			if role[0] != "master" {
				return fmt.Errorf("%s has the role %v", master.address(), role[0])
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("redistest: wait for a new master: %w", err)
	}
	return master, nil
}

// AwaitReplicas waits until every running member besides the master is its replica, with a copy of
// its data, and the running sentinels know that. Only then does the promise of [redis.Client.Wait]
// cover them, and can they take over.
func (s *Sentinel) AwaitReplicas(ctx context.Context) error {
	err := settle(ctx, func(ctx context.Context) error {
		master, err := s.master(ctx)
		if err != nil {
			return err
		}
		for _, m := range s.members {
			if m == master || !m.running() {
				continue
			}
			if err := m.checkReplica(ctx, master); err != nil {
				return err
			}
		}
		return s.checkWatchers(ctx, master)
	})
	if err != nil {
		return fmt.Errorf("redistest: wait for the replicas: %w", err)
	}
	return nil
}

// Failover promotes a replica although the master is alive, and returns when [Sentinel.AwaitMaster]
// does. Sentinel notifies the old master about 5 s later. Until then it accepts writes of clients
// that still use it, and they are lost. [Sentinel.AwaitReplicas] waits for that.
func (s *Sentinel) Failover(ctx context.Context) error {
	old, err := s.Master(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(s.sentinels, (*Server).running)
	if i < 0 {
		return errors.New("redistest: failover: no sentinel runs")
	}
	err = settle(ctx, func(ctx context.Context) error {
		return s.sentinels[i].ask(ctx, func(ctx context.Context, rdb *redis.Client) error {
			port, err := masterPort(ctx, rdb)
			if err != nil || port != old.port {
				return err
			}
			// It is refused while another failover runs, or while no replica is fit; and a running
			// one may be abandoned.
			if err := rdb.Do(ctx, "SENTINEL", "FAILOVER", masterName).Err(); err != nil {
				return err
			}
			return fmt.Errorf("the failover from %s has just begun", old.address())
		})
	})
	if err != nil {
		return fmt.Errorf("redistest: failover: %w", err)
	}
	_, err = s.AwaitMaster(ctx, old)
	return err
}

// Strand makes the sentinels replace a master that clients still reach. To the sentinels it is
// dead, they cannot make it a replica, and its replicas leave it. Strand returns when
// [Sentinel.AwaitMaster] does.
func (s *Sentinel) Strand(ctx context.Context) error {
	old, err := s.Master(ctx)
	if err != nil {
		return err
	}
	err = old.ask(ctx, func(ctx context.Context, rdb *redis.Client) error {
		return rdb.Do(ctx, "ACL", "SETUSER", "default", "-ping", "-replicaof", "-slaveof").Err()
	})
	if err != nil {
		return fmt.Errorf("redistest: strand the master: %w", err)
	}
	_, err = s.AwaitMaster(ctx, old)
	return err
}

// masterPort asks a sentinel for the port of the master.
func masterPort(ctx context.Context, rdb *redis.Client) (int, error) {
	address := redis.NewStringSliceCmd(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", masterName)
	if err := rdb.Process(ctx, address); err != nil {
		return 0, err
	}
	if len(address.Val()) != 2 {
		return 0, fmt.Errorf("a sentinel names the master %q", address.Val())
	}
	return strconv.Atoi(address.Val()[1])
}
