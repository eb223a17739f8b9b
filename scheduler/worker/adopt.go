package worker

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
	"lockstep/scheduler/trace"
)

// adoption is a task that becomes a run.
type adoption struct {
	ledger.Adoption
	ctx         context.Context // of its span
	publication *trace.Publication
	doubt       bool // it may have been recorded
	settled     bool
	err         *error
	due         []ledger.Due
}

// active is the active definition of a job, or why there is none here.
type active struct {
	job *jobs.Job
	err error
}

// adopt makes runs of tasks that plain asynq clients have sent, where a task's type is the name of
// a job. The errors are those that [queue.Options] requires. The slots that come along are for runs
// that can start here, unless the adoption takes long.
func (w *Worker) adopt(ctx context.Context, some []queue.Request, slots int) []error {
	var held atomic.Int64
	held.Store(int64(slots))
	release := func() { w.slots.Release(int(held.Swap(0))) }
	defer release()
	defer time.AfterFunc(seatPatience, release).Stop()
	errs := make([]error, len(some))
	session, err := w.locks.Extension().Certain()
	if err != nil {
		err = fmt.Errorf("%w: %w", queue.ErrLater, err)
	}
	known := make(map[string]active)
	var all []*adoption
	for i, request := range some {
		of, is := known[request.Type]
		if !is {
			of.job, of.err = w.active(ctx, request.Type)
			known[request.Type] = of
		}
		if errs[i] = cmp.Or(of.err, err); errs[i] != nil {
			continue
		}
		a := &adoption{err: &errs[i], Adoption: ledger.Adoption{
			Job: of.job, Queue: request.Queue, ID: request.ID, Payload: request.Payload,
			Session: session, Giving: cmp.Or(request.Word, rand.Text()), Again: request.Again, Since: request.Since, Late: request.Late,
		}}
		a.ctx, a.publication = w.o.Tracer.Adopt(request.Trace.In(ctx), trace.Run{
			ID: string(jobs.RequestRunID(of.job.Name, ledger.AdoptedName(request.Queue, request.ID))), Job: of.job.Name, Queue: request.Queue,
			Trigger: string(ledger.TriggerEnqueue),
		})
		a.Trace = trace.Of(a.ctx)
		all = append(all, a)
	}
	w.sendAdoptions(ctx, all)
	var due []ledger.Due
	for _, a := range all {
		for _, d := range a.due {
			d.PutBack = true // the task was at the head of its queue
			due = append(due, d)
		}
	}
	// It is their turn, so those that find a slot start at once, or soon.
	startable := func(d ledger.Due) bool { _, ok := w.direct(d, 0); return ok }
	n := 0
	for n < len(due) && startable(due[n]) {
		n++
	}
	slots = int(held.Swap(0))
	slots += w.slots.More(n - slots)
	n = min(n, slots)
	held.Store(int64(slots - n)) // no run here needs these
	if n > 0 {
		w.attempt.Go(func() {
			w.seatOr(w.work, due[:n], func(_ context.Context, due []ledger.Due) { w.pusher.Add(due...) })
		})
	}
	w.pusher.Add(due[n:]...)
	return errs
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

// sendAdoptions sends adoptions until each has a reply. If one is refused while no earlier attempt
// is in doubt, its task is retried later; otherwise its outcome is unknown.
func (w *Worker) sendAdoptions(ctx context.Context, all []*adoption) {
	for _, a := range all {
		*a.err = fmt.Errorf("%w: it was not sent", queue.ErrLater)
	}
	unsettled := slices.Clone(all)
	_ = ledger.Insist(func() (done bool, err error) { // each adoption has its own error
		if len(unsettled) == 0 || ctx.Err() != nil { // other servers may have the tasks now
			return true, nil
		}
		// Not under ctx: when the server stops, the reply to a sent adoption is still needed.
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
		defer cancel()
		sent := make([]ledger.Adoption, len(unsettled))
		for i, a := range unsettled {
			sent[i] = a.Adoption
		}
		for i, reply := range w.ledger.AdoptAll(call, sent) {
			if !w.adopted(unsettled[i], reply) {
				err = reply.Err
			}
		}
		unsettled = slices.DeleteFunc(unsettled, func(a *adoption) bool { return a.settled })
		return len(unsettled) == 0, err
	}, ctx.Done())
	for _, a := range unsettled {
		a.publication.Failed(*a.err)
	}
}

// adopted records the reply to an adoption. It returns false if it must be sent again.
func (w *Worker) adopted(a *adoption, reply ledger.Replied) bool {
	if err := reply.Err; err != nil {
		var refusal redis.Error
		over := errors.Is(err, ledger.ErrSession)
		refused := over || errors.Is(err, ledger.ErrUnsent) || errors.Is(err, jobs.ErrSignature) || errors.Is(err, jobs.ErrUnknownKeys) || errors.As(err, &refusal)
		a.doubt = a.doubt || !refused
		w.often.WarnContext(a.ctx, "could not make a run of a task yet, will retry", "job", a.Job.Name, "task", a.ID, "error", err)
		if *a.err = err; !a.doubt {
			*a.err = fmt.Errorf("%w: %w", queue.ErrLater, err)
		}
		if a.settled = !a.doubt || over || ledger.Final(err) || w.locks.Session() != a.Session; a.settled {
			a.publication.Failed(err)
		}
		return a.settled
	}
	a.settled, *a.err, a.due = true, nil, reply.Due
	a.publication.Recorded(string(reply.Run), reply.Exists)
	log := w.log.With("job", a.Job.Name, "run", reply.Run, "queue", a.Queue, "task", a.ID)
	if id := a.Trace.TraceID(); id != "" && !reply.Exists {
		log = log.With("trace_id", id)
	}
	switch {
	case reply.Exists:
		log.InfoContext(a.ctx, "a task requests a run that exists already", "state", reply.State)
	case reply.State == ledger.StateFailed:
		log.WarnContext(a.ctx, "a task requests a run that cannot be made")
	default:
		log.InfoContext(a.ctx, "a task has become a run")
	}
	return true
}
