package cmd

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"lockstep/configs"
	"lockstep/locks/redistest"
)

// installation is a Redis as companies run it: a topology, with or without TLS, with the users of
// doctor --acl.
type installation struct {
	t         *testing.T
	url       string
	env       []string            // the settings of TLS and of the sentinels
	members   []*redistest.Server // the servers that have the data
	sentinels []*redistest.Server
	failover  func(context.Context) error             // nil without replicas
	client    func(user string) redis.UniversalClient // as a program that does not use lockstep
}

// secretOf is the password of all users.
const secretOf = "hunter2-secret"

// tlsEnv returns the settings of a client whose certificate the authority has signed.
func tlsEnv(t *testing.T, authority *redistest.Authority) []string {
	t.Helper()
	files := authority.Issue(t, redistest.Certificate{})
	return []string{"LOCKSTEP_REDIS__TLS__CA_FILE=" + authority.File(), "LOCKSTEP_REDIS__TLS__CERT_FILE=" + files.Cert, "LOCKSTEP_REDIS__TLS__KEY_FILE=" + files.Key}
}

// install starts a topology: "standalone", "sentinel" or "cluster".
func install(t *testing.T, topology string, encrypted bool) *installation {
	t.Helper()
	in := &installation{t: t}
	var secure *redistest.TLS
	if encrypted {
		authority := redistest.NewAuthority(t)
		secure = authority.TLS(t, redistest.Certificate{})
		in.env = tlsEnv(t, authority)
	}
	switch topology {
	case "standalone":
		server := redistest.New(t, redistest.Options{TCP: true, TLS: secure})
		in.url, in.members = server.URL(), []*redistest.Server{server}
		in.client = func(user string) redis.UniversalClient {
			o := server.RedisOptions()
			o.Username, o.Password = user, secretOf
			return redis.NewClient(o)
		}
	case "sentinel":
		s := redistest.NewSentinel(t, redistest.SentinelOptions{TLS: secure})
		in.url, in.members, in.sentinels, in.failover = s.URL(), s.Members(), s.Sentinels(), s.Failover
		in.env = append(in.env, "LOCKSTEP_REDIS__SENTINEL__USER=lockstep-sentinel", "LOCKSTEP_REDIS__SENTINEL__PASSWORD_FILE="+writeFile(t, "sentinel", secretOf+"\n"))
		in.client = func(user string) redis.UniversalClient {
			o := s.FailoverOptions()
			o.Username, o.Password = user, secretOf
			return redis.NewFailoverClient(o)
		}
	case "cluster":
		c := redistest.NewCluster(t, redistest.ClusterOptions{TLS: secure})
		in.url, in.members = c.URL(), c.Members()
		in.failover = func(ctx context.Context) error { return c.Failover(ctx, "{lockstep}") }
		in.client = func(user string) redis.UniversalClient {
			o := c.ClusterOptions()
			o.Username, o.Password = user, secretOf
			return redis.NewClusterClient(o)
		}
	}
	return in
}

// admit creates the users that doctor --acl prints: that of the sentinels at each sentinel, and the
// others at each server. Redis does not replicate users.
func (in *installation) admit(config string) {
	in.t.Helper()
	stdout, stderr, code := runTool(in.t, toolEnv(in.t, append(in.env, "REDIS_URL="+in.url)...), "doctor", "--acl", "-c", config)
	if code != 0 {
		in.t.Fatalf("doctor --acl: exit code %d: %s", code, stderr)
	}
	for line := range strings.Lines(stdout) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var words []any
		for _, word := range strings.Fields(strings.ReplaceAll(line, "CHANGE-ME", secretOf)) {
			words = append(words, word)
		}
		at := in.members
		if words[2] == "lockstep-sentinel" {
			at = in.sentinels
		}
		for _, server := range at {
			if err := server.Client(in.t).Do(in.t.Context(), words...).Err(); err != nil {
				in.t.Fatalf("%s: %v", line, err)
			}
		}
	}
}

// as returns the environment of a process that signs in as a user of a role, with its password in
// the URL or in a file.
func (in *installation) as(role, config string, inFile bool) []string {
	in.t.Helper()
	login, env := "://lockstep-"+role+":"+secretOf+"@", slices.Clone(in.env)
	if inFile {
		login = "://lockstep-" + role + "@"
		env = append(env, "LOCKSTEP_REDIS__PASSWORD_FILE="+writeFile(in.t, "password", secretOf+"\n"))
	}
	return toolEnv(in.t, append(env, "REDIS_URL="+strings.Replace(in.url, "://", login, 1), "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:0", "LOCKSTEP_CONFIG="+config)...)
}

