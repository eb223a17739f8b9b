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
	"lockstep/scheduler/ledger"
)

// Notes are the remarks about a job that does not simply do its work: see [Job.Notes].
var Notes = []string{"late", "paused", "queue paused", "drifted", "no worker carries it", "no worker serves its queue"}

// Notes returns the elements of [Notes] that apply to a job.
func (j *Job) Notes() []string {
	var notes []string
	for i, is := range []bool{j.Late, j.Paused != "", j.QueuePaused, j.Drifted, !j.Carried, !j.QueueServed} {
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
	if _, err := filter.Jobs(nil); err != nil {
		return nil, "", 0, err
	}
	limit := cmp.Or(filter.Limit, math.MaxInt)
	all, err := r.all(ctx)
	if err != nil {
		return nil, "", 0, err
	}
	c, err := r.conditions(ctx)
	if err != nil {
		return nil, "", 0, err
	}
	running, err := r.book.CountRunning(ctx)
	if err != nil {
		return nil, "", 0, err
	}
	from, _ := all.from(cursor)
	page = []Job{}
	for from < len(all.jobs) && len(page) <= limit {
		some := []Job{} // that may be on the page
		for ; from < len(all.jobs) && len(some) < describedAtOnce; from++ {
			job := &all.jobs[from]
			remarks := noted(job, c)
			if job.Job.Name != cursor && filter.mayBe(job.Job) && (note == "" || slices.Contains(remarks.Notes(), note)) {
				some = append(some, r.described(job, c))
			}
		}
		if filter.NeedsRuns() {
			if some, err = r.withRuns(ctx, some, running); err != nil {
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
	if all.took >= catalogFree {
		if page, err = r.reread(ctx, page, c, all); err != nil {
			return nil, "", 0, err
		}
	}
	if !filter.NeedsRuns() {
		page, err = r.withRuns(ctx, page, running)
	}
	return page, next, len(all.jobs), err
}

// reread returns jobs of a listing as they are now: a person may just have paused one of them.
// Their runs are as before.
func (r *Reader) reread(ctx context.Context, page []Job, c *conditions, all *listing) ([]Job, error) {
	names := make([]string, len(page))
	for i := range page {
		names[i] = page[i].Name
	}
	now, err := r.now(ctx)
	if err != nil {
		return nil, err
	}
	records, err := r.book.JobsOf(ctx, names, all.definition)
	if err != nil {
		return nil, err
	}
	again := make([]Job, 0, len(records))
	at := 0
	for _, record := range records {
		for page[at].Name != record.Job.Name { // it was removed
			at++
		}
		listed := newListed(record, now, all.find(record.Job.Name))
		job := r.described(&listed, c)
		job.Running, job.Outstanding, job.LastRun = page[at].Running, page[at].Outstanding, page[at].LastRun
		again = append(again, job)
	}
	return again, nil
}

// Drifted returns the jobs of which workers carry different definitions, by name, without their
// runs, and at most this number.
func (r *Reader) Drifted(ctx context.Context, most int) ([]Job, error) {
	all, err := r.all(ctx)
	if err != nil {
		return nil, err
	}
	c, err := r.conditions(ctx)
	if err != nil {
		return nil, err
	}
	var drifted []Job
	for i := range all.jobs {
		if all.jobs[i].Drifted && len(drifted) < most {
			drifted = append(drifted, r.described(&all.jobs[i], c))
		}
	}
	return drifted, nil
}

// Job returns one job.
func (r *Reader) Job(ctx context.Context, name string) (*Job, error) {
	list, _, err := r.listed(ctx, name)
	if err != nil {
		return nil, err
	}
	c, err := r.conditions(ctx)
	if err != nil {
		return nil, err
	}
	running, err := r.book.CountRunning(ctx)
	if err != nil {
		return nil, err
	}
	described, err := r.withRuns(ctx, []Job{r.described(&list[0], c)}, running)
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

// described returns a job without its runs, with its secret args if this reader shows them.
func (r *Reader) described(job *listedJob, c *conditions) Job {
	described := newJob(job, c)
	if r.reveals() {
		described.Args = job.Job.Args
	}
	return described
}

// withRuns returns the same jobs with their runs: how many are outstanding and running, and the
// last one that ended. It changes none of the given ones. running has the running runs by job.
func (r *Reader) withRuns(ctx context.Context, list []Job, running map[string]int) ([]Job, error) {
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

// noted returns no more of a job than its name and what [Job.Notes] needs. It was late or not when
// it was read: its last success is not known for later.
func noted(job *listedJob, c *conditions) Job {
	remarks := Job{Name: job.Job.Name, Paused: Text(job.Paused), QueuePaused: slices.Contains(c.paused, job.Job.Queue),
		QueueServed: c.served[job.Job.Queue], Drifted: job.Drifted, Carried: !job.Uncarried, Late: isLate(&job.JobRecord, job.at)}
	if job.Job.Paused {
		remarks.Paused = "by its definition"
	}
	return remarks
}

// newJob returns a job without its runs.
func newJob(of *listedJob, c *conditions) Job {
	job := noted(of, c)
	job.Defined, job.Definition, job.LastSuccess = newDefined(of.Job), Text(of.Hash), Instant{of.LastSuccess}
	if of.Job.Scheduled() {
		job.Cursor, job.NextTick = Instant{of.Cursor}, TickTime{of.after(later(of.Cursor, of.at))}
	}
	return job
}

// newDefined returns what a definition says, without the values of its secret args.
func newDefined(d *jobs.Job) Defined {
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
		return defined
	}
	defined.Timezone = Text(d.Timezone)
	trigger, err := scheduler.Trigger(d)
	if err != nil {
		defined.Problem = Text(err.Error())
		return defined
	}
	defined.Words = Text(trigger.Words())
	return defined
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
	of.Defined = newDefined(d)
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
