package locks

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"

	"lockstep/locks/space"
)

// an addressed connection goes nowhere; it only has an address.
type addressed struct {
	net.Conn
	to     string
	closed bool
}

func (a *addressed) RemoteAddr() net.Addr { return named(a.to) }
func (a *addressed) Close() error         { a.closed = true; return nil }

type named string

func (named) Network() string  { return "tcp" }
func (n named) String() string { return string(n) }

func TestFollowerClosesConnectionsToAReplacedMaster(t *testing.T) {
	t.Parallel()
	master := "a"
	var networks []string
	udp := errors.New("no UDP here")
	during := func() {}
	f := &follower{
		log: slog.New(slog.DiscardHandler), soon: make(chan struct{}, 1), past: make(map[string]bool), conns: make(map[*followed]struct{}),
		dial: func(_ context.Context, network, _ string) (net.Conn, error) {
			networks = append(networks, network)
			if network == "udp" && udp != nil {
				return nil, udp
			}
			c := &addressed{to: master}
			during()
			return c, nil
		},
	}
	ask := func() {
		t.Helper()
		if err := f.ask(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	connect := func() (*addressed, error) {
		conn, err := f.connect(t.Context(), "tcp", "")
		if err != nil {
			return nil, err
		}
		return conn.(*followed).Conn.(*addressed), nil
	}
	ask()
	first, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	if ask(); first.closed {
		t.Error("a connection to the master was closed")
	}

	// The master changes while a connection to the last one is being made.
	during = func() {
		during = func() {}
		master = "b"
		ask()
	}
	if _, err := connect(); !errors.Is(err, errReplaced) || !space.Passing(err) {
		t.Errorf("got %v for a connection to the last master, want that it was replaced, to be tried again", err)
	}
	if !first.closed {
		t.Error("a connection to the last master is still open")
	}
	second, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	if ask(); second.closed || len(f.conns) != 1 {
		t.Errorf("%d connections are known, want the one to the new master, open", len(f.conns))
	}

	// A sentinel that has not learned of it names the last master once more, between two questions.
	master = "a"
	stale, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	master = "b"
	if ask(); !stale.closed || second.closed {
		t.Errorf("closed: %v to the last master, %v to the new one", stale.closed, second.closed)
	}

	// Back, and to a master that can be found without a real connection.
	if networks[0] != "udp" || networks[len(networks)-1] != "tcp" {
		t.Errorf("asked by %v, want UDP until that was refused", networks)
	}
	master, udp, f.noQuick, networks = "a", nil, false, nil
	if ask(); !second.closed || len(networks) != 1 || networks[0] != "udp" {
		t.Errorf("closed: %v; asked by %v", second.closed, networks)
	}
	if _, err := connect(); err != nil {
		t.Errorf("got %v for the first master, which is the master again", err)
	}
	for _, text := range []string{"READONLY You can't write against a read only replica.", "NOREPLICAS Not enough good replicas to write."} {
		f.learn(replied(text))
		select {
		case <-f.soon:
		default:
			t.Errorf("%q gives no reason to ask", text)
		}
	}
}

// replied is an error reply of Redis.
type replied string

func (r replied) Error() string { return string(r) }
func (replied) RedisError()     {}
