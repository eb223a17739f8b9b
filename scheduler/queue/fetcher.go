package queue

import (
	"context"
	_ "embed"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/scheduler/ledger"
)

var (
	//go:embed scripts/putback.lua
	putBackSource string
	putBackScript = script(putBackSource)
	//go:embed scripts/take.lua
	takeSource string
	takeScript = script(takeSource)
)

// fetchSlack is how long a fetched task may take from Redis' reply to asynq's call of BaseContext,
// which normally takes microseconds. After that, asynq could not decode the task.
const fetchSlack = time.Second

// fetcher is the Redis client of one asynq server. It passes on every command except two scripts: a
// fetch waits for the gate and takes many of our deliveries at a time, and a foreign task that
// asynq would archive is put back. fetcher recognizes the scripts by their keys. A test fails if a
// new release of asynq uses other keys.
//
// asynq fetches in passes: one script for each queue, in random order, until one has a task. All
// passes of a server come from one goroutine, one after another. In a pass that took deliveries,
// asynq itself finds nothing.
type fetcher struct {
	redis.UniversalClient
	reception *reception
	ctx       context.Context // ends when this server stops; asynq passes none on
	queues    int             // number of scripts in a pass that finds nothing

	// Used only by the fetching goroutine.
	left  int   // scripts left in this pass; 0 between passes
	slots int   // slots that this pass owns
	at    int64 // of this pass, see gate
	// This pass has found something, or must find nothing.
	over bool

	// The ticket of the last pass, until asynq calls receive or settle writes it off.
	pending atomic.Pointer[ticket]
	// Signals that pending was taken. Buffer of one.
	arrived chan struct{}
}

// receive makes the context of a fetched task. asynq calls it once for each task, in the task's
// goroutine.
func (f *fetcher) receive() context.Context {
	t := f.pending.Swap(nil)
	if t == nil {
		// It was written off: the task continued after a second without processor time.
		t = &ticket{}
	}
	select {
	case f.arrived <- struct{}{}:
	default: // one signal is enough
	}
	// asynq would treat the end of this context as a failure of the task.
	return context.WithValue(context.WithoutCancel(f.reception.ctx), ticketKey{}, t)
}

// settle waits until the task of the last pass has arrived. If it never does, there was no task,
// and its slot is free again.
func (f *fetcher) settle() {
	if f.pending.Load() == nil {
		return
	}
	timer := time.NewTimer(fetchSlack)
	defer timer.Stop()
	for f.pending.Load() != nil {
		select {
		case <-f.arrived:
		case <-timer.C:
			if f.pending.Swap(nil) != nil {
				f.reception.o.Slots.Release(1)
			}
			return
		}
	}
}

// EvalSha runs a script that Redis should know.
func (f *fetcher) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	return f.script(ctx, keys, args, func() *redis.Cmd { return f.UniversalClient.EvalSha(ctx, sha, keys, args...) })
}

// Eval runs a script that Redis did not know.
func (f *fetcher) Eval(ctx context.Context, source string, keys []string, args ...any) *redis.Cmd {
	return f.script(ctx, keys, args, func() *redis.Cmd { return f.UniversalClient.Eval(ctx, source, keys, args...) })
}

func (f *fetcher) script(ctx context.Context, keys []string, args []any, call func() *redis.Cmd) *redis.Cmd {
	switch {
	case len(keys) == 4 && strings.HasSuffix(keys[0], "}:pending") && strings.HasSuffix(keys[1], "}:paused"):
		return f.fetch(ctx, keys[0], call)
	case len(keys) > 4 && len(args) > 0 && strings.HasSuffix(keys[3], "}:archived") && f.reception.foreign.take(keys[0]):
		retry := strings.TrimSuffix(keys[3], "archived") + "retry"
		due := time.Now().Add(foreignDelay).Unix()
		return putBackScript().Run(ctx, f.UniversalClient, []string{keys[0], keys[1], keys[2], retry}, args[0], due)
	}
	return call()
}

