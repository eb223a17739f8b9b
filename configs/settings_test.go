package configs

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"lockstep/locks"
	"lockstep/locks/redistest"
)

// settings loads files in the order of their names, with an environment and flags.
func settings(t *testing.T, files map[string]string, environ []string, args ...string) *Config {
	t.Helper()
	c := doubtfulSettings(t, files, environ, args...)
	noWarnings(t, c)
	return c
}

// doubtfulSettings is settings for configs with warnings.
func doubtfulSettings(t *testing.T, files map[string]string, environ []string, args ...string) *Config {
	t.Helper()
	o := Options{Environ: append([]string{}, environ...)}
	if len(files) > 0 {
		o.Paths = []string{writeFiles(t, files)}
	}
	o.Flags, o.FlagKeys = testFlags(t, args...)
	c, err := Load(o)
	if err != nil {
		t.Fatalf("load:\n%v", err)
	}
	return c
}

func TestHigherLayerWins(t *testing.T) {
	t.Parallel()
	file := map[string]string{"a.yaml": "redis: {url: 'redis://file:1'}\nlocks: {lease: 20s}"}
	two := map[string]string{"a.yaml": file["a.yaml"], "b.yaml": "redis: {url: 'redis://second:1'}"}
	plain := []string{"REDIS_URL=redis://plain:1"}
	ours := append([]string{"LOCKSTEP_REDIS__URL=redis://ours:1"}, plain...)
	for _, tt := range []struct {
		name    string
		files   map[string]string
		environ []string
		args    []string
		url     string
		origin  string
	}{
		{"default", nil, nil, nil, "redis://127.0.0.1:6379/0", "default"},
		{"file", file, nil, nil, "redis://file:1", "a.yaml:1:9"},
		{"later file", two, nil, nil, "redis://second:1", "b.yaml:1:9"},
		{"REDIS_URL beats files", two, plain, nil, "redis://plain:1", "REDIS_URL"},
		{"LOCKSTEP_REDIS__URL beats REDIS_URL", two, ours, nil, "redis://ours:1", "LOCKSTEP_REDIS__URL"},
		{"flag beats all", two, ours, []string{"--redis=redis://flag:1"}, "redis://flag:1", "--redis"},
		{"REDIS_URL without a file", nil, plain, nil, "redis://plain:1", "REDIS_URL"},
		{"empty variables count as unset", file, []string{"REDIS_URL=", "LOCKSTEP_REDIS__URL="}, nil, "redis://file:1", "a.yaml:1:9"},
		{"REDIS_URL of another program", nil, []string{"REDIS_URL=redis+foo://x", "LOCKSTEP_REDIS__URL=redis://ours:1"}, nil, "redis://ours:1", "LOCKSTEP_REDIS__URL"},
		{"flag against a wrong REDIS_URL", nil, []string{"REDIS_URL=redis+foo://x"}, []string{"--redis=redis://flag:1"}, "redis://flag:1", "--redis"},
		{"flag that was not given", file, nil, []string{"--watch"}, "redis://file:1", "a.yaml:1:9"},
	} {
		c := settings(t, tt.files, tt.environ, tt.args...)
		origin := c.Origins["redis.url"]
		origin.File = filepath.Base(origin.File)
		if origin.File == "." {
			origin.File = ""
		}
		if c.Settings.Redis.URL != tt.url || origin.String() != tt.origin {
			t.Errorf("%s: got %s from %s, want %s from %s", tt.name, c.Settings.Redis.URL, origin, tt.url, tt.origin)
		}
		if lease := c.Settings.Locks.Lease; (tt.files != nil) != (lease == 20*time.Second) {
			t.Errorf("%s: got a lease of %s: a layer removed a key that it does not set", tt.name, lease)
		}
	}
}

