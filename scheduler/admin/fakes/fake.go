package fakes

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/worker"
)

// Fake is a ledger and a lock space in memory, for conditions that are hard to produce with the
// real ones: many jobs, exact times, outages. Its histories have the order of the real ones.
type Fake struct {
	Open         []*ledger.Record            // outstanding runs
	Ended        map[string][]*ledger.Record // histories, by job
	Outputs      map[jobs.RunID]string
	Follows      map[jobs.RunID]*ledger.Followed
	Registered   []ledger.JobRecord
	Done         []ledger.ActRecord // the last first
	PausedQueues []string
	AheadOf      map[jobs.RunID]int
	Needs        map[jobs.RunID]ledger.Need
	// Owned are the definitions that runs were made with. An outstanding run without one has that
	// of Registered; of a finished one, none is kept.
	Owned    map[jobs.RunID]*jobs.Job
	SetAside []ledger.Aside
	Queues   []ledger.DueQueue
	// Offspring are the runs that were made from within runs.
	Offspring map[jobs.RunID]ledger.Children
	Flowing   map[string]ledger.Flow // of queues, by name
	Counts    ledger.Totals
	Mailboxes []ledger.MailOf
	OnDuty    locks.SessionID // the worker on duty
	Grace     time.Duration
	Listing   locks.Listing
	Live      []locks.SessionRecord // sessions

	JobsTake  time.Duration // how long each read of jobs takes
	Meanwhile func()        // called after each page of EndedJobs

	ReadCount    atomic.Int64 // reads of everything
	HistoryCount atomic.Int64 // reads of parts of histories
	RecordCount  atomic.Int64 // records of histories that were read

	Ends      []space.Entry // what is kept, the last end first
	KeptSince time.Time     // zero: nothing is kept

	broken atomic.Pointer[error] // the error of each read, if set
}

// Past returns the elements of Ends, in pages of two.
func (f *Fake) Past(_ context.Context, from string, since time.Time) (*space.Past, error) {
	page := new(space.Past)
	begun := from == ""
	for i := range f.Ends {
		e := f.Ends[i]
		switch {
		case !begun:
			begun = e.Position == from
		case e.To.Before(since):
		case len(page.Entries) == 2:
			page.Next = page.Entries[1].Position
			return page, f.read()
		default:
			page.Entries, page.Read = append(page.Entries, e), page.Read+1
		}
	}
	return page, f.read()
}

// PastSince returns KeptSince.
func (f *Fake) PastSince(context.Context) (time.Time, error) { return f.KeptSince, f.read() }

func (f *Fake) read() error {
	f.ReadCount.Add(1)
	if err := f.broken.Load(); err != nil {
		return *err
	}
	return nil
}

// Fail makes each read return an error with this text.
func (f *Fake) Fail(text string) { f.FailWith(errors.New(text)) }

// FailWith makes each read return an error.
func (f *Fake) FailWith(err error) { f.broken.Store(&err) }

// Recover ends the effect of [Fake.Fail].
func (f *Fake) Recover() { f.broken.Store(nil) }

// Outstanding returns the elements of Open, or those of a job.
func (f *Fake) Outstanding(_ context.Context, job string, limit int) ([]*ledger.Record, error) {
	records := slices.Clone(f.Open)
	if job != "" {
		records = slices.DeleteFunc(records, func(r *ledger.Record) bool { return r.Job != job })
	}
	if limit > 0 {
		records = records[:min(limit, len(records))]
	}
	return records, f.read()
}

// openPlace is a run's entry in an index, as the scripts of the ledger write it.
func openPlace(index ledger.Index, r *ledger.Record) string {
	switch index {
	case ledger.IndexQueue:
		return fmt.Sprintf("%s\x00%016d\x00%s", r.Queue, max(0, r.DueSince.UnixMilli()), r.ID)
	case ledger.IndexWorker:
		return fmt.Sprintf("%s\x00%s", r.Last().Worker, r.ID)
	case ledger.IndexTime:
		return fmt.Sprintf("%016d\x00%s", max(0, r.At.UnixMilli()), r.ID)
	}
	return fmt.Sprintf("%s\x00%016d\x00%s", r.Job, max(0, r.Tick.UnixMilli()), r.ID)
}

