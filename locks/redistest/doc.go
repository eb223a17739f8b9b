// Package redistest gives a test binary a Redis of its own: a real redis-server on a Unix socket in a temporary folder,
// started when the first test asks for it and gone when the binary ends, also when it is killed.
//
// A package that talks to Redis has one TestMain:
//
//	func TestMain(m *testing.M) { redistest.Main(m) }
//
// and its tests take what they need:
//
//   - [Client], a client of the binary's shared server, together with [Namespace], so that parallel tests share nothing
//     but the process. This is the call to use first. No test may flush or stop the shared server.
//   - [Each], the same test once on Redis and once on miniredis: for Lua scripts, which must pass on both.
//   - [New], a server of the test's own, for those that kill, pause, flush or restart it.
//   - [Server.Proxy], for those that break the way to it: late, lost and swallowed bytes, cut and refused connections,
//     and, for single requests of chosen commands, doubled ones, late copies, lost and half replies. See [Faults].
//   - [NewSentinel] and [NewCluster], a topology of the test's own: a master with replicas and three sentinels, or a Redis
//     Cluster with replicas. They have the failovers and moving slots; harm to one of their processes is done through its
//     [Server], and the way to them is broken by [Sentinel.Routes] and [Cluster.Routes].
//
// A topology is five or six processes, ready after half a second (Sentinel) or two to four (Cluster), and busy all the
// time with watching each other: share one among the sub-tests of a test rather than start many.
//
// Why not a fixed port or a server that is there anyway: two test binaries run side by side, and a developer's Redis is
// nobody's to flush. Why not miniredis alone: it is more forgiving than Redis in some places and narrower in others, so
// that green there proves nothing here. Without the program redis-server the tests that need it fail, with a line that
// says how to get it; a skip would read as success.
//
// The tests use the redis-server of the PATH. [ServerEnv] names another one, to run them on another version, or on Valkey.
//
// Every failure to start says what the server wrote to its log. Servers that need a port get a free one below those that
// systems give to outgoing connections, and keep it through restarts. The package does not guard against a kill -9 of the
// test binary on systems other than Linux: a redis-server may be left over there.
package redistest
