package redistest

import (
	"context"
	"fmt"
	"net"
	"testing"
)

// Routes are proxies before all servers of a topology. A client uses them with [Routes.Dial] as its
// Dialer: then a connection to a server goes through its proxy. The servers' connections to each
// other bypass the proxies, and so do other clients. The servers could announce the proxies' ports
// instead, but then a fault would break their replication, too.
type Routes struct {
	proxies map[string]*Proxy // by the address of the server behind it
}

// Routes starts a proxy before each member and each sentinel, and closes them when the test ends.
func (s *Sentinel) Routes(tb testing.TB) *Routes {
	tb.Helper()
	return routes(tb, append(s.Members(), s.sentinels...))
}

// Routes starts a proxy before each node and closes them when the test ends.
func (c *Cluster) Routes(tb testing.TB) *Routes {
	tb.Helper()
	return routes(tb, c.members)
}

func routes(tb testing.TB, servers []*Server) *Routes {
	tb.Helper()
	r := &Routes{proxies: make(map[string]*Proxy)}
	for _, s := range servers {
		r.proxies[s.address()] = s.Proxy(tb)
	}
	return r
}

// To returns the proxy before a server, nil if it has none here.
func (r *Routes) To(s *Server) *Proxy { return r.proxies[s.address()] }

// Set replaces the faults on the connections to all servers.
func (r *Routes) Set(f Faults) {
	for _, p := range r.proxies {
		p.Set(f)
	}
}

// Cut closes every open connection.
func (r *Routes) Cut() {
	for _, p := range r.proxies {
		p.Cut()
	}
}

// Dial connects to the proxy before the server at an address. It is made for
// [redis.FailoverOptions] and [redis.ClusterOptions].
func (r *Routes) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	p := r.proxies[address]
	if p == nil {
		return nil, fmt.Errorf("redistest: no route leads to %s", address)
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, p.listener.Addr().String())
	if err != nil {
		return nil, err
	}
	server, err := net.ResolveTCPAddr(network, address)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return routed{conn.(*net.TCPConn), server}, nil
}

// routed is a connection to a proxy that reports the address of the server behind it. A client of
// Sentinel closes connections to other servers than the master.
type routed struct {
	*net.TCPConn
	server net.Addr
}

// RemoteAddr returns the address of the server behind the proxy.
func (r routed) RemoteAddr() net.Addr { return r.server }
