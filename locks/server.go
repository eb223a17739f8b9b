package locks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/space"
)

// ErrServer means that a Redis cannot be trusted with locks: it evicts them when its memory is
// full, or is too old.
var ErrServer = errors.New("redis cannot keep locks")

// Level is the severity of a [Finding].
type Level string

const (
	Fatal   Level = "fatal"   // locks would be unsafe or would not work: Open refuses
	Warning Level = "warning" // locks are less safe than they could be, or are cut off needlessly
	Fine    Level = "fine"    // as it should be
)

// A Finding is one thing that [CheckServer] reports about a Redis.
type Finding struct {
	Level Level
	// Topic is version, eviction, memory, persistence, replicas, failover, identity, rights, or
	// embedded
	Topic string
	Node  string // of a cluster; "" otherwise
	Text  string // what was found, and the remedy
}

// CheckServer checks the Redis of a client of locks with this lease (0 means the default): its
// version, and the settings that decide what a full memory, a restart or a failover does to locks.
// On a cluster it asks every master. It ignores settings that a server hides, with one exception: a
// user without the right to run INFO is [Fatal], since INFO shows that a server was restarted or
// replaced. [Open] refuses what is [Fatal] and logs each [Warning].
func CheckServer(ctx context.Context, rdb redis.UniversalClient, lease time.Duration) ([]Finding, error) {
	if lease == 0 {
		lease = defaultLease
	}
	servers, err := askServers(ctx, rdb)
	if err != nil {
		return nil, fmt.Errorf("check server: %w", err)
	}
	var findings []Finding
	for _, s := range servers {
		findings = append(findings, s.judge(lease)...)
	}
	return findings, nil
}

// inspect refuses a server that cannot be trusted, and learns how long the topology may have two
// masters. It runs before the first greeting, because that may begin a grace period.
func (c *Client) inspect(ctx context.Context, rdb redis.UniversalClient) (err error) {
	plain, err := c.ownClient(rdb, nil, c.try, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plain.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, c.try)
	defer cancel()
	servers, err := askServers(ctx, plain)
	if err != nil {
		return err
	}
	for _, s := range servers {
		c.recovery.margin = max(c.recovery.margin, s.margin())
		for _, f := range s.judge(c.lease) {
			switch f.Level {
			case Fatal:
				return fmt.Errorf("%w: %s", ErrServer, f.Text)
			case Warning:
				c.log.Warn("this Redis is less safe for locks than it could be", slog.String("topic", f.Topic),
					slog.String("node", f.Node), slog.String("finding", f.Text))
			case Fine:
			}
		}
	}
	return nil
}

// server is what one Redis reports about itself.
type server struct {
	node     string            // its address in a cluster, else ""
	sentinel bool              // found by Sentinel
	followed time.Duration     // how often this package's clients ask Sentinel for the master
	info     map[string]string // of INFO; empty if the server hides it
	config   map[string]string
	refused  bool // the user has no right to run INFO
	embedded bool // a miniredis: its INFO has no section server
}

// askServers asks the server, or the masters of a cluster. An error is one of the network.
func askServers(ctx context.Context, rdb redis.UniversalClient) ([]server, error) {
	switch rdb := rdb.(type) {
	case *redis.ClusterClient:
		var mu sync.Mutex
		var servers []server
		err := rdb.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			s, err := askServer(ctx, node)
			s.node = node.Options().Addr
			mu.Lock()
			defer mu.Unlock()
			servers = append(servers, s)
			return err
		})
		return servers, err
	case *redis.Client:
		s, err := askServer(ctx, rdb)
		s.sentinel, s.followed = bySentinel(rdb.Options()), followPace(rdb.Options())
		return []server{s}, err
	}
	return nil, fmt.Errorf("%w: a %T cannot hold a lock space; use a plain, Sentinel or cluster client", ErrInvalid, rdb)
}

