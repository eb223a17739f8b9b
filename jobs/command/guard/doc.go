// Package guard is the guard of a command: the process between a worker and its command that kills
// the command when the worker dies or no longer has its lock. The doc of lockstep/jobs/command, the
// worker's side, describes the protocol. Use that package to run commands.
//
// # Why it imports little
//
// Each command has a guard of its own, and a guard is the worker's whole program, executed again.
// The packages of a worker take several times as much processor time to initialize as a guard needs
// for all of its work. Go initializes a package as soon as the packages that it imports are
// initialized, and then takes the next one in the order of their paths. So a package with few
// imports that runs the guard in its own initialization keeps the rest of the program from being
// initialized in guards. lockstep/cmd/internal/asguard is that package.
//
// Hence this package, and the packages that it imports, do without reflect and unicode, and without
// what imports these: fmt, strings, bytes, encoding/..., os/exec, golang.org/x/sys/unix. As soon as
// reflect is initialized, most of the program is, in the order of paths, before any package of
// ours. A few lines here replace each of them: the messages, the lookup in PATH, the system
// calls. A test of lockstep/cmd fails if an import brings them back.
package guard
