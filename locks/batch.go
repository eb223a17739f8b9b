package locks

import (
	"slices"

	"github.com/redis/go-redis/v9"
)

// What a script costs Redis is mostly the same however little it does: the call, its arguments, the look whether something
// is due or somebody waits. So what many callers ask for at once goes by one script where the fast path may do all of it;
// only what it could not do is asked for alone.

// A batcher is the script that does at once what many letters of one kind ask for.
type batcher struct {
	prepared
	of      *redis.Script                  // the script of those letters
	shared  int                            // so many of a letter's arguments, the first ones, are the same for all of a batch
	subject int                            // which of them says what the letter is about
	names   int                            // from which on they are the names of its bundle; without any it goes alone
	rest    func(l *letter) any            // what else the script is told of each, or nil
	reply   func(all reply, nth int) reply // what one is told, of those for which it was done the nth, from 0
}

const (
	batchOf    = 200 // letters in one script at most: it is to be short
	batchNames = 5   // names that each of them may have: so much Lua takes apart at once, on any server
)

func batchers(keys []string) []*batcher {
	return []*batcher{
		{
			prepared: prepare(releaseAllScript(), keys), of: releaseScript(), subject: 1, names: 2,
			reply: func(reply, int) reply { return reply{"released"} },
		},
		{
			prepared: prepare(acquireAllScript(), keys), of: acquireScript(), shared: 1, subject: 1, names: 5,
			rest: func(l *letter) any { return l.args[3].(string) + "\x1f" + l.args[4].(string) },
			reply: func(all reply, nth int) reply {
				return reply{"granted", Token(all.number(2) + int64(nth)).String(), all.text(1)}
			},
		},
	}
}

// takes tells whether a letter may join others in a batch.
func (b *batcher) takes(others []*letter, l *letter) bool {
	n := len(l.args) - b.names
	return l.script.script == b.of && 0 < n && n <= batchNames && len(others) < batchOf &&
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

// A batch is some letters that go by one script.
type batch struct {
	by      *batcher
	letters []*letter
	args    []any
}

// deal passes the answer on to those for which something was done, an error to all, and returns the others.
func (b *batch) deal(all reply, err error) (left []*letter) {
	marks, nth := all.text(0), 0
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

// sort parts letters into those that go by one script and those that go alone. Releases come first: an acquire beside them
// may want what they free.
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
