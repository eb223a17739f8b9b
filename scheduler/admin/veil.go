package admin

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// veil is a [Book] that has [jobs.Hidden] in place of secret args. Everything that a
// [Reader] answers comes from such records, and so does every comparison with a filter: a list that
// could be searched for a password would reveal it.
//
// The names of secret args are those of the active definition of the job, in runs that are older
// than it, too. Without a definition the args are hidden as a whole.
type veil struct {
	Book
	definitions func(ctx context.Context, names []string) (map[string]*jobs.Job, error)
}

// Revealing returns a reader that shows the values of secret args.
func (r *Reader) Revealing() *Reader {
	revealing := *r
	if v, is := r.book.(*veil); is {
		revealing.book = v.Book
	}
	return &revealing
}

// veiled returns a reader of a book whose definitions are known.
func (r *Reader) veiled(book Book, known map[string]*jobs.Job) *Reader {
	veiled := *r
	veiled.book = &veil{book, func(context.Context, []string) (map[string]*jobs.Job, error) { return known, nil }}
	return &veiled
}

// knowingJobs returns a reader that has read the definitions of these jobs, all at once.
func (r *Reader) knowingJobs(ctx context.Context, names []string) (*Reader, error) {
	v, is := r.book.(*veil)
	if !is {
		return r, nil
	}
	known, err := v.definitions(ctx, names)
	if err != nil {
		return nil, err
	}
	return r.veiled(v.Book, known), nil
}

// reveals reports whether this reader shows the values of secret args.
func (r *Reader) reveals() bool {
	_, veiled := r.book.(*veil)
	return !veiled
}

// hide returns records without the values of secret args. It changes no record.
func (v *veil) hide(ctx context.Context, records []*ledger.Record, err error) ([]*ledger.Record, error) {
	if err != nil {
		return nil, err
	}
	names := make(map[string]bool)
	for _, record := range records {
		if hasArgs(record) {
			names[record.Job] = true
		}
	}
	if len(names) == 0 {
		return records, nil
	}
	definitions, err := v.definitions(ctx, slices.Sorted(maps.Keys(names)))
	if err != nil {
		return nil, err
	}
	own, err := v.ownDefinitions(ctx, records, definitions)
	if err != nil {
		return nil, err
	}
	hidden := slices.Clone(records)
	for i, record := range records {
		if !hasArgs(record) {
			continue
		}
		shown := *record
		if job := cmp.Or(definitions[record.Job], own[record.ID]); job != nil {
			shown.Args = job.HideArgs(record.Args)
		} else {
			shown.Args = jobs.HiddenArgs()
		}
		hidden[i] = &shown
	}
	return hidden, nil
}

// ownDefinitions returns the definitions that runs were made with, if their jobs have no active
// one: no worker has registered such a job yet. It omits runs without a readable definition.
func (v *veil) ownDefinitions(ctx context.Context, records []*ledger.Record, active map[string]*jobs.Job) (map[jobs.RunID]*jobs.Job, error) {
	var ids []jobs.RunID
	for _, record := range records {
		if hasArgs(record) && active[record.Job] == nil {
			ids = append(ids, record.ID)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	own := make(map[jobs.RunID]*jobs.Job, len(ids))
	for i, d := range v.Definitions(ctx, ids) {
		switch {
		case d.Err == nil:
			own[ids[i]] = d.Job
		case !errors.Is(d.Err, ledger.ErrUnknown) && !errors.Is(d.Err, ledger.ErrUnreadable):
			return nil, d.Err
		}
	}
	return own, nil
}

// hasArgs reports whether a record has args in which anything may be secret.
func hasArgs(record *ledger.Record) bool {
	return record != nil && !slices.Contains([]string{"", "null", "{}"}, string(record.Args))
}

// Outstanding, OpenRecords, EndedRecords, Find, FindRecord and FindOutput are those of the book,
// with hidden args.
func (v *veil) Outstanding(ctx context.Context, job string, limit int) ([]*ledger.Record, error) {
	records, err := v.Book.Outstanding(ctx, job, limit)
	return v.hide(ctx, records, err)
}

func (v *veil) OpenRecords(ctx context.Context, ids []jobs.RunID) ([]*ledger.Record, error) {
	records, err := v.Book.OpenRecords(ctx, ids)
	return v.hide(ctx, records, err)
}

func (v *veil) EndedRecords(ctx context.Context, entries []ledger.EndedEntry) ([]*ledger.Record, error) {
	records, err := v.Book.EndedRecords(ctx, entries)
	return v.hide(ctx, records, err)
}

func (v *veil) Find(ctx context.Context, id jobs.RunID) (*ledger.Record, string, error) {
	record, output, err := v.Book.Find(ctx, id)
	records, err := v.hide(ctx, []*ledger.Record{record}, err)
	if err != nil {
		return nil, "", err
	}
	return records[0], output, nil
}

func (v *veil) FindRecord(ctx context.Context, id jobs.RunID) (*ledger.Record, error) {
	record, err := v.Book.FindRecord(ctx, id)
	records, err := v.hide(ctx, []*ledger.Record{record}, err)
	if err != nil {
		return nil, err
	}
	return records[0], nil
}

func (v *veil) FindOutput(ctx context.Context, id jobs.RunID, attempt int) (*ledger.Record, ledger.Output, error) {
	record, output, err := v.Book.FindOutput(ctx, id, attempt)
	records, err := v.hide(ctx, []*ledger.Record{record}, err)
	if err != nil {
		return nil, ledger.Output{}, err
	}
	return records[0], output, nil
}
