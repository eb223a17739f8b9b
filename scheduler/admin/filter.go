package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/ledger"
)

// Filter selects entries of a list. An empty field selects all. A list applies only the fields that
// it takes: see [RunFilters].
type Filter struct {
	// Query is a part of a name or an id, or of a value in the args, in any case. A list of runs
	// for the whole id of a run has that run alone.
	Query string

	Job    string
	State  string // of a run, the outcome of a tick, the state of a worker or a wait, ...
	Worker string // its id, or the part of that before the dot
	Lock   string
	Queue  string
	Error  string // a part of it, in any case

	// Since and Until are when the entries happened: Since is included, Until is not. A run happens
	// when it ends; an outstanding one, when it is made.
	Since, Until time.Time

	Limit int // maximum number of runs, ticks or acts; 0: no limit
}

// RunFilter is a filter of runs. Its zero value selects all that are kept. Without a State it
// leaves out ticks that never became due, for these never were runs, and with or without one, lines
// for many ticks.
type RunFilter = Filter

// The names of the filters that each list takes: as parameters of the API, and as flags of the
// command line.
var (
	RunFilters    = []string{"q", "job", "state", "worker", "lock", "queue", "since", "until", "error"}
	TickFilters   = []string{"q", "state", "worker", "since", "until", "error"}
	JobFilters    = []string{"q", "job", "state", "lock", "queue", "error"}
	LockFilters   = []string{"q", "job", "worker", "lock"}
	WaitFilters   = []string{"q", "job", "state", "worker", "lock", "since", "until"}
	WorkerFilters = []string{"q", "job", "state", "worker", "lock", "queue"}
	ActFilters    = []string{"q", "job", "worker", "lock", "queue", "since", "until"}
)

// ReadFilter reads a filter from its values by name, "" for none. A time is as in RFC 3339, or a
// duration before now, such as 90m. It asks Redis for its time only then.
func (r *Reader) ReadFilter(ctx context.Context, value func(name string) string) (Filter, error) {
	f := Filter{Query: strings.TrimSpace(value("q")), Job: value("job"), State: value("state"), Worker: value("worker"),
		Lock: value("lock"), Queue: value("queue"), Error: value("error")}
	var err error
	if f.Since, err = r.ReadTime(ctx, "since", value("since")); err != nil {
		return f, err
	}
	if f.Until, err = r.ReadTime(ctx, "until", value("until")); err != nil {
		return f, err
	}
	if !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return f, fmt.Errorf("%w: since and until: since must be before until", ErrInvalid)
	}
	return f, nil
}

// ReadTime reads the time in a parameter: as in RFC 3339, or a duration before now. Without a text
// it is zero.
func (r *Reader) ReadTime(ctx context.Context, name, text string) (time.Time, error) {
	return r.readTime(ctx, name, text, -1)
}

// readTime reads a time, or a duration from now in a direction, 1 or -1.
func (r *Reader) readTime(ctx context.Context, name, text string, direction time.Duration) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		now, err := r.now(ctx)
		return now.Add(direction * d), err
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("%w: %s %q: it must be a time, as in RFC 3339, or a duration from now, such as 90m", ErrInvalid, name, text)
	}
	return at, nil
}

// checkState refuses a state that no entry of a list can have.
func (f *Filter) checkState(of string, states ...string) error {
	if f.State == "" || slices.Contains(states, f.State) {
		return nil
	}
	return fmt.Errorf("%w: no %s has the state %q; the states are %v", ErrInvalid, of, f.State, states)
}

// check refuses what no list of runs can mean.
func (f *Filter) check() error {
	if f.Limit < 0 {
		return fmt.Errorf("%w: a limit of %d runs", ErrInvalid, f.Limit)
	}
	return f.checkState("run", ledger.StateNames()...)
}

// Outcomes returns the outcomes of ticks.
func Outcomes() []string {
	names := []string{Pending}
	for _, facts := range ledger.States() {
		if facts.Final {
			names = append(names, string(facts.State))
		}
	}
	return names
}

// within reports whether an instant is between Since and Until.
func (f *Filter) within(at time.Time) bool {
	return !at.Before(f.Since) && (f.Until.IsZero() || at.Before(f.Until))
}

// found reports whether one of some texts contains the query.
func (f *Filter) found(texts ...string) bool {
	return f.Query == "" || slices.ContainsFunc(texts, func(text string) bool { return contains(text, f.Query) })
}

// contains reports whether a text contains a part, in any case.
func contains(text, part string) bool {
	return strings.Contains(strings.ToLower(text), strings.ToLower(part))
}

// isWorker reports whether a filter's worker, which may be a name without the random part, is a
// session.
func isWorker(id locks.SessionID, worker string) bool {
	text := string(id)
	return text == worker || text[:max(0, strings.LastIndexByte(text, '.'))] == worker && worker != ""
}

