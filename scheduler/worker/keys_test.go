package worker_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// newer changes a job's definition in Redis as a newer build would write it, and its hash in the
// list of versions.
func (f *fleet) newer(job *jobs.Job, change func(string) string) {
	f.Helper()
	before, err := f.rdb.HGet(f.Context(), f.key("def"), job.Name).Result()
	if err != nil {
		f.Fatal(err)
	}
	after := change(before)
	hash := func(text string) string {
		read, err := jobs.ReadJob(text)
		if err != nil {
			f.Fatal(err)
		}
		hash, err := ledger.Hash(read)
		if err != nil {
			f.Fatal(err)
		}
		return hash
	}
	f.damage("def", jobs.RunID(job.Name), func(string) string { return after })
	f.damage("facts", jobs.RunID("v"+job.Name), func(versions string) string {
		return strings.ReplaceAll(versions, hash(before), hash(after))
	})
}

// TestRunWithAnUnknownKeyIsLeftToAnotherWorker has runs with definitions that have a key that this
// build does not know. Without that key they are run, as a worker that knows it would run them.
func TestRunWithAnUnknownKeyIsLeftToAnotherWorker(t *testing.T) {
	f := newFleet(t)
	var ran atomic.Int64
	job := f.job("bill", func(context.Context, *jobs.Run[struct{}]) error { ran.Add(1); return nil },
		func(j *jobs.Job) { j.Lock.Exclusive = []string{"till"}; j.OnCrash = jobs.CrashAbandon; j.Retry.Max = 0 })
	signer, err := jobs.NewKeys(f.namespace, []byte(strings.Repeat("k", jobs.LeastKey)))
	if err != nil {
		t.Fatal(err)
	}
	top := func(text string) string { return strings.Replace(text, `{"name"`, `{"zone":"eu","name"`, 1) }
	before, runs, keys := make(map[jobs.RunID]string), []jobs.RunID{}, []string{}
	for _, c := range []struct {
		key    string
		change func(string) string
	}{
		{"zone", top},
		{"lock.until", func(text string) string { return strings.Replace(text, `"lock":{`, `"lock":{"until":"x",`, 1) }},
		{"retry.on", func(text string) string { return strings.Replace(text, `"retry":{`, `"retry":{"on":["x"],`, 1) }},
		{"history.bytes", func(text string) string { return strings.Replace(text, `"history":{`, `"history":{"bytes":1,`, 1) }},
		{"zone", func(text string) string { return string(signer.Sign("bill", []byte(top(text)))) }},
	} {
		id := f.enqueue(job, fmt.Sprint(len(runs)))
		f.damage("body", id, func(body string) string {
			before[id] = body
			args, definition, _ := strings.Cut(body, "\x1f")
			return args + "\x1f" + c.change(definition)
		})
		runs, keys = append(runs, id), append(keys, c.key)
	}
	var log lines
	f.start(func(o *worker.Options) {
		o.Logger = slog.New(slog.NewTextHandler(io.MultiWriter(&log, f.Output()), nil))
	})
	for i, id := range runs {
		record, need := f.awaitAside(id)
		if len(record.Attempts) != 0 || record.Crashes != 0 || !slices.Contains(need.Keys(), keys[i]) {
			t.Errorf("%+v, set aside for %s, want no attempt, and its key %s", record, need, keys[i])
		}
		if definition, err := f.ledger.Definition(t.Context(), id); err != nil || definition.Handler != "bill" {
			t.Errorf("its definition is shown as %+v, %v", definition, err)
		}
	}
	if n := ran.Load(); n != 0 {
		t.Errorf("%d of the runs were executed without their key", n)
	}
	if n := strings.Count(strings.Join(log.warnings(), "\n"), "runs are left to workers of a newer build"); n != 1 {
		t.Errorf("%d lines of the log say so, want 1", n)
	}
	for _, id := range runs {
		f.damage("body", id, func(string) string { return before[id] })
	}
	shelves, _, err := f.ledger.Shelves(t.Context(), ledger.Shelf{})
	if err != nil {
		t.Fatal(err)
	}
	// as a worker of the newer build does
	picked, err := f.ledger.Pick(t.Context(), len(runs), shelves)
	if err != nil || len(picked) != len(runs) {
		t.Fatalf("%v were picked, %v, want all %d", picked, err, len(runs))
	}
	for _, due := range picked {
		f.pushAndConfirm(due)
	}
	for _, id := range runs {
		if record := f.awaitState(id, ledger.StateSucceeded); record.Fails != 0 || record.Crashes != 0 || len(record.Attempts) != 1 {
			t.Errorf("%+v, want its first attempt to have succeeded", record)
		}
	}
}

