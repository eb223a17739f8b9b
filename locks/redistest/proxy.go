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

// Faults describe what is wrong with the connections to the server. The zero value is a healthy
// connection. Requests are the bytes to the server, replies those back from it. Messages of a
// subscription are replies.
type Faults struct {
	// RequestDelay and ReplyDelay delay the arrival of bytes; they do not reduce the throughput.
	// Delays under a millisecond become longer, by the granularity of the system's timers.
	RequestDelay, ReplyDelay time.Duration

	// RequestJitter and ReplyJitter are added to the delays: a random time from 0 up to them, drawn
	// anew for all bytes that arrive at a time. For a client that waits for its replies, that is a
	// request or a reply. Pipelined ones may arrive together, and then stay together. Bytes of one
	// connection never overtake each other.
	RequestJitter, ReplyJitter time.Duration

	// HoldRequests and HoldReplies keep bytes back until the fault is lifted; then they arrive,
	// late and in order. A partition that heals has that effect, since TCP sends again.
	HoldRequests, HoldReplies bool

	// DropRequests and DropReplies lose bytes. A connection that has lost some carries nothing more
	// in that direction, even after the fault is lifted: a stream with a hole in it is not a
	// stream. Its ends are not notified. So it stays open, and dead, until its user abandons it or
	// [Proxy.Cut] is called. New connections, too, are accepted and carry nothing. With DropReplies
	// alone, requests are applied and their replies lost.
	DropRequests, DropReplies bool

	// Refuse makes new connections fail: they are reset at once. Open ones stay.
	Refuse bool

	// The faults below apply to single requests. They are decided when a request is passed on, and
	// apply even if the faults are lifted before its reply arrives. They need connections that
	// speak RESP. They ignore everything sent after MONITOR, PSYNC, CLIENT REPLY and, in RESP2, a
	// subscription: from there on replies cannot be told apart. Messages of a subscription do not
	// count as replies here. While one of these faults is set, each request is passed on as a
	// whole. A request that was passed on in part before the fault was set is spared.

	// Commands names the commands to which the faults apply, such as "evalsha", in any case. Empty
	// means all commands, including those that a client library sends by itself on a new
	// connection.
	Commands []string

	// Resend is the share of requests, from 0 to 1, that the server receives twice in a row. The
	// first reply is swallowed, and the client gets the second one, as if the first had been lost
	// and the request sent again.
	Resend float64

	// Repeat is the share of requests of which the server gets a copy RepeatDelay later, on the
	// same connection. The reply to the copy is swallowed; the client gets the first one, in time.
	// A copy does not break into a transaction or a half-sent request, but waits for its end. If
	// its connection is closed before, it is dropped.
	//
	// Neither applies to the requests of a transaction from MULTI to EXEC, to ASKING and the
	// request after it, and to (un)subscribing: doubled, they would mean something else than a
	// request that arrived twice.
	Repeat      float64
	RepeatDelay time.Duration

	// LoseReplies is the share of requests, from 0 to 1, that lose their replies. LoseReply is the
	// number of a request that loses its reply: 1 is the first request that is passed on after the
	// Set, on any connection. From there on the connection carries no replies, as with DropReplies;
	// the requests are applied.
	LoseReplies float64
	LoseReply   int

	// CutReplies and CutReply choose requests in the same way. After half of the reply to such a
	// request, the connection is closed at both ends.
	CutReplies float64
	CutReply   int
}

// whole reports whether a request must be complete before its faults can be decided.
func (f Faults) whole() bool {
	return f.Resend > 0 || f.Repeat > 0 || f.LoseReplies > 0 || f.LoseReply > 0 || f.CutReplies > 0 || f.CutReply > 0
}

// mean reports whether the faults for single requests apply to a command.
func (f Faults) mean(command string) bool {
	return len(f.Commands) == 0 ||
		slices.ContainsFunc(f.Commands, func(name string) bool { return strings.EqualFold(name, command) })
}

