package redistest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

// proxied returns a client with one open connection through a new proxy, a client that goes past it, and the proxy.
func proxied(t *testing.T) (through, direct *redis.Client, p *redistest.Proxy) {
	t.Helper()
	s := redistest.Shared(t)
	p = s.Proxy(t)
	through = p.Client(t)
	// A new connection begins with commands of the client library's own: they are over before the test's.
	if err := through.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	return through, s.Client(t), p
}

func TestHealthyProxyPassesEverything(t *testing.T) {
	t.Parallel()
	rdb, direct, _ := proxied(t)
	key := redistest.Namespace(t)
	large := make([]byte, 1<<20)
	if err := rdb.Set(t.Context(), key, large, 0).Err(); err != nil {
		t.Fatal(err)
	}
	got, err := rdb.Get(t.Context(), key).Bytes()
	if err != nil || len(got) != len(large) {
		t.Errorf("got %d bytes (%v), want %d", len(got), err, len(large))
	}
	direct.Del(t.Context(), key)
}

func TestDelayIsAddedPerDirection(t *testing.T) {
	t.Parallel()
	rdb, _, p := proxied(t)
	const delay = 30 * time.Millisecond
	for _, f := range []redistest.Faults{{RequestDelay: delay}, {ReplyDelay: delay}} {
		p.Set(f)
		begin := time.Now()
		if err := rdb.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took < delay {
			t.Errorf("%+v: a round trip took %v, want %v at least", f, took, delay)
		}
	}
}

func TestDelayDoesNotSlowTheStreamDown(t *testing.T) {
	t.Parallel()
	rdb, direct, p := proxied(t)
	key := redistest.Namespace(t)
	const delay = 100 * time.Millisecond
	p.Set(redistest.Faults{RequestDelay: delay})
	begin := time.Now()
	value := make([]byte, 2<<20) // over a hundred chunks: one after the other they would take 12 s
	if err := rdb.Set(t.Context(), key, value, 0).Err(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("it took %v, want little more than %v", took, delay)
	}
	direct.Del(t.Context(), key)
}

func TestSwallowedReplyWasApplied(t *testing.T) {
	t.Parallel()
	rdb, direct, p := proxied(t)
	key := redistest.Namespace(t)
	p.Set(redistest.Faults{DropReplies: true})
	if err := rdb.Set(within(t, 50*time.Millisecond), key, "v", 0).Err(); err == nil {
		t.Fatal("the reply arrived")
	}
	eventually(t, "the request is applied", func() bool { return direct.Get(t.Context(), key).Val() == "v" })
}

func TestDroppedRequestIsNotApplied(t *testing.T) {
	t.Parallel()
	rdb, direct, p := proxied(t)
	key := redistest.Namespace(t)
	p.Set(redistest.Faults{DropRequests: true, DropReplies: true})
	if err := rdb.Incr(within(t, 50*time.Millisecond), key).Err(); err == nil {
		t.Fatal("the request was answered")
	}
	p.Set(redistest.Faults{})
	if got, err := rdb.Incr(t.Context(), key).Result(); err != nil || got != 1 {
		t.Errorf("the counter is %d (%v), want 1: the first request was lost", got, err)
	}
	if got := direct.Get(t.Context(), key).Val(); got != "1" {
		t.Errorf("the counter is %s, want 1", got)
	}
}

func TestConnectionThatLostBytesStaysDead(t *testing.T) {
	t.Parallel()
	rdb, _, p := proxied(t)
	pubsub := rdb.Subscribe(t.Context(), redistest.Namespace(t))
	defer pubsub.Close()
	if _, err := pubsub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Set(redistest.Faults{DropReplies: true})
	if err := pubsub.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := pubsub.ReceiveTimeout(t.Context(), 50*time.Millisecond); err == nil {
		t.Fatal("the reply arrived")
	}
	p.Set(redistest.Faults{})
	if err := pubsub.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := pubsub.ReceiveTimeout(t.Context(), 50*time.Millisecond); err == nil {
		t.Errorf("got %v over a stream with a hole in it", got)
	}
}

func TestHeldBytesArriveLate(t *testing.T) {
	t.Parallel()
	rdb, direct, p := proxied(t)
	key := redistest.Namespace(t)
	p.Set(redistest.Faults{HoldRequests: true})
	answer := make(chan error, 1)
	go func() { answer <- rdb.Set(t.Context(), key, "v", 0).Err() }() // received below
	select {
	case err := <-answer:
		t.Fatalf("answered while held: %v", err)
	case <-within(t, 30*time.Millisecond).Done():
	}
	if n := direct.Exists(t.Context(), key).Val(); n != 0 {
		t.Error("applied while held")
	}
	p.Set(redistest.Faults{})
	if err := <-answer; err != nil {
		t.Error(err)
	}
	if got := direct.Get(t.Context(), key).Val(); got != "v" {
		t.Errorf("got %q, want v", got)
	}
}

func TestRefusedConnectionsFailAtOnce(t *testing.T) {
	t.Parallel()
	rdb, _, p := proxied(t)
	p.Set(redistest.Faults{Refuse: true})
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Errorf("an open connection failed: %v", err)
	}
	fresh := p.Client(t)
	if err := fresh.Ping(t.Context()).Err(); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a new connection: %v, want a failure at once", err)
	}
	p.Cut()
	p.Set(redistest.Faults{})
	eventually(t, "new connections are welcome again", func() bool { return rdb.Ping(t.Context()).Err() == nil })
}

func TestCutConnectionsFail(t *testing.T) {
	t.Parallel()
	rdb, _, p := proxied(t)
	pubsub := rdb.Subscribe(t.Context(), redistest.Namespace(t))
	defer pubsub.Close()
	if _, err := pubsub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	if _, err := pubsub.ReceiveTimeout(t.Context(), 20*time.Second); err == nil {
		t.Error("the connection lives on")
	}
}

func TestProxyWithoutServerResets(t *testing.T) {
	t.Parallel()
	s := redistest.New(t, redistest.Options{})
	rdb := s.Proxy(t).Client(t)
	s.Kill()
	if err := rdb.Ping(t.Context()).Err(); err == nil {
		t.Error("somebody answered")
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Errorf("after the restart: %v", err)
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]redistest.Faults{
		"healthy": {},
		"holding": {HoldRequests: true, HoldReplies: true},
		"dropped": {DropRequests: true, DropReplies: true},
		"delayed": {RequestDelay: time.Hour, ReplyDelay: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			rdb, _, p := proxied(t)
			p.Set(f)
			_ = rdb.Ping(within(t, 20*time.Millisecond)).Err()
			p.Close() // returns only when its goroutines have ended
			p.Close()
			if err := rdb.Ping(t.Context()).Err(); err == nil {
				t.Error("somebody answered")
			}
		})
	}
}
