package locks

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A post sends the scripts of many callers. While few are under way, each is sent by its caller, at once and on a
// connection of its own; what comes meanwhile is collected and sent together: the more callers there are, the fewer round
// trips each of them needs (group commit). go-redis' own automatic pipelining keeps no deadlines and sends for callers who
// have given up, hence this.
type post struct {
	rdb   redis.UniversalClient
	keys  []string          // of every script
	units []*batcher        // the scripts that do at once what letters of one kind ask for
	try   time.Duration     // how long one sending may take
	spawn func(func()) bool // starts a goroutine, unless the client is closed
	now   func() time.Time

	mu      sync.Mutex
	under   int       // sendings that are under way; guarded by mu
	letters []*letter // what waits for one of them to come back; guarded by mu
	slow    time.Time // until then nobody in a hurry sends himself; guarded by mu
	parted  time.Time // until then every letter goes alone; guarded by mu
}

// A letter is one script that is sent together with others.
type letter struct {
	script prepared
	args   []any
	done   chan struct{} // closed when there are reply and err
	reply  reply
	err    error
}

const (
	sendings = 2    // that are under way at once before letters are collected
	mostOf   = 1000 // letters in one sending
	// hurried is how long somebody in a hurry may be kept by a command that he sends himself: it cannot be interrupted.
	hurried = 50 * time.Millisecond
	// afterSlow is for how long nobody in a hurry sends himself when one command has taken longer than that.
	afterSlow = 10 * time.Second
	// apart is for how long letters go alone when a script for many had left some.
	apart = 100 * time.Millisecond
)

// own sends a script in the goroutine of its caller, when few others are under way. Otherwise ok is false, and nothing was
// sent. It takes no longer than try, or hurried for somebody in a hurry; ctx only carries values.
func (p *post) own(ctx context.Context, script prepared, args []any, hurry bool) (r reply, err error, ok bool) {
	p.mu.Lock()
	if p.under >= sendings || hurry && !p.slow.IsZero() && p.now().Before(p.slow) {
		p.mu.Unlock()
		return nil, nil, false
	}
	p.under++
	p.mu.Unlock()
	patience := p.try
	if hurry {
		patience = min(patience, hurried)
	}
	ctx = context.WithoutCancel(ctx)
	bounded, cancel := context.WithTimeout(ctx, patience)
	r, err = p.result(bounded, p.rdb.Do(bounded, script.command(args)...), script, args)
	late := hurry && bounded.Err() != nil
	cancel()
	p.mu.Lock()
	if late {
		p.slow = p.now().Add(afterSlow)
	}
	if len(p.letters) == 0 {
		p.under--
		p.mu.Unlock()
		return r, err, true
	}
	p.mu.Unlock()
	p.start(ctx)
	return r, err, true
}

// drop has a script sent with others. It is answered within twice try.
func (p *post) drop(ctx context.Context, script prepared, args []any) *letter {
	l := &letter{script: script, args: args, done: make(chan struct{})}
	p.mu.Lock()
	p.letters = append(p.letters, l)
	idle := p.under < sendings
	if idle {
		p.under++
	}
	p.mu.Unlock()
	if idle {
		p.start(context.WithoutCancel(ctx))
	}
	return l
}

// start has letters delivered by a goroutine that counts as one that is under way already.
func (p *post) start(ctx context.Context) {
	if !p.spawn(func() { p.deliver(ctx) }) {
		p.mu.Lock()
		p.under--
		letters := p.letters
		p.letters = nil
		p.mu.Unlock()
		for _, l := range letters {
			l.answer(nil, ErrClosed)
		}
	}
}

// deliver sends letters until there are none.
func (p *post) deliver(ctx context.Context) {
	for {
		p.mu.Lock()
		batch := p.letters[:min(len(p.letters), mostOf)]
		p.letters = p.letters[len(batch):]
		if len(batch) == 0 {
			p.letters = nil
			p.under--
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		p.send(ctx, batch)
	}
}

// send sends letters in one round trip, by one script those that one can do at once. What it could not do for some goes
// alone, in a second round trip; and so does, for as long as apart, all that comes then: what was in the way may last.
func (p *post) send(ctx context.Context, letters []*letter) {
	ctx, cancel := context.WithTimeout(ctx, p.try)
	defer cancel()
	var together []*batch
	alone := letters
	p.mu.Lock()
	unite := p.now().After(p.parted)
	p.mu.Unlock()
	if unite {
		together, alone = p.sort(letters)
	}
	left := p.trip(ctx, together, alone)
	if len(left) == 0 {
		return
	}
	p.mu.Lock()
	p.parted = p.now().Add(apart)
	p.mu.Unlock()
	p.trip(ctx, nil, left)
}

// trip is one round trip. It answers all letters but those of a batch for which nothing was done.
func (p *post) trip(ctx context.Context, together []*batch, alone []*letter) (left []*letter) {
	pipe := p.rdb.Pipeline()
	sent := make([]*redis.Cmd, 0, len(together)+len(alone))
	for _, b := range together {
		sent = append(sent, pipe.Do(ctx, b.by.command(b.args)...))
	}
	for _, l := range alone {
		sent = append(sent, pipe.Do(ctx, l.script.command(l.args)...))
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, b := range together {
		all, err := p.result(ctx, sent[i], b.by.prepared, b.args)
		left = append(left, b.deal(all, err)...)
	}
	for i, l := range alone {
		l.answer(p.result(ctx, sent[len(together)+i], l.script, l.args))
	}
	return left
}

// result returns what a script has answered. A server that does not know it yet is sent the text.
func (p *post) result(ctx context.Context, sent *redis.Cmd, script prepared, args []any) (reply, error) {
	answer, err := sent.Result()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		return runAssembled(ctx, p.rdb, script.script, p.keys, args...)
	}
	if err != nil {
		return nil, explain(err, namespaceOf(p.keys[0]), Format)
	}
	return toReply(answer), nil
}

func (l *letter) answer(r reply, err error) {
	l.reply, l.err = r, err
	close(l.done)
}

// wait sends a script with or without others, whichever is faster, and waits for the answer.
func (p *post) wait(ctx context.Context, script prepared, args []any) (reply, error) {
	if r, err, ok := p.own(ctx, script, args, false); ok {
		return r, err
	}
	l := p.drop(ctx, script, args)
	<-l.done
	return l.reply, l.err
}
