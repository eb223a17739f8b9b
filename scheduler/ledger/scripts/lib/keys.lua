-- The keys of the ledger. They follow the lock space's eight, and are the same in every script:
--    9 run     HASH  run -> record (fields of layout.lua, joined by \31), outstanding runs only
--   10 body    HASH  run -> arguments (JSON), \31, and its definition: @ and its name, see defs; in
--                    format 1, and if the run was made before format 2 was written, the definition
--                    itself (JSON). A blank before the arguments of a request: they are those of
--                    the definition, and have ${...}
--   11 log     HASH  run -> its closed attempts, JSON objects joined by commas; of many, see close,
--                    not all
--   12 timer   ZSET  run, score = server ms at which a scheduled or retrying run becomes due
--   13 ready   ZSET  all scores 0: queue \0 due since (ms, 16 digits) \0 run. The due runs
--   14 push    ZSET  run, score = server ms of its last n, or at which a process last had it to
--                    push; its delivery is not confirmed yet
--   15 sent    ZSET  run, score = server ms at which its delivery was last known to be in the queue
--   16 busy    ZSET  all scores 0: session \0 run. The running runs
--   17 open    ZSET  all scores 0: job \0 tick (ms, 16 digits; zeros without one) \0 run. The
--                    outstanding runs
--   18 cursor  HASH  job -> the last decided tick, server ms
--   19 def     HASH  job -> definition, JSON
--   20 rev     ZSET  job, score = the revision at which its cursor last moved, or at which it was
--                    forgotten
--   21 ledger  HASH  pauses:<queue> (the last pauses of a queue: from, "-", to or nothing, server
--                    ms, separated by blanks), rev (the last revision), duty (the session that
--                    creates and sweeps for all), looked (where the sweep continues to check
--                    running runs), config:<digest> (ms at which a worker with it last polled, or
--                    earlier when its workers have left it), was:<digest> (the true ms of that
--                    poll, after they left it, until all of its definitions are registered again),
--                    since:<digest> (ms since which one has polled without a long pause),
--                    carry:<session> (the digest it last polled with), order (the highest of
--                    definitions), dropped (ms at which a registration last dropped a definition,
--                    or a config of one), leaves (how many configs were left), unfit (the session
--                    on duty, if some of its definitions have drifted)
--   22 ids     ZSET  run, score = server ms until which the id of a request is remembered; and \0
--                    with a word for one delivery of an adopted request, score = server ms until
--                    which that is remembered; and \1 with a job that was forgotten, score = server
--                    ms of that + 7 days; and \2 with a job without a definition if a worker has
--                    re-asserted its cursor, score = server ms of that + 7 days
--   23 late    ZSET  run, score = server ms after which it must not start, or has waited long
--                    enough for its bundle
--   24 ask     ZSET  all scores 0: session \0 run. The runs that a worker must stop; with no run:
--                    all, it must drain
--   25 facts   HASH  by their first letter, then the job:
--                      g<job>  ms from which its silence counts: s<ms> its last success, r<ms> it
--                              never had one
--                      p<job>  the actor and the reason of its pause
--                      v<job>  the hash of its active definition, then all that are carried: hash,
--                              order of their first registration (a number; older builds count
--                              from 1), trigger, configs (by commas); joined by \30, and by \31
--                      s<job>  spans of ticks to skip: from, to (ms), actor and reason; joined by
--                              \30, and by \31
--                      m<job>  its absence: no worker carried it, it has begun anew, and the ticks
--                              up to then have no line yet. Its last cursor before, the one that it
--                              began anew with (ms), and the trigger before; joined by \30
--                    and by the id of the first run of an adopted id that was used again, for as
--                    long as that is in ids:
--                      a<run>  how many runs that id has had, and a word for each of its last
--                              deliveries; joined by \30
--   26 audit   STREAM the acts of people: fields e, a JSON object, n, how many times, and f, ms of
--                    the first of them
--   27 news    STREAM which runs became outstanding or ended: fields r, the run, and s, its final
--                    state or ""
--   28 died    ZSET  all scores 0: session \0 run. The runs that crashed when the process of the
--                    session died, and may have caused that. While attempts of that session are
--                    still to be closed, also
--                      !session         its process has died
--                      ?session \0 run  a run that was suspected before that death
--   29 aside   ZSET  all scores 0: queue \0 what the run needs \0 due since (ms, 16 digits) \0 run.
--                    Due runs that were set aside, because the worker with the delivery cannot do
--                    them. They have no delivery until a worker that can do them picks them. The
--                    entry goes with the run. Where a queue has more than 64 needs, one may remain
--                    of a run that is no longer due, or that is due since later or in another
--                    queue; pick.lua removes it
--   30 defs    HASH  the definitions that bodies name, each once: @<name> -> the definition (JSON),
--                    #<name> -> how many bodies name it. A name is a hash of the text, with its
--                    signature; the process that sends the text computes it
-- and, in scripts that can end a run, those of its job:
--   31 hist    HASH  run -> final record, attempts, arguments, joined by \29. If the body of the
--                    run named its definition, so that format 2 is written, the record ends with
--                    its last field that is not empty; and if the attempts are what plainLog
--                    returns, they are @ and the session. Otherwise both are whole
--   32 done    ZSET  run, score = server ms of its end
--   33 output  HASH  run -> the tail of its last attempt's output
-- and, last, in a call with an entry for the audit:
--    - acts    HASH  actor, act and object (a digest) -> its last entry in audit, n, f; joined by
--                    \31
--
-- A run's wait in the lock space is called +<run>, and its class there is the run's queue. Every
-- transition to due increments n; a claim that names an older n takes nothing.
--
-- A script that writes a body adds 1 to the number of bodies that name its definition, and the text
-- if it is missing. The script that removes the body subtracts 1, and removes the text with the
-- last of them. So defs has a text for as long as an outstanding run names it, and no longer.
-- embody and disembody do that, and the fast paths of enqueue and finish.
local RUN = KEYS[9]
local BODY = KEYS[10]
local LOG = KEYS[11]
local TIMER = KEYS[12]
local READY = KEYS[13]
local PUSH = KEYS[14]
local SENT = KEYS[15]
local BUSY = KEYS[16]
local OPEN = KEYS[17]
local CURSOR = KEYS[18]
local DEF = KEYS[19]
local REV = KEYS[20]
local LEDGER = KEYS[21]
local IDS = KEYS[22]
local LATE = KEYS[23]
local ASK = KEYS[24]
local FACTS = KEYS[25]
local AUDIT = KEYS[26]
local NEWS = KEYS[27]
local DIED = KEYS[28]
local ASIDE = KEYS[29]
local DEFS = KEYS[30]
local HIST = KEYS[31]
local DONE = KEYS[32]
local OUTPUT = KEYS[33]
