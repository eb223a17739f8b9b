package ledger

import (
	"context"
	_ "embed"
	"fmt"

	"lockstep/jobs"
)

var (
	//go:embed scripts/remove.lua
	removeSource string
	removeScript = script(removeSource)
	//go:embed scripts/requeue.lua
	requeueSource string
	requeueScript = script(requeueSource)
)

// Forget removes what is left of a job that no worker carries: its definition, its cursor, its history. The error is an
// [ErrRefused] while a worker carries it, and while runs of it are outstanding. A job that is registered again later is a new
// one. Sent again it gives [ErrUnknown].
func (l *Ledger) Forget(ctx context.Context, job string, act Act) error {
	fail := func(err error) error { return fmt.Errorf("forget job %s: %w", job, err) }
	if err := act.check(); err != nil {
		return fail(err)
	}
	entry := act.entry()
	for {
		r := read(l.runAct(ctx, removeScript, job, entry, job, GoneAfter.Milliseconds(), entry))
		switch outcome := r.text(); {
		case r.err != nil:
			return fail(r.err)
		case outcome == "done":
			return nil
		case outcome == "none":
			return fail(ErrUnknown)
		case outcome == "carried":
			return fail(fmt.Errorf("%w: a worker carries it, or did so within the last %v: remove it from the config", ErrRefused, GoneAfter))
		case outcome == "open":
			return fail(fmt.Errorf("%w: %d of its runs are outstanding: cancel them (lockstep run cancel)", ErrRefused, r.number()))
		}
	}
}

// Requeue moves due runs that have never started to the queues that the active definitions of their jobs name. It returns
// those that moved, due under a new n.
func (l *Ledger) Requeue(ctx context.Context, records []*Record) ([]Due, error) {
	if len(records) == 0 {
		return nil, nil
	}
	names := make([]string, len(records))
	for i, record := range records {
		names[i] = record.Job
	}
	definitions, err := l.rdb.HMGet(ctx, l.prefix+"def", names...).Result()
	if err != nil {
		return nil, fmt.Errorf("read definitions: %w", err)
	}
	var args []any
	for i, record := range records {
		text, _ := definitions[i].(string)
		job, err := jobs.ReadJob(text)
		if err == nil && job.Queue != record.Queue && len(record.Attempts) == 0 {
			args = append(args, string(record.ID), record.Queue, job.Queue)
		}
	}
	if len(args) == 0 {
		return nil, nil
	}
	var due []Due
	r := read(l.run(ctx, requeueScript, "", args...))
	for r.more() {
		due = append(due, r.oneDue())
	}
	if r.err != nil {
		return nil, fmt.Errorf("move runs to another queue: %w", r.err)
	}
	return due, nil
}
