package admin

import (
	"cmp"
	"context"
	"slices"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// How much of each kind the overview shows. It counts the rest, which other pages, the API and the
// command line list.
const (
	showHolds    = 30
	showWaits    = 25
	showNoted    = 20
	showNext     = 12
	showPending  = 10
	showRuns     = 25
	countPending = 1000 // outstanding runs that are read to count them
	askHistories = 500  // how many jobs' histories are read for the last runs
)

// Overview is everything that the page shows.
type Overview struct {
	At       Instant           `json:"at"` // by the server's clock
	Workers  []Replica         `json:"workers"`
	Others   []Holder          `json:"clients"`    // holds of clients that are not workers
	MoreHold int               `json:"more_holds"` // holds that are not shown
	Waits    []Wait            `json:"waits"`
	MoreWait int               `json:"more_waits"`
	Noted    []Job             `json:"noted"` // jobs with remarks, without their runs
	MoreNote int               `json:"more_noted"`
	Next     []NextTick        `json:"next"`
	MoreNext int               `json:"more_next"`
	Words    map[string]string `json:"words"`   // the triggers of the jobs in Next
	Pending  []Run             `json:"pending"` // outstanding, not running, the oldest first
	Runs     []Run             `json:"runs"`    // finished, the newest first
	Jobs     int               `json:"jobs"`
	Asked    int               `json:"histories_read"` // how many jobs' histories were read

	Count      map[ledger.State]int `json:"outstanding"` // runs, by state
	CountedAll bool                 `json:"counted_all"` // Count includes all outstanding runs
	Ready      int                  `json:"ready"`       // workers that take runs
	Live       int                  `json:"live"`        // workers that have a lease
	Slots      int                  `json:"slots"`       // of these
	Busy       int                  `json:"busy"`

	Unable []Unable `json:"unable"` // due runs that no worker can do
	// queues that live workers serve although they belong to another namespace: "default (shop)"
	Disputed []string `json:"disputed_queues"`
}

// Replica is a worker with its holds.
type Replica struct {
	Worker
	Holds []Holder `json:"holds"`
}

// Overview reads what the page shows besides a snapshot.
func (r *Reader) Overview(ctx context.Context, snapshot *Snapshot) (*Overview, error) {
	now, err := r.now(ctx)
	if err != nil {
		return nil, err
	}
	records, err := r.book.Jobs(ctx)
	if err != nil {
		return nil, err
	}
	r = r.knowing(records)
	outstanding, err := r.book.Outstanding(ctx, "", countPending)
	if err != nil {
		return nil, err
	}
	paused, err := r.book.Paused(ctx)
	if err != nil {
		return nil, err
	}
	asked := likelyLast(records, outstanding)
	finished, err := r.endedPager(asked, wasRun).next(ctx, showRuns, looksAtMost)
	if err != nil {
		return nil, err
	}
	runs, err := r.listedRuns(ctx, RunFilter{}, finished)
	if err != nil {
		return nil, err
	}

	// lists are never null
	o := &Overview{At: Instant{now}, Jobs: len(records), Asked: len(asked), Runs: runs, Workers: []Replica{}, Others: []Holder{}, Pending: []Run{},
		Disputed: []string{}}
	o.fleet(snapshot)
	o.Waits, o.MoreWait = some(append([]Wait{}, snapshot.Waits...), showWaits)
	o.Noted, o.MoreNote = some(noted(records, paused, now), showNoted)
	o.Next, o.MoreNext = some(nextTicks(records, now, 1), showNext)
	o.Words = make(map[string]string, len(o.Next))
	for _, tick := range o.Next {
		o.Words[tick.Job] = triggerOf(records, tick.Job)
	}
	o.pending(outstanding)
	c := conditionsOf(snapshot, paused)
	unable, err := r.unable(ctx, c)
	if err != nil {
		return nil, err
	}
	o.Unable = append([]Unable{}, unable...)
	return o, r.explainPending(ctx, o, c, outstanding, records)
}

// noted returns the jobs that do not simply do their work.
func noted(records []ledger.JobRecord, paused []string, now time.Time) []Job {
	noted := []Job{}
	for _, record := range records {
		job := newJob(record, now)
		job.QueuePaused = slices.Contains(paused, job.Queue)
		if len(job.Notes()) > 0 {
			noted = append(noted, job)
		}
	}
	return noted
}

// fleet fills in the workers and the holds, and counts them.
func (o *Overview) fleet(snapshot *Snapshot) {
	holders, more := some(snapshot.Holders, showHolds)
	o.MoreHold = more
	at := make(map[locks.SessionID]int)
	for i, worker := range snapshot.Workers() {
		o.Workers = append(o.Workers, Replica{worker, []Holder{}})
		at[worker.ID] = i
		if worker.State == Gone {
			continue
		}
		o.Live++
		o.Slots += worker.Slots
		o.Busy += worker.Busy
		if worker.State == "ready" {
			o.Ready++
		}
		for queue, owner := range worker.Disputed {
			if one := queue + " (" + owner + ")"; !slices.Contains(o.Disputed, one) {
				o.Disputed = append(o.Disputed, one)
			}
		}
	}
	slices.Sort(o.Disputed)
	for _, holder := range holders {
		if i, is := at[holder.Worker]; is {
			o.Workers[i].Holds = append(o.Workers[i].Holds, holder)
		} else {
			o.Others = append(o.Others, holder)
		}
	}
}

// pending counts the outstanding runs and takes the oldest that are not running.
func (o *Overview) pending(outstanding []*ledger.Record) {
	o.CountedAll = len(outstanding) < countPending
	o.Count = make(map[ledger.State]int)
	var waiting []*ledger.Record
	for _, record := range outstanding {
		o.Count[record.State]++
		if record.State != ledger.StateRunning {
			waiting = append(waiting, record)
		}
	}
	slices.SortStableFunc(waiting, func(a, b *ledger.Record) int { return a.Created.Compare(b.Created) })
	waiting, _ = some(waiting, showPending)
	for _, record := range waiting {
		o.Pending = append(o.Pending, newRun(record))
	}
}

// explainPending adds to each shown run why it does not run: for ten of them at most, from data
// that was already read.
func (r *Reader) explainPending(ctx context.Context, o *Overview, c *conditions, outstanding []*ledger.Record, records []ledger.JobRecord) error {
	active := make(map[string]*jobs.Job, len(records))
	for _, record := range records {
		active[record.Job.Name] = record.Job
	}
	for i := range o.Pending {
		run := &o.Pending[i]
		record := outstanding[slices.IndexFunc(outstanding, func(record *ledger.Record) bool { return record.ID == run.ID })]
		ahead := 0
		if record.State == ledger.StateDue {
			var err error
			if ahead, err = r.book.Ahead(ctx, record); err != nil {
				return err
			}
		}
		run.WaitingFor = c.whyNot(record, active[record.Job], ahead)
	}
	return nil
}

// WaitCount returns the number of requests that wait for locks.
func (o *Overview) WaitCount() int { return len(o.Waits) + o.MoreWait }

// Outstanding returns the number of runs that are neither finished nor running.
func (o *Overview) Outstanding() int {
	n := 0
	for state, count := range o.Count {
		if state != ledger.StateRunning {
			n += count
		}
	}
	return n
}

// likelyLast returns the names of the jobs that may have the last runs in their histories. Each
// history costs a read, so their number is limited: beyond it, likelyLast chooses the jobs with
// outstanding runs, those without a schedule, and those with the latest decided ticks.
func likelyLast(records []ledger.JobRecord, outstanding []*ledger.Record) []string {
	if len(records) <= askHistories {
		return namesOf(records)
	}
	active := make(map[string]bool)
	for _, record := range outstanding {
		active[record.Job] = true
	}
	rank := func(record ledger.JobRecord) int {
		switch {
		case active[record.Job.Name]:
			return 0
		case !record.Job.Scheduled():
			return 1
		}
		return 2
	}
	records = slices.Clone(records)
	slices.SortStableFunc(records, func(a, b ledger.JobRecord) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), b.Cursor.Compare(a.Cursor))
	})
	return namesOf(records[:askHistories])
}

// triggerOf describes the trigger of a job as plainly as possible.
func triggerOf(records []ledger.JobRecord, name string) string {
	i := slices.IndexFunc(records, func(record ledger.JobRecord) bool { return record.Job.Name == name })
	job := newJob(records[i], records[i].Cursor)
	words := string(cmp.Or(job.Words, job.Schedule))
	if job.Timezone != "" && job.Every == nil {
		words += ", " + string(job.Timezone)
	}
	return words
}

// some returns the first elements, at most this number, and the number of the others.
func some[T any](items []T, most int) ([]T, int) {
	if len(items) <= most {
		return items, 0
	}
	return items[:most], len(items) - most
}
