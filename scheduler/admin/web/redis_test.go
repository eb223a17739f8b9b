package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/locks/space"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// TestReaderFollowsWhatHappens runs a tick and two requests, and reads after each step.
func TestReaderFollowsWhatHappens(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		s := newStage(t, rdb)
		ctx := t.Context()
		nightly := &jobs.Job{
			Name: "nightly", Every: time.Hour, Command: []string{"true"}, Queue: "default", Overlap: jobs.OverlapSkip,
			OnMissed: jobs.MissedLast, History: jobs.History{Runs: 100, For: time.Hour},
		}
		bills := &jobs.Job{
			Name: "bills", Handler: "bills.settle", Queue: "critical", Lock: jobs.Lock{Exclusive: []string{"bill:{id}"}},
			History: jobs.History{Runs: 100, For: time.Hour},
		}
		started := time.Now()
		web := s.Open("web-1", &worker.Card{Host: "web-1", PID: 4711, State: "ready", Slots: 4,
			Queues: map[string]int{"default": 1}, StartedAt: started})
		shell := s.Open("shell", nil)

		registered := must(s.Ledger.Register(ctx, "config", []*jobs.Job{nightly, bills}))
		cursor := registered.Jobs["nightly"].Cursor
		tick := cursor.Truncate(time.Second)
		created := s.Ledger.Create(ctx, []ledger.Decision{{
			Job: nightly, Seen: cursor, Cursor: cursor, By: web.Session(),
			Ticks: []ledger.Tick{
				{At: tick.Add(-2 * time.Hour), Verdict: ledger.VerdictMissed, Reason: "no worker was up"},
				{At: tick.Add(-time.Hour), Verdict: ledger.VerdictRun},
				{At: tick, Verdict: ledger.VerdictRun},
			},
		}})
		if created[0].Err != nil || len(created[0].Due) != 1 {
			t.Fatalf("create: %+v", created[0])
		}
		_, nightlyHold := s.Begin(web, created[0].Due[0])
		claimedA, holdA := s.Begin(web, s.Enqueue(bills, "a", `{"id":1001}`))
		waiting, request := s.Claim(web, s.Enqueue(bills, "b", `{"id":1001}`))
		if waiting.Outcome != ledger.ClaimWaiting {
			t.Fatalf("claim of b: %s, want it to wait", waiting.Outcome)
		}
		request.Drop()
		own, err := shell.Acquire(ctx, locks.Exclusive("bill:7"), locks.Info([]byte(`{"command":["sleep","9"]}`)))
		if err != nil {
			t.Fatal(err)
		}

		workers := must(s.reader.Workers(ctx))
		if len(workers) != 1 || workers[0].ID != web.Session() || workers[0].Busy != 2 || workers[0].Slots != 4 ||
			workers[0].State != "ready" || workers[0].LeaseLeft <= 0 || !workers[0].StartedAt.Equal(started) {
			t.Errorf("workers: %+v", workers)
		}
		var names []string
		for _, lock := range must(s.reader.Locks(ctx)) {
			names = append(names, fmt.Sprintf("%s by %s", lock.Name, lock.Holders[0].Purpose()))
		}
		nightlyID := string(created[0].Due[0].Run)
		if want := []string{"bill:1001 by bills#a", "bill:7 by sleep 9", "job:nightly by " + nightlyID}; !slices.Equal(names, want) {
			t.Errorf("locks: got %q, want %q", names, want)
		}
		lock := must(s.reader.Lock(ctx, "bill:1001"))
		holder := lock.Holders[0]
		if holder.Token != holdA.Token() || holder.HoldID != holdA.ID() || holder.Worker != web.Session() || holder.PID != 4711 ||
			holder.Job != "bills" || !slices.Equal(holder.Bundle, []string{"bill:1001", "run:bills#a"}) {
			t.Errorf("holder of bill:1001: %+v", holder)
		}
		if len(lock.Waits) != 1 || lock.Waits[0].RunID != "bills#b" || lock.Waits[0].Worker != "" ||
			!slices.Equal(lock.Waits[0].BlockedBy, []string{"bills#a"}) {
			t.Errorf("waits for bill:1001: %+v", lock.Waits)
		}
		runs := must(s.reader.Runs(ctx, admin.RunFilter{}))
		if want := []string{"bills#b", "bills#a", nightlyID}; !slices.Equal(sorted(idsOf(runs)), sorted(want)) {
			t.Errorf("runs: got %q, want %q in any order of the same moment", idsOf(runs), want)
		}
		ticks := must(s.reader.Ticks(ctx, "nightly", 0))
		var outcomes []string
		for _, tick := range ticks {
			outcomes = append(outcomes, tick.Outcome)
			if tick.DecidedBy != web.Session() {
				t.Errorf("%+v was decided by web-1", tick)
			}
		}
		if want := []string{"pending", "skipped", "missed"}; !slices.Equal(outcomes, want) {
			t.Errorf("ticks: got %q, want %q", outcomes, want)
		}

		finished, err := s.Ledger.Finish(ctx, ledger.Finish{
			Run: "bills#a", Job: claimedA.Job, Token: holdA.Token(), Hold: holdA.ID(), Outcome: ledger.OutcomeSuccess, Output: "settled 1001\n",
		})
		if err != nil || finished.Verdict != ledger.FinishRecorded {
			t.Fatalf("finish: %+v, %v", finished, err)
		}
		web.Extension().Released(holdA)

		run, output, err := s.reader.Run(ctx, "bills#a")
		if err != nil {
			t.Fatal(err)
		}
		if run.State != ledger.StateSucceeded || output != "settled 1001\n" || len(run.Attempts) != 1 || run.Attempts[0].Outcome != "succeeded" ||
			run.FinishedAt.Before(run.StartedAt.Time) || string(run.Args) != `{"id":1001}` {
			t.Errorf("the run that ended: %+v, output %q", run, output)
		}
		waits := must(s.reader.Waits(ctx))
		if len(waits) != 1 || waits[0].State != space.Offered && waits[0].State != space.Lapsed || len(waits[0].BlockedBy) != 0 {
			t.Errorf("waits after the lock was freed: %+v", waits)
		}
		job := must(s.reader.Job(ctx, "bills"))
		if job.LastRun == nil || job.LastRun.ID != "bills#a" || job.Outstanding != 1 || job.Running != 0 {
			t.Errorf("job: %+v", job)
		}
		all := must(s.reader.Jobs(ctx, admin.Filter{}, ""))
		if len(all) != 2 || all[1].Name != "nightly" || all[1].Running != 1 || all[1].LastRun != nil {
			t.Errorf("jobs: %+v", all)
		}
		next := must(s.reader.Next(ctx, "nightly", 2))
		if len(next) != 2 || next[0].Tick.Minute() != 0 || next[1].Tick.Sub(next[0].Tick.Time) != time.Hour || next[0].In <= 0 {
			t.Errorf("next ticks: %+v", next)
		}

		server, err := New(Options{Reader: s.reader})
		if err != nil {
			t.Fatal(err)
		}
		page := getPage(t, server, http.StatusOK)
		for _, want := range []string{string(web.Session()), nightlyID + " job:nightly", string(shell.Session()) + " sleep 9", "✓ succeeded bills#a"} {
			if !strings.Contains(page.text, want) {
				t.Errorf("the page does not say %q: %s", want, page.text)
			}
		}
		if got := get(server, "/api/v1/runs/bills%23a/output").Body.String(); got != "settled 1001\n" {
			t.Errorf("output over HTTP: %q", got)
		}

		if err := own.Release(); err != nil {
			t.Error(err)
		}
		if err := nightlyHold.Release(); err != nil {
			t.Error(err)
		}
		s.Close(web)
		if _, err := s.reader.Worker(ctx, workers[0].ID); !errors.Is(err, ledger.ErrUnknown) {
			t.Errorf("a worker that has ended: got %v, want ledger.ErrUnknown", err)
		}
	})
}

