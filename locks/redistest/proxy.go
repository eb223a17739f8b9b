package redistest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Faults say what is wrong with the way to the server. The zero value is a healthy way. Requests are the bytes towards
// the server, replies those back from it; messages of a subscription are replies.
type Faults struct {
	// RequestDelay and ReplyDelay make bytes arrive so much later; they do not make them arrive more slowly. Delays
	// under a millisecond come out longer, by what the system's timers add.
	RequestDelay, ReplyDelay time.Duration

	// RequestJitter and ReplyJitter are added to the delays: a random time from 0 up to them, drawn anew for all that
	// comes in at a time. From a client that waits for its answers that is a request, or a reply; what is pipelined may
	// come in together, and then stays together. Bytes of one connection never overtake each other.
	RequestJitter, ReplyJitter time.Duration

	// HoldRequests and HoldReplies keep bytes back until the fault is lifted; then they arrive, late and in order. A
	// partition that heals does this, since TCP sends again.
	HoldRequests, HoldReplies bool

	// DropRequests and DropReplies lose bytes. A connection that has lost some carries nothing more in that direction,
	// also when the fault is lifted: a stream with a hole in it is no stream. Its ends are not told, so it stays open,
	// and dead, until its user gives up or [Proxy.Cut] is called. New connections, too, are accepted and carry nothing.
	// With DropReplies alone, requests are applied and their answers lost.
	DropRequests, DropReplies bool

	// Refuse makes new connections fail: they are reset at once. Those that are open live on.
	Refuse bool

	// The faults below are about single requests. They are decided when a request is passed on, and stay so when the
	// faults are lifted before its reply comes. They need connections that speak RESP, and leave alone what is sent
	// after MONITOR, PSYNC, CLIENT REPLY and, in RESP2, a subscription: from there on replies cannot be told apart. The
	// messages of a subscription are no replies here. While one of these faults is set, requests are passed on as a
	// whole; one whose beginning has been passed on already when it is set is spared.

	// Commands names the commands whose requests are meant, such as "evalsha", in any case. None means all, and those
	// are also what a client library sends by itself on a new connection.
	Commands []string

	// Resend is the share of requests, from 0 to 1, that are sent to the server twice in a row. The first reply is
	// swallowed, and the client is given the second, as if the first had been lost and somebody had sent again.
	Resend float64

	// Repeat is the share of requests of which the server is sent a copy RepeatDelay later, on the same connection. The
	// reply to the copy is swallowed: the client is given the first one, in time. A copy does not break into a
	// transaction or a half-sent request, but waits for its end, and is gone if its connection is closed before.
	//
	// Neither applies to the requests of a transaction from MULTI to EXEC, to ASKING and the one behind it, and to
	// (un)subscribing: doubled, they would be something else than a request that came twice.
	Repeat      float64
	RepeatDelay time.Duration

	// LoseReplies is the share of requests, from 0 to 1, whose replies are lost, and LoseReply the number of one whose
	// reply is: 1 is the first request that is passed on after the Set, on whichever connection. The connection carries
	// no replies from there on, as with DropReplies; the requests are applied.
	LoseReplies float64
	LoseReply   int

	// CutReplies and CutReply choose in the same way the requests after half of whose replies the connection is closed,
	// at both ends.
	CutReplies float64
	CutReply   int
}

// whole says whether requests have to be complete before anything can be decided.
func (f Faults) whole() bool {
	return f.Resend > 0 || f.Repeat > 0 || f.LoseReplies > 0 || f.LoseReply > 0 || f.CutReplies > 0 || f.CutReply > 0
}

// mean says whether the requests of a command are meant by the faults about single ones.
func (f Faults) mean(command string) bool {
	return len(f.Commands) == 0 ||
		slices.ContainsFunc(f.Commands, func(name string) bool { return strings.EqualFold(name, command) })
}

// A Proxy is a TCP listener in front of a server, that breaks the way to it on request. It stands in this process and
// can be told everything at any time, from any goroutine.
type Proxy struct {
	listener net.Listener
	network  string // of the server behind it
	address  string
	cancel   context.CancelFunc // ends accept and dials
	running  sync.WaitGroup     // accept, two pumps of two goroutines for each link, and copies that are not due yet

	mu      sync.Mutex
	faults  Faults             // guarded by mu
	counted int                // requests that these faults meant; guarded by mu
	changed chan struct{}      // closed and replaced when faults change; guarded by mu
	links   map[*link]struct{} // those that are open; nil once the proxy is closed; guarded by mu
}

