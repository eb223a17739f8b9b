package redistest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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
}

// A Proxy is a TCP listener in front of a server, that breaks the way to it on request. It stands in this process and
// can be told everything at any time, from any goroutine.
type Proxy struct {
	listener net.Listener
	network  string // of the server behind it
	address  string
	cancel   context.CancelFunc // ends accept and dials
	running  sync.WaitGroup     // accept, and two pumps of two goroutines for each link

	mu      sync.Mutex
	faults  Faults             // guarded by mu
	changed chan struct{}      // closed and replaced when faults change; guarded by mu
	links   map[*link]struct{} // those that are open; nil once the proxy is closed; guarded by mu
}

// link is one connection of a client, and the one to the server that belongs to it.
type link struct {
	client, server net.Conn
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
	p.faults = f
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) now() (Faults, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults, p.changed
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
	l := &link{client: client, server: server, done: make(chan struct{})}
	p.mu.Lock()
	if p.links == nil {
		p.mu.Unlock()
		l.cut()
		return
	}
	p.links[l] = struct{}{}
	p.mu.Unlock()

	var pumps sync.WaitGroup
	pumps.Go(func() { p.pump(l, l.server, l.client, requests) })
	pumps.Go(func() { p.pump(l, l.client, l.server, replies) })
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

// direction picks what the faults say about one way through a link.
type direction func(Faults) (delay time.Duration, hold, drop bool)

func requests(f Faults) (time.Duration, bool, bool) {
	return f.RequestDelay, f.HoldRequests, f.DropRequests
}

func replies(f Faults) (time.Duration, bool, bool) {
	return f.ReplyDelay, f.HoldReplies, f.DropReplies
}

// chunk is what one read returned, and when it is due at the other end.
type chunk struct {
	data []byte
	due  time.Time
}

// pump carries one direction of a link until it is cut. Reading and writing are apart, so that a delay shifts the
// stream and does not slow it down.
func (p *Proxy) pump(l *link, dst io.Writer, src io.Reader, way direction) {
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
			delay, _, _ := way(f)
			select {
			case chunks <- chunk{buf[:n], time.Now().Add(delay)}:
			case <-l.done:
				return
			}
		}
	})
	defer reading.Wait()

	lost := false // bytes of this stream are missing at the other end
	for {
		select {
		case <-l.done:
			return
		case c, open := <-chunks:
			if !open {
				// The sender has closed. Where bytes get lost, so does that news: the other end waits on.
				f, _ := p.now()
				if _, _, drop := way(f); drop || lost {
					<-l.done
				}
				l.cut()
				return
			}
			drop, ok := p.gate(l, c.due, way)
			if !ok {
				return
			}
			if lost = lost || drop; lost {
				continue
			}
			if _, err := dst.Write(c.data); err != nil {
				l.cut()
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
		_, hold, drop := way(f)
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
