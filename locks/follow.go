package locks

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/space"
)

const (
	// followEvery is how often Sentinel is asked for the master. followTLS is for TLS, where each
	// question costs the master a handshake.
	followEvery = time.Second
	followTLS   = 2 * time.Second

	// followPause is the least time between two questions, however many replies are a reason to
	// ask.
	followPause = 100 * time.Millisecond

	// sentinelNews is how long it takes until every sentinel names a new master: they exchange that
	// every two seconds.
	sentinelNews = 3 * time.Second
)

// errReplaced means that a connection was made to a master that Sentinel has replaced meanwhile.
var errReplaced = errors.New("sentinel named another master while this one was dialed")

// A follower makes our clients leave a master that Sentinel has replaced. go-redis drops such
// connections only in the pool of the caller's FailoverClient. A client made from its options keeps
// them for as long as the old master replies, which may be forever, and the subscriber's connection
// is in no pool.
//
// So the follower knows every connection of our clients. It asks Sentinel for the master once a
// second, and at once when a reply says that the server takes no writes. When the address changes,
// it closes every connection to any other one. Commands in flight fail with a network error and are
// sent again, to the new master, over a connection that is greeted first.
type follower struct {
	dial  dialer // asks Sentinel for the master, then connects to it
	log   *slog.Logger
	every time.Duration // between two questions, unless a reply is a reason to ask earlier
	tls   bool
	soon  chan struct{} // buffer 1: ask now

	mu      sync.Mutex
	asked   uint64                 // questions begun; guarded by mu
	told    uint64                 // the last question that got a reply; guarded by mu
	master  string                 // the last reply, "" before that; guarded by mu
	past    map[string]bool        // addresses that were the master before; guarded by mu
	conns   map[*followed]struct{} // the open ones; guarded by mu
	noQuick bool                   // only a real connection shows the address; guarded by mu
}

// A dialer is redis.Options.Dialer. That of a FailoverClient ignores the address.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// newFollower returns a follower for clients with the options of a FailoverClient, and nil for
// those of any other client.
func newFollower(o *redis.Options, log *slog.Logger) *follower {
	if !bySentinel(o) {
		return nil
	}
	return &follower{
		dial: o.Dialer, log: log, every: followPace(o), tls: o.TLSConfig != nil, soon: make(chan struct{}, 1),
		past: make(map[string]bool), conns: make(map[*followed]struct{}),
	}
}

// bySentinel reports whether options are those of a FailoverClient.
// the name that go-redis gives it
func bySentinel(o *redis.Options) bool { return o.Addr == "FailoverClient" }

// followPace returns how often a client with these options asks Sentinel for the master; 0 if it is
// not a FailoverClient.
func followPace(o *redis.Options) time.Duration {
	switch {
	case !bySentinel(o):
		return 0
	case o.TLSConfig != nil:
		return followTLS
	}
	return followEvery
}

// run asks until ctx ends. A question may take as long as patience: go-redis replaces a hanging
// sentinel only after its own read timeout.
func (f *follower) run(ctx context.Context, patience time.Duration) {
	for {
		timer := time.NewTimer(f.every)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-f.soon:
			timer.Stop()
		case <-timer.C:
		}
		try, cancel := context.WithTimeout(ctx, patience)
		err := f.ask(try)
		cancel()
		if err != nil && ctx.Err() == nil {
			f.log.Debug("asking sentinel for the master", slog.Any("error", err))
		}
		if !space.Sleep(followPause, ctx.Done()) {
			return
		}
	}
}

// hurry makes run ask Sentinel at once.
func (f *follower) hurry() {
	select {
	case f.soon <- struct{}{}:
	default: // a question is already pending
	}
}

// ask asks Sentinel for the master, and leaves the previous one if the master has changed.
func (f *follower) ask(ctx context.Context) error {
	f.mu.Lock()
	f.asked++
	question := f.asked
	f.mu.Unlock()
	address, err := f.address(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	was := f.master
	changed := was != "" && was != address
	if changed {
		f.past[was] = true
	}
	delete(f.past, address)
	f.master, f.told = address, question
	var stale []*followed
	for c := range f.conns {
		// A connection that was begun after the question is newer than its reply.
		if to := c.to(); c.begun < question && to != address && (changed || f.past[to]) {
			stale = append(stale, c)
		}
	}
	f.mu.Unlock()
	for _, c := range stale {
		_ = c.Close() // its user notices by the error of the next read or write
	}
	if changed {
		f.log.Warn("sentinel names another master; the connections to the last one are closed", slog.String("master", address),
			slog.String("before", was), slog.Int("connections", len(stale)))
	}
	return nil
}

// address returns the address of the master. The dialer reveals it only through a connection, so
// this makes one by UDP, which sends nothing. It makes a real one if the dialer does not support
// UDP, or if a connection is more than a socket.
func (f *follower) address(ctx context.Context) (string, error) {
	f.mu.Lock()
	quick := !f.tls && !f.noQuick
	f.mu.Unlock()
	if quick {
		if conn, err := f.dial(ctx, "udp", ""); err == nil {
			return remote(conn), conn.Close()
		}
	}
	conn, err := f.dial(ctx, "tcp", "")
	if err != nil {
		return "", err
	}
	f.mu.Lock()
	f.noQuick = true
	f.mu.Unlock()
	return remote(conn), conn.Close()
}

func remote(conn net.Conn) string {
	if to := conn.RemoteAddr(); to != nil {
		return to.String()
	}
	return ""
}

// connect is the dialer of our own clients.
func (f *follower) connect(ctx context.Context, network, address string) (net.Conn, error) {
	f.mu.Lock()
	begun := f.asked
	f.mu.Unlock()
	conn, err := f.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &followed{Conn: conn, follower: f, begun: begun}
	f.mu.Lock()
	if c.begun < f.told && f.past[c.to()] {
		f.mu.Unlock()
		return nil, errors.Join(&net.OpError{Op: "dial", Net: network, Addr: conn.RemoteAddr(), Err: errReplaced}, conn.Close())
	}
	f.conns[c] = struct{}{}
	f.mu.Unlock()
	// The pool uses it to see that a connection was closed.
	if system, ok := conn.(syscall.Conn); ok {
		return struct {
			*followed
			syscall.Conn
		}{c, system}, nil
	}
	return c, nil
}

// A followed connection belongs to one of our clients.
type followed struct {
	net.Conn
	follower *follower
	begun    uint64 // the number of questions begun before it
}

func (c *followed) to() string { return remote(c.Conn) }

// Close closes the connection and makes the follower forget it.
func (c *followed) Close() error {
	c.follower.mu.Lock()
	delete(c.follower.conns, c)
	c.follower.mu.Unlock()
	return c.Conn.Close()
}

// DialHook changes nothing.
func (f *follower) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook looks at the error of a command.
func (f *follower) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		f.learn(err)
		return err
	}
}

// ProcessPipelineHook does the same for pipelined commands.
func (f *follower) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			f.learn(cmd.Err())
		}
		return err
	}
}

// learn asks Sentinel at once if the reply is typical of a replaced master.
func (f *follower) learn(err error) {
	switch space.CodeOf(err) {
	case "READONLY", "NOREPLICAS", "MASTERDOWN":
		f.hurry()
	}
}
