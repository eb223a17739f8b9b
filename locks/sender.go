package locks

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/space"
)

// A sender sends the scripts of many callers, alone or together (see [space.Commit]).
type sender struct {
	rdb     redis.UniversalClient
	units   []*batcher    // the scripts that serve many calls of one kind at once
	try     time.Duration // how long one attempt may take
	commit  space.Commit[*call]
	slowFor time.Duration // see slowOf

	mu         sync.Mutex
	slowUntil  time.Time // until then, callers in a hurry do not send by themselves; guarded by mu
	aloneUntil time.Time // until then every call goes alone; guarded by mu
}

// A call is one script that is sent together with others.
type call struct {
	space.Call
	done chan struct{} // closed when Reply and Err are set
}

const (
	maxInFlight = 2    // attempts in flight at once before calls are collected
	maxCalls    = 1000 // calls in one attempt
	// maxInline is how long a command that a caller in a hurry sends by itself may keep it: the
	// command cannot be interrupted. After that time it is abandoned, and its connection with it.
	maxInline = 50 * time.Millisecond
	// minSlow is the least that slowOf returns.
	minSlow = 10 * time.Second
	// splitFor is how long calls go alone after a script for many could not serve some.
	splitFor = 100 * time.Millisecond
)

// slowOf returns how long callers in a hurry do not send by themselves after one of their commands,
// a renewal or the opening showed that a reply takes longer than maxInline. The next renewal has
// got its reply by then, so a client far from Redis learns in time that Redis is still far.
func slowOf(lease time.Duration) time.Duration {
	return max(minSlow, lease/renewalsPerLease+tryOf(lease))
}

// newSender returns a sender of scripts with these keys, for a client with this lease. spawn starts
// a goroutine, unless the client is closed.
func newSender(rdb redis.UniversalClient, keys []string, lease, try time.Duration, spawn func(func()) bool) *sender {
	s := &sender{rdb: rdb, units: batchers(keys), try: try, slowFor: slowOf(lease)}
	s.commit = space.Commit[*call]{Flights: maxInFlight, Most: maxCalls, Send: s.flush, Spawn: spawn, Refuse: refuse}
	return s
}

// sendNow sends a script in the goroutine of its caller if few others are in flight. Otherwise ok
// is false, and nothing was sent. It takes no longer than try, or than maxInline for a caller in a
// hurry. ctx only carries values.
func (s *sender) sendNow(ctx context.Context, script space.Prepared, args []any, hurry bool) (r space.Reply, err error, ok bool) {
	if hurry && s.slow() || !s.commit.Enter() {
		return nil, nil, false
	}
	patience := s.try
	if hurry {
		patience = min(patience, maxInline)
	}
	ctx = context.WithoutCancel(ctx)
	bounded, cancel := context.WithTimeout(ctx, patience)
	one := space.Call{Prepared: script, Args: args}
	one.Send(bounded, s.rdb)
	if hurry && bounded.Err() != nil {
		s.took(maxInline)
	}
	cancel()
	s.commit.Leave(ctx)
	return one.Reply, one.Err, true
}

// took learns from the time that one command took. Scripts that are sent together take long under
// load, too, wherever Redis is: they show nothing.
func (s *sender) took(d time.Duration) {
	if d < maxInline {
		return
	}
	s.mu.Lock()
	s.slowUntil = time.Now().Add(s.slowFor)
	s.mu.Unlock()
}

// slow reports whether a command was slow recently.
func (s *sender) slow() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.slowUntil.IsZero() && time.Now().Before(s.slowUntil)
}

// enqueue queues a script to be sent with others. It gets its reply within twice try.
func (s *sender) enqueue(ctx context.Context, script space.Prepared, args []any) *call {
	c := &call{space.Call{Prepared: script, Args: args}, make(chan struct{})}
	s.commit.Add(context.WithoutCancel(ctx), c)
	return c
}

// refuse answers calls after the client was closed.
func refuse(calls []*call) {
	for _, c := range calls {
		c.Err = ErrClosed
		close(c.done)
	}
}

// flush sends calls in one round trip and uses one script for calls that it can serve at once.
// Calls that this script could not serve go alone, in a second round trip. For the time of
// splitFor, all later calls go alone, too, because whatever was in the way may last.
func (s *sender) flush(ctx context.Context, calls []*call) {
	ctx, cancel := context.WithTimeout(ctx, s.try)
	defer cancel()
	var together []*batch
	alone := calls
	s.mu.Lock()
	unite := time.Now().After(s.aloneUntil)
	s.mu.Unlock()
	if unite {
		together, alone = s.sort(calls)
	}
	left := s.roundTrip(ctx, together, alone)
	if len(left) == 0 {
		return
	}
	s.mu.Lock()
	s.aloneUntil = time.Now().Add(splitFor)
	s.mu.Unlock()
	s.roundTrip(ctx, nil, left)
}

// roundTrip answers all calls except those of a batch that were not served.
func (s *sender) roundTrip(ctx context.Context, together []*batch, alone []*call) (left []*call) {
	sent := make([]*space.Call, 0, len(together)+len(alone))
	for _, b := range together {
		sent = append(sent, &b.Call)
	}
	for _, c := range alone {
		sent = append(sent, &c.Call)
	}
	space.Send(ctx, s.rdb, sent)
	for _, b := range together {
		left = append(left, b.distribute()...)
	}
	for _, c := range alone {
		close(c.done)
	}
	return left
}

// send sends a script with or without others, whichever is faster, and waits for the reply.
func (s *sender) send(ctx context.Context, script space.Prepared, args []any) (space.Reply, error) {
	if r, err, ok := s.sendNow(ctx, script, args, false); ok {
		return r, err
	}
	c := s.enqueue(ctx, script, args)
	<-c.done
	return c.Reply, c.Err
}
