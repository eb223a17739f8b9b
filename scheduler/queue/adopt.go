package queue

import (
	"context"
	"errors"

	"github.com/hibiken/asynq"
)

var (
	// ErrForeign says of a request that nobody here knows what it asks for.
	ErrForeign = errors.New("no lockstep delivery")

	// ErrLater says of a request that it was not taken in, for certain, and may be at another time.
	ErrLater = errors.New("not now")

	// errDoubt counts a request as tried, since nobody knows whether it was taken in.
	errDoubt = errors.New("it is not known whether the request was taken in")
)

// Request is a task that a plain asynq client has sent. Its type may be the name of a job.
type Request struct {
	Queue   string
	ID      string // asynq's id of the task: unique in its queue for as long as asynq has the task
	Type    string
	Payload []byte

	// Again says that asynq has counted the task as tried: whoever was given it before may have taken it in. Without it
	// the task is a new one, also when it has the id of an earlier one, which asynq has forgotten.
	Again bool
}

// adopt offers a task that is not ours to [Options].Adopt. nil ends it, an error sends it back.
func (r *reception) adopt(asynqCtx context.Context, task *asynq.Task) error {
	queue, _ := asynq.GetQueueName(asynqCtx)
	id, _ := asynq.GetTaskID(asynqCtx)
	retried, _ := asynq.GetRetryCount(asynqCtx)
	limit, _ := asynq.GetMaxRetry(asynqCtx)
	err := ErrForeign
	if r.o.Adopt != nil && r.ctx.Err() == nil {
		err = r.o.Adopt(r.ctx, Request{Queue: queue, ID: id, Type: task.Type(), Payload: task.Payload(), Again: retried > 0})
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrForeign), errors.Is(err, ErrLater):
		if r.foreign.add(taskKey(queue, id), queue, task.Type(), retried >= limit) && errors.Is(err, ErrForeign) && r.ctx.Err() == nil {
			r.log.Warn("task of an unknown type goes back to its queue", "queue", queue, "type", task.Type(), "task", id)
		}
		return ErrForeign // both: uncounted
	default:
		r.often.Warn("task goes back to its queue, counted as tried", "queue", queue, "type", task.Type(), "task", id, "error", err)
		return errDoubt
	}
}
