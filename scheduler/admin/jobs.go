package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"lockstep/jobs"
	"lockstep/scheduler"
	"lockstep/scheduler/cronspec"
	"lockstep/scheduler/ledger"
)

// Notes are the remarks about a job that does not simply do its work: see [Job.Notes].
var Notes = []string{"late", "paused", "queue paused", "drifted", "no worker carries it"}

// Notes returns the elements of [Notes] that apply to a job.
func (j *Job) Notes() []string {
	var notes []string
	for i, is := range []bool{j.Late, j.Paused != "", j.QueuePaused, j.Drifted, !j.Carried} {
		if is {
			notes = append(notes, Notes[i])
		}
	}
	return notes
}

// checkNote refuses what is neither "" nor one of [Notes].
func checkNote(note string) error {
	if note != "" && !slices.Contains(Notes, note) {
		return fmt.Errorf("%w: %q is not a note of jobs; the notes are: %s", ErrInvalid, note, strings.Join(Notes, ", "))
	}
	return nil
}

// Jobs returns the jobs that a filter and one of [Notes], or "", select, by name, with their runs:
// at most filter.Limit of them, or, with 0, all.
func (r *Reader) Jobs(ctx context.Context, filter Filter, note string) ([]Job, error) {
	jobs, _, _, err := r.JobPage(ctx, filter, note, "")
	return jobs, err
}

// JobPage returns a page of [Reader.Jobs], and the cursor of the next page, "" after the last one.
// The cursor of the first page is "". known is how many jobs exist, whatever the filter is. Runs
// are read of the jobs on the page; a filter by the last run reads those of other jobs, too.
func (r *Reader) JobPage(ctx context.Context, filter Filter, note, cursor string) (page []Job, next string, known int, err error) {
	if err := checkNote(note); err != nil {
		return nil, "", 0, err
	}
	limit := cmp.Or(filter.Limit, math.MaxInt)
	all, now, err := r.listed(ctx, "")
	if err != nil {
		return nil, "", 0, err
	}
	paused, err := r.book.Paused(ctx)
	if err != nil {
		return nil, "", 0, err
	}
	from, _ := slices.BinarySearchFunc(all, cursor, func(job listedJob, name string) int { return strings.Compare(job.Job.Name, name) })
	page = []Job{}
	for from < len(all) && len(page) <= limit {
		some := []Job{} // that may be on the page
		for ; from < len(all) && len(some) < describedAtOnce; from++ {
			record := &all[from].JobRecord
			job := noted(record, paused, now)
			if job.Name != cursor && filter.mayBe(record.Job) && (note == "" || slices.Contains(job.Notes(), note)) {
				some = append(some, r.described(record, paused, now))
			}
		}
		if filter.NeedsRuns() {
			if some, err = r.withRuns(ctx, some); err != nil {
				return nil, "", 0, err
			}
		}
		if some, err = filter.Jobs(some); err != nil {
			return nil, "", 0, err
		}
		page = append(page, some...)
	}
	if len(page) > limit {
		page = page[:limit]
		next = page[limit-1].Name
	}
	if !filter.NeedsRuns() {
		page, err = r.withRuns(ctx, page)
	}
	return page, next, len(all), err
}

// Drifted returns the jobs of which workers carry different definitions, by name, without their
// runs, and at most this number.
func (r *Reader) Drifted(ctx context.Context, most int) ([]Job, error) {
	all, err := r.all(ctx)
	if err != nil {
		return nil, err
	}
	var drifted []ledger.JobRecord
	for i := range all {
		if all[i].Drifted && len(drifted) < most {
			drifted = append(drifted, all[i].JobRecord)
		}
	}
	return r.describe(ctx, drifted)
}

// Job returns one job.
func (r *Reader) Job(ctx context.Context, name string) (*Job, error) {
	record, err := r.book.Job(ctx, name)
	if err != nil {
		return nil, err
	}
	described, err := r.describe(ctx, []ledger.JobRecord{record})
	if err == nil {
		described, err = r.withRuns(ctx, described)
	}
	if err != nil {
		return nil, err
	}
	return &described[0], nil
}

// Definition returns the definition with which new runs of a job are made.
func (r *Reader) Definition(ctx context.Context, name string) (*jobs.Job, error) {
	record, err := r.book.Job(ctx, name)
	return record.Job, err
}

