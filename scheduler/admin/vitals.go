package admin

import (
	"context"
	"time"

	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// Vitals are the facts about a job that are watched: how it does, not what it is.
type Vitals struct {
	Job       string
	Scheduled bool
	Drifted   bool // a live worker carries another definition of it
	// 1: it has had no success for longer than its max_silence; of several jobs, how many are late
	Late        int
	Running     int       // runs
	Outstanding int       // runs, also running ones
	LastSuccess time.Time // zero: never
	LastEnd     time.Time // the last end of a run or a tick that is kept; zero: none is
}

// Vitals returns the vitals of the first jobs by name, at most this number, and the sums of the
// numbers of all others. Each job costs two commands, which are sent together; the others cost
// none.
func (r *Reader) Vitals(ctx context.Context, most int) (list []Vitals, others Vitals, err error) {
	all, err := r.all(ctx)
	if err != nil {
		return nil, others, err
	}
	running, err := r.book.CountRunning(ctx)
	if err != nil {
		return nil, others, err
	}
	if others.Outstanding, err = r.book.CountAllOpen(ctx); err != nil {
		return nil, others, err
	}
	for _, n := range running {
		others.Running += n
	}
	first, rest := all.jobs[:min(most, len(all.jobs))], all.jobs[min(most, len(all.jobs)):]
	for i := range rest {
		others.Late += lateOf(&rest[i])
	}
	names, pages := make([]string, len(first)), make([]ledger.EndedPage, len(first))
	for i := range first {
		names[i] = first[i].Job.Name
		pages[i] = ledger.EndedPage{Job: names[i], Most: 1}
	}
	outstanding, err := r.book.CountOpen(ctx, names)
	if err != nil {
		return nil, others, err
	}
	ended, err := r.book.EndedEntries(ctx, pages)
	if err != nil {
		return nil, others, err
	}
	list = make([]Vitals, len(first))
	for i := range first {
		record, name := &first[i], names[i]
		list[i] = Vitals{Job: name, Scheduled: record.Job.Scheduled(), Drifted: record.Drifted, Late: lateOf(record),
			Running: running[name], Outstanding: outstanding[name], LastSuccess: record.LastSuccess}
		if len(ended[i]) > 0 {
			list[i].LastEnd = ended[i][0].At
		}
		others.Running -= list[i].Running
		others.Outstanding -= list[i].Outstanding
	}
	// they were counted one after the other
	others.Running, others.Outstanding = max(0, others.Running), max(0, others.Outstanding)
	return list, others, nil
}

// isLate reports whether a job has had no success for longer than its max_silence.
func isLate(record *ledger.JobRecord, now time.Time) bool {
	most := record.Job.MaxSilence
	return most > 0 && !record.Silent.IsZero() && now.Sub(record.Silent) > most
}

// lateOf returns 1 if a job was late when it was read. Its last success is not known for later.
func lateOf(job *listedJob) int {
	if isLate(&job.JobRecord, job.at) {
		return 1
	}
	return 0
}

// Totals returns how many ends there were of each kind, see [ledger.Ledger.Totals].
func (r *Reader) Totals(ctx context.Context) (*ledger.Totals, error) { return r.book.Totals(ctx) }

// Unsent is what waits to be sent to a target.
type Unsent struct {
	Target   string
	Messages int
	Oldest   time.Duration // how long the first of them has waited
}

// Unsent returns the targets for which messages wait.
func (r *Reader) Unsent(ctx context.Context) ([]Unsent, error) {
	mail, err := r.book.Mail(ctx, nil)
	if err != nil || len(mail) == 0 {
		return nil, err
	}
	now, err := r.space.Now(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Unsent, 0, len(mail))
	for _, m := range mail {
		if m.Waiting > 0 {
			all = append(all, Unsent{m.Target, m.Waiting, now.Sub(m.Since)})
		}
	}
	return all, nil
}

// Duty returns the worker on duty, or "" if none is.
func (r *Reader) Duty(ctx context.Context) (locks.SessionID, error) { return r.book.Duty(ctx) }

// GraceLeft returns how long no lock is granted any more, since Redis has lost data.
func (r *Reader) GraceLeft(ctx context.Context) (time.Duration, error) { return r.space.GraceLeft(ctx) }
