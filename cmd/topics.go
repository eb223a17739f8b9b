package cmd

import "github.com/spf13/cobra"

// topics returns the topics that `lockstep help` has besides the commands.
func topics() []*cobra.Command {
	return []*cobra.Command{
		{
			Use:   "exit-codes",
			Short: "What the exit codes mean",
			Long: `Exit codes:

    0  ok
    1  it failed                                          doctor: or something is wrong
    2  wrong usage, or refused                            also: Redis holds data of a format that this build does not know
    3  the config has errors                              check, config, start; check --strict: or warnings
    4  Redis is not reachable
    5  the run that was waited for did not succeed        enqueue --wait, job run --wait
   75  the lock was not to be had in time                 lock exec
   76  the lock was lost, and the command was ended       lock exec; also when the one of LOCKSTEP_HOLD was
  124  --wait timed out                                   enqueue --wait=D, job run --wait=D
  130  interrupted

lock exec else ends with the code of its command: 128+n when signal n ended it, 127 when there is no such
program, 126 when it cannot be executed. start and demo end with 0 when a signal asked them to end.`,
		},
		{
			Use:   "environment",
			Short: "The environment variables that are read and given",
			Long: `Read by lockstep:

  LOCKSTEP_CONFIG          config files and folders, parted like $PATH; -c goes before it
  LOCKSTEP_REDIS__URL      any setting of a config file: a double underscore nests, so that
  LOCKSTEP_WORKER__QUEUES  is worker.queues, as critical=6,default=3. These go before the files, flags before these.
  REDIS_URL                the same as LOCKSTEP_REDIS__URL, which goes before it
  LOCKSTEP_HOLD            by lock exec: the hold that it works under, see below; it asks only for what that has not
  NO_COLOR                 if it is not empty, nothing is coloured

A command job inherits the variables of its worker that worker.env names (by default PATH, HOME, USER, LOGNAME, SHELL,
LANG, LANGUAGE, LC_*, TZ, TMPDIR, HOSTNAME, SSL_CERT_FILE, SSL_CERT_DIR), never REDIS_URL or a setting. The env of the job
adds to these, and it gets:

  LOCKSTEP_JOB             the name of the job
  LOCKSTEP_RUN_ID          the id of the run
  LOCKSTEP_ATTEMPT         1 for the first attempt of the run, one more for each further one
  LOCKSTEP_TICK            the due time the run is for, RFC 3339 in UTC; empty without one
  LOCKSTEP_ARGS            the arguments, as JSON
  LOCKSTEP_ARGS_FILE       in its place, when they are too large for a variable (on Linux 128 KiB): a file that has them
  LOCKSTEP_IDEMPOTENCY_KEY the same for all attempts of the run
  LOCKSTEP_TOKEN           the fencing token: it grows with every grant of the locks
  LOCKSTEP_LOCKS           the names of what is held, as a JSON array
  LOCKSTEP_HOLD            the id of the hold; of a lock exec inside another one, all of them, the innermost first
  LOCKSTEP_WORKER          the id of the worker
  TRACEPARENT              the W3C trace context

The command of lock exec gets LOCKSTEP_TOKEN, LOCKSTEP_LOCKS, LOCKSTEP_HOLD and LOCKSTEP_WORKER.`,
		},
		{
			Use:   "guarantees",
			Short: "What is promised, and what is not",
			Long: `Promised:

  Every tick is accounted for: each due time of each job has one record and one final outcome, whatever the number of
  replicas, their clocks and their restarts.
  One holder: two workers never both act on one lock. A worker's context ends, and its child processes are killed, before
  its lease can pass to another.
  Finished means finished: a run whose outcome is recorded never runs again, however often it is delivered.
  A crash is not a retry: when a worker dies or loses its lease, another one reruns its runs, or marks them lost, as the
  jobs' on_crash says. Only a death, which the worker's parent process reports, counts as a crash; a lost lease, as in an
  outage of Redis, counts as nothing. Crashes are counted apart from failures.
  Every attempt can be fenced: it has a token that only grows, and an idempotency key that stays the same over all attempts
  of a run.

This rests on: Redis keeps its data and its clock is not stepped forward, the rates of clocks agree within 0.1 %, and a
handler reacts to the end of its context within a fifth of the lease (3 seconds at most).

Not promised:

  Exactly-once effects on something that checks neither the token nor the key: a process can be paused in the middle of a
  write for longer than any lease. The guards in lockstep/locks/guard check them, in SQL, Redis and HTTP.
  Stopping Go code that ignores its context, but by the end of its process. Command jobs can be killed, and are.
  One holder, when a person says otherwise: lock release --force passes a lock on without waiting for its holder.
  One holder, while two masters answer: with Sentinel or Cluster, set min-replicas-to-write 1. lockstep doctor checks it.
  Anything that no live worker knew, when Redis loses its data: run it with persistence. lockstep doctor checks that.
  Protection from clients that may write to Redis: a sign key keeps their commands from the workers, and nothing keeps them
  from deleting records or freeing locks.`,
		},
	}
}
