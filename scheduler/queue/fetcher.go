package queue

import (
	"context"
	_ "embed"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed scripts/putback.lua
	putBackSource string
	putBackScript = script(putBackSource)
	//go:embed scripts/take.lua
	takeSource string
	takeScript = script(takeSource)
)

// lostTicket is how long a fetched task may take from Redis' answer to asynq's call of BaseContext: microseconds. After
// it, the task is one that asynq could not read.
const lostTicket = time.Second

// fetcher is the Redis client of one asynq server. It passes everything on, but for two scripts: a fetch waits for the
// gate and takes deliveries of ours many at a time, and a foreign task that asynq would archive is put back. The scripts
// are known by their keys; a test fails if a new release of asynq has others.
//
// asynq fetches in passes: one script for each queue, in random order, until one has a task. All passes of a server come
// from one goroutine, one after the other. A pass in which we have taken something ourselves finds nothing for asynq.
type fetcher struct {
	redis.UniversalClient
	reception *reception
	queues    int // how many scripts a pass has that finds nothing

	// Only for the fetching goroutine.
	left  int  // scripts left in this pass; 0 between passes
	slots int  // that this pass owns
	over  bool // this pass has found something, or is to find nothing

	pending atomic.Pointer[ticket] // of the last pass, until asynq calls receive or we write it off
	arrived chan struct{}          // room for one: pending was taken out
}

// receive makes the context of a fetched task. asynq calls it once for each, in a goroutine of the task's.
func (f *fetcher) receive() context.Context {
	t := f.pending.Swap(nil)
	if t == nil {
		t = &ticket{} // it was written off: the task came back to life after a second without a processor
	}
	select {
	case f.arrived <- struct{}{}:
	default: // one such message is enough
	}
	// asynq would take the end of this context for a failure of the task.
	return context.WithValue(context.WithoutCancel(f.reception.ctx), ticketKey{}, t)
}

// settle waits until the task of the last pass has arrived. One that never does was no task, and its slot is free again.
func (f *fetcher) settle() {
	if f.pending.Load() == nil {
		return
	}
	timer := time.NewTimer(lostTicket)
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

// fetch is one script of a pass: what asynq calls to fetch one task from a queue.
func (f *fetcher) fetch(ctx context.Context, pending string, call func() *redis.Cmd) *redis.Cmd {
	if f.left == 0 {
		f.settle()
		n, err := f.reception.gate.pass(f.reception.ctx)
		// When the server stops, asynq sees that after it has found nothing.
		f.left, f.slots, f.over = f.queues, n, err != nil
	}
	f.left--
	if f.over {
		return nothing(ctx)
	}
	queue := strings.TrimSuffix(strings.TrimPrefix(pending, "asynq:{"), "}:pending")
	some, field, foreign, err := f.take(ctx, queue)
	switch {
	case err != nil:
		return f.failed(ctx, err)
	case len(some) > 0:
		f.release(f.slots - len(some))
		f.slots, f.over = 0, true
		f.reception.gate.found()
		f.reception.hand(queue, field, some)
		return nothing(ctx)
	case !foreign:
		return f.empty(ctx)
	}
	cmd := call()
	switch err := cmd.Err(); {
	case err == nil:
		f.release(f.slots - 1)
		f.left, f.slots = 0, 0
		f.pending.Store(&ticket{slot: true})
		f.reception.gate.found()
		return cmd
	case err == redis.Nil: //nolint:errorlint // asynq compares it so, too: what it takes for empty is empty
		return f.empty(ctx)
	case redis.HasErrorPrefix(err, "NOSCRIPT"): // Eval follows, with the same keys
		f.left++
		return cmd
	default:
		return f.failed(ctx, err)
	}
}

// take takes as many deliveries of a queue as this pass has slots for, and puts them on record under a field; "" for no
// record. foreign reports that the next task is not ours.
func (f *fetcher) take(ctx context.Context, queue string) (some []Delivery, field string, foreign bool, err error) {
	const (
		day       = 24 * time.Hour
		statsKept = 90 * day // as asynq does it
	)
	r := f.reception
	now := time.Now().UTC()
	keys := []string{
		queueKey(queue, "pending"), queueKey(queue, "paused"), queueKey(queue, "processed:"+now.Format(time.DateOnly)),
		queueKey(queue, "processed"), fetchedKey(queue, r.client.namespace),
	}
	prefix := r.client.namespace + ":"
	session := ""
	if r.o.Session != nil {
		session = r.o.Session()
	}
	field, handled := r.inHand.begin(queue, session)
	args := []any{taskKey(queue, ""), prefix, messagePrefix, f.slots, now.Add(statsKept).Unix(), field}
	for _, one := range handled {
		args = append(args, one)
	}
	reply, err := takeScript().Run(ctx, f.UniversalClient, keys, args...).Slice()
	if err != nil {
		if field != "" { // it may have taken some, which no worker handles now
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

// empty ends the look at a queue that has nothing, and with it perhaps the pass.
func (f *fetcher) empty(ctx context.Context) *redis.Cmd {
	if f.left == 0 {
		f.release(f.slots)
		f.slots = 0
		f.reception.gate.empty()
	}
	return nothing(ctx)
}

// failed ends a pass.
func (f *fetcher) failed(ctx context.Context, err error) *redis.Cmd {
	f.release(f.slots)
	f.left, f.slots = 0, 0
	f.reception.gate.failed(err)
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(err)
	return cmd
}

func (f *fetcher) release(n int) {
	if n > 0 {
		f.reception.o.Slots.Release(n)
	}
}

func nothing(ctx context.Context) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(redis.Nil)
	return cmd
}
