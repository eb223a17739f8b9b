package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// ErrInvalid says that what was asked for cannot be: a state that there is not, a negative number.
var ErrInvalid = errors.New("invalid request")

// Reader answers questions about runs, jobs, locks and workers in the shapes of this package. Each call reads anew; it
// changes nothing. What is asked for by name and is not there gives an error that is [ledger.ErrUnknown]. It is safe for
// concurrent use.
type Reader struct {
	book  book
	space space
}

// book is what is read of the ledger.
type book interface {
	Outstanding(ctx context.Context, job string, limit int) ([]*ledger.Record, error)
	History(ctx context.Context, job string, limit int) ([]*ledger.Record, error)
	Find(ctx context.Context, id jobs.RunID) (*ledger.Record, string, error)
	Jobs(ctx context.Context) ([]ledger.JobRecord, error)
	Job(ctx context.Context, name string) (ledger.JobRecord, error)
	Acts(ctx context.Context, before string, limit int) ([]ledger.ActRecord, error)
	Paused(ctx context.Context) ([]string, error)
	Ahead(ctx context.Context, record *ledger.Record) (int, error)
	DueQueues(ctx context.Context, queues, records int) ([]ledger.DueQueue, error)
	Definition(ctx context.Context, id jobs.RunID) (*jobs.Job, error)
	Handlers(ctx context.Context, names []string) (map[string]string, error)
}

// space is what is read of the lock space.
type space interface {
	Read(ctx context.Context, sessions ...locks.SessionID) (*locks.Listing, error)
	Sessions(ctx context.Context) ([]locks.SessionRecord, time.Time, error)
	Now(ctx context.Context) (time.Time, error)
	Permits(ctx context.Context, names ...string) (map[string]locks.PermitRecord, error)
}

// NewReader returns a reader of a ledger and of its lock space.
func NewReader(l *ledger.Ledger) *Reader { return &Reader{book: l, space: l.Space()} }

// RunFilter says which runs are asked for. The zero value asks for all that are kept.
type RunFilter struct {
	Job   string // "": of all jobs
	State string // "": in any state but skipped and missed, for these ticks never were runs; nor are lines for many ticks
	Limit int    // at most so many; 0: no limit
}

var states = []ledger.State{
	ledger.Scheduled, ledger.DueNow, ledger.WaitsLock, ledger.Running, ledger.Retrying, ledger.Succeeded, ledger.Failed,
	ledger.Lost, ledger.Canceled, ledger.Skipped, ledger.MissedRun,
}

func (f RunFilter) check() error {
	if f.Limit < 0 {
		return fmt.Errorf("%w: a limit of %d runs", ErrInvalid, f.Limit)
	}
	if f.State != "" && !slices.Contains(states, ledger.State(f.State)) {
		return fmt.Errorf("%w: no run has the state %q; the states are %v", ErrInvalid, f.State, states)
	}
	return nil
}

// keeps tells whether a run is asked for.
func (f RunFilter) keeps(record *ledger.Record) bool {
	if f.State != "" {
		return record.State == ledger.State(f.State) && record.Upto.IsZero()
	}
	return wasRun(record)
}

// wasRun tells whether a record is a run's, not that of a tick that was left out, nor a line that stands for many ticks.
func wasRun(record *ledger.Record) bool {
	return record.State != ledger.Skipped && record.State != ledger.MissedRun && record.Upto.IsZero()
}

// Runs returns the outstanding runs, those created last first, and then the finished ones, those finished last first.
func (r *Reader) Runs(ctx context.Context, filter RunFilter) ([]Run, error) {
	return r.runs(ctx, filter, nil)
}

// runs is [Reader.Runs] of those that come after a place.
func (r *Reader) runs(ctx context.Context, filter RunFilter, after *place) ([]Run, error) {
	if err := filter.check(); err != nil {
		return nil, err
	}
	keep := func(record *ledger.Record) bool {
		return filter.keeps(record) && (after == nil || placeOf(record).compare(*after) > 0)
	}
	var outstanding, finished []*ledger.Record
	var err error
	state := ledger.State(filter.State)
	if !state.Final() { // "" is not
		if outstanding, err = r.book.Outstanding(ctx, filter.Job, 0); err != nil {
			return nil, err
		}
		outstanding = slices.DeleteFunc(outstanding, func(record *ledger.Record) bool { return !keep(record) })
	}
	want := max(0, filter.Limit-len(outstanding))
	if (state == "" || state.Final()) && (filter.Limit == 0 || want > 0) {
		names := []string{filter.Job}
		if filter.Job == "" {
			all, err := r.book.Jobs(ctx)
			if err != nil {
				return nil, err
			}
			names = namesOf(all)
		}
		if finished, err = r.finished(ctx, names, want, keep); err != nil {
			return nil, err
		}
	}
	if len(outstanding)+len(finished) == 0 && filter.Job != "" {
		if _, err := r.book.Job(ctx, filter.Job); err != nil { // a name that was mistyped is not an empty list
			return nil, err
		}
	}
	return newRuns(outstanding, finished, filter.Limit), nil
}