// A Proxy is a TCP listener before a server that breaks the connection to it on request. It runs in
// this process. All methods can be called at any time, from any goroutine.
type Proxy struct {
	listener net.Listener
	network  string // of the server behind it
	address  string
	cancel   context.CancelFunc // ends accept and dials
	// running has accept, two pumps of two goroutines for each link, and copies that are not due
	// yet.
	running sync.WaitGroup

	mu      sync.Mutex
	faults  Faults             // guarded by mu
	counted int                // requests to which these faults apply; guarded by mu
	changed chan struct{}      // closed and replaced when faults change; guarded by mu
	links   map[*link]struct{} // the open ones; nil once the proxy is closed; guarded by mu
	cuts    int                // calls of Cut; guarded by mu
}

// link is one connection of a client, with the connection to the server that belongs to it.
type link struct {
	client, server net.Conn
	wire           wire
	late           chan []byte // copies of requests, when they are due
	once           sync.Once
	done           chan struct{} // closed when the link is cut; then both connections are closed
}

func (l *link) cut() {
	l.once.Do(func() {
		close(l.done)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

// Proxy starts a proxy before this server and closes it when the test ends.
func (s *Server) Proxy(tb testing.TB) *Proxy {
	tb.Helper()
	p, err := NewProxy(tb.Context(), "unix", s.socket())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	return p
}

// NewProxy starts a proxy before a server at an address of any stream network. The caller closes
// it; ctx only carries values.
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

// RedisOptions returns fresh client options for the server behind the proxy, otherwise as
// [Server.RedisOptions].
func (p *Proxy) RedisOptions() *redis.Options {
	return clientOptions("tcp", p.listener.Addr().String())
}

// Client returns a client of the server behind the proxy, closed when the test ends.
func (p *Proxy) Client(tb testing.TB) *redis.Client { return client(tb, p.RedisOptions()) }

// Set replaces the faults; Set(Faults{}) lifts them all. Faults are checked when bytes are about to
// be passed on, so bytes in transit meet the new ones. A delay counts from their arrival, though.
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

// judge decides what happens to a request.
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

// Cut closes every open connection, at both ends. New ones are accepted.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cuts++
	for l := range p.links {
		l.cut()
	}
}

// Close ends the proxy and all its connections, and returns when nothing of it is left. It may be
// called again.
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
			// The client has abandoned this connection, or the process is short of descriptors.
			continue
		}
		p.running.Go(func() { p.connect(ctx, conn) })
	}
}

// connect serves one connection of a client to its end.
func (p *Proxy) connect(ctx context.Context, client net.Conn) {
	p.mu.Lock()
	refuse, cuts := p.faults.Refuse, p.cuts
	p.mu.Unlock()
	if refuse {
		reset(client)
		return
	}
	server, err := new(net.Dialer).DialContext(ctx, p.network, p.address)
	if err != nil {
		reset(client) // the closest thing to the refusal that a direct dial would have got
		return
	}
	l := &link{client: client, server: server, late: make(chan []byte), done: make(chan struct{})}
	p.mu.Lock()
	if p.links == nil || p.cuts != cuts { // it was open for its client already
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

// reset closes a connection so that its other end gets an error instead of an orderly end.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// direction is one way through a link.
type direction interface {
	// ends returns the source and the destination of the bytes.
	ends() (src io.Reader, dst io.Writer)

	// faults returns the faults of this direction.
	faults(f Faults) (delay, jitter time.Duration, hold, drop bool)

	// transform returns the bytes to send on in place of those that arrived, and what then happens
	// to the link.
	transform(data []byte) ([]byte, fate)

	// late returns copies of earlier bytes. Their transform is repeat.
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

// chunk is the result of one read, and when it is due at the other end.
type chunk struct {
	data []byte
	due  time.Time
}

// pump carries one direction of a link until it is cut. Separate goroutines read and write, so that
// a delay shifts the stream without slowing it down.
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
	// pass sends on the transformed bytes when they are due, and reports whether the link is still
	// open.
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
				// The sender has closed the connection. If bytes get lost, that news does, too: the
				// other end keeps waiting.
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

// gate waits until bytes that are due at a time may be passed on, and returns whether they are
// dropped instead. ok is false if the link was cut meanwhile.
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
