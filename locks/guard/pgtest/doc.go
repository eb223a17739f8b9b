// Package pgtest gives a test binary a PostgreSQL of its own: on a Unix socket in a temporary folder, started when the
// first test asks for it and gone when the binary ends, also when it is killed. It is to PostgreSQL what redistest is to
// Redis, with one difference: PostgreSQL is not needed to work on the rest, so a test that asks for it is skipped where
// it is not installed, unless LOCKSTEP_TEST_ALL=1 says that nothing may be.
//
//	func TestMain(m *testing.M) { redistest.Main(pgtest.Tests(m)) }
//
// [Open] is the call to use first: a database in which the test has a schema of its own. [DSN] names such a schema to
// other processes. Against a kill -9 of the test binary the server is guarded on Linux alone.
package pgtest