const (
	describedTogether = 8 // how many jobs' last runs are searched for at the same time
	// entries of a history that are read to find the last run among skipped and missed ticks
	lastRunWithin = 2000
	// How many jobs one command of them names.
	describedAtOnce = 500
)

// describe returns jobs without their runs.
func (r *Reader) describe(ctx context.Context, records []ledger.JobRecord) ([]Job, error) {
	now, err := r.now(ctx)
	if err != nil {
		return nil, err
	}
	paused, err := r.book.Paused(ctx)
	if err != nil {
		return nil, err
	}
	described := make([]Job, len(records))
	for i := range records {
		described[i] = r.described(&records[i], paused, now)
	}
	return described, nil
}

// described is newJob, with its secret args if this reader shows them.
func (r *Reader) described(record *ledger.JobRecord, paused []string, now time.Time) Job {
	job := newJob(record, paused, now)
	if r.reveals() {
		job.Args = record.Job.Args
	}
	return job
}

// withRuns returns the same jobs with their runs: how many are outstanding and running, and the
// last one that ended. It changes none of the given ones.
func (r *Reader) withRuns(ctx context.Context, list []Job) ([]Job, error) {
	running, err := r.book.CountRunning(ctx)
	if err != nil {
		return nil, err
	}
	complete := slices.Clone(list)
	for part := range slices.Chunk(complete, describedAtOnce) {
		for i := range part {
			part[i].Running = running[part[i].Name]
		}
		if err := r.addRuns(ctx, part); err != nil {
			return nil, err
		}
	}
	return complete, nil
}

// addRuns adds to some jobs their outstanding and their last runs.
func (r *Reader) addRuns(ctx context.Context, list []Job) error {
	names := make([]string, len(list))
	for i := range list {
		names[i] = list[i].Name
	}
	outstanding, err := r.book.CountOpen(ctx, names)
	if err != nil {
		return err
	}
	known, err := r.knowingJobs(ctx, names)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(describedTogether)
	for i := range list {
		job := &list[i]
		job.Outstanding = outstanding[job.Name]
		group.Go(func() error {
			last, err := known.endedPager(job.Name, wasRun).next(ctx, 1, lastRunWithin)
			if len(last) > 0 {
				run := newRun(last[0].record)
				job.LastRun = &run
			}
			return err
		})
	}
	return group.Wait()
}

// now returns the server's time.
func (r *Reader) now(ctx context.Context) (time.Time, error) { return r.space.Now(ctx) }

// noted returns no more of a job than its name and what [Job.Notes] needs.
func noted(record *ledger.JobRecord, paused []string, now time.Time) Job {
	job := Job{Name: record.Job.Name, Paused: Text(record.Paused), QueuePaused: slices.Contains(paused, record.Job.Queue),
		Drifted: record.Drifted, Carried: !record.Uncarried, Late: isLate(record, now)}
	if record.Job.Paused {
		job.Paused = "by its definition"
	}
	return job
}

// newJob returns a job without its runs.
func newJob(record *ledger.JobRecord, paused []string, now time.Time) Job {
	job := noted(record, paused, now)
	defined, trigger := newDefined(record.Job)
	job.Defined, job.Definition, job.LastSuccess = defined, Text(record.Hash), Instant{record.LastSuccess}
	if record.Job.Scheduled() {
		job.Cursor = Instant{record.Cursor}
		if trigger != nil {
			job.NextTick = TickTime{trigger.Next(later(record.Cursor, now))}
		}
	}
	return job
}

