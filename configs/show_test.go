package configs

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"lockstep/jobs"
)

func TestOnlySecretsAreRedacted(t *testing.T) {
	t.Parallel()
	job := &jobs.Job{
		Name: "a",
		Command: []string{"dump", "--password=hush1", "--token", "hush2", "mysql --password hush3 | x", "--user=me", "${file:/secret}",
			"--password=hush8${X}", "--token", "hush9${X}", "sh --password $$P --token=${X}", "--token=${X}", "ghp_hushhushhush${X}", "mysql --password=hush10${X} | x"},
		Env: map[string]string{"DB_PASSWORD": "hush4", "TOKEN": "${TOKEN}", "HOME": "/home/web", "TOKEN_FILE": "/run/token",
			"API_TOKEN": "hush11${X}hush12$$${Y}", "PASSWORD": "hush13$${word}", "KEY": "x ghp_hushhushhush${X}", "LOGIN_TOKEN": "${A}:${B}", "SHELL_TOKEN": "$T",
			"WRONG_TOKEN": "hush14${X"},
		HTTP: &jobs.HTTP{Method: "POST", URL: "https://me:hush5@host/x?a=b",
			Headers: map[string]string{"Authorization": "Bearer hush6", "Accept": "text/plain", "Proxy-Authorization": "Bearer ${TOKEN}", "Cookie": "Bearer hush15${X}"}},
		Args: json.RawMessage(`{"list":[{"client_secret":"hush7","n":12345678901234567890}],"key":"AKIAHUSHHUSHHUSHHUSH","token":["hush16${X}","${X}"]}`),
	}
	before := fmt.Sprintf("%+v %s", job, job.Args)
	got := Redact(job)
	want := &jobs.Job{
		Name: "a",
		Command: []string{"dump", "--password=(hidden)", "--token", "(hidden)", "(hidden)", "--user=me", "${file:/secret}",
			"--password=(hidden)${X}", "--token", "(hidden)${X}", "sh --password $$P --token=${X}", "--token=${X}", "(hidden)${X}", "(hidden)"},
		Env: map[string]string{"DB_PASSWORD": "(hidden)", "TOKEN": "${TOKEN}", "HOME": "/home/web", "TOKEN_FILE": "/run/token",
			"API_TOKEN": "(hidden)${X}(hidden)${Y}", "PASSWORD": "(hidden)", "KEY": "(hidden)${X}", "LOGIN_TOKEN": "${A}:${B}", "SHELL_TOKEN": "$T",
			"WRONG_TOKEN": "(hidden)"},
		HTTP: &jobs.HTTP{Method: "POST", URL: "https://(hidden)@host/x?a=(hidden)",
			Headers: map[string]string{"Authorization": "(hidden)", "Accept": "text/plain", "Proxy-Authorization": "Bearer ${TOKEN}", "Cookie": "(hidden)${X}"}},
		Args: json.RawMessage(`{"key":"(hidden)","list":[{"client_secret":"(hidden)","n":12345678901234567890}],"token":["(hidden)${X}","${X}"]}`),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v %+v %s\nwant %+v %+v %s", got, got.HTTP, got.Args, want, want.HTTP, want.Args)
	}
	if after := fmt.Sprintf("%+v %s", job, job.Args); after != before {
		t.Errorf("the job itself was changed: %s", after)
	}
	bad := json.RawMessage(`{"password": `)
	if got := Redact(&jobs.Job{Name: "a", Env: map[string]string{"TOKEN": "hush"}, Args: bad}); got.Env["TOKEN"] != "(hidden)" || string(got.Args) != string(bad) {
		t.Errorf("got %+v for args that are not JSON", got)
	}
}

func TestChangesAreListedKeyByKeyWithoutSecrets(t *testing.T) {
	t.Parallel()
	c := load(t, `
jobs:
  old: {command: [a], every: 1h, env: {PASSWORD: hush1, GONE: x, SAME: y}, retry: {max: 1}, args: {a: 1}, output: {keep: 64KiB}}
  new: {command: [a], every: 2h, env: {PASSWORD: hush2, SAME: y}, retry: {max: 2}, args: {a: 2}, timeout: 5m}
`)
	got := fmt.Sprint(Changes(c.Jobs[1], c.Jobs[0]))
	want := "[{every 1h 2h} {args map[a:1] map[a:2]} {env.PASSWORD (hidden) (hidden)} {timeout <nil> 5m} {retry.max 1 2} {env.GONE x <nil>} {output.keep 64KiB 16KiB}]"
	if strings.Contains(got, "hush") || len(Changes(c.Jobs[0], c.Jobs[0])) != 0 {
		t.Errorf("got %s", got)
	}
	for _, part := range strings.Split(strings.Trim(want, "[]"), "} {") {
		if !strings.Contains(got, strings.Trim(part, "{}")) {
			t.Errorf("got %s\nwithout %s", got, part)
		}
	}
}

// Every key of a job must be shown, with the place where it was written.
func TestEachKeyOfAJobHasItsOrigin(t *testing.T) {
	t.Parallel()
	dir := writeFiles(t, map[string]string{
		"a.yaml": "defaults:\n  timeout: 5m\n  retry: {max: 7}\n  output: {keep: 1024KiB}\ninclude: [b.yaml]\n",
		"b.yaml": "jobs:\n  a:\n    http: {url: https://x, headers: {X.Y: z}}\n    <<: {queue: q}\n",
	})
	c, err := Load(Options{Paths: []string{filepath.Join(dir, "a.yaml")}, Environ: []string{}, Origins: true})
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for _, v := range c.JobValues("a") {
		got[v.Key] = strings.ReplaceAll(fmt.Sprint(v.Value, " ", v.Origin), dir+"/", "")
	}
	for key, want := range map[string]string{
		"http.method": "POST default", "http.url": "https://x b.yaml:3:12", "http.headers.X.Y": "z b.yaml:3:38", "queue": "q b.yaml:4:10",
		"timeout": "5m a.yaml:2:3", "retry.max": "7 a.yaml:3:11", "retry.initial": "5s default", "output.keep": "1MiB a.yaml:4:12",
	} {
		if got[key] != want {
			t.Errorf("%s: got %q, want %q", key, got[key], want)
		}
	}
	bare, err := Load(Options{Paths: []string{filepath.Join(dir, "b.yaml")}, Environ: []string{}, Origins: true})
	if err != nil {
		t.Fatal(err)
	}
	if at := slices.IndexFunc(bare.JobValues("a"), func(v Value) bool { return v.Key == "timeout" && v.Value == "1h" && v.Origin == Origin{} }); at < 0 {
		t.Errorf("got %v, want the default timeout of an http job", bare.JobValues("a"))
	}
	if c.JobValues("b") != nil {
		t.Error("an unknown job has values")
	}
}

func TestEachJobHasTheLineOfItsName(t *testing.T) {
	t.Parallel()
	dir := writeFiles(t, map[string]string{
		"conf.d/a.yaml": "include: [../b.yaml]\n\njobs:\n  # the first\n  a:\n    command: [x]\n",
		"b.yaml":        "jobs: {b: {command: [x]}}\n",
	})
	c, err := Load(Options{Paths: []string{filepath.Join(dir, "conf.d")}, Environ: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a": "conf.d/a.yaml:5:3", "b": "b.yaml:1:8", "c": "default"} {
		if got := strings.ReplaceAll(c.JobOrigin(name).String(), dir+"/", ""); got != want {
			t.Errorf("job %s: got %s, want %s", name, got, want)
		}
	}
}
