package queue

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// ErrOwned says that a queue belongs to another namespace. The error that carries it names both, and the remedy.
var ErrOwned = errors.New("queue belongs to another namespace")

// ownersKey is a HASH queue -> namespace. It is one key for all namespaces, since queue names are common to them all.
const ownersKey = "lockstep:queues"

// pushers bounds how many deliveries of one Push are on their way at a time. asynq takes one per round trip, so pushing
// side by side is all that helps over a slow network; more would fill the connection pool that others use too.
const pushers = 16

//go:embed scripts/own.lua
var ownSource string

var ownScript = redis.NewScript(ownSource)

// A Client sends deliveries and looks at queues: [Client.Push] is the call to use first. It is safe for use by several
// goroutines and holds nothing that needs closing; the Redis client stays its caller's.
type Client struct {
	rdb       redis.UniversalClient
	asynq     *asynq.Client
	namespace string
	now       func() time.Time // only differences of its readings are used, so it must be monotonic

	mu        sync.Mutex
	sightings map[string]sighting // by task key; guarded by mu
}

// New returns a client for the deliveries of a namespace. It dials nothing. rdb should have a MaxRetries of -1 and
// ContextTimeoutEnabled: then nothing is sent twice, and deadlines count.
func New(rdb redis.UniversalClient, namespace string) (*Client, error) {
	if namespace == "" {
		return nil, errors.New("queue: namespace is empty")
	}
	return &Client{
		rdb:       rdb,
		asynq:     asynq.NewClientFromRedisClient(rdb),
		namespace: namespace,
		now:       time.Now,
		sightings: make(map[string]sighting),
	}, nil
}

// Push sends deliveries, several at a time, and returns those that asynq has now, in no particular order: the ones that
// were there already belong to them. The error joins what went wrong with the others; they may have arrived all the
// same, if only the answer was lost. To push a delivery again is harmless.
func (c *Client) Push(ctx context.Context, deliveries ...Delivery) ([]Delivery, error) {
	if len(deliveries) == 0 {
		return nil, nil
	}
	var (
		g      errgroup.Group // without its context: one failure must not end the others
		mu     sync.Mutex
		pushed []Delivery
		errs   []error
	)
	g.SetLimit(pushers)
	g.Go(func() error {
		if err := c.announce(ctx, deliveries); err != nil {
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		}
		return nil
	})
	for _, d := range deliveries {
		g.Go(func() error {
			err := c.push(ctx, d)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("push run %s to queue %s: %w", d.Run, d.Queue, err))
				return nil
			}
			pushed = append(pushed, d)
			return nil
		})
	}
	_ = g.Wait() // the functions return no error: all of them are in errs
	return pushed, errors.Join(errs...)
}

func (c *Client) push(ctx context.Context, d Delivery) error {
	if err := ctx.Err(); err != nil {
		return err // of a thousand deliveries most have not been sent when a context ends
	}
	task, err := d.task(c.namespace)
	if err != nil {
		return err
	}
	_, err = c.asynq.EnqueueContext(ctx, task)
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		return nil
	}
	return err
}

// announce makes the queues known to asynq's tools. asynq's client does so once in its life; but Redis may have been
// emptied since, which nothing tells a client that stays connected. So it is done with every push.
func (c *Client) announce(ctx context.Context, deliveries []Delivery) error {
	var names []any
	for _, d := range deliveries {
		if !slices.Contains(names, any(d.Queue)) && checkQueueName(d.Queue) == nil {
			names = append(names, d.Queue)
		}
	}
	if len(names) == 0 {
		return nil
	}
	if err := c.rdb.SAdd(ctx, queuesKey, names...).Err(); err != nil {
		return fmt.Errorf("announce queues %v: %w", names, err)
	}
	return nil
}

// Own registers queues as this namespace's, all or none, and announces them to asynq's tools. The error is an
// [ErrOwned] when one of them belongs to another namespace: whoever meets that must not serve any of them. Registered
// once, a queue stays registered.
func (c *Client) Own(ctx context.Context, queues []string) error {
	if len(queues) == 0 {
		return nil
	}
	args := []any{c.namespace}
	for _, q := range queues {
		if err := checkQueueName(q); err != nil {
			return err
		}
		args = append(args, q)
	}
	taken, err := ownScript.Run(ctx, c.rdb, []string{ownersKey}, args...).StringSlice()
	if err != nil {
		return fmt.Errorf("register queues %v: %w", queues, err)
	}
	var errs []error
	for i := 0; i+1 < len(taken); i += 2 {
		errs = append(errs, fmt.Errorf("%w: %q is used by namespace %q: choose another name in worker.queues, or, "+
			"when nobody of %[3]q uses it any more, free it by: redis-cli HDEL %[4]s %[2]s",
			ErrOwned, taken[i], taken[i+1], ownersKey))
	}
	if errs != nil {
		return errors.Join(errs...)
	}
	if err := c.rdb.SAdd(ctx, queuesKey, args[1:]...).Err(); err != nil {
		return fmt.Errorf("announce queues %v: %w", queues, err)
	}
	return nil
}

// Paused tells which of the queues are paused. A queue that does not exist is not.
func (c *Client) Paused(ctx context.Context, queues []string) (map[string]bool, error) {
	commands := make(map[string]*redis.IntCmd, len(queues))
	err := c.pipeline(ctx, func(p redis.Pipeliner) {
		for _, q := range queues {
			commands[q] = p.Exists(ctx, queueKey(q, "paused"))
		}
	})
	if err != nil {
		return nil, fmt.Errorf("look for paused queues among %s: %w", strings.Join(queues, ", "), err)
	}
	paused := make(map[string]bool, len(queues))
	for q, exists := range commands {
		paused[q] = exists.Val() == 1
	}
	return paused, nil
}

// pipeline sends commands in one round trip. A value that is not there is no error.
func (c *Client) pipeline(ctx context.Context, fill func(redis.Pipeliner)) error {
	cmds, err := c.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		fill(p)
		return nil
	})
	if !errors.Is(err, redis.Nil) {
		return err
	}
	for _, cmd := range cmds { // err is only the first one
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
	}
	return nil
}
