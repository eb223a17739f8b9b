package redistest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrMissing means that this machine has no redis-server.
var ErrMissing = errors.New("redis-server is not installed: `make test` installs it (Debian, Ubuntu: the package redis-server)")

// ServerEnv is the environment variable with the path of another redis-server or valkey-server to
// test with.
const ServerEnv = "LOCKSTEP_REDIS_SERVER"

// startTimeout bounds one start of a server. It takes 10 ms on an idle machine; the rest is for a
// busy one.
const startTimeout = 30 * time.Second

// Options describe the server to start. The zero value is an empty server on a Unix socket without
// persistence.
type Options struct {
	// TCP makes the server also listen on a free port of 127.0.0.1, and makes [Server.URL] name
	// that port. It is meant for tests with other processes. Within one process the socket is
	// faster, and no other process can take it.
	TCP bool

	// TLS makes the server use TLS on its port, which it has then even without TCP; nil means plain
	// text.
	TLS *TLS

	// Config has additional lines of redis.conf, such as "maxmemory-policy allkeys-lru". With
	// "appendonly yes", a server that is killed loses nothing that it has replied to.
	Config []string
}

// kind is the role of a redis-server.
type kind int

const (
	data        kind = iota // keeps data, as a master or as a replica
	sentinel                // watches masters
	clusterNode             // keeps the data of some slots
)

// Server is one redis-server process and the folder of its files. Its address stays the same
// through restarts. The methods are safe for concurrent use; those that change the process take
// turns.
type Server struct {
	options Options
	kind    kind
	binary  string
	dir     string       // its configuration, log and socket: see makeFolder; removed by Stop
	data    string       // what it keeps on disk; removed by Stop
	port    int          // 0 without TCP
	claim   net.Listener // keeps port for this server; nil without TCP

	mu      sync.Mutex // held while the process changes
	process *process   // nil while none runs; guarded by mu
}

// process is one incarnation of the server.
type process struct {
	pid    int
	paused bool          // guarded by Server.mu
	done   chan struct{} // closed when the process has ended and was reaped
}

// Start starts a server and returns when it replies. ctx bounds the start, not the life of the
// server: that ends with [Server.Stop], or with this process. Tests that have a [testing.TB] use
// [New].
//
// The error is [ErrMissing] if this machine has no redis-server.
func Start(ctx context.Context, o Options) (*Server, error) { return launch(ctx, data, o) }

// program returns the path of the server to test with.
func program() (string, error) {
	if named := os.Getenv(ServerEnv); named != "" {
		path, err := exec.LookPath(named)
		if err != nil {
			return "", fmt.Errorf("redistest: the server that %s names: %w", ServerEnv, err)
		}
		return path, nil
	}
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrMissing, err)
	}
	return path, nil
}

// memory is a folder that Linux keeps in memory.
var memory = "/dev/shm"

// makeFolder makes the folder of a server: in memory if possible, else on disk. A node of a cluster
// syncs its view of the cluster to disk whenever that changes, and Redis under Sentinel syncs its
// configuration. Both answer nothing meanwhile. That takes seconds on a machine whose disk is busy
// with a build, and then a failover outlasts a lease.
func makeFolder() (string, error) {
	if dir, err := os.MkdirTemp(memory, "redis"); err == nil {
		return dir, nil
	}
	return os.MkdirTemp("", "redis")
}

