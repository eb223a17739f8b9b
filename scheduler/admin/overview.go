package admin

import (
	"cmp"
	pq "container/heap" // heap is also a word for memory
	"context"
	"errors"
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
	Pending  []Run             `json:"pending"` // outstanding, not running; see CountedAll
	Runs     []Run             `json:"runs"`    // finished, the newest first
	Jobs     int               `json:"jobs"`
	// Reading is set for a hasty reader that does not know all jobs yet. Jobs, Noted and Next are
	// then empty.
	Reading *ReadingError `json:"-"`

	Count map[ledger.State]int `json:"outstanding"` // runs, by state
	// Count includes all outstanding runs, and Pending has the oldest first. Else Pending has those
	// first that have been due for longest.
	CountedAll bool `json:"counted_all"`
	Ready      int  `json:"ready"` // workers that take runs
	Live       int  `json:"live"`  // workers that have a lease
	Slots      int  `json:"slots"` // of these
	Busy       int  `json:"busy"`

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
	outstanding, err := r.book.Outstanding(ctx, "", countPending)
	if err != nil {
		return nil, err
	}
	paused, err := r.book.Paused(ctx)
	if err != nil {
		return nil, err
	}
	finished, err := r.endedPager("", wasRun).next(ctx, showRuns, looksAtMost)
	if err != nil {
		return nil, err
	}
	runs, err := r.listedRuns(ctx, RunFilter{}, finished)
	if err != nil {
		return nil, err
	}

	// lists are never null
	o := &Overview{At: Instant{now}, Runs: runs, Workers: []Replica{}, Others: []Holder{}, Noted: []Job{}, Next: []NextTick{}, Words: map[string]string{},
		Pending: []Run{}, Disputed: []string{}}
	o.fleet(snapshot)
	c := conditionsOf(snapshot, paused)
	o.Waits, o.MoreWait = some(append([]Wait{}, snapshot.Waits...), showWaits)
	switch all, err := r.all(ctx); {
	case errors.As(err, &o.Reading):
	case err != nil:
		return nil, err
	default:
		o.jobs(all.jobs, c, now)
	}
	var due []*ledger.Record
	if o.CountedAll = len(outstanding) < countPending; !o.CountedAll {
		if due, err = r.dueLongest(ctx); err != nil {
			return nil, err
		}
	}
	waiting := o.pending(outstanding, due)
	unable, err := r.unable(ctx, c)
	if err != nil {
		return nil, err
	}
	o.Unable = append([]Unable{}, unable...)
	return o, r.explainPending(ctx, o, c, waiting)
}

// jobs fills in the jobs that do not simply do their work, and the next ticks.
func (o *Overview) jobs(list []listedJob, c *conditions, now time.Time) {
	o.Jobs = len(list)
	coming := make(nextHeap, 0, len(list))
	for i := range list {
		job := &list[i]
		switch remarks := noted(job, c); {
		case len(remarks.Notes()) == 0:
		case len(o.Noted) < showNoted:
			o.Noted = append(o.Noted, newJob(job, c))
		default:
			o.MoreNote++
		}
		if at := job.after(later(job.Cursor, now)); !at.IsZero() {
			coming = append(coming, upcoming{job, at})
		}
	}
	pq.Init(&coming)
	o.MoreNext = max(0, len(coming)-showNext)
	for len(coming) > 0 && len(o.Next) < showNext {
		first := pq.Pop(&coming).(upcoming)
		o.Next = append(o.Next, nextTick(first.job, first.at, now))
		o.Words[first.job.Job.Name] = triggerOf(first.job)
	}
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

// dueLongest returns runs that have been due for longest.
func (r *Reader) dueLongest(ctx context.Context) ([]*ledger.Record, error) {
	queues, err := r.book.DueQueues(ctx, lookQueues, showPending)
	if err != nil {
		return nil, err
	}
	var due []*ledger.Record
	for _, queue := range queues {
		due = append(due, queue.Oldest...)
	}
	slices.SortStableFunc(due, func(a, b *ledger.Record) int { return a.DueSince.Compare(b.DueSince) })
	due, _ = some(due, showPending)
	ids := make([]jobs.RunID, len(due))
	for i, record := range due {
		ids[i] = record.ID
	}
	due, err = r.book.OpenRecords(ctx, ids) // with their arguments
	return slices.DeleteFunc(due, func(record *ledger.Record) bool { return record == nil || record.State != ledger.StateDue }), err
}

// pending counts the outstanding runs, shows the oldest that are not running, after those that are
// due for longest, if any are given, and returns the records of these.
func (o *Overview) pending(outstanding, due []*ledger.Record) []*ledger.Record {
	o.Count = make(map[ledger.State]int)
	var waiting []*ledger.Record
	for _, record := range outstanding {
		o.Count[record.State]++
		if record.State != ledger.StateRunning {
			waiting = append(waiting, record)
		}
	}
	slices.SortStableFunc(waiting, func(a, b *ledger.Record) int { return a.Created.Compare(b.Created) })
	waiting = slices.DeleteFunc(waiting, func(record *ledger.Record) bool {
		return slices.ContainsFunc(due, func(first *ledger.Record) bool { return first.ID == record.ID })
	})
	waiting, _ = some(append(due, waiting...), showPending)
	for _, record := range waiting {
		o.Pending = append(o.Pending, newRun(record))
	}
	return waiting
}

// explainPending adds to each shown run, one for each of these records, why it does not run.
func (r *Reader) explainPending(ctx context.Context, o *Overview, c *conditions, records []*ledger.Record) error {
	names := make([]string, len(records))
	for i, record := range records {
		names[i] = record.Job
	}
	active, err := r.book.ActiveJobs(ctx, names)
	if err != nil {
		return err
	}
	for i, record := range records {
		ahead := 0
		if record.State == ledger.StateDue {
			if ahead, err = r.book.Ahead(ctx, record); err != nil {
				return err
			}
		}
		o.Pending[i].WaitingFor = c.whyNot(record, active[record.Job], ahead)
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

// triggerOf describes the trigger of a job as plainly as possible.
func triggerOf(job *listedJob) string {
	defined := newDefined(job.Job)
	words := string(cmp.Or(defined.Words, defined.Schedule))
	if defined.Timezone != "" && defined.Every == nil {
		words += ", " + string(defined.Timezone)
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
