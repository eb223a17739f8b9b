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
//   - [Server.Proxy], for those that break the way to it: late, lost and swallowed bytes, cut and refused connections.
//
// Why not a fixed port or a server that is there anyway: two test binaries run side by side, and a developer's Redis is
// nobody's to flush. Why not miniredis alone: it is more forgiving than Redis in some places and narrower in others, so
// that green there proves nothing here. Without the program redis-server the tests that need it fail, with a line that
// says how to get it; a skip would read as success.
//
// Every failure to start says what the server wrote to its log. The package does not guard against a kill -9 of the
// test binary on systems other than Linux: a redis-server may be left over there.
package redistest
