// Package cmd is the command line of lockstep. [Main] turns any binary into the whole tool: a
// program registers its Go handlers, calls Main, and is worker, client and inspector in one.
//
// # How a command is made
//
// Each group of commands has one file. A command parses its flags, connects, calls the one package
// that does the work, and prints. The rules live in those packages. All commands share:
//
//   - exit.go: the exit codes. An error may carry its code; any other error exits with 1. An error
//     is reported as one line on stderr that begins with "lockstep:".
//   - connect.go, url.go: where Redis is. A command finds it as a worker does, and falls back to a
//     running demo if nothing names a Redis.
//   - output.go: tables for people, JSON and YAML for programs, names for shells. Data goes to
//     stdout, everything else to stderr. JSON has the shapes of the HTTP API, because both come
//     from the same reader (lockstep/scheduler/admin).
//   - deed.go: acts that are prepared, described and then done, by a command or in the screen of
//     `lockstep top` (lockstep/cmd/top), which is the only part that draws in a terminal.
//
// # Processes
//
// The binary starts itself again in three cases: as the guard of a command (lockstep/jobs/command),
// as the working child of `lockstep start`, and as the workers of `lockstep demo`. A guard runs
// before [Main], while the program is initialized (lockstep/cmd/internal/asguard).
//
// The first SIGINT, SIGTERM or SIGHUP cancels the root context, from which all others derive; a
// worker then drains. A second signal cancels whatever still runs. For a worker, SIGHUP means
// "reload the config" instead (reload.go), unless it comes from a terminal that was closed.
//
// # Parent and child
//
// A worker is a pair of processes. `lockstep start` itself is the parent. It starts this binary
// once more as the working child, which does all the work, and waits for it.
//
//	lockstep start ──orders──▶ lockstep worker: start ──▶ guard ──▶ command ──▶ ...
//	   (parent)    ◀──news────        (child)
//
// The pair solves this problem: a worker that panics, runs out of memory or is killed with -9
// releases nothing, so its locks and runs are stuck until its lease expires. A process that knows
// for certain that the worker is dead, along with every process it started, can end the worker's
// session on its behalf, and the next worker takes over within a fraction of a second. A parent
// gets this certainty from the kernel. If the dead worker was the only one, the parent starts
// another.
//
//	child works ──┬── exits in order ──▶ the parent exits with the child's code
//	     ▲        │
//	     │        └── crashes ──▶ burial ──┬── nothing left ──▶ death reported, sessions ended ──┐
//	     │                                 └── after 1 s ─────▶ death reported, lease decides ───┤
//	     └──────── pause: none, 0.5 s, 1 s, 2 s ◀────────────────────────────────────────────────┤
//	                                                    exit 1, at the fifth crash in a minute ◀─┘
//
// Orders and news are two pipes. An order is one byte: a signal that the parent received and passes
// on. It waits in the pipe while the child cannot handle signals yet. News ([news]) carries the
// address of Redis, each session before anything is claimed under it, and, as the last message,
// that the child exits in order. The parent reads no config and keeps no connection to Redis; it
// opens one only when it has a session to end.
//
// # Service manager
//
// The parent also reports to systemd, or another manager that sets NOTIFY_SOCKET: manager.go. By
// default, systemd listens to the main process alone, and only the parent outlives a crash. It asks
// the child for its state with an order, question, and asks again when it has the answer, so no
// pipe fills while one of them is stopped.
//
//	READY=1       once, when the worker may first take runs, as /readyz; and at the end of a reload
//	STATUS=...    what /readyz says; that a config was refused; why no child can start
//	RELOADING=1   a reload begins: by SIGHUP, a request or changed files
//	STOPPING=1    a signal, or an operator's drain; the manager must wait for worker.drain_timeout
//	WATCHDOG=1    the worker recovers by itself, if it has to
//
// The watchdog does not mean that the worker is ready. A worker that waits for Redis recovers
// without help, however long the outage is, and a restart would only lose what it could re-assert.
// It is fed
//
//   - while the child answers and has not stalled ([worker.Worker.Stalled]): the loop that feeds
//     readiness comes around, whatever it finds out
//   - while no child runs, and the parent waits to start the next one
//
// It is not fed while the child is stopped or hangs, or while the parent does. Locks do not depend
// on it: a lease is shorter.
//
// # Invariants
//
//  1. The parent ends a session only after everything that worked under it is dead: it has reaped
//     the child, and has then killed until it had no children left. Every orphan becomes its child,
//     because it is a subreaper.
//  2. The parent learns of a session before that session can have a hold: the ID is in the pipe,
//     which outlives the child.
//  3. A child that does not announce an orderly exit has crashed, whatever its exit code: a panic
//     exits with 2, as wrong usage does.
//  4. The next child has sessions of its own. The ID of an ended session stays refused, so a late
//     command of the dead child takes nothing. Tokens cover the requests that it had sent to
//     systems other than Redis.
//
// # Failures
//
//   - The child crashes: as above. A guard that notices first does the same for its command; both
//     may act.
//   - The child hangs or is stopped: the parent does nothing. The child's lease decides, and its
//     guards kill at the deadline they know. When the child continues, its watchdog cuts off its
//     work, and the ledger refuses its late reports.
//   - A process cannot be killed within a second (it waits for a disk, or belongs to another user),
//     or the system has no subreaper, or the parent had children before (a script that starts a
//     process and then executes lockstep): the parent leaves the session to its lease and starts
//     the next child anyway.
//   - Redis does not answer for five seconds while the parent reports the death and ends the
//     session: the parent starts the next child, and reports the death again until Redis answers,
//     once a second at first. If the lease ends and a sweep comes first, the attempts count as lost
//     leases, not as crashes.
//   - The parent dies: the orders end. The child hands its runs back at once, as after a second
//     signal, ends its session and exits. If that takes longer than ten seconds, it exits anyway,
//     and the lease decides. It does not continue without its parent, because an operator or
//     supervisor that killed the parent, or saw it die and starts another, takes the worker for
//     dead. The kernel could kill the child with its parent (Pdeathsig), but then its runs would
//     count as crashed and wait for the lease.
//   - Both die, or the machine does, or the parent is stopped when its child crashes: the lease
//     decides, and no crash is counted, since no process reports one. A kernel that is short of
//     memory may kill all processes of a control group (memory.oom.group, which Kubernetes sets).
//     [ledger.MaxLostLeases] bounds a run that takes down its host like that each time.
//   - The child crashes while it drains: the parent buries it and exits with 1.
//   - A Go handler ignores its context when the drain is over, or a command survives its KILL: the
//     child tells the parent how the attempts that it leaves behind end, and exits in order. It
//     does not call OnStop. The parent buries what is left as after a crash, records those ends and
//     ends the session. No crash is counted. The runs are handed back, unless a timeout, a
//     cancellation or on_crash: abandon applies. If some process of a command cannot be killed, the
//     parent records nothing and leaves the session to its lease. It exits with the child's code.
//   - After a crash, the next child cannot start: Redis is unreachable, OnStart fails, or the files
//     now hold a config that a reload refused (only the crashed child had the old one). The parent
//     does not exit, since no process would start it again once the cause is repaired. It logs the
//     cause and tries again after 1 s, 2 s, ... up to 30 s, and at once on SIGHUP. If the very
//     first child cannot start, the parent exits with its error.
//   - The program with the Go handlers opens a database before [Main]: the parent and command lines
//     open it too. With [jobs.Registry.OnStart], only the working child does, before
//     it has a session.
//   - redis.url is embedded: that Redis dies with the child, so the parent has no session to end.
//
// A process that a Go handler started and left behind in a process session of its own becomes a
// child of the parent while the working child lives. The parent does not touch it until the working
// child crashes.
package cmd