// isRun reports whether a filter without a State selects a record, and one with a State a record in
// that state.
func (f *Filter) isRun(record *ledger.Record) bool {
	if f.State != "" {
		return record.State == ledger.State(f.State) && record.Upto.IsZero()
	}
	return wasRun(record)
}

// keeps reports whether a record matches the filter, apart from its lock and its query, which may
// need the definition of its job.
func (f *Filter) keeps(record *ledger.Record) bool {
	switch {
	case !f.isRun(record), f.Job != "" && record.Job != f.Job, f.Queue != "" && record.Queue != f.Queue:
		return false
	case f.Worker != "" && !attemptedBy(record, f.Worker):
		return false
	case f.Error != "" && !contains(whyOf(record), f.Error):
		return false
	}
	at := record.Finished
	if at.IsZero() {
		at = record.Created
	}
	return f.within(at)
}

// attemptedBy reports whether a run has an attempt on a worker.
func attemptedBy(record *ledger.Record, worker string) bool {
	return slices.ContainsFunc(record.Attempts, func(a ledger.AttemptRecord) bool { return isWorker(a.Worker, worker) })
}

// whyOf returns the reason of a run's state, or else the error of its last attempt; "" for a run
// that succeeded, or runs.
func whyOf(record *ledger.Record) string {
	if last := record.Last(); record.Reason == "" && last != nil && record.State != ledger.StateSucceeded {
		return last.Error
	}
	return record.Reason
}

// names reports whether the query is in what names a run: its id, its workers, its locks, and the
// values of its args.
func (f *Filter) names(record *ledger.Record, bundle []string) bool {
	if f.found(string(record.ID)) || f.found(bundle...) {
		return true
	}
	for _, a := range record.Attempts {
		if f.found(string(a.Worker)) {
			return true
		}
	}
	var args any
	decoder := json.NewDecoder(bytes.NewReader(record.Args))
	decoder.UseNumber()
	return decoder.Decode(&args) == nil && f.inValue(args)
}

// inValue reports whether the query is in a value of the args, at any depth. The names of fields
// are not values.
func (f *Filter) inValue(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		for _, one := range value {
			if f.inValue(one) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(value, f.inValue)
	case nil:
	default:
		return f.found(fmt.Sprint(value))
	}
	return false
}

// bundles names what runs take besides their own resource: what the ledger has for an outstanding
// run, and what an ended one would take by the active definition of its job.
type bundles struct {
	book   Book
	active map[string]*jobs.Job // nil: it has no readable definition
}

// load reads the definitions that the runs need.
func (b *bundles) load(ctx context.Context, records []*ledger.Record) error {
	var missing []string
	for _, record := range records {
		if record == nil || len(record.Items) > 0 {
			continue
		}
		if _, known := b.active[record.Job]; !known {
			b.active[record.Job] = nil
			missing = append(missing, record.Job)
		}
	}
	definitions, err := b.book.ActiveJobs(ctx, missing)
	maps.Copy(b.active, definitions)
	return err
}

func (b *bundles) of(record *ledger.Record) []string {
	items := record.Items
	if job := b.active[record.Job]; len(items) == 0 && job != nil {
		items, _ = job.Resources(record.ID, record.Args) // none if the args are not in the list
	}
	names := make([]string, 0, len(items))
	for _, item := range items {
		if item.Name != jobs.RunResource(record.ID) {
			names = append(names, item.Name)
		}
	}
	return names
}

// selects returns a function that reports whether a run matches a filter, and one that must be
// called before with the records of such runs.
func (r *Reader) selects(f Filter) (keep func(*ledger.Record) bool, load func(context.Context, []*ledger.Record) error) {
	if f.Lock == "" && f.Query == "" {
		return f.keeps, func(context.Context, []*ledger.Record) error { return nil }
	}
	bundle := &bundles{r.book, make(map[string]*jobs.Job)}
	return func(record *ledger.Record) bool {
		if !f.keeps(record) {
			return false
		}
		names := bundle.of(record)
		return (f.Lock == "" || slices.Contains(names, f.Lock)) && f.names(record, names)
	}, bundle.load
}

// keepsTick reports whether the record of a tick matches the filter.
func (f *Filter) keepsTick(record *ledger.Record) bool {
	switch {
	case f.State != "" && outcomeOf(record) != f.State, f.Error != "" && !contains(whyOf(record), f.Error):
		return false
	case f.Worker != "" && !isWorker(record.By, f.Worker) && !attemptedBy(record, f.Worker):
		return false
	}
	return f.within(record.Tick) && (f.names(record, nil) || f.found(string(record.By)))
}

// NeedsRuns reports whether a filter of jobs looks at their runs: see [Reader.Jobs].
func (f *Filter) NeedsRuns() bool { return f.State != "" || f.Error != "" }

// mayBe returns false for a definition whose job [Filter.Jobs] does not select, as far as that
// costs little.
func (f *Filter) mayBe(d *jobs.Job) bool {
	return (f.Job == "" || d.Name == f.Job) && (f.Queue == "" || d.Queue == f.Queue)
}

