package space

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"
)

// A Prepared script is sent so often that its command is prepared once.
type Prepared struct {
	Script *redis.Script
	keys   []string
	prefix []any // of the command: EVALSHA, hash, number of keys, keys
}

// Prepare prepares the command of a script for the given keys.
func Prepare(script *redis.Script, keys []string) Prepared {
	prefix := append(make([]any, 0, 3+len(keys)), "EVALSHA", script.Hash(), len(keys))
	for _, key := range keys {
		prefix = append(prefix, key)
	}
	return Prepared{script, keys, prefix}
}

// A Call is one call of a script. Sending it sets Reply or Err.
type Call struct {
	Prepared
	Args  []any
	Reply Reply
	Err   error
}

// A caller of scripts is a client or a pipeline.
type caller interface {
	redis.Scripter
	Do(ctx context.Context, args ...any) *redis.Cmd
}

// send sends the call, or only appends it to a pipeline. text sends the text of the script.
func (c *Call) send(ctx context.Context, to caller, text bool) *redis.Cmd {
	if text {
		return c.Script.Eval(ctx, to, c.keys, c.Args...)
	}
	command := make([]any, 0, len(c.prefix)+len(c.Args))
	return to.Do(ctx, append(append(command, c.prefix...), c.Args...)...)
}

// take takes the reply to the call. It returns false if the server does not know the script.
func (c *Call) take(rdb redis.Scripter, sent *redis.Cmd) (known bool) {
	answer, err := sent.Result()
	if err != nil {
		c.Reply, c.Err = nil, Explain(err, NamespaceOf(c.keys[0]), BuildOf(rdb))
		return !redis.HasErrorPrefix(err, "NOSCRIPT")
	}
	c.Reply, c.Err = ToReply(answer), nil
	return true
}

// Read returns a reader of the reply to a call that was sent.
func (c *Call) Read() *Reader { return Read(c.Reply, c.Err) }

// Send sends the call once. If the server does not know the script yet, it sends the text.
func (c *Call) Send(ctx context.Context, rdb redis.UniversalClient) {
	if !c.take(rdb, c.send(ctx, rdb, false)) {
		c.take(rdb, c.send(ctx, rdb, true))
	}
}

// Send sends calls in one round trip, and again those of scripts that the server does not know yet.
// Those of a round trip run in their order, but other clients' calls may come in between. Each has
// its own reply or error.
func Send(ctx context.Context, rdb redis.UniversalClient, calls []*Call) {
	// A round trip with texts answers the first call of each script at least.
	for texts := false; len(calls) > 0; texts = true {
		calls = roundTrip(ctx, rdb, rdb.Pipeline(), calls, texts)
	}
}

// SendWhole sends calls in one transaction: all of them run, one after the other, or none. It sends
// the texts of their scripts, because in a transaction it is too late to learn that the server does
// not know them.
func SendWhole(ctx context.Context, rdb redis.UniversalClient, calls []*Call) {
	roundTrip(ctx, rdb, rdb.TxPipeline(), calls, true)
}

// roundTrip sends calls through a pipeline of rdb. It returns those of scripts that the server does
// not know. With texts, the first call of each script has its text.
func roundTrip(ctx context.Context, rdb redis.Scripter, pipe redis.Pipeliner, calls []*Call, texts bool) (unknown []*Call) {
	sent := make([]*redis.Cmd, len(calls))
	for i, c := range calls {
		text := texts && !slices.ContainsFunc(calls[:i], func(before *Call) bool { return before.Script == c.Script })
		sent[i] = c.send(ctx, pipe, text)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, c := range calls {
		if !c.take(rdb, sent[i]) {
			unknown = append(unknown, c)
		}
	}
	return unknown
}
