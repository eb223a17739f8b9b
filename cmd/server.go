package cmd

import (
	"context"
	"log/slog"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// checkServer refuses a Redis that cannot be trusted with locks: one that evicts keys, or is too old. On a cluster each
// master is asked. What a server does not tell is not held against it: hosters hide it.
func checkServer(ctx context.Context, rdb redis.UniversalClient, log *slog.Logger) error {
	if cluster, ok := rdb.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return checkNode(ctx, node, log) })
	}
	return checkNode(ctx, rdb, log)
}

func checkNode(ctx context.Context, rdb redis.Cmdable, log *slog.Logger) error {
	text, err := rdb.Info(ctx).Result()
	if err != nil {
		log.DebugContext(ctx, "Redis does not tell about itself", "error", err)
	}
	info := parseInfo(text)
	if info["maxmemory_policy"] == "" {
		config, err := rdb.ConfigGet(ctx, "maxmemory-policy").Result()
		if err != nil {
			log.DebugContext(ctx, "Redis does not tell its eviction policy", "error", err)
		}
		info["maxmemory_policy"] = config["maxmemory-policy"]
	}
	return judge(info)
}

// parseInfo reads an answer to INFO.
func parseInfo(text string) map[string]string {
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[key] = value
		}
	}
	return info
}

// judge says what is wrong with a server.
func judge(info map[string]string) error {
	if policy := info["maxmemory_policy"]; strings.HasPrefix(policy, "allkeys-") {
		return refuse("the Redis evicts any key when its memory is full (maxmemory-policy %s), and with it all locks at once; "+
			"set it to noeviction: redis-cli CONFIG SET maxmemory-policy noeviction, and in redis.conf", policy)
	}
	name, version, least := "Redis", info["redis_version"], [2]int{6, 2}
	if valkey := info["valkey_version"]; valkey != "" {
		name, version, least = "Valkey", valkey, [2]int{7, 2}
	}
	if have, ok := parseVersion(version); ok && (have[0] < least[0] || have[0] == least[0] && have[1] < least[1]) {
		return refuse("this is %s %s; lockstep needs %d.%d or newer", name, version, least[0], least[1])
	}
	return nil
}

// parseVersion reads the first two numbers of a version.
func parseVersion(text string) (version [2]int, ok bool) {
	parts := strings.SplitN(text, ".", 3)
	if len(parts) < 2 {
		return version, false
	}
	for i := range version {
		n, err := strconv.Atoi(parts[i])
		if err != nil {
			return version, false
		}
		version[i] = n
	}
	return version, true
}
