package queue

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// wakeMost is how many workers of a queue are woken at once when it is resumed.
const wakeMost = 16

// ErrNoQueue says that no worker of this namespace has ever served a queue.
var ErrNoQueue = errors.New("no such queue")

// Pause stops all fetches from a queue, by our workers and by others, until [Client.Resume]. Runs
// that were already fetched continue. Pause returns true if the queue was not paused before. For a
// queue that does not belong to this namespace, the error is an [ErrNoQueue] or an [ErrOwned].
func (c *Client) Pause(ctx context.Context, queue string) (bool, error) {
	if err := c.mine(ctx, queue); err != nil {
		return false, fmt.Errorf("pause queue %s: %w", queue, err)
	}
	// As in asynq's inspector, the value is the time.
	done, err := c.rdb.SetNX(ctx, queueKey(queue, "paused"), strconv.FormatInt(c.now().Unix(), 10), 0).Result()
	if err != nil {
		return false, fmt.Errorf("pause queue %s: %w", queue, err)
	}
	return done, nil
}

// Resume allows fetches from a queue again, and wakes its workers. It returns true if the queue was
// paused.
func (c *Client) Resume(ctx context.Context, queue string) (bool, error) {
	if err := c.mine(ctx, queue); err != nil {
		return false, fmt.Errorf("resume queue %s: %w", queue, err)
	}
	n, err := c.rdb.Del(ctx, queueKey(queue, "paused")).Result()
	if err != nil {
		return false, fmt.Errorf("resume queue %s: %w", queue, err)
	}
	// A worker that is not woken polls soon.
	if asleep, err := c.rdb.ZCard(ctx, asleepKey(queue, c.namespace)).Result(); err == nil {
		for range min(asleep, wakeMost) {
			_ = c.wake(ctx, queue)
		}
	}
	return n == 1, nil
}

func (c *Client) mine(ctx context.Context, queue string) error {
	owner, err := c.rdb.HGet(ctx, ownersKey, queue).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return ErrNoQueue
	case err != nil:
		return err
	case owner != c.namespace:
		return fmt.Errorf("%w: it is used by namespace %q", ErrOwned, owner)
	}
	return nil
}
