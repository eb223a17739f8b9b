package admin

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

const (
	// BulkMost bounds the runs of one act on all runs that a filter finds.
	BulkMost = 10_000

	// BulkTyped is the number of runs above which a person types their number to confirm an act.
	BulkTyped = 100

	bulkReads    = 150 // steps of a search, each of at most mostRead runs, and looksAtMost others
	bulkTogether = 8   // runs that are acted on at the same time
	bulkPush     = 500 // runs after which their deliveries are pushed
	bulkRefusals = 10  // refusals that an outcome names
)

// Bulk is the outcome of an act on all runs that a filter finds.
type Bulk struct {
	DryRun  bool                 `json:"dry_run"` // nothing was done
	Matched int                  `json:"matched"`
	States  map[ledger.State]int `json:"states"` // of the matched runs, when they were found
	// the search ended with its bound, so more runs may match: repeat the act, or bound the filter
	// by since and until
	More bool `json:"more"`

	Done    int `json:"done"`
	Asked   int `json:"asked"`   // of those: they run, and their workers were asked to stop them
	Refused int `json:"refused"` // each for a reason of its own, which does not affect others
	// not tried, or with an unknown outcome, because of an error that is in Refusals
	Left     int       `json:"left"`
	Refusals []Refusal `json:"refusals"` // at most ten of them
}

// Refusal is why an act on a run was refused, or failed.
type Refusal struct {
	RunID jobs.RunID `json:"run_id"`
	Why   string     `json:"why"`
}

// Match is the runs that are found for an act: those that match a filter, or that a person has
// selected.
type Match struct {
	Runs    []jobs.RunID
	States  map[ledger.State]int
	More    bool      // the search ended with its bound
	Skipped []Refusal // selected runs that the act does not fit

	job   string   // of all the runs; "": of several
	marks []string // of each run: its id, and its state as far as the act depends on it
}

func (m *Match) add(record *ledger.Record) {
	m.Runs = append(m.Runs, record.ID)
	m.States[record.State]++
	state := "" // a run that does not run is canceled in the same way in every state
	if record.State.Final() || record.State == ledger.StateRunning {
		state = string(record.State)
	}
	m.marks = append(m.marks, string(record.ID)+"\x00"+state)
}

// Mark returns a text that another match has only if the act does the same to the same runs.
func (m *Match) Mark() string {
	marks := slices.Sorted(slices.Values(m.marks))
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(marks, "\x01"))))[:32]
}

// Outcome returns the outcome of an act before anything is done.
func (m *Match) Outcome() *Bulk {
	return &Bulk{Matched: len(m.Runs), States: m.States, More: m.More, Left: len(m.Runs), Refusals: []Refusal{}}
}

// ToCancel finds the outstanding runs that match a filter, at most [BulkMost]. A filter that
// selects all runs is refused, and so is a state that no outstanding run has.
func (r *Reader) ToCancel(ctx context.Context, filter RunFilter) (*Match, error) {
	if state := ledger.State(filter.State); state != "" && state.Facts().State != "" && state.Final() {
		return nil, fmt.Errorf("%w: runs that are %s have ended, and cannot be canceled", ErrInvalid, state)
	}
	return r.match(ctx, filter, BulkMost, whyNotCanceled, func(p *pager) { p.ended = false })
}

// ToRetry finds the runs that match a filter and have ended without success, at most [BulkMost]. A
// filter that selects all runs is refused, and so is a state in which runs are not retried.
func (r *Reader) ToRetry(ctx context.Context, filter RunFilter) (*Match, error) {
	if state := ledger.State(filter.State); state != "" && (!state.Final() || state == ledger.StateSucceeded) {
		return nil, fmt.Errorf("%w: runs that are %s cannot be retried", ErrInvalid, state)
	}
	return r.match(ctx, filter, BulkMost, whyNotRetried, func(p *pager) { p.open = false })
}

// SelectToCancel finds those of some runs that are outstanding. The others are skipped.
func (r *Reader) SelectToCancel(ctx context.Context, ids []jobs.RunID) (*Match, error) {
	return r.selected(ctx, ids, whyNotCanceled)
}

// SelectToRetry finds those of some runs that have ended without success. The others are skipped.
func (r *Reader) SelectToRetry(ctx context.Context, ids []jobs.RunID) (*Match, error) {
	return r.selected(ctx, ids, whyNotRetried)
}

// whyNotCanceled returns why a run cannot be canceled; "" if it can.
func whyNotCanceled(record *ledger.Record) string {
	if record.State.Final() {
		return "it has ended (" + string(record.State) + ")"
	}
	return ""
}

// whyNotRetried returns why a run cannot be retried; "" if it can.
func whyNotRetried(record *ledger.Record) string {
	switch {
	case !record.State.Final():
		return "it has not ended: it is " + string(record.State)
	case record.State == ledger.StateSucceeded:
		return "it has succeeded"
	}
	return ""
}

// selected looks at each of some runs once.
func (r *Reader) selected(ctx context.Context, ids []jobs.RunID, unfit func(*ledger.Record) string) (*Match, error) {
	m := &Match{States: make(map[ledger.State]int)}
	var known []jobs.RunID
	for _, id := range ids {
		switch {
		case id.Job() == "":
			m.Skipped = append(m.Skipped, Refusal{id, "it is not the ID of a run"})
		case !slices.Contains(known, id):
			known = append(known, id)
		}
	}
	open, err := r.book.OpenRecords(ctx, known)
	if err != nil {
		return nil, err
	}
	var rest []ledger.EndedEntry
	for i, id := range known {
		if open[i] == nil {
			rest = append(rest, ledger.EndedEntry{Job: id.Job(), Run: id})
		}
	}
	ended, err := r.book.EndedRecords(ctx, rest)
	if err != nil {
		return nil, err
	}
	for i, id := range known {
		record := open[i]
		if record == nil {
			record, ended = ended[0], ended[1:]
		}
		why := "it is not known (any more)"
		if record != nil {
			why = unfit(record)
		}
		if why != "" {
			m.Skipped = append(m.Skipped, Refusal{id, why})
			continue
		}
		m.add(record)
	}
	for i, id := range m.Runs {
		if i == 0 {
			m.job = id.Job()
		} else if id.Job() != m.job {
			m.job = ""
		}
	}
	return m, nil
}

