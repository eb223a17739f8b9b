package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/ledger"
)

// ErrInvalid is returned for an impossible request: an unknown state, a negative number.
var ErrInvalid = errors.New("invalid request")

// Reader answers questions about runs, jobs, locks and workers in the shapes of this package. Each
// call reads anew; it changes nothing. An unknown name gives an error that is [ledger.ErrUnknown].
// The values of secret args are hidden, unless the reader is [Reader.Revealing]. A Reader is safe
// for concurrent use.
type Reader struct {
	book  Book
	space Space
}

// Book is the part of the ledger that a [Reader] reads.
type Book interface {
	Outstanding(ctx context.Context, job string, limit int) ([]*ledger.Record, error)
	OpenEntries(ctx context.Context, index ledger.Index, job, after string, limit int) ([]ledger.OpenEntry, error)
	OpenRecords(ctx context.Context, ids []jobs.RunID) ([]*ledger.Record, error)
	CountOpen(ctx context.Context, names []string) (map[string]int, error)
	CountRunning(ctx context.Context) (map[string]int, error)
	CountEnded(ctx context.Context, job string, since time.Time) (int, error)
	EndedEntries(ctx context.Context, pages []ledger.EndedPage) ([][]ledger.EndedEntry, error)
	EndedRecords(ctx context.Context, entries []ledger.EndedEntry) ([]*ledger.Record, error)
	Find(ctx context.Context, id jobs.RunID) (*ledger.Record, string, error)
	Jobs(ctx context.Context) ([]ledger.JobRecord, error)
	Job(ctx context.Context, name string) (ledger.JobRecord, error)
	Acts(ctx context.Context, before string, limit int) ([]ledger.ActRecord, error)
	Paused(ctx context.Context) ([]string, error)
	Ahead(ctx context.Context, record *ledger.Record) (int, error)
	DueQueues(ctx context.Context, queues, records int) ([]ledger.DueQueue, error)
	Definition(ctx context.Context, id jobs.RunID) (*jobs.Job, error)
	Definitions(ctx context.Context, ids []jobs.RunID) []ledger.Definition
	ActiveJobs(ctx context.Context, names []string) (map[string]*jobs.Job, error)
	NeedOf(ctx context.Context, record *ledger.Record) (ledger.Need, error)
	Asides(ctx context.Context) ([]ledger.Aside, error)
}

// Space is the part of the lock space that a [Reader] reads.
type Space interface {
	Read(ctx context.Context, sessions ...locks.SessionID) (*locks.Listing, error)
	Sessions(ctx context.Context) ([]locks.SessionRecord, time.Time, error)
	Now(ctx context.Context) (time.Time, error)
	Permits(ctx context.Context, names ...string) (map[string]space.PermitRecord, error)
	Past(ctx context.Context, from string, since time.Time) (*space.Past, error)
	PastSince(ctx context.Context) (time.Time, error)
}

// NewReader returns a reader of a ledger and of its lock space.
func NewReader(l *ledger.Ledger) *Reader { return ReaderOf(l, l.Space()) }

// ReaderOf returns a reader of anything that has the methods of a ledger and a lock space.
func ReaderOf(book Book, space Space) *Reader {
	return &Reader{book: &veil{book, book.ActiveJobs}, space: space}
}

// RunFilter selects runs. The zero value selects all that are kept.
type RunFilter struct {
	Job string // "": of all jobs
	// "": in any state, but without ticks that never became due, for these never were runs; nor are
	// lines for many ticks
	State string
	Limit int // maximum number; 0: no limit
}

func (f RunFilter) check() error {
	if f.Limit < 0 {
		return fmt.Errorf("%w: a limit of %d runs", ErrInvalid, f.Limit)
	}
	if f.State != "" && ledger.State(f.State).Facts().State == "" {
		return fmt.Errorf("%w: no run has the state %q; the states are %v", ErrInvalid, f.State, ledger.StateNames())
	}
	return nil
}

// keeps reports whether a run matches the filter.
func (f RunFilter) keeps(record *ledger.Record) bool {
	if f.State != "" {
		return record.State == ledger.State(f.State) && record.Upto.IsZero()
	}
	return wasRun(record)
}

// wasRun reports whether a record belongs to a run: not to a tick that never became due, nor to a
// line for many ticks. A request, and a tick that was due, are runs even when they were skipped or
// missed in the end.
func wasRun(record *ledger.Record) bool {
	never := record.State.Facts().Tick && record.Trigger == ledger.TriggerSchedule && record.DueSince.IsZero()
	return !never && record.Upto.IsZero()
}

