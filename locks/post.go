package locks

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/space"
)

// A post sends the scripts of many callers. While few are in flight, each caller sends its own, at
// once and on its own connection. Scripts that arrive meanwhile are collected and sent together, so
// the more callers there are, the fewer round trips each of them needs (group commit). The
// automatic pipelining of go-redis keeps no deadlines and sends for callers that have stopped
// waiting, so it is not used here.
type post struct {
	rdb   redis.UniversalClient
	keys  []string          // of every script
	units []*batcher        // the scripts that serve many letters of one kind at once
	try   time.Duration     // how long one attempt may take
	spawn func(func()) bool // starts a goroutine, unless the client is closed
	now   func() time.Time

	mu      sync.Mutex
	under   int       // attempts in flight; guarded by mu
	letters []*letter // waiting for one of these to return; guarded by mu
	slow    time.Time // until then, callers in a hurry do not send by themselves; guarded by mu
	parted  time.Time // until then every letter goes alone; guarded by mu
}

// A letter is one script that is sent together with others.
type letter struct {
	script space.Prepared
	args   []any
	done   chan struct{} // closed when reply and err are set
	reply  space.Reply
	err    error
}

const (
	sendings = 2    // attempts in flight at once before letters are collected
	mostOf   = 1000 // letters in one attempt
	// hurried is how long a command that a caller in a hurry sends by itself may keep it: the
	// command cannot be interrupted.
	hurried = 50 * time.Millisecond
	// afterSlow is how long callers in a hurry do not send by themselves after one command took
	// longer than hurried.
	afterSlow = 10 * time.Second
	// apart is how long letters go alone after a script for many could not serve some.
	apart = 100 * time.Millisecond
)

// own sends a script in the goroutine of its caller if few others are in flight. Otherwise ok is
// false, and nothing was sent. It takes no longer than try, or than hurried for a caller in a
// hurry. ctx only carries values.
func (p *post) own(ctx context.Context, script space.Prepared, args []any, hurry bool) (r space.Reply, err error, ok bool) {
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
	r, err = p.result(bounded, p.rdb.Do(bounded, script.Command(args)...), script, args)
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

// drop queues a script to be sent with others. It gets its reply within twice try.
func (p *post) drop(ctx context.Context, script space.Prepared, args []any) *letter {
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

// start delivers letters in a goroutine that already counts as an attempt in flight.
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

// deliver sends letters until none are left.
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

// send sends letters in one round trip and uses one script for letters that it can serve at once.
// Letters that this script could not serve go alone, in a second round trip. For the time of apart,
// all later letters go alone, too, because whatever was in the way may last.
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

// trip is one round trip. It answers all letters except those of a batch that were not served.
func (p *post) trip(ctx context.Context, together []*batch, alone []*letter) (left []*letter) {
	pipe := p.rdb.Pipeline()
	sent := make([]*redis.Cmd, 0, len(together)+len(alone))
	for _, b := range together {
		sent = append(sent, pipe.Do(ctx, b.by.Command(b.args)...))
	}
	for _, l := range alone {
		sent = append(sent, pipe.Do(ctx, l.script.Command(l.args)...))
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, b := range together {
		all, err := p.result(ctx, sent[i], b.by.Prepared, b.args)
		left = append(left, b.deal(all, err)...)
	}
	for i, l := range alone {
		l.answer(p.result(ctx, sent[len(together)+i], l.script, l.args))
	}
	return left
}

// result returns the reply of a script. If the server does not know the script yet, it sends the
// text.
func (p *post) result(ctx context.Context, sent *redis.Cmd, script space.Prepared, args []any) (space.Reply, error) {
	answer, err := sent.Result()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		return space.RunText(ctx, p.rdb, script.Script, p.keys, args...)
	}
	if err != nil {
		return nil, space.Explain(err, space.NamespaceOf(p.keys[0]), space.BuildOf(p.rdb))
	}
	return space.ToReply(answer), nil
}

func (l *letter) answer(r space.Reply, err error) {
	l.reply, l.err = r, err
	close(l.done)
}

// wait sends a script with or without others, whichever is faster, and waits for the reply.
func (p *post) wait(ctx context.Context, script space.Prepared, args []any) (space.Reply, error) {
	if r, err, ok := p.own(ctx, script, args, false); ok {
		return r, err
	}
	l := p.drop(ctx, script, args)
	<-l.done
	return l.reply, l.err
}
