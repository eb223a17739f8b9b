package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/fakes"
)

// flood opens many connections to a server and sends a text on each. They stay open until the test
// ends.
func flood(t *testing.T, address string, many int, send string) []net.Conn {
	t.Helper()
	conns := make([]net.Conn, many)
	var opening sync.WaitGroup
	for part := range 8 {
		opening.Go(func() {
			for i := part; i < many; i += 8 {
				conn, err := net.DialTimeout("tcp", address, 10*time.Second)
				if err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
				conns[i] = conn
				_, _ = io.WriteString(conn, send) // it may be closed already
			}
		})
	}
	opening.Wait()
	t.Cleanup(func() {
		for _, conn := range conns {
			if conn != nil {
				_ = conn.Close()
			}
		}
	})
	return conns
}

// heap returns the memory in use, in MiB, stacks included.
func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapInuse+m.StackInuse) / (1 << 20)
}

// answerLimit is far below the time for which a slow client may keep a connection, and long even
// for a busy machine.
const answerLimit = 8 * time.Second

// fetch gets a path over a connection of its own.
func fetch(t *testing.T, url string) (status int, took time.Duration) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * answerLimit}
	began := time.Now()
	response, err := client.Get(url)
	if err != nil {
		t.Errorf("%s: %v", url, err)
		return 0, time.Since(began)
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode, time.Since(began)
}

// Thousands of connections that are idle, or slow to send a request, take little memory and keep no
// other client out.
func TestThousandsOfConnectionsTakeLittleAndLockOutNoClient(t *testing.T) {
	for name, send := range map[string]string{
		"idle":         "",
		"kept alive":   "GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
		"slow headers": "GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: " + strings.Repeat("x", 2000),
		"slow posts":   "POST /api/v1/enqueue HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n{\"job\": \"nightly\", \"args\": \"" + strings.Repeat("x", 60_000),
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, fakes.Fleet())
			// only so that bodies are read: none of them is complete
			s.o.Operator = new(admin.Operator)
			url, stop := serve(t, s)
			before := heap()
			many := 5000
			if name == "kept alive" || name == "slow headers" {
				many = 2000
			}
			conns := flood(t, strings.TrimPrefix(url, "http://"), many, send)
			after := heap()
			t.Logf("%d connections take %.1f MiB", many, after-before)
			if after-before > 64 {
				t.Errorf("%d connections take %.1f MiB of memory, want at most 64", many, after-before)
			}
			for _, path := range []string{"/livez", "/readyz", "/metrics", "/", "/api/v1/jobs"} {
				if status, took := fetch(t, url+path); status != http.StatusOK || took > answerLimit {
					t.Errorf("%s answers %d after %s beside %d connections", path, status, took, many)
				}
			}
			for _, conn := range conns {
				_ = conn.Close()
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// When all connections are at work, probes are answered and other requests are refused at once.
func TestProbesAreAnsweredWhenAllConnectionsAreAtWork(t *testing.T) {
	t.Parallel()
	const most, probes = 8, 4
	limit := newConnLimit(most, probes)
	release := make(chan struct{})
	var working sync.WaitGroup
	working.Add(most)
	listener := take(t)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- serveLimited(ctx, listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/work" {
				working.Done()
				<-release
			}
			fmt.Fprint(w, "done")
		}), limit)
	}()
	address := listener.Addr().String()
	url := "http://" + address
	var clients sync.WaitGroup
	for range most {
		clients.Go(func() {
			if status, _ := fetch(t, url+"/work"); status != http.StatusOK {
				t.Errorf("a request that was let in is answered with %d", status)
			}
		})
	}
	working.Wait()
	slow := flood(t, address, 50, "GET /livez HT") // these also take the places for probes
	for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/metrics": 200, "/": 503, "/api/v1/jobs": 503} {
		for range 3 {
			if status, took := fetch(t, url+path); status != want || took > answerLimit {
				t.Errorf("%s answers %d after %s, want %d", path, status, took, want)
			}
		}
	}
	for _, conn := range slow {
		_ = conn.Close()
	}
	close(release)
	clients.Wait()
	if status, _ := fetch(t, url+"/"); status != http.StatusOK {
		t.Errorf("a request is answered with %d when there is room again", status)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	limit.mu.Lock()
	defer limit.mu.Unlock()
	if len(limit.open) != 0 || limit.extra != 0 || len(limit.bodies) != 0 {
		t.Errorf("%d connections, %d of them for probes, and %d bodies count when all are closed", len(limit.open), limit.extra, len(limit.bodies))
	}
}

// Of large bodies that arrive slowly, the oldest makes room; small ones need no room.
func TestSlowLargeBodiesMakeRoom(t *testing.T) {
	t.Parallel()
	url, stop := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	address := strings.TrimPrefix(url, "http://")
	head := func(length int) string {
		return fmt.Sprintf("POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", length)
	}
	slow := flood(t, address, bodiesMost, head(500_000)+"slow")
	post := func(body string) int {
		response, err := http.Post(url, "application/json", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0
		}
		defer response.Body.Close()
		return response.StatusCode
	}
	if status := post("{}"); status != http.StatusOK {
		t.Errorf("a small body is answered with %d beside %d slow ones", status, bodiesMost)
	}
	large := strings.Repeat("x", 500_000)
	deadline := time.Now().Add(10 * slowBody)
	for status := 0; status != http.StatusOK; {
		if status = post(large); status != http.StatusOK && status != http.StatusServiceUnavailable || time.Now().After(deadline) {
			t.Fatalf("a large body is answered with %d", status)
		}
	}
	for _, conn := range slow {
		_ = conn.Close()
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestConnectionsThatAreNeededLeastMakeRoom(t *testing.T) {
	t.Parallel()
	limit := newConnLimit(4, 1)
	admit := func(stage connStage, age time.Duration) *boundConn {
		ours, theirs := net.Pipe()
		t.Cleanup(func() { _ = theirs.Close() })
		c := limit.admit(ours)
		if c == nil {
			_ = ours.Close()
			return nil
		}
		c.stage, c.since = stage, time.Now().Add(-age)
		return c
	}
	isClosed := func(c *boundConn) bool {
		_ = c.Conn.SetReadDeadline(time.Now())
		_, err := c.Conn.Read(make([]byte, 1))
		return errors.Is(err, io.ErrClosedPipe)
	}
	working, reading, fresh, idle := admit(connWorking, time.Hour), admit(connReading, time.Minute), admit(connNew, time.Second), admit(connIdle, 0)
	for i, victim := range []*boundConn{idle, fresh, reading} {
		c := admit(connWorking, 0)
		if c == nil || c.forProbes || !isClosed(victim) {
			t.Fatalf("connection %d is admitted for all: %t; the least needed one is closed: %t", i, c != nil && !c.forProbes, isClosed(victim))
		}
	}
	writing := admit(connWriting, slowWriting/2)
	if writing == nil || !writing.forProbes || isClosed(working) {
		t.Fatal("a connection at work made room for another one")
	}
	if c := admit(connWorking, 0); c != nil {
		t.Error("a connection is admitted although all are at work, those for probes too")
	}
	writing.since = time.Now().Add(-2 * slowWriting)
	if c := admit(connWorking, 0); c == nil || !c.forProbes || !isClosed(writing) {
		t.Error("a client that is slow to read keeps its place")
	}
}
