package jobs_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
)

// full is a definition with every key that this build knows.
func full() *jobs.Job {
	return &jobs.Job{
		Name: "full", Description: "d", Schedule: "* * * * *", Every: time.Second, Timezone: "UTC", Command: []string{"true"},
		HTTP: &jobs.HTTP{Method: "GET", URL: "http://x", Headers: map[string]string{"Any-Header": "1"}}, Handler: "h",
		Env: map[string]string{"ANY": "1"}, Args: json.RawMessage(`{"any":{"key":1}}`), SecretArgs: []string{"any"}, Queue: "q", Timeout: 1,
		Retry: jobs.Retry{Max: 1, Backoff: jobs.BackoffFixed, Initial: 1, MaxDelay: 1},
		Lock: jobs.Lock{Exclusive: []string{"a"}, Shared: []string{"b"}, Permits: map[string]int{"any": 1}, Wait: 1, OnBusy: jobs.BusyFail,
			MaxHold: 1, MinHold: 1, CrashDelay: 1},
		Concurrency: 1, Overlap: jobs.OverlapSkip, MaxQueued: 1, OnMissed: jobs.MissedAll, OnCrash: jobs.CrashRerun, MaxCrashes: 1,
		History: jobs.History{Runs: 1, For: 1}, Output: jobs.Output{Keep: 1}, StartDeadline: 1, Jitter: 1, Paused: true, MaxSilence: 1,
		Notify: []jobs.Notify{{Target: "ops", On: []jobs.Event{jobs.EventFailed}}}, Ping: "http://x",
	}
}

func TestUnknownKeysOfADefinitionAreNamed(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(full())
	if err != nil {
		t.Fatal(err)
	}
	for i, value := range reflect.ValueOf(full()).Elem().Fields() {
		if i.IsExported() && value.IsZero() {
			t.Errorf("%s is not set, so the test would not notice if it counted as unknown", i.Name)
		}
	}
	mine := keys(t, "shop", key1)
	for name, c := range map[string]struct {
		old, new string
		want     []string
	}{
		"none":                  {"", "", nil},
		"first":                 {`{"name"`, `{"zone":1,"name"`, []string{"zone"}},
		"last":                  {`"paused":true`, `"paused":true,"zone":{"a":1}`, []string{"zone"}},
		"null":                  {`"paused":true`, `"paused":true,"zone":null`, []string{"zone"}},
		"in lock":               {`"lock":{`, `"lock":{"until":1,`, []string{"lock.until"}},
		"in retry":              {`"retry":{`, `"retry":{"on":["x"],`, []string{"retry.on"}},
		"in http":               {`"http":{`, `"http":{"body":"x",`, []string{"http.body"}},
		"in history":            {`"history":{`, `"history":{"bytes":1,`, []string{"history.bytes"}},
		"in output":             {`"output":{`, `"output":{"lines":1,`, []string{"output.lines"}},
		"in notify":             {`"notify":[{`, `"notify":[{"after":"1h",`, []string{"notify.after"}},
		"several":               {`"lock":{`, `"b":1,"a":2,"lock":{"z":1,"y":2,`, []string{"a", "b", "lock.y", "lock.z"}},
		"in a duplicate member": {`"lock":{`, `"lock":{"until":1},"lock":{`, []string{`"until"`}},
		"an invalid signature":  {`{"name"`, `{"signature":"ab","name"`, nil},
	} {
		text := strings.Replace(string(text), c.old, c.new, 1)
		for form, text := range map[string]string{"": text, ", signed": string(mine.Sign("full", []byte(text)))} {
			job, err := jobs.ReadJob(text)
			if err != nil {
				t.Errorf("%s%s: %v", name, form, err)
				continue
			}
			if job.Lock.Permits["any"] != 1 || job.History.Runs != 1 || job.Name != "full" {
				t.Errorf("%s%s: the keys that are known were not read: %+v", name, form, job)
			}
			var unknown *jobs.UnknownKeysError
			if err := job.CheckKeys(); errors.As(err, &unknown) != (c.want != nil) || errors.Is(err, jobs.ErrUnknownKeys) != (c.want != nil) {
				t.Errorf("%s%s: got %v", name, form, err)
			} else if unknown != nil && (!slices.Equal(unknown.Keys, c.want) || !strings.Contains(err.Error(), c.want[0])) {
				t.Errorf("%s%s: got %q in %q, want %q", name, form, unknown.Keys, err, c.want)
			}
			if again, fromRedis, err := job.Definition(); err != nil || !fromRedis || string(again) != text && c.want != nil {
				t.Errorf("%s%s: it is written as %s, %t, %v, want it as it was read", name, form, again, fromRedis, err)
			}
		}
	}
	if err := full().CheckKeys(); err != nil {
		t.Errorf("of a config: %v", err)
	}
	for _, wrong := range []string{"", "x", "[]", `{"name":1,"zone":1}`, `{"zone":1,"name":1}`, `{"name":"j"} x`, `{"name":"j"`} {
		if _, err := jobs.ReadJob(wrong); err == nil {
			t.Errorf("%q is read as a definition", wrong)
		}
	}
}

func TestUnknownLockKeyMakesTheBundleUnknown(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`{"name":"j","lock":{"exclusive":["a"]}}`: true,
		// The worker that runs it decides.
		`{"name":"j","lock":{"exclusive":["a"]},"zone":1}`:  true,
		`{"name":"j","lock":{"exclusive":["a"],"until":1}}`: false,
	} {
		job, err := jobs.ReadJob(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := job.Resources("j#1", nil); (err == nil) != want || err != nil && (!errors.Is(err, jobs.ErrUnknownKeys) || jobs.IsPermanent(err)) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
