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

// ClusterOptions describe what [NewCluster] starts. The zero value is three masters with one
// replica each.
type ClusterOptions struct {
	// Masters is how many masters share the slots evenly, 3 by default and at least: a majority of
	// them elects a replica when one is dead.
	Masters int

	// Replicas is how many replicas each master has: 1 by default; negative means none.
	Replicas int

	// NodeTimeout is how long a node must not reply before the others consider it dead, 2 s by
	// default. One or two seconds later a replica has taken over. A process that a busy machine
	// does not run for that long counts as dead, too: a test that relies on having no failover
	// needs more.
	NodeTimeout time.Duration

	// TLS makes all nodes use TLS, among themselves too; nil means plain text.
	TLS *TLS

	// Config has additional lines of redis.conf for all nodes, such as "appendonly yes".
	Config []string
}

const slotCount = 16384

// A Cluster is a Redis Cluster with separate processes as nodes, on ports of 127.0.0.1. Tests harm
// single nodes through their [Server]: see [Cluster.NodeFor] and [Cluster.Members].
// [Cluster.TakeOver] and [Cluster.Failover] change the master of a key, [Cluster.MoveSlot] and
// [Cluster.BeginMove] its shard. The methods are safe for concurrent use.
type Cluster struct {
	tls     *TLS
	members []*Server
	ids     map[*Server]string
}

// StartCluster starts the nodes and returns when each of them reports that all is well, sees all
// the others, and has all slots covered. ctx bounds the start, not the life, which ends with
// [Cluster.Stop] or with this process. Tests that have a [testing.TB] use [NewCluster]. It takes at
// least 2 s, because a new node accepts no writes for that long.
//
// The error is [ErrMissing] if this machine has no redis-server.
func StartCluster(ctx context.Context, o ClusterOptions) (_ *Cluster, err error) {
	if o.Masters == 0 {
		o.Masters = 3
	}
	if o.Masters < 3 {
		return nil, fmt.Errorf("redistest: a cluster has at least three masters, not %d", o.Masters)
	}
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	o.Replicas = max(o.Replicas, 0)
	if o.NodeTimeout == 0 {
		o.NodeTimeout = 2 * time.Second
	}
	c := &Cluster{tls: o.TLS, ids: make(map[*Server]string)}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("redistest: start a cluster: %w", err), c.Stop())
		}
	}()
	config := slices.Concat(replicated, []string{
		"cluster-node-timeout " + strconv.FormatInt(o.NodeTimeout.Milliseconds(), 10),
		"cluster-replica-validity-factor 0", // the only replica takes over, however old its data is
		"cluster-migration-barrier 1000",    // a replica stays with its master
	}, o.Config)
	c.members, err = launchAll(ctx, clusterNode, o.Masters*(1+o.Replicas), func(int) Options {
		return Options{TCP: true, TLS: o.TLS, Config: config}
	})
	if err != nil {
		return nil, err
	}
	for i, m := range c.members {
		if err = m.ask(ctx, func(ctx context.Context, rdb *redis.Client) error { return c.introduce(ctx, rdb, i, o) }); err != nil {
			return nil, err
		}
	}
	for i, m := range c.members[o.Masters:] {
		master := c.members[i%o.Masters]
		// A node cannot be the replica of a node that it has not met yet.
		err = settle(ctx, func(ctx context.Context) error {
			return m.ask(ctx, func(ctx context.Context, rdb *redis.Client) error {
				return rdb.ClusterReplicate(ctx, c.ids[master]).Err()
			})
		})
		if err != nil {
			return nil, err
		}
	}
	for _, m := range c.members {
		if err = settle(ctx, func(ctx context.Context) error { return c.checkMember(ctx, m) }); err != nil {
			return nil, err
		}
	}
	if err = settle(ctx, c.checkReplicas); err != nil {
		return nil, err
	}
	return c, nil
}

