package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/trace"
)

// Request is a request for a run of a job, outside its schedule.
type Request struct {
	Job     *jobs.Job
	ID      string          // the requester's; two requests with it give one run
	Args    json.RawMessage // nil: the definition's
	Trigger Trigger         // TriggerEnqueue or TriggerHand
	At      time.Time       // not before this instant of the server's clock; zero: at once
	In      time.Duration   // nor before this much time has passed
	Named   bool            // a client chose the id: it is remembered for at least Remembered
	// Parent is the run that asks for it. It is recorded if it is outstanding here, or in the
	// history of the same job: else it belongs to another namespace, or was made up. By default it
	// is the run of the context that the request is made with ([jobs.RunOf]), such as that of a
	// handler. NoParent has none in any case.
	Parent jobs.RunID
	Act    *Act // for the audit; nil: the caller counts it with others of its kind
}

// NoParent is the [Request].Parent of a request that is not made from within a run, whatever its
// context.
const NoParent jobs.RunID = "-"

// parent returns the run that asks for a run, or "".
func (r *Request) parent(ctx context.Context) (jobs.RunID, error) {
	switch r.Parent {
	case NoParent:
		return "", nil
	case "":
		return jobs.RunOf(ctx), nil // a claim too, but by this process
	}
	if err := jobs.ValidRunID(r.Parent); err != nil {
		return "", fmt.Errorf("parent: %w", err)
	}
	return r.Parent, nil
}

// RememberedFor is how long an id that a client chose names the same run, even when the history is
// shorter.
const RememberedFor = 7 * 24 * time.Hour

// Enqueued is the reply to a [Request].
type Enqueued struct {
	Run jobs.RunID
	// State is "" for an existing run of which only the id is remembered. A list also omits it for
	// existing runs behind others with long records.
	State  State
	Exists bool  // the run existed already; nothing was changed
	Due    []Due // to be delivered or claimed
}

// Enqueue records a requested run. Sent again with the same id, it reports that the run exists. The
// run keeps the trace context of the span that ctx has, if any.
//
// While one request of this process is under way, others are collected, and recorded together: the
// server needs less time for each of them. If ctx ends meanwhile, Enqueue returns its cause, and
// the request is not sent.
func (l *Ledger) Enqueue(ctx context.Context, request Request) (*Enqueued, error) {
	w, err := l.prepare(ctx, &request)
	if err != nil {
		return nil, err
	}
	entry := request.Act.entry()
	switch {
	case entry != "": // it has an entry of its own
		l.enqueueAlone(ctx, w, entry)
	case l.wanted.Enter():
		// The goroutines that have just got their replies, all at once, may have further requests.
		// Without this, each would send its next one alone, and the others would wait for that.
		runtime.Gosched()
		if _, others := l.wanted.Outstanding(); others > 0 {
			l.enqueueWithOthers(ctx, w, true)
		} else {
			l.enqueueAlone(ctx, w, "")
			l.wanted.Leave(ctx)
		}
	default:
		l.enqueueWithOthers(ctx, w, false)
	}
	return w.enqueued, w.err
}

// wanted is a request in the form for the scripts, and its reply.
type wanted struct {
	run  jobs.RunID
	job  *jobs.Job
	kind kind
	// of the definition that kind names; see define
	definition string
	at, in     int64  // ms; 0: at once
	giving     string // of a request that is adopted: see Adoption
	args       string
	items      string

	enqueued *Enqueued
	err      error
	done     chan struct{} // closed when these are final; nil for a request that is sent alone
}

// kind is what many requests have in common. They share its arguments, and the calls that it needs.
type kind struct {
	job, queue               string
	trigger                  Trigger
	remember                 int64 // ms
	parent                   jobs.RunID
	trace                    string // see storedTrace
	name                     string // of the definition
	patience, onBusy, limits string // see waitOf
}

// prepare checks a request, and brings it into the form for the scripts, except for its definition.
func (l *Ledger) prepare(ctx context.Context, request *Request) (*wanted, error) {
	job := request.Job
	w := &wanted{run: jobs.RequestRunID(job.Name, request.ID), job: job}
	fail := func(err error) (*wanted, error) { return nil, fmt.Errorf("enqueue %s: %w", w.run, err) }
	if err := jobs.ValidRunName(request.ID); err != nil {
		return fail(err)
	}
	source := request.Args
	if source == nil {
		source = job.Args
	}
	arguments, err := compact(source)
	if err != nil {
		return fail(fmt.Errorf("args: %w", err))
	}
	if err := errors.Join(jobs.CheckArgs(len(arguments), l.maxArgs), request.Act.check()); err != nil {
		return fail(err)
	}
	parent, err := request.parent(ctx)
	if err != nil {
		return fail(err)
	}
	items, err := job.Resources(w.run, arguments)
	if err != nil {
		return fail(err)
	}
	w.kind = kind{job: job.Name, queue: job.Queue, trigger: request.Trigger, parent: parent, trace: storedTrace(trace.Of(ctx))}
	w.kind.patience, w.kind.onBusy, w.kind.limits = waitOf(job)
	if request.Named {
		w.kind.remember = RememberedFor.Milliseconds()
	}
	w.at, w.in, w.args = max(0, unixMillis(request.At)), max(0, request.In.Milliseconds()), storedArgs(arguments, job)
	w.items = joined(items)
	return w, nil
}

// joined returns a bundle as one argument of a script.
func joined(items []locks.Item) string {
	var all strings.Builder
	for i, item := range items {
		if i > 0 {
			all.WriteByte('\x1f')
		}
		all.WriteString(item.String())
	}
	return all.String()
}

// define sets the definition of a request. Requests that are sent together mostly have the same:
// known has those that were encoded for other ones, and may be nil.
func (l *Ledger) define(w *wanted, known map[*jobs.Job]string) error {
	definition, is := known[w.job]
	if !is {
		text, err := l.write(w.job)
		if err != nil {
			return fmt.Errorf("enqueue %s: %w", w.run, err)
		}
		if definition = named(string(text)); known != nil {
			known[w.job] = definition
		}
	}
	w.kind.name, w.definition, _ = strings.Cut(definition, "\x1f")
	return nil
}

// enqueueAlone records one request.
func (l *Ledger) enqueueAlone(ctx context.Context, w *wanted, entry string) {
	if err := l.define(w, nil); err != nil {
		w.err = err
		return
	}
	k := &w.kind
	args := []any{k.job, string(w.run), k.queue, string(k.trigger), w.at, w.in, k.remember, w.args, k.name + "\x1f" + w.definition,
		k.patience, k.onBusy, k.limits, entry, string(k.parent), k.trace}
	for item := range strings.SplitSeq(w.items, "\x1f") {
		args = append(args, item)
	}
	r := space.Read(l.runChild(ctx, "enqueue", k.job, k.parent, entry, args...))
	w.enqueued = &Enqueued{Run: w.run}
	if err := w.enqueued.decode(r.Text(), k.queue, r); err != nil {
		w.fail(err)
	}
}

func (w *wanted) fail(err error) {
	w.enqueued, w.err = nil, fmt.Errorf("enqueue %s: %w", w.run, err)
}

// decode reads what follows the outcome, and the id if the script chooses it. queue is the run's.
func (e *Enqueued) decode(outcome, queue string, r *space.Reader) error {
	switch outcome {
	case "created":
		n := r.Number()
		e.State = State(r.Text())
		if n > 0 {
			e.Due = []Due{{Run: e.Run, N: n, Queue: queue}}
		}
	case "exists":
		e.Exists, e.State = true, State(r.Text())
	default:
		return r.Unknown(outcome)
	}
	return r.Err
}
