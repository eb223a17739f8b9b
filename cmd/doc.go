// Package cmd is the command line of lockstep. [Main] gives any binary the whole tool: a program with Go handlers of its
// own registers them and calls it, and is then worker, client and inspector in one.
//
// # How a command is made
//
// There is one file for each group of commands. A command parses, connects, calls one package that does the thing, and
// prints; the rules live in those packages. What all commands share:
//
//   - exit.go: the exit codes. An error carries its code; every other error is a plain failure. What went wrong is one
//     line on stderr that begins with "lockstep:".
//   - connect.go, url.go: where Redis is, found as the worker finds it, or, when nobody says so, as a running demo.
//   - output.go: tables for people, JSON and YAML for programs, names for shells. Data goes to stdout, all else to
//     stderr. JSON has the shapes of the HTTP API, because both come from the same reader (lockstep/scheduler/admin).
//
// # Processes
//
// The binary starts itself again in two cases: as the guard of a command (lockstep/jobs/command), which [Main] turns
// into before anything else happens, and as the workers of `lockstep demo`.
//
// The first SIGINT, SIGTERM or SIGHUP ends the root context, from which all others are derived; a worker then drains. A
// second one cancels what still runs.
package cmd
