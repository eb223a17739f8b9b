package queue

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

// recorder is the Redis client of an asynq client that is to send nothing: it writes down the script by which asynq would
// put a task into its queue, so that we can send many of them in one round trip. What a task looks like in Redis stays
// asynq's business.
type recorder struct {
	redis.UniversalClient // for what asynq does besides, which is nothing as far as a test can tell

	scripts sync.Map // source -> *redis.Script
}

// enqueueing is the call of asynq's script for one task.
type enqueueing struct {
	script *redis.Script
	keys   []string
	args   []any
}

type enqueueingKey struct{}

// record has what is enqueued under the context it returns written down instead.
func record(ctx context.Context) (context.Context, *enqueueing) {
	e := new(enqueueing)
	return context.WithValue(ctx, enqueueingKey{}, e), e
}

// SAdd announces a queue to asynq's tools. [Client.Push] does that itself.
func (r *recorder) SAdd(ctx context.Context, _ string, _ ...any) *redis.IntCmd {
	return redis.NewIntCmd(ctx)
}

// EvalSha knows no script, so that asynq shows its text.
func (r *recorder) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(errNoScript{})
	return cmd
}

// Eval writes a script down and says that the task was put into its queue.
func (r *recorder) Eval(ctx context.Context, source string, keys []string, args ...any) *redis.Cmd {
	script, ok := r.scripts.Load(source)
	if !ok {
		script, _ = r.scripts.LoadOrStore(source, redis.NewScript(source))
	}
	e := ctx.Value(enqueueingKey{}).(*enqueueing)
	e.script, e.keys, e.args = script.(*redis.Script), keys, args
	cmd := redis.NewCmd(ctx)
	cmd.SetVal(int64(1))
	return cmd
}

// errNoScript is Redis' answer to the digest of a script that it does not know.
type errNoScript struct{}

func (errNoScript) Error() string { return "NOSCRIPT No matching script." }
func (errNoScript) RedisError()   {}
