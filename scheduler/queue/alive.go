package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// nobodyAfter is how long the asynq lease of an active delivery may stand still before we say that nobody has it. A
// server that lives extends the leases of all its tasks every 5 s; this is twice that. Too short costs a second
// delivery, which the ledger drops; too long costs the run that time.
const nobodyAfter = 10 * time.Second

// sighting is what this client saw of an active delivery.
type sighting struct {
	lease float64   // its score: when it runs out, by the clock of the server that has it
	since time.Time // when this client first saw that score
	last  time.Time // when this client last saw it
}

// Alive tells whether a delivery will still reach, or has just reached, a worker: asynq has it as pending, scheduled or
// to retry, or as active under a server that lives. A delivery that was ended is not alive, nor one that asynq lost,
// nor one that somebody archived. A delivery of a paused queue is.
//
// Whether somebody lives is not read off a clock: a lease is a wall-clock time of the worker that took it, and that
// clock may be wrong. It is seen from the lease moving. An active delivery whose lease is gone is nobody's at once; one
// whose lease this client has seen stand still for 10 s is nobody's from then on. So a client has to ask twice, and a
// new client begins to watch anew.
func (c *Client) Alive(ctx context.Context, d Delivery) (bool, error) {
	id := d.taskID(c.namespace)
	key := taskKey(d.Queue, id)
	var (
		state *redis.StringCmd
		lease *redis.FloatCmd
	)
	// Not one atomic look, and it need not be: a delivery that changes between the two commands changes because somebody
	// is at work on it, and the next look sees the result.
	err := c.pipeline(ctx, func(p redis.Pipeliner) {
		state = p.HGet(ctx, key, "state")
		lease = p.ZScore(ctx, queueKey(d.Queue, "lease"), id)
	})
	if err != nil {
		return false, fmt.Errorf("look up the delivery %s in queue %s: %w", id, d.Queue, err)
	}
	switch state.Val() {
	case "active":
		if errors.Is(lease.Err(), redis.Nil) {
			c.forget(key)
			return false, nil
		}
		return c.moves(key, lease.Val()), nil
	case "pending", "scheduled", "retry":
		c.forget(key)
		return true, nil
	default: // absent, archived, completed
		c.forget(key)
		return false, nil
	}
}

// moves records a look at a lease and tells whether it may still be extended by somebody.
func (c *Client) moves(key string, lease float64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	s, known := c.sightings[key]
	if !known || s.lease != lease {
		s = sighting{lease: lease, since: now}
	}
	s.last = now
	c.sightings[key] = s
	c.prune(now)
	return now.Sub(s.since) < nobodyAfter
}

// prune drops what nobody asks about any more, once there is something to gain by it. mu is held.
func (c *Client) prune(now time.Time) {
	const many = 1000
	if len(c.sightings) <= many {
		return
	}
	for key, s := range c.sightings {
		if now.Sub(s.last) > time.Minute {
			delete(c.sightings, key)
		}
	}
}

func (c *Client) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sightings, key)
}
