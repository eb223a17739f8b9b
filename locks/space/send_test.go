package space

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

// textsSent counts the commands that carry the text of a script.
type textsSent struct {
	redis.Hook
	n int
}

func (s *textsSent) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *textsSent) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.note(cmd)
		return next(ctx, cmd)
	}
}

func (s *textsSent) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			s.note(cmd)
		}
		return next(ctx, cmds)
	}
}

func (s *textsSent) note(cmd redis.Cmder) {
	if strings.EqualFold(cmd.Name(), "eval") {
		s.n++
	}
}

// TestAScriptThatTheServerDoesNotKnowIsSentOnce sends calls of two unknown scripts, in each of the
// three ways. Each call gets its own reply, in the order of the calls.
func TestAScriptThatTheServerDoesNotKnowIsSentOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		sent := &textsSent{}
		rdb.AddHook(sent)
		key := "{" + redistest.Namespace(t) + "}:n"
		for way, send := range map[string]func([]*Call){
			"alone": func(calls []*Call) {
				for _, c := range calls {
					c.Send(t.Context(), rdb)
				}
			},
			"in a pipeline":    func(calls []*Call) { Send(t.Context(), rdb, calls) },
			"in a transaction": func(calls []*Call) { SendWhole(t.Context(), rdb, calls) },
		} {
			sent.n = 0
			if err := rdb.Del(t.Context(), key).Err(); err != nil {
				t.Fatal(err)
			}
			count := Prepare(redis.NewScript("return {redis.call('INCR', KEYS[1]), ARGV[1]} -- "+key+way), []string{key})
			fail := Prepare(redis.NewScript("return redis.error_reply('ERR '..ARGV[1]) -- "+key+way), []string{key})
			var calls []*Call
			for i := range 6 {
				by := count
				if i%3 == 2 {
					by = fail
				}
				calls = append(calls, &Call{Prepared: by, Args: []any{i}})
			}
			send(calls)
			n := int64(0)
			for i, c := range calls {
				if i%3 == 2 {
					if c.Err == nil || !strings.Contains(c.Err.Error(), fmt.Sprint("ERR ", i)) {
						t.Errorf("%s: call %d got %v, %v, want its error", way, i, c.Reply, c.Err)
					}
					continue
				}
				n++
				if c.Err != nil || c.Reply.NumberAt(0) != n || c.Reply.At(1) != fmt.Sprint(i) {
					t.Errorf("%s: call %d got %v, %v, want %d and its number", way, i, c.Reply, c.Err, n)
				}
			}
			if sent.n != 2 {
				t.Errorf("%s: %d texts of scripts were sent, want one of each", way, sent.n)
			}
		}
	})
}

// TestACallThatFailsLeavesTheOthersTheirReplies sends calls of an unknown script that ends with an
// error. A miniredis does not keep the text of such a script.
func TestACallThatFailsLeavesTheOthersTheirReplies(t *testing.T) {
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		key := "{" + redistest.Namespace(t) + "}:n"
		script := Prepare(redis.NewScript("if ARGV[1] ~= '3' then error('bad '..ARGV[1]) end return 'good' -- "+key), []string{key})
		var calls []*Call
		for i := range 5 {
			calls = append(calls, &Call{Prepared: script, Args: []any{i}})
		}
		Send(t.Context(), rdb, calls)
		for i, c := range calls {
			switch {
			case i == 3 && (c.Err != nil || c.Reply.At(0) != "good"), i != 3 && (c.Err == nil || !strings.Contains(c.Err.Error(), fmt.Sprint("bad ", i))):
				t.Errorf("call %d got %v, %v", i, c.Reply, c.Err)
			}
		}
	})
}