// OpenEntries returns the entries of an index, as the ledger's own indexes order them.
func (f *Fake) OpenEntries(_ context.Context, index ledger.Index, job, after string, limit int) ([]ledger.OpenEntry, error) {
	compare := func(a, b string) int {
		if index != ledger.IndexJob {
			return strings.Compare(a, b)
		}
		jobA, restA, _ := strings.Cut(a, "\x00")
		jobB, restB, _ := strings.Cut(b, "\x00")
		return cmp.Or(strings.Compare(jobA, jobB), strings.Compare(restB, restA))
	}
	var entries []ledger.OpenEntry
	for _, record := range f.Open {
		in := index == record.State.Facts().Index
		if index == ledger.IndexJob {
			in = job == "" || record.Job == job
		}
		if in {
			if place := openPlace(index, record); after == "" || compare(place, after) > 0 {
				entries = append(entries, ledger.OpenEntry{Run: record.ID, Position: place})
			}
		}
	}
	slices.SortFunc(entries, func(a, b ledger.OpenEntry) int { return compare(a.Position, b.Position) })
	return entries[:min(limit, len(entries))], f.read()
}

// OpenRecords returns the elements of Open with these ids, nil for each other.
func (f *Fake) OpenRecords(_ context.Context, ids []jobs.RunID) ([]*ledger.Record, error) {
	records := make([]*ledger.Record, len(ids))
	for i, id := range ids {
		if at := slices.IndexFunc(f.Open, func(r *ledger.Record) bool { return r.ID == id }); at >= 0 {
			records[i] = f.Open[at]
		}
	}
	return records, f.read()
}

// CountOpen counts the elements of Open by job.
func (f *Fake) CountOpen(_ context.Context, names []string) (map[string]int, error) {
	counts := make(map[string]int)
	for _, record := range f.Open {
		if slices.Contains(names, record.Job) {
			counts[record.Job]++
		}
	}
	return counts, f.read()
}

// CountAllOpen returns the number of the elements of Open.
func (f *Fake) CountAllOpen(context.Context) (int, error) { return len(f.Open), f.read() }

// GraceLeft returns Grace.
func (f *Fake) GraceLeft(context.Context) (time.Duration, error) { return f.Grace, f.read() }

// Totals returns Counts.
func (f *Fake) Totals(context.Context) (*ledger.Totals, error) { return &f.Counts, f.read() }

// Mail returns Mailboxes.
func (f *Fake) Mail(context.Context, []string) ([]ledger.MailOf, error) { return f.Mailboxes, f.read() }

// Duty returns OnDuty.
func (f *Fake) Duty(context.Context) (locks.SessionID, error) { return f.OnDuty, f.read() }

// CountRunning counts the running elements of Open by job.
func (f *Fake) CountRunning(context.Context) (map[string]int, error) {
	counts := make(map[string]int)
	for _, record := range f.Open {
		if record.State == ledger.StateRunning {
			counts[record.Job]++
		}
	}
	return counts, f.read()
}

// ended returns a history in its order.
func (f *Fake) ended(job string) []*ledger.Record {
	records := slices.Clone(f.Ended[job])
	slices.SortFunc(records, func(a, b *ledger.Record) int {
		return cmp.Or(b.Finished.Compare(a.Finished), cmp.Compare(b.ID, a.ID))
	})
	return records
}

// EndedJobs returns the jobs with histories, two at a time, the one with the last end first, and
// before them those that have ended runs since the first page. Then it calls Meanwhile.
func (f *Fake) EndedJobs(_ context.Context, place string, most int) (page []ledger.EndedJob, next string, err error) {
	var all []ledger.EndedJob
	for job := range f.Ended {
		if history := f.ended(job); len(history) > 0 {
			all = append(all, ledger.EndedJob{Job: job, At: history[0].Finished})
		}
	}
	slices.SortFunc(all, func(a, b ledger.EndedJob) int { return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Job, b.Job)) })
	var until, start int64 // ms
	var last string
	if place != "" {
		if _, err := fmt.Sscan(place, &until, &last, &start); err != nil {
			return nil, "", err
		}
	} else if len(all) > 0 {
		start = all[0].At.UnixMilli()
	}
	n := 0
	for _, job := range all {
		switch at := job.At.UnixMilli(); {
		case place != "" && at > start:
			page = append(page, job)
		case place != "" && (at > until || at == until && job.Job <= last):
		case n == min(most, 2):
			next = fmt.Sprint(until, " ", last, " ", start)
		default:
			page = append(page, job)
			until, last, n = at, job.Job, n+1
		}
	}
	if f.Meanwhile != nil {
		f.Meanwhile()
	}
	return page, next, f.read()
}

