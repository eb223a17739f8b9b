package admin

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/worker"

	"lockstep/scheduler/admin/fakes"
)

// TestShapesAreWhatScriptsRelyOn prints every shape as the API does. The expected texts are a
// promise.
func TestShapesAreWhatScriptsRelyOn(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	r := readerOf(f)
	ctx := t.Context()
	run := func(id string) any {
		for _, record := range append(f.Open, f.Ended["nightly-backup"]...) {
			if string(record.ID) == id {
				return newRun(record)
			}
		}
		t.Fatalf("no run %s", id)
		return nil
	}
	get := func(value any, err error) any {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	lock, err := r.Lock(ctx, "bill:1003")
	for name, test := range map[string]struct {
		value any
		want  string
	}{
		"run that runs": {run("settle-bills#01K9B7ZK3M5W7QF"), `{
			"id": "settle-bills#01K9B7ZK3M5W7QF", "job": "settle-bills", "trigger": "enqueue", "tick": null,
			"state": "running", "reason": null, "args": {"bill_ids": [1001, 1002]}, "queue": "critical",
			"created_at": "2026-11-21T11:59:55.000Z", "started_at": "2026-11-21T11:59:56.000Z", "finished_at": null,
			"crashes": 0,
			"attempts": [{"attempt": 1, "worker": "web-2.p91qd3f7", "token": "1795222978000042",
				"started_at": "2026-11-21T11:59:56.000Z", "finished_at": null, "outcome": null, "error": null}]}`},
		"run of a tick that was skipped": {run("nightly-backup@2026-11-19T01:00:00Z"), `{
			"id": "nightly-backup@2026-11-19T01:00:00Z", "job": "nightly-backup", "trigger": "schedule",
			"tick": "2026-11-19T01:00:00Z", "state": "skipped",
			"reason": "overlap: skip; nightly-backup@2026-11-18T01:00:00Z is running", "args": null, "queue": "default",
			"created_at": "2026-11-19T01:00:00.020Z", "started_at": null, "finished_at": "2026-11-19T01:00:00.020Z",
			"crashes": 0, "attempts": []}`},
		"run that will be retried": {run("settle-bills#third"), `{
			"id": "settle-bills#third", "job": "settle-bills", "trigger": "enqueue", "tick": null, "state": "retrying",
			"reason": null, "args": null, "queue": "critical", "created_at": "2026-11-21T11:59:00.000Z", "started_at": null,
			"finished_at": null, "crashes": 0,
			"attempts": [{"attempt": 1, "worker": "web-1.x7k2m9qa", "token": "1795222900000001",
				"started_at": "2026-11-21T11:59:00.000Z", "finished_at": "2026-11-21T11:59:01.000Z", "outcome": "failed",
				"error": "no \u003cb\u003ebank\u003c/b\u003e today"}],
			"due_at": "2026-11-21T12:00:05.000Z"}`},
		"lock": {get(lock, err), `{
			"lock": "bill:1003", "mode": "exclusive", "limit": null,
			"holders": [{"worker": "shell.00000001", "host": "web-1", "pid": 99, "job": null, "run_id": null,
				"hold_id": "shell.00000001.1", "token": "1795222979000000", "bundle": ["bill:1003"],
				"since": "2026-11-21T11:59:59.000Z", "held_seconds": 1, "lease_left_seconds": 9,
				"info": {"command": ["./settle.sh", "--all"]}}],
			"waits": [
				{"wait_id": "+settle-bills#second", "worker": null, "job": "settle-bills", "run_id": "settle-bills#second",
					"state": "waiting", "since": "2026-11-21T11:59:58.000Z", "waited_seconds": 2,
					"wants": ["bill:1001", "bill:1003"], "blocked_by": ["settle-bills#01K9B7ZK3M5W7QF", "shell.00000001.1"]},
				{"wait_id": "shell.00000002.1", "worker": "shell.00000002", "job": null, "run_id": null, "state": "waiting",
					"since": "2026-11-21T11:59:59.000Z", "waited_seconds": 1, "wants": ["bill:1003"],
					"blocked_by": ["shell.00000001.1", "settle-bills#second"], "info": {"command": "make it"}}]}`},
		"lock that is free": {get(r.Lock(ctx, "bill:9")), `{
			"lock": "bill:9", "mode": "exclusive", "limit": null, "holders": [], "waits": []}`},
		"worker": {get(r.Worker(ctx, "web-2.p91qd3f7")), `{
			"id": "web-2.p91qd3f7", "host": "web-2", "pid": 4712, "version": "1.0.0", "config": "9f2c1e", "state": "draining",
			"slots": 2, "busy": 1, "queues": {"default": 1}, "started_at": "2026-11-21T09:00:00.500Z",
			"lease_left_seconds": 13.9, "drifted": 0, "admin": "127.0.0.1:9621", "clock_offset_seconds": 0}`},
		"ticks": {get(r.Ticks(ctx, "nightly-backup", 3)), `[
			{"job": "nightly-backup", "tick": "2026-11-21T01:00:00Z", "outcome": "pending", "reason": null,
				"run_id": "nightly-backup@2026-11-21T01:00:00Z", "decided_at": "2026-11-21T01:00:00.031Z",
				"decided_by": "web-1.x7k2m9qa"},
			{"job": "nightly-backup", "tick": "2026-11-20T01:00:00Z", "outcome": "succeeded", "reason": null,
				"run_id": "nightly-backup@2026-11-20T01:00:00Z", "decided_at": "2026-11-20T01:00:00.020Z",
				"decided_by": "web-1.x7k2m9qa"},
			{"job": "nightly-backup", "tick": "2026-11-19T01:00:00Z", "outcome": "skipped",
				"reason": "overlap: skip; nightly-backup@2026-11-18T01:00:00Z is running",
				"run_id": "nightly-backup@2026-11-19T01:00:00Z", "decided_at": "2026-11-19T01:00:00.020Z",
				"decided_by": "web-1.x7k2m9qa"}]`},
		"job with a schedule": {get(r.Job(ctx, "nightly-backup")), `{
			"job": "nightly-backup", "description": "Dump the shop database", "schedule": "0 2 * * *",
			"every_seconds": null, "timezone": "Europe/Berlin", "words": "at 02:00, every day",
			"kind": "command",
			"command": ["pg_dump", "shop"], "args": null, "queue": "default", "locks": ["job:nightly-backup"],
			"timeout_seconds": 7200,
			"retry": {"max": 3, "backoff": "exponential", "initial_seconds": 5, "max_delay_seconds": 300},
			"overlap": "skip", "max_queued": 10, "on_missed": "last", "on_crash": "rerun", "max_crashes": 3, "start_deadline_seconds": null, "jitter_seconds": null,
			"max_silence_seconds": null, "next_tick": "2026-11-22T01:00:00Z", "cursor": "2026-11-21T01:00:00.000Z", "paused": null, "queue_paused": false, "queue_served": true,
			"last_success_at": null, "late": false, "drifted": false, "carried": true, "definition": null, "running": 1,
			"outstanding": 1,
			"last_run": {"id": "nightly-backup@2026-11-20T01:00:00Z", "job": "nightly-backup", "trigger": "schedule",
				"tick": "2026-11-20T01:00:00Z", "state": "succeeded", "reason": null, "args": null, "queue": "default",
				"created_at": "2026-11-20T01:00:00.020Z", "started_at": "2026-11-20T01:00:00.050Z",
				"finished_at": "2026-11-20T01:41:00.000Z", "crashes": 0,
				"attempts": [{"attempt": 1, "worker": "web-1.x7k2m9qa", "token": "1795000000000001",
					"started_at": "2026-11-20T01:00:00.050Z", "finished_at": "2026-11-20T01:41:00.000Z",
					"outcome": "succeeded", "error": null}]}}`},
		"job without one": {get(r.Job(ctx, "settle-bills")), `{
			"job": "settle-bills", "description": null, "schedule": null, "every_seconds": null, "timezone": null,
			"words": null, "kind": "handler", "handler": "bills.settle", "args": null,
			"queue": "critical", "locks": ["bill:{bill_ids[*]}"], "timeout_seconds": null,
			"retry": {"max": 0, "backoff": "", "initial_seconds": 0, "max_delay_seconds": 0}, "overlap": "skip",
			"max_queued": 10, "on_missed": "last", "on_crash": "rerun", "max_crashes": 3, "start_deadline_seconds": null, "jitter_seconds": null,
			"max_silence_seconds": null, "next_tick": null, "cursor": null, "paused": null, "queue_paused": false, "queue_served": true,
			"last_success_at": null, "late": false, "drifted": false, "carried": true, "definition": null, "running": 1, "outstanding": 3,
			"last_run": null}`},
		"next ticks": {get(r.Next(ctx, "", 1)), `[
			{"job": "warm-cache", "tick": "2026-11-21T12:15:00Z", "in_seconds": 900},
			{"job": "nightly-backup", "tick": "2026-11-22T01:00:00Z", "in_seconds": 46800}]`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := json.Marshal(test.value)
			if err != nil {
				t.Fatal(err)
			}
			var want bytes.Buffer
			if err := json.Compact(&want, []byte(test.want)); err != nil {
				t.Fatal(err)
			}
			if string(got) != want.String() {
				t.Errorf("got:\n%s\nwant:\n%s", got, want.String())
			}
		})
	}
}

