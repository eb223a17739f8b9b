package admin

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
)

func TestJobsThatWereActiveLastAreLookedAt(t *testing.T) {
	t.Parallel()
	var records []ledger.JobRecord
	for i := range 2 * askHistories {
		records = append(records, ledger.JobRecord{
			Job: &jobs.Job{Name: fmt.Sprintf("job-%04d", i), Every: time.Minute}, Cursor: fakes.Noon.Add(time.Duration(i) * time.Second),
		})
	}
	records = append(records, ledger.JobRecord{Job: &jobs.Job{Name: "by-hand"}})
	asked := likelyLast(records, []*ledger.Record{{Job: "job-0000"}})
	if len(asked) != askHistories {
		t.Fatalf("%d are looked at, want %d", len(asked), askHistories)
	}
	if want := []string{"job-0000", "by-hand", "job-0999", "job-0998"}; !slices.Equal(asked[:4], want) {
		t.Errorf("got %q first, want %q", asked[:4], want)
	}
}