// refusals returns what the servers and sentinels have refused to users of lockstep.
func (in *installation) refusals() (list []string) {
	in.t.Helper()
	for _, server := range append(slices.Clone(in.members), in.sentinels...) {
		log, err := server.Client(in.t).ACLLog(in.t.Context(), 1000).Result()
		if err != nil {
			in.t.Fatal(err)
		}
		for _, entry := range log {
			// go-redis works without these; enqueue asks for the format and the definition first
			expected := strings.HasPrefix(entry.Object, "client") ||
				entry.Username == "lockstep-producer" && slices.Contains([]string{"hget", "hmget", "hgetall", "{lockstep}:exp"}, entry.Object)
			if !expected {
				list = append(list, fmt.Sprintf("%s to %s: %s %s", entry.Object, entry.Username, entry.Reason, entry.Context))
			}
		}
	}
	return list
}

// TestAFleetWorksOnEachTopology runs whole workers with the least rights on each topology, with and
// without TLS, through a failover. TestAFleetWorksUnderTheLeastRights covers the one that is left.
func TestAFleetWorksOnEachTopology(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		topology  string
		encrypted bool
	}{{"standalone", true}, {"sentinel", false}, {"sentinel", true}, {"cluster", false}, {"cluster", true}} {
		t.Run(fmt.Sprintf("%s, TLS %v", test.topology, test.encrypted), func(t *testing.T) {
			t.Parallel()
			in := install(t, test.topology, test.encrypted)
			config := writeFile(t, "lockstep.yaml", `
locks: {lease: 4s}
jobs:
  tick: {every: 1s, command: ["true"]}
  hello: {command: ["true"]}
`)
			in.admit(config)
			worker, operator, reader := in.as("worker", config, true), in.as("operator", config, false), in.as("reader", config, true)
			does := func(env []string, args ...string) {
				t.Helper()
				if stdout, stderr, code := runTool(t, env, args...); code != 0 {
					t.Errorf("lockstep %s: exit code %d: %s%s", strings.Join(args, " "), code, stdout, stderr)
				}
			}
			runs := func() []runJSON { return ask[[]runJSON](t, reader, "run", "ls") }
			succeeded := func(id string) func() bool {
				return func() bool {
					return slices.ContainsFunc(runs(), func(run runJSON) bool { return run.ID == id && run.State == "succeeded" })
				}
			}
			workers := []*process{launch(t, worker, "start"), launch(t, worker, "start")}
			eventually(t, time.Minute, "two workers", func() bool { return len(ask[[]any](t, reader, "worker", "ls")) == 2 })
			ticked := func(from time.Time) func() bool {
				return func() bool {
					return slices.ContainsFunc(runs(), func(run runJSON) bool {
						return run.Tick != nil && run.Tick.After(from) && run.State == "succeeded"
					})
				}
			}
			eventually(t, time.Minute, "a tick", ticked(time.Time{}))
			does(operator, "enqueue", "hello", "--id", "before", "--wait=60s")
			does(operator, "job", "pause", "hello")
			does(operator, "job", "resume", "hello")
			does(operator, "lock", "exec", "--exclusive", "desk", "--", "true")
			does(worker, "doctor")

			rdb := in.client("lockstep-producer")
			if _, err := asynq.NewClientFromRedisClient(rdb).Enqueue(asynq.NewTask("hello", nil), asynq.TaskID("plain")); err != nil {
				t.Error(err)
			}
			if err := rdb.Close(); err != nil {
				t.Error(err)
			}
			eventually(t, time.Minute, "the run of a plain task", succeeded("hello#default/plain"))

			// its parent connects for itself
			if err := syscall.Kill(workers[0].worker(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			eventually(t, time.Minute, "the end of the session of a killed worker", func() bool {
				return strings.Contains(workers[0].stderr.String(), "worker crashed, its session is ended")
			})

			if in.failover != nil {
				if err := in.failover(t.Context()); err != nil {
					t.Fatal(err)
				}
				switched := time.Now()
				// the new master grants nothing while the workers re-assert what they hold
				eventually(t, time.Minute, "a request after the failover", func() bool {
					_, _, code := runTool(t, operator, "enqueue", "hello", "--id", "after")
					return code == 0
				})
				eventually(t, time.Minute, "its run", succeeded("hello#after"))
				eventually(t, time.Minute, "a tick after the failover", ticked(switched))
				does(operator, "lock", "exec", "--exclusive", "desk", "--", "true")
			}
			for _, worker := range workers {
				worker.signal(syscall.SIGTERM)
			}
			for _, worker := range workers {
				if code := worker.code(30 * time.Second); code != 0 {
					t.Errorf("a worker exits %d after SIGTERM", code)
				}
				if log := worker.stderr.String(); strings.Contains(log, secretOf) {
					t.Errorf("a worker logs the password: %s", log)
				}
			}
			for _, refused := range in.refusals() {
				t.Errorf("Redis has refused %s", refused)
			}
			if in.sentinels != nil {
				wrong := append(slices.Clone(operator), "LOCKSTEP_REDIS__SENTINEL__PASSWORD_FILE="+writeFile(t, "wrong", "wrong"))
				if _, stderr, code := runTool(t, wrong, "job", "ls"); code != exitRedis || strings.Count(stderr, "\n") != 1 ||
					!strings.Contains(stderr, "WRONGPASS") || !strings.Contains(stderr, "check redis.sentinel.user and redis.sentinel.password_file") {
					t.Errorf("with a wrong password for the sentinels: exit code %d, %s", code, stderr)
				}
			}
		})
	}
}

func TestTLSFaultsAreOneSentenceWithItsRemedy(t *testing.T) {
	t.Parallel()
	authority, stranger := redistest.NewAuthority(t), redistest.NewAuthority(t)
	good := authority.TLS(t, redistest.Certificate{})
	past := time.Now().Add(-time.Hour)
	start := func(secure *redistest.TLS) string {
		return redistest.New(t, redistest.Options{TCP: true, TLS: secure}).URL()
	}
	trust := "LOCKSTEP_REDIS__TLS__CA_FILE=" + authority.File()
	own, foreign, old := tlsEnv(t, authority), tlsEnv(t, stranger)[1:], authority.Issue(t, redistest.Certificate{Expires: past})
	url := start(good)
	expired := start(authority.TLS(t, redistest.Certificate{Expires: past}))
	named := start(authority.TLS(t, redistest.Certificate{Names: []string{"redis.internal", "10.9.8.7"}}))
	plain := start(nil)
	sentinels := redistest.NewSentinel(t, redistest.SentinelOptions{Replicas: -1, TLS: good}).URL()
	for name, test := range map[string]struct {
		url  string
		env  []string
		want []string
	}{
		"expired server": {expired, own, []string{"the certificate of 127.0.0.1:", "expired on " + minute(past), ": renew it on the server"}},
		"unknown authority": {url, append(own[1:], "LOCKSTEP_REDIS__TLS__CA_FILE="+stranger.File()),
			[]string{"is not signed by an authority in redis.tls.ca_file " + stranger.File(), "add the certificate of its authority there"}},
		"authority that this host does not trust": {url, own[1:], []string{"this host does not trust the authority that signed the certificate of 127.0.0.1:", "set redis.tls.ca_file"}},
		"unknown authority of sentinels": {sentinels, append(own[1:], "LOCKSTEP_REDIS__TLS__CA_FILE="+stranger.File()),
			[]string{"is not signed by an authority in redis.tls.ca_file " + stranger.File()}},
		"another name": {named, own, []string{"is for redis.internal, 10.9.8.7 and not for 127.0.0.1", "set redis.tls.server_name"}},
		"plain server": {strings.Replace(plain, "redis:", "rediss:", 1), own, []string{"name the TLS port of the server in redis.url, or write redis:// there"}},
		"TLS server":   {strings.Replace(url, "rediss:", "redis:", 1), nil, []string{" uses TLS, and redis.url is redis://(hidden)@", "write rediss:// there"}},
		"TLS sentinels": {strings.Replace(sentinels, "rediss-", "redis-", 1), nil,
			[]string{" uses TLS, and redis.url is redis-sentinel://(hidden)@", "write rediss-sentinel:// there"}},
		"no certificate": {url, []string{trust}, []string{"requires the certificate of a client: set redis.tls.cert_file and redis.tls.key_file"}},
		"foreign certificate": {url, append(foreign, trust),
			[]string{"refuses the certificate in redis.tls.cert_file ", "use one that is signed by an authority in tls-ca-cert-file of the server"}},
		"expired certificate": {url, []string{trust, "LOCKSTEP_REDIS__TLS__CERT_FILE=" + old.Cert, "LOCKSTEP_REDIS__TLS__KEY_FILE=" + old.Key},
			[]string{"refuses the certificate in redis.tls.cert_file " + old.Cert, "it expired on " + minute(past) + ", renew it"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := writeFile(t, "lockstep.yaml", "jobs: {hello: {command: [\"true\"]}}")
			env := toolEnv(t, append(test.env, "REDIS_URL="+strings.Replace(test.url, "://", "://u:"+secretOf+"@", 1), "LOCKSTEP_CONFIG="+config)...)
			for _, command := range []string{"job ls", "doctor", "start"} {
				_, stderr, code := runTool(t, env, strings.Fields(command)...)
				last := stderr[strings.LastIndexByte(strings.TrimSuffix(stderr, "\n"), '\n')+1:]
				if code != exitRedis {
					t.Errorf("%s: exit code %d, want %d", command, code, exitRedis)
				}
				for _, want := range test.want {
					if strings.Count(last, want) != 1 {
						t.Errorf("%s prints %q, want %q once", command, last, want)
					}
				}
				if strings.Contains(stderr, secretOf) {
					t.Errorf("%s reveals the password: %s", command, stderr)
				}
			}
		})
	}
	t.Run("the server's name is set", func(t *testing.T) {
		t.Parallel()
		env := toolEnv(t, append(own, "REDIS_URL="+named, "LOCKSTEP_REDIS__TLS__SERVER_NAME=redis.internal")...)
		if stdout, stderr, code := runTool(t, env, "lock", "exec", "--exclusive", "a", "--", "echo", "mine"); code != 0 || stdout != "mine\n" {
			t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
		}
	})
}

// replaceFiles gives the files of a certificate the content of others, as a renewal does.
func replaceFiles(t *testing.T, from, to map[string]string) {
	t.Helper()
	for name, path := range to {
		text, err := os.ReadFile(from[name])
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestRenewedCertificatesNeedNoRestart replaces every certificate of a server and of a worker that
// runs: first the server's by one that has expired, then all by those of another authority.
func TestRenewedCertificatesNeedNoRestart(t *testing.T) {
	t.Parallel()
	first, second := redistest.NewAuthority(t), redistest.NewAuthority(t)
	secure := first.TLS(t, redistest.Certificate{})
	server := redistest.New(t, redistest.Options{TLS: secure, Config: []string{"appendonly yes"}})
	ours := first.Issue(t, redistest.Certificate{})
	files := map[string]string{"server": secure.Server.Cert, "server key": secure.Server.Key}
	config := writeFile(t, "lockstep.yaml", "locks: {lease: 2s}\njobs: {hello: {command: [\"true\"]}}")
	env := toolEnv(t, "REDIS_URL="+server.URL(), "LOCKSTEP_ADMIN__LISTEN=127.0.0.1:0", "LOCKSTEP_CONFIG="+config, "LOCKSTEP_LOG__FORMAT=json",
		"LOCKSTEP_REDIS__TLS__CA_FILE="+first.File(), "LOCKSTEP_REDIS__TLS__CERT_FILE="+ours.Cert, "LOCKSTEP_REDIS__TLS__KEY_FILE="+ours.Key)
	worker := launch(t, env, "start")
	works := func(id string) {
		t.Helper()
		eventually(t, time.Minute, "the run of "+id, func() bool {
			_, _, code := runTool(t, env, "enqueue", "hello", "--id", id, "--wait=20s")
			return code == 0
		})
	}
	works("a")
	child := worker.worker()

	expired := first.Issue(t, redistest.Certificate{Expires: time.Now().Add(-time.Hour)})
	replaceFiles(t, map[string]string{"server": expired.Cert, "server key": expired.Key}, files)
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	// messages returns how often the worker has logged each message about the certificate, except
	// for the lines that count its repetitions.
	messages := func() map[string]int {
		count := make(map[string]int)
		for line := range strings.Lines(worker.stderr.String()) {
			var entry struct {
				Msg, Call string
				Repeated  int
			}
			if strings.Contains(line, " expired on ") && json.Unmarshal([]byte(line), &entry) == nil && entry.Repeated == 0 {
				count[strings.TrimSpace(entry.Msg+" "+entry.Call)]++
			}
		}
		return count
	}
	eventually(t, time.Minute, "the worker logs that the certificate has expired", func() bool { return len(messages()) > 0 })
	eventually(t, time.Minute, "the worker is cut off", func() bool { return strings.Contains(worker.stderr.String(), "lock session cut off") })

	renewed, client := second.Issue(t, redistest.Certificate{}), second.Issue(t, redistest.Certificate{})
	for name, path := range map[string]string{"ca": first.File(), "cert": ours.Cert, "key": ours.Key} {
		files[name] = path
	}
	replaceFiles(t, map[string]string{"server": renewed.Cert, "server key": renewed.Key, "ca": second.File(), "cert": client.Cert, "key": client.Key}, files)
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	works("b")
	if now := worker.worker(); now != child || now == 0 {
		t.Errorf("process %d works, want %d", now, child)
	}
	for message, n := range messages() {
		if n != 1 {
			t.Errorf("the worker has logged %q %d times, want once", message, n)
		}
	}
	worker.signal(syscall.SIGTERM)
	if code := worker.code(30 * time.Second); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}

// TestHalfReplacedCertificatesKeepTheLastOnes breaks the key of a client between two connections.
func TestHalfReplacedCertificatesKeepTheLastOnes(t *testing.T) {
	t.Parallel()
	authority := redistest.NewAuthority(t)
	server := redistest.New(t, redistest.Options{TLS: authority.TLS(t, redistest.Certificate{})})
	ours, other := authority.Issue(t, redistest.Certificate{}), authority.Issue(t, redistest.Certificate{})
	settings := configs.Redis{URL: server.URL(), TLS: configs.TLS{CAFile: authority.File(), CertFile: ours.Cert, KeyFile: ours.Key}}
	dialer := &secureDialer{settings: settings}
	o, err := parseURL(settings.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, stale := range []string{"", "redis.tls.key_file " + ours.Key + ": it is not the key of the certificate"} {
		rdb := redis.NewClient(&redis.Options{Addr: o.Addrs[0], Dialer: dialer.dial})
		if err := rdb.Ping(t.Context()).Err(); err != nil {
			t.Errorf("stale %q: %v", stale, err)
		}
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
		if got := fmt.Sprint(dialer.stale()); stale != "" && !strings.Contains(got, stale) {
			t.Errorf("got %s, want %s", got, stale)
		}
		replaceFiles(t, map[string]string{"key": other.Key}, map[string]string{"key": ours.Key})
	}
	if _, err := (&secureDialer{settings: settings}).dial(t.Context(), "tcp", o.Addrs[0]); err == nil || !strings.Contains(err.Error(), "redis.tls.key_file") {
		t.Errorf("got %v without earlier files, want an error that names the key", err)
	}
}

func TestExpiredAuthorityIsNamed(t *testing.T) {
	t.Parallel()
	c := &secureConn{dialer: new(secureDialer), address: "h:1"}
	at := time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)
	for _, test := range []struct {
		certificate *x509.Certificate
		want        string
	}{
		{&x509.Certificate{NotAfter: at}, "the certificate of h:1 expired on 2026-01-02 03:04Z: renew it on the server"},
		{&x509.Certificate{NotAfter: at, IsCA: true}, "the authority that signed the certificate of h:1 has one that expired on 2026-01-02 03:04Z: renew it on the server and in redis.tls.ca_file"},
		{&x509.Certificate{NotBefore: time.Now().Add(48 * time.Hour)}, "check the clock of this host"},
	} {
		err := &net.OpError{Op: "dial", Err: x509.CertificateInvalidError{Cert: test.certificate, Reason: x509.Expired}}
		if got := c.explain(err); !strings.Contains(got.Error(), test.want) || !errors.Is(got, err) {
			t.Errorf("got %v, want %s", got, test.want)
		}
	}
	c.asked = true // what follows has another cause
	err := c.explain(context.Canceled)
	if _, explained := errors.AsType[*tlsError](err); explained || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the error unchanged", err)
	}
}
