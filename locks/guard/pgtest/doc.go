// Package pgtest gives a test binary its own PostgreSQL: on a Unix socket in a temporary folder,
// started when the first test asks for it, and stopped when the binary ends, even if it is killed.
// It is to PostgreSQL what redistest is to Redis, with one difference: work on the rest does not
// need PostgreSQL. So a test that asks for it is skipped where it is not installed, unless
// LOCKSTEP_TEST_ALL=1 forbids skipping.
//
//	func TestMain(m *testing.M) { redistest.Main(pgtest.Tests(m)) }
//
// Use [Open] first: it returns a database in which the test has its own schema. [DSN] names such a
// schema for other processes. Only on Linux does the server end after a kill -9 of the test binary.
package pgtest
