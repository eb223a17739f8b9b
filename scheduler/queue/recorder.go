package queue

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"

	"lockstep/scheduler/ledger"
)

// recorder is the Redis client of an asynq client that must send nothing. It records the script
// with which asynq would enqueue a task, so that many can be sent in one round trip. So only asynq
// needs to know the format of a message; that of a task's hash is also in scripts/push.lua.
type recorder struct {
	// For any other command of asynq. Tests have found none.
	redis.UniversalClient

	scripts sync.Map // source -> *redis.Script
}

// enqueueing is the call of asynq's script for one task, or of ours for several.
type enqueueing struct {
	script *redis.Script
	keys   []string
	args   []any
	of     []ledger.Due
}

type enqueueingKey struct{}

// record returns a context under which an enqueued task is recorded instead of sent.
func record(ctx context.Context) (context.Context, *enqueueing) {
	e := new(enqueueing)
	return context.WithValue(ctx, enqueueingKey{}, e), e
}

// SAdd would announce a queue to asynq's tools. [Client.Push] does that itself.
func (r *recorder) SAdd(ctx context.Context, _ string, _ ...any) *redis.IntCmd {
	return redis.NewIntCmd(ctx)
}

// EvalSha reports an unknown script, so that asynq sends its text.
func (r *recorder) EvalSha(context.Context, string, []string, ...any) *redis.Cmd {
	return redis.NewCmdResult(nil, errNoScript{})
}

// Eval records a script and reports that the task was enqueued.
func (r *recorder) Eval(ctx context.Context, source string, keys []string, args ...any) *redis.Cmd {
	script, ok := r.scripts.Load(source)
	if !ok {
		script, _ = r.scripts.LoadOrStore(source, redis.NewScript(source))
	}
	e := ctx.Value(enqueueingKey{}).(*enqueueing)
	e.script, e.keys, e.args = script.(*redis.Script), keys, args
	return redis.NewCmdResult(int64(1), nil)
}

// errNoScript is Redis' reply to the digest of an unknown script.
type errNoScript struct{}

func (errNoScript) Error() string { return "NOSCRIPT No matching script." }
func (errNoScript) RedisError()   {}
