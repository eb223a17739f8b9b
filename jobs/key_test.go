package jobs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/locks/rule"
)

func TestKeyThatArgsCannotFillIsNotRetried(t *testing.T) {
	t.Parallel()
	key, err := jobs.ParseKey("b:{id}")
	if err != nil || key.String() != "b:{id}" {
		t.Fatalf("got %v, %v", key, err)
	}
	if keys, err := key.Expand(json.RawMessage(`{"id": 7}`)); err != nil || !slices.Equal(keys, []string{"b:7"}) {
		t.Errorf("got %q, %v; want b:7", keys, err)
	}
	for _, args := range []string{``, `{`, `{"id": null}`} {
		keys, err := key.Expand(json.RawMessage(args))
		var fault *rule.KeyError
		if !jobs.IsPermanent(err) || !errors.As(err, &fault) || len(keys) > 0 {
			t.Errorf("%q: got %q, %v; want no keys and a permanent KeyError", args, keys, err)
		}
	}
	if _, err := jobs.ParseKey("b:{"); text(err) != `lock key "b:{": byte 2: "{" without "}"` {
		t.Errorf("got %v", err)
	}
}

func listArgs(n int) json.RawMessage {
	numbers := make([]int, n)
	for i := range numbers {
		numbers[i] = i
	}
	text, _ := json.Marshal(map[string]any{"l": numbers, "same": slices.Repeat([]int{1}, n)})
	return text
}

func TestAnAttemptHoldsAtMostAThousandResources(t *testing.T) {
	t.Parallel()
	job := &jobs.Job{Name: "j", Schedule: "0 2 * * *", Lock: jobs.Lock{Exclusive: []string{"b:{l[*]}"}}}
	got, err := job.Resources("j#1", listArgs(998)) // plus the locks of the job and of the run
	if err != nil || len(got) != 1000 {
		t.Errorf("got %d resources, %v; want 1000", len(got), err)
	}
	for n, want := range map[int]string{
		999:  "locks of job j: 1001 resources, at most 1000 can be held at once (the locks of the run and of the job count)",
		1001: `lock key "b:{l[*]}": more than 1000 different keys`,
	} {
		if _, err := job.Resources("j#1", listArgs(n)); text(err) != want || !jobs.IsPermanent(err) {
			t.Errorf("%d keys: got %v, want %q", n, err, want)
		}
	}
	job.Lock.Exclusive = []string{"b:{same[*]}"}
	if got, err := job.Resources("j#1", listArgs(5000)); err != nil || fmt.Sprint(got) != "[xb:1 xjob:j xrun:j#1]" {
		t.Errorf("5000 equal keys: got %q, %v; want one of them", got, err)
	}
	// Without a limit, this makes 25 million useless visits.
	job.Lock.Exclusive = []string{"b:{same[*]}{l[*]}{none[*]}"}
	args := json.RawMessage(`{"none": [], ` + string(listArgs(5000)[1:]))
	if _, err := job.Resources("j#1", args); text(err) != `lock key "b:{same[*]}{l[*]}{none[*]}": more than 100000 combinations of list elements` {
		t.Errorf("got %v, want an error about too many combinations", err)
	}
}

func TestResourcesOfAnAttempt(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		job  jobs.Job
		want string
	}{
		{"queued", jobs.Job{Name: "j"}, "[xrun:j#1]"},
		{"cron", jobs.Job{Name: "j", Schedule: "* * * * *"}, "[xjob:j xrun:j#1]"},
		{"every", jobs.Job{Name: "j", Every: 1}, "[xjob:j xrun:j#1]"},
		{"side by side", jobs.Job{Name: "j", Every: 1, Overlap: jobs.OverlapAllow}, "[xrun:j#1]"},
		{"keys", jobs.Job{Name: "j", Lock: jobs.Lock{Exclusive: []string{"z:{l[*]}", "a:{id}", "z:{l[0]}", "fixed"}}},
			"[xa:7 xfixed xrun:j#1 xz:1 xz:2]"},
		{"some at a time", jobs.Job{Name: "j", Every: 1, Concurrency: 3}, "[c3:job:j xrun:j#1]"},
		{"modes", jobs.Job{Name: "j", Lock: jobs.Lock{Shared: []string{"rates:{id}"}, Permits: map[string]int{"api": 2}}},
			"[p2:api srates:7 xrun:j#1]"},
	} {
		got, err := test.job.Resources("j#1", json.RawMessage(`{"id": 7, "l": [2, 1]}`))
		if err != nil || fmt.Sprint(got) != test.want {
			t.Errorf("%s: got %v, %v; want %s", test.name, got, err, test.want)
		}
	}
	for _, bad := range []jobs.Job{{Name: "j", Lock: jobs.Lock{Exclusive: []string{"{"}}}, {Name: "j", Lock: jobs.Lock{Exclusive: []string{"{x}"}}},
		{Name: "j", Lock: jobs.Lock{Exclusive: []string{"a"}, Shared: []string{"a"}}}} {
		if _, err := bad.Resources("j#1", nil); !jobs.IsPermanent(err) {
			t.Errorf("%q: got %v, want a permanent error", bad.Lock.Exclusive, err)
		}
	}
}

func TestSpreadIsTheSameEverywhereAndShorterThanTheGap(t *testing.T) {
	t.Parallel()
	job := &jobs.Job{Name: "j", Jitter: time.Minute}
	tick := time.Date(2026, 11, 21, 1, 0, 0, 0, time.UTC)
	seen := make(map[time.Duration]bool)
	for i := range 100 {
		at := tick.Add(time.Duration(i) * time.Minute)
		spread := job.Spread(at, time.Hour)
		if spread != (&jobs.Job{Name: "j", Jitter: time.Minute}).Spread(at.In(time.Local), time.Hour) {
			t.Errorf("%v: another replica gets a different result", at)
		}
		if spread < 0 || spread >= time.Minute {
			t.Errorf("%v: %v, want less than the jitter", at, spread)
		}
		if short := job.Spread(at, time.Second); short >= time.Second {
			t.Errorf("%v: %v, want less than the gap", at, short)
		}
		seen[spread] = true
	}
	if len(seen) < 90 {
		t.Errorf("%d different answers for 100 ticks, want them spread", len(seen))
	}
	if none := (&jobs.Job{Name: "j"}).Spread(tick, time.Hour); none != 0 {
		t.Errorf("without jitter: %v, want 0", none)
	}
}