func TestEverySettingCanComeFromEachLayer(t *testing.T) {
	t.Parallel()
	authority := redistest.NewAuthority(t)
	ca, client := authority.File(), authority.Issue(t, redistest.Certificate{})
	values := map[string]string{
		"redis.url": "rediss-sentinel://x:1?master=m", "redis.password_file": "/etc/hostname", "redis.namespace": "shop",
		"redis.sign_key_file": "/k1, /k2", "redis.sign_key": "0123456789abcdef0123456789abcdef",
		"redis.tls.ca_file": ca, "redis.tls.cert_file": client.Cert, "redis.tls.key_file": client.Key, "redis.tls.server_name": "redis.internal",
		"redis.sentinel.user": "watcher", "redis.sentinel.password_file": "/p", "redis.sentinel.password": "sentinel-secret",
		"worker.name": "web-1", "worker.concurrency": "3", "worker.drain_timeout": "7s", "worker.queues": "a.b=2,c=1", "worker.env": "PATH, LC_*",
		"limits.args": "64KiB", "limits.history": "512MiB", "locks.lease": "9s", "locks.reserve_after": "2s", "locks.grace": "30s", "admin.listen": "0.0.0.0:80",
		"admin.hosts":     "lockstep.example.org, lockstep",
		"admin.base_path": "/lockstep", "admin.read_only": "true", "admin.keep.holds": "72h", "admin.keep.entries": "5000",
		"admin.auth.mode": "none", "admin.auth.user": "ops", "admin.auth.password_file": "/a", "admin.auth.users_file": "/b", "admin.auth.token_file": "/c",
		"admin.auth.operator_token_file": "/d", "admin.auth.viewer_token_file": "/e", "admin.auth.groups_header": "Remote-Groups",
		"admin.auth.admins": "sre", "admin.auth.operators": "on-call, dev", "admin.auth.viewers": "*",
		"admin.auth.header": "Remote-User", "admin.auth.proxies": "10.0.0.0/8, ::2",
		"metrics.jobs": "50", "log.level": "debug", "log.format": "json", "log.output": "true",
	}
	want := Settings{
		Redis: Redis{URL: "rediss-sentinel://x:1?master=m", PasswordFile: "/etc/hostname", Namespace: "shop",
			TLS:         TLS{CAFile: ca, CertFile: client.Cert, KeyFile: client.Key, ServerName: "redis.internal"},
			Sentinel:    Sentinel{User: "watcher", PasswordFile: "/p", Password: "sentinel-secret"},
			SignKeyFile: []string{"/k1", "/k2"}, SignKey: "0123456789abcdef0123456789abcdef"},
		Worker: Worker{Name: "web-1", Concurrency: 3, DrainTimeout: 7 * time.Second, Queues: map[string]int{"a.b": 2, "c": 1}, Env: []string{"PATH", "LC_*"}},
		Limits: Limits{Args: "64KiB", History: "512MiB"},
		Locks:  Locks{Lease: 9 * time.Second, ReserveAfter: 2 * time.Second, Grace: "30s"},
		Admin: Admin{Listen: "0.0.0.0:80", ListenSet: true, BasePath: "/lockstep", Hosts: []string{"lockstep.example.org", "lockstep"}, ReadOnly: true, Auth: Auth{Mode: "none", User: "ops", PasswordFile: "/a", UsersFile: "/b", TokenFile: "/c",
			Header: "Remote-User", Proxies: []string{"10.0.0.0/8", "::2"}, OperatorTokenFile: "/d", ViewerTokenFile: "/e",
			GroupsHeader: "Remote-Groups", Admins: []string{"sre"}, Operators: []string{"on-call", "dev"}, Viewers: []string{"*"}},
			Keep: Keep{Holds: 72 * time.Hour, Entries: 5000}},
		Metrics: Metrics{Jobs: 50},
		Log:     Log{Level: "debug", Format: "json", Output: true},
	}
	var environ []string
	var text strings.Builder
	for key := range settingKeys() {
		value, ok := values[key]
		if !ok {
			t.Errorf("this test lacks the setting %s", key)
		}
		environ = append(environ, envPrefix+strings.ToUpper(strings.ReplaceAll(key, ".", "__"))+"="+value)
	}
	section := ""
	for _, setting := range settingList() {
		above, indent := setting.path[:len(setting.path)-1], ""
		for i, name := range above {
			indent = strings.Repeat("  ", i+1)
			if at := strings.Join(above[:i+1], "."); !strings.HasPrefix(section+".", at+".") {
				fmt.Fprintf(&text, "%s%s:\n", strings.Repeat("  ", i), name)
			}
		}
		section = strings.Join(above, ".")
		value := values[setting.key]
		switch setting.key {
		case "worker.queues":
			value = "{a.b: 2, c: 1}"
		case "redis.sign_key", "redis.sentinel.password":
			value = "${NONE:-" + value + "}"
		case "admin.auth.viewers":
			value = `["*"]`
		case "admin.auth.proxies", "admin.auth.admins", "admin.auth.operators", "admin.hosts", "redis.sign_key_file", "worker.env":
			value = "[" + value + "]"
		}
		fmt.Fprintf(&text, "%s%s: %s\n", indent, setting.path[len(above)], value)
	}
	fromEnv := doubtfulSettings(t, nil, environ)
	fromFile := doubtfulSettings(t, map[string]string{"a.yaml": text.String()}, nil)
	for name, c := range map[string]*Config{"environment": fromEnv, "file": fromFile} {
		if !reflect.DeepEqual(c.Settings, want) {
			t.Errorf("%s: got %+v\nwant %+v", name, c.Settings, want)
		}
		if len(c.Origins) != len(values) {
			t.Errorf("%s: got %d origins, want %d", name, len(c.Origins), len(values))
		}
		for _, p := range c.Warnings.List {
			// no mode uses all of its neighbors
			if (p.Code != CodeUnused || !strings.Contains(p.Message, "admin.auth.") && !strings.HasPrefix(p.Message, "redis.s")) &&
				!strings.HasPrefix(p.Message, "other hosts can reach 0.0.0.0:80") {
				t.Errorf("%s: %s", name, p)
			}
		}
	}
}