func TestShapesCanBeReadBack(t *testing.T) {
	t.Parallel()
	lock, err := readerOf(fakes.Fleet()).Lock(t.Context(), "bill:1001")
	if err != nil {
		t.Fatal(err)
	}
	first, err := json.Marshal(lock)
	if err != nil {
		t.Fatal(err)
	}
	var again Lock
	if err := json.Unmarshal(first, &again); err != nil {
		t.Fatal(err)
	}
	second, err := json.Marshal(again)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Errorf("got:\n%s\nwant:\n%s", second, first)
	}
	if got := time.Duration(again.Holders[0].Held); got != 4200*time.Millisecond {
		t.Errorf("held for %s, want 4.2s", got)
	}
}

func TestSecretsOfAJobAreNotShown(t *testing.T) {
	t.Parallel()
	job, err := readerOf(fakes.Fleet()).Job(t.Context(), "warm-cache")
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"secret", "hush"} {
		if bytes.Contains(text, []byte(secret)) {
			t.Errorf("%q is in %s", secret, text)
		}
	}
}

// Every way to request a lock back has a word.
func TestEveryForceHasAWord(t *testing.T) {
	t.Parallel()
	for force, want := range map[locks.Force]string{locks.Ask: "ask", locks.Take: "take", locks.Seize: "take"} {
		got := newHolder(locks.HoldRecord{Asked: &space.Asked{Force: force}}, worker.Card{}, time.Time{}).Asked
		if got == nil || got.Force != want {
			t.Errorf("%s: got %+v, want %s", force, got, want)
		}
	}
}
