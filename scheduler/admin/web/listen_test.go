package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestAddressesThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"192.0.2.1:0", "example.org:0", "*:0", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:65536", "127.0.0.1:-1", "", "::1",
	} {
		listener, err := Listen(address, true)
		if err == nil {
			_ = listener.Close()
			t.Errorf("%q is served", address)
			continue
		}
		if text := err.Error(); !strings.HasPrefix(text, "admin.listen: ") || strings.Contains(text, "\n") {
			t.Errorf("%q: the error is %q, want one line that begins with admin.listen", address, text)
		}
	}
	for address, loopback := range map[string]bool{"127.0.0.1:0": true, "127.1.2.3:0": true, "localhost:0": true, "0.0.0.0:0": false, ":0": false} {
		listener, err := Listen(address, true)
		if err != nil {
			t.Errorf("%q: %v", address, err)
			continue
		}
		if ip := listener.Addr().(*net.TCPAddr).IP; ip.IsLoopback() != loopback {
			t.Errorf("%q: it listens on %s", address, ip)
		}
		_ = listener.Close()
	}
}

// take listens on a free port of this machine.
func take(t *testing.T) net.Listener {
	t.Helper()
	listener, err := Listen("127.0.0.1:0", true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

func TestChosenAddressThatIsTakenIsAnErrorWithTheRemedy(t *testing.T) {
	t.Parallel()
	address := take(t).Addr().String()
	_, err := Listen(address, true)
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("got %v, want EADDRINUSE", err)
	}
	for _, part := range []string{"admin.listen", address, "set another address"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error %q does not say %q", err, part)
		}
	}
}

func TestDefaultAddressThatIsTakenMovesOn(t *testing.T) {
	t.Parallel()
	for range 20 { // the port must have others after it
		taken := take(t)
		port := taken.Addr().(*net.TCPAddr).Port
		if port > 65535-portsTried {
			continue
		}
		listener, err := Listen(taken.Addr().String(), false)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		if got := listener.Addr().(*net.TCPAddr).Port; got <= port || got >= port+portsTried {
			t.Errorf("got port %d, want one of the %d after %d", got, portsTried, port)
		}
		return
	}
	t.Fatal("this machine gives high ports only")
}

func TestDefaultAddressGivesUpAfterTheLastPort(t *testing.T) {
	t.Parallel()
	const address = "127.0.0.9:65535" // no other process uses this address
	listener, err := Listen(address, true)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, err = Listen(address, false)
	if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "admin.listen") {
		t.Errorf("got %v, want an error about admin.listen", err)
	}
}

// serve runs Serve and returns a function that ends it and waits for it.
func serve(t *testing.T, handler http.Handler) (url string, stop func() error) {
	t.Helper()
	listener := take(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, listener, handler) }()
	stop = func() error {
		cancel()
		return <-ended
	}
	return "http://" + listener.Addr().String(), stop
}

func TestRequestUnderWayIsAnsweredWhenTheServerStops(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}), make(chan struct{})
	url, stop := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-release
		if r.Context().Err() != nil {
			fmt.Fprint(w, "cancelled")
			return
		}
		fmt.Fprint(w, "answered")
	}))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	type result struct {
		body string
		err  error
	}
	answers := make(chan result, 1)
	go func() {
		answer, err := client.Get(url)
		if err != nil {
			answers <- result{err: err}
			return
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		answers <- result{string(body), err}
	}()
	<-arrived
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	// The listener closes first; only then the request continues.
	for {
		conn, err := net.DialTimeout("tcp", strings.TrimPrefix(url, "http://"), time.Second)
		if err != nil {
			break
		}
		_ = conn.Close()
	}
	close(release)
	if got := <-answers; got.err != nil || got.body != "answered" {
		t.Errorf("got %q and %v, want it answered", got.body, got.err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Serve returned %v, want nil", err)
	}
}

func TestServeReturnsWhyItEndedByItself(t *testing.T) {
	t.Parallel()
	listener := take(t)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Serve(t.Context(), listener, http.NotFoundHandler()); err == nil {
		t.Error("a closed listener was served")
	}
}
