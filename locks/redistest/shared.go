package redistest

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// shared is the one server of this test binary. It is state of the process, like its exit code:
// [Run] ends it.
var shared struct {
	sync.Mutex
	tried  bool // a failed start is not repeated for every test
	ended  bool // Run has returned: a server started now would never be stopped
	server *Server
	err    error
}

// Main runs the tests, stops the shared server, and ends the process. It is the whole body of a
// TestMain. Goroutines that are left after the last test are a failure, unless leaks names them.
//
// Main ends the process, so deferred calls of TestMain do not run; use [Run] for those.
func Main(m interface{ Run() int }, leaks ...goleak.Option) { os.Exit(Run(m, leaks...)) }

// Run is [Main] for a TestMain with more to do: it returns the exit code instead of ending the
// process.
func Run(m interface{ Run() int }, leaks ...goleak.Option) int {
	redis.SetLogger(silent{}) // many tests cause outages, and it has a line for each failed dial
	code := m.Run()
	if err := stopShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if code != 0 {
		return code // a test that failed early may leave something behind
	}
	if err := findLeaks(leaks); err != nil {
		fmt.Fprintln(os.Stderr, "goroutines are left over after the tests:", err)
		return 1
	}
	return code
}

// leaksLimit is how long goroutines may take to end after the last test. A pool of go-redis that
// could not dial its server checks only once a second whether it was closed, which is longer than
// goleak waits.
const leaksLimit = 5 * time.Second

func findLeaks(leaks []goleak.Option) error {
	for began := time.Now(); ; {
		err := goleak.Find(leaks...) // waits for a moment itself
		if err == nil || time.Since(began) > leaksLimit {
			return err
		}
	}
}

// silent is a log of the client library that discards everything.
type silent struct{}

// Printf does nothing.
func (silent) Printf(context.Context, string, ...any) {}

func stopShared() error {
	shared.Lock()
	defer shared.Unlock()
	shared.ended = true
	if shared.server == nil {
		return nil
	}
	return shared.server.Stop()
}

// Shared returns the server of this test binary, which the first call starts. A failure to start
// fails the test. Tests that stop, pause or flush a server use [New].
func Shared(tb testing.TB) *Server {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.ended {
		tb.Fatal("redistest: the tests are over")
	}
	if !shared.tried {
		shared.tried = true
		// The server outlives the test that happens to start it, so its start must not end with
		// that test.
		shared.server, shared.err = Start(context.WithoutCancel(tb.Context()), Options{})
	}
	if shared.err != nil {
		tb.Fatal(shared.err)
	}
	return shared.server
}

// Client returns a client of the shared server, closed when the test ends. Other tests use that
// server, too: use only names under a [Namespace].
func Client(tb testing.TB) *redis.Client {
	tb.Helper()
	return healthy(tb, Shared(tb).RedisOptions())
}

// healthy returns a client of a server that no test harms. Only the machine delays its replies, and
// it may stall for longer than the 3 s that go-redis waits by default.
func healthy(tb testing.TB, o *redis.Options) *redis.Client {
	tb.Helper()
	o.ReadTimeout = 30 * time.Second
	return client(tb, o)
}

// Namespace returns a namespace that no other test has: lower-case letters, digits and inner
// dashes, as in "t-4f2kq7w3".
func Namespace(tb testing.TB) string {
	tb.Helper()
	return "t-" + strings.ToLower(rand.Text()[:12])
}

// Each runs a test twice: on the shared redis-server as "redis", and on a separate, empty miniredis
// as "miniredis". Both are sub-tests and may call t.Parallel.
func Each(t *testing.T, test func(t *testing.T, rdb *redis.Client)) {
	t.Helper()
	t.Run("redis", func(t *testing.T) { test(t, Client(t)) })
	t.Run("miniredis", func(t *testing.T) { test(t, Mini(t)) })
}

// Large runs a test on the shared redis-server only, as "redis". It is for tests at a size that
// hurts: miniredis sorts a whole sorted set for each look into it, and no fleet stores that much
// there.
func Large(t *testing.T, test func(t *testing.T, rdb *redis.Client)) {
	t.Helper()
	t.Run("redis", func(t *testing.T) { test(t, Client(t)) })
}

// Mini returns a client of a new, empty miniredis. Both are closed when the test ends. Its clock is
// the machine's, and its keys never expire.
func Mini(tb testing.TB) *redis.Client {
	tb.Helper()
	return healthy(tb, clientOptions("tcp", miniredis.RunT(tb).Addr()))
}
