package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
)

// Send asks for a run of a job in the way of a plain asynq client: as a task that a worker makes a run of (see [Request]).
// It touches no key but those of the queue, so it needs no right to the ledger. payload is JSON, or nothing for the
// arguments of the job's definition. A zero at is now. sent is false when the queue has a task of that id already.
func (c *Client) Send(ctx context.Context, queue, job, id string, payload []byte, at time.Time) (sent bool, err error) {
	if err := checkQueueName(queue); err != nil {
		return false, err
	}
	options := []asynq.Option{asynq.Queue(queue), asynq.TaskID(id)}
	if !at.IsZero() {
		options = append(options, asynq.ProcessAt(at))
	}
	_, err = asynq.NewClientFromRedisClient(c.rdb).EnqueueContext(ctx, asynq.NewTask(job, payload), options...)
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("send a task to queue %s: %w", queue, err)
	}
	return true, nil
}
