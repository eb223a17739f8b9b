package queue

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"lockstep/locks/space"
	"lockstep/scheduler/ledger"
)

// ErrOwned says that a queue belongs to another namespace. See [OwnedError].
var ErrOwned = errors.New("queue belongs to another namespace")

// OwnedError is an [ErrOwned] that names the queues, their owners and the remedy.
type OwnedError struct {
	Owners map[string]string // queue -> its namespace
}

func (e *OwnedError) Error() string {
	var lines []string
	for _, q := range slices.Sorted(maps.Keys(e.Owners)) {
		lines = append(lines, fmt.Sprintf("%s: %q is used by namespace %q: choose another name in worker.queues, or, "+
			"when no worker of %[3]q uses it anymore, free it with: redis-cli HDEL %[4]s %[2]s", ErrOwned, q, e.Owners[q], ownersKey))
	}
	return strings.Join(lines, "\n")
}

// Is makes the error match [ErrOwned].
func (e *OwnedError) Is(target error) bool { return target == ErrOwned }

// ownersKey is a HASH queue -> namespace. All namespaces share this key, because they share the
// queue names.
const ownersKey = "lockstep:queues"

// pushMost limits the deliveries sent in one round trip.
const pushMost = 500

//go:embed scripts/own.lua
var ownSource string

var ownScript = script("own", ownSource)

func script(name, source string) func() *redis.Script {
	return space.Named("queue/"+name, func() string { return source })
}

// A Client sends deliveries and inspects queues. Start with [Client.Push]. A Client is safe for
// concurrent use and needs no closing. The Redis client remains the caller's.
type Client struct {
	rdb       redis.UniversalClient
	asynq     *asynq.Client // sends nothing, see recorder
	namespace string
	// Only differences of its readings are used, so it must be monotonic.
	now func() time.Time

	mu        sync.Mutex
	sightings map[string]sighting // by task key; guarded by mu
	// Queues that Own has registered, even if another client has changed their owner since. Guarded
	// by mu.
	owned map[string]bool
}

// New returns a client for the deliveries of a namespace. It opens no connection. rdb should have a
// MaxRetries of -1, so that nothing is sent twice, and ContextTimeoutEnabled, so that deadlines
// count.
func New(rdb redis.UniversalClient, namespace string) (*Client, error) {
	if namespace == "" {
		return nil, errors.New("queue: namespace is empty")
	}
	return &Client{
		rdb:       rdb,
		asynq:     asynq.NewClientFromRedisClient(&recorder{UniversalClient: rdb}),
		namespace: namespace,
		now:       time.Now,
		sightings: make(map[string]sighting),
		owned:     make(map[string]bool),
	}, nil
}

// Push sends deliveries, many per round trip, and returns those that asynq has now, including those
// that it had already. The error joins the errors of the others. These may have arrived too, if
// only the reply was lost. Pushing a delivery again is harmless.
func (c *Client) Push(ctx context.Context, deliveries ...ledger.Due) ([]ledger.Due, error) {
	var (
		pushed []ledger.Due
		errs   []error
	)
	for some := range slices.Chunk(deliveries, pushMost) {
		if err := ctx.Err(); err != nil {
			return pushed, errors.Join(append(errs, fmt.Errorf("push %d deliveries: %w", len(deliveries)-len(pushed), err))...)
		}
		there, err := c.push(ctx, some)
		pushed, errs = append(pushed, there...), append(errs, err)
	}
	return pushed, errors.Join(errs...)
}

// NoticePushed is the notice, on the channel of a session, that wakes a sleeping worker: see
// [Server.Wake].
const NoticePushed = "pushed"

// asynqsScript is the hash of the script with which asynq enqueues a task, as pushScript knows it.
// Another release may have another one: then each delivery is sent by that.
const asynqsScript = "98d28b42650870a743450ffda9791e9e19c6991b"

//go:embed scripts/push.lua
var pushSource string

var pushScript = script("push", pushSource)

//go:embed scripts/wake.lua
var wakeSource string

var wakeScript = script("wake", wakeSource)

// push sends some deliveries in one round trip, or in two if Redis does not know a script.
//
// It also announces their queues to asynq's tools. asynq's client does so once in its life, but
// Redis may have been emptied since, and a client that stays connected does not notice that. So
// every push announces the queues.
func (c *Client) push(ctx context.Context, deliveries []ledger.Due) (pushed []ledger.Due, err error) {
	var (
		errs   []error
		queues []any
		calls  []*enqueueing
	)
	fail := func(d ledger.Due, err error) {
		errs = append(errs, fmt.Errorf("push run %s to queue %s: %w", d.Run, d.Queue, err))
	}
	for _, d := range deliveries {
		call, err := c.enqueueing(ctx, d)
		if err != nil {
			fail(d, err)
			continue
		}
		if !slices.Contains(queues, any(d.Queue)) {
			queues = append(queues, d.Queue)
		}
		calls = append(calls, call)
	}
	if len(queues) == 0 {
		return nil, errors.Join(errs...)
	}
	calls = c.together(calls)
	sent := make([]*redis.Cmd, len(calls))
	pipe := c.rdb.Pipeline()
	announced := pipe.SAdd(ctx, queuesKey, queues...)
	for i, call := range calls {
		sent[i] = call.script.EvalSha(ctx, pipe, call.keys, call.args...)
	}
	_, _ = pipe.Exec(ctx) // each command carries its own error
	if err := announced.Err(); err != nil {
		errs = append(errs, fmt.Errorf("announce queues %v: %w", queues, err))
	}
	pipe = c.rdb.Pipeline()
	for i, call := range calls {
		if redis.HasErrorPrefix(sent[i].Err(), "NOSCRIPT") {
			sent[i] = call.script.Eval(ctx, pipe, call.keys, call.args...)
		}
	}
	_, _ = pipe.Exec(ctx) // also; without commands it sends nothing
	for i, call := range calls {
		if err := sent[i].Err(); err == nil { // they are in the queue, or were already
			pushed = append(pushed, call.of...)
			continue
		}
		for _, d := range call.of {
			fail(d, sent[i].Err())
		}
	}
	return pushed, errors.Join(errs...)
}

