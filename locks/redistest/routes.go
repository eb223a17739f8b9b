package redistest

import (
	"context"
	"fmt"
	"net"
	"testing"
)

// Routes are proxies in front of all servers of a topology, for clients that are told so: their options have
// [Routes.Dial] as the Dialer, and a connection to a server leads through its proxy. What the servers say among
// themselves takes the straight way, and so do other clients. It is the client that is routed and not the servers that
// announce other ports, because by an announced port their replication would break as well.
type Routes struct {
	proxies map[string]*Proxy // by the address of the server behind it
}

// Routes starts a proxy in front of each member and each sentinel, and closes them when the test ends.
func (s *Sentinel) Routes(tb testing.TB) *Routes {
	tb.Helper()
	return routes(tb, append(s.Members(), s.sentinels...))
}

// Routes starts a proxy in front of each node and closes them when the test ends.
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

// To returns the proxy in front of a server; nil if it has none here.
func (r *Routes) To(s *Server) *Proxy { return r.proxies[s.address()] }

// Set replaces the faults on the ways to all servers.
func (r *Routes) Set(f Faults) {
	for _, p := range r.proxies {
		p.Set(f)
	}
}

// Cut closes every connection that is open now.
func (r *Routes) Cut() {
	for _, p := range r.proxies {
		p.Cut()
	}
}

// Dial connects to the proxy in front of the server at an address. It is made for [redis.FailoverOptions] and
// [redis.ClusterOptions].
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

// routed is a connection to a proxy that names the server behind it. A client of Sentinel closes those that are not to
// the master.
type routed struct {
	*net.TCPConn
	server net.Addr
}

// RemoteAddr returns the address of the server behind the proxy.
func (r routed) RemoteAddr() net.Addr { return r.server }
