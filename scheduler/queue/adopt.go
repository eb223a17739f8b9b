package queue

import (
	"context"
	"errors"
	"strings"

	"github.com/hibiken/asynq"

	"lockstep/scheduler/trace"
)

var (
	// ErrForeign says that this worker does not know what a request asks for.
	ErrForeign = errors.New("not a lockstep delivery")

	// ErrLater says that a request was certainly not adopted, and can be retried.
	ErrLater = errors.New("not now")

	// errDoubt makes a request count as tried, because it may have been adopted.
	errDoubt = errors.New("the request may or may not have been adopted")
)

// Request is a task from a plain asynq client. Its type may be the name of a job.
type Request struct {
	Queue string
	// asynq's ID of the task, which is unique in its queue as long as asynq keeps the task.
	ID      string
	Type    string
	Payload []byte

	// Trace is the trace context in the headers of the task, traceparent and tracestate (see
	// asynq.NewTaskWithHeaders).
	Trace trace.Context

	// Again says that asynq has counted the task as tried, so an earlier attempt may have adopted
	// it. Otherwise the task is new, even if it has the ID of an earlier task that asynq has
	// forgotten.
	Again bool
}

// The headers of a task are those of HTTP; carriers may write them as HTTP does: Traceparent.
func traceOf(task *asynq.Task) trace.Context {
	var parent, state string
	for name, value := range task.Headers() {
		switch strings.ToLower(name) {
		case "traceparent":
			parent = value
		case "tracestate":
			state = value
		}
	}
	return trace.Parse(parent, state)
}

// adopt offers a foreign task to [Options].Adopt. A nil error ends the task, and any other error
// sends it back.
func (r *reception) adopt(asynqCtx context.Context, task *asynq.Task) error {
	queue, _ := asynq.GetQueueName(asynqCtx)
	id, _ := asynq.GetTaskID(asynqCtx)
	retried, _ := asynq.GetRetryCount(asynqCtx)
	limit, _ := asynq.GetMaxRetry(asynqCtx)
	err := ErrForeign
	if r.o.Adopt != nil && r.ctx.Err() == nil {
		err = r.o.Adopt(r.ctx, Request{Queue: queue, ID: id, Type: task.Type(), Payload: task.Payload(), Trace: traceOf(task), Again: retried > 0})
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrForeign), errors.Is(err, ErrLater):
		if r.foreign.add(taskKey(queue, id), queue, task.Type(), retried >= limit) && errors.Is(err, ErrForeign) && r.ctx.Err() == nil {
			r.log.Warn("task of an unknown type goes back to its queue", "queue", queue, "type", task.Type(), "task", id)
		}
		return ErrForeign // in both cases, the attempt is not counted
	default:
		r.often.Warn("task goes back to its queue, counted as tried", "queue", queue, "type", task.Type(), "task", id, "error", err)
		return errDoubt
	}
}