// wake wakes one sleeping worker of a queue.
func (c *Client) wake(ctx context.Context, queue string) error {
	ctx, cancel := context.WithTimeout(ctx, putBackLimit)
	defer cancel()
	return wakeScript().Run(ctx, c.rdb, []string{asleepKey(queue, c.namespace)}, space.Channel(c.namespace, ""), space.Notice(NoticePushed)).Err()
}

// together replaces the calls of asynq's script for one end of a queue by one call of pushScript.
func (c *Client) together(calls []*enqueueing) []*enqueueing {
	byEnd := make(map[[2]string]*enqueueing) // the queue's list, and which end
	var all []*enqueueing
	for _, call := range calls {
		if call.script.Hash() != asynqsScript || len(call.keys) != 2 || len(call.args) != 3 {
			all = append(all, call)
			continue
		}
		pending, end := call.keys[1], "tail"
		if call.of[0].PutBack {
			end = "head"
		}
		one := byEnd[[2]string{pending, end}]
		if one == nil {
			one = &enqueueing{
				script: pushScript(), keys: []string{pending, asleepKey(call.of[0].Queue, c.namespace)},
				args: []any{call.args[2], space.Channel(c.namespace, ""), space.Notice(NoticePushed), end},
			}
			byEnd[[2]string{pending, end}], all = one, append(all, one)
		}
		one.keys, one.args = append(one.keys, call.keys[0]), append(one.args, call.args[0], call.args[1])
		one.of = append(one.of, call.of...)
	}
	return all
}

// enqueueing returns the script call with which asynq would enqueue a delivery.
func (c *Client) enqueueing(ctx context.Context, d ledger.Due) (*enqueueing, error) {
	task, err := newTask(d, c.namespace)
	if err != nil {
		return nil, err
	}
	ctx, e := record(ctx)
	if _, err := c.asynq.EnqueueContext(ctx, task); err != nil {
		return nil, err
	}
	e.of = []ledger.Due{d}
	return e, nil
}

// Own registers queues for this namespace, all or none, and announces them to asynq's tools. If one
// of them belongs to another namespace, the error is an [OwnedError], and a worker that starts must
// not serve any of them. A registered queue remains registered.
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
	taken, err := ownScript().Run(ctx, c.rdb, []string{ownersKey}, args...).StringSlice()
	if err != nil {
		return fmt.Errorf("register queues %v: %w", queues, err)
	}
	if len(taken) > 0 {
		owners := make(map[string]string, len(taken)/2)
		for i := 0; i+1 < len(taken); i += 2 {
			owners[taken[i]] = taken[i+1]
		}
		return &OwnedError{owners}
	}
	c.mu.Lock()
	for _, q := range queues {
		c.owned[q] = true
	}
	c.mu.Unlock()
	if err := c.rdb.SAdd(ctx, queuesKey, args[1:]...).Err(); err != nil {
		return fmt.Errorf("announce queues %v: %w", queues, err)
	}
	return nil
}

// hasOwned reports whether Own has registered all of these queues.
func (c *Client) hasOwned(queues []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !slices.ContainsFunc(queues, func(q string) bool { return !c.owned[q] })
}

// AllPaused returns the paused queues of this namespace, including those that another tool paused
// and those without a worker. A queue that this client has registered counts as its namespace's
// even after another client has changed its owner.
func (c *Client) AllPaused(ctx context.Context) ([]string, error) {
	own, err := c.ownQueues(ctx)
	if err != nil {
		return nil, err
	}
	is, err := c.Paused(ctx, own)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(own, func(q string) bool { return !is[q] }), nil
}

// Paused reports which of the queues are paused. A queue that does not exist is not paused.
func (c *Client) Paused(ctx context.Context, queues []string) (map[string]bool, error) {
	commands := make(map[string]*redis.IntCmd, len(queues))
	err := c.pipeline(ctx, func(p redis.Pipeliner) {
		for _, q := range queues {
			commands[q] = p.Exists(ctx, queueKey(q, "paused"))
		}
	})
	if err != nil {
		return nil, fmt.Errorf("find paused queues among %s: %w", strings.Join(queues, ", "), err)
	}
	paused := make(map[string]bool, len(queues))
	for q, exists := range commands {
		paused[q] = exists.Val() == 1
	}
	return paused, nil
}

// pipeline sends commands in one round trip. A missing value is not an error.
func (c *Client) pipeline(ctx context.Context, fill func(redis.Pipeliner)) error {
	cmds, err := c.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		fill(p)
		return nil
	})
	if !errors.Is(err, redis.Nil) {
		return err
	}
	for _, cmd := range cmds { // err is only the first error
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
	}
	return nil
}

// ScriptNames returns the names of this package's own scripts by the hashes that SLOWLOG and
// MONITOR show. The package also sends asynq's scripts.
func ScriptNames() map[string]string {
	return map[string]string{
		ownScript().Hash(): "own", pushScript().Hash(): "push", wakeScript().Hash(): "wake", takeScript().Hash(): "take",
		settleScript().Hash(): "settle",
	}
}
