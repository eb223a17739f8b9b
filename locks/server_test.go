package locks

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"lockstep/locks/redistest"
)

func TestFindingsAboutAServer(t *testing.T) {
	t.Parallel()
	redis7 := map[string]string{"redis_version": "7.0.15"}
	cluster := map[string]string{"redis_version": "7.0.15", "redis_mode": "cluster", "connected_slaves": "1"}
	for name, test := range map[string]struct {
		server server
		lease  time.Duration
		level  Level
		topic  string
		text   string
		margin time.Duration
	}{
		"fine":                    {server: server{info: redis7}, level: Fine, topic: "version", text: "7.0.15"},
		"old":                     {server: server{info: map[string]string{"redis_version": "6.0.16"}}, level: Fatal, topic: "version", text: "Redis 6.0.16; 6.2.7 or"},
		"valkey":                  {server: server{info: map[string]string{"redis_version": "7.2.4", "valkey_version": "7.2.5"}}, level: Fine, topic: "version", text: "Valkey 7.2.5"},
		"old valkey":              {server: server{info: map[string]string{"redis_version": "7.2.4", "valkey_version": "7.0.0"}}, level: Fatal, topic: "version", text: "Valkey 7.0.0; 7.2.0 or"},
		"writes without replicas": {server: server{info: map[string]string{"redis_version": "6.2.6"}}, level: Fatal, topic: "version", text: "Redis 6.2.6; 6.2.7 or"},
		"oldest that will do":     {server: server{info: map[string]string{"redis_version": "6.2.7"}}, level: Fine, topic: "version", text: "6.2.7"},
		"preview":                 {server: server{info: map[string]string{"redis_version": "8.4-rc1"}}, level: Fine, topic: "version", text: "8.4"},
		"no right to INFO":        {server: server{refused: true}, level: Fatal, topic: "rights", text: "+info"},
		"run id":                  {server: server{info: map[string]string{"redis_version": "7.0.15", "run_id": "1f"}}, level: Fine, topic: "version"},
		"run id is hidden":        {server: server{info: map[string]string{"redis_version": "7.0.15", "master_replid": "1f"}}, level: Fine, topic: "identity", text: "master_replid"},
		"both are hidden":         {server: server{info: redis7}, level: Warning, topic: "identity", text: "nothing shows"},
		"all is hidden":           {server: server{}, level: Warning, topic: "identity", text: "nothing shows"},
		"embedded":                {server: server{embedded: true}, level: Fine, topic: "embedded"},
		"allkeys":                 {server: server{info: redis7, config: map[string]string{"maxmemory-policy": "allkeys-lfu"}}, level: Fatal, topic: "eviction", text: "noeviction"},
		"volatile":                {server: server{info: redis7, config: map[string]string{"maxmemory-policy": "volatile-lru"}}, level: Fine, topic: "eviction"},
		"nothing kept":            {server: server{info: map[string]string{"redis_version": "7.0.15", "aof_enabled": "0"}, config: map[string]string{"save": ""}}, level: Warning, topic: "persistence", text: "nothing"},
		"snapshots":               {server: server{info: map[string]string{"redis_version": "7.0.15", "aof_enabled": "0"}, config: map[string]string{"save": "3600 1"}}, level: Warning, topic: "persistence", text: "snapshots"},
		"no room for the file":    {server: server{info: map[string]string{"redis_version": "7.0.15", "aof_enabled": "1", "aof_last_write_status": "err"}}, level: Warning, topic: "persistence", text: "cannot write to its disk"},
		"no room for snapshots":   {server: server{info: map[string]string{"redis_version": "7.0.15", "aof_enabled": "1", "rdb_last_bgsave_status": "err"}, config: map[string]string{"save": "3600 1"}}, level: Warning, topic: "persistence", text: "cannot write to its disk"},
		"snapshots may fail":      {server: server{info: map[string]string{"redis_version": "7.0.15", "aof_enabled": "1", "rdb_last_bgsave_status": "err"}, config: map[string]string{"save": "3600 1", "stop-writes-on-bgsave-error": "no"}}, level: Fine, topic: "persistence"},
		"append-only":             {server: server{info: map[string]string{"redis_version": "7.0.15", "aof_enabled": "1"}}, level: Fine, topic: "persistence"},
		"no replica":              {server: server{sentinel: true, info: map[string]string{"redis_version": "7.0.15", "connected_slaves": "0"}}, level: Warning, topic: "replicas", text: "no replica", margin: 10 * time.Second},
		"sentinel":                {server: server{sentinel: true, followed: time.Second, info: map[string]string{"redis_version": "7.0.15", "connected_slaves": "1"}, config: map[string]string{"min-replicas-to-write": "0", "min-replicas-max-lag": "20"}}, level: Warning, topic: "replicas", text: "two holders", margin: 4 * time.Second},
		"unbounded":               {server: server{info: map[string]string{"redis_version": "7.0.15", "connected_slaves": "1"}, config: map[string]string{"min-replicas-to-write": "0"}}, level: Warning, topic: "replicas", text: "two holders"},
		"safe sentinel":           {server: server{sentinel: true, info: map[string]string{"redis_version": "7.0.15", "connected_slaves": "1"}, config: map[string]string{"min-replicas-to-write": "1"}}, level: Fine, topic: "replicas", margin: 10 * time.Second},
		"cluster":                 {server: server{node: "n", info: cluster, config: map[string]string{"min-replicas-to-write": "0"}}, level: Warning, topic: "replicas", text: "15s", margin: 7500 * time.Millisecond},
		"short lease":             {server: server{node: "n", info: cluster}, lease: 15 * time.Second, level: Warning, topic: "failover", text: "outlives an outage of 6.9s", margin: 7500 * time.Millisecond},
		"long lease":              {server: server{node: "n", info: cluster}, lease: 40 * time.Second, level: Fine, topic: "failover", margin: 7500 * time.Millisecond},
		"quick cluster":           {server: server{node: "n", info: cluster, config: map[string]string{"cluster-node-timeout": "2000"}}, lease: 15 * time.Second, level: Fine, topic: "failover", margin: time.Second},
		"hidden version":          {server: server{config: map[string]string{"maxmemory-policy": "noeviction"}}, level: Fine, topic: "eviction"},
		"full":                    {server: server{info: map[string]string{"redis_version": "7.0.15", "used_memory": "104857600", "maxmemory": "104857600"}}, level: Warning, topic: "memory", text: "it is full (100 of 100 MiB used)"},
		"nearly full":             {server: server{info: map[string]string{"redis_version": "7.0.15", "used_memory": "95000000", "maxmemory": "104857600"}}, level: Warning, topic: "memory", text: "90 of 100 MiB used"},
		"room":                    {server: server{info: map[string]string{"redis_version": "7.0.15", "used_memory": "1048576", "maxmemory": "104857600"}}, level: Fine, topic: "memory", text: "1 of 100 MiB used"},
	} {
		if test.lease == 0 {
			test.lease = defaultLease
		}
		found := false
		findings := test.server.judge(test.lease)
		for _, f := range findings {
			found = found || f.Level == test.level && f.Topic == test.topic && strings.Contains(f.Text, test.text)
		}
		if !found {
			t.Errorf("%s: got %+v, want %s of %s", name, findings, test.level, test.topic)
		}
		if got := test.server.margin(); got != test.margin {
			t.Errorf("%s: got margin %s, want %s", name, got, test.margin)
		}
	}
}

