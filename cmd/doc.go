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
// The binary starts itself again in three cases: as the guard of a command (lockstep/jobs/command), which [Main] turns
// into before anything else happens, as the working child of `lockstep start`, and as the workers of `lockstep demo`.
//
// The first SIGINT, SIGTERM or SIGHUP ends the root context, from which all others are derived; a worker then drains. A
// second one cancels what still runs. To a worker SIGHUP says something else: to read its config again (reload.go). Only
// that of a terminal which has been closed asks it to end.
//
// # Parent and child
//
// A worker is a pair of processes. `lockstep start` itself is the parent: it starts this binary once more as the working
// child, which does everything, and waits.
//
//	lockstep start ──orders──▶ lockstep worker: start ──▶ guard ──▶ command ──▶ ...
//	   (parent)    ◀──news────        (child)
//
// The problem it solves: a worker that dies of a panic, for want of memory or by kill -9 ends nothing of what it holds,
// so its locks and runs stand still until its lease is over. Somebody who sees for certain that it is dead, with every
// process it has started, can end its session in its place, and the next worker goes on within a fraction of a second.
// The kernel tells a parent. And when it is the only worker, the parent starts another one.
//
//	              ┌──ends in order──────────────────────────▶ the parent ends, with the child's exit code
//	child works ──┤
//	     ▲        └──crashes──▶ burial ──nothing is left──▶ death reported, sessions ended ──┐
//	     │                        └────── a second ───────▶ death reported, lease decides ───┤
//	     └──────── pause: none, 0.5 s, 1 s, 2 s ─────────────────────────────────────────────┴──▶ exit 1, at the fifth in a minute
//
// Orders and news are two pipes. An order is one byte, a signal that the parent was sent and passes on: it waits in the
// pipe even while the child cannot hear signals yet. News ([news]) are where Redis is, each session before anything is
// claimed under it, and, last of all, that the child ends in order. The parent reads no config and has no connection to
// Redis; it makes one when there is a session to end.
//
// # What always holds
//
//  1. A session is ended only when nothing that worked under it can go on: the child was reaped, and after that the
//     parent, to which every orphan falls (it is a subreaper), has killed until it had no child left.
//  2. A session that may have a hold was told to the parent before: it is in the pipe, which outlives the child.
//  3. What does not end in order has crashed, whatever its exit code: a panic exits with 2, as wrong usage does.
//  4. The next child has sessions of its own. An ended id stays refused, so whatever the dead child had sent and comes
//     late takes nothing; what it had sent to others than Redis is what tokens are for.
//
// # What happens when
//
//   - The child crashes: as above. A guard that hears of it first does the same for its command; both may.
//   - The child hangs, or is stopped: nothing. Its lease decides, and its guards kill by the deadline they know. When it
//     goes on, its watchdog ends what it was doing, and what it still tells the ledger is refused.
//   - A process cannot be killed within a second (it waits for a disk, or belongs to another user), or the system has no
//     subreaper, or the parent had children before (a script that starts something and then executes lockstep): the
//     session is left to the lease, and the next child starts all the same.
//   - Redis does not answer for five seconds while the death is to be reported and the session ended: the lease decides. The
//     parent reports the death again before it starts another child. If a sweep comes first, the attempts have lost their
//     lease instead of having crashed.
//   - The parent dies: the orders end. The child hands its runs back at once, as after a second signal, ends its session
//     and exits; if that takes longer than ten seconds it exits as it is, and the lease decides. It does not go on alone,
//     since whoever has killed the parent, or sees it dead and starts another, takes the worker for dead. The kernel could
//     kill it with its parent (Pdeathsig), but then its runs would have crashed, and would wait for the lease.
//   - Both die, or the machine does, or the parent is stopped when its child crashes: the lease decides, and no crash is
//     counted, since nothing reports one. A kernel may kill all processes of a control group for want of memory
//     (memory.oom.group, which Kubernetes sets). A run that brings its host down like that each time is bounded by
//     [ledger.MaxLostLeases].
//   - The child crashes while it drains: it is buried, and the parent ends with 1.
//   - A Go handler ignores its context when the drain is over: the child tells the parent which runs it leaves behind,
//     and ends in order. The parent buries what is left as after a crash, hands the runs back, which are not counted as
//     crashed, and ends the session. The exit code is the child's.
//   - A child that was started after a crash cannot begin, because Redis is unreachable, because OnStart fails, or
//     because the files were changed to a config that a reload refused (only the crashed child had the old config).
//     The parent does not end for that, since no process would start it again when the cause is mended: it logs the
//     cause, tries again after 1 s, 2 s, ... up to 30 s, and at once on SIGHUP. The very first child's error is the
//     parent's own.
//   - The Go handlers' program opens a database before [Main]: parent, guards and command lines open it too. In
//     [jobs.Registry.OnStart] only the working child does, before it has a session.
//   - redis.url is embedded: that Redis dies with the child, so there is no session to end.
//
// What a Go handler has started and left behind in a session of its own falls to the parent while the child lives; it is
// not touched before the child crashes.
package cmd
