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

// TestAListKeepsItsOrderWhileRunsEnd: whatever jobs end runs while it is read, it has each run that
// had ended before, and no run is behind an earlier one.
func TestAListKeepsItsOrderWhileRunsEnd(t *testing.T) {
	t.Parallel()
	f := &fakes.Fake{Ended: make(map[string][]*ledger.Record)}
	end := func(i int, at time.Time) {
		name := fmt.Sprintf("job-%03d", i)
		f.Ended[name] = append(f.Ended[name], &ledger.Record{ID: jobs.RequestRunID(name, fmt.Sprint(at.UnixMilli())), Job: name,
			State: ledger.StateSucceeded, Finished: at, DueSince: at})
	}
	for i := range 100 {
		end(i, fakes.Noon.Add(-time.Duration(i)*time.Second))
	}
	ended := 0
	f.Meanwhile = func() { // the first ones, the last ones, and those that are read next
		for _, i := range []int{0, 99, 2*ended + 2, 2*ended + 3} {
			ended++
			end(i%100, fakes.Noon.Add(time.Duration(ended)*time.Second))
		}
	}
	r := readerOf(f)
	seen := make(map[jobs.RunID]int)
	last := fakes.Noon.Add(time.Hour)
	for cursor, pages := "", 0; ; pages++ {
		page, next, err := r.RunPage(t.Context(), RunFilter{State: "succeeded", Limit: 20}, cursor)
		if err != nil || pages > 10 {
			t.Fatalf("page %d: %v", pages, err)
		}
		for _, run := range page {
			if seen[run.ID]++; !run.FinishedAt.Before(last) {
				t.Errorf("%s ended at %v, and comes after a run that ended at %v", run.ID, run.FinishedAt, last)
			}
			last = run.FinishedAt.Time
		}
		if cursor = next; next == "" {
			break
		}
	}
	for i := range 100 {
		id := jobs.RequestRunID(fmt.Sprintf("job-%03d", i), fmt.Sprint(fakes.Noon.Add(-time.Duration(i)*time.Second).UnixMilli()))
		if seen[id] != 1 {
			t.Errorf("%s is listed %d times", id, seen[id])
		}
	}
}

// TestTheOverviewShowsWhatIsDueAmongManyRuns has more outstanding runs than the overview reads. The
// runs of another job come last in the order of the ledger, and have been due for hours.
func TestTheOverviewShowsWhatIsDueAmongManyRuns(t *testing.T) {
	t.Parallel()
	f := &fakes.Fake{}
	for i := range 2 * countPending {
		f.Open = append(f.Open, &ledger.Record{ID: jobs.RequestRunID("a-report", fmt.Sprint(i)), Job: "a-report", State: ledger.StateScheduled,
			Created: fakes.Noon.Add(-24 * time.Hour), At: fakes.Noon.Add(24 * time.Hour)})
	}
	for i := range 3 {
		since := fakes.Noon.Add(-time.Duration(i+1) * time.Hour)
		due := &ledger.Record{ID: jobs.RequestRunID("z-bill", fmt.Sprint(i)), Job: "z-bill", Queue: fmt.Sprintf("q%d", i), State: ledger.StateDue,
			Created: since, DueSince: since}
		f.Open = append(f.Open, due)
		f.Queues = append(f.Queues, ledger.DueQueue{Name: due.Queue, Due: 1, Oldest: []*ledger.Record{due}})
	}
	r := readerOf(f)
	snapshot, err := r.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o, err := r.Overview(t.Context(), snapshot)
	if err != nil || o.CountedAll || len(o.Pending) != showPending {
		t.Fatalf("%d runs, all counted: %v, %v", len(o.Pending), o.CountedAll, err)
	}
	for i, want := range []Text{"z-bill#2", "z-bill#1", "z-bill#0", "a-report#0"} {
		if got := o.Pending[i].ID; Text(got) != want {
			t.Errorf("run %d is %s, want %s", i, got, want)
		}
	}
}
