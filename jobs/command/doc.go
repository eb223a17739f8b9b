// Package command runs commands such that none of their processes outlives its lock.
//
// # The problem
//
// A worker that holds a lock starts a command, and the command starts other processes. The worker
// may be killed, freeze, or lose its lease while it cannot run. It can then no longer stop
// anything, but its lock still passes to another worker. So another process must know the deadline,
// act on it without a reply from any other process, and find every process of the command.
//
// # The guard
//
// That process is the guard (lockstep/jobs/command/guard): our own binary, executed again, once for
// each command.
//
//	worker ──orders──▶ guard ──▶ command ──▶ its children ...
//	       ◀─reports──       (own process group)
//
// The guard receives the command, its environment and the deadline through a pipe (orders), so the
// guard's own arguments and environment (Options.GuardEnv) contain no secrets. Through another pipe
// (reports) it reports that the command has started, how it ended, and that no process of it is
// left. It kills the command's process group and every descendant, and waits for them, when
//
//   - the boot clock (bootclock.Now) reaches the deadline. The guard checks every 100 ms, because
//     timers stop while the machine is suspended. The worker sends every change of the deadline; no
//     message means no change;
//   - the worker is dead, even by kill -9: the orders pipe is then at its end, and the guard has
//     another parent;
//   - the worker orders it, by closing that pipe;
//   - the command has ended: processes that it left would continue without the lock.
//
// The guard also finds a descendant that left the group (setsid, a daemon). On Linux the guard is a
// subreaper, so a process that loses its parent becomes the guard's own child. The guard kills its
// children repeatedly until it has none, which reaches all of them. Conversely, the kernel kills
// the command when the guard dies (Pdeathsig).
//
// Guards start in turns, as many at a time as there are processors. A turn lasts at most 200 ms,
// and a start waits that long for its turn. When some dozens of commands are due at once, the first
// ones then start as soon as they would alone.
//
// The guard does not ask the kernel to be killed with the worker, because it would then die before
// it could kill anything. It has its own process group, so a Ctrl-C or Ctrl-Z on the terminal does
// not reach it.
//
// # How an attempt ends
//
//	running ──ctx ends──▶ TERM to the group ──KillAfter, at the latest KillBy──▶ KILL ──▶ ended
//	   │                                    └──────── ends by itself ──────────────────▶ ended
//	   ├──exits──▶ KILL to the processes it left ────────────────────────────────────────▶ ended
//	   └──KillBy──▶ KILL ───────────────────────────────────────────▶ ended (locks.ErrLost)
//
// [Executor.Execute] and [Executor.Run] return at "ended" and not before. The one exception is
// jobs.ErrAbandoned: when the worker is about to exit, Execute leaves behind a command that cannot
// be killed. The other errors are [*StartError] if the command could not be started, [*ExitError]
// if it failed, the cause of ctx followed by that error if ctx ended the command, and locks.ErrLost
// if the guard killed it at its deadline. If the command ended by itself before the TERM reached
// it, its own result counts. An [*ExitError] matches jobs.ErrTerminated if a SIGTERM ended the
// command, or if the command failed after its guard had received one. A service manager sends one
// to all processes of a service that it stops.
//
// # What a guarded program needs
//
// A program that was started with the arguments in Options.Guard must call [GuardMain] before it
// does anything else. A program that imports lockstep/cmd does that by itself for the guards of its
// workers, not for those of an [Executor] that it makes with Options.Guard of its own. Tests use
// the path of a built binary, or let their TestMain call GuardMain.
//
// # What is not promised
//
//   - A process that cannot be killed continues: the worker's user is not allowed to kill it
//     (sudo), or it waits for a disk or a file system that does not respond. The guard waits for
//     it, so the attempt keeps its slot, and its locks as long as the worker renews its session. A
//     drain leaves the process behind: the worker exits, and the locks pass on at the end of the
//     lease.
//   - If the guard itself hangs before it has started the command (a folder of PATH does not
//     respond), the worker kills the guard at the deadline, or KillAfter after ctx has ended.
//   - If the guard itself is killed with kill -9, the kernel kills the command (unless it was
//     executed with other credentials), and the worker kills its descendants before [Executor.Run]
//     returns. The worker recognizes them by a resource limit (RLIMIT_RTTIME) that the guard sets
//     for its command and every process inherits. A process that changes this limit escapes. If
//     guard and worker are both killed, a descendant that left the group passes to the next
//     subreaper above: the parent of a lockstep worker process kills it.
//   - Systems other than Linux have neither subreapers nor such limits. On them only the group is
//     killed.
//   - A stopped guard (kill -STOP) acts when it continues. If the deadline has passed without a
//     report, the worker wakes the guard and kills the group itself.
package command
