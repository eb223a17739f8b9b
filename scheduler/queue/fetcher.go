package queue

import (
	"context"
	_ "embed"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed scripts/putback.lua
var putBackSource string

var putBackScript = redis.NewScript(putBackSource)

// lostTicket is how long a fetched task may take from Redis' answer to asynq's call of BaseContext: microseconds. After
// it, the task is one that asynq could not read.
const lostTicket = time.Second

// fetcher is the Redis client of one asynq server. It passes everything on, but for two scripts: a fetch waits for the
// gate, and a foreign task that asynq would archive is put back. The scripts are known by their keys; a test fails if a
// new release of asynq has others.
//
// asynq fetches in passes: one script for each queue, in random order, until one has a task. All passes of a server come
// from one goroutine, one after the other.
type fetcher struct {
	redis.UniversalClient
	reception *reception
	queues    int // how many scripts a pass has that finds nothing

	left    int                    // scripts left in this pass; 0 between passes; only for the fetching goroutine
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
				f.reception.o.Slots.Release()
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
		return f.fetch(ctx, call)
	case len(keys) > 4 && len(args) > 0 && strings.HasSuffix(keys[3], "}:archived") && f.reception.foreign.take(keys[0]):
		retry := strings.TrimSuffix(keys[3], "archived") + "retry"
		due := time.Now().Add(foreignDelay).Unix()
		return putBackScript.Run(ctx, f.UniversalClient, []string{keys[0], keys[1], keys[2], retry}, args[0], due)
	}
	return call()
}

// fetch is one script of a pass.
func (f *fetcher) fetch(ctx context.Context, call func() *redis.Cmd) *redis.Cmd {
	if f.left == 0 {
		f.settle()
		if err := f.reception.gate.pass(f.reception.ctx); err != nil {
			return nothing(ctx) // the server stops: asynq sees that when it has found nothing
		}
		f.left = f.queues
	}
	cmd := call()
	switch err := cmd.Err(); {
	case err == nil:
		f.left = 0
		f.pending.Store(&ticket{slot: true})
		f.reception.gate.found()
	case err == redis.Nil: //nolint:errorlint // asynq compares it so, too: what it takes for empty is empty
		if f.left--; f.left == 0 {
			f.reception.o.Slots.Release()
			f.reception.gate.empty()
		}
	case redis.HasErrorPrefix(err, "NOSCRIPT"): // Eval follows, with the same keys
	default:
		f.left = 0
		f.reception.o.Slots.Release()
		f.reception.gate.failed(err)
	}
	return cmd
}

func nothing(ctx context.Context) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(redis.Nil)
	return cmd
}
