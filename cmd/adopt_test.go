package cmd

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

// TestTasksOfPlainAsynqClientsRunOnce sends tasks to a fleet from a program that uses only asynq,
// and kills a worker that runs some of them.
func TestTasksOfPlainAsynqClientsRunOnce(t *testing.T) {
	t.Parallel()
	f, server := newPack(t, `
worker: {queues: {default: 2, low: 1}}
jobs:
  settle:
    queue: default
    command: [sh, -c, 'EFFECT; e start; sleep 0.3; e end']
    lock: {exclusive: ["bill:{bill}"]}
`, long)
	f.startAll(3)
	rdb := server.Client(t)
	client, inspector := asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb)
	send := func(taskType, id, payload string) {
		t.Helper()
		if _, err := client.Enqueue(asynq.NewTask(taskType, []byte(payload)), asynq.Queue("low"), asynq.TaskID(id)); err != nil {
			t.Fatal(err)
		}
	}
	const tasks = 30
	runs := make(map[string]bool)
	for i := range tasks {
		send("settle", fmt.Sprint("bill-", i), fmt.Sprintf(`{"bill": %d}`, i%10))
		runs[fmt.Sprint("settle#low/bill-", i)] = false
	}
	send("settle", "broken", "bill 7")
	send("settle", "without", `{"bil": 7}`)
	send("mail:send", "foreign", "hello")
	eventually(t, 30*time.Second, "all tasks are runs", func() bool {
		return len(ask[[]runJSON](t, f.env, "run", "ls")) == tasks+2
	})
	victim := f.workers[f.busiest(0)]
	victim.killChild()

	var list []runJSON
	eventually(t, time.Minute, "all runs have ended", func() bool {
		list = ask[[]runJSON](t, f.env, "run", "ls")
		for _, run := range list {
			if run.State != "succeeded" && run.State != "failed" {
				return false
			}
		}
		return true
	})
	crashes := 0
	for _, run := range list {
		switch done, known := runs[run.ID]; {
		case run.ID == "settle#low/broken":
			if run.State != "failed" || run.Reason == nil || !strings.Contains(*run.Reason, "not JSON") {
				t.Errorf("%+v, want it failed because its payload is not JSON", run)
			}
		case run.ID == "settle#low/without":
			if run.State != "failed" || run.Reason == nil || !strings.Contains(*run.Reason, `field "bill" of the args is missing`) {
				t.Errorf("%+v, want it failed for want of a field", run)
			}
		case !known || done:
			t.Errorf("%s: asked for once, want it once", run.ID)
		default:
			runs[run.ID] = true
			crashes += run.Crashes
			if run.State != "succeeded" || len(run.Attempts) != 1+run.Crashes {
				t.Errorf("%+v, want it succeeded, with one attempt and one for each crash", run)
			}
		}
	}
	t.Logf("%d of %d runs were hit by the kill", crashes, tasks)
	for run, done := range runs {
		if !done {
			t.Errorf("%s is missing", run)
		}
	}
	f.checkOverlap()

	send("settle", "bill-3", `{"bill": 3}`) // the same ID, after the end of its run
	eventually(t, 30*time.Second, "the same id is a new run", func() bool {
		list = ask[[]runJSON](t, f.env, "run", "ls")
		return len(list) == tasks+3
	})
	f.await("settle#low/bill-3~2", "succeeded")
	if now, err := inspector.GetTaskInfo("low", "foreign"); err != nil || now.Retried != 0 {
		t.Errorf("the foreign task is %+v, %v; want it left alone", now, err)
	}
	f.drain()
}