// EndedEntries returns parts of histories.
func (f *Fake) EndedEntries(_ context.Context, pages []ledger.EndedPage) ([][]ledger.EndedEntry, error) {
	f.HistoryCount.Add(int64(len(pages)))
	parts := make([][]ledger.EndedEntry, len(pages))
	for i, p := range pages {
		for _, record := range f.ended(p.Job) {
			if p.Until.IsZero() || !record.Finished.After(p.Until) {
				parts[i] = append(parts[i], ledger.EndedEntry{Job: p.Job, Run: record.ID, At: record.Finished})
			}
		}
		parts[i] = parts[i][min(p.Skip, len(parts[i])):]
		parts[i] = parts[i][:min(p.Most, len(parts[i]))]
	}
	return parts, f.read()
}

// EndedRecords returns the records of these entries.
func (f *Fake) EndedRecords(_ context.Context, entries []ledger.EndedEntry) ([]*ledger.Record, error) {
	f.RecordCount.Add(int64(len(entries)))
	records := make([]*ledger.Record, len(entries))
	for i, entry := range entries {
		history := f.Ended[entry.Job]
		if at := slices.IndexFunc(history, func(r *ledger.Record) bool { return r.ID == entry.Run }); at >= 0 {
			records[i] = history[at]
		}
	}
	return records, f.read()
}

// CountEnded counts the records of a history since an instant.
func (f *Fake) CountEnded(_ context.Context, job string, since time.Time) (n int, err error) {
	for _, record := range f.Ended[job] {
		if !record.Finished.Before(since) {
			n++
		}
	}
	return n, f.read()
}

// Find returns a run, outstanding or ended, and its output.
func (f *Fake) Find(_ context.Context, id jobs.RunID) (*ledger.Record, string, error) {
	if err := f.read(); err != nil {
		return nil, "", err
	}
	for _, record := range slices.Concat(f.Open, f.Ended[id.Job()]) {
		if record.ID == id {
			return record, f.Outputs[id], nil
		}
	}
	return nil, "", fmt.Errorf("run %s: %w", id, ledger.ErrUnknown)
}

// FindRecord returns a run.
func (f *Fake) FindRecord(ctx context.Context, id jobs.RunID) (*ledger.Record, error) {
	record, _, err := f.Find(ctx, id)
	return record, err
}

// FindOutput returns a run and its output, which is that of its last attempt.
func (f *Fake) FindOutput(ctx context.Context, id jobs.RunID, attempt int) (*ledger.Record, ledger.Output, error) {
	record, text, err := f.Find(ctx, id)
	if err != nil || text == "" || record.Last() == nil || attempt != 0 && attempt != record.Last().Number {
		return record, ledger.Output{}, err
	}
	return record, ledger.Output{Attempt: record.Last().Number, Text: text}, nil
}

// Follow returns an element of Follows, or else what is known from the record of a run.
func (f *Fake) Follow(ctx context.Context, id jobs.RunID, _ int64) (*ledger.Followed, error) {
	record, _, err := f.Find(ctx, id)
	if err != nil {
		return nil, err
	}
	if followed := f.Follows[id]; followed != nil {
		return followed, nil
	}
	followed := &ledger.Followed{State: record.State}
	if last := record.Last(); last != nil {
		followed.Attempt = last.Number
		if last.Finished.IsZero() {
			followed.Worker = last.Worker
		}
	}
	return followed, nil
}

// ScanJobs returns the names of Registered.
func (f *Fake) ScanJobs(context.Context, uint64) (names []string, next uint64, err error) {
	for _, record := range f.Registered {
		names = append(names, record.Job.Name)
	}
	return names, 0, f.read()
}