// link is one connection of a client, and the one to the server that belongs to it.
type link struct {
	client, server net.Conn
	wire           wire
	late           chan []byte // copies of requests, when they are due
	once           sync.Once
	done           chan struct{} // closed when the link is cut; both connections are closed then
}

func (l *link) cut() {
	l.once.Do(func() {
		close(l.done)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

// Proxy starts a proxy in front of this server and closes it when the test ends.
func (s *Server) Proxy(tb testing.TB) *Proxy {
	tb.Helper()
	p, err := NewProxy(tb.Context(), "unix", s.socket())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	return p
}

// NewProxy starts a proxy in front of a server at an address of any stream network. The caller closes it; ctx only
// carries values.
func NewProxy(ctx context.Context, network, address string) (*Proxy, error) {
	// It lives until Close, which a test calls when its own context has already ended.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		cancel()
		return nil, fmt.Errorf("redistest: proxy: %w", err)
	}
	p := &Proxy{
		listener: listener,
		network:  network,
		address:  address,
		cancel:   cancel,
		changed:  make(chan struct{}),
		links:    make(map[*link]struct{}),
	}
	p.running.Go(func() { p.accept(ctx) }) // waited for in Close
	return p, nil
}

// URL returns the proxy's address for a configuration.
func (p *Proxy) URL() string { return fmt.Sprintf("redis://%s/0", p.listener.Addr()) }

// RedisOptions returns fresh client options for the server behind the proxy, otherwise as [Server.RedisOptions].
func (p *Proxy) RedisOptions() *redis.Options {
	return clientOptions("tcp", p.listener.Addr().String())
}

// Client returns a client of the server behind the proxy, closed when the test ends.
func (p *Proxy) Client(tb testing.TB) *redis.Client { return client(tb, p.RedisOptions()) }

// Set replaces the faults; Set(Faults{}) lifts them all. They are looked at when bytes are about to be passed on, so
// bytes that are on their way meet the new ones, except that a delay counts from when they came in.
func (p *Proxy) Set(f Faults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.Commands = slices.Clone(f.Commands)
	p.faults, p.counted = f, 0
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) now() (Faults, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults, p.changed
}

// judge decides about a request.
func (p *Proxy) judge(command string) verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.faults
	if !f.whole() || !f.mean(command) {
		return verdict{}
	}
	p.counted++
	hit := func(share float64) bool { return rand.Float64() < share }
	v := verdict{resend: hit(f.Resend), repeat: hit(f.Repeat)}
	switch {
	case p.counted == f.LoseReply || hit(f.LoseReplies):
		v.reply = lost
	case p.counted == f.CutReply || hit(f.CutReplies):
		v.reply = broken
	}
	return v
}

// Cut closes every connection that is open now, at both ends. New ones are welcome.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Close ends the proxy and all its connections, and returns when nothing of it is left. It may be called again.
func (p *Proxy) Close() {
	p.mu.Lock()
	for l := range p.links {
		l.cut()
	}
	p.links = nil
	p.mu.Unlock()
	p.cancel()
	_ = p.listener.Close()
	p.running.Wait()
}

func (p *Proxy) accept(ctx context.Context) {
	for {
		conn, err := p.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue // this connection was given up by its client, or the process is short of descriptors
		}
		p.running.Go(func() { p.connect(ctx, conn) })
	}
}

