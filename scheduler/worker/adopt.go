package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
	"lockstep/scheduler/trace"
)

// adopt makes a run of a task that a plain asynq client has sent, if its type is the name of a job.
// The errors are those that [queue.Options] requires.
func (w *Worker) adopt(ctx context.Context, request queue.Request) error {
	job, err := w.active(ctx, request.Type)
	if err != nil {
		return err
	}
	session, err := w.locks.Extension().Certain()
	if err != nil {
		return fmt.Errorf("%w: %w", queue.ErrLater, err)
	}
	ctx, publication := w.o.Tracer.Adopt(request.Trace.In(ctx), trace.Run{
		ID: string(jobs.RequestRunID(job.Name, ledger.AdoptedName(request.Queue, request.ID))), Job: job.Name, Queue: request.Queue,
		Trigger: string(ledger.TriggerEnqueue),
	})
	enqueued, err := w.sendAdoption(ctx, ledger.Adoption{
		Job: job, Queue: request.Queue, ID: request.ID, Payload: request.Payload,
		Session: session, Giving: rand.Text(), Again: request.Again,
	})
	if err != nil {
		publication.Failed(err)
		return err
	}
	publication.Recorded(string(enqueued.Run), enqueued.Exists)
	log := w.log.With("job", job.Name, "run", enqueued.Run, "queue", request.Queue, "task", request.ID)
	if id := trace.Of(ctx).TraceID(); id != "" && !enqueued.Exists {
		log = log.With("trace_id", id)
	}
	switch {
	case enqueued.Exists:
		log.InfoContext(ctx, "a task requests a run that exists already", "state", enqueued.State)
	case enqueued.State == ledger.StateFailed:
		log.WarnContext(ctx, "a task requests a run that cannot be made")
	default:
		log.InfoContext(ctx, "a task has become a run")
	}
	w.deliver(ctx, enqueued.Due)
	return nil
}

// active returns the active definition of a job that this worker has.
func (w *Worker) active(ctx context.Context, name string) (*jobs.Job, error) {
	job, known := w.jobs.Load().named[name]
	switch {
	case !known:
		return nil, queue.ErrForeign
	case w.drifted.Load() == 0:
		return job, nil
	}
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	record, err := w.ledger.Job(call, name)
	switch {
	case errors.Is(err, ledger.ErrUnknown): // no worker has registered it yet
		return job, nil
	case err != nil:
		return nil, fmt.Errorf("%w: %w", queue.ErrLater, err)
	}
	return record.Job, nil
}

// sendAdoption sends an adoption until a reply arrives. If an adoption is refused while no earlier
// attempt is in doubt, the task is retried later; otherwise the outcome is unknown.
func (w *Worker) sendAdoption(ctx context.Context, adoption ledger.Adoption) (*ledger.Enqueued, error) {
	doubt := false
	var enqueued *ledger.Enqueued
	err := ledger.Insist(func() (done bool, err error) {
		// Not under ctx: when the server stops, the reply to a sent adoption is still needed.
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
		defer cancel()
		if enqueued, err = w.ledger.Adopt(call, adoption); err == nil {
			return true, nil
		}
		var refusal redis.Error
		refused := errors.Is(err, ledger.ErrSession) || errors.Is(err, jobs.ErrSignature) || errors.Is(err, jobs.ErrUnknownKeys) ||
			errors.As(err, &refusal)
		doubt = doubt || !refused
		w.often.WarnContext(ctx, "could not make a run of a task yet, will retry", "job", adoption.Job.Name, "task", adoption.ID, "error", err)
		if !doubt {
			return true, fmt.Errorf("%w: %w", queue.ErrLater, err)
		}
		return ledger.Final(err) || errors.Is(err, ledger.ErrSession) || w.locks.Session() != adoption.Session, err
	}, ctx.Done())
	return enqueued, err // nil with an error
}
