// Package command runs commands such that none of their processes outlives its lock.
//
// # The problem
//
// A worker that holds a lock starts a command, and the command starts others. The worker may be killed, freeze, or lose
// its lease while it cannot run; it can then no longer stop anything, but its lock passes to another worker all the
// same. So somebody else must know the deadline, need no answer from anyone to act on it, and find every process.
//
// # The guard
//
// That is the guard: our own binary, executed again, one for each command.
//
//	worker ──orders──▶ guard ──▶ command ──▶ its children ...
//	       ◀─reports──       (own process group)
//
// It gets the command, its environment and the deadline through a pipe (orders), so neither arguments nor secrets show
// among the guard's own (whose environment is Options.GuardEnv), and it tells through another (reports) that the command has started, how it ended, and that
// nothing of it is left. It kills the command's process group and every descendant, and waits for them, when
//
//   - the boot clock (locks.BootTime) shows the deadline. It looks every 100 ms, because timers stand still while the
//     machine is suspended. The worker tells every move of the deadline; no news means that it stays;
//   - the worker is dead, even by kill -9: the pipe of orders is at its end then, and the guard's parent is another;
//   - the worker says so, by closing that pipe;
//   - the command has ended: what it left running would go on without the lock.
//
// A descendant that left the group (setsid, a daemon) is found as well: on Linux the guard is a subreaper, so whatever
// loses its parent becomes the guard's own child. Killing its children again and again until it has none reaches all of
// them. In turn the kernel kills the command when the guard dies (Pdeathsig).
//
// The guard does not ask the kernel to be killed with the worker: it would then die before it could kill. It has a
// process group of its own, so a Ctrl-C or a Ctrl-Z on the terminal does not reach it.
//
// # How an attempt ends
//
//	running ──ctx ends──▶ TERM to the group ──KillAfter, at the latest KillBy──▶ KILL ──▶ ended
//	   │                                    └──────── ends by itself ──────────────────▶ ended
//	   ├──exits──▶ KILL to what it left ─────────────────────────────────────────────────▶ ended
//	   └──KillBy──▶ KILL ────────────────────────────────────────────────────────────────▶ ended (locks.ErrLost)
//
// [Executor.Execute] and [Executor.Run] return at "ended" and not before. Their errors: [*StartError] when the
// command could not be started, [*ExitError] when it failed, the cause of ctx in front of that when ctx ended it, and
// locks.ErrLost when the guard killed it at its deadline. A command that had ended by itself before the TERM reached
// it counts as what it was. An [*ExitError] matches jobs.ErrTerminated when a SIGTERM ended the command, or when the
// command failed after its guard had received one, as all processes of a service do that a service manager stops.
//
// # What a guarded program needs
//
// The program calls [GuardMain] when it is started with the arguments that Options.Guard names, and before it does
// anything else. cmd.Main does. Tests give the path of a built binary, or let their TestMain do it.
//
// # What is not promised
//
//   - A process that may not be killed by the worker's user (sudo, a setuid program) goes on. The guard waits for it,
//     so the attempt keeps its slot, but the lock passes on at the end of the lease.
//   - When the guard itself is killed with kill -9, the kernel kills the command (unless that was executed with other
//     credentials), and the worker kills its descendants before [Executor.Run] returns. It recognizes them by a
//     resource limit (RLIMIT_RTTIME) that the guard sets for its command and every process inherits; one that
//     changes this limit escapes. When guard and worker are both killed, a descendant that left the group falls to
//     the next subreaper above: the parent of a working child of lockstep kills it.
//   - Systems other than Linux have neither subreapers nor such limits: there the group is all that is killed.
//   - A guard that somebody stops (kill -STOP) acts when it goes on. The worker wakes it, and kills the group itself,
//     when the deadline has passed without a report.
package command
