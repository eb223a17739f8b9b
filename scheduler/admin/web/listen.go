package web

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"syscall"
	"time"
)

const (
	portsTried    = 100             // counted from the default one
	shutdownLimit = 3 * time.Second // how long requests in progress may take at shutdown
)

// Listen opens the address that admin.listen names, as host:port. The host is an IP address,
// localhost, or empty, which means every address of this machine. Port 0 is any free one. A
// [SignIn] decides which clients have access.
//
// explicit means that the operator chose the address: then a port that is taken is an error.
// Otherwise Listen uses the next free port of a hundred, for several workers on one host; the
// listener's address has the port.
func Listen(address string, explicit bool) (net.Listener, error) {
	host, port, err := parse(address)
	if err != nil {
		return nil, fmt.Errorf("admin.listen: %w", err)
	}
	last := port
	if !explicit && port != 0 {
		last = min(port+portsTried-1, 65535)
	}
	for ; ; port++ {
		listener, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		switch {
		case err == nil:
			return listener, nil
		case !errors.Is(err, syscall.EADDRINUSE):
			return nil, fmt.Errorf("admin.listen: %w", err)
		case explicit:
			return nil, fmt.Errorf("admin.listen: %s is taken by another process: stop that, or set another address "+
				"(port 0 takes any free one): %w", address, err)
		case port >= last:
			return nil, fmt.Errorf("admin.listen: %s and the ports after it, up to %d, are taken: set another address: %w",
				address, last, err)
		}
	}
}

func parse(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("%q is not host:port; write 127.0.0.1:9620", address)
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%q: the port must be a number from 0 to 65535", address)
	}
	// No other names are accepted: another party decides what they resolve to.
	if host == "localhost" {
		host = "127.0.0.1"
	}
	if _, err := netip.ParseAddr(host); host != "" && err != nil {
		return "", 0, fmt.Errorf("%q: the host must be an IP address or localhost, or empty for all addresses of this machine", address)
	}
	return host, int(number), nil
}

// isLoopback reports whether only this machine can reach a host that parse returned.
func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// Serve answers requests until ctx ends, then gives those in progress a moment to finish, and
// returns nil. It closes the listener. It takes 384 connections at a time, and 32 more for probes:
// see the package's doc.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	return serveLimited(ctx, listener, handler, newConnLimit(connsMost, connsProbes))
}

func serveLimited(ctx context.Context, listener net.Listener, handler http.Handler, limit *connLimit) error {
	server := &http.Server{
		Handler:           limit.handler(handler),
		ConnState:         limit.follow,
		ConnContext:       limit.attach,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		// a read of Redis may take 10 s, a slow client the rest
		WriteTimeout:   30 * time.Second,
		IdleTimeout:    time.Minute,
		MaxHeaderBytes: 64 << 10,
		// A request that is in progress when ctx ends is still answered. Streams end.
		BaseContext: func(net.Listener) context.Context {
			return context.WithValue(context.WithoutCancel(ctx), shutdownKey{}, ctx.Done())
		},
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(boundListener{listener, limit}) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve the admin page: %w", err)
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownLimit)
	defer cancel()
	if err := server.Shutdown(closing); err != nil {
		_ = server.Close() // the requests had their time
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the admin page: %w", err)
	}
	return nil
}

// shutdownKey is the key of a channel, in the contexts of requests, that is closed when the server
// shuts down.
type shutdownKey struct{}

// shutdown returns a channel that is closed when the server of a request shuts down: it must not
// wait for a stream, which has no end of its own.
func shutdown(ctx context.Context) <-chan struct{} {
	done, _ := ctx.Value(shutdownKey{}).(<-chan struct{})
	return done
}
