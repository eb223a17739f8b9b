package web

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	connsMost   = 384 // connections at a time, for everything that is served
	connsProbes = 32  // additional connections, for probes alone
	// of the additional ones, how many may ask for metrics at a time: metrics may wait for Redis,
	// /livez must not
	metricsMost  = 16
	slowWriting  = 5 * time.Second
	bodySmall    = 16 << 10 // bytes of a body that is read without taking a slot
	bodiesMost   = 32       // larger ones that are read at a time
	slowBody     = time.Second
	refusalLimit = time.Second // for sending a refusal
)

// connStage is the stage of a connection, the most dispensable first.
type connStage int

const (
	connIdle    connStage = iota // its request is answered; it is kept for another one
	connNew                      // nothing has arrived
	connReading                  // part of a request has arrived, or its handler has returned
	connQuiet                    // its reply is a stream that has sent all there is
	connWriting                  // its reply is being sent
	connWorking                  // its request is complete, its reply is being made
)

// connLimit bounds the connections of a server. The jobs run in the same process: a client that
// opens connections must not be able to take its memory.
//
// When a connection arrives at the limit, the least needed one makes room: an idle one, then one
// that has sent nothing, then one that is slow to send its request, then a stream of events, which
// its client opens again, each the oldest first. So slow clients keep no other client out. When all
// connections are at work, a few more are accepted for probes, which must be answered for as long
// as the process lives; other requests get 503 on them.
type connLimit struct {
	most, probes int

	mu    sync.Mutex
	open  map[*boundConn]struct{} // guarded by mu
	extra int                     // how many of open are for probes alone; guarded by mu

	bodies map[*boundConn]time.Time // when the read of each larger body began; guarded by mu

	metrics atomic.Int64 // requests for metrics on connections for probes alone
}

func newConnLimit(most, probes int) *connLimit {
	return &connLimit{most: most, probes: probes, open: make(map[*boundConn]struct{}), bodies: make(map[*boundConn]time.Time)}
}

// boundConn is a connection that counts against the limit.
type boundConn struct {
	net.Conn
	limit *connLimit

	forProbes bool      // never changes
	stage     connStage // guarded by limit.mu
	since     time.Time // start of the stage; guarded by limit.mu
}

// Close closes the connection and makes room for another one.
func (c *boundConn) Close() error {
	l := c.limit
	l.mu.Lock()
	if _, ok := l.open[c]; ok {
		l.remove(c)
	}
	l.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite lets the server send its last reply to a client that is still sending.
func (c *boundConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Write sends a part of a reply.
func (c *boundConn) Write(p []byte) (int, error) {
	c.enter(connWriting)
	return c.Conn.Write(p)
}

func (c *boundConn) enter(stage connStage) {
	c.limit.mu.Lock()
	defer c.limit.mu.Unlock()
	if c.stage != stage {
		c.stage, c.since = stage, time.Now()
	}
}

// remove forgets a connection. The caller holds mu.
func (l *connLimit) remove(c *boundConn) {
	delete(l.open, c)
	if c.forProbes {
		l.extra--
	}
}

// admit counts a new connection. At the limit it first closes another one. It returns nil when the
// new connection must be refused.
func (l *connLimit) admit(conn net.Conn) *boundConn {
	c := &boundConn{Conn: conn, limit: l, stage: connNew, since: time.Now()}
	l.mu.Lock()
	var victim *boundConn
	if len(l.open)-l.extra >= l.most {
		if victim = l.dispensable(false); victim == nil {
			c.forProbes = true
			if l.extra >= l.probes {
				victim = l.dispensable(true)
			}
		}
	}
	admitted := victim != nil || !c.forProbes || l.extra < l.probes
	if victim != nil {
		l.remove(victim)
	}
	if admitted {
		l.open[c] = struct{}{}
		if c.forProbes {
			l.extra++
		}
	}
	l.mu.Unlock()
	if victim != nil {
		_ = victim.Conn.Close() // the server sees an error on it
	}
	if !admitted {
		return nil
	}
	return c
}

// dispensable returns the least needed connection, of those for probes alone or of the others; nil
// when all are needed. The caller holds mu.
func (l *connLimit) dispensable(forProbes bool) *boundConn {
	var least *boundConn
	for c := range l.open {
		switch {
		case c.forProbes != forProbes, c.stage == connWorking, c.stage == connWriting && time.Since(c.since) < slowWriting:
		case least == nil, c.stage < least.stage, c.stage == least.stage && c.since.Before(least.since):
			least = c
		}
	}
	return least
}

// readBody takes a slot for reading a larger body, if necessary that of a client that is slow to
// send one. It returns false if there is no slot.
func (l *connLimit) readBody(c *boundConn) bool {
	l.mu.Lock()
	var oldest *boundConn
	if len(l.bodies) >= bodiesMost {
		for other, since := range l.bodies {
			if oldest == nil || since.Before(l.bodies[oldest]) {
				oldest = other
			}
		}
		if time.Since(l.bodies[oldest]) < slowBody {
			l.mu.Unlock()
			return false
		}
		delete(l.bodies, oldest)
	}
	l.bodies[c] = time.Now()
	l.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close() // its handler sees an error
	}
	return true
}

func (l *connLimit) endBody(c *boundConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.bodies, c)
}

// boundListener accepts connections within a limit.
type boundListener struct {
	net.Listener
	limit *connLimit
}

const refusal = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

// Accept returns the next connection that is not refused.
func (l boundListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.limit.admit(conn); c != nil {
			return c, nil
		}
		// The text fits the buffer of a new connection, so this does not block.
		_ = conn.SetWriteDeadline(time.Now().Add(refusalLimit))
		_, _ = conn.Write([]byte(refusal))
		_ = conn.Close()
	}
}

// follow is the http.Server.ConnState of a server: it records the stages of the connections.
func (l *connLimit) follow(conn net.Conn, state http.ConnState) {
	c, ok := conn.(*boundConn)
	if !ok {
		return
	}
	switch state {
	case http.StateActive:
		c.enter(connReading)
	case http.StateIdle:
		c.enter(connIdle)
	}
}

type connKey struct{}

// attach puts a connection into the context of its requests.
func (l *connLimit) attach(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// handler tracks requests through next, and passes only probes on connections that are for probes.
func (l *connLimit) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, ok := r.Context().Value(connKey{}).(*boundConn)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		if c.forProbes {
			w.Header().Set("Connection", "close") // the next request may find room
			refused := !isProbe(r)
			if r.URL.Path == "/metrics" {
				refused = l.metrics.Add(1) > metricsMost
				defer l.metrics.Add(-1)
			}
			if refused {
				w.Header().Set("Retry-After", "1")
				writeProblem(w, r, http.StatusServiceUnavailable, "this server has as many connections as it takes, all of them at work")
				return
			}
		}
		switch {
		case r.ContentLength == 0:
			c.enter(connWorking)
		case r.ContentLength > 0 && r.ContentLength <= bodySmall:
			r.Body = &followedBody{r.Body, c}
		case l.readBody(c):
			defer l.endBody(c)
			r.Body = &followedBody{r.Body, c}
		default:
			w.Header().Set("Retry-After", "1")
			writeProblem(w, r, http.StatusServiceUnavailable, "this server reads as many large bodies as it takes at a time")
			return
		}
		defer c.enter(connReading)
		next.ServeHTTP(w, r)
	})
}

// followedBody detects when a request is complete.
type followedBody struct {
	io.ReadCloser
	conn *boundConn
}

func (b *followedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil { // the body is complete, or no more of it is read
		b.conn.limit.endBody(b.conn)
		b.conn.enter(connWorking)
	}
	return n, err
}
