package queue

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// ErrNoQueue says that there is no such queue: nobody of this namespace has ever served it.
var ErrNoQueue = errors.New("no such queue")

// Pause has no delivery of a queue fetched any more, by our workers or by others, until [Client.Resume]; what is fetched
// already goes on. It tells whether that was new. The error is an [ErrNoQueue] or an [ErrOwned] for a queue that is not
// this namespace's.
func (c *Client) Pause(ctx context.Context, queue string) (bool, error) {
	if err := c.mine(ctx, queue); err != nil {
		return false, fmt.Errorf("pause queue %s: %w", queue, err)
	}
	// As asynq's inspector does it: the value is when.
	done, err := c.rdb.SetNX(ctx, queueKey(queue, "paused"), strconv.FormatInt(c.now().Unix(), 10), 0).Result()
	if err != nil {
		return false, fmt.Errorf("pause queue %s: %w", queue, err)
	}
	return done, nil
}

// Resume lets the deliveries of a queue be fetched again. It tells whether it was paused.
func (c *Client) Resume(ctx context.Context, queue string) (bool, error) {
	if err := c.mine(ctx, queue); err != nil {
		return false, fmt.Errorf("resume queue %s: %w", queue, err)
	}
	n, err := c.rdb.Del(ctx, queueKey(queue, "paused")).Result()
	if err != nil {
		return false, fmt.Errorf("resume queue %s: %w", queue, err)
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