func TestServerThatEvictsLocksIsRefused(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{Config: []string{"maxmemory-policy allkeys-lru"}})
	c, err := Open(t.Context(), server.Client(t), Options{})
	if !errors.Is(err, ErrServer) || !strings.Contains(err.Error(), "allkeys-lru") || c != nil {
		t.Errorf("got %v, want it refused", err)
	}
	if n, err := server.Client(t).DBSize(t.Context()).Result(); err != nil || n != 0 {
		t.Errorf("it left %d keys (%v)", n, err)
	}
	findings, err := CheckServer(t.Context(), server.Client(t), 0)
	if err != nil || len(findings) < 3 || findings[1].Level != Fatal {
		t.Errorf("got %+v, %v", findings, err)
	}
	if findings, err := CheckServer(t.Context(), redistest.Mini(t), 0); err != nil || len(findings) != 1 || findings[0].Topic != "embedded" {
		t.Errorf("got %+v, %v of an embedded one", findings, err)
	}
}

// TestOpenLogsWhatIsNotSafe opens clients of a real master with a replica, as it comes and as it
// should be.
func TestOpenLogsWhatIsNotSafe(t *testing.T) {
	t.Parallel()
	master := redistest.New(t, redistest.Options{TCP: true, Config: []string{"repl-diskless-sync-delay 0"}})
	_, port, _ := strings.Cut(strings.TrimPrefix(strings.TrimSuffix(master.URL(), "/0"), "redis://"), ":")
	redistest.New(t, redistest.Options{Config: []string{"replicaof 127.0.0.1 " + port}})
	rdb := master.Client(t)
	eventually(t, "the replica is online", func() bool {
		return strings.Contains(rdb.Info(t.Context(), "replication").Val(), "state=online")
	})
	said := func() string {
		t.Helper()
		var log bytes.Buffer
		c, err := Open(t.Context(), rdb, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		return log.String()
	}
	got := said()
	for _, want := range []string{
		"level=WARN", "a master accepts writes that no replica has (min-replicas-to-write 0)", "set min-replicas-to-write 1",
		"it keeps nothing on disk", "set appendonly yes",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("it does not say %q:\n%s", want, got)
		}
	}
	for name, value := range map[string]string{"min-replicas-to-write": "1", "appendonly": "yes"} {
		if err := rdb.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if got := said(); strings.Contains(got, "WARN") {
		t.Errorf("there is nothing to say, and it says\n%s", got)
	}
}