// introduce gives a node its slots and its epoch, and makes it meet the nodes before it.
func (c *Cluster) introduce(ctx context.Context, rdb *redis.Client, i int, o ClusterOptions) error {
	id, err := rdb.ClusterMyID(ctx).Result()
	if err != nil {
		return err
	}
	c.ids[c.members[i]] = id
	if i < o.Masters {
		var slots []int
		for slot := i * slotCount / o.Masters; slot < (i+1)*slotCount/o.Masters; slot++ {
			slots = append(slots, slot)
		}
		if err := rdb.ClusterAddSlots(ctx, slots...).Err(); err != nil {
			return err
		}
	}
	// Of two nodes with the same epoch, one takes a higher epoch later, when a test has begun.
	if err := rdb.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(); err != nil {
		return err
	}
	for _, other := range c.members[:i] {
		if err := rdb.ClusterMeet(ctx, "127.0.0.1", strconv.Itoa(other.port)).Err(); err != nil {
			return err
		}
	}
	return nil
}

// checkMember reports what a node does not see yet.
func (c *Cluster) checkMember(ctx context.Context, m *Server) error {
	return m.ask(ctx, func(ctx context.Context, rdb *redis.Client) error {
		info, err := rdb.ClusterInfo(ctx).Result()
		if err != nil {
			return err
		}
		if f := fields(info); f["cluster_state"] != "ok" || f["cluster_slots_ok"] != strconv.Itoa(slotCount) {
			return fmt.Errorf("%s says %s, %s slots are covered", m.address(), f["cluster_state"], f["cluster_slots_ok"])
		}
		nodes, err := readNodes(ctx, rdb)
		if err != nil {
			return err
		}
		connected := 0
		for _, n := range nodes {
			if n.connected && c.member(n.id) != nil {
				connected++
			}
		}
		if connected != len(c.members) {
			return fmt.Errorf("%s is connected to %d of %d nodes", m.address(), connected, len(c.members))
		}
		return nil
	})
}

// node is a line of the reply to CLUSTER NODES.
type node struct {
	id        string
	flags     []string
	master    string // the ID of a replica's master
	epoch     int64  // of several claims to a slot, the highest is right
	connected bool
	slots     [][2]int // from, to
}

func (n node) is(flag string) bool { return slices.Contains(n.flags, flag) }

// serves reports whether the node is the master of a slot, as far as the node that was asked knows.
func (n node) serves(slot int) bool {
	return n.is("master") && slices.ContainsFunc(n.slots, func(r [2]int) bool { return r[0] <= slot && slot <= r[1] })
}

