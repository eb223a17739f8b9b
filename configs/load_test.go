package configs

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
)

// writeFiles writes files into a new folder and returns it.
func writeFiles(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// load loads one file with an environment, and expects no error.
func load(t *testing.T, text string, environ ...string) *Config {
	t.Helper()
	dir := writeFiles(t, map[string]string{"lockstep.yaml": text})
	c, err := Load(Options{Paths: []string{filepath.Join(dir, "lockstep.yaml")}, Environ: append([]string{}, environ...)})
	if err != nil {
		t.Fatalf("load:\n%v", err)
	}
	return c
}

// problems loads one file, which must have an error, and returns its problems.
func problems(t *testing.T, text string, environ ...string) Problems {
	t.Helper()
	dir := writeFiles(t, map[string]string{"lockstep.yaml": text})
	_, err := Load(Options{Paths: []string{filepath.Join(dir, "lockstep.yaml")}, Environ: append([]string{}, environ...)})
	found, ok := errors.AsType[Problems](err)
	if !ok {
		t.Fatalf("got %v, want Problems", err)
	}
	return found
}

func noWarnings(t *testing.T, c *Config) {
	t.Helper()
	if len(c.Warnings.List) > 0 {
		t.Errorf("got warnings:\n%v", c.Warnings)
	}
}

func TestEmptyConfigHasTheDefaults(t *testing.T) {
	t.Parallel()
	c, err := Load(Options{Environ: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	want := Settings{
		Redis: Redis{URL: "redis://127.0.0.1:6379/0", Namespace: "lockstep"},
		Worker: Worker{Concurrency: 8, DrainTimeout: 50 * time.Second, Queues: map[string]int{"default": 1}, Env: []string{"PATH", "HOME", "USER", "LOGNAME",
			"SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR", "HOSTNAME", "SSL_CERT_FILE", "SSL_CERT_DIR"}},
		Limits: Limits{Args: "128KiB", History: "2GiB"},
		Locks:  Locks{Lease: 15 * time.Second, ReserveAfter: time.Second, Grace: "auto"},
		Admin: Admin{Listen: "127.0.0.1:9620", BasePath: "/",
			Auth: Auth{Mode: "none", User: "admin", Header: "X-Forwarded-User", Proxies: []string{"127.0.0.0/8", "::1/128"}},
			Keep: Keep{Holds: 48 * time.Hour, Entries: 100_000}},
		Metrics: Metrics{Jobs: 1000},
		Log:     Log{Level: "info", Format: "auto"},
	}
	if !reflect.DeepEqual(c.Settings, want) {
		t.Errorf("got %+v\nwant %+v", c.Settings, want)
	}
	if len(c.Jobs)+len(c.Files)+len(c.Origins)+len(c.Warnings.List) > 0 {
		t.Errorf("got %+v, want nothing else", c)
	}
}

func TestExampleFileIsValidAndShowsTheDefaults(t *testing.T) {
	t.Parallel()
	c, err := Load(Options{Paths: []string{"lockstep.example.yaml"}, Environ: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	noWarnings(t, c)
	if got := len(c.Jobs); got != 4 {
		t.Errorf("got %d jobs, want 4", got)
	}
	defaults, err := Load(Options{Environ: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	// the only key that the file calls an example
	c.Settings.Worker.Queues = defaults.Settings.Worker.Queues
	c.Settings.Admin.ListenSet = false
	if !reflect.DeepEqual(c.Settings, defaults.Settings) {
		t.Errorf("got %+v\nwant the defaults %+v", c.Settings, defaults.Settings)
	}
}

func TestJobGetsTheDocumentedDefaults(t *testing.T) {
	t.Parallel()
	c := load(t, "jobs: {a: {command: [a]}, b: {http: {url: https://x}}}")
	noWarnings(t, c)
	want := jobs.Job{
		Name: "a", Command: []string{"a"}, Queue: "default", Overlap: jobs.OverlapSkip, MaxQueued: 10,
		OnMissed: jobs.MissedLast, OnCrash: jobs.CrashRerun, MaxCrashes: 3,
		Retry:   jobs.Retry{Max: 3, Backoff: jobs.BackoffExponential, Initial: 5 * time.Second, MaxDelay: 5 * time.Minute},
		History: jobs.History{Runs: 1000, For: 168 * time.Hour},
	}
	if got := *c.Jobs[0]; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if got := c.Jobs[1].HTTP; !reflect.DeepEqual(got, &jobs.HTTP{Method: "POST", URL: "https://x"}) {
		t.Errorf("got %+v, want POST by default", got)
	}
}

func TestJobOverridesDefaultsKeyByKey(t *testing.T) {
	t.Parallel()
	c := load(t, `
defaults:
  timezone: Europe/Berlin
  queue: low
  timeout: 15m
  retry: {max: 7, initial: 1s}
  overlap: queue
  max_queued: 2
  on_missed: all
  on_crash: abandon
  max_crashes: 5
  history: {runs: 5}
  output: {keep: 64KiB}
worker: {queues: {low: 1, high: 2}}
jobs:
  takes-all: {command: [a]}
  says-all:
    command: [a]
    schedule: "0 2 * * *"
    timezone: UTC
    queue: high
    timeout: 0s
    retry: {max: 0}
    overlap: skip
    on_missed: skip
    on_crash: rerun
    max_crashes: 1
    history: {for: 1h}
    output: {keep: 16KiB}
`)
	noWarnings(t, c)
	retry := jobs.Retry{Max: 7, Backoff: jobs.BackoffExponential, Initial: time.Second, MaxDelay: 5 * time.Minute}
	all := jobs.Job{
		Name: "takes-all", Command: []string{"a"}, Timezone: "Europe/Berlin", Queue: "low", Timeout: 15 * time.Minute, Retry: retry,
		Overlap: jobs.OverlapQueue, MaxQueued: 2, OnMissed: jobs.MissedAll, OnCrash: jobs.CrashAbandon, MaxCrashes: 5,
		History: jobs.History{Runs: 5, For: 168 * time.Hour}, Output: jobs.Output{Keep: 64 << 10},
	}
	if got := *c.Jobs[1]; !reflect.DeepEqual(got, all) {
		t.Errorf("got %+v\nwant %+v", got, all)
	}
	retry.Max = 0
	own := jobs.Job{
		Name: "says-all", Command: []string{"a"}, Schedule: "0 2 * * *", Timezone: "UTC", Queue: "high", Retry: retry,
		Overlap: jobs.OverlapSkip, MaxQueued: 2, OnMissed: jobs.MissedSkip, OnCrash: jobs.CrashRerun, MaxCrashes: 1,
		History: jobs.History{Runs: 5, For: time.Hour}, // nothing for the default output
	}
	if got := *c.Jobs[0]; !reflect.DeepEqual(got, own) {
		t.Errorf("got %+v\nwant %+v", got, own)
	}
}

func TestPoliciesLocksAndPermitsReachTheJob(t *testing.T) {
	t.Parallel()
	c := load(t, `
defaults: {start_deadline: 1h, jitter: 1s, max_silence: 2h}
permits:
  api: {limit: 3, version: 2, description: "costs ${NOTHING}"}
  seats: {limit: "${N}"}
jobs:
  a:
    command: [a]
    schedule: "0 2 * * *"
    overlap: allow
    start_deadline: 0s
    jitter: 2s
    paused: true
    concurrency: 4
    lock:
      exclusive: [x]
      shared: ["rates:{month}"]
      permits: {api: 2, seats: 1}
      wait: 2m
      on_busy: fail
      max_hold: 30m
      min_hold: 10s
      crash_delay: 1m
    args: {month: 11}
  b: {command: [b], lock: {exclusive: ["x:{id}"], wait: 1m}}
  c: {command: [c], lock: {exclusive: ["x:{id}"], wait: 0s}}
`, "N=7")
	noWarnings(t, c)
	if want := map[string]Permit{"api": {3, 2, "costs ${NOTHING}"}, "seats": {Limit: 7}}; !reflect.DeepEqual(c.Permits, want) {
		t.Errorf("got %+v\nwant %+v", c.Permits, want)
	}
	a := c.Jobs[0]
	lock := jobs.Lock{
		Exclusive: []string{"x"}, Shared: []string{"rates:{month}"}, Permits: map[string]int{"api": 2, "seats": 1},
		Wait: 2 * time.Minute, OnBusy: jobs.BusyFail, MaxHold: 30 * time.Minute, MinHold: 10 * time.Second, CrashDelay: time.Minute,
	}
	if !reflect.DeepEqual(a.Lock, lock) {
		t.Errorf("got %+v\nwant %+v", a.Lock, lock)
	}
	if a.Overlap != jobs.OverlapAllow || a.StartDeadline != 0 || a.Jitter != 2*time.Second || a.MaxSilence != 2*time.Hour || !a.Paused || a.Concurrency != 4 {
		t.Errorf("got %+v", a)
	}
	if b := c.Jobs[1]; b.Lock.OnBusy != jobs.BusyRequeue || b.StartDeadline != time.Hour || b.Concurrency != 0 || b.Paused {
		t.Errorf("got %+v, want the defaults", b)
	}
	if lock := c.Jobs[2].Lock; lock.Wait != 0 || lock.OnBusy != "" {
		t.Errorf("got %+v, want no limit", lock)
	}
}

func TestLoadReplacesPlaceholdersExceptInTexts(t *testing.T) {
	t.Parallel()
	c := load(t, `
worker: {queues: {low: "${N}"}}
jobs:
  a:
    description: costs ${NOTHING} and $$5
    schedule: ${MINUTE} 2 * * *
    timezone: ${ZONE:-Europe/Berlin}
    queue: ${Q:-low}
    timeout: ${T}
    retry: {max: "${N}"}
    command: ["${SHELL_:-sh}", $HOME, "$$", "${T}"]
    env: {A: "${T}"}
    args: {a: "${T}", b: ["${T}", 5]}
    lock: {exclusive: ["${T}:{b[1]}", "$$"]}
`[1:], "MINUTE=5", "T=3m", "N=2", "EMPTY=")
	got := c.Jobs[0]
	want := &jobs.Job{
		Name: "a", Description: "costs ${NOTHING} and $$5", Schedule: "5 2 * * *", Timezone: "Europe/Berlin", Queue: "low",
		Timeout: 3 * time.Minute, Command: []string{"${SHELL_:-sh}", "$HOME", "$$", "${T}"}, Env: map[string]string{"A": "${T}"},
		Args: json.RawMessage(`{"a":"${T}","b":["${T}",5]}`), Lock: jobs.Lock{Exclusive: []string{"3m:{b[1]}", "$"}},
	}
	if got.Description != want.Description || got.Schedule != want.Schedule || got.Timezone != want.Timezone ||
		got.Queue != want.Queue || got.Timeout != want.Timeout || got.Retry.Max != 2 ||
		!slices.Equal(got.Command, want.Command) || !reflect.DeepEqual(got.Env, want.Env) || string(got.Args) != string(want.Args) ||
		!slices.Equal(got.Lock.Exclusive, want.Lock.Exclusive) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestArgsKeepTheirShape(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{b: 1, a: [1, 2.50, -3e5, 0x10, 1_000, .5, +1, 12345678901234567890123]}": `{"a":[1,2.50,-3e5,16,1000,0.5,1,12345678901234567890123],"b":1}`,
		"{t: true, f: False, n: ~, s: 'true', y: yes, d: 2026-01-01}":              `{"d":"2026-01-01","f":false,"n":null,"s":"true","t":true,"y":"yes"}`,
		`{1: a, true: b, "<&>": "<&>"}`:                                            `{"1":"a","<&>":"<&>","true":"b"}`,
		"[]":                                                                       `[]`,
		"{}":                                                                       `{}`,
		"5":                                                                        `5`,
		"text":                                                                     `"text"`,
		"{a: &x {k: v}, b: *x, c: {<<: *x, l: w}}": `{"a":{"k":"v"},"b":{"k":"v"},"c":{"k":"v","l":"w"}}`,
	} {
		if got := string(load(t, "jobs: {a: {handler: a, args: "+text+"}}").Jobs[0].Args); got != want {
			t.Errorf("args %s:\ngot  %s\nwant %s", text, got, want)
		}
	}
}

func TestMergedMapsFillInMissingKeys(t *testing.T) {
	t.Parallel()
	c := load(t, `
jobs:
  a: &a
    command: &command [a, b]
    timeout: 1m
    retry: {max: 1}
  b: &b {<<: *a, timeout: 2m}
  c: {timeout: 3m, <<: [*b, *a]}
  d: {<<: *b, retry: {max: 4}}
  e: {command: *command}
`)
	var got []string
	for _, j := range c.Jobs {
		got = append(got, fmt.Sprint(j.Name, j.Command, j.Timeout, j.Retry.Max))
	}
	want := []string{"a[a b] 1m0s 1", "b[a b] 2m0s 1", "c[a b] 3m0s 1", "d[a b] 2m0s 4", "e[a b] 0s 3"}
	for i := range want {
		got[i] = strings.ReplaceAll(got[i], " ", "")
		want[i] = strings.ReplaceAll(want[i], " ", "")
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestEmptyFilesAreValid(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "\n\n", "# only a comment\n", "---\n", "---\n...\n", "~\n", "{}\n", "\ufeff", "jobs: {}\n"} {
		noWarnings(t, load(t, text))
	}
}

func TestFilesAreReadOnceInOrder(t *testing.T) {
	t.Parallel()
	dir := writeFiles(t, map[string]string{
		"lockstep.yaml":       "include: [conf.d/*.yaml, ./conf.d/b.yaml, lockst*.yaml, more]\njobs: {main: {command: [a]}}",
		"conf.d/a.yaml":       "include: ['*.yaml', deep/x.yaml]\njobs: {a: {command: [a]}}",
		"conf.d/b.yaml":       "include: ['[ab].yaml']\njobs: {b: {command: [a]}}",
		"conf.d/.hidden.yaml": "not: read",
		"conf.d/c.yml":        "not: read",
		"conf.d/d.yaml/x":     "a folder",
		"conf.d/deep/x.yaml":  "jobs: {x: {command: [a]}}",
		"more/z.yml":          "jobs: {z: {command: [a]}}",
		"more/y.yaml":         "jobs: {y: {command: [a]}}",
		"more/readme.md":      "not read",
		"more/.y.yaml":        "not: read",
	})
	if err := os.Symlink("b.yaml", filepath.Join(dir, "conf.d/linked.yaml")); err != nil {
		t.Fatal(err)
	}
	c, err := Load(Options{Paths: []string{filepath.Join(dir, "lockstep.yaml"), filepath.Join(dir, "more"), filepath.Join(dir, "conf.d/b.yaml")}, Environ: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	noWarnings(t, c)
	var got []string
	for _, f := range c.Files {
		got = append(got, strings.TrimPrefix(f, dir+"/"))
	}
	want := []string{"lockstep.yaml", "conf.d/a.yaml", "conf.d/b.yaml", "conf.d/deep/x.yaml", "more/y.yaml", "more/z.yml"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	var names []string
	for _, j := range c.Jobs {
		names = append(names, j.Name)
	}
	if want := []string{"a", "b", "main", "x", "y", "z"}; !slices.Equal(names, want) {
		t.Errorf("got jobs %q, want %q", names, want)
	}
}

func TestFolderNameIsNotAPattern(t *testing.T) {
	t.Parallel()
	dir := writeFiles(t, map[string]string{
		`a[b]*?\c/lockstep.yaml`: "include: ['*.d/*.yaml']",
		`a[b]*?\c/conf.d/x.yaml`: "jobs: {x: {command: [a]}}",
	})
	c, err := Load(Options{Paths: []string{filepath.Join(dir, `a[b]*?\c`, "lockstep.yaml")}, Environ: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	noWarnings(t, c)
	if len(c.Jobs) != 1 {
		t.Errorf("got %d jobs, want the one from the included file", len(c.Jobs))
	}
}

func TestFindReturnsTheFirstNamedPath(t *testing.T) {
	t.Chdir(t.TempDir())
	if got := Find(nil, []string{}); got != nil {
		t.Errorf("got %q, want none in an empty folder", got)
	}
	if err := os.WriteFile("lockstep.yaml", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := Find(nil, []string{}); !slices.Equal(got, []string{"lockstep.yaml"}) {
		t.Errorf("got %q, want the one in the folder", got)
	}
	environ := []string{"LOCKSTEP_CONFIG=/etc/a:/etc/b"}
	if got := Find(nil, environ); !slices.Equal(got, []string{"/etc/a", "/etc/b"}) {
		t.Errorf("got %q, want those of the environment", got)
	}
	if got := Find([]string{"c"}, environ); !slices.Equal(got, []string{"c"}) {
		t.Errorf("got %q, want the one of the flag", got)
	}
}

func TestSettingsOnlyIgnoresJobs(t *testing.T) {
	t.Parallel()
	dir := writeFiles(t, map[string]string{
		"lockstep.yaml": "redis: {namespace: shop}\ninclude: [x.yaml]\ndefaults: {bad: 1}\njobs: {a: {command: '${UNSET}'}}",
		"x.yaml":        "jobs: 5\nlocks: {lease: 20s}",
	})
	o := Options{Paths: []string{filepath.Join(dir, "lockstep.yaml")}, Environ: []string{}, SettingsOnly: true}
	c, err := Load(o)
	if err != nil {
		t.Fatal(err)
	}
	if c.Settings.Redis.Namespace != "shop" || c.Settings.Locks.Lease != 20*time.Second || len(c.Jobs) != 0 {
		t.Errorf("got %+v", c)
	}
	o.SettingsOnly = false
	if _, err := Load(o); err == nil {
		t.Error("the jobs of this test are right, so it proves nothing")
	}
}

func TestPartialReturnsTheSettingsWithoutErrors(t *testing.T) {
	t.Parallel()
	dir := writeFiles(t, map[string]string{
		"a.yaml": "redis: {namespace: shop}\nlocks: {lease: long}\nworker: {concurrency: 3}\njobs: {a: {command: [ls]}}",
		"b.yaml": "jobs: [",
	})
	o := Options{Paths: []string{dir}, Environ: []string{"LOCKSTEP_WORKER__CONCURRENCY=x"}}
	if c, err := Load(o); c != nil || err == nil {
		t.Fatalf("got %+v, %v, want only the problems", c, err)
	}
	o.Partial = true
	c, err := Load(o)
	if found, ok := errors.AsType[Problems](err); !ok || found.Errors() != 3 {
		t.Errorf("got %v, want the errors of both files and the variable", err)
	}
	if c == nil {
		t.Fatal("got no config")
	}
	if s := c.Settings; s.Redis.Namespace != "shop" || s.Worker.Concurrency != 3 || s.Locks.Lease != 15*time.Second {
		t.Errorf("got %+v, want the values that have no error, and a default", s)
	}
	if got := c.Origins["redis.namespace"].File; got != filepath.Join(dir, "a.yaml") || len(c.Files) != 2 || len(c.Jobs) != 0 {
		t.Errorf("got %+v, want its files, origins and no jobs", c)
	}
}

func TestUnreadableFileIsOneProblemAmongOthers(t *testing.T) {
	t.Parallel()
	dir := writeFiles(t, map[string]string{"b.yaml": "nope: 1"})
	// A link to itself, which not even root can read.
	if err := os.Symlink("a.yaml", filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	_, err := Load(Options{Paths: []string{dir}, Environ: []string{}})
	found, _ := errors.AsType[Problems](err)
	if found.Errors() != 2 || found.List[0].Code != CodeUnknownKey || found.List[1].Code != CodeUnreadable {
		t.Errorf("got %v", err)
	}
}

func TestProblemsHaveTheirFacts(t *testing.T) {
	t.Parallel()
	found := problems(t, "jobs:\n  a:\n    shedule: x\n    command: [a]\n    env:\n")
	if len(found.List) != 2 || found.Errors() != 1 || found.Warnings() != 1 || found.Files != 1 || found.Jobs != 1 {
		t.Fatalf("got %+v", found)
	}
	p := found.List[0]
	want := Problem{Origin: Origin{File: p.File, Line: 3, Column: 5}, Severity: SeverityError, Code: CodeUnknownKey,
		Message: `unknown key "shedule" in job "a"`, Hint: `did you mean "schedule"?`, Excerpt: "    shedule: x", Width: 7}
	if p != want {
		t.Errorf("got %+v\nwant %+v", p, want)
	}
	if text, err := json.Marshal(p); err != nil || !strings.Contains(string(text), `"line":3,"column":5,"severity":"error","code":"unknown-key"`) {
		t.Errorf("got %s, %v", text, err)
	}
}

func TestHTTPJobHasATimeoutUnlessItIsZero(t *testing.T) {
	t.Parallel()
	const all = "jobs:\n  none: {http: {url: https://x}}\n  zero: {http: {url: https://x}, timeout: 0s}\n" +
		"  own: {http: {url: https://x}, timeout: 3h}\n  command: {command: [x]}\n"
	for _, test := range []struct {
		defaults string
		timeouts map[string]time.Duration
		told     []string
	}{
		{"", map[string]time.Duration{"none": time.Hour, "own": 3 * time.Hour}, []string{"none"}},
		{"defaults: {timeout: 0s}\n", map[string]time.Duration{"own": 3 * time.Hour}, nil},
		{"defaults: {timeout: 5m}\n", map[string]time.Duration{"none": 5 * time.Minute, "own": 3 * time.Hour, "command": 5 * time.Minute}, nil},
	} {
		dir := writeFiles(t, map[string]string{"a.yaml": test.defaults + all})
		c, err := Load(Options{Paths: []string{filepath.Join(dir, "a.yaml")}, Environ: []string{}, Origins: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, job := range c.Jobs {
			if job.Timeout != test.timeouts[job.Name] {
				t.Errorf("%sjob %s has the timeout %v, want %v", test.defaults, job.Name, job.Timeout, test.timeouts[job.Name])
			}
		}
		if !slices.Equal(c.HTTPTimeouts, test.told) {
			t.Errorf("%sthe default timeout is reported for %v, want %v", test.defaults, c.HTTPTimeouts, test.told)
		}
	}
}
