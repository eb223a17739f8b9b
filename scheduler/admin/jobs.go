package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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

// Noted returns the jobs to which one of [Notes] applies; with "", all jobs.
func Noted(jobs []Job, note string) ([]Job, error) {
	if note == "" {
		return jobs, nil
	}
	if !slices.Contains(Notes, note) {
		return nil, fmt.Errorf("%w: %q is not a note of jobs; the notes are: %s", ErrInvalid, note, strings.Join(Notes, ", "))
	}
	noted := []Job{}
	for i := range jobs {
		if slices.Contains(jobs[i].Notes(), note) {
			noted = append(noted, jobs[i])
		}
	}
	return noted, nil
}

// Jobs returns every job that a worker ever registered, by name. They lack their runs, which cost
// some commands for each job: see [Reader.WithRuns].
func (r *Reader) Jobs(ctx context.Context) ([]Job, error) {
	records, err := r.book.Jobs(ctx)
	if err != nil {
		return nil, err
	}
	return r.describe(ctx, records)
}

// Job returns one job.
func (r *Reader) Job(ctx context.Context, name string) (*Job, error) {
	record, err := r.book.Job(ctx, name)
	if err != nil {
		return nil, err
	}
	described, err := r.describe(ctx, []ledger.JobRecord{record})
	if err == nil {
		described, err = r.WithRuns(ctx, described)
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
	for i, record := range records {
		job := &described[i]
		*job = newJob(record, now)
		if r.reveals() {
			job.Args = record.Job.Args
		}
		job.QueuePaused = slices.Contains(paused, job.Queue)
	}
	return described, nil
}

// WithRuns returns the same jobs with their runs: how many are outstanding and running, and the
// last one that ended. It changes none of the given ones.
func (r *Reader) WithRuns(ctx context.Context, list []Job) ([]Job, error) {
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
			last, err := known.endedPager([]string{job.Name}, wasRun).next(ctx, 1, lastRunWithin)
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

func newJob(record ledger.JobRecord, now time.Time) Job {
	d := record.Job
	defined, trigger := newDefined(d)
	job := Job{
		Name: d.Name, Defined: defined, Definition: Text(record.Hash), Paused: Text(record.Paused), LastSuccess: Instant{record.LastSuccess},
		Drifted: record.Drifted, Carried: !record.Uncarried,
		Late: isLate(&record, now),
	}
	if d.Paused {
		job.Paused = "by its definition"
	}
	if d.Scheduled() {
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
// first.
func (r *Reader) Next(ctx context.Context, job string, n int) ([]NextTick, error) {
	if n < 1 {
		return nil, fmt.Errorf("%w: the next %d ticks", ErrInvalid, n)
	}
	var records []ledger.JobRecord
	if job == "" {
		var err error
		if records, err = r.book.Jobs(ctx); err != nil {
			return nil, err
		}
	} else {
		record, err := r.book.Job(ctx, job)
		if err != nil {
			return nil, err
		}
		if _, err := scheduler.Trigger(record.Job); err != nil {
			return nil, fmt.Errorf("job %s: %w", job, err)
		}
		records = append(records, record)
	}
	now, err := r.now(ctx)
	if err != nil {
		return nil, err
	}
	return nextTicks(records, now, n), nil
}

// nextTicks omits jobs with a trigger that this machine cannot compute; [Job] gives the reason for
// each.
func nextTicks(records []ledger.JobRecord, now time.Time, n int) []NextTick {
	ticks := []NextTick{}
	for _, record := range records {
		trigger, err := scheduler.Trigger(record.Job)
		if err != nil || trigger == nil {
			continue
		}
		tick := later(record.Cursor, now)
		for range n {
			if tick = trigger.Next(tick); tick.IsZero() {
				break
			}
			ticks = append(ticks, NextTick{Job: record.Job.Name, Tick: TickTime{tick}, In: Seconds(tick.Sub(now))})
		}
	}
	slices.SortFunc(ticks, func(a, b NextTick) int {
		return cmp.Or(a.Tick.Compare(b.Tick.Time), cmp.Compare(a.Job, b.Job))
	})
	return ticks
}