// JobsOf returns elements of Registered.
func (f *Fake) JobsOf(ctx context.Context, names []string, known func(job, hash string) *jobs.Job) ([]ledger.JobRecord, error) {
	if f.JobsTake > 0 {
		select {
		case <-time.After(f.JobsTake):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	named := make(map[string]ledger.JobRecord, len(f.Registered))
	for _, record := range f.Registered {
		named[record.Job.Name] = record
	}
	var records []ledger.JobRecord
	for _, name := range names {
		if record, is := named[name]; is {
			if job := known(name, record.Hash); job != nil && record.Hash != "" {
				record.Job = job
			}
			records = append(records, record)
		}
	}
	return records, f.read()
}

// Job returns an element of Registered.
func (f *Fake) Job(_ context.Context, name string) (ledger.JobRecord, error) {
	if err := f.read(); err != nil {
		return ledger.JobRecord{}, err
	}
	for _, record := range f.Registered {
		if record.Job.Name == name {
			return record, nil
		}
	}
	return ledger.JobRecord{}, fmt.Errorf("job %s: %w", name, ledger.ErrUnknown)
}

// Read returns Listing, with an exclusive item for each name.
func (f *Fake) Read(context.Context, ...locks.SessionID) (*locks.Listing, error) {
	listing := locks.Listing{At: f.Listing.At}
	items := func(names []string) (items []locks.Item) {
		for _, name := range names {
			items = append(items, locks.Item{Name: name, Mode: locks.ModeExclusive})
		}
		return items
	}
	for _, hold := range f.Listing.Holds {
		hold.Items = items(hold.Names)
		listing.Holds = append(listing.Holds, hold)
	}
	for _, wait := range f.Listing.Waits {
		wait.Items = items(wait.Names)
		listing.Waits = append(listing.Waits, wait)
	}
	return &listing, f.read()
}

// Sessions returns Live.
func (f *Fake) Sessions(context.Context) ([]locks.SessionRecord, time.Time, error) {
	return f.Live, f.Listing.At, f.read()
}

// Now returns the time of Listing.
func (f *Fake) Now(context.Context) (time.Time, error) { return f.Listing.At, f.read() }

// Acts returns the acts of Done before an id.
func (f *Fake) Acts(_ context.Context, before string, limit int) ([]ledger.ActRecord, error) {
	acts := slices.Clone(f.Done)
	if before != "" {
		acts = slices.DeleteFunc(acts, func(a ledger.ActRecord) bool { return a.ID >= before })
	}
	if limit > 0 {
		acts = acts[:min(limit, len(acts))]
	}
	return acts, f.read()
}

// Paused returns PausedQueues.
func (f *Fake) Paused(context.Context) ([]string, error) { return f.PausedQueues, f.read() }

// PausedSince returns an hour before the time of Listing for each queue.
func (f *Fake) PausedSince(_ context.Context, queues []string) (map[string]time.Time, error) {
	since := make(map[string]time.Time)
	for _, queue := range queues {
		since[queue] = f.Listing.At.Add(-time.Hour)
	}
	return since, f.read()
}

// Ahead returns an element of AheadOf.
func (f *Fake) Ahead(_ context.Context, record *ledger.Record) (int, error) {
	return f.AheadOf[record.ID], f.read()
}

// Definition returns an element of Owned, or the definition of a run's job.
func (f *Fake) Definition(ctx context.Context, id jobs.RunID) (*jobs.Job, error) {
	if job := f.Owned[id]; job != nil {
		return job, f.read()
	}
	record, err := f.Job(ctx, id.Job())
	return record.Job, err
}

// Definitions returns what [Fake.Definition] returns for each run.
func (f *Fake) Definitions(ctx context.Context, ids []jobs.RunID) []ledger.Definition {
	all := make([]ledger.Definition, len(ids))
	for i, id := range ids {
		all[i].Job, all[i].Err = f.Definition(ctx, id)
	}
	return all
}

// Made returns an element of Owned, or the definition of an outstanding run's job.
func (f *Fake) Made(ctx context.Context, record *ledger.Record) (*jobs.Job, error) {
	if record.State.Final() && f.Owned[record.ID] == nil {
		return nil, ledger.ErrNotKept
	}
	return f.Definition(ctx, record.ID)
}

// Children returns an element of Offspring.
func (f *Fake) Children(_ context.Context, record *ledger.Record) (ledger.Children, error) {
	return f.Offspring[record.ID], f.read()
}

// Flows returns Flowing.
func (f *Fake) Flows(context.Context, []string) (map[string]ledger.Flow, error) {
	return f.Flowing, f.read()
}

// NeedOf returns an element of Needs.
func (f *Fake) NeedOf(_ context.Context, record *ledger.Record) (ledger.Need, error) {
	return f.Needs[record.ID], f.read()
}

// Asides returns SetAside.
func (f *Fake) Asides(context.Context) ([]ledger.Aside, error) { return f.SetAside, f.read() }

// DueQueues returns Queues, with so many of the oldest records of each.
func (f *Fake) DueQueues(_ context.Context, queues, records int) ([]ledger.DueQueue, error) {
	due := slices.Clone(f.Queues[:min(len(f.Queues), queues)])
	for i := range due {
		due[i].Oldest = due[i].Oldest[:min(len(due[i].Oldest), records)]
	}
	return due, f.read()
}

// ActiveJobs returns the definitions in Registered.
func (f *Fake) ActiveJobs(_ context.Context, names []string) (map[string]*jobs.Job, error) {
	active := make(map[string]*jobs.Job)
	for _, record := range f.Registered {
		if slices.Contains(names, record.Job.Name) {
			active[record.Job.Name] = record.Job
		}
	}
	return active, f.read()
}

// Permits knows no permits. redis_test.go tests the real ones.
func (f *Fake) Permits(_ context.Context, names ...string) (map[string]space.PermitRecord, error) {
	if len(names) == 0 {
		return nil, nil
	}
	return nil, f.read()
}

// Noon is the time of [Fleet] and [Crew].
var Noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// The cards of two workers of [Fleet].
const (
	Web1Card = `{"host":"web-1","pid":4711,"version":"1.0.0","config":"9f2c1e","state":"ready","slots":8,` +
		`"queues":{"critical":6,"default":3},"started_at":"2026-11-21T09:00:00Z"}`
	Web2Card = `{"host":"web-2","pid":4712,"version":"1.0.0","config":"9f2c1e","state":"draining","slots":2,` +
		`"queues":{"default":1},"started_at":"2026-11-21T09:00:00.5Z","admin":"127.0.0.1:9621"}`
)

// Fleet returns a fake with an example of everything: two workers, a third without a lease, a shell
// that holds a lock, two running runs, two waiting ones, and a history.
func Fleet() *Fake {
	const run1, run2 = "settle-bills#01K9B7ZK3M5W7QF", "nightly-backup@2026-11-21T01:00:00Z"
	f := &Fake{Outputs: map[jobs.RunID]string{"nightly-backup@2026-11-20T01:00:00Z": "dumped\n"}}
	f.Registered = []ledger.JobRecord{
		{Job: &jobs.Job{
			Name: "nightly-backup", Description: "Dump the shop database", Schedule: "0 2 * * *", Timezone: "Europe/Berlin",
			Command: []string{"pg_dump", "shop"}, Queue: "default", Timeout: 2 * time.Hour, Overlap: jobs.OverlapSkip,
			OnMissed: jobs.MissedLast, OnCrash: jobs.CrashRerun, MaxCrashes: 3, MaxQueued: 10,
			Retry: jobs.Retry{Max: 3, Backoff: jobs.BackoffExponential, Initial: 5 * time.Second, MaxDelay: 5 * time.Minute},
		}, Cursor: Noon.Add(-11 * time.Hour)},
		{Job: &jobs.Job{
			Name: "settle-bills", Handler: "bills.settle", Queue: "critical",
			Lock: jobs.Lock{Exclusive: []string{"bill:{bill_ids[*]}"}}, Overlap: jobs.OverlapSkip, OnMissed: jobs.MissedLast,
			OnCrash: jobs.CrashRerun, MaxCrashes: 3, MaxQueued: 10,
		}, Cursor: Noon.Add(-time.Hour)},
		{Job: &jobs.Job{
			Name: "warm-cache", Every: 15 * time.Minute, Queue: "default",
			HTTP: &jobs.HTTP{Method: "POST", URL: "https://me:secret@shop.internal/warm", Headers: map[string]string{"Authorization": "Bearer hush"}},
		}, Cursor: Noon},
	}
	f.Open = []*ledger.Record{
		{
			ID: run2, Job: "nightly-backup", Queue: "default", Trigger: ledger.TriggerSchedule, State: ledger.StateRunning,
			Tick: Noon.Add(-11 * time.Hour), Created: Noon.Add(-11*time.Hour + 31*time.Millisecond), By: "web-1.x7k2m9qa",
			Started: Noon.Add(-182 * time.Second), Args: []byte("null"), Crashes: 1,
			Attempts: []ledger.AttemptRecord{
				{Number: 1, Worker: "web-9.aaaaaaaa", Token: 1795222700000001, Started: Noon.Add(-time.Hour),
					Finished: Noon.Add(-50 * time.Minute), Outcome: "crashed", Error: "the worker web-9.aaaaaaaa ended or lost its lease"},
				{Number: 2, Worker: "web-1.x7k2m9qa", Token: 1795222800123456, Hold: "web-1.x7k2m9qa.3", Started: Noon.Add(-182 * time.Second)},
			},
		},
		{
			ID: run1, Job: "settle-bills", Queue: "critical", Trigger: ledger.TriggerEnqueue, State: ledger.StateRunning,
			Created: Noon.Add(-5 * time.Second), Started: Noon.Add(-4 * time.Second), Args: []byte(`{"bill_ids":[1001,1002]}`),
			Attempts: []ledger.AttemptRecord{{Number: 1, Worker: "web-2.p91qd3f7", Token: 1795222978000042,
				Hold: "web-2.p91qd3f7.1", Started: Noon.Add(-4 * time.Second)}},
		},
		{
			ID: "settle-bills#second", Job: "settle-bills", Queue: "critical", Trigger: ledger.TriggerHand, State: ledger.StateWaiting,
			Created: Noon.Add(-2 * time.Second), Args: []byte(`{"bill_ids":[1001]}`),
		},
		{
			ID: "settle-bills#third", Job: "settle-bills", Queue: "critical", Trigger: ledger.TriggerEnqueue, State: ledger.StateRetrying,
			Created: Noon.Add(-time.Minute), At: Noon.Add(5 * time.Second), Args: []byte("null"), Fails: 1,
			Attempts: []ledger.AttemptRecord{{Number: 1, Worker: "web-1.x7k2m9qa", Token: 1795222900000001,
				Started: Noon.Add(-time.Minute), Finished: Noon.Add(-59 * time.Second), Outcome: "failed", Error: "no <b>bank</b> today"}},
		},
	}
	ended := func(day, hour int, state ledger.State, reason string) *ledger.Record {
		tick := time.Date(2026, 11, day, hour, 0, 0, 0, time.UTC)
		r := &ledger.Record{
			ID: jobs.TickRunID("nightly-backup", tick), Job: "nightly-backup", Queue: "default", Trigger: ledger.TriggerSchedule,
			Tick: tick, State: state, Reason: reason, Created: tick.Add(20 * time.Millisecond), By: "web-1.x7k2m9qa",
			Finished: tick.Add(20 * time.Millisecond), Args: []byte("null"),
		}
		if state == ledger.StateSucceeded || state == ledger.StateFailed {
			r.Started, r.Finished = tick.Add(50*time.Millisecond), tick.Add(41*time.Minute)
			r.Attempts = []ledger.AttemptRecord{{Number: 1, Worker: "web-1.x7k2m9qa", Token: 1795000000000001, Started: r.Started,
				Finished: r.Finished, Outcome: string(state)}}
		}
		return r
	}
	f.Ended = map[string][]*ledger.Record{"nightly-backup": {
		ended(18, 1, ledger.StateFailed, ""),
		ended(19, 1, ledger.StateSkipped, "overlap: skip; nightly-backup@2026-11-18T01:00:00Z is running"),
		ended(20, 1, ledger.StateSucceeded, ""),
		ended(17, 1, ledger.StateMissed, "no worker was up (on_missed: last)"),
	}}
	f.Live = []locks.SessionRecord{
		{ID: "web-2.p91qd3f7", Card: []byte(Web2Card), LeaseLeft: 13900 * time.Millisecond},
		{ID: "web-1.x7k2m9qa", Card: []byte(Web1Card), LeaseLeft: 12 * time.Second},
		{ID: "web-3.m4t8c2wz", Card: []byte(Web1Card)},
		{ID: "shell.00000001", Card: []byte(`{"host":"web-1","pid":99,"started_at":"2026-11-21T11:00:00Z"}`), LeaseLeft: 9 * time.Second},
		{ID: "odd.00000001", Card: []byte(`["not","a","card"]`), LeaseLeft: 9 * time.Second},
	}
	f.Listing = locks.Listing{At: Noon, Holds: []locks.HoldRecord{
		{ID: "web-2.p91qd3f7.1", Session: "web-2.p91qd3f7", Token: 1795222978000042, Since: Noon.Add(-4200 * time.Millisecond),
			Info: []byte(`{"job":"settle-bills","run":"` + run1 + `"}`), Names: []string{"bill:1001", "bill:1002", "run:" + run1},
			LeaseLeft: 13900 * time.Millisecond},
		{ID: "web-1.x7k2m9qa.3", Session: "web-1.x7k2m9qa", Token: 1795222800123456, Since: Noon.Add(-182 * time.Second),
			Info:  []byte(`{"job":"nightly-backup","run":"` + run2 + `"}`),
			Names: []string{"job:nightly-backup", "run:" + run2}, LeaseLeft: 12 * time.Second},
		{ID: "shell.00000001.1", Session: "shell.00000001", Token: 1795222979000000, Since: Noon.Add(-time.Second),
			Info: []byte(`{"command":["./settle.sh","--all"]}`), Names: []string{"bill:1003"}, LeaseLeft: 9 * time.Second},
		{ID: "web-1.x7k2m9qa.4", Session: "web-1.x7k2m9qa", Token: 1795222979000001, Since: Noon.Add(-time.Second),
			Info: []byte(`{"job":"settle-bills","run":"settle-bills#alone"}`), Names: []string{"run:settle-bills#alone"},
			LeaseLeft: 12 * time.Second},
	}, Waits: []locks.WaitRecord{
		{Request: "+settle-bills#second", Since: Noon.Add(-2 * time.Second), Ticket: 7, State: space.Waiting,
			Info:  []byte(`{"job":"settle-bills","run":"settle-bills#second"}`),
			Names: []string{"bill:1001", "bill:1003", "run:settle-bills#second"}},
		{Request: "shell.00000002.1", Session: "shell.00000002", Since: Noon.Add(-time.Second), Ticket: 8, State: space.Waiting,
			Info: []byte(`{"command":"make it"}`), Names: []string{"bill:1003"}},
		{Request: "+settle-bills#offered", Since: Noon.Add(-9 * time.Second), Ticket: 3, State: space.Offered,
			Info:  []byte(`{"job":"settle-bills","run":"settle-bills#offered"}`),
			Names: []string{"bill:2001", "run:settle-bills#offered"}},
	}}
	return f
}

// Crew returns a fake of some workers that serve "default", with due runs of the job "j", whose
// handler is "h".
func Crew(cards ...worker.Card) *Fake {
	f := &Fake{Listing: locks.Listing{At: Noon}, Registered: []ledger.JobRecord{{Job: &jobs.Job{Name: "j", Handler: "h", MaxCrashes: 3}}}}
	for i, card := range cards {
		if card.Queues == nil {
			card.Queues = map[string]int{"default": 1}
		}
		if card.Slots == 0 {
			card.Slots = 2
		}
		text, err := json.Marshal(card)
		if err != nil {
			panic(err)
		}
		f.Live = append(f.Live, locks.SessionRecord{ID: locks.SessionID(fmt.Sprintf("w%d", i+1)), Card: text, LeaseLeft: time.Second})
	}
	return f
}

// AddHistory gives a job a history in which runs are rare among skipped ticks: of n records, every
// 50th is a run.
func (f *Fake) AddHistory(job string, n int) {
	for i := range n {
		at := Noon.Add(-time.Duration(i) * time.Minute)
		record := &ledger.Record{
			ID: jobs.TickRunID(job, at), Job: job, Trigger: ledger.TriggerSchedule, Tick: at, State: ledger.StateSkipped, Created: at, Finished: at,
		}
		if i%50 == 49 {
			record.State = ledger.StateSucceeded
		}
		f.Ended[job] = append(f.Ended[job], record)
	}
}
