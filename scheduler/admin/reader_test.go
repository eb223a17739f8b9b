package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

func idsOf(runs []Run) []string {
	ids := make([]string, len(runs))
	for i, run := range runs {
		ids[i] = string(run.ID)
	}
	return ids
}

func TestRunsAreTheOutstandingOnesByJobThenTheFinishedOnesNewestFirst(t *testing.T) {
	t.Parallel()
	const (
		running  = "settle-bills#01K9B7ZK3M5W7QF"
		waiting  = "settle-bills#second"
		retrying = "settle-bills#third"
		night21  = "nightly-backup@2026-11-21T01:00:00Z"
		night20  = "nightly-backup@2026-11-20T01:00:00Z"
		night19  = "nightly-backup@2026-11-19T01:00:00Z"
		night18  = "nightly-backup@2026-11-18T01:00:00Z"
		night17  = "nightly-backup@2026-11-17T01:00:00Z"
	)
	r := readerOf(fakes.Fleet())
	for name, test := range map[string]struct {
		filter RunFilter
		want   []string
	}{
		"all":          {RunFilter{}, []string{night21, retrying, waiting, running, night20, night18}},
		"limit":        {RunFilter{Limit: 2}, []string{night21, retrying}},
		"limit beyond": {RunFilter{Limit: 5}, []string{night21, retrying, waiting, running, night20}},
		"job":          {RunFilter{Job: "nightly-backup"}, []string{night21, night20, night18}},
		"outstanding":  {RunFilter{State: "running"}, []string{night21, running}}, // by worker
		"by time":      {RunFilter{State: "retrying"}, []string{retrying}},
		"of a job":     {RunFilter{State: "running", Job: "settle-bills"}, []string{running}},
		"finished":     {RunFilter{State: "failed"}, []string{night18}},
		"skipped":      {RunFilter{State: "skipped"}, []string{night19}},
		"missed":       {RunFilter{State: "missed", Job: "nightly-backup", Limit: 1}, []string{night17}},
		"none":         {RunFilter{State: "canceled"}, []string{}},
		"none of job":  {RunFilter{Job: "warm-cache"}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runs, err := r.Runs(t.Context(), test.filter)
			if err != nil {
				t.Fatal(err)
			}
			if got := idsOf(runs); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestMissingObjectsAreUnknown(t *testing.T) {
	t.Parallel()
	r := readerOf(fakes.Fleet())
	ctx := t.Context()
	for name, read := range map[string]func() error{
		"run":        func() error { _, _, err := r.Run(ctx, "settle-bills#nobody"); return err },
		"job":        func() error { _, err := r.Job(ctx, "nobody"); return err },
		"ticks":      func() error { _, err := r.Ticks(ctx, "nobody", 0); return err },
		"next ticks": func() error { _, err := r.Next(ctx, "nobody", 1); return err },
		"runs":       func() error { _, err := r.Runs(ctx, RunFilter{Job: "nobody"}); return err },
		"worker":     func() error { _, err := r.Worker(ctx, "nobody"); return err },
		"no worker":  func() error { _, err := r.Worker(ctx, "shell.00000001"); return err },
	} {
		if err := read(); !errors.Is(err, ledger.ErrUnknown) {
			t.Errorf("%s: got %v, want ledger.ErrUnknown", name, err)
		}
	}
}

func TestQuestionsThatCannotBeAreRefused(t *testing.T) {
	t.Parallel()
	r := readerOf(fakes.Fleet())
	ctx := t.Context()
	for name, read := range map[string]func() error{
		"state":       func() error { _, err := r.Runs(ctx, RunFilter{State: "runing"}); return err },
		"limit":       func() error { _, err := r.Runs(ctx, RunFilter{Limit: -1}); return err },
		"ticks":       func() error { _, err := r.Ticks(ctx, "nightly-backup", -1); return err },
		"no next one": func() error { _, err := r.Next(ctx, "", 0); return err },
	} {
		if err := read(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
}

func TestLimitCountsRunsNotSkippedTicks(t *testing.T) {
	t.Parallel()
	f := &fakes.Fake{Ended: map[string][]*ledger.Record{}}
	f.Registered = []ledger.JobRecord{{Job: &jobs.Job{Name: "busy"}}}
	f.AddHistory("busy", 1000)
	runs, err := readerOf(f).Runs(t.Context(), RunFilter{Limit: 3})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{}
	for _, i := range []int{49, 99, 149} {
		want = append(want, string(jobs.TickRunID("busy", fakes.Noon.Add(-time.Duration(i)*time.Minute))))
	}
	if got := idsOf(runs); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if reads := f.HistoryCount.Load(); reads > 4 {
		t.Errorf("the history was read %d times, want at most 4", reads)
	}
}

func TestManyJobsGiveTheNewestRunsOfAll(t *testing.T) {
	t.Parallel()
	f := &fakes.Fake{Ended: map[string][]*ledger.Record{}}
	var all []*ledger.Record
	for i := range 300 {
		name := fmt.Sprintf("job-%03d", i)
		f.Registered = append(f.Registered, ledger.JobRecord{Job: &jobs.Job{Name: name}})
		for j := range 20 {
			record := &ledger.Record{
				ID: jobs.RequestRunID(name, fmt.Sprint(j)), Job: name, State: ledger.StateSucceeded,
				// many at the same moment
				Finished: fakes.Noon.Add(time.Duration((i*7919+j*104729)%5000) * time.Millisecond),
			}
			f.Ended[name] = append(f.Ended[name], record)
			all = append(all, record)
		}
	}
	slices.SortFunc(all, func(a, b *ledger.Record) int { return cmp.Or(b.Finished.Compare(a.Finished), cmp.Compare(b.ID, a.ID)) })
	var want []string
	for _, record := range all[:40] {
		want = append(want, string(record.ID))
	}
	runs, err := readerOf(f).Runs(t.Context(), RunFilter{Limit: 40})
	if err != nil {
		t.Fatal(err)
	}
	if got := idsOf(runs); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestRunThatEndsWhileItIsReadIsListedOnce(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	done := *f.Open[1]
	done.State, done.Finished = ledger.StateSucceeded, fakes.Noon
	f.Ended["settle-bills"] = append(f.Ended["settle-bills"], &done)
	runs, err := readerOf(f).Runs(t.Context(), RunFilter{Job: "settle-bills"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"settle-bills#third", "settle-bills#second", "settle-bills#01K9B7ZK3M5W7QF"}
	if got := idsOf(runs); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if runs[2].State != ledger.StateSucceeded {
		t.Errorf("its state is %s, want succeeded", runs[2].State)
	}
}

func TestTicksHaveOneLineForARangeOfMissedOnes(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	first, last := fakes.Noon.Add(-30*24*time.Hour), fakes.Noon.Add(-20*24*time.Hour)
	f.Ended["warm-cache"] = []*ledger.Record{{
		ID: "warm-cache@2026-10-22T12:00:00Z..2026-11-01T12:00:00Z", Job: "warm-cache", Tick: first, Upto: last,
		State: ledger.StateMissed, Created: fakes.Noon, Finished: fakes.Noon, By: "web-1.x7k2m9qa", Reason: "no worker was up for 961 ticks",
	}}
	ticks, err := readerOf(f).Ticks(t.Context(), "warm-cache", 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(ticks) != 1 || ticks[0].Outcome != "missed" || !ticks[0].Upto.Equal(last) {
		t.Errorf("got %+v, want one missed line up to %s", ticks, last)
	}
}

func TestALineForManyTicksIsNoRun(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	first, last := fakes.Noon.Add(-3*time.Hour), fakes.Noon.Add(-2*time.Hour)
	f.Ended["warm-cache"] = append(f.Ended["warm-cache"], &ledger.Record{
		ID: "warm-cache@2026-11-21T09:00:00Z..2026-11-21T10:00:00Z", Job: "warm-cache", Tick: first, Upto: last,
		State: ledger.StateLost, Created: fakes.Noon, Finished: fakes.Noon.Add(time.Hour), Reason: "Redis was emptied",
	})
	for _, state := range []string{"", "lost"} {
		runs, err := readerOf(f).Runs(t.Context(), RunFilter{Job: "warm-cache", State: state})
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(runs, func(r Run) bool { return strings.Contains(string(r.ID), "..") }) {
			t.Errorf("state %q: %q, want the line in the history of ticks alone", state, idsOf(runs))
		}
	}
	job, err := readerOf(f).Job(t.Context(), "warm-cache")
	if err != nil || job.LastRun != nil && job.LastRun.State == ledger.StateLost {
		t.Errorf("%+v, %v, want the last run to be one", job, err)
	}
	if _, _, err := readerOf(f).Run(t.Context(), "warm-cache@2026-11-21T09:00:00Z..2026-11-21T10:00:00Z"); err != nil {
		t.Errorf("%v, want the line found by its id", err)
	}
}

// A request that a policy skipped, and a tick that was due before its time passed, were runs: only
// a tick that never became due was none.
func TestRunsThatEndAsSkippedOrMissedAreListed(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	tick := fakes.Noon.Add(-time.Hour)
	f.Ended["warm-cache"] = []*ledger.Record{
		{ID: "warm-cache#busy", Job: "warm-cache", Trigger: ledger.TriggerEnqueue, State: ledger.StateSkipped, DueSince: tick, Finished: tick.Add(3 * time.Second)},
		{ID: "warm-cache#later", Job: "warm-cache", Trigger: ledger.TriggerHand, State: ledger.StateSkipped, Finished: tick.Add(2 * time.Second)},
		{ID: jobs.TickRunID("warm-cache", tick), Job: "warm-cache", Trigger: ledger.TriggerSchedule, Tick: tick, State: ledger.StateMissed, DueSince: tick, Finished: tick.Add(time.Second)},
		{ID: jobs.TickRunID("warm-cache", tick.Add(-time.Hour)), Job: "warm-cache", Trigger: ledger.TriggerSchedule, Tick: tick.Add(-time.Hour), State: ledger.StateMissed, Finished: tick},
	}
	r := readerOf(f)
	runs, err := r.Runs(t.Context(), RunFilter{Job: "warm-cache"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := idsOf(runs), []string{"warm-cache#busy", "warm-cache#later", "warm-cache@2026-11-21T11:00:00Z"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if job, err := r.Job(t.Context(), "warm-cache"); err != nil || job.LastRun == nil || job.LastRun.ID != "warm-cache#busy" {
		t.Errorf("%+v, %v, want the request as the last run", job, err)
	}
}

func TestLocksLeaveOutWhatOnlyKeepsARunFromRunningTwice(t *testing.T) {
	t.Parallel()
	all, err := readerOf(fakes.Fleet()).Locks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, lock := range all {
		got = append(got, fmt.Sprintf("%s %d %d", lock.Name, len(lock.Holders), len(lock.Waits)))
	}
	want := []string{
		"bill:1001 1 1", "bill:1002 1 0", "bill:1003 1 2", "bill:2001 0 1", "job:nightly-backup 1 0",
		"run:settle-bills#alone 1 0", // it has nothing else
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHoldsAndWaitsShowTheirPurpose(t *testing.T) {
	t.Parallel()
	r := readerOf(fakes.Fleet())
	holds, err := r.Holds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, h := range holds {
		got = append(got, h.Purpose())
	}
	want := []string{"nightly-backup@2026-11-21T01:00:00Z", "settle-bills#01K9B7ZK3M5W7QF", "./settle.sh --all", "settle-bills#alone"}
	if !slices.Equal(got, want) {
		t.Errorf("holds: got %q, want %q", got, want)
	}
	waits, err := r.Waits(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got = nil
	for _, w := range waits {
		got = append(got, w.Purpose())
	}
	if want := []string{"settle-bills#offered", "settle-bills#second", "make it"}; !slices.Equal(got, want) {
		t.Errorf("waits: got %q, want %q", got, want)
	}
	of, err := r.Holds(t.Context(), "web-1.x7k2m9qa")
	if err != nil {
		t.Fatal(err)
	}
	if len(of) != 2 || of[0].Worker != "web-1.x7k2m9qa" {
		t.Errorf("holds of web-1: got %+v, want 2", of)
	}
}

func TestWaitThatIsGrantedBetweenTwoPagesIsAHold(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	f.Listing.Waits = append(f.Listing.Waits, locks.WaitRecord{
		Request: "shell.00000001.1", Session: "shell.00000001", Names: []string{"bill:1003"}, Since: fakes.Noon, Ticket: 1, State: space.Waiting,
	})
	waits, err := readerOf(f).Waits(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, wait := range waits {
		if wait.ID == "shell.00000001.1" {
			t.Errorf("%+v holds its bundle", wait)
		}
	}
}

func TestWorkersAreTheSessionsWithAWorkersCard(t *testing.T) {
	t.Parallel()
	workers, err := readerOf(fakes.Fleet()).Workers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range workers {
		got = append(got, fmt.Sprintf("%s %s %d/%d", w.ID, w.State, w.Busy, w.Slots))
	}
	want := []string{"web-1.x7k2m9qa ready 2/8", "web-2.p91qd3f7 draining 1/2", "web-3.m4t8c2wz gone 0/8"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestJobWhoseTriggerCannotBeComputedHereSaysSo(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	f.Registered = append(f.Registered, ledger.JobRecord{Job: &jobs.Job{Name: "odd", Schedule: "0 2 * * *", Timezone: "Mars/Olympus"}})
	all, err := readerOf(f).Jobs(t.Context(), Filter{Job: "odd"}, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].Problem == "" || !all[0].NextTick.IsZero() {
		t.Errorf("got %+v, want one job with a problem", all)
	}
	if _, err := readerOf(f).Next(t.Context(), "odd", 1); err == nil {
		t.Error("its next tick was computed")
	}
	if ticks, err := readerOf(f).Next(t.Context(), "", 1); err != nil || len(ticks) != 2 {
		t.Errorf("got %v and %v, want the ticks of the two others", ticks, err)
	}
}

func TestErrorsOfAReadAreReturned(t *testing.T) {
	t.Parallel()
	f := fakes.Fleet()
	f.Fail("connection refused")
	r := readerOf(f)
	ctx := t.Context()
	for name, read := range map[string]func(context.Context) error{
		"runs":    func(ctx context.Context) error { _, err := r.Runs(ctx, RunFilter{}); return err },
		"final":   func(ctx context.Context) error { _, err := r.Runs(ctx, RunFilter{State: "failed"}); return err },
		"run":     func(ctx context.Context) error { _, _, err := r.Run(ctx, "a#b"); return err },
		"jobs":    func(ctx context.Context) error { _, err := r.Jobs(ctx, Filter{}, ""); return err },
		"job":     func(ctx context.Context) error { _, err := r.Job(ctx, "warm-cache"); return err },
		"ticks":   func(ctx context.Context) error { _, err := r.Ticks(ctx, "warm-cache", 0); return err },
		"next":    func(ctx context.Context) error { _, err := r.Next(ctx, "", 1); return err },
		"locks":   func(ctx context.Context) error { _, err := r.Locks(ctx); return err },
		"lock":    func(ctx context.Context) error { _, err := r.Lock(ctx, "a"); return err },
		"holds":   func(ctx context.Context) error { _, err := r.Holds(ctx); return err },
		"history": func(ctx context.Context) error { _, err := r.History(ctx, HoldFilter{}, ""); return err },
		"waits":   func(ctx context.Context) error { _, err := r.Waits(ctx); return err },
		"workers": func(ctx context.Context) error { _, err := r.Workers(ctx); return err },
		"worker":  func(ctx context.Context) error { _, err := r.Worker(ctx, "a"); return err },
	} {
		if err := read(ctx); err == nil || errors.Is(err, ledger.ErrUnknown) {
			t.Errorf("%s: got %v, want the error of the connection", name, err)
		}
	}
}

// TestAJobWhoseQueueNoWorkerServesHasANote: a worker serves a queue also when that is paused, or
// its jobs differ. One that drains starts nothing any more.
func TestAJobWhoseQueueNoWorkerServesHasANote(t *testing.T) {
	t.Parallel()
	const note = "no worker serves its queue"
	serves := func(state string, drifted int, queues ...string) worker.Card {
		card := worker.Card{State: state, Drifted: drifted, Queues: map[string]int{}}
		for _, queue := range queues {
			card.Queues[queue] = 1
		}
		return card
	}
	for name, test := range map[string]struct {
		live   []worker.Card
		paused []string
		noted  bool
	}{
		"one worker serves it":     {live: []worker.Card{serves("ready", 0, "day"), serves("ready", 0, "night")}},
		"the queue is paused":      {live: []worker.Card{serves("ready", 0, "night")}, paused: []string{"night"}},
		"the worker drifts":        {live: []worker.Card{serves("ready", 1, "night")}},
		"others serve other ones":  {live: []worker.Card{serves("ready", 0, "day")}, noted: true},
		"also paused":              {live: []worker.Card{serves("ready", 0, "day")}, paused: []string{"night"}, noted: true},
		"the only one that drains": {live: []worker.Card{serves("draining", 0, "night"), serves("ready", 0, "day")}, noted: true},
		"no worker is live":        {noted: true},
	} {
		f := fakes.Crew(test.live...)
		f.PausedQueues = test.paused
		f.Registered[0].Job.Queue = "night"
		r := readerOf(f)
		job, err := r.Job(t.Context(), "j")
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(job.Notes(), note); got != test.noted {
			t.Errorf("%s: the job has the notes %q, want the note: %v", name, job.Notes(), test.noted)
		}
		page, err := r.Jobs(t.Context(), Filter{Queue: "night"}, note)
		if err != nil || (len(page) == 1) != test.noted {
			t.Errorf("%s: %d jobs have the note, %v, want it: %v", name, len(page), err, test.noted)
		}
	}
}
