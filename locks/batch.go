package locks

import (
	"slices"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/space"
)

// Most of what a script costs Redis does not depend on its work: the call, its arguments, the
// checks for due entries and waiters. So one script serves requests that many callers make at once,
// as long as the fast path can do all of it. Only requests that it could not serve are sent alone.

// A batcher is the script that serves many calls of one kind at once.
type batcher struct {
	space.Prepared
	of     *redis.Script // the script of those calls
	shared int           // the number of leading arguments that a whole batch shares
	// subject is the index of the argument with the request ID (acquire) or the hold's record
	// (release)
	subject int
	// names is the index where the names of a bundle begin; a call without names goes alone
	names int
	rest  func(c *call) any // further arguments for each call, or nil
	// reply returns the reply to the nth call, from 0, of those that were served
	reply func(all space.Reply, nth int) space.Reply
}

const (
	batchOf = 200 // calls in one script at most, to keep it short
	// batchNames is how many names each of them may have, so that Lua can unpack those of a batch
	// at once, on any server.
	batchNames = 5
)

func batchers(keys []string) []*batcher {
	return []*batcher{
		{
			Prepared: space.Prepare(space.ReleaseAll.Redis(), keys), of: space.Release.Redis(), subject: 1, names: 2,
			reply: func(space.Reply, int) space.Reply { return space.Reply{"released"} },
		},
		{
			Prepared: space.Prepare(space.AcquireAll.Redis(), keys), of: space.Acquire.Redis(), shared: 1, subject: 1, names: 5,
			rest: func(c *call) any { return c.Args[3].(string) + "\x1f" + c.Args[4].(string) },
			reply: func(all space.Reply, nth int) space.Reply {
				return space.Reply{"granted", Token(all.NumberAt(2) + int64(nth)).String(), all.At(1)}
			},
		},
	}
}

// takes reports whether a call may join others in a batch.
func (b *batcher) takes(others []*call, c *call) bool {
	n := len(c.Args) - b.names
	return c.Script == b.of && 0 < n && n <= batchNames && len(others) < batchOf &&
		(len(others) == 0 || slices.Equal(others[0].Args[:b.shared], c.Args[:b.shared]))
}

// args returns the script's arguments for a batch.
func (b *batcher) args(calls []*call) []any {
	args := append(make([]any, 0, 2+5*len(calls)), len(calls))
	for _, c := range calls {
		args = append(args, c.Args[b.subject])
	}
	for _, c := range calls {
		args = append(args, len(c.Args)-b.names)
	}
	for _, c := range calls {
		args = append(args, c.Args[b.names:]...)
	}
	args = append(args, calls[0].Args[:b.shared]...)
	if b.rest != nil {
		for _, c := range calls {
			args = append(args, b.rest(c))
		}
	}
	return args
}

// A batch is a group of calls that one script serves.
type batch struct {
	space.Call
	by    *batcher
	calls []*call
}

// distribute passes the reply on to the calls that were served, or an error to all, and returns the
// others.
func (b *batch) distribute() (left []*call) {
	marks, nth := b.Reply.At(0), 0
	for i, c := range b.calls {
		switch {
		case b.Err != nil:
			c.Err = b.Err
		case i < len(marks) && marks[i] == '1':
			c.Reply = b.by.reply(b.Reply, nth)
			nth++
		default:
			left = append(left, c)
			continue
		}
		close(c.done)
	}
	return left
}

// sort divides calls into batches and those that go alone. Releases come first, because an acquire
// beside them may want what they free.
func (s *sender) sort(calls []*call) (together []*batch, alone []*call) {
	alone = calls
	for _, by := range s.units {
		var last *batch
		var others []*call
		for _, c := range alone {
			switch {
			case !by.takes(nil, c):
				others = append(others, c)
			case last != nil && by.takes(last.calls, c):
				last.calls = append(last.calls, c)
			default:
				last = &batch{Call: space.Call{Prepared: by.Prepared}, by: by, calls: []*call{c}}
				together = append(together, last)
			}
		}
		alone = others
	}
	together = slices.DeleteFunc(together, func(b *batch) bool {
		if len(b.calls) > 1 {
			b.Args = b.by.args(b.calls)
			return false
		}
		alone = append(alone, b.calls...)
		return true
	})
	return together, alone
}