func askServer(ctx context.Context, rdb redis.Cmdable) (server, error) {
	s := server{info: make(map[string]string), config: make(map[string]string)}
	var refused redis.Error
	// One round trip has all questions. The user may have the right to only some sections of INFO:
	// the scripts read these two.
	var infos [3]*redis.StringCmd
	var settings [6]*redis.MapStringStringCmd
	_, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, sections := range [len(infos)][]string{nil, {"server"}, {"replication"}} {
			infos[i] = pipe.Info(ctx, sections...)
		}
		for i, name := range [len(settings)]string{
			"maxmemory-policy", "save", "stop-writes-on-bgsave-error", "min-replicas-to-write", "min-replicas-max-lag", "cluster-node-timeout",
		} {
			settings[i] = pipe.ConfigGet(ctx, name)
		}
		return nil
	})
	if err != nil && !errors.As(err, &refused) {
		return s, err // of the network: a refusal stops no other question
	}
	for i, info := range infos {
		text, err := info.Result()
		if err != nil && !errors.As(err, &refused) {
			return s, err
		}
		if i == 1 && err != nil {
			s.refused = space.CodeOf(err) == "NOPERM"
			// This is the text of miniredis' error for a section.
			s.embedded = strings.Contains(err.Error(), "is not supported")
		}
		for line := range strings.Lines(text) {
			if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				s.info[key] = value
			}
		}
	}
	for _, setting := range settings {
		config, err := setting.Result()
		if err != nil && !errors.As(err, &refused) {
			return s, err
		}
		maps.Copy(s.config, config)
	}
	if policy := s.info["maxmemory_policy"]; policy != "" {
		s.config["maxmemory-policy"] = policy
	}
	return s, nil
}

// number returns a setting, or otherwise if the server hides it.
func (s server) number(name string, otherwise int) int {
	if n, err := strconv.Atoi(s.config[name]); err == nil {
		return n
	}
	return otherwise
}

func (s server) clustered() bool { return s.node != "" || s.info["redis_mode"] == "cluster" }

func (s server) replicated() bool {
	return s.sentinel || s.info["connected_slaves"] != "" && s.info["connected_slaves"] != "0"
}

func (s server) nodeTimeout() time.Duration {
	return space.Millis(int64(s.number("cluster-node-timeout", 15_000)))
}

func (s server) maxLag() time.Duration {
	return time.Duration(s.number("min-replicas-max-lag", 10)) * time.Second
}

// margin returns how long a client may still renew its session on a master that was replaced. With
// a required number of replicas such a master soon refuses writes. Without it, only its clients can
// end that, and on Sentinel they do: see follower.
func (s server) margin() time.Duration {
	switch {
	case s.clustered():
		return s.nodeTimeout() / 2
	case s.replicated() && s.number("min-replicas-to-write", -1) != 0:
		return s.maxLag()
	case s.sentinel:
		return sentinelNews + s.followed
	}
	return 0
}