// fetch intercepts one script of a pass, with which asynq fetches one task from a queue.
func (f *fetcher) fetch(ctx context.Context, pending string, call func() *redis.Cmd) *redis.Cmd {
	if f.left == 0 {
		f.settle()
		n, at, err := f.reception.gate.pass(f.ctx)
		// When the server stops, asynq notices it after finding nothing.
		f.left, f.slots, f.at, f.over = f.queues, n, at, err != nil
	}
	f.left--
	if f.over {
		return nothing()
	}
	queue := strings.TrimSuffix(strings.TrimPrefix(pending, "asynq:{"), "}:pending")
	some, field, foreign, err := f.take(ctx, queue)
	switch {
	case err != nil:
		return f.failed(err)
	case len(some) > 0:
		f.release(f.slots - len(some))
		f.slots, f.over = 0, true
		f.reception.gate.found()
		f.reception.hand(queue, field, some)
		return nothing()
	case !foreign:
		return f.empty()
	}
	cmd := call()
	switch err := cmd.Err(); {
	case err == nil:
		f.release(f.slots - 1)
		f.left, f.slots = 0, 0
		f.pending.Store(&ticket{slot: true})
		f.reception.gate.found()
		return cmd
	case err == redis.Nil: //nolint:errorlint // asynq compares this way
		return f.empty()
	case redis.HasErrorPrefix(err, "NOSCRIPT"): // Eval follows, with the same keys
		f.left++
		return cmd
	default:
		return f.failed(err)
	}
}

// take takes as many deliveries of a queue as this pass has slots for, and records them under a
// field, or without a record if field is "". foreign reports that the next task is foreign.
func (f *fetcher) take(ctx context.Context, queue string) (some []ledger.Due, field string, foreign bool, err error) {
	const (
		day       = 24 * time.Hour
		statsKept = 90 * day // as in asynq
	)
	r := f.reception
	now := time.Now().UTC()
	keys := []string{
		queueKey(queue, "pending"), queueKey(queue, "paused"), queueKey(queue, "processed:"+now.Format(time.DateOnly)),
		queueKey(queue, "processed"), fetchedKey(queue, r.client.namespace), asleepKey(queue, r.client.namespace),
	}
	prefix := r.client.namespace + ":"
	session := ""
	if r.o.Session != nil {
		session = r.o.Session()
	}
	field, handled := r.inHand.begin(queue, session)
	args := []any{taskKey(queue, ""), prefix, messagePrefix, f.slots, now.Add(statsKept).Unix(), session, field, (3 * r.o.PollInterval).Milliseconds()}
	for _, one := range handled {
		args = append(args, one)
	}
	reply, err := takeScript().Run(ctx, f.UniversalClient, keys, args...).Slice()
	if err != nil {
		if field != "" { // it may have taken deliveries, which no worker handles now
			handled = append(handled, field)
		}
		r.inHand.done(queue, handled...)
		return nil, "", false, err
	}
	if len(reply) == 0 {
		return nil, "", false, nil
	}
	foreign = reply[0] == int64(1)
	for _, id := range reply[1:] {
		text, _ := id.(string)
		some = append(some, deliveryOf(strings.TrimPrefix(text, prefix), queue))
	}
	return some, field, foreign, nil
}

// empty ends the look at an empty queue, and with the last queue the pass.
func (f *fetcher) empty() *redis.Cmd {
	if f.left == 0 {
		f.release(f.slots)
		f.slots = 0
		f.reception.gate.empty(f.at)
	}
	return nothing()
}

// failed ends a pass.
func (f *fetcher) failed(err error) *redis.Cmd {
	f.release(f.slots)
	f.left, f.slots = 0, 0
	f.reception.gate.failed(err)
	return redis.NewCmdResult(nil, err)
}

func (f *fetcher) release(n int) {
	if n > 0 {
		f.reception.o.Slots.Release(n)
	}
}

func nothing() *redis.Cmd { return redis.NewCmdResult(nil, redis.Nil) }