func launch(ctx context.Context, k kind, o Options) (_ *Server, err error) {
	binary, err := program()
	if err != nil {
		return nil, err
	}
	o.TCP = o.TCP || o.TLS != nil
	s := &Server{options: o, kind: k, binary: binary}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if s.dir, err = makeFolder(); err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	if s.data, err = os.MkdirTemp("", "redis"); err != nil {
		return nil, fmt.Errorf("redistest: %w", err)
	}
	// The smallest of the known systems: 104 bytes on BSD, with the final zero.
	const socketPathLimit = 103
	if n := len(s.socket()); n > socketPathLimit {
		return nil, fmt.Errorf("redistest: the socket path %s has %d bytes, the system takes %d: set TMPDIR to a shorter one",
			s.socket(), n, socketPathLimit)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !o.TCP {
		if err = s.startNew(ctx); err != nil {
			return nil, err
		}
		return s, nil
	}
	// Only trying shows whether a port is free: another program may take it between the check and
	// the server's bind. Then the server ends at once and the next port is tried.
	for range 10 {
		if s.port, s.claim, err = claimPort(ctx); err != nil {
			return nil, err
		}
		if err = s.startNew(ctx); err == nil {
			return s, nil
		}
		if err = errors.Join(err, s.unclaim()); ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

// The ports of servers are below those that systems use for outgoing connections, on Linux from
// 32,768: such a connection could take the port while its server is being restarted, and one that
// is dialed to a dead server could even connect to itself.
const (
	firstPort, endPort = 11_000, 16_000

	claimOffset = 5_000  // between a port and the listener that claims it
	busOffset   = 10_000 // between the port of a Cluster node and its port for the other nodes
)

// claimPort claims a free port until the returned listener is closed, also against the tests of
// other processes.
func claimPort(ctx context.Context) (port int, claim net.Listener, err error) {
	for range 100 {
		port = firstPort + rand.N(endPort-firstPort)
		if claim, err = claimOf(ctx, port); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return 0, nil, fmt.Errorf("redistest: find a free port: %w", err)
	}
	return port, claim, nil
}

// claimOf claims a port if it is free, as is the one busOffset above it. The claim is a listener on
// another port, which no program connects to. Without it, a server of another test could get the
// port of a killed one. The sentinels and the nodes that still look for the killed server would
// take the new one for it: they would join its topology, and change its role.
func claimOf(ctx context.Context, port int) (net.Listener, error) {
	claim, err := listen(ctx, port+claimOffset)
	if err != nil {
		return nil, err
	}
	for _, wanted := range []int{port, port + busOffset} {
		l, err := listen(ctx, wanted)
		if err == nil {
			err = l.Close()
		}
		if err != nil {
			return nil, errors.Join(err, claim.Close())
		}
	}
	return claim, nil
}

func listen(ctx context.Context, port int) (net.Listener, error) {
	return new(net.ListenConfig).Listen(ctx, "tcp", loopback(port))
}

// unclaim leaves the port to others.
func (s *Server) unclaim() error {
	if s.claim == nil {
		return nil
	}
	claim := s.claim
	s.claim = nil
	return claim.Close()
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// New starts a server for one test and stops it when the test ends. A failure to start fails the
// test.
func New(tb testing.TB, o Options) *Server {
	tb.Helper()
	return forTest(tb, o, Start)
}

// forTest starts something for one test, and stops it when the test ends.
func forTest[O any, S interface{ Stop() error }](tb testing.TB, o O, start func(context.Context, O) (S, error)) S {
	tb.Helper()
	s, err := start(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Stop(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// startNew writes the configuration and starts the process. Later starts read the file as it is
// then: Sentinel keeps its state there, and makes Redis servers store their roles as replicas
// there. mu is held.
func (s *Server) startNew(ctx context.Context) error {
	if err := s.writeConfig(); err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	return s.start(ctx)
}

// start starts the process and waits until it replies. mu is held.
func (s *Server) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := os.MkdirAll(s.data, 0o700); err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	args := []string{s.path("redis.conf")}
	if s.kind == sentinel {
		args = append(args, "--sentinel")
	}
	p, err := spawn(s.data, s.binary, args...)
	if err != nil {
		return fmt.Errorf("redistest: start %s: %w", s.binary, err)
	}
	s.process = p
	if err := s.await(ctx, p); err != nil {
		s.kill()
		log, _ := os.ReadFile(s.path("redis.log")) // without it the error still has the rest
		return fmt.Errorf("redistest: %s did not start: %w\n%s", s.binary, err, bytes.TrimSpace(log))
	}
	return nil
}

// spawn starts the program in a goroutine that stays on its thread until the program has ended: the
// kernel's signal at the parent's death (see ownAttributes) is bound to the thread that forked, and
// the Go runtime ends threads at any time.
func spawn(dir, binary string, args ...string) (*process, error) {
	cmd := exec.Command(binary, args...)
	cmd.Dir = dir
	cmd.SysProcAttr = ownAttributes()
	p := &process{done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(p.done) // Server.kill waits for it
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			p.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			_ = cmd.Wait() // its log shows how it ended
		}
	}()
	return p, <-started
}

func (s *Server) writeConfig() error {
	var b bytes.Buffer
	lines := []string{
		"daemonize no",
		"bind 127.0.0.1",
		"unixsocket " + strconv.Quote(s.socket()),
		"unixsocketperm 700",
		"dir " + strconv.Quote(s.data),
		"logfile " + strconv.Quote(s.path("redis.log")),
	}
	lines = append(lines, s.options.TLS.lines(s.kind, s.port)...)
	if s.kind != sentinel {
		// A killed process loses nothing that it has written to a file, synced or not.
		lines = append(lines, `save ""`, "appendonly no", "appendfsync no")
	}
	if s.kind == clusterNode {
		// Outside the data folder, so that a node that loses its data keeps its identity, as one
		// without persistence does.
		lines = append(lines, "cluster-enabled yes", "cluster-config-file "+strconv.Quote(s.path("nodes.conf")))
	}
	for _, line := range append(lines, s.options.Config...) {
		b.WriteString(line + "\n")
	}
	return os.WriteFile(s.path("redis.conf"), b.Bytes(), 0o600)
}

// await returns when the server replies, which it does once its data is loaded. It does not use the
// client library, which writes a line to stderr for each dial that fails.
func (s *Server) await(ctx context.Context, p *process) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ping(ctx, s.socket())
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return errors.New("the process ended")
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

func ping(ctx context.Context, socket string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	if answer != "+PONG\r\n" {
		return fmt.Errorf("PING got the reply %q", answer)
	}
	return nil
}

func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Server) socket() string { return s.path("s") }

// URL returns the server's address for a configuration: redis://127.0.0.1:PORT/0 with
// [Options].TCP, rediss://127.0.0.1:PORT/0 with [Options].TLS, otherwise unix:///PATH.
func (s *Server) URL() string {
	if s.options.TCP {
		return fmt.Sprintf("%s://%s/0", s.options.TLS.scheme(""), s.address())
	}
	return "unix://" + s.socket()
}

func (s *Server) address() string { return loopback(s.port) }

// RedisOptions returns fresh client options for this server, over its Unix socket, as lockstep sets
// those of its own clients: a command is sent once, deadlines of contexts count, and the first dial
// detects an unreachable server.
func (s *Server) RedisOptions() *redis.Options { return clientOptions("unix", s.socket()) }

func clientOptions(network, address string) *redis.Options {
	return &redis.Options{
		Network:               network,
		Addr:                  address,
		MaxRetries:            -1,
		DialerRetries:         1,
		ContextTimeoutEnabled: true,
	}
}

// Client returns a client of this server, closed when the test ends.
func (s *Server) Client(tb testing.TB) *redis.Client { return client(tb, s.RedisOptions()) }

func client(tb testing.TB, o *redis.Options) *redis.Client {
	tb.Helper()
	return closing(tb, redis.NewClient(o))
}

// closing closes a client when the test ends.
func closing[C io.Closer](tb testing.TB, rdb C) C {
	tb.Cleanup(func() {
		// A test may have closed the client itself.
		if err := rdb.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
			tb.Error(err)
		}
	})
	return rdb
}

// PID returns the ID of the running process, 0 without one.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return 0
	}
	return s.process.pid
}

// Pause stops the process with SIGSTOP: connections stay open, but get no replies. [Server.Resume]
// ends it.
func (s *Server) Pause() error { return s.signal(syscall.SIGSTOP) }

// Resume continues a paused process.
func (s *Server) Resume() error { return s.signal(syscall.SIGCONT) }

// running reports whether the server has a process that can reply.
func (s *Server) running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil || s.process.paused {
		return false
	}
	select {
	case <-s.process.done:
		return false
	default:
		return true
	}
}

