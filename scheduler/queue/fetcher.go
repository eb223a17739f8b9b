package queue

import (
	"context"
	"crypto/rand"
	_ "embed"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/space"
	"lockstep/scheduler/ledger"
)

//go:embed scripts/take.lua
var takeSource string

var takeScript = script("take", takeSource)

// adoptPatience is how long a fetch waits for the adoption of the tasks of the one before.
const adoptPatience = time.Second

// statsKept is for how long asynq keeps the counts of a day.
const statsKept = 90 * 24 * time.Hour

// fetcher is the Redis client of one asynq server. It passes on every command except the script
// that fetches a task: this waits for the gate, and takes many tasks at a time. fetcher recognizes
// the script by its keys. A test fails if a new release of asynq uses other keys.
//
// asynq fetches in passes: one script for each queue, in random order, until one has a task. All
// passes of a server come from one goroutine, one after another. asynq itself finds nothing in any
// of them.
type fetcher struct {
	redis.UniversalClient
	reception *reception
	ctx       context.Context // ends when this server stops; asynq passes none on
	queues    int             // number of scripts in a pass

	// Used only by the fetching goroutine.
	left  int   // scripts left in this pass; 0 between passes
	slots int   // slots that this pass owns
	at    int64 // of this pass, see gate
	// This pass has found something, or must find nothing.
	over bool
	late <-chan struct{} // closed at the end of the last adoption that took long
}

// EvalSha runs a script that Redis should know.
func (f *fetcher) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if queue, ok := fetches(keys); ok {
		return f.fetch(ctx, queue)
	}
	return f.UniversalClient.EvalSha(ctx, sha, keys, args...)
}

// fetches returns the queue from which a script of asynq with these keys fetches a task.
func fetches(keys []string) (queue string, ok bool) {
	if len(keys) != 4 || !strings.HasSuffix(keys[0], "}:pending") || !strings.HasSuffix(keys[1], "}:paused") {
		return "", false
	}
	return strings.TrimSuffix(strings.TrimPrefix(keys[0], "asynq:{"), "}:pending"), true
}

// fetch replaces one script of a pass, with which asynq fetches one task from a queue.
func (f *fetcher) fetch(ctx context.Context, queue string) *redis.Cmd {
	if f.left == 0 {
		n, at, err := f.reception.gate.pass(f.ctx)
		// When the server stops, asynq notices it after finding nothing.
		f.left, f.slots, f.at, f.over = f.queues, n, at, err != nil
	}
	f.left--
	if f.over {
		return nothing()
	}
	taken, err := f.take(ctx, queue)
	if err != nil {
		return f.failed(err)
	}
	if len(taken.deliveries)+len(taken.tasks) == 0 && !taken.trimmed {
		return f.empty()
	}
	n := min(f.slots, max(len(taken.deliveries), len(taken.tasks)))
	f.release(f.slots - n)
	f.slots, f.over = 0, true
	f.reception.gate.found()
	switch {
	case len(taken.tasks) > 0:
		f.adopt(queue, taken, n)
	case len(taken.deliveries) > 0:
		f.reception.hand(queue, taken.field, taken.deliveries)
	}
	return nothing()
}

// taken is what a fetch has taken: deliveries, or foreign tasks; or nothing.
type taken struct {
	deliveries []ledger.Due
	field      string // of their record, or "": there is none
	tasks      []task
	until      time.Time // when the leases of the tasks end, by the clock of this process

	// It was only IDs of tasks that a tool has deleted. Others may be behind them, and Redis no
	// longer counts this worker as asleep.
	trimmed bool
}

// adopt has tasks adopted, and passes slots on for their runs. The next fetch waits for that, but
// not for long: there may be deliveries. When a second adoption takes long, it also waits for the
// end of the first one, because the tasks of each may have to come again.
func (f *fetcher) adopt(queue string, taken taken, slots int) {
	done := make(chan struct{})
	f.reception.handlers.Go(func() {
		defer close(done)
		f.reception.adopt(queue, taken.tasks, taken.until, slots)
	})
	timer := time.NewTimer(adoptPatience)
	defer timer.Stop()
	select {
	case <-done:
		return
	case <-timer.C:
	case <-f.ctx.Done():
		return
	}
	if f.late != nil {
		select {
		case <-f.late:
		case <-f.ctx.Done():
		}
	}
	f.late = done
}

// take takes from a queue as many deliveries as this pass has slots for, or foreign tasks, which
// may be more.
func (f *fetcher) take(ctx context.Context, queue string) (taken, error) {
	r := f.reception
	until := time.Now().Add(leaseTime)
	now := r.client.now().UTC() // only for asynq's counts
	keys := []string{
		queueKey(queue, "pending"), queueKey(queue, "paused"), processedKey(queue, now),
		queueKey(queue, "processed"), fetchedKey(queue, r.client.namespace), asleepKey(queue, r.client.namespace),
		queueKey(queue, "active"), queueKey(queue, "lease"),
	}
	prefix := r.client.namespace + ":"
	session := ""
	if r.o.Session != nil {
		session = r.o.Session()
	}
	field, handled := r.inHand.begin(queue, session)
	args := []any{
		taskKey(queue, ""), prefix, messagePrefix, f.slots, now.Add(statsKept).Unix(), session, field, (3 * r.o.PollInterval).Milliseconds(),
		int(leaseTime.Seconds()), fetchMost, rand.Text()[:wordText],
	}
	for _, one := range handled {
		args = append(args, one)
	}
	reply, err := takeScript().Run(ctx, f.UniversalClient, keys, args...).Slice()
	if err != nil {
		if field != "" { // it may have taken deliveries, which no worker handles now
			handled = append(handled, field)
		}
		r.inHand.done(queue, handled...)
		return taken{}, err
	}
	some := taken{field: field, until: until}
	switch {
	case len(reply) < 2:
		some.trimmed = len(reply) == 1 && reply[0] == int64(1)
	case reply[0] == int64(1):
		of := space.Read(reply[1:], nil)
		at := of.Time()
		for range (len(reply) - 2) / 3 {
			id, message, word := of.Text(), of.Text(), of.Text()
			t, err := readTask(queue, id, message, word, at)
			if err != nil {
				r.often.Warn("an unreadable task goes back to its queue", "error", err)
			}
			some.tasks = append(some.tasks, t)
		}
		if of.Err != nil {
			return taken{}, fmt.Errorf("the reply of the take script: %w", of.Err)
		}
	default:
		for _, id := range reply[1:] {
			some.deliveries = append(some.deliveries, deliveryOf(strings.TrimPrefix(fmt.Sprint(id), prefix), queue))
		}
	}
	return some, nil
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