func readNodes(ctx context.Context, rdb *redis.Client) ([]node, error) {
	text, err := rdb.ClusterNodes(ctx).Result()
	if err != nil {
		return nil, err
	}
	var nodes []node
	for line := range strings.Lines(text) {
		// id address flags master ping-sent pong-received epoch link-state slot...
		f := strings.Fields(line)
		if len(f) < 8 {
			return nil, fmt.Errorf("CLUSTER NODES answered %q", line)
		}
		epoch, err := strconv.ParseInt(f[6], 10, 64)
		if err != nil {
			return nil, err
		}
		n := node{id: f[0], flags: strings.Split(f[2], ","), master: f[3], epoch: epoch, connected: f[7] == "connected"}
		for _, slots := range f[8:] {
			if strings.HasPrefix(slots, "[") {
				continue // it is being moved
			}
			from, to, isRange := strings.Cut(slots, "-")
			if !isRange {
				to = from
			}
			first, err1 := strconv.Atoi(from)
			last, err2 := strconv.Atoi(to)
			if err := errors.Join(err1, err2); err != nil {
				return nil, err
			}
			n.slots = append(n.slots, [2]int{first, last})
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// NewCluster starts a cluster for one test and stops it when the test ends. A failure to start
// fails the test.
func NewCluster(tb testing.TB, o ClusterOptions) *Cluster {
	tb.Helper()
	return forTest(tb, o, StartCluster)
}

// Stop ends all processes with SIGKILL, returns when they have exited, and removes their files.
func (c *Cluster) Stop() error { return stopAll(c.members) }

// Members returns all nodes, beginning with those that began as masters.
func (c *Cluster) Members() []*Server { return slices.Clone(c.members) }

// URL returns the cluster's address for a configuration: redis-cluster://HOST:PORT,..., or
// rediss-cluster.
func (c *Cluster) URL() string {
	return c.tls.scheme("-cluster") + "://" + strings.Join(addresses(c.members), ",")
}

// ClusterOptions returns fresh options for a client of all nodes, otherwise as
// [Server.RedisOptions]: a command is sent once, but follows its slot to the node that has it.
func (c *Cluster) ClusterOptions() *redis.ClusterOptions {
	return &redis.ClusterOptions{
		Addrs:                 addresses(c.members),
		TLSConfig:             c.tls.Client(),
		MaxRetries:            -1,
		DialerRetries:         1,
		ContextTimeoutEnabled: true,
	}
}

// Client returns a client of all nodes, closed when the test ends.
func (c *Cluster) Client(tb testing.TB) *redis.ClusterClient {
	tb.Helper()
	return closing(tb, redis.NewClusterClient(c.ClusterOptions()))
}

// NodeFor returns the master of a key's slot, and the replicas of that master. It does not ask
// nodes that are dead or paused, but may name them, because it returns what the others know.
func (c *Cluster) NodeFor(ctx context.Context, key string) (master *Server, replicas []*Server, err error) {
	slot, err := c.slot(ctx, key)
	if err == nil {
		master, replicas, err = c.owner(ctx, slot)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("redistest: which node has the key %q: %w", key, err)
	}
	return master, replicas, nil
}

// slot asks any node for the slot of a key.
func (c *Cluster) slot(ctx context.Context, key string) (slot int, err error) {
	i := slices.IndexFunc(c.members, (*Server).running)
	if i < 0 {
		return 0, errors.New("no node runs")
	}
	err = c.members[i].ask(ctx, func(ctx context.Context, rdb *redis.Client) error {
		n, err := rdb.ClusterKeySlot(ctx, key).Result()
		slot = int(n)
		return err
	})
	return slot, err
}

// views asks every running node what it knows.
func (c *Cluster) views(ctx context.Context) ([][]node, error) {
	var views [][]node
	for _, m := range c.members {
		if !m.running() {
			continue
		}
		err := m.ask(ctx, func(ctx context.Context, rdb *redis.Client) error {
			nodes, err := readNodes(ctx, rdb)
			views = append(views, nodes)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return views, nil
}

func (c *Cluster) member(id string) *Server {
	for m, known := range c.ids {
		if known == id {
			return m
		}
	}
	return nil
}

// owner returns the master of a slot, and its replicas. If the nodes disagree, the newest claim
// counts.
func (c *Cluster) owner(ctx context.Context, slot int) (master *Server, replicas []*Server, err error) {
	views, err := c.views(ctx)
	if err != nil {
		return nil, nil, err
	}
	newest := node{epoch: -1}
	var known []node // by the node with the newest claim
	for _, nodes := range views {
		for _, n := range nodes {
			if n.serves(slot) && n.epoch > newest.epoch {
				newest, known = n, nodes
			}
		}
	}
	for _, n := range known {
		if n.is("slave") && n.master == newest.id {
			replicas = append(replicas, c.member(n.id))
		}
	}
	if master = c.member(newest.id); master == nil {
		return nil, nil, fmt.Errorf("no node has the slot %d", slot)
	}
	return master, replicas, nil
}

// agreed returns the master of a slot if all running nodes name the same one, and it serves the
// slot.
func (c *Cluster) agreed(ctx context.Context, slot int) (*Server, error) {
	master, _, err := c.owner(ctx, slot)
	if err != nil {
		return nil, err
	}
	views, err := c.views(ctx)
	if err != nil {
		return nil, err
	}
	for _, nodes := range views {
		for _, n := range nodes {
			if n.serves(slot) != (n.id == c.ids[master]) {
				return nil, fmt.Errorf("some nodes do not know that %s has the slot %d", master.address(), slot)
			}
		}
	}
	return master, master.ask(ctx, func(ctx context.Context, rdb *redis.Client) error {
		info, err := rdb.ClusterInfo(ctx).Result()
		if err == nil && fields(info)["cluster_state"] != "ok" {
			err = fmt.Errorf("the cluster's state is %q for %s", fields(info)["cluster_state"], master.address())
		}
		return err
	})
}

// AwaitMaster waits until all running nodes know that another node than old is the master of a
// key's slot and that one accepts commands, and returns it.
func (c *Cluster) AwaitMaster(ctx context.Context, key string, old *Server) (master *Server, err error) {
	err = settle(ctx, func(ctx context.Context) error {
		slot, err := c.slot(ctx, key)
		if err != nil {
			return err
		}
		if master, err = c.agreed(ctx, slot); err != nil {
			return err
		}
		if master == old {
			return fmt.Errorf("the master is still %s", old.address())
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("redistest: wait for another master of %q: %w", key, err)
	}
	return master, nil
}

// AwaitReplicas waits until every running node that is not a master has a copy of its master's
// data, and all running nodes agree on the master of each replica. Only then does the promise of
// [redis.Client.Wait] cover them, and can they take over again.
func (c *Cluster) AwaitReplicas(ctx context.Context) error {
	if err := settle(ctx, c.checkReplicas); err != nil {
		return fmt.Errorf("redistest: wait for the replicas: %w", err)
	}
	return nil
}

func (c *Cluster) checkReplicas(ctx context.Context) error {
	views, err := c.views(ctx)
	if err != nil {
		return err
	}
	masters := make(map[string]string) // by the ID of a replica
	for _, nodes := range views {
		for _, n := range nodes {
			m := c.member(n.id)
			switch {
			case m == nil:
				return fmt.Errorf("the node %s is being met", n.id)
			case !m.running():
				continue
			case n.is("master") && len(n.slots) > 0:
				n.master = ""
			case !n.is("slave") || c.member(n.master) == nil:
				return fmt.Errorf("some nodes do not know the role of %s", m.address())
			}
			if known, ok := masters[n.id]; ok && known != n.master {
				return fmt.Errorf("the nodes disagree on the master of %s", m.address())
			}
			masters[n.id] = n.master
		}
	}
	for id, master := range masters {
		if master == "" {
			continue
		}
		if err := c.member(id).checkReplica(ctx, c.member(master)); err != nil {
			return err
		}
	}
	return nil
}

// TakeOver promotes a replica of a key's master without a vote, by CLUSTER FAILOVER TAKEOVER, and
// returns when [Cluster.AwaitMaster] does. The old master may be dead, or paused. A live one may
// accept writes until it learns of it, a few milliseconds later; those are lost.
func (c *Cluster) TakeOver(ctx context.Context, key string) error {
	return c.promote(ctx, key, "CLUSTER", "FAILOVER", "TAKEOVER")
}

// Failover swaps the master of a key with a replica as an operator does, by CLUSTER FAILOVER: the
// master accepts no commands until the replica has everything, so nothing is lost. It returns when
// [Cluster.AwaitMaster] does.
func (c *Cluster) Failover(ctx context.Context, key string) error {
	return c.promote(ctx, key, "CLUSTER", "FAILOVER")
}

func (c *Cluster) promote(ctx context.Context, key string, command ...any) error {
	old, replicas, err := c.NodeFor(ctx, key)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(replicas, (*Server).running)
	if i < 0 {
		return fmt.Errorf("redistest: failover: no replica of %s runs", old.address())
	}
	// A replica abandons a failover that is not done within 5 s, as happens on a busy machine: then
	// it is asked again.
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	for first := true; ; first = false {
		err := replicas[i].ask(ctx, func(ctx context.Context, rdb *redis.Client) error { return rdb.Do(ctx, command...).Err() })
		if err != nil && first {
			return fmt.Errorf("redistest: failover: %w", err)
		}
		try, cancel := context.WithTimeout(ctx, patience)
		_, err = c.AwaitMaster(try, key, old)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

// A Move is the move of a slot from one master to another. While it lasts, the old master replies
// with ASK for a key that has moved or does not exist, and serves keys that it still has. A command
// with several keys, of which only some have moved, is refused with TRYAGAIN.
type Move struct {
	cluster  *Cluster
	slot     int
	from, to *Server
}

// BeginMove begins the move of a key's slot to another master, and moves no key yet.
func (c *Cluster) BeginMove(ctx context.Context, key string, to *Server) (*Move, error) {
	m := &Move{cluster: c, to: to}
	if err := m.begin(ctx, key); err != nil {
		return nil, fmt.Errorf("redistest: move the slot of %q to %s: %w", key, to.address(), err)
	}
	return m, nil
}

func (m *Move) begin(ctx context.Context, key string) (err error) {
	if m.slot, err = m.cluster.slot(ctx, key); err != nil {
		return err
	}
	if m.from, _, err = m.cluster.owner(ctx, m.slot); err != nil {
		return err
	}
	if m.from == m.to {
		return errors.New("it is there already")
	}
	// In this order: an ASK must not lead to a node that does not know of the move.
	return errors.Join(
		m.set(ctx, m.to, "IMPORTING", m.cluster.ids[m.from]),
		m.set(ctx, m.from, "MIGRATING", m.cluster.ids[m.to]),
	)
}

func (m *Move) set(ctx context.Context, at *Server, state, id string) error {
	return at.ask(ctx, func(ctx context.Context, rdb *redis.Client) error {
		return rdb.Do(ctx, "CLUSTER", "SETSLOT", m.slot, state, id).Err()
	})
}

// Keys moves keys of the slot, one after the other. A key that does not exist counts as moved.
func (m *Move) Keys(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		err := m.from.ask(ctx, func(ctx context.Context, rdb *redis.Client) error {
			return rdb.Migrate(ctx, "127.0.0.1", strconv.Itoa(m.to.port), key, 0, askTimeout).Err()
		})
		if err != nil {
			return fmt.Errorf("redistest: move the key %q to %s: %w", key, m.to.address(), err)
		}
	}
	return nil
}

// Finish moves all remaining keys, assigns the slot to the new master, and returns when all running
// nodes know it.
func (m *Move) Finish(ctx context.Context) error {
	for {
		var keys []string
		err := m.from.ask(ctx, func(ctx context.Context, rdb *redis.Client) (err error) {
			keys, err = rdb.ClusterGetKeysInSlot(ctx, m.slot, 100).Result()
			return err
		})
		if err == nil {
			err = m.Keys(ctx, keys...)
		}
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			break
		}
	}
	if err := m.assign(ctx); err != nil {
		return fmt.Errorf("redistest: give the slot %d to %s: %w", m.slot, m.to.address(), err)
	}
	return nil
}

func (m *Move) assign(ctx context.Context) error {
	// The new master first: it takes a higher epoch, so the slot has an owner all the time. The
	// others learn of it.
	for _, at := range []*Server{m.to, m.from} {
		if err := m.set(ctx, at, "NODE", m.cluster.ids[m.to]); err != nil {
			return err
		}
	}
	return settle(ctx, func(ctx context.Context) error {
		owner, err := m.cluster.agreed(ctx, m.slot)
		if err == nil && owner != m.to {
			err = fmt.Errorf("%s has it", owner.address())
		}
		return err
	})
}

// MoveSlot moves the slot of a key with all its keys to another master, and returns when all
// running nodes know it. Clients get ASK while it lasts and MOVED afterward; [Cluster.BeginMove]
// lets a test stop in the middle.
func (c *Cluster) MoveSlot(ctx context.Context, key string, to *Server) error {
	m, err := c.BeginMove(ctx, key, to)
	if err != nil {
		return err
	}
	return m.Finish(ctx)
}
