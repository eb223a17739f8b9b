package jobs_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"lockstep/jobs"
)

func TestValuesOfSecretArgsAreHiddenAtAnyDepth(t *testing.T) {
	t.Parallel()
	job := &jobs.Job{SecretArgs: []string{"password", "pin"}}
	for args, want := range map[string]string{
		``:                                       ``,
		`null`:                                   `null`,
		`{"user": "ann"}`:                        `{"user": "ann"}`, // byte by byte
		`{"user":"ann","password":"hunter2"}`:    `{"password":"(hidden)","user":"ann"}`,
		`{"Password":"x","PIN":1234}`:            `{"PIN":"(hidden)","Password":"(hidden)"}`,
		`{"password":{"old":"a","new":["b"]}}`:   `{"password":"(hidden)"}`,
		`[{"a":{"pin":1}},{"password":null}]`:    `[{"a":{"pin":"(hidden)"}},{"password":"(hidden)"}]`,
		`{"n":12345678901234567890,"pin":"<x>"}`: `{"n":12345678901234567890,"pin":"(hidden)"}`,
		`{"pin":"a","pin":"b"}`:                  `{"pin":"(hidden)"}`,
		`"password"`:                             `"password"`,
		`{"password": `:                          `"(hidden)"`,
	} {
		if got := string(job.HideArgs(json.RawMessage(args))); got != want {
			t.Errorf("%s: got %s, want %s", args, got, want)
		}
		if got := string((&jobs.Job{}).HideArgs(json.RawMessage(args))); got != args {
			t.Errorf("%s without secret args: got %s", args, got)
		}
	}
}

func TestTextsAndNumbersOfSecretArgsAreRedacted(t *testing.T) {
	t.Parallel()
	job := &jobs.Job{SecretArgs: []string{"password"}}
	args := json.RawMessage(`{"password":"hunter2","user":"ann-marie","inner":[{"password":{"a":["deepest",123456,true,null]}}]}`)
	var values []string
	for _, secret := range job.ArgSecrets(args) {
		values = append(values, secret.Value)
	}
	slices.Sort(values)
	if got := fmt.Sprint(values); got != "[123456 deepest hunter2]" {
		t.Errorf("got %s", got)
	}
	got := jobs.NewRedactor(job.ArgSecrets(args)).Text("ann-marie has hunter2, deepest and 123456")
	if want := "ann-marie has (hidden), (hidden) and (hidden)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := job.ArgSecrets(json.RawMessage(`{"user":"ann"}`)); len(got) > 0 {
		t.Errorf("got %v without any secret", got)
	}
}

func TestArgsWithTheTextOfAHiddenValueAreRefused(t *testing.T) {
	t.Parallel()
	job := &jobs.Job{SecretArgs: []string{"password"}}
	for args, want := range map[string]string{
		``:                                "",
		`{"password":"hunter2"}`:          "",
		`{"note":"(hidden)"}`:             "",
		`{"a":[{"Password":"(hidden)"}]}`: "the secret Password is",
		`"(hidden)"`:                      "the secret args is",
	} {
		err := job.CheckShown(json.RawMessage(args))
		if (err == nil) != (want == "") || err != nil && (!jobs.IsPermanent(err) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
}

// Another build refuses definitions with keys that it does not know.
func TestDefinitionWithoutSecretArgsHasNoKeyForThem(t *testing.T) {
	t.Parallel()
	for want, job := range map[bool]*jobs.Job{false: {Name: "a"}, true: {Name: "a", SecretArgs: []string{"password"}}} {
		text, _, err := job.Definition()
		if err != nil || strings.Contains(string(text), `"secret_args":["password"]`) != want {
			t.Errorf("got %s, %v", text, err)
		}
	}
}
