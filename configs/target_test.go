package configs

import (
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"lockstep/jobs"
)

func TestJobsGetTheEventsOfTheirTargets(t *testing.T) {
	t.Parallel()
	path := filepath.Join(writeFiles(t, map[string]string{"a.yaml": `
notify:
  ops: {url: "ntfy://ntfy.example/${TOPIC}", on: [recovered, failed, config_refused]}
  hook: {webhook: "https://x/${TOPIC}", secret_file: /key}
  workers: {webhook: "https://x", on: [config_refused]}
defaults: {notify: [ops]}
jobs:
  a: {command: ["true"]}
  b: {command: ["true"], notify: [ops, hook, ops, workers], ping: "https://hc/${TOPIC}"}
  c: {command: ["true"], notify: []}
`}), "a.yaml")
	c, err := Load(Options{Paths: []string{path}, Environ: []string{"TOPIC=secret"}})
	if err != nil {
		t.Fatal(err)
	}
	ops := jobs.Notify{Target: "ops", On: []jobs.Event{jobs.EventFailed, jobs.EventRecovered}}
	hook := jobs.Notify{Target: "hook", On: []jobs.Event{jobs.EventFailed, jobs.EventLost, jobs.EventMissed, jobs.EventLate, jobs.EventRecovered}}
	for i, want := range [][]jobs.Notify{{ops}, {hook, ops}, nil} {
		if got := c.Jobs[i].Notify; !reflect.DeepEqual(got, want) {
			t.Errorf("job %s notifies %+v, want %+v", c.Jobs[i].Name, got, want)
		}
	}
	if got := c.Jobs[1].Ping; got != "https://hc/${TOPIC}" {
		t.Errorf("the ping is %s, want it as written", got)
	}
	want := []Target{
		{Name: "hook", Webhook: "https://x/${TOPIC}", SecretFile: "/key", On: hook.On},
		{Name: "ops", URL: "ntfy://ntfy.example/${TOPIC}", On: []jobs.Event{jobs.EventFailed, jobs.EventRecovered, jobs.EventRefused}},
		{Name: "workers", Webhook: "https://x", On: []jobs.Event{jobs.EventRefused}},
	}
	if !reflect.DeepEqual(c.Targets, want) {
		t.Errorf("targets %+v, want %+v", c.Targets, want)
	}
}

// TestWrongTargetsAreReported: each mistake has its place and a remedy, and no secret is quoted.
func TestWrongTargetsAreReported(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		`notify: {a: {url: "ntfy://x/y", webhook: "https://x"}}`:             {`a.yaml:1:33: error: target "a" has both url and webhook [target]`, "keep one of them"},
		`notify: {a: {on: [failed]}}`:                                        {`a.yaml:1:10: error: target "a" has neither url nor webhook [missing-key]`, "write webhook: https://host/path"},
		`notify: {a: {}}`:                                                    {`target "a" has neither url nor webhook [missing-key]`},
		`notify: {a: {url: "ntfy://x/y", secret_file: /k}}`:                  {`a.yaml:1:33: error: target "a" is a service, whose requests are not signed [target]`, "remove secret_file"},
		`notify: {a: {url: "slak://hunter2@x"}}`:                             {`a.yaml:1:19: error: bad service in notify.a: no service is called "slak" [bad-url]`, `did you mean "slack://"?`},
		`notify: {a: {url: "https://hunter2@x/y"}}`:                          {`it is not a service`, "write webhook: https://host/path"},
		`notify: {a: {url: "hunter2"}}`:                                      {`it has no scheme`},
		`notify: {a: {webhook: "https://x", on: [faild]}}`:                   {`a.yaml:1:41: error: `, `did you mean "failed"?`},
		`notify: {a: {webhook: "https://x", on: []}}`:                        {`notify.a.on is empty`},
		`notify: {A_b: {webhook: "https://x"}}`:                              {`bad name of a target`},
		"notify: {ops: {webhook: \"https://x\"}}\ndefaults: {notify: [obs]}": {`a.yaml:2:21: error: defaults notifies "obs", which is not declared [unknown-target]`, `did you mean "ops"?`},
		"jobs:\n  j: {command: [a], notify: [ops]}":                          {`a.yaml:2:30: error: job "j" notifies "ops", which is not declared [unknown-target]`, "write notify: {ops: {webhook: https://host/path}} at the top level"},
		`jobs: {j: {command: [a], ping: "hc.example"}}`:                      {`it has no scheme`},
	} {
		path := filepath.Join(writeFiles(t, map[string]string{"a.yaml": text}), "a.yaml")
		_, err := Load(Options{Paths: []string{path}, Environ: []string{}})
		problems, ok := errors.AsType[Problems](err)
		if !ok {
			t.Errorf("%s: got %v, want problems", text, err)
			continue
		}
		got := problems.Error()
		for _, part := range want {
			if !strings.Contains(got, part) {
				t.Errorf("%s: got\n%s\nwant %s", text, got, part)
			}
		}
		if strings.Contains(got, "hunter2") {
			t.Errorf("%s: the secret is quoted:\n%s", text, got)
		}
	}
}