// must panics with an error, which fails the test; its one argument can be a call with two results.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func idsOf(runs []admin.Run) []string {
	ids := make([]string, len(runs))
	for i, run := range runs {
		ids[i] = string(run.ID)
	}
	return ids
}

func sorted(texts []string) []string { return slices.Sorted(slices.Values(texts)) }

// TestRedisThatStopsAndRestarts stops and restarts a real server under a real handler.
func TestRedisThatStopsAndRestarts(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	s := newStage(t, server.Client(t))
	handler, err := New(Options{Reader: s.reader})
	if err != nil {
		t.Fatal(err)
	}
	check := func(status int) {
		t.Helper()
		// An answer is shared for a second, also that of an outage.
		deadline := time.Now().Add(30 * time.Second)
		for {
			page, api := get(handler, "/"), get(handler, "/api/v1/runs")
			if page.Code == status && api.Code == status {
				if status != http.StatusOK {
					checkProblem(t, api, status, "Redis cannot be read")
				}
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("got %d and %d, want %d: %s", page.Code, api.Code, status, api.Body)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	check(http.StatusOK)
	server.Kill()
	check(http.StatusServiceUnavailable)
	if w := get(handler, "/livez"); w.Code != http.StatusOK {
		t.Errorf("/livez: got %d", w.Code)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	check(http.StatusOK)
}

// TestRedisThatHangsIsAnOutage: a server that keeps its connections and answers nothing must not
// keep a page waiting forever.
func TestRedisThatHangsIsAnOutage(t *testing.T) {
	t.Parallel()
	server := redistest.New(t, redistest.Options{})
	s := newStage(t, server.Client(t))
	handler, err := New(Options{Reader: s.reader})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	ctx, cancel := context.WithTimeout(t.Context(), 4*readLimit)
	defer cancel()
	handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:9620/api/v1/workers", nil))
	checkProblem(t, w, http.StatusServiceUnavailable, "Redis cannot be read")
	if ctx.Err() != nil {
		t.Error("it took longer than the limit of a read")
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
}
