package ledger

import (
	"context"
	"fmt"
	"strings"

	"lockstep/jobs"
	"lockstep/locks/space"
)

// Forget removes the remaining data of a job that no worker carries: its definition, its cursor,
// its history, its [Absence]. The error is an [ErrRefused] while a worker carries it, and while
// runs of it are outstanding; a long history is removed in steps, and a refusal between two of them
// leaves the rest. A job that is registered again later is a new one. A worker that was absent and
// still carries the job learns of this by its next poll, and registers it. Sent again, Forget gives
// [ErrUnknown].
func (l *Ledger) Forget(ctx context.Context, job string, act Act) error {
	fail := func(err error) error { return fmt.Errorf("forget job %s: %w", job, err) }
	if err := act.check(); err != nil {
		return fail(err)
	}
	entry := act.entry()
	done := "" // by the steps before
	for {
		args := []any{job, GoneAfter.Milliseconds(), entry, retiredAfter.Milliseconds()}
		r := space.Read(l.runAct(ctx, "remove", job, entry, appendTexts(args, totalFields()...)...))
		switch outcome := outcomeOf(r); {
		case r.Err != nil:
			return fail(r.Err)
		case outcome == "done":
			return nil
		case outcome == "more":
			done = "; a part of its history has been removed already"
		case outcome == "carried":
			return fail(fmt.Errorf("%w: a worker carries it, or did so within the last %v: remove it from the config%s", ErrRefused, GoneAfter, done))
		case outcome == "open":
			return fail(fmt.Errorf("%w: %d of its runs are outstanding: cancel them (lockstep run cancel)%s", ErrRefused, r.Number(), done))
		default:
			return fail(r.Unknown(outcome))
		}
	}
}

// Requeued is a run that has moved to another queue.
type Requeued struct {
	Run   jobs.RunID
	Queue string // where it is now
}

// Requeue moves runs that have never started, and are due or wait for their locks, to the queues
// that the active definitions of their jobs name. A wait keeps its ticket. An adopted run stays in
// the queue that its sender chose, unless that is the queue of the definition that the run carries.
// Requeue returns the runs that moved, and the runs to deliver: those of them that are due, under a
// new n, and runs that got an offer in this step.
func (l *Ledger) Requeue(ctx context.Context, records []*Record) (moved []Requeued, due []Due, err error) {
	if len(records) == 0 {
		return nil, nil, nil
	}
	names := make([]string, len(records))
	for i, record := range records {
		names[i] = record.Job
	}
	definitions, err := l.rdb.HMGet(ctx, l.prefix+"def", names...).Result()
	if err != nil {
		return nil, nil, fmt.Errorf("read definitions: %w", err)
	}
	queues := make(map[jobs.RunID]string) // to which runs may move
	var movable, adopted []*Record
	for i, record := range records {
		text, _ := definitions[i].(string)
		job, err := jobs.ReadJob(text)
		if err != nil || job.Queue == record.Queue || len(record.Attempts) > 0 {
			continue
		}
		queues[record.ID] = job.Queue
		if movable = append(movable, record); seemsAdopted(record) {
			adopted = append(adopted, record)
		}
	}
	if err := l.dropChosen(ctx, queues, adopted); err != nil {
		return nil, nil, err
	}
	var args []any
	for _, record := range movable {
		if queue, ok := queues[record.ID]; ok {
			args = append(args, string(record.ID), record.Queue, queue)
		}
	}
	for len(args) > 0 {
		r := space.Read(l.run(ctx, "requeue", "", args...))
		examined := int(r.Number())
		r.Each(func(list *space.Reader) {
			run := jobs.RunID(list.Text())
			moved = append(moved, Requeued{run, queues[run]})
		})
		due = append(due, restDue(r)...)
		if r.Err != nil {
			return moved, due, fmt.Errorf("move runs to another queue: %w", r.Err)
		}
		args = args[3*examined:]
	}
	return moved, due, nil
}

// seemsAdopted reports whether the id of a run is one that [Ledger.Adopt] gives to tasks of the
// queue that the run is in. The run of a request may also have such an id. A run that has moved has
// none, so it can move again.
func seemsAdopted(record *Record) bool {
	name := strings.TrimPrefix(string(record.ID), record.Job+"#")
	return strings.HasPrefix(name, AdoptedName(record.Queue, "")) || strings.HasPrefix(name, longName)
}

// dropChosen removes the runs that are not in the queue of the definition they carry: their senders
// chose another one.
func (l *Ledger) dropChosen(ctx context.Context, queues map[jobs.RunID]string, adopted []*Record) error {
	for len(adopted) > 0 {
		ids := make([]jobs.RunID, min(len(adopted), page))
		for i := range ids {
			ids[i] = adopted[i].ID
		}
		definitions, err := l.definitionsOf(ctx, ids)
		if err != nil {
			return fmt.Errorf("read definitions of runs: %w", err)
		}
		for i, definition := range definitions {
			if job, err := jobs.ReadJob(definition); err != nil || job.Queue != adopted[i].Queue {
				delete(queues, adopted[i].ID)
			}
		}
		adopted = adopted[len(definitions):]
	}
	return nil
}
