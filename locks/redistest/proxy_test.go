package redistest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
)

// proxied returns a client with one open connection through a new proxy, a client that bypasses it,
// and the proxy.
func proxied(t *testing.T) (through, direct *redis.Client, p *redistest.Proxy) {
	t.Helper()
	s := redistest.Shared(t)
	p = s.Proxy(t)
	through = p.Client(t)
	// A new connection begins with the client library's own commands: they are over before the
	// test's.
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
	if err := rdb.Set(within(t, time.Second), key, "v", 0).Err(); err == nil {
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
	// long, for a reply that is late on a busy machine is not dropped
	if _, err := pubsub.ReceiveTimeout(t.Context(), 2*time.Second); err == nil {
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

// TestACutReachesConnectionsThatHaveJustBegun cuts while the proxy still connects to the server.
func TestACutReachesConnectionsThatHaveJustBegun(t *testing.T) {
	t.Parallel()
	p := redistest.Shared(t).Proxy(t)
	for round := range 300 {
		p.Set(redistest.Faults{})
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", p.RedisOptions().Addr)
		if err != nil {
			t.Fatal(err)
		}
		for began := time.Now(); time.Since(began) < time.Duration(round)*time.Microsecond; {
			runtime.Gosched()
		}
		p.Set(redistest.Faults{Refuse: true})
		p.Cut()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = conn.Write([]byte("PING\r\n"))
		if n, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("round %d: read %d bytes (%v) from a connection that was cut, want its end", round, n, err)
		}
		_ = conn.Close()
	}
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
		t.Error("got a reply")
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
				t.Error("got a reply")
			}
		})
	}
}

func TestJitterDelaysByChance(t *testing.T) {
	t.Parallel()
	rdb, _, p := proxied(t)
	const jitter = 40 * time.Millisecond
	for _, f := range []redistest.Faults{{RequestJitter: jitter}, {ReplyJitter: jitter}} {
		p.Set(f)
		slow := 0
		for range 20 {
			begin := time.Now()
			if err := rdb.Ping(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			if time.Since(begin) > jitter/4 {
				slow++
			}
		}
		if slow == 0 { // by chance once in 10^12
			t.Errorf("%+v: no round trip of 20 was delayed", f)
		}
	}
}

// count is a script that increments a key and returns the count.
var count = redis.NewScript(`return redis.call('INCR', KEYS[1])`)

// counting returns the results of proxied, and a key; the script is loaded.
func counting(t *testing.T) (through, direct *redis.Client, p *redistest.Proxy, key string) {
	t.Helper()
	through, direct, p = proxied(t)
	if err := count.Load(t.Context(), direct).Err(); err != nil {
		t.Fatal(err)
	}
	return through, direct, p, redistest.Namespace(t)
}

func TestResentScriptIsAppliedTwiceWithOneReply(t *testing.T) {
	t.Parallel()
	rdb, direct, p, key := counting(t)
	p.Set(redistest.Faults{Resend: 1, Commands: []string{"evalsha"}})
	for _, want := range []int{2, 4, 6} {
		if got, err := count.EvalSha(t.Context(), rdb, []string{key}).Int(); err != nil || got != want {
			t.Errorf("got %d (%v), want %d, the second reply", got, err, want)
		}
		if got := direct.Get(t.Context(), key).Val(); got != strconv.Itoa(want) {
			t.Errorf("the counter is %s, want %d", got, want)
		}
	}
	if got, err := rdb.Incr(t.Context(), key).Result(); err != nil || got != 7 {
		t.Errorf("got %d (%v), want 7: INCR is not meant", got, err)
	}
}

func TestRepeatedScriptIsAppliedTwiceWithOneReply(t *testing.T) {
	t.Parallel()
	rdb, direct, p, key := counting(t)
	p.Set(redistest.Faults{Repeat: 1, Commands: []string{"EVALSHA"}})
	if got, err := count.EvalSha(t.Context(), rdb, []string{key}).Int(); err != nil || got != 1 {
		t.Errorf("got %d (%v), want 1, the first reply", got, err)
	}
	eventually(t, "the copy is applied", func() bool { return direct.Get(t.Context(), key).Val() == "2" })
	p.Set(redistest.Faults{})
	if got, err := count.EvalSha(t.Context(), rdb, []string{key}).Int(); err != nil || got != 3 {
		t.Errorf("got %d (%v), want 3", got, err)
	}
}

func TestCopyArrivesAfterLaterRequests(t *testing.T) {
	t.Parallel()
	rdb, direct, p, key := counting(t)
	// Long enough for the next command even on a busy machine; the copy needs the connection to
	// stay open.
	p.Set(redistest.Faults{Repeat: 1, RepeatDelay: 500 * time.Millisecond, Commands: []string{"set"}})
	if err := rdb.Set(t.Context(), key, "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Del(t.Context(), key).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the copy comes late", func() bool { return direct.Get(t.Context(), key).Val() == "v" })
}

// Every reply must reach its request, whatever else is sent.
func TestDoubledRequestsKeepPipelinesInStep(t *testing.T) {
	t.Parallel()
	s := redistest.Shared(t)
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			t.Parallel()
			p := s.Proxy(t)
			p.Set(redistest.Faults{Resend: 0.3, Repeat: 0.3, RepeatDelay: time.Millisecond})
			o := p.RedisOptions()
			o.Protocol = protocol
			rdb := redis.NewClient(o)
			defer rdb.Close()
			key := redistest.Namespace(t)
			var callers sync.WaitGroup
			for caller := range 4 {
				callers.Go(func() {
					for round := range 30 {
						want := func(i int) string { return fmt.Sprintf("%d %d %d", caller, round, i) + strings.Repeat(".", i*i) }
						pipe := rdb.Pipeline()
						if round%3 == 0 {
							pipe = rdb.TxPipeline()
						}
						for i := range 30 {
							pipe.Echo(t.Context(), want(i))
							pipe.Incr(t.Context(), key)
						}
						replies, err := pipe.Exec(t.Context())
						if err != nil {
							t.Error(err)
							return
						}
						for i := range 30 {
							if got := replies[2*i].(*redis.StringCmd).Val(); got != want(i) {
								t.Errorf("got %q, want %q", got, want(i))
								return
							}
						}
					}
				})
			}
			callers.Wait()
			if n, err := s.Client(t).Get(t.Context(), key).Int(); err != nil || n <= 4*30*30 {
				t.Errorf("counted to %d (%v), want more than the %d requests", n, err, 4*30*30)
			}
		})
	}
}

