package redistest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// eventually waits until a condition holds that no event announces.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline.C:
			t.Fatal("never happened: ", what)
		case <-tick.C:
		}
	}
}

// within bounds the time of a command.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestEachRunsOnRedisAndOnMiniredis(t *testing.T) {
	var ran []string
	t.Run("all", func(t *testing.T) {
		redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
			ran = append(ran, t.Name()[strings.LastIndex(t.Name(), "/")+1:])
			key := redistest.Namespace(t)
			if err := rdb.Set(t.Context(), key, "v", 0).Err(); err != nil {
				t.Fatal(err)
			}
			if got := rdb.Get(t.Context(), key).Val(); got != "v" {
				t.Errorf("got %q, want v", got)
			}
		})
	})
	if got := strings.Join(ran, " "); got != "redis miniredis" {
		t.Errorf("ran on %q, want redis and miniredis", got)
	}
}

func TestNamespacesDiffer(t *testing.T) {
	t.Parallel()
	if a, b := redistest.Namespace(t), redistest.Namespace(t); a == b {
		t.Errorf("both are %s", a)
	}
}

func TestServerListensAtItsURL(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]redistest.Options{"socket": {}, "tcp": {TCP: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.New(t, o)
			options, err := redis.ParseURL(s.URL())
			if err != nil {
				t.Fatal(err)
			}
			rdb := redis.NewClient(options)
			defer rdb.Close()
			if err := rdb.Ping(t.Context()).Err(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestConfigReachesTheServer(t *testing.T) {
	t.Parallel()
	rdb := redistest.New(t, redistest.Options{Config: []string{"maxmemory-policy allkeys-lru"}}).Client(t)
	got := rdb.ConfigGet(t.Context(), "maxmemory-policy").Val()["maxmemory-policy"]
	if got != "allkeys-lru" {
		t.Errorf("maxmemory-policy is %q, want allkeys-lru", got)
	}
}

func TestBadConfigIsReported(t *testing.T) {
	t.Parallel()
	_, err := redistest.Start(t.Context(), redistest.Options{Config: []string{"no-such-setting 1"}})
	if err == nil {
		t.Fatal("the server started")
	}
}

// Not parallel: it changes the environment.
func TestMissingServerNamesTheRemedy(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv(redistest.ServerEnv, "")
	_, err := redistest.Start(t.Context(), redistest.Options{})
	_, sentinelErr := redistest.StartSentinel(t.Context(), redistest.SentinelOptions{})
	_, clusterErr := redistest.StartCluster(t.Context(), redistest.ClusterOptions{})
	for _, err := range []error{err, sentinelErr, clusterErr} {
		if !errors.Is(err, redistest.ErrMissing) {
			t.Errorf("got %v, want ErrMissing", err)
			continue
		}
		for _, want := range []string{"make test", "redis-server"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not name %s", err, want)
			}
		}
	}
}

// Not parallel: it changes the environment.
func TestEnvironmentNamesTheServerToTestWith(t *testing.T) {
	path := os.Getenv(redistest.ServerEnv)
	if path == "" {
		var err error
		if path, err = exec.LookPath("redis-server"); err != nil {
			t.Fatal(err)
		}
	}
	// to Debian's redis-server, a link would be another program
	own := filepath.Join(t.TempDir(), "my-redis-server")
	script := fmt.Sprintf("#!/bin/sh\ntouch %q\nexec %q \"$@\"\n", own+".used", path)
	if err := os.WriteFile(own, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv(redistest.ServerEnv, own)
	if err := redistest.New(t, redistest.Options{}).Client(t).Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(own + ".used"); err != nil {
		t.Errorf("the server was not started by the program that %s names: %v", redistest.ServerEnv, err)
	}

	t.Setenv(redistest.ServerEnv, own+".missing")
	if _, err := redistest.Start(t.Context(), redistest.Options{}); err == nil || !strings.Contains(err.Error(), redistest.ServerEnv) {
		t.Errorf("got %v, want an error that names %s", err, redistest.ServerEnv)
	}
}

func TestRestartKeepsDataAndAddress(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		options redistest.Options
		restart func(*redistest.Server) error
		want    string
	}{
		"restart":       {redistest.Options{TCP: true}, func(s *redistest.Server) error { return s.Restart(t.Context()) }, "v"},
		"restart empty": {redistest.Options{TCP: true}, func(s *redistest.Server) error { return s.RestartEmpty(t.Context()) }, ""},
		"of a paused one": {redistest.Options{}, func(s *redistest.Server) error {
			return errors.Join(s.Pause(), s.Restart(t.Context()))
		}, "v"},
		"after a kill, in memory only": {redistest.Options{}, func(s *redistest.Server) error {
			s.Kill()
			return s.Restart(t.Context())
		}, ""},
		"after a kill, append-only file": {redistest.Options{Config: []string{"appendonly yes"}}, func(s *redistest.Server) error {
			s.Kill()
			return s.Restart(t.Context())
		}, "v"},
		"empty, append-only file": {redistest.Options{Config: []string{"appendonly yes"}}, func(s *redistest.Server) error {
			return s.RestartEmpty(t.Context())
		}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := redistest.New(t, tt.options)
			url, pid := s.URL(), s.PID()
			rdb := s.Client(t)
			if err := rdb.Set(t.Context(), "k", "v", 0).Err(); err != nil {
				t.Fatal(err)
			}
			if err := tt.restart(s); err != nil {
				t.Fatal(err)
			}
			if s.URL() != url {
				t.Errorf("the address was %s and is %s", url, s.URL())
			}
			if s.PID() == pid {
				t.Errorf("it is still process %d", pid)
			}
			got, err := s.Client(t).Get(t.Context(), "k").Result()
			if err != nil && !errors.Is(err, redis.Nil) {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("k is %q, want %q", got, tt.want)
			}
		})
	}
}

func TestKilledServerRefuses(t *testing.T) {
	t.Parallel()
	s := redistest.New(t, redistest.Options{TCP: true})
	rdb := s.Client(t)
	s.Kill()
	s.Kill() // does nothing
	if err := rdb.Ping(t.Context()).Err(); err == nil {
		t.Error("it answered")
	}
	if pid := s.PID(); pid != 0 {
		t.Errorf("its process id is %d, want 0", pid)
	}
	if err := s.Pause(); err == nil {
		t.Error("it was paused")
	}
}

func TestPausedServerRepliesWhenResumed(t *testing.T) {
	t.Parallel()
	s := redistest.New(t, redistest.Options{})
	rdb := s.Client(t)
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Ping(within(t, 30*time.Millisecond)).Err(); err == nil {
		t.Error("it answered while it was paused")
	}
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
}

func TestStopRemovesEverything(t *testing.T) {
	t.Parallel()
	s, err := redistest.Start(t.Context(), redistest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(u.Path); err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(u.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	if err := s.Stop(); err != nil {
		t.Errorf("the second Stop: %v", err)
	}
}

// helperVariable makes a copy of this test binary start a server, or whatever else it names, print
// the addresses, and wait to be killed.
const helperVariable = "LOCKSTEP_REDISTEST_HELPER"

func TestHelperProcess(t *testing.T) {
	kind := os.Getenv(helperVariable)
	if kind == "" {
		t.Skip("runs only as the child of TestServersDieWithAKilledTestBinary")
	}
	redistest.OnDisk() // in the folder that the parent removes
	var servers []*redistest.Server
	switch kind {
	case "server":
		s, err := redistest.Start(t.Context(), redistest.Options{TCP: true})
		if err != nil {
			t.Fatal(err)
		}
		servers = append(servers, s)
	case "sentinel":
		s, err := redistest.StartSentinel(t.Context(), redistest.SentinelOptions{})
		if err != nil {
			t.Fatal(err)
		}
		servers = append(s.Members(), s.Sentinels()...)
	}
	runtime.GC() // idle threads may end; the server must not end with them
	for _, s := range servers {
		fmt.Print(s.URL(), " ")
	}
	fmt.Println()
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent has killed this process
}

// A cluster node stops for as long as it syncs its view of the cluster, and a server stops for as
// long as it syncs its configuration. A busy disk must not decide how long.
func TestWhatAServerSyncsBeforeItAnswersIsInMemory(t *testing.T) {
	if _, err := os.Stat("/dev/shm"); err != nil {
		t.Skip("this system has no such folder in memory")
	}
	t.Parallel()
	inMemory := func(what, path string) {
		t.Helper()
		if !strings.HasPrefix(path, "/dev/shm/") {
			t.Errorf("%s is in %s", what, path)
		}
	}
	sentinel := redistest.NewSentinel(t, redistest.SentinelOptions{})
	cluster := redistest.NewCluster(t, redistest.ClusterOptions{})
	for _, s := range slices.Concat(sentinel.Members(), sentinel.Sentinels(), cluster.Members()) {
		inMemory("the configuration", s.Client(t).InfoMap(t.Context(), "server").Item("Server", "config_file"))
	}
	for _, s := range cluster.Members() {
		node := s.Client(t)
		config, err := node.ConfigGet(t.Context(), "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		inMemory("the view of the cluster", config["cluster-config-file"])
		if strings.HasPrefix(config["dir"], "/dev/shm/") {
			t.Errorf("the data is in memory, too: %s", config["dir"])
		}
		if config["repl-diskless-load"] != "swapdb" {
			t.Error("a replica syncs a file of each copy")
		}
	}
}

func TestServersDieWithAKilledTestBinary(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends a child with its parent")
	}
	t.Parallel()
	for kind, count := range map[string]int{"server": 1, "sentinel": 5} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			testKilledBinary(t, kind, count)
		})
	}
}