// match finds runs of a list that are fit for an act, at most this number. narrow leaves out a part
// of the list that has none.
func (r *Reader) match(ctx context.Context, filter RunFilter, most int, unfit func(*ledger.Record) string, narrow func(*pager)) (*Match, error) {
	filter.Limit = 0
	if filter == (RunFilter{}) {
		return nil, fmt.Errorf("%w: which runs? Give at least one filter, such as state=failed", ErrInvalid)
	}
	pager, err := r.runPager(filter, nil)
	if err != nil {
		return nil, err
	}
	narrow(pager)
	listed := pager.keep
	pager.keep = func(record *ledger.Record) bool { return listed(record) && unfit(record) == "" }
	m := &Match{States: make(map[ledger.State]int), job: filter.Job}
	add := func(items []item) {
		for _, one := range items {
			if unfit(one.record) == "" {
				m.add(one.record)
			}
		}
	}
	if named, is, err := r.namedRun(ctx, filter); err != nil || is {
		add(named)
		return m, err
	}
	for n := 0; !pager.done; n++ {
		if n == bulkReads || len(m.Runs) == most {
			m.More = true
			break
		}
		items, err := pager.next(ctx, min(mostRead, most-len(m.Runs)), looksAtMost)
		if err != nil {
			return nil, err
		}
		add(items)
	}
	if len(m.Runs) == 0 && filter.Job != "" {
		_, err = r.book.Job(ctx, filter.Job)
	}
	return m, err
}

// CancelRuns is [Operator.CancelRun] of all runs that [Reader.ToCancel] or [Reader.SelectToCancel]
// has found. The refusal of one does not affect the others. where is the filter in words; the audit
// has one entry, which is written before anything is done.
func (o *Operator) CancelRuns(ctx context.Context, match *Match, where string, by Actor) (*Bulk, error) {
	return o.bulk(ctx, match, where, by.act("cancel runs", "", ""), func(ctx context.Context, id jobs.RunID, act ledger.Act) (bool, []ledger.Due, error) {
		canceled, err := o.cancel(ctx, id, act)
		if err != nil {
			return false, nil, err
		}
		return canceled.Asked, canceled.Due, nil
	})
}

// RetryRuns is [Operator.RetryRun] of all runs that [Reader.ToRetry] or [Reader.SelectToRetry] has
// found, as [Operator.CancelRuns] is of the others.
func (o *Operator) RetryRuns(ctx context.Context, match *Match, where string, by Actor) (*Bulk, error) {
	return o.bulk(ctx, match, where, by.act("retry runs", "", ""), func(ctx context.Context, id jobs.RunID, act ledger.Act) (bool, []ledger.Due, error) {
		due, err := o.retry(ctx, id, act)
		return false, due, err
	})
}

func (o *Operator) bulk(ctx context.Context, match *Match, where string, act ledger.Act,
	do func(context.Context, jobs.RunID, ledger.Act) (asked bool, due []ledger.Due, err error)) (*Bulk, error) {
	if err := jobs.CheckReason(act.Why); err != nil {
		return nil, err
	}
	outcome := match.Outcome()
	if len(match.Runs) == 0 {
		return outcome, nil
	}
	act.On = cmp.Or(match.job, "runs")
	act.Detail = runs(len(match.Runs)) + ": " + where
	act.Apart = act.Detail
	if err := o.ledger.Audit(ctx, act); err != nil {
		return nil, err
	}
	act.Part = true
	var mu sync.Mutex // guards outcome, due and failed
	failed := false
	for begin := 0; begin < len(match.Runs) && !failed && ctx.Err() == nil; begin += bulkPush {
		var due []ledger.Due
		var group errgroup.Group
		group.SetLimit(bulkTogether)
		for _, id := range match.Runs[begin:min(len(match.Runs), begin+bulkPush)] {
			group.Go(func() error {
				mu.Lock()
				stop := failed
				mu.Unlock()
				if stop {
					return nil
				}
				asked, some, err := do(ctx, id, act)
				mu.Lock()
				defer mu.Unlock()
				if err != nil && len(outcome.Refusals) < bulkRefusals {
					outcome.Refusals = append(outcome.Refusals, Refusal{id, err.Error()})
				}
				switch {
				case err == nil:
					outcome.Done++
					outcome.Left--
					due = append(due, some...)
				case isRefusal(err):
					outcome.Refused++
					outcome.Left--
				default:
					failed = true
				}
				if asked {
					outcome.Asked++
				}
				return nil
			})
		}
		_ = group.Wait() // no function returns an error
		o.deliver(ctx, due)
	}
	return outcome, nil
}

// isRefusal reports whether an error is about one run, so that another run may have none.
func isRefusal(err error) bool {
	for _, refusal := range []error{ledger.ErrRefused, ledger.ErrUnknown, ledger.ErrUnreadable, jobs.ErrSignature, jobs.ErrUnknownKeys, jobs.ErrTooLarge} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return jobs.IsPermanent(err)
}
