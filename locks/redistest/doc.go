// Package redistest gives a test binary its own Redis: a real redis-server on a Unix socket in a
// temporary folder, started when the first test asks for it, and stopped when the binary ends, even
// if it is killed.
//
// A package that talks to Redis has one TestMain:
//
//	func TestMain(m *testing.M) { redistest.Main(m) }
//
// and its tests take what they need:
//
//   - [Client], a client of the binary's shared server, together with [Namespace], so that parallel
//     tests share only the process. Use these first. No test may flush or stop the shared server.
//
//   - [Each], the same test once on Redis and once on miniredis: for Lua scripts, which must pass
//     on both.
//
//   - [New], a separate server, for tests that kill, pause, flush or restart it.
//
//   - [Server.Proxy], for tests that break the connection to it: late, lost and swallowed bytes,
//     cut and refused connections, and, for single requests of chosen commands, doubled ones, late
//     copies, lost and half replies. See [Faults].
//
//   - [NewSentinel] and [NewCluster], a separate topology: a master with replicas and three
//     sentinels, or a Redis Cluster with replicas. They offer failovers and moving slots. A test
//     harms one of their processes through its [Server], and breaks the connections to them with
//     [Sentinel.Routes] and [Cluster.Routes].
//
//   - [NewAuthority], certificates for any of these servers: with [Options].TLS and its likes they
//     use TLS, and each of their clients needs a certificate, too.
//
// A topology is five or six processes, ready after half a second (Sentinel) or two to four
// (Cluster). They are always busy watching each other, so share one among the sub-tests of a test
// rather than start many.
//
// Why not a fixed port or a server that already runs: two test binaries run side by side, and a
// test must not flush a developer's Redis. Why not miniredis alone: it is more forgiving than Redis
// in some places and narrower in others, so a test that passes there proves nothing here. Without
// the program redis-server the tests that need it fail, with a line that says how to install it; a
// skip would read as success.
//
// The tests use the redis-server in PATH. [ServerEnv] names another one, to run them on another
// version, or on Valkey.
//
// On Linux, servers keep their data in TMPDIR, and their small files in memory (/dev/shm).
//
// Every failure to start includes the server's log. Servers that need a port get a free one below
// the range that systems use for outgoing connections, and keep it through restarts. On systems
// other than Linux, a kill -9 of the test binary may leave a redis-server behind.
package redistest