// newDefined returns what a definition says, without the values of its secret args, and its
// trigger; nil if it has none, or one that cannot be computed.
func newDefined(d *jobs.Job) (Defined, *cronspec.Schedule) {
	defined := Defined{
		Description: Text(d.Description), Schedule: Text(d.Schedule), Every: seconds(d.Every),
		Kind: jobs.KindCommand, Command: d.Command, Handler: d.Handler, Args: d.HideArgs(d.Args), Queue: d.Queue, Locks: locksOf(d), Timeout: seconds(d.Timeout),
		Retry: Retry{Max: d.Retry.Max, Backoff: d.Retry.Backoff, Initial: Seconds(d.Retry.Initial),
			MaxDelay: Seconds(d.Retry.MaxDelay)},
		Overlap: d.Overlap, MaxQueued: d.MaxQueued, OnMissed: d.OnMissed, OnCrash: d.OnCrash, MaxCrashes: d.MaxCrashes,
		StartDeadline: seconds(d.StartDeadline), Jitter: seconds(d.Jitter), MaxSilence: seconds(d.MaxSilence), Notify: d.Notify,
	}
	if kind := d.Kind(); kind != nil {
		defined.Kind, defined.Work = kind.Name, kind.Line(d)
	}
	if d.HTTP != nil {
		defined.HTTP = &Call{Method: d.HTTP.Method, URL: jobs.SafeURL(d.HTTP.URL)}
	}
	if err := d.CheckKeys(); err != nil {
		defined.Problem = Text(err.Error())
	}
	if !d.Scheduled() {
		return defined, nil
	}
	defined.Timezone = Text(d.Timezone)
	trigger, err := scheduler.Trigger(d)
	if err != nil {
		defined.Problem = Text(err.Error())
		return defined, nil
	}
	defined.Words = Text(trigger.Words())
	return defined, trigger
}

// runDefinition returns the definition that a run was made with, or nil if Redis does not have it
// (any more): see [ledger.Ledger.Made].
func (r *Reader) runDefinition(ctx context.Context, record *ledger.Record) (*RunDefinition, error) {
	d, err := r.book.Made(ctx, record)
	switch {
	case errors.Is(err, ledger.ErrUnreadable):
		return &RunDefinition{Defined: Defined{Locks: []string{}, Problem: Text(err.Error())}}, nil
	case errors.Is(err, ledger.ErrUnknown), errors.Is(err, ledger.ErrNotKept):
		return nil, nil
	case err != nil:
		return nil, err
	}
	hash, err := ledger.Hash(d)
	if err != nil {
		return nil, err
	}
	of := &RunDefinition{Hash: Text(hash)}
	of.Defined, _ = newDefined(d)
	active, err := r.book.Job(ctx, record.Job)
	switch {
	case err == nil:
		of.Active = active.Hash == hash
		of.Args = active.Job.HideArgs(of.Args) // which of them are secret may have changed
	case !errors.Is(err, ledger.ErrUnknown):
		return nil, err
	}
	if r.reveals() {
		of.Args = d.Args
	}
	return of, nil
}

// locksOf returns what each attempt holds besides its run's own resource: the keys as written in
// the config, and the job's own lock.
func locksOf(d *jobs.Job) []string {
	bare := *d
	bare.Lock = jobs.Lock{} // its placeholders need a run's arguments
	id := jobs.RequestRunID(d.Name, "any")
	items, err := bare.Resources(id, nil)
	if err != nil {
		items = nil // the only possible error is a name that no job can have
	}
	names := append([]string{}, d.Lock.Exclusive...) // never null
	names = append(names, d.Lock.Shared...)
	names = slices.AppendSeq(names, maps.Keys(d.Lock.Permits))
	for _, item := range items {
		if name := item.Name; name != jobs.RunResource(id) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// later returns the later of a cursor and now. Ticks between the two are due, not next: a worker is
// about to decide them, or no worker is up.
func later(cursor, now time.Time) time.Time {
	if cursor.After(now) {
		return cursor
	}
	return now
}

// Next returns the next n ticks of a job, or, with "", of each job that has a trigger, the soonest
// first. It omits jobs with a trigger that this machine cannot compute; [Job] gives the reason.
func (r *Reader) Next(ctx context.Context, job string, n int) ([]NextTick, error) {
	if n < 1 {
		return nil, fmt.Errorf("%w: the next %d ticks", ErrInvalid, n)
	}
	all, now, err := r.listed(ctx, job)
	if err != nil {
		return nil, err
	}
	if job != "" {
		if _, err := scheduler.Trigger(all[0].Job); err != nil {
			return nil, fmt.Errorf("job %s: %w", job, err)
		}
	}
	ticks := []NextTick{}
	for i := range all {
		tick := later(all[i].Cursor, now)
		for range n {
			if tick = all[i].after(tick); tick.IsZero() {
				break
			}
			ticks = append(ticks, nextTick(&all[i], tick, now))
		}
	}
	slices.SortFunc(ticks, func(a, b NextTick) int {
		return cmp.Or(a.Tick.Compare(b.Tick.Time), cmp.Compare(a.Job, b.Job))
	})
	return ticks, nil
}