// judge returns the findings about a server.
func (s server) judge(lease time.Duration) (findings []Finding) {
	say := func(level Level, topic, format string, args ...any) {
		findings = append(findings, Finding{level, topic, s.node, fmt.Sprintf(format, args...)})
	}
	switch {
	case s.embedded:
		say(Fine, "embedded", "embedded")
		return findings
	case s.refused:
		say(Fatal, "rights", "the user of this connection has no right to run INFO, which shows that a server was restarted or replaced; "+
			"without it, a lock may have two holders after a failover; grant the right +info: ACL SETUSER <user> +info")
	}

	name, version, least := "Redis", s.info["redis_version"], [3]int{6, 2, 7}
	if valkey := s.info["valkey_version"]; valkey != "" {
		name, version, least = "Valkey", valkey, [3]int{7, 2, 0}
	}
	have, ok := parseVersion(version)
	switch {
	case !ok:
	case slices.Compare(have[:], least[:]) < 0:
		say(Fatal, "version", "this is %s %s; %d.%d.%d or newer is needed (Redis 6.2.0 to 6.2.6 let scripts write without the replicas "+
			"that min-replicas-to-write demands)", name, version, least[0], least[1], least[2])
	default:
		say(Fine, "version", "%s %s", name, version)
	}

	switch policy := s.config["maxmemory-policy"]; {
	case policy == "":
	case strings.HasPrefix(policy, "allkeys-"):
		say(Fatal, "eviction", "the Redis evicts any key when its memory is full (maxmemory-policy %s), and with it all locks at once; "+
			"set it to noeviction: redis-cli CONFIG SET maxmemory-policy noeviction, and in redis.conf", policy)
	default:
		say(Fine, "eviction", "maxmemory-policy %s", policy)
	}

	used, _ := strconv.ParseInt(s.info["used_memory"], 10, 64)
	most, _ := strconv.ParseInt(s.info["maxmemory"], 10, 64)
	const mib = 1 << 20
	switch {
	case most <= 0: // no limit of its own, or hidden
	case used >= most:
		say(Warning, "memory", "it is full (%d of %d MiB used): nothing new is locked, enqueued or started; raise maxmemory, or make room",
			used/mib, most/mib)
	case used >= most/10*9:
		say(Warning, "memory", "%d of %d MiB used: when it is full, nothing new is locked, enqueued or started; raise maxmemory", used/mib, most/mib)
	default:
		say(Fine, "memory", "%d of %d MiB used", used/mib, most/mib)
	}

	save, saves := s.config["save"]
	aof, stops := s.info["aof_enabled"], s.config["stop-writes-on-bgsave-error"] != "no"
	switch {
	case aof == "1" && s.info["aof_last_write_status"] == "err", save != "" && stops && s.info["rdb_last_bgsave_status"] == "err":
		say(Warning, "persistence", "it cannot write to its disk: nothing new is locked, enqueued or started; make room there, "+
			"or see in its log why")
	case aof == "1":
		say(Fine, "persistence", "append-only file")
	case aof == "0" && saves && save == "":
		say(Warning, "persistence", "it keeps nothing on disk: a restart loses every lock, wait and record that no live "+
			"worker knows; set appendonly yes")
	case aof == "0" && saves:
		say(Warning, "persistence", "it keeps snapshots only (save %s): a restart loses everything since the last one; "+
			"set appendonly yes", save)
	}

	replicas := s.info["connected_slaves"]
	writes := s.number("min-replicas-to-write", -1)
	switch {
	case !s.clustered() && !s.replicated():
	case replicas == "0":
		say(Warning, "replicas", "no replica is connected: nothing can take over")
	case writes == 0 && s.clustered():
		say(Warning, "replicas", "a master accepts writes that no replica has (min-replicas-to-write 0): cut off from the others, it "+
			"keeps granting for %s; set min-replicas-to-write 1", s.nodeTimeout())
	case writes == 0:
		say(Warning, "replicas", "a master accepts writes that no replica has (min-replicas-to-write 0): cut off from the others, it "+
			"keeps granting to clients that reach only it, and a lock may have two holders; set min-replicas-to-write 1")
	case writes > 0:
		say(Fine, "replicas", "%s connected, min-replicas-to-write %d, min-replicas-max-lag %s", replicas, writes, s.maxLag())
	}

	switch {
	case s.refused || s.info["run_id"] != "":
	case s.info["master_replid"] != "":
		say(Fine, "identity", "it hides its run_id; its master_replid shows that it was restarted or replaced")
	default:
		say(Warning, "identity", "it hides run_id and master_replid (INFO server, INFO replication): nothing shows that it was restarted "+
			"or replaced, and a lock may have two holders after a failover; have the server show one of them")
	}

	// Compare the longest outage that cuts off no work with the time that a cluster needs: the node
	// timeout, about two seconds for the votes, and what a client waits for a node that is silent.
	if takes := s.nodeTimeout() + 2*time.Second + maxSilence; s.clustered() {
		if lasts := Outage(lease); lasts < takes {
			say(Warning, "failover", "a lease of %s outlives an outage of %s, a failover takes about %s "+
				"(cluster-node-timeout %s): a failover cuts off all work; with the default timeout, 15s, a lease of %s survives it",
				lease, lasts.Round(100*time.Millisecond), takes, s.nodeTimeout(), ClusterLease)
		} else {
			say(Fine, "failover", "a lease of %s outlives a failover of about %s", lease, takes)
		}
	}
	return findings
}

// parseVersion reads the three numbers of a version; the last may be missing, as in 8.4-rc1.
func parseVersion(text string) (version [3]int, ok bool) {
	n, _ := fmt.Sscanf(text, "%d.%d.%d", &version[0], &version[1], &version[2])
	return version, n >= 2
}
