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

	// A listing that took less is read for each answer. Any other is kept for this many times as
	// long as its reading took, and at most for catalogKeep.
	catalogFree   = 100 * time.Millisecond
	catalogFactor = 5
	catalogKeep   = 30 * time.Second

	// A reading that was left unfinished for longer begins anew: when a reader comes that waits for
	// its end, and when a hasty one comes.
	catalogLeft, catalogLeftHasty = 5 * time.Second, time.Minute

	catalogOld = time.Minute // how long after its end a hasty reader gets the last listing
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
//   - keeps a listing for a while if its reading took long;
//   - reads in steps, for whichever reader has come: for those that wait for the end, and for hasty
//     ones, which leave the rest to the next reader. So no reading needs a goroutine of its own,
//     and none is done twice.
type catalog struct {
	book  Book
	space Space
	turn  chan struct{}           // has an element while a reader does a step
	last  atomic.Pointer[listing] // the last complete one
	part  *listing                // the one that is being read; guarded by turn
}

// listing is one reading of all jobs.
type listing struct {
	jobs []listedJob

	names   []string // all of them, once scanned is true
	scanned bool
	scan    uint64 // where the scan of names continues
	read    int    // names of which the jobs were read

	now     time.Time // the server's, when it began
	began   time.Time
	stepped time.Time     // the end of its last step
	took    time.Duration // its steps, without what was between them
}

// listedJob is a job, with its trigger.
type listedJob struct {
	ledger.JobRecord
	at      time.Time          // when it was read, by the server's clock
	trigger *cronspec.Schedule // nil: it has none, or one that cannot be computed
	next    time.Time          // its first tick after at and its cursor; zero: there is none
}

func newCatalog(book Book, space Space) *catalog {
	return &catalog{book: book, space: space, turn: make(chan struct{}, 1)}
}

// fresh reports whether a listing is good for an answer to a reader that came at an instant.
func (l *listing) fresh(came time.Time) bool {
	switch {
	case l == nil:
		return false
	case l.began.After(came):
		return true
	}
	return l.took >= catalogFree && time.Since(l.began) < min((1+catalogFactor)*l.took, catalogKeep)
}

// all returns all jobs, by name. With a patience, it reads for about that long at most. If that is
// not enough, it returns the last listing, or [ErrReading] if there is none, or an old one.
func (c *catalog) all(ctx context.Context, patience time.Duration) (*listing, error) {
	left := catalogLeft
	if patience > 0 {
		left = catalogLeftHasty
	}
	for came := time.Now(); ; left = 0 {
		last := c.last.Load()
		if last.fresh(came) {
			return last, nil
		}
		progress, err := c.step(ctx, came, left)
		if err != nil {
			return nil, err
		}
		if progress == nil {
			return c.last.Load(), nil
		}
		if patience == 0 || time.Since(came) < patience {
			continue
		}
		if last == nil || time.Since(last.stepped) > catalogOld {
			return nil, progress
		}
		return last, nil
	}
}

// step reads some jobs for a reader that came at an instant. It returns nil if there is a listing
// for it, else how far the reading is. With left, a reading without a step for that long begins
// anew.
func (c *catalog) step(ctx context.Context, came time.Time, left time.Duration) (*ReadingError, error) {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-c.turn }()
	last := c.last.Load()
	if last.fresh(came) { // another reader has completed it
		return nil, nil
	}
	began := time.Now()
	if c.part == nil || left > 0 && began.Sub(c.part.stepped) > left {
		now, err := c.space.Now(ctx)
		if err != nil {
			return nil, err
		}
		c.part = &listing{now: now, began: began}
	}
	part := c.part
	if err := part.step(ctx, c.book, last); err != nil {
		return nil, err
	}
	part.stepped = time.Now()
	part.took += part.stepped.Sub(began)
	if part.scanned && part.read == len(part.names) {
		c.last.Store(part)
		c.part = nil
		return nil, nil
	}
	return &ReadingError{part.read, len(part.names)}, nil
}

// step reads the next names, or the next jobs once it has all names. last is the listing before.
func (l *listing) step(ctx context.Context, book Book, last *listing) error {
	if !l.scanned {
		names, next, err := book.ScanJobs(ctx, l.scan)
		if err != nil {
			return err
		}
		l.names, l.scan, l.scanned = append(l.names, names...), next, next == 0
		if l.scanned {
			slices.Sort(l.names)
			l.names = slices.Compact(l.names)
		}
		return nil
	}
	some := l.names[l.read:min(l.read+catalogStep, len(l.names))]
	at := l.now.Add(time.Since(l.began))
	records, err := book.JobsOf(ctx, some, last.definition)
	if err != nil {
		return err
	}
	for _, record := range records {
		l.jobs = append(l.jobs, newListed(record, at, last.find(record.Job.Name)))
	}
	l.read += len(some)
	return nil
}

// find returns a job of a listing, or nil.
func (l *listing) find(name string) *listedJob {
	if l == nil {
		return nil
	}
	at, found := l.from(name)
	if !found {
		return nil
	}
	return &l.jobs[at]
}

// from returns the index of the first job that is not before a name, and whether it has that name.
func (l *listing) from(name string) (at int, found bool) {
	return slices.BinarySearchFunc(l.jobs, name, func(job listedJob, name string) int { return strings.Compare(job.Job.Name, name) })
}

// definition returns the definition of a job in a listing if it has this hash, or nil.
func (l *listing) definition(name, hash string) *jobs.Job {
	if job := l.find(name); job != nil && job.Hash == hash {
		return job.Job
	}
	return nil
}

// newListed returns a job that was read at an instant. before is how it was listed before, or nil.
func newListed(record ledger.JobRecord, at time.Time, before *listedJob) listedJob {
	job := listedJob{JobRecord: record, at: at}
	if before != nil && before.Job == record.Job && before.trigger != nil {
		job.trigger, job.next = before.trigger, before.after(later(record.Cursor, at))
		return job
	}
	job.trigger, _ = scheduler.Trigger(record.Job) // the answers that show a job give the reason
	if job.trigger != nil {
		job.next = job.trigger.Next(later(record.Cursor, at))
	}
	return job
}

// after returns the first tick after an instant, or zero if there is none.
func (j *listedJob) after(at time.Time) time.Time {
	switch {
	case j.trigger == nil:
		return time.Time{}
	case !at.Before(later(j.Cursor, j.at)) && (j.next.IsZero() || at.Before(j.next)):
		return j.next
	}
	return j.trigger.Next(at)
}

// Hasty returns a reader that takes about this long at most to read all jobs for an answer. If that
// is not enough, the answer is that of a minute ago, or [ErrReading] if this process has none. Each
// further request continues the reading.
func (r *Reader) Hasty(patience time.Duration) *Reader {
	hasty := *r
	hasty.patience = patience
	return &hasty
}

// all returns all jobs. They are read-only.
func (r *Reader) all(ctx context.Context) (*listing, error) { return r.catalog.all(ctx, r.patience) }