func TestMapIsReplacedAsAWhole(t *testing.T) {
	t.Parallel()
	one := "worker: {queues: {critical: 6, default: 3}}"
	for _, tt := range []struct {
		name    string
		files   map[string]string
		environ []string
		args    []string
		want    map[string]int
	}{
		{"the default by a file", map[string]string{"a.yaml": one}, nil, nil, map[string]int{"critical": 6, "default": 3}},
		{"a file by a later one", map[string]string{"a.yaml": one, "b.yaml": "worker: {queues: {low: 1}}"}, nil, nil, map[string]int{"low": 1}},
		{"a file by the environment", map[string]string{"a.yaml": one}, []string{"LOCKSTEP_WORKER__QUEUES=x=1, y=2"}, nil, map[string]int{"x": 1, "y": 2}},
		{"all by a flag", map[string]string{"a.yaml": one}, []string{"LOCKSTEP_WORKER__QUEUES=x=1"}, []string{"--queues=z=3"}, map[string]int{"z": 3}},
		{"all by a typed flag", map[string]string{"a.yaml": one}, nil, []string{"--weights=z=3,w=4"}, map[string]int{"z": 3, "w": 4}},
	} {
		if got := settings(t, tt.files, tt.environ, tt.args...).Settings.Worker.Queues; !maps.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestTypedFlags(t *testing.T) {
	t.Parallel()
	c := settings(t, nil, nil, "--concurrency=3", "--lease=20s")
	if c.Settings.Worker.Concurrency != 3 || c.Settings.Locks.Lease != 20*time.Second {
		t.Errorf("got %+v", c.Settings)
	}
}

func TestOnlyDoubleUnderscoresAreSettings(t *testing.T) {
	t.Parallel()
	c := settings(t, nil, []string{"LOCKSTEP_PORT=tcp://10.0.0.1:80", "LOCKSTEP_SERVICE_HOST=10.0.0.1", "LOCKSTEP_CONFIG=/x", "LOCKSTEP_RUN_ID=x", "_LOCKSTEP_A__B=x", "ODD"})
	if len(c.Origins) > 0 {
		t.Errorf("got %v, want no setting", c.Origins)
	}
}

func TestQueueThatAFlagLeavesOutIsNoWarning(t *testing.T) {
	t.Parallel()
	files := map[string]string{"a.yaml": "worker: {queues: {default: 1, low: 1}}\njobs: {a: {command: [a], queue: low}}"}
	settings(t, files, nil, "--queues=default=1")
	settings(t, files, []string{"LOCKSTEP_WORKER__QUEUES=default=1"})
}

func TestRedisHidesItsPassword(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis://user:SECRET@host:6379/0":   "redis://(hidden)@host:6379/0",
		"redis://:SEC@RET@host":             "redis://(hidden)@host",
		"redis-cluster://:SECRET@a:1,b:2":   "redis-cluster://(hidden)@a:1,b:2",
		"redis://host:6379/0":               "redis://host:6379/0",
		"embedded":                          "embedded",
		"unix://:SECRET@/run/redis.sock":    "unix://(hidden)@/run/redis.sock",
		"redis-sentinel://SECRET@a/0?x=y@z": "redis-sentinel://(hidden)@z",
	} {
		s := Settings{Redis: Redis{URL: url, Namespace: "n"}}
		if got := s.Redis.SafeURL(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		var log strings.Builder
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "redis", s.Redis)
		if printed := fmt.Sprint(s) + fmt.Sprintf("%+v", s) + log.String(); strings.Contains(printed, "SECRET") {
			t.Errorf("printed %s", printed)
		}
	}
}

func TestPasswordFileIsReadWithoutItsNewline(t *testing.T) {
	t.Parallel()
	dir := writeFiles(t, map[string]string{"password": " a b\r\n\n"})
	if got, err := (Redis{PasswordFile: filepath.Join(dir, "password")}).Password(); got != " a b" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := (Redis{}).Password(); got != "" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	_, err := (Redis{PasswordFile: filepath.Join(dir, "missing")}).Password()
	if want := fmt.Sprintf("redis.password_file %s/missing: no such file or directory", dir); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestGoodRedisURLs(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"redis://localhost", "redis://localhost:6379", "redis://user:p%2Fw@host:6379/15", "redis://:pa@ss@host/", "rediss://host:1/2",
		"rediss-sentinel://a:26379,b/2?master=main", "rediss-cluster://user:pw@a:1,b:2",
		"redis://[::1]:6379/0", "unix:///run/redis.sock", "unix:///run/redis.sock?db=1", "embedded",
		"redis-sentinel://a:26379,b:26379,c/2?master=main", "redis-sentinel://:pw@a?master=main", "redis-cluster://a:1,b:2", "redis-cluster://a:1/0",
	} {
		if f := checkRedisURL(url); f != nil {
			t.Errorf("%s: %s", url, f.reason)
		}
	}
}

func TestUnknownParametersOfRedisURLsAreNamedWithoutTheirValues(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis://h:1/0?foo=SECRET":                          "it has the unknown parameter foo",
		"redis://h:1/0?password=SECRET":                     "it has the unknown parameter password",
		"rediss://h:1?db=2":                                 "it has the unknown parameter db",
		"redis://h:1?SECRET":                                "it has an unknown parameter",
		"redis://h:1?S%45CRET=1":                            "it has an unknown parameter",
		"redis://:pa?ss=SECRET@h:1":                         "the password has a character that a URL must not contain",
		"redis-sentinel://h:1?master=m&foo=SECRET":          "it has the unknown parameter foo",
		"redis-sentinel://h:1?Master=m":                     "it has the unknown parameter Master",
		"redis-cluster://h:1,i:2?max_retries=3":             "it has the unknown parameter max_retries",
		"redis-cluster://h?tls=true":                        "it has the unknown parameter tls",
		"rediss-cluster://h?skip_verify=true":               "it has the unknown parameter skip_verify",
		"rediss-sentinel://h?master=m&addr=SECRET":          "it has the unknown parameter addr",
		"unix:///run/redis.sock?db=1&username=SECRET&foo=2": "it has the unknown parameter username",
	} {
		f := checkRedisURL(url)
		if f == nil || f.reason != want {
			t.Errorf("%s: got %+v, want %s", url, f, want)
		} else if strings.Contains(f.reason+f.hint+f.want, "SECRET") {
			t.Errorf("%s: a value is revealed: %+v", url, f)
		}
	}
}