func TestSubscriptionsPassAmongDoubledRequests(t *testing.T) {
	t.Parallel()
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			t.Parallel()
			_, direct, p := proxied(t)
			p.Set(redistest.Faults{Resend: 1})
			o := p.RedisOptions()
			o.Protocol = protocol
			rdb := redis.NewClient(o)
			defer rdb.Close()
			channel := redistest.Namespace(t)
			pubsub := rdb.Subscribe(t.Context(), channel, channel+"2")
			defer pubsub.Close()
			for range 2 {
				if _, err := pubsub.Receive(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if err := pubsub.Ping(t.Context(), "p"); err != nil {
				t.Fatal(err)
			}
			if got, err := pubsub.ReceiveTimeout(t.Context(), 20*time.Second); err != nil {
				t.Errorf("got %v (%v), want the pong", got, err)
			}
			direct.Publish(t.Context(), channel, "hello")
			if got, err := pubsub.ReceiveMessage(t.Context()); err != nil || got.Payload != "hello" {
				t.Errorf("got %v (%v), want hello", got, err)
			}
		})
	}
}

func TestLostReply(t *testing.T) {
	t.Parallel()
	rdb, direct, p, key := counting(t)
	p.Set(redistest.Faults{LoseReply: 2, Commands: []string{"evalsha"}})
	if err := count.EvalSha(t.Context(), rdb, []string{key}).Err(); err != nil {
		t.Fatal(err)
	}
	if err := count.EvalSha(within(t, time.Second), rdb, []string{key}).Err(); err == nil {
		t.Error("the second reply arrived")
	}
	if got, err := count.EvalSha(t.Context(), rdb, []string{key}).Int(); err != nil || got != 3 {
		t.Errorf("got %d (%v), want 3: the second was applied, and the third goes by another connection", got, err)
	}
	p.Set(redistest.Faults{LoseReplies: 1, Commands: []string{"evalsha"}})
	for range 3 {
		if err := count.EvalSha(within(t, time.Second), rdb, []string{key}).Err(); err == nil {
			t.Error("a reply arrived")
		}
	}
	eventually(t, "all requests are applied", func() bool { return direct.Get(t.Context(), key).Val() == "6" })
}

func TestConnectionIsCutInTheMiddleOfAReply(t *testing.T) {
	t.Parallel()
	rdb, direct, p, key := counting(t)
	for _, f := range []redistest.Faults{{CutReply: 1}, {CutReplies: 1}} {
		f.Commands = []string{"evalsha", "echo"}
		p.Set(f)
		if err := count.EvalSha(t.Context(), rdb, []string{key}).Err(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%+v: got %v, want a failure at once", f, err)
		}
		p.Set(f)
		address, err := redis.ParseURL(p.URL())
		if err != nil {
			t.Fatal(err)
		}
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("*2\r\n$4\r\nECHO\r\n$10\r\n0123456789\r\n")); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(conn); err != nil || string(got) != "$10\r\n012" {
			t.Errorf("got %q (%v), want half a reply and the end", got, err)
		}
	}
	if got := direct.Get(t.Context(), key).Val(); got != "2" {
		t.Errorf("the counter is %s, want 2: the requests are applied", got)
	}
}

func TestOtherProtocolsPassUnderFaultsOfRequests(t *testing.T) {
	t.Parallel()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	defer listener.Close()
	serving.Go(func() {
		conn, err := listener.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "are you there? ")
		_, _ = io.Copy(conn, conn)
	})
	p, err := redistest.NewProxy(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.Set(redistest.Faults{Resend: 1, Repeat: 1, LoseReplies: 1})
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimSuffix(strings.TrimPrefix(p.URL(), "redis://"), "/0"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "it is me\n"); err != nil {
		t.Fatal(err)
	}
	want := "are you there? it is me\n"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Errorf("got %q (%v), want %q", got, err, want)
	}
}
