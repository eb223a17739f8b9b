package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"lockstep/scheduler/trace"
)

// Send requests a run of a job like a plain asynq client: as a task that a worker turns into a run
// (see [Request]). It uses only keys of the queue, so it needs no permission for the ledger.
// The task has the trace context of the span that ctx has, if any, in its headers. payload is JSON,
// or empty for the arguments in the job's definition. A zero at means now. sent is
// false if the queue already has a task with that ID.
func (c *Client) Send(ctx context.Context, queue, job, id string, payload []byte, at time.Time) (sent bool, err error) {
	if err := checkQueueName(queue); err != nil {
		return false, err
	}
	options := []asynq.Option{asynq.Queue(queue), asynq.TaskID(id)}
	if !at.IsZero() {
		options = append(options, asynq.ProcessAt(at))
	}
	_, err = asynq.NewClientFromRedisClient(c.rdb).EnqueueContext(ctx, asynq.NewTaskWithHeaders(job, payload, headersOf(trace.Of(ctx))), options...)
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("send a task to queue %s: %w", queue, err)
	}
	return true, nil
}

// headersOf returns the headers of a task with a trace context; nil without one.
func headersOf(c trace.Context) map[string]string {
	if c.Parent == "" {
		return nil
	}
	headers := map[string]string{"traceparent": c.Parent}
	if c.State != "" {
		headers["tracestate"] = c.State
	}
	return headers
}