// TestRequestForADefinitionWithAnUnknownKeyStaysInItsQueue: a plain client requests a job whose
// active definition is that of a newer build.
func TestRequestForADefinitionWithAnUnknownKeyStaysInItsQueue(t *testing.T) {
	f := newFleet(t)
	job := f.job("bill", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	var log lines
	w := f.start(func(o *worker.Options) {
		o.Logger = slog.New(slog.NewTextHandler(io.MultiWriter(&log, f.Output()), nil))
	})
	f.await("the worker to register its definition", func() bool { return f.rdb.HExists(t.Context(), f.key("def"), "bill").Val() })
	newer := *job
	newer.Description = "newer"
	if _, err := f.ledger.Register(t.Context(), "newer", []*jobs.Job{&newer}); err != nil {
		t.Fatal(err)
	}
	f.newer(job, func(text string) string { return strings.Replace(text, `{"name"`, `{"zone":"eu","name"`, 1) })
	f.await("the worker to show as drifted", func() bool { return f.card(w.ID()).Drifted == 1 })
	sent := f.send("bill", "{}", asynq.TaskID("x"))
	inspector := asynq.NewInspectorFromRedisClient(f.rdb)
	f.await("the task to be put back", func() bool {
		info, err := inspector.GetTaskInfo(f.queue, sent.ID)
		if err != nil {
			t.Fatalf("task %s: %v, want it to stay in the queue", sent.ID, err)
		}
		return info.State == asynq.TaskStateRetry
	})
	if !strings.Contains(strings.Join(log.warnings(), "\n"), "(zone)") {
		t.Errorf("the log does not name the key: %q", log.warnings())
	}
	if record, _, err := f.ledger.Find(t.Context(), f.adopted("bill", "x")); err == nil {
		t.Errorf("%+v, want no run", record)
	}
}

// TestTicksOfADefinitionWithAnUnknownKeyAreNotRun goes back from a newer build, whose trigger
// differs, after a pause.
func TestTicksOfADefinitionWithAnUnknownKeyAreNotRun(t *testing.T) {
	f := newFleet(t)
	job := f.everySecond("tick")
	newer := *job
	newer.Every = 20 * time.Second
	registered, err := f.ledger.Register(t.Context(), "newer", []*jobs.Job{&newer})
	if err != nil {
		t.Fatal(err)
	}
	f.newer(job, func(text string) string { return strings.Replace(text, `"lock":{}`, `"lock":{"until":"x"}`, 1) })
	back := registered.Now.Add(-2 * time.Minute)
	f.damage("cursor", "tick", func(string) string { return fmt.Sprint(back.UnixMilli()) })
	f.start()
	f.await("a tick by the worker's definition", func() bool {
		for _, record := range f.ticks(job) {
			if record.State == ledger.StateSucceeded {
				return true
			}
		}
		return false
	})
	missed := 0
	for _, record := range f.ticks(job) {
		if record.Tick.After(registered.Now) {
			continue
		}
		missed++
		if record.State != ledger.StateMissed || !strings.Contains(record.Reason, "lock.until") || record.Tick.Unix()%20 != 0 {
			t.Errorf("tick %v %s (%s), want it missed, for the key", record.Tick, record.State, record.Reason)
		}
	}
	if missed != 6 {
		t.Errorf("%d ticks are accounted for, want the 6 of two minutes", missed)
	}
}
