package admin

import (
	"cmp"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// place is where a run stands in the list of runs. It says so without the others, so that a page can begin after it.
type place struct {
	Final bool       `json:"f"`
	At    int64      `json:"t"` // ms: when it was created, or, for a final one, finished
	ID    jobs.RunID `json:"i"`
}

func placeOf(record *ledger.Record) place {
	return newPlace(record.ID, record.State, record.Created, record.Finished)
}

func (r *Run) place() place { return newPlace(r.ID, r.State, r.CreatedAt.Time, r.FinishedAt.Time) }

func newPlace(id jobs.RunID, state ledger.State, created, finished time.Time) place {
	if state.Final() {
		return place{true, finished.UnixMilli(), id}
	}
	return place{false, created.UnixMilli(), id}
}

// compare orders as the list does: outstanding runs first, then the newest first. Runs of the same moment are in the
// order in which the ledger reads histories, so that a history that was read in part is not cut in the middle of them.
func (p place) compare(q place) int {
	if p.Final != q.Final {
		if q.Final {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(q.At, p.At), cmp.Compare(q.ID, p.ID))
}