func TestSecretOfAFileIsNeverRevealed(t *testing.T) {
	t.Parallel()
	dir := writeFiles(t, map[string]string{"secret": "SECRET/x\n"})
	text := fmt.Sprintf("redis: {url: 'redis://:${file:%[1]s}@host', namespace: '${file:%[1]s}'}\nworker: {concurrency: '${file:%[1]s}'}\n"+
		"jobs: {a: {http: {url: '${file:%[1]s}'}, lock: {exclusive: ['{${file:%[1]s}']}}}", filepath.Join(dir, "secret"))
	found := problems(t, text)
	if found.Errors() != 5 || strings.Contains(found.Error(), "SECRET") {
		t.Errorf("got %v", found)
	}
}

func TestEnvironmentOfTheProcessIsTheDefault(t *testing.T) {
	t.Setenv("LOCKSTEP_WORKER__CONCURRENCY", "77")
	t.Setenv("REDIS_URL", "")
	c, err := Load(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Settings.Worker.Concurrency; got != 77 {
		t.Errorf("got %d, want 77", got)
	}
}

func TestSignKeysAreReadFromOneFileOrTwo(t *testing.T) {
	t.Parallel()
	dir := writeFiles(t, map[string]string{"old": strings.Repeat("o", 32) + "\n", "new": strings.Repeat("n", 40), "short": strings.Repeat("s", 31) + "\n"})
	if err := os.Chmod(filepath.Join(dir, "old"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "new"), 0o600); err != nil {
		t.Fatal(err)
	}
	read := func(value string) (Settings, error) {
		t.Helper()
		c, err := Load(Options{Paths: []string{configFile(t, fmt.Sprintf("redis: {sign_key_file: %s}\njobs: {a: {command: [a]}}\n", value))}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Settings.Redis.SignKeys()
		return c.Settings, err
	}
	one, err := read(filepath.Join(dir, "new"))
	if err != nil || len(one.Redis.ExposedKeys()) != 0 {
		t.Errorf("one file: %v, exposed %q", err, one.Redis.ExposedKeys())
	}
	two, err := read("[" + filepath.Join(dir, "new") + ", " + filepath.Join(dir, "old") + "]")
	if exposed := two.Redis.ExposedKeys(); err != nil || len(exposed) != 1 || filepath.Base(exposed[0]) != "old" {
		t.Errorf("two files: %v, exposed %q, want old alone", err, exposed)
	}
	first, _ := one.Redis.SignKeys()
	both, _ := two.Redis.SignKeys()
	if both.Count() != 2 || both.ID() != first.ID() {
		t.Errorf("of two files, %d keys are accepted, and %s signs; want %s", both.Count(), both.ID(), first.ID())
	}
	for name, want := range map[string]string{"short": "31 bytes", "none": "no such file"} {
		if _, err := read(filepath.Join(dir, name)); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "redis.sign_key_file") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// configFile writes a config file and returns its path.
func configFile(t *testing.T, text string) string {
	t.Helper()
	return filepath.Join(writeFiles(t, map[string]string{"lockstep.yaml": text}), "lockstep.yaml")
}

func TestNamespacesAreThoseOfTheLocks(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "a", "A_b-9", "a.b", "a b", "ä", "{a}", "a\n", strings.Repeat("n", 64), strings.Repeat("n", 65)} {
		_, err := locks.NewSpace(nil, name)
		if fault := checks["namespace"](name); (fault == nil) != (err == nil) {
			t.Errorf("%q: check says %v, and the locks say %v", name, fault, err)
		}
	}
}
