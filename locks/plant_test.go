package locks

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/space"
)

// Internals for the tests of package locks_test.

// Soak multiplies the length of tests, see soak.
var Soak = soak

// Plant makes a client send scripts in which old is replaced by new: a fault that a test must find.
func Plant(t testing.TB, c *Client, old, new string) {
	t.Helper()
	p := planted{}
	for _, script := range space.Scripts() {
		source := script.Source(space.Format)
		if faulty := strings.ReplaceAll(source, old, new); faulty != source {
			p[source] = faulty
			p[redis.NewScript(source).Hash()] = redis.NewScript(faulty).Hash()
		}
	}
	if len(p) == 0 {
		t.Fatalf("the fault is not in the scripts: %q is not there", old)
	}
	c.rdb.AddHook(p)
	c.beat.AddHook(p)
}

// planted maps the text of a script, and its hash, to those of the faulty one.
type planted map[string]string

func (p planted) swap(cmd redis.Cmder) {
	args := cmd.Args()
	if len(args) < 2 || cmd.Name() != "eval" && cmd.Name() != "evalsha" {
		return
	}
	if text, ok := args[1].(string); ok && p[text] != "" {
		args[1] = p[text]
	}
}

func (p planted) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p planted) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		p.swap(cmd)
		return next(ctx, cmd)
	}
}

func (p planted) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			p.swap(cmd)
		}
		return next(ctx, cmds)
	}
}
