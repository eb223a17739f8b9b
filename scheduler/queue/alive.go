package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/scheduler/ledger"
)

// nobodyAfter is how long the asynq lease of an active delivery may remain unchanged before the
// delivery counts as lost. A live server extends the leases of all its tasks every 5 s; this is
// twice that. A shorter time can cause a second delivery, which the ledger drops. A longer time
// delays the run.
const nobodyAfter = 10 * time.Second

// sighting is this client's observation of an active delivery.
type sighting struct {
	// The score of the lease: when it expires, by the clock of the server that holds it.
	lease float64
	since time.Time // when this client first saw that score
	last  time.Time // when this client last saw it
}

// AllAlive reports which deliveries will still reach, or have just reached, a worker. Such a
// delivery is pending, scheduled or waiting for a retry in asynq; or active under a live server; or
// a worker, dead or alive, has fetched it within the last 10 s and not yet handled it (see
// [Client.Fetched]). A delivery is not alive if it was handled, if asynq lost it, or if a tool of
// asynq archived it. A delivery of a paused queue is alive. AllAlive takes two or three round trips
// for any number of deliveries.
//
// No clock decides whether a server is alive: a lease is a wall-clock time of the worker that took
// it, and that clock may be wrong. A changing lease decides. An active delivery without a lease is
// lost immediately. If this client has seen its lease unchanged for 10 s, it is lost from then on.
// So a client must ask at least twice, and a new client starts to observe from the beginning.
func (c *Client) AllAlive(ctx context.Context, deliveries []ledger.Due) ([]bool, error) {
	// The look is not atomic and need not be: if a delivery changes between the commands, then a
	// worker is handling it, and the next look sees the result. But the records must be read after
	// the states, because a fetch moves a delivery from the states to the records.
	alive := make([]bool, len(deliveries))
	fail := func(err error) ([]bool, error) {
		return nil, fmt.Errorf("look up %d deliveries in their queues: %w", len(deliveries), err)
	}
	states := make([]*redis.StringCmd, len(deliveries))
	err := c.pipeline(ctx, func(p redis.Pipeliner) {
		for i, d := range deliveries {
			states[i] = p.HGet(ctx, taskKey(d.Queue, taskID(d, c.namespace)), "state")
		}
	})
	if err != nil {
		return fail(err)
	}
	leases := make(map[int]*redis.FloatCmd)
	// Of queues that no longer contain some of the deliveries.
	records := make(map[string]*redis.MapStringStringCmd)
	var gone []int
	var now *redis.TimeCmd
	err = c.pipeline(ctx, func(p redis.Pipeliner) {
		for i, d := range deliveries {
			id := taskID(d, c.namespace)
			switch states[i].Val() {
			case "active":
				leases[i] = p.ZScore(ctx, queueKey(d.Queue, "lease"), id)
				continue
			case "pending", "scheduled", "retry":
				alive[i] = true
			default: // absent, archived, completed
				gone = append(gone, i)
				if records[d.Queue] == nil {
					records[d.Queue] = p.HGetAll(ctx, fetchedKey(d.Queue, c.namespace))
				}
			}
			c.forget(taskKey(d.Queue, id))
		}
		if len(gone) > 0 {
			now = p.Time(ctx)
		}
	})
	if err != nil {
		return fail(err)
	}
	for i, lease := range leases {
		key := taskKey(deliveries[i].Queue, taskID(deliveries[i], c.namespace))
		if errors.Is(lease.Err(), redis.Nil) {
			c.forget(key)
		} else {
			alive[i] = c.moves(key, lease.Val())
		}
	}
	inHand := make(map[string]map[string]bool) // queue -> IDs
	for q, record := range records {
		inHand[q] = make(map[string]bool)
		for _, text := range record.Val() {
			at, ids := readRecord(text)
			for _, id := range ids {
				inHand[q][id] = now.Val().Sub(at) < inHandMost
			}
		}
	}
	for _, i := range gone {
		alive[i] = inHand[deliveries[i].Queue][taskID(deliveries[i], c.namespace)]
	}
	return alive, nil
}

// moves records the state of a lease and reports whether a server may still extend it.
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

// prune drops sightings that no caller has asked about recently, once there are enough of them. mu
// is held.
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
