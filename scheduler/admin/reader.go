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
// call reads anew, except what an answer needs of all jobs, if they are very many: see the doc of
// the package. It changes nothing. An unknown name gives an error that is [ledger.ErrUnknown].
// The values of secret args are hidden, unless the reader is [Reader.Revealing]. A Reader is safe
// for concurrent use.
type Reader struct {
	book     Book
	space    Space
	queues   Queues // nil: it reads none
	catalog  *catalog
	patience time.Duration // for a reading of all jobs; 0: no limit
}

// Book is the part of the ledger that a [Reader] reads.
type Book interface {
	Outstanding(ctx context.Context, job string, limit int) ([]*ledger.Record, error)
	OpenEntries(ctx context.Context, index ledger.Index, job, after string, limit int) ([]ledger.OpenEntry, error)
	OpenRecords(ctx context.Context, ids []jobs.RunID) ([]*ledger.Record, error)
	CountOpen(ctx context.Context, names []string) (map[string]int, error)
	CountAllOpen(ctx context.Context) (int, error)
	CountRunning(ctx context.Context) (map[string]int, error)
	CountEnded(ctx context.Context, job string, since time.Time) (int, error)
	EndedJobs(ctx context.Context, place string, most int) (jobs []ledger.EndedJob, next string, err error)
	EndedEntries(ctx context.Context, pages []ledger.EndedPage) ([][]ledger.EndedEntry, error)
	EndedRecords(ctx context.Context, entries []ledger.EndedEntry) ([]*ledger.Record, error)
	Find(ctx context.Context, id jobs.RunID) (*ledger.Record, string, error)
	FindRecord(ctx context.Context, id jobs.RunID) (*ledger.Record, error)
	FindOutput(ctx context.Context, id jobs.RunID, attempt int) (*ledger.Record, ledger.Output, error)
	Follow(ctx context.Context, id jobs.RunID, last int64) (*ledger.Followed, error)
	ScanJobs(ctx context.Context, at uint64) (names []string, next uint64, err error)
	JobsOf(ctx context.Context, names []string, known func(job, hash string) *jobs.Job) ([]ledger.JobRecord, error)
	Job(ctx context.Context, name string) (ledger.JobRecord, error)
	Acts(ctx context.Context, before string, limit int) ([]ledger.ActRecord, error)
	Paused(ctx context.Context) ([]string, error)
	PausedSince(ctx context.Context, queues []string) (map[string]time.Time, error)
	Ahead(ctx context.Context, record *ledger.Record) (int, error)
	DueQueues(ctx context.Context, queues, records int) ([]ledger.DueQueue, error)
	Children(ctx context.Context, record *ledger.Record) (ledger.Children, error)
	Flows(ctx context.Context, queues []string) (map[string]ledger.Flow, error)
	Definition(ctx context.Context, id jobs.RunID) (*jobs.Job, error)
	Definitions(ctx context.Context, ids []jobs.RunID) []ledger.Definition
	Made(ctx context.Context, record *ledger.Record) (*jobs.Job, error)
	ActiveJobs(ctx context.Context, names []string) (map[string]*jobs.Job, error)
	NeedOf(ctx context.Context, record *ledger.Record) (ledger.Need, error)
	Asides(ctx context.Context) ([]ledger.Aside, error)
	Totals(ctx context.Context) (*ledger.Totals, error)
	Mail(ctx context.Context, targets []string) ([]ledger.MailOf, error)
	Duty(ctx context.Context) (locks.SessionID, error)
}

// Space is the part of the lock space that a [Reader] reads.
type Space interface {
	Read(ctx context.Context, sessions ...locks.SessionID) (*locks.Listing, error)
	Sessions(ctx context.Context) ([]locks.SessionRecord, time.Time, error)
	Now(ctx context.Context) (time.Time, error)
	GraceLeft(ctx context.Context) (time.Duration, error)
	Permits(ctx context.Context, names ...string) (map[string]space.PermitRecord, error)
	Past(ctx context.Context, from string, since time.Time) (*space.Past, error)
	PastSince(ctx context.Context) (time.Time, error)
}