func testKilledBinary(t *testing.T, kind string, count int) {
	folder := t.TempDir() // the killed process cannot remove its files
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelperProcess$")
	cmd.Env = append(os.Environ(), helperVariable+"="+kind, "TMPDIR="+folder)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	urls := strings.Fields(line)
	if err != nil || len(urls) != count || !strings.HasPrefix(urls[0], "redis://") {
		_ = cmd.Process.Kill()
		t.Fatalf("the child said %q (%v, %v), want %d addresses", line, err, cmd.Wait(), count)
	}
	answers := func() (n int) {
		for _, address := range urls {
			u, err := url.Parse(address)
			if err != nil {
				t.Fatal(err)
			}
			if conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", u.Host); err == nil {
				_ = conn.Close()
				n++
			}
		}
		return n
	}
	if n := answers(); n != count {
		t.Errorf("%d of the child's %d servers answer", n, count)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // "signal: killed"
	eventually(t, "the servers of a killed test binary end", func() bool { return answers() == 0 })
}

func TestRestartFromAMomentForgetsLaterWrites(t *testing.T) {
	t.Parallel()
	s := redistest.New(t, redistest.Options{Config: []string{"appendonly yes"}})
	rdb := s.Client(t)
	id := func() string {
		text, err := rdb.Info(t.Context(), "server").Result()
		if err != nil {
			t.Fatal(err)
		}
		_, text, _ = strings.Cut(text, "run_id:")
		return text[:40]
	}
	if err := rdb.Set(t.Context(), "old", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	before := id()
	moment, err := s.Moment()
	if err != nil {
		t.Fatal(err)
	}
	if err := rdb.Set(t.Context(), "new", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.RestartFrom(t.Context(), moment); err != nil {
		t.Fatal(err)
	}
	if keys, err := rdb.Keys(t.Context(), "*").Result(); err != nil || !slices.Equal(keys, []string{"old"}) {
		t.Errorf("%v, %v, want what was there at that moment, and nothing else", keys, err)
	}
	if id() == before {
		t.Error("it shows the same run id, want another server's")
	}
	without := redistest.New(t, redistest.Options{})
	if _, err := without.Moment(); err == nil {
		t.Error("a server without an append-only file has a moment to go back to")
	}
}