// Jobs returns the jobs that match the filter. The state and the error are those of the last run.
func (f *Filter) Jobs(all []Job) ([]Job, error) {
	if err := f.checkState("last run", Outcomes()[1:]...); err != nil {
		return nil, err
	}
	return filtered(all, func(j *Job) bool {
		var state ledger.State
		why := ""
		if j.LastRun != nil {
			state, why = j.LastRun.State, j.LastRun.Why()
		}
		return (f.Job == "" || j.Name == f.Job) && (f.Queue == "" || j.Queue == f.Queue) &&
			(f.Lock == "" || slices.Contains(j.Locks, f.Lock)) && (f.State == "" || string(state) == f.State) &&
			(f.Error == "" || contains(why, f.Error)) && f.found(append([]string{j.Name, string(j.Description), j.Work, j.Queue}, j.Locks...)...)
	}), nil
}

// Locks returns the locks that match the filter: those that a worker or a job holds or waits for.
func (f *Filter) Locks(all []Lock) []Lock {
	return filtered(all, func(l *Lock) bool {
		texts, byJob, byWorker := []string{l.Name}, false, false
		for i := range l.Holders {
			h := &l.Holders[i]
			texts = append(texts, string(h.Worker), string(h.Host), string(h.RunID), h.Purpose())
			byJob, byWorker = byJob || string(h.Job) == f.Job, byWorker || isWorker(h.Worker, f.Worker)
		}
		for i := range l.Waits {
			w := &l.Waits[i]
			texts = append(texts, string(w.Worker), string(w.RunID), w.Purpose())
			byJob, byWorker = byJob || string(w.Job) == f.Job, byWorker || isWorker(locks.SessionID(w.Worker), f.Worker)
		}
		return (f.Lock == "" || l.Name == f.Lock) && (f.Job == "" || byJob) && (f.Worker == "" || byWorker) && f.found(texts...)
	})
}

// Waits returns the waits that match the filter. A wait happens when it begins.
func (f *Filter) Waits(all []Wait) ([]Wait, error) {
	if err := f.checkState("wait", string(space.Waiting), string(space.Offered), string(space.Lapsed), string(space.Kept)); err != nil {
		return nil, err
	}
	return filtered(all, func(w *Wait) bool {
		return (f.Job == "" || string(w.Job) == f.Job) && (f.State == "" || string(w.State) == f.State) &&
			(f.Worker == "" || isWorker(locks.SessionID(w.Worker), f.Worker)) && (f.Lock == "" || slices.Contains(w.Wants, f.Lock)) &&
			f.within(w.Since.Time) && f.found(append([]string{string(w.Worker), string(w.RunID), w.Purpose()}, w.Wants...)...)
	}), nil
}

// Workers returns the workers that match the filter: the job and the lock are those of their holds.
func (f *Filter) Workers(s *Snapshot) ([]Worker, error) {
	if err := f.checkState("worker", "ready", "draining", Gone); err != nil {
		return nil, err
	}
	held := make(map[locks.SessionID]bool)
	for _, h := range s.Holders {
		if (f.Job == "" || string(h.Job) == f.Job) && (f.Lock == "" || slices.Contains(h.Bundle, f.Lock)) {
			held[h.Worker] = true
		}
	}
	return filtered(s.Workers(), func(w *Worker) bool {
		texts := []string{string(w.ID), w.Host, w.Version, w.Config}
		for queue := range w.Queues {
			texts = append(texts, queue)
		}
		_, serves := w.Queues[f.Queue]
		return (f.Worker == "" || isWorker(w.ID, f.Worker)) && (f.State == "" || w.State == f.State) && (f.Queue == "" || serves) &&
			(f.Job == "" && f.Lock == "" || held[w.ID]) && f.found(texts...)
	}), nil
}

// keepsAct reports whether an act matches the filter. The last word of What is the kind of its
// object.
func (f *Filter) keepsAct(a *ledger.ActRecord) bool {
	kind := a.What[strings.LastIndexByte(a.What, ' ')+1:]
	onQueue, onWorker, onLock := kind == "queue", kind == "worker" || kind == "config", kind == "lock" || kind == "permits"
	switch {
	case f.Queue != "" && !(onQueue && a.On == f.Queue), f.Lock != "" && !(onLock && a.On == f.Lock):
		return false
	case f.Worker != "" && !(onWorker && isWorker(locks.SessionID(a.On), f.Worker)):
		return false
	case f.Job != "" && (onQueue || onWorker || onLock || a.On != f.Job && jobs.RunID(a.On).Job() != f.Job):
		return false
	}
	return f.within(a.At) && f.found(a.Who, a.What, a.On, a.Why, a.Detail)
}

// filtered returns the items that are kept; never nil, and never a part of all, which may be
// shared.
func filtered[T any](all []T, keep func(*T) bool) []T {
	kept := make([]T, 0, len(all))
	for i := range all {
		if keep(&all[i]) {
			kept = append(kept, all[i])
		}
	}
	return kept
}