// NewReader returns a reader of a ledger and of its lock space.
func NewReader(l *ledger.Ledger) *Reader { return ReaderOf(l, l.Space()) }

// ReaderOf returns a reader of anything that has the methods of a ledger and a lock space.
func ReaderOf(book Book, space Space) *Reader {
	return &Reader{book: &veil{book, book.ActiveJobs}, space: space, catalog: newCatalog(book, space)}
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
	listed, is, err := r.namedRun(ctx, filter)
	if err == nil && !is {
		listed, err = pager.next(ctx, filter.Limit, 0)
	}
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
	listed, is, err := r.namedRun(ctx, filter)
	if err == nil && !is {
		listed, next, err = pager.page(ctx, filter.Limit)
	}
	if err != nil {
		return nil, "", err
	}
	runs, err = r.listedRuns(ctx, filter, listed)
	return runs, next, err
}

// namedRun returns the run with the id in the query of a filter, if the filter selects it. is
// reports that the query is the id of a run.
func (r *Reader) namedRun(ctx context.Context, filter RunFilter) (listed []item, is bool, err error) {
	id := jobs.RunID(filter.Query)
	if id.Job() == "" {
		return nil, false, nil
	}
	record, err := r.book.FindRecord(ctx, id)
	if errors.Is(err, ledger.ErrUnknown) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	keep, load := r.selects(filter)
	if err := load(ctx, []*ledger.Record{record}); err != nil || !keep(record) {
		return nil, true, err
	}
	if len(record.Args) > ledger.MaxListedArgs {
		record.Args = nil
	}
	return []item{{record: record}}, true, nil
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

// Run returns one run, with the reason if it does not run or takes unusually long, with its
// definition if that is kept, with the runs that it led to, and the tail of its last attempt's
// output. Skipped and missed ticks also have an id.
func (r *Reader) Run(ctx context.Context, id jobs.RunID) (*Run, string, error) {
	record, output, err := r.book.Find(ctx, id)
	if err != nil {
		return nil, "", err
	}
	run, err := r.runOf(ctx, record)
	if err == nil {
		run.Definition, err = r.runDefinition(ctx, record)
	}
	if err == nil {
		run.Unusual, err = r.unusual(ctx, run)
	}
	if err == nil {
		run.LedTo, err = r.ledTo(ctx, record)
	}
	if err != nil {
		return nil, "", err
	}
	return run, output, nil
}

// ledTo returns the runs that a run led to; nil for none.
func (r *Reader) ledTo(ctx context.Context, record *ledger.Record) (*LedTo, error) {
	children, err := r.book.Children(ctx, record)
	if err != nil || children.All == 0 {
		return nil, err
	}
	return &LedTo{Runs: children.First, More: children.All - len(children.First)}, nil
}

// RunWithoutOutput is [Reader.Run] without what may be long or takes more reads: the output, the
// definition, the runs that it led to, and what is usual for its job.
func (r *Reader) RunWithoutOutput(ctx context.Context, id jobs.RunID) (*Run, error) {
	record, err := r.book.FindRecord(ctx, id)
	if err != nil {
		return nil, err
	}
	return r.runOf(ctx, record)
}

// runOf returns a run, with the reason if it does not run.
func (r *Reader) runOf(ctx context.Context, record *ledger.Record) (_ *Run, err error) {
	run := newRun(record)
	if run.WaitingFor, err = r.waitingFor(ctx, record); err != nil {
		return nil, err
	}
	if record.State != ledger.StateRunning || len(run.Attempts) == 0 {
		return &run, nil
	}
	sessions, _, err := r.space.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	last := &run.Attempts[len(run.Attempts)-1]
	for _, s := range sessions {
		if s.ID == last.Worker {
			last.Stuck = stuckOf(newSession(s).card, last.Token)
		}
	}
	return &run, nil
}

// Ticks returns the outcomes of the ticks of a job: those with outstanding runs first, the last due
// time first, then the others, the last one settled first. It returns at most limit of them, or,
// with 0, all that are kept.
func (r *Reader) Ticks(ctx context.Context, job string, limit int) ([]Tick, error) {
	return r.TicksOf(ctx, Filter{Job: job, Limit: limit})
}

// State returns the state of a run, and reads less than [Reader.Run].
func (r *Reader) State(ctx context.Context, id jobs.RunID) (ledger.State, error) {
	record, err := r.book.FindRecord(ctx, id)
	if err != nil {
		return "", err
	}
	return record.State, nil
}

// TicksOf returns those [Reader.Ticks] of the filter's job that the filter selects. The filter's
// state is an outcome, and its times are those at which ticks were due.
func (r *Reader) TicksOf(ctx context.Context, filter Filter) ([]Tick, error) {
	pager, err := r.tickPager(ctx, filter, nil)
	if err != nil {
		return nil, err
	}
	listed, err := pager.next(ctx, filter.Limit, 0)
	return listedTicks(listed), err
}

// TickPage returns one page of [Reader.TicksOf], as [Reader.RunPage] does of runs.
func (r *Reader) TickPage(ctx context.Context, filter Filter, cursor string) (ticks []Tick, next string, err error) {
	after, err := readPosition(cursor)
	if err != nil {
		return nil, "", err
	}
	pager, err := r.tickPager(ctx, filter, after)
	if err != nil {
		return nil, "", err
	}
	listed, next, err := pager.page(ctx, filter.Limit)
	return listedTicks(listed), next, err
}

func listedTicks(listed []item) []Tick {
	ticks := make([]Tick, len(listed))
	for i, one := range listed {
		ticks[i] = newTick(one.record)
	}
	return ticks
}

// Audit returns the acts of people that a filter selects, the last first.
func (r *Reader) Audit(ctx context.Context, filter Filter) ([]Act, error) {
	most := filter.Limit
	acts := []Act{}
	for cursor := ""; ; {
		if filter.Limit = mostRead; most > 0 {
			filter.Limit = min(mostRead, most-len(acts))
		}
		some, next, err := r.AuditPage(ctx, filter, cursor)
		if err != nil {
			return nil, err
		}
		acts = append(acts, some...)
		if next == "" || most > 0 && len(acts) >= most {
			return acts, nil
		}
		cursor = next
	}
}

// AuditPage returns a page of [Reader.Audit], as [Reader.RunPage] does of runs.
func (r *Reader) AuditPage(ctx context.Context, filter Filter, cursor string) (acts []Act, next string, err error) {
	if cursor != "" && !ledger.IsActID(cursor) {
		return nil, "", ErrCursor
	}
	if filter.Limit < 1 {
		return nil, "", fmt.Errorf("%w: a limit of %d", ErrInvalid, filter.Limit)
	}
	if cursor == "" && !filter.Until.IsZero() {
		cursor = fmt.Sprintf("%d-0", max(1, filter.Until.Add(time.Millisecond-1).UnixMilli()))
	}
	acts = []Act{}
	for looked, most := 0, min(filter.Limit+1, mostRead); looked < filter.Limit+looksAtMost; looked, most = looked+most, mostRead {
		records, err := r.book.Acts(ctx, cursor, most)
		if err != nil {
			return nil, "", err
		}
		for i := range records {
			record := &records[i]
			switch {
			case record.At.Before(filter.Since):
				return acts, "", nil
			case !filter.keepsAct(record):
			case len(acts) == filter.Limit:
				return acts, cursor, nil
			default:
				acts = append(acts, newAct(record))
			}
			cursor = record.ID
		}
		if len(records) < most {
			return acts, "", nil
		}
	}
	return acts, cursor, nil
}

func newAct(a *ledger.ActRecord) Act {
	return Act{ID: a.ID, At: Instant{a.At}, Who: a.Who, What: a.What, On: a.On, Why: Text(a.Why), Detail: Text(a.Detail),
		Times: max(1, a.Times), FirstAt: Instant{a.First}}
}

// unknownError is about an object that the ledger does not know because it belongs elsewhere.
type unknownError string

func (e unknownError) Error() string { return string(e) }

// Is reports whether target is [ledger.ErrUnknown].
func (e unknownError) Is(target error) bool { return target == ledger.ErrUnknown }
