package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler"
	"lockstep/scheduler/cronspec"
	"lockstep/scheduler/ledger"
)

const (
	catalogStep = 500 // jobs that are read in one step: a few milliseconds

	// A catalog that took less is read for each answer. Any other is kept for this many times as
	// long as its reading took, and at most for catalogKeep.
	catalogFree   = 100 * time.Millisecond
	catalogFactor = 5
	catalogKeep   = 30 * time.Second
	// how old the catalog may be that a hasty reader gets while it is being read again, and the
	// steps of one reading
	catalogOld = time.Minute
)

// ErrReading is returned to a reader that does not wait until all jobs have been read: see
// [Reader.Hasty].
var ErrReading = errors.New("the jobs are being read")

// ReadingError is an [ErrReading] that says how far the reading is.
type ReadingError struct{ Read, All int }

func (e *ReadingError) Error() string {
	return fmt.Sprintf("%s: %d of %d so far", ErrReading, e.Read, e.All)
}

// Is reports whether target is [ErrReading].
func (e *ReadingError) Is(target error) bool { return target == ErrReading }

// catalog is what the readers of a process know of all jobs. Some answers depend on each job: the
// next ticks, the late jobs. But reading and decoding 100,000 definitions takes more than a second.
// So a catalog
//
//   - reads a definition again only if its hash has changed;
//   - is kept for a while if its reading took long: an answer about all of very many jobs may be
//     some seconds old, one about a single job never is;
//   - is read step by step. A reader that does not wait for the end leaves the rest to the next
//     one, so no reading needs a goroutine of its own.
type catalog struct {
	book  Book
	space Space
	turn  chan struct{}           // has an element while a reader reads
	last  atomic.Pointer[listing] // the last complete one
	part  *listing                // the one that is being read; guarded by turn
}

// listing is one reading of all jobs.
type listing struct {
	jobs  []listedJob
	names []string // of the jobs that are still to be read
	all   int      // names, in the beginning
	now   time.Time
	began time.Time
	ended time.Time
	took  time.Duration // the steps, without what was between them
}

// listedJob is a job, with its trigger.
type listedJob struct {
	ledger.JobRecord
	trigger     *cronspec.Schedule // nil: it has none, or one that cannot be computed
	since, next time.Time          // next is its first tick after since; zero: there is none
}

func newCatalog(book Book, space Space) *catalog {
	return &catalog{book: book, space: space, turn: make(chan struct{}, 1)}
}

// fresh reports whether a listing is good for another answer.
func (l *listing) fresh() bool {
	return l != nil && l.took >= catalogFree && time.Since(l.ended) < min(catalogFactor*l.took, catalogKeep)
}

// read returns all jobs, by name. With a patience, it reads for about that long at most, and
// returns an older listing or [ErrReading] if that is not enough.
func (c *catalog) read(ctx context.Context, patience time.Duration) ([]listedJob, error) {
	if last := c.last.Load(); last.fresh() {
		return last.jobs, nil
	}
	var late <-chan time.Time
	if patience > 0 {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case c.turn <- struct{}{}:
	case <-late:
		return c.older(&ReadingError{})
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-c.turn }()
	if last := c.last.Load(); last.fresh() { // another reader has read it meanwhile
		return last.jobs, nil
	}
	for {
		done, err := c.step(ctx)
		if err != nil {
			return nil, err
		}
		if done {
			return c.last.Load().jobs, nil
		}
		select {
		case <-late:
			return c.older(&ReadingError{Read: c.part.all - len(c.part.names), All: c.part.all})
		default:
		}
	}
}

// older returns the last listing if it is not too old, else an error.
func (c *catalog) older(err error) ([]listedJob, error) {
	if last := c.last.Load(); last != nil && time.Since(last.ended) < catalogOld {
		return last.jobs, nil
	}
	return nil, err
}

// step reads some jobs, and returns true after the last ones. The caller has the turn.
func (c *catalog) step(ctx context.Context) (done bool, err error) {
	began := time.Now()
	if c.part == nil || began.Sub(c.part.began) > catalogOld {
		names, err := c.book.JobNames(ctx)
		if err != nil {
			return false, err
		}
		now, err := c.space.Now(ctx)
		if err != nil {
			return false, err
		}
		c.part = &listing{jobs: make([]listedJob, 0, len(names)), names: names, all: len(names), now: now, began: began}
	}
	some := c.part.names[:min(catalogStep, len(c.part.names))]
	last := c.last.Load()
	records, err := c.book.JobsOf(ctx, some, last.definition)
	if err != nil {
		return false, err
	}
	for _, record := range records {
		c.part.jobs = append(c.part.jobs, newListed(record, c.part.now, last.find(record.Job.Name)))
	}
	c.part.names = c.part.names[len(some):]
	c.part.took += time.Since(began)
	if len(c.part.names) > 0 {
		return false, nil
	}
	c.part.ended = time.Now()
	c.last.Store(c.part)
	c.part = nil
	return true, nil
}

// find returns a job of a listing, or nil.
func (l *listing) find(name string) *listedJob {
	if l == nil {
		return nil
	}
	at, found := slices.BinarySearchFunc(l.jobs, name, func(job listedJob, name string) int { return strings.Compare(job.Job.Name, name) })
	if !found {
		return nil
	}
	return &l.jobs[at]
}

// definition returns the definition of a job in a listing if it has this hash, or nil.
func (l *listing) definition(name, hash string) *jobs.Job {
	if job := l.find(name); job != nil && job.Hash == hash {
		return job.Job
	}
	return nil
}

// newListed returns a job with its trigger. before is how it was listed before, or nil.
func newListed(record ledger.JobRecord, now time.Time, before *listedJob) listedJob {
	job := listedJob{JobRecord: record, since: later(record.Cursor, now)}
	if before != nil && before.Job == record.Job {
		job.trigger, job.next = before.trigger, before.after(job.since)
		return job
	}
	job.trigger, _ = scheduler.Trigger(record.Job) // the answers that show a job give the reason
	if job.trigger != nil {
		job.next = job.trigger.Next(job.since)
	}
	return job
}

// after returns the first tick after an instant, or zero if there is none.
func (j *listedJob) after(at time.Time) time.Time {
	switch {
	case j.trigger == nil:
		return time.Time{}
	case !at.Before(j.since) && (j.next.IsZero() || at.Before(j.next)):
		return j.next
	}
	return j.trigger.Next(at)
}

// Hasty returns a reader that takes about this long at most to read all jobs for an answer. If that
// is not enough, the answer is up to a minute old, or [ErrReading]; each further request continues
// the reading.
func (r *Reader) Hasty(patience time.Duration) *Reader {
	hasty := *r
	hasty.patience = patience
	return &hasty
}

// all returns all jobs, by name. They are read-only.
func (r *Reader) all(ctx context.Context) ([]listedJob, error) {
	return r.catalog.read(ctx, r.patience)
}