// newRuns makes the list of runs. Outstanding runs are read before finished ones, so that none is missed that finishes
// in between; such a one is listed once, as finished.
func newRuns(outstanding, finished []*ledger.Record, limit int) []Run {
	done := make(map[jobs.RunID]bool, len(finished))
	for _, record := range finished {
		done[record.ID] = true
	}
	outstanding = slices.DeleteFunc(outstanding, func(record *ledger.Record) bool { return done[record.ID] })
	records := first(append(outstanding, finished...), limit)
	runs := make([]Run, len(records))
	for i, record := range records {
		runs[i] = newRun(record)
	}
	return runs
}

func namesOf(records []ledger.JobRecord) []string {
	names := make([]string, len(records))
	for i, record := range records {
		names[i] = record.Job.Name
	}
	return names
}

const sideBySide = 8 // histories read at the same time

// finished returns, of the histories of some jobs, the records to keep that finished last: at most so many, or, with 0,
// all.
func (r *Reader) finished(ctx context.Context, names []string, want int, keep func(*ledger.Record) bool) ([]*ledger.Record, error) {
	var (
		mu      sync.Mutex
		records []*ledger.Record // guarded by mu
	)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(sideBySide)
	for _, name := range names {
		group.Go(func() error {
			some, err := r.history(ctx, name, want, keep)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			records = append(records, some...)
			if want > 0 && len(records) > 16*want+1000 { // many jobs: do not keep what is surely not wanted
				records = first(records, want)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return first(records, want), nil
}

// first puts records in the order of the list of runs and returns the first so many; 0: all.
func first(records []*ledger.Record, want int) []*ledger.Record {
	slices.SortFunc(records, func(a, b *ledger.Record) int { return placeOf(a).compare(placeOf(b)) })
	if want > 0 {
		records = records[:min(want, len(records))]
	}
	return records
}

// history returns of one job's finished records those to keep, the last finished first: at least want of them, or all
// that there are. The ledger does not know what is to be kept, so it is asked for more until that is enough.
func (r *Reader) history(ctx context.Context, job string, want int, keep func(*ledger.Record) bool) ([]*ledger.Record, error) {
	for n := want; ; n *= 8 {
		records, err := r.book.History(ctx, job, n)
		if err != nil {
			return nil, err
		}
		all := n == 0 || len(records) < n
		records = slices.DeleteFunc(records, func(record *ledger.Record) bool { return !keep(record) })
		if all || len(records) >= want {
			return first(records, want), nil
		}
	}
}

// Run returns one run, with why it does not run if it does not, and the tail of what its last attempt printed. Skipped and missed ticks have an id, too.
func (r *Reader) Run(ctx context.Context, id jobs.RunID) (*Run, string, error) {
	record, output, err := r.book.Find(ctx, id)
	if err != nil {
		return nil, "", err
	}
	run := newRun(record)
	if run.WaitingFor, err = r.waitingFor(ctx, record); err != nil {
		return nil, "", err
	}
	return &run, output, nil
}

// Ticks returns what became of the ticks of a job, the last due time first: at most so many, or, with 0, all that are
// kept.
func (r *Reader) Ticks(ctx context.Context, job string, limit int) ([]Tick, error) {
	if limit < 0 {
		return nil, fmt.Errorf("%w: a limit of %d ticks", ErrInvalid, limit)
	}
	if _, err := r.book.Job(ctx, job); err != nil {
		return nil, err
	}
	outstanding, err := r.book.Outstanding(ctx, job, 0)
	if err != nil {
		return nil, err
	}
	// A history is in the order in which runs ended, which is not that of their ticks: hence all of it is read. It comes
	// second, so that no tick is missed whose run ends in between.
	finished, err := r.book.History(ctx, job, 0)
	if err != nil {
		return nil, err
	}
	seen := make(map[jobs.RunID]bool, len(finished))
	ticks := make([]Tick, 0, len(outstanding)+len(finished))
	for _, record := range append(finished, outstanding...) {
		if !record.Tick.IsZero() && !seen[record.ID] {
			seen[record.ID] = true
			ticks = append(ticks, newTick(record))
		}
	}
	slices.SortFunc(ticks, func(a, b Tick) int { return b.Tick.Compare(a.Tick.Time) })
	if limit > 0 {
		ticks = ticks[:min(limit, len(ticks))]
	}
	return ticks, nil
}

// Audit returns what people did, the last first: at most so many, or, with 0, all that are kept.
func (r *Reader) Audit(ctx context.Context, limit int) ([]Act, error) { return r.audit(ctx, "", limit) }

// audit is [Reader.Audit] of what was done before the act of an id.
func (r *Reader) audit(ctx context.Context, before string, limit int) ([]Act, error) {
	if limit < 0 {
		return nil, fmt.Errorf("%w: a limit of %d", ErrInvalid, limit)
	}
	records, err := r.book.Acts(ctx, before, limit)
	if err != nil {
		return nil, err
	}
	acts := make([]Act, len(records))
	for i, a := range records {
		acts[i] = Act{ID: a.ID, At: Instant{a.At}, Who: a.Who, What: a.What, On: a.On, Why: Text(a.Why), Detail: Text(a.Detail),
			Times: max(1, a.Times), FirstAt: Instant{a.First}}
	}
	return acts, nil
}

// unknownError is about what the ledger does not know because it is not in the ledger.
type unknownError string

func (e unknownError) Error() string { return string(e) }

// Is reports whether target is [ledger.ErrUnknown].
func (e unknownError) Is(target error) bool { return target == ledger.ErrUnknown }