func (s *Server) signal(sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return errors.New("redistest: no server runs")
	}
	if err := syscall.Kill(s.process.pid, sig); err != nil {
		return fmt.Errorf("redistest: send %v to redis-server: %w", sig, err)
	}
	s.process.paused = sig == syscall.SIGSTOP
	return nil
}

// Kill ends the process with SIGKILL and returns when it has exited. Its address stays reserved for
// [Server.Restart]. Data that no append-only file holds is lost. Killing a server that does not run
// does nothing.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill()
}

// kill ends the process and waits for it. mu is held.
func (s *Server) kill() {
	if s.process == nil {
		return
	}
	// The signal fails only if the process has ended by itself; then it is reaped, or about to be.
	select {
	case <-s.process.done:
	default:
		_ = syscall.Kill(s.process.pid, syscall.SIGKILL)
		<-s.process.done
	}
	s.process = nil
}

// Restart ends the process and starts one at the same address with the same data. After a
// [Server.Kill] the data is what an append-only file kept, which is nothing without one. The
// configuration includes what Redis itself has changed by CONFIG REWRITE, so the new process has
// the old one's role in a topology. It returns when the new process replies.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil && s.kind != sentinel {
		if err := s.save(ctx); err != nil {
			return fmt.Errorf("redistest: save the data before a restart: %w", err)
		}
	}
	s.kill()
	return s.start(ctx)
}

