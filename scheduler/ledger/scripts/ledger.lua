-- The ledger: what every script of it shares, after the lock space's own part.
--
-- KEYS, after the lock space's eight, the same in every script:
--    9 run     HASH  run -> record (fields below, joined by \31), outstanding runs only
--   10 body    HASH  run -> arguments, definition (both JSON, joined by \31)
--   11 log     HASH  run -> its closed attempts, JSON objects joined by commas
--   12 timer   ZSET  run, score = server ms at which a scheduled or retrying run becomes due
--   13 ready   ZSET  all scores 0: queue \0 due since (ms, 16 digits) \0 run. The runs that are due
--   14 push    ZSET  run, score = server ms of its last n; its delivery is not confirmed yet
--   15 sent    ZSET  run, score = server ms at which its delivery was last known to be in the queue
--   16 busy    ZSET  all scores 0: session \0 run. The runs that are running
--   17 open    ZSET  all scores 0: job \0 tick (ms, 16 digits; zeros without one) \0 run. The outstanding runs
--   18 cursor  HASH  job -> the last tick decided, server ms
--   19 def     HASH  job -> definition, JSON
--   20 rev     ZSET  job, score = the revision at which its cursor last moved
--   21 ledger  HASH  rev (the last revision), duty (the session that creates and sweeps for all)
--   22 ids     ZSET  run, score = server ms until which an id that a client chose is remembered
-- and, in scripts that can end a run, those of its job:
--   23 hist    HASH  run -> final record, attempts, arguments, joined by \29
--   24 done    ZSET  run, score = server ms of its end
--   25 output  HASH  run -> the tail of what its last attempt printed
--
-- A run's wait in the lock space is called +<run>. Whatever makes a run due takes the next n; a claim that names an
-- older one takes nothing.
local RUN, BODY, LOG, TIMER, READY = KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local PUSH, SENT, BUSY, OPEN, CURSOR = KEYS[14], KEYS[15], KEYS[16], KEYS[17], KEYS[18]
local DEF, REV, LEDGER, IDS = KEYS[19], KEYS[20], KEYS[21], KEYS[22]
local HIST, DONE, OUTPUT = KEYS[23], KEYS[24], KEYS[25]

-- The fields of a run's record. Items, the bundle of its attempts, follow.
local STATE, N, JOB, QUEUE, TRIGGER, TICK, CREATED, SINCE = 1, 2, 3, 4, 5, 6, 7, 8
local TOKEN, HOLDER, SESSION, ATTEMPT, STARTED, FIRST = 9, 10, 11, 12, 13, 14
local FAILS, CRASHES, REASON, FINISHED, CLOSED, AT, BY, UPTO, WAITS = 15, 16, 17, 18, 19, 20, 21, 22, 23
local R_ITEMS = 24

local function pad(at) return format('%016.0f', tonumber(at) or 0) end

local function load(id)
  local record = call('HGET', RUN, id)
  return record and fields(record)
end

local function save(id, run) call('HSET', RUN, id, concat(run, US)) end

-- due makes a run due under its next n, or, with n 1, for the first time.
local function due(id, run)
  run[STATE], run[N] = 'due', format('%d', run[N] + 1)
  if run[SINCE] == '' then run[SINCE] = ms end
  call('ZADD', READY, 0, run[QUEUE] .. '\0' .. pad(run[SINCE]) .. '\0' .. id)
  call('ZADD', PUSH, ms, id)
  call('ZREM', SENT, id)
  save(id, run)
end

-- undue takes a run off everything that leads to a claim, and takes the next n, so that what is under way is stale.
local function undue(id, run)
  run[N] = format('%d', run[N] + 1)
  call('ZREM', READY, run[QUEUE] .. '\0' .. pad(run[SINCE]) .. '\0' .. id)
  call('ZREM', PUSH, id)
  call('ZREM', SENT, id)
end

-- pushes adds a run's delivery to a list of id, n, queue.
local function pushes(list, id, run)
  local k = #list
  list[k + 1], list[k + 2], list[k + 3] = id, run[N], run[QUEUE]
end

-- offered makes the runs due that the lock space has offered their bundle in this script.
local function offered(S, list)
  for i = 1, #S.offers do
    local wid = S.offers[i]
    local id = sub(wid, 2)
    local run = load(id)
    call('ZREM', IDX, '@\0o\0' .. wid)
    if run and run[STATE] == 'waiting' then
      due(id, run)
      pushes(list, id, run)
    end
  end
  S.offers = {}
end

-- close ends the attempt that runs: at most once for each, by the first of a finish and the sweep. failure: JSON.
local function close(id, run, outcome, failure)
  run[CLOSED] = '1'
  local past = call('HGET', LOG, id)
  local entry = '{"attempt":' .. run[ATTEMPT] .. ',"worker":"' .. run[SESSION] .. '","token":"' .. run[TOKEN] ..
    '","started_at":' .. run[STARTED] .. ',"finished_at":' .. ms .. ',"outcome":"' .. outcome ..
    '","error":' .. failure .. '}'
  call('HSET', LOG, id, past and past .. ',' .. entry or entry)
end

-- trim keeps a job's history within its bounds: a number of runs, and ms.
local function trim(keep, age)
  local old = call('ZRANGEBYSCORE', DONE, '-inf', format('(%.0f', now - age), 'LIMIT', 0, 100)
  local extra = call('ZCARD', DONE) - keep
  if extra > #old then old = call('ZRANGE', DONE, 0, math.min(extra, 100) - 1) end
  if #old == 0 then return end
  call('ZREM', DONE, unpack(old))
  call('HDEL', HIST, unpack(old))
  call('HDEL', OUTPUT, unpack(old))
end

-- archive writes a final record into the job's history.
local function archive(id, run, log, args)
  call('HSET', HIST, id, concat({concat(run, US), log, args}, '\29'))
  call('ZADD', DONE, ms, id)
end

-- final ends an outstanding run for good.
local function final(S, id, run, state, reason)
  undue(id, run)
  call('ZREM', TIMER, id)
  call('ZREM', OPEN, run[JOB] .. '\0' .. pad(run[TICK]) .. '\0' .. id)
  if run[WAITS] == '1' then S.drop('+' .. id) end
  run[STATE], run[REASON], run[FINISHED] = state, reason, ms
  local args = string.match(call('HGET', BODY, id) or '', '^([^\31]*)')
  archive(id, run, call('HGET', LOG, id) or '', args)
  call('HDEL', RUN, id)
  call('HDEL', BODY, id)
  call('HDEL', LOG, id)
end