// connect serves one connection of a client to its end.
func (p *Proxy) connect(ctx context.Context, client net.Conn) {
	if f, _ := p.now(); f.Refuse {
		reset(client)
		return
	}
	server, err := new(net.Dialer).DialContext(ctx, p.network, p.address)
	if err != nil {
		reset(client) // the nearest thing to the refusal that a direct dial would have met
		return
	}
	l := &link{client: client, server: server, late: make(chan []byte), done: make(chan struct{})}
	p.mu.Lock()
	if p.links == nil {
		p.mu.Unlock()
		l.cut()
		return
	}
	p.links[l] = struct{}{}
	p.mu.Unlock()

	var pumps sync.WaitGroup
	pumps.Go(func() { p.pump(l, requests{p, l}) })
	pumps.Go(func() { p.pump(l, replies{l}) })
	pumps.Wait()
	l.cut()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// reset closes a connection so that its other end sees an error, and not an orderly end.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// direction is one way through a link.
type direction interface {
	// ends returns where bytes come from and where they go.
	ends() (src io.Reader, dst io.Writer)

	// faults picks what is said about this way.
	faults(f Faults) (delay, jitter time.Duration, hold, drop bool)

	// transform returns what is to be sent on in place of bytes that came in, and what comes of the link then.
	transform(data []byte) ([]byte, fate)

	// late brings copies of earlier bytes, to which repeat is then the transform.
	late() <-chan []byte
	repeat(data []byte) []byte
}

// requests is the way to the server.
type requests struct {
	proxy *Proxy
	link  *link
}

func (r requests) ends() (io.Reader, io.Writer) { return r.link.client, r.link.server }

func (requests) faults(f Faults) (delay, jitter time.Duration, hold, drop bool) {
	return f.RequestDelay, f.RequestJitter, f.HoldRequests, f.DropRequests
}

func (r requests) transform(data []byte) ([]byte, fate) {
	f, _ := r.proxy.now()
	return r.link.wire.sendRequests(data, f.whole(), r.proxy.judge, func(one []byte) {
		r.proxy.running.Go(func() { // waited for in Close
			timer := time.NewTimer(f.RepeatDelay)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-r.link.done:
				return
			}
			select {
			case r.link.late <- one:
			case <-r.link.done:
			}
		})
	}), passed
}

func (r requests) late() <-chan []byte { return r.link.late }

func (r requests) repeat(one []byte) []byte {
	w := &r.link.wire
	w.late = append(w.late, one)
	return w.sendLate(nil)
}

// replies is the way back.
type replies struct{ link *link }

func (r replies) ends() (io.Reader, io.Writer) { return r.link.server, r.link.client }

func (replies) faults(f Faults) (delay, jitter time.Duration, hold, drop bool) {
	return f.ReplyDelay, f.ReplyJitter, f.HoldReplies, f.DropReplies
}

func (r replies) transform(data []byte) ([]byte, fate) { return r.link.wire.returnReplies(data) }

func (replies) late() <-chan []byte { return nil }

func (replies) repeat(data []byte) []byte { return data }

// chunk is what one read returned, and when it is due at the other end.
type chunk struct {
	data []byte
	due  time.Time
}

// pump carries one direction of a link until it is cut. Reading and writing are apart, so that a delay shifts the
// stream and does not slow it down.
func (p *Proxy) pump(l *link, way direction) {
	src, dst := way.ends()
	chunks := make(chan chunk, 1024) // a full one stalls the sender, as a full socket buffer would
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(chunks)
		for {
			buf := make([]byte, 16<<10)
			n, err := src.Read(buf)
			if err != nil {
				return
			}
			f, _ := p.now()
			delay, jitter, _, _ := way.faults(f)
			if jitter > 0 {
				delay += rand.N(jitter)
			}
			select {
			case chunks <- chunk{buf[:n], time.Now().Add(delay)}:
			case <-l.done:
				return
			}
		}
	})
	defer reading.Wait()

	gone := false // bytes of this stream are missing at the other end
	// pass sends on what became of bytes that are due, and says whether the link still stands.
	pass := func(due time.Time, transform func() ([]byte, fate)) bool {
		drop, ok := p.gate(l, due, way)
		if !ok {
			return false
		}
		if gone = gone || drop; gone {
			return true
		}
		data, f := transform()
		if len(data) > 0 {
			if _, err := dst.Write(data); err != nil {
				l.cut()
				return false
			}
		}
		if f == broken {
			l.cut()
			return false
		}
		gone = f == lost
		return true
	}
	for {
		select {
		case <-l.done:
			return
		case one := <-way.late():
			if !pass(time.Time{}, func() ([]byte, fate) { return way.repeat(one), passed }) {
				return
			}
		case c, open := <-chunks:
			if !open {
				// The sender has closed. Where bytes get lost, so does that news: the other end waits on.
				f, _ := p.now()
				if _, _, _, drop := way.faults(f); drop || gone {
					<-l.done
				}
				l.cut()
				return
			}
			if !pass(c.due, func() ([]byte, fate) { return way.transform(c.data) }) {
				return
			}
		}
	}
}

// gate waits until bytes that are due at a time may go on, and says whether they are dropped instead. ok is false when
// the link was cut meanwhile.
func (p *Proxy) gate(l *link, due time.Time, way direction) (drop, ok bool) {
	if wait := time.Until(due); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.done:
			return false, false
		}
	}
	for {
		f, changed := p.now()
		_, _, hold, drop := way.faults(f)
		if drop || !hold {
			return drop, true
		}
		select {
		case <-changed:
		case <-l.done:
			return false, false
		}
	}
}
