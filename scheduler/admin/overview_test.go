package admin

import (
	"fmt"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
)

func TestTheLastRunsOfAllJobsAreInFewHistories(t *testing.T) {
	t.Parallel()
	f := &fakes.Fake{Ended: make(map[string][]*ledger.Record)}
	for i := range 2000 {
		name := fmt.Sprintf("job-%04d", i)
		f.Registered = append(f.Registered, ledger.JobRecord{Job: &jobs.Job{Name: name}})
		for k := range 2 { // the runs of two neighbors take turns
			end := fakes.Noon.Add(-time.Duration(4*(i/2)+2*k+i%2) * time.Second)
			f.Ended[name] = append(f.Ended[name], &ledger.Record{ID: jobs.RequestRunID(name, fmt.Sprint(k)), Job: name, State: ledger.StateSucceeded,
				Finished: end, DueSince: end})
		}
	}
	r := readerOf(f)
	snapshot, err := r.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o, err := r.Overview(t.Context(), snapshot)
	if err != nil || o.Jobs != 2000 || len(o.Runs) != showRuns {
		t.Fatalf("%d of %d jobs' runs, %v", len(o.Runs), o.Jobs, err)
	}
	for i, run := range o.Runs {
		if want := fakes.Noon.Add(-time.Duration(i) * time.Second); !run.FinishedAt.Equal(want) {
			t.Errorf("run %d ended at %v, want %v", i, run.FinishedAt, want)
		}
	}
	if read := f.HistoryCount.Load(); read > 2*showRuns {
		t.Errorf("parts of %d histories were read for %d runs", read, showRuns)
	}
	page, next, err := r.RunPage(t.Context(), RunFilter{State: "succeeded", Limit: 25}, "")
	for pages := 1; pages < 6; pages++ {
		if err != nil || next == "" {
			t.Fatalf("page %d: %q, %v", pages, next, err)
		}
		for i, run := range page {
			if want := fakes.Noon.Add(-time.Duration(25*(pages-1)+i) * time.Second); !run.FinishedAt.Equal(want) {
				t.Fatalf("run %d of page %d ended at %v, want %v", i, pages, run.FinishedAt, want)
			}
		}
		page, next, err = r.RunPage(t.Context(), RunFilter{State: "succeeded", Limit: 25}, next)
	}
}