func (s *Server) save(ctx context.Context) error {
	if err := syscall.Kill(s.process.pid, syscall.SIGCONT); err != nil { // it may be paused
		return err
	}
	rdb := redis.NewClient(s.RedisOptions())
	defer rdb.Close()
	return rdb.Save(ctx).Err()
}

// RestartEmpty ends the process and starts one at the same address without data, as after the loss
// of a disk. The configuration stays, and with it the process's role in a topology. It returns when
// the new process replies.
func (s *Server) RestartEmpty(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill()
	if err := os.RemoveAll(s.data); err != nil {
		return fmt.Errorf("redistest: remove the data: %w", err)
	}
	return s.start(ctx)
}

// A Moment is the size of each append-only file of a server at a time, by path.
type Moment map[string]int64

// Moment returns what is on disk now, for [Server.RestartFrom]. The server must have "appendonly
// yes".
func (s *Server) Moment() (Moment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.moment()
}

func (s *Server) moment() (Moment, error) {
	m := make(Moment)
	err := filepath.WalkDir(s.data, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".aof" {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			m[path] = info.Size()
		}
		return err
	})
	if err == nil && len(m) == 0 {
		err = errors.New("there is no append-only file")
	}
	if err != nil {
		return nil, fmt.Errorf("redistest: read the sizes on disk: %w", err)
	}
	return m, nil
}

// RestartFrom ends the process and starts one at the same address with the data of an earlier
// moment, as if nothing had been written since. To clients, a failover to a replica that lagged
// looks like that. It returns when the new process replies.
func (s *Server) RestartFrom(ctx context.Context, m Moment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill()
	now, err := s.moment()
	if err != nil {
		return err
	}
	for path, size := range now {
		before, known := m[path]
		if !known || size < before {
			return fmt.Errorf("redistest: %s was rewritten since that moment", path)
		}
		if err := os.Truncate(path, before); err != nil {
			return fmt.Errorf("redistest: go back to a moment: %w", err)
		}
	}
	return s.start(ctx)
}

// Stop ends the process with SIGKILL, returns when it has exited, and removes its files. After that
// only Stop may be called again.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill()
	if err := errors.Join(s.unclaim(), os.RemoveAll(s.dir), os.RemoveAll(s.data)); err != nil {
		return fmt.Errorf("redistest: remove what a server leaves behind: %w", err)
	}
	return nil
}

// BreakSnapshots makes a server fail to write a snapshot. From then on it refuses writes, as one
// whose disk is full does, until its setting save is empty.
func BreakSnapshots(ctx context.Context, rdb *redis.Client) error {
	config, err := rdb.ConfigGet(ctx, "dir").Result()
	if err != nil {
		return err
	}
	// in the way of the file
	if err := os.Mkdir(filepath.Join(config["dir"], "dump.rdb"), 0o700); err != nil {
		return err
	}
	if err := rdb.ConfigSet(ctx, "save", "3600 1000000").Err(); err != nil {
		return err
	}
	if err := rdb.BgSave(ctx).Err(); err != nil {
		return err
	}
	return settle(ctx, func(ctx context.Context) error {
		if !strings.Contains(rdb.Info(ctx, "persistence").Val(), "rdb_last_bgsave_status:err") {
			return errors.New("the snapshot has not failed yet")
		}
		return nil
	})
}
