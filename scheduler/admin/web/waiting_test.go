package web

import (
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

func TestAPathAndThePageSayWhyARunDoesNotRun(t *testing.T) {
	t.Parallel()
	f := fakes.Crew(worker.Card{State: "ready", Handlers: []string{"h"}, Busy: 2})
	f.Open = []*ledger.Record{{ID: "j#x", Job: "j", Queue: "default", Trigger: ledger.TriggerEnqueue, State: ledger.StateDue, Created: fakes.Noon, DueSince: fakes.Noon}}
	s := newServer(t, f)
	for path, code := range map[string]int{
		"/api/v1/jobs/j/explain?run=j%23x":                         http.StatusOK,
		"/api/v1/jobs/j/explain?run=k%23x":                         http.StatusBadRequest,
		"/api/v1/jobs/j/explain?run=j%23x&at=2026-11-21T12:00:00Z": http.StatusBadRequest,
		"/api/v1/jobs/j/explain?run=j%23unknown":                   http.StatusNotFound,
		"/api/v1/runs/j%23x":                                       http.StatusOK,
	} {
		w := get(s, path)
		if w.Code != code {
			t.Errorf("%s: got %d, want %d: %s", path, w.Code, code, w.Body)
		}
		if code == http.StatusOK && !strings.Contains(w.Body.String(), `"waiting_for":{"reason":"slot","text":"no slot is free: 2 of 2`) {
			t.Errorf("%s does not say what the run waits for: %s", path, w.Body)
		}
	}
	if page := get(s, "/").Body.String(); !strings.Contains(page, "no slot is free: 2 of 2 are busy") {
		t.Errorf("the page does not say what the run waits for:\n%s", page)
	}
}

func TestAStuckAttemptShowsAtItsRunAndAtItsHold(t *testing.T) {
	t.Parallel()
	since := fakes.Noon.Add(-time.Minute)
	card := worker.Card{State: "ready", Queues: map[string]int{"default": 1}, Slots: 8,
		Stuck: []worker.Stuck{{Run: "j#deaf", Token: 7, Since: since, Because: "timeout: the attempt took too long"}}}
	f := fakes.Crew(card)
	holder := f.Live[0].ID
	attempt := func(id jobs.RunID, token locks.Token) *ledger.Record {
		return &ledger.Record{ID: id, Job: "j", State: ledger.StateRunning,
			Attempts: []ledger.AttemptRecord{{Number: 1, Worker: holder, Token: token, Started: since.Add(-time.Minute)}}}
	}
	f.Open = []*ledger.Record{attempt("j#deaf", 7), attempt("j#fine", 8)}
	f.Listing = locks.Listing{At: fakes.Noon, Holds: []locks.HoldRecord{
		{ID: "h1", Session: holder, Token: 7, Names: []string{"bill:1"}, Info: []byte(`{"job":"j","run":"j#deaf"}`)},
		{ID: "h2", Session: holder, Token: 8, Names: []string{"bill:2"}, Info: []byte(`{"job":"j","run":"j#fine"}`)},
	}}
	for id, want := range map[jobs.RunID]*admin.Stuck{"j#deaf": {Since: admin.Instant{Time: since}, Because: "timeout: the attempt took too long"}, "j#fine": nil} {
		run, _, err := readerOf(f).Run(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if got := run.Attempts[0].Stuck; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", id, got, want)
		}
	}
	s, err := New(Options{Reader: readerOf(f), Worker: func() string { return string(holder) }})
	if err != nil {
		t.Fatal(err)
	}
	workers := getPage(t, s, http.StatusOK).id("workers").text
	if n := strings.Count(workers, "stuck"); n != 1 || !strings.Contains(workers, "j#deaf ! stuck since 1m ago: timeout: the attempt took too long") {
		t.Errorf("%d attempts show as stuck, want j#deaf alone:\n%s", n, workers)
	}
}
