package locks

import (
	"slices"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/space"
)

// Most of what a script costs Redis does not depend on its work: the call, its arguments, the
// checks for due entries and waiters. So one script serves requests that many callers make at once,
// as long as the fast path can do all of it. Only requests that it could not serve are sent alone.

// A batcher is the script that serves many letters of one kind at once.
type batcher struct {
	space.Prepared
	of     *redis.Script // the script of those letters
	shared int           // the number of leading arguments that a whole batch shares
	// subject is the index of the argument with the request ID (acquire) or the hold's record
	// (release)
	subject int
	// names is the index where the names of a bundle begin; a letter without names goes alone
	names int
	rest  func(l *letter) any // further arguments for each letter, or nil
	// reply returns the reply to the nth letter, from 0, of those that were served
	reply func(all space.Reply, nth int) space.Reply
}

const (
	batchOf = 200 // letters in one script at most, to keep it short
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
			rest: func(l *letter) any { return l.args[3].(string) + "\x1f" + l.args[4].(string) },
			reply: func(all space.Reply, nth int) space.Reply {
				return space.Reply{"granted", Token(all.NumberAt(2) + int64(nth)).String(), all.At(1)}
			},
		},
	}
}

// takes reports whether a letter may join others in a batch.
func (b *batcher) takes(others []*letter, l *letter) bool {
	n := len(l.args) - b.names
	return l.script.Script == b.of && 0 < n && n <= batchNames && len(others) < batchOf &&
		(len(others) == 0 || slices.Equal(others[0].args[:b.shared], l.args[:b.shared]))
}

// args returns the script's arguments for a batch.
func (b *batcher) args(letters []*letter) []any {
	args := append(make([]any, 0, 2+5*len(letters)), len(letters))
	for _, l := range letters {
		args = append(args, l.args[b.subject])
	}
	for _, l := range letters {
		args = append(args, len(l.args)-b.names)
	}
	for _, l := range letters {
		args = append(args, l.args[b.names:]...)
	}
	args = append(args, letters[0].args[:b.shared]...)
	if b.rest != nil {
		for _, l := range letters {
			args = append(args, b.rest(l))
		}
	}
	return args
}

// A batch is a group of letters that one script serves.
type batch struct {
	by      *batcher
	letters []*letter
	args    []any
}

// deal passes the reply on to the letters that were served, or an error to all, and returns the
// others.
func (b *batch) deal(all space.Reply, err error) (left []*letter) {
	marks, nth := all.At(0), 0
	for i, l := range b.letters {
		switch {
		case err != nil:
			l.answer(nil, err)
		case i < len(marks) && marks[i] == '1':
			l.answer(b.by.reply(all, nth), nil)
			nth++
		default:
			left = append(left, l)
		}
	}
	return left
}

// sort divides letters into batches and those that go alone. Releases come first, because an
// acquire beside them may want what they free.
func (p *post) sort(letters []*letter) (together []*batch, alone []*letter) {
	alone = letters
	for _, by := range p.units {
		var last *batch
		var others []*letter
		for _, l := range alone {
			switch {
			case !by.takes(nil, l):
				others = append(others, l)
			case last != nil && by.takes(last.letters, l):
				last.letters = append(last.letters, l)
			default:
				last = &batch{by: by, letters: []*letter{l}}
				together = append(together, last)
			}
		}
		alone = others
	}
	together = slices.DeleteFunc(together, func(b *batch) bool {
		if len(b.letters) > 1 {
			b.args = b.by.args(b.letters)
			return false
		}
		alone = append(alone, b.letters...)
		return true
	})
	return together, alone
}