// Runs returns the outstanding runs, in the order of an index of the ledger, and then the finished
// ones, the last one to finish first. The package's doc has the orders of outstanding runs.
func (r *Reader) Runs(ctx context.Context, filter RunFilter) ([]Run, error) {
	pager, err := r.runPager(filter, nil)
	if err != nil {
		return nil, err
	}
	listed, err := pager.next(ctx, filter.Limit, 0)
	if err != nil {
		return nil, err
	}
	return r.listedRuns(ctx, filter, listed)
}

// RunPage returns a page of [Reader.Runs] and the cursor of the next page, "" after the last one.
// The cursor of the first page is "". A page has at most filter.Limit runs, which must not be 0,
// and may have fewer although others follow; see the package's doc.
func (r *Reader) RunPage(ctx context.Context, filter RunFilter, cursor string) (runs []Run, next string, err error) {
	after, err := readPosition(cursor)
	if err != nil {
		return nil, "", err
	}
	pager, err := r.runPager(filter, after)
	if err != nil {
		return nil, "", err
	}
	listed, next, err := pager.page(ctx, filter.Limit)
	if err != nil {
		return nil, "", err
	}
	runs, err = r.listedRuns(ctx, filter, listed)
	return runs, next, err
}

// listedRuns returns runs as they are shown. An empty list of a job that does not exist is an
// error.
func (r *Reader) listedRuns(ctx context.Context, filter RunFilter, listed []item) ([]Run, error) {
	if len(listed) == 0 && filter.Job != "" {
		if _, err := r.book.Job(ctx, filter.Job); err != nil {
			return nil, err
		}
	}
	runs := make([]Run, len(listed))
	for i, one := range listed {
		runs[i] = newRun(one.record)
	}
	return runs, nil
}

func namesOf(records []ledger.JobRecord) []string {
	names := make([]string, len(records))
	for i, record := range records {
		names[i] = record.Job.Name
	}
	return names
}

// Run returns one run, with the reason if it does not run, and the tail of its last attempt's
// output. Skipped and missed ticks also have an id.
func (r *Reader) Run(ctx context.Context, id jobs.RunID) (*Run, string, error) {
	record, output, err := r.book.Find(ctx, id)
	if err != nil {
		return nil, "", err
	}
	run := newRun(record)
	if run.WaitingFor, err = r.waitingFor(ctx, record); err != nil {
		return nil, "", err
	}
	if record.State != ledger.StateRunning || len(run.Attempts) == 0 {
		return &run, output, nil
	}
	sessions, _, err := r.space.Sessions(ctx)
	if err != nil {
		return nil, "", err
	}
	last := &run.Attempts[len(run.Attempts)-1]
	for _, s := range sessions {
		if s.ID == last.Worker {
			last.Stuck = stuckOf(newSession(s).card, last.Token)
		}
	}
	return &run, output, nil
}

// Ticks returns the outcomes of the ticks of a job: those with outstanding runs first, the last due
// time first, then the others, the last one settled first. It returns at most limit of them, or,
// with 0, all that are kept.
func (r *Reader) Ticks(ctx context.Context, job string, limit int) ([]Tick, error) {
	if limit < 0 {
		return nil, fmt.Errorf("%w: a limit of %d ticks", ErrInvalid, limit)
	}
	if _, err := r.book.Job(ctx, job); err != nil {
		return nil, err
	}
	listed, err := r.tickPager(job, nil).next(ctx, limit, 0)
	return listedTicks(listed), err
}

// TickPage returns one page of [Reader.Ticks], as [Reader.RunPage] does of runs.
func (r *Reader) TickPage(ctx context.Context, job, cursor string, limit int) (ticks []Tick, next string, err error) {
	after, err := readPosition(cursor)
	if err != nil {
		return nil, "", err
	}
	if _, err := r.book.Job(ctx, job); err != nil {
		return nil, "", err
	}
	listed, next, err := r.tickPager(job, after).page(ctx, limit)
	return listedTicks(listed), next, err
}

func listedTicks(listed []item) []Tick {
	ticks := make([]Tick, len(listed))
	for i, one := range listed {
		ticks[i] = newTick(one.record)
	}
	return ticks
}

// Audit returns the acts of people, the last first: at most limit, or, with 0, all that are kept.
func (r *Reader) Audit(ctx context.Context, limit int) ([]Act, error) {
	return r.AuditBefore(ctx, "", limit)
}

// AuditBefore is [Reader.Audit] of the acts before the act with an id; "" for all.
func (r *Reader) AuditBefore(ctx context.Context, before string, limit int) ([]Act, error) {
	if before != "" && !ledger.IsActID(before) {
		return nil, ErrCursor
	}
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

// unknownError is about an object that the ledger does not know because it belongs elsewhere.
type unknownError string

func (e unknownError) Error() string { return string(e) }

// Is reports whether target is [ledger.ErrUnknown].
func (e unknownError) Is(target error) bool { return target == ledger.ErrUnknown }
