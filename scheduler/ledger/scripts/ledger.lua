-- The ledger: what all of its scripts share, after the lock space's own part.
--
-- KEYS, after the lock space's eight, the same in every script:
--    9 run     HASH  run -> record (fields below, joined by \31), outstanding runs only
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
-- if it is missing. The script that removes the body subtracts 1, and removes the
-- text with the last of them. So defs has a text for as long as an outstanding run names it, and no
-- longer. embody and disembody do that, and the fast paths of enqueue and finish.
local RUN, BODY, LOG, TIMER, READY = KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13]
local PUSH, SENT, BUSY, OPEN, CURSOR = KEYS[14], KEYS[15], KEYS[16], KEYS[17], KEYS[18]
local DEF, REV, LEDGER, IDS = KEYS[19], KEYS[20], KEYS[21], KEYS[22]
local LATE, ASK, FACTS, AUDIT = KEYS[23], KEYS[24], KEYS[25], KEYS[26]
local NEWS, DIED, ASIDE, DEFS = KEYS[27], KEYS[28], KEYS[29], KEYS[30]
local HIST, DONE, OUTPUT = KEYS[31], KEYS[32], KEYS[33]

-- The fields of a run's record. Items, the bundle of its attempts, follow.
local STATE, N, JOB, QUEUE, TRIGGER, TICK, CREATED, SINCE = 1, 2, 3, 4, 5, 6, 7, 8
local TOKEN, HOLDER, SESSION, ATTEMPT, STARTED, FIRST = 9, 10, 11, 12, 13, 14
local FAILS, CRASHES, REASON, FINISHED, CLOSED, AT, BY, UPTO, WAITS = 15, 16, 17, 18, 19, 20, 21, 22, 23
local SERIAL = 24   -- 1: its bundle has the lock of its job, so ticks start in their order
local DEADLINE = 25 -- server ms after which it must not start for the first time
local PATIENCE, ONBUSY = 26, 27 -- ms that it waits for its bundle, and what happens to it then
local WAITBY = 28   -- server ms at which that is over
-- when it first went to wait, and what was in its way (joined by \30)
local WAITED, BLOCKER = 29, 30
local STOP = 31     -- why it was asked to stop
-- of its holds, ms: at most, at least, after a crash; joined by commas, '' for none
local LIMITS = 32
local R_ITEMS = 33

local function pad(at) return format('%016.0f', tonumber(at) or 0) end

-- blocked returns why the history of the job cannot be written, since a key of it has the wrong
-- type, or nil.
local function blocked()
  local why
  local function try(...)
    local reply = redis.pcall(...)
    if type(reply) == 'table' and reply.err then why = why or reply.err end
  end
  try('HLEN', HIST)
  try('ZCARD', DONE)
  try('HLEN', OUTPUT)
  return why
end

-- load returns the record of an outstanding run, or nil. For a record that cannot be read it
-- returns nil and the text; refuse ends such a run, and no other script fails because of it.
local function load(id)
  local record = call('HGET', RUN, id)
  if not record then return nil end
  local run = fields(record)
  if #run >= R_ITEMS - 1 and tonumber(run[N]) and tonumber(run[ATTEMPT]) and tonumber(run[TOKEN]) and
    tonumber(run[FAILS]) and tonumber(run[CRASHES]) then
    return run
  end
  return nil, record
end

-- unreadable leads the sweep to a run that cannot be read, where its entry in another index is
-- removed: it ends the run.
local function unreadable(id) call('ZADD', PUSH, ms, id) end

-- check raises the error of a history with keys of the wrong type, before anything is written.
local function check()
  call('HLEN', HIST)
  call('ZCARD', DONE)
  call('HLEN', OUTPUT)
end

-- checkBodies raises the error of keys that embody writes and that have the wrong type, before any
-- write; and an error if the number of bodies that name this definition (as embody takes it) is not
-- a number. The end of a run does without it: disembody tolerates definitions that it cannot count.
local function checkBodies(definition)
  call('HLEN', BODY)
  call('HLEN', DEFS)
  if tonumber(WRITTEN or '1') < 2 then return end
  local field = '#' .. string.match(definition, '^[^\31]*')
  local n = call('HGET', DEFS, field)
  if n and n ~= '0' and (#n > 18 or not string.find(n, '^%-?[1-9]%d*$')) then
    error('field ' .. field .. ' of ' .. DEFS .. ' is not a number, remove it: ' .. sub(n, 1, 100))
  end
end

-- apart returns the arguments and the definition in a body, and whether the latter is a name. A
-- pattern would look at each byte.
local function apart(body)
  local at = string.find(body, US, 1, true) or #body + 1
  return sub(body, 1, at - 1), sub(body, at + 1), string.byte(body, at + 1) == 64
end

-- disembody removes the body of a run, and its definition if no other body names that. It returns
-- the arguments, and whether the body named the definition.
local function disembody(id)
  local args, name, byname = apart(call('HGET', BODY, id) or '')
  call('HDEL', BODY, id)
  if byname then
    -- Another program wrote a value that is not a number; then the text stays.
    local left = redis.pcall('HINCRBY', DEFS, '#' .. sub(name, 2), -1)
    if type(left) == 'number' and left <= 0 then call('HDEL', DEFS, name, '#' .. sub(name, 2)) end
  end
  return args, byname
end

-- embody writes the body of a run. definition: its name and the definition (JSON), joined by \31.
-- It also restores a definition that a foreign write has removed or cut: its length shows that,
-- without a copy of the text.
local function embody(id, args, definition)
  local at = string.find(definition, US, 1, true)
  local name, text = sub(definition, 1, at - 1), sub(definition, at + 1)
  if call('HEXISTS', BODY, id) == 1 then disembody(id) end
  if tonumber(WRITTEN or '1') < 2 then
    call('HSET', BODY, id, args .. US .. text)
  else
    if call('HINCRBY', DEFS, '#' .. name, 1) == 1 or call('HSTRLEN', DEFS, '@' .. name) ~= #text then call('HSET', DEFS, '@' .. name, text) end
    call('HSET', BODY, id, args .. US .. '@' .. name)
  end
end

-- resolve returns the definition (JSON) of a run: '' if it has none, or if the one that its body
-- names is missing.
local function resolve(definition, byname)
  if byname then return call('HGET', DEFS, definition) or '' end
  return definition
end

-- markof returns the mark of a definition in a body, which a claim lists if its worker can run it:
-- @ and the name, or the handler and the length of the text.
local function markof(definition, byname)
  if byname then return definition end
  local _, upto = string.find(definition, '"handler":"', 1, true)
  local handler = upto and sub(definition, upto + 1, (string.find(definition, '"', upto + 1, true) or 0) - 1) or ''
  return handler .. ' ' .. #definition
end

local function save(id, run) call('HSET', RUN, id, concat(run, US)) end

-- fresh returns the record of a new run, without its items.
local function fresh(job, queue, trigger, tick)
  local run = {}
  for i = 1, R_ITEMS - 1 do run[i] = '' end
  run[STATE], run[N], run[JOB], run[QUEUE], run[TRIGGER], run[TICK] = 'due', '0', job, queue, trigger, tick
  run[CREATED], run[TOKEN], run[ATTEMPT], run[FAILS], run[CRASHES] = ms, '0', '0', '0', '0'
  return run
end

-- info is the lock space's description of a run's hold or wait.
local function info(id, run) return '{"job":"' .. run[JOB] .. '","run":"' .. id .. '"}' end

-- due makes a run due under its next n, or, with n 1, for the first time.
local function due(id, run)
  run[STATE], run[N] = 'due', format('%d', run[N] + 1)
  if run[SINCE] == '' then run[SINCE] = ms end
  call('ZADD', READY, '0', run[QUEUE] .. '\0' .. pad(run[SINCE]) .. '\0' .. id)
  call('ZADD', PUSH, ms, id)
  call('ZREM', SENT, id)
  save(id, run)
end

-- dropAside removes the entry of a run that was set aside. Its need is not known here, so this
-- looks in the first places of the queue.
local function dropAside(id, run)
  local from, upto = '[' .. run[QUEUE] .. '\0', '(' .. run[QUEUE] .. '\1'
  for _ = 1, 64 do
    local member = call('ZRANGEBYLEX', ASIDE, from, upto, 'LIMIT', '0', '1')[1]
    if not member then return end
    local shelf = string.match(member, '^([^%z]*%z[^%z]*)')
    if call('ZREM', ASIDE, shelf .. '\0' .. pad(run[SINCE]) .. '\0' .. id) == 1 then return end
    from = '[' .. shelf .. '\1'
  end
end

-- undue removes a run from every index that leads to a claim, and takes the next n, so that
-- deliveries in flight are stale.
local function undue(id, run)
  run[N] = format('%d', run[N] + 1)
  call('ZREM', READY, run[QUEUE] .. '\0' .. pad(run[SINCE]) .. '\0' .. id)
  local deliveries = call('ZREM', PUSH, id) + call('ZREM', SENT, id)
  if deliveries == 0 and run[STATE] == 'due' then dropAside(id, run) end
end

-- pushes adds a run's delivery to a list of id, n, queue.
local function pushes(list, id, run)
  local k = #list
  list[k + 1], list[k + 2], list[k + 3] = id, run[N], run[QUEUE]
end

-- watch notes when a run must be checked because its time may be over, if ever. later: when to
-- check a wait instead of at its end, server ms.
local function watch(id, run, later)
  local at = run[FIRST] == '' and tonumber(run[DEADLINE]) or nil
  local by = run[STATE] == 'waiting' and tonumber(later or run[WAITBY]) or nil
  if by and (not at or by < at) then at = by end
  if at then
    call('ZADD', LATE, format('%.0f', at), id)
  elseif run[DEADLINE] ~= '' or run[PATIENCE] ~= '' then
    call('ZREM', LATE, id)
  end
end

-- stopped returns for how many ms a queue was paused since an instant (server ms), and if it is
-- paused now, for how many ms.
local function stopped(queue, since)
  local total, still = 0, nil
  local kept = US .. (call('HGET', META, 'kept') or '') .. US
  for from, upto in string.gmatch(call('HGET', LEDGER, 'pauses:' .. queue) or '', '(%d+)%-(%d*)') do
    -- If the end of a pause is missing although the queue is not paused, an older build did not
    -- record it: that pause does not count.
    local open = upto == '' and string.find(kept, US .. queue .. US, 1, true)
    local ended = open and now or tonumber(upto) or 0
    total = total + math.max(0, ended - math.max(from, since))
    if open then still = now - from end
  end
  return total, still
end

-- overdue returns why a run must not start any more, or nil.
local function overdue(run)
  if run[FIRST] ~= '' or run[DEADLINE] == '' or now < tonumber(run[DEADLINE]) then return nil end
  return 'start_deadline: it was ' .. run[STATE]
end

-- offered makes the runs due that the lock space has offered their bundle in this script. A run
-- whose time is over does not get it: its delivery, or the sweep, ends it.
local function offered(S, list)
  while #S.offers > 0 do
    local offers = S.offers
    S.offers = {}
    for i = 1, #offers do
      local wid = offers[i]
      local id = sub(wid, 2)
      local run, broken = load(id)
      if broken then unreadable(id) end
      call('ZREM', IDX, '@\0o\0' .. wid)
      if run and run[STATE] == 'waiting' then
        if overdue(run) then S.lapse(wid) end
        due(id, run)
        pushes(list, id, run)
      end
    end
    S.settle()
  end
end

-- The worker, the start, the end, the outcome, and the name of the next member of each closed
-- attempt in a log. The quotation marks of an error are escaped, so no error matches this pattern.
local ATTEMPTS = '"worker":"([^"]*)","token":"%d+","started_at":(%d+),"finished_at":(%d+),"outcome":"([^"]*)","(%a*)"'

-- entryOf returns the entry of a closed attempt, the last one of its run, in a log. failure: JSON.
-- more: a member of the entry that follows the outcome, with its comma, or nil.
local function entryOf(run, session, started, finished, outcome, failure, more)
  return '{"attempt":' .. run[ATTEMPT] .. ',"worker":"' .. session .. '","token":"' .. run[TOKEN] ..
    '","started_at":' .. started .. ',"finished_at":' .. finished .. ',"outcome":"' .. outcome ..
    '",' .. (more or '') .. '"error":' .. failure .. '}'
end

-- plainLog returns the log of a run that has ended, if its only attempt succeeded, under this
-- session. The final record has all the rest: the attempt started and ended with the run. record.go
-- has the same function.
local function plainLog(run, session)
  return entryOf(run, session, run[FIRST], run[FINISHED], 'succeeded', 'null')
end

-- close ends the running attempt: once for each, by its finish or the sweep, whichever comes first.
-- failure and more: see entryOf.
--
-- The number of attempts at a run has no limit: its job may set a high one, and attempts that are
-- handed back or lose their lease are not counted. So a log of more than 32 KiB keeps the first 8
-- attempts and the last 24. Of those in between it keeps what suspected needs (the last crash, the
-- longest one, and the last attempt that the run has survived) and what crash.lua counts: the lost
-- leases in a row that no worker explained. The numbers of the attempts show which are left out.
local function close(id, run, outcome, failure, more)
  run[CLOSED] = '1'
  local past = call('HGET', LOG, id)
  if past and #past > 32768 then
    local entries, from = {}, 1
    while from do
      -- An error has no such text: its quotation marks are escaped.
      local next = string.find(past, '{"attempt":', from + 1, true)
      entries[#entries + 1] = sub(past, from, next and next - 2)
      from = next
    end
    local longest, worst, crashed, survived, unexplained, kept = -1, nil, nil, nil, {}, {}
    for i = 1, #entries do
      local _, began, ended, how, member = string.match(entries[i], ATTEMPTS)
      local took = (ended or 0) - (began or 0)
      if how == 'lost lease' and member ~= 'confirmed' then
        unexplained[i] = true
      elseif how ~= 'handed back' then
        unexplained = {}
      end
      if how == 'crashed' then
        crashed = i
        if took > longest then longest, worst = took, i end
      elseif how ~= 'handed back' and how ~= 'lost lease' or longest >= 0 and took >= longest + math.max(longest / 4, 1000) then
        survived = i
      end
    end
    for i = 1, #entries do
      if i <= 8 or i > #entries - 24 or i == crashed or i == worst or i == survived or unexplained[i] then
        kept[#kept + 1] = entries[i]
      else
        local worker, _, _, how = string.match(entries[i], ATTEMPTS)
        if how == 'crashed' then call('ZREM', DIED, worker .. '\0' .. id) end
      end
    end
    past = concat(kept, ',')
  end
  local entry = entryOf(run, run[SESSION], run[STARTED], ms, outcome, failure, more)
  call('HSET', LOG, id, past and past .. ',' .. entry or entry)
end

-- suspected returns the session in whose death a run crashed, if the run may have caused that; ''
-- for an unknown session. It returns nil for a run that never crashed, that was cleared, or that
-- has survived an attempt since its last crash: the attempt ended in another way, or was handed
-- back or lost its lease only after it had run for longer than those that crashed. An attempt that
-- still runs counts like the latter. Record.Suspect (record.go) follows the same rule.
local function suspected(id, run)
  if run[CRASHES] == '0' then return nil end
  local session, longest = '', -1
  local function survived(took) return longest >= 0 and took >= longest + math.max(longest / 4, 1000) end
  for worker, from, upto, outcome, member in string.gmatch(call('HGET', LOG, id) or '', ATTEMPTS) do
    local took = upto - from
    if outcome == 'crashed' then
      longest = math.max(longest, took)
      session = worker
      if member == 'cleared' then session = nil end
    elseif outcome ~= 'handed back' and outcome ~= 'lost lease' or survived(took) then
      session = nil
    end
  end
  if run[STATE] == 'running' and survived(now - run[STARTED]) then session = nil end
  return session
end

-- noted adds a member to the closed attempt of a run that had this outcome, under a session or with
-- a token ('' for any).
local function noted(id, session, token, outcome, member)
  local log = call('HGET', LOG, id)
  if not log then return end
  local new = string.gsub(log, '("worker":"([^"]*)","token":"(%d+)","started_at":%d+,"finished_at":%d+,"outcome":"([^"]*)",)("%a*")',
    function(entry, worker, number, ended, next)
      if ended == outcome and (session == '' or session == worker) and (token == '' or token == number) and next ~= '"' .. member .. '"' then
        return entry .. '"' .. member .. '":true,' .. next
      end
    end)
  if new ~= log then call('HSET', LOG, id, new) end
end

-- clear ends the suspicion that a run caused the death of a session's process.
local function clear(id, session)
  call('ZREM', DIED, session .. '\0' .. id)
  noted(id, session, '', 'crashed', 'cleared')
end

-- buried forgets that the process of a session has died, once no attempt under it remains to be
-- closed.
local function buried(session)
  if #call('ZRANGEBYLEX', BUSY, '[' .. session .. '\0', '(' .. session .. '\1', 'LIMIT', '0', '1') > 0 then return end
  call('ZREM', DIED, '!' .. session)
  local known = call('ZRANGEBYLEX', DIED, '[?' .. session .. '\0', '(?' .. session .. '\1', 'LIMIT', '0', 1000)
  if #known > 0 then call('ZREM', DIED, unpack(known)) end
end

-- trim keeps a job's history within its bounds: a number of runs, and ms. It removes nothing if the
-- number is 0: then the bounds are unknown, because no definition of the job could be read.
local function trim(keep, age)
  if keep == 0 then return end
  local old = call('ZRANGEBYSCORE', DONE, '-inf', format('(%.0f', now - age), 'LIMIT', '0', 100)
  local extra = call('ZCARD', DONE) - keep
  if extra > #old then old = call('ZRANGE', DONE, 0, math.min(extra, 100) - 1) end
  if #old == 0 then return end
  call('ZREM', DONE, unpack(old))
  call('HDEL', HIST, unpack(old))
  call('HDEL', OUTPUT, unpack(old))
end

-- announce tells every worker that a run became outstanding (state '') or how it ended, so that
-- they know it should Redis lose its data.
local function announce(id, state) call('XADD', NEWS, 'MAXLEN', '~', '10000', '*', 'r', id, 's', state) end

-- notify sends a notice to live sessions, 500 entries of the timer wheel at most. Others learn of
-- it by their next poll.
local function notify(notice)
  local alive = call('ZRANGEBYSCORE', EXP, '(' .. ms, '+inf', 'LIMIT', '0', 500)
  for i = 1, #alive do
    if sub(alive[i], 1, 1) == 's' then call('PUBLISH', sub(META, 1, -5) .. 'to:' .. sub(alive[i], 2), 'n' .. US .. notice) end
  end
end

-- recalling reports whether the workers are re-asserting what Redis has lost.
local function recalling()
  local lost = call('HMGET', META, 'lost', 'grace')
  return lost[1] and tonumber(lost[2] or 0) > now
end

-- recall takes a re-asserted cursor, unless a higher one is known, and returns the job's. A cursor
-- that was set by a registration without any knowledge of the job gives way.
local function recall(job, cursor, last)
  local born = cursor and call('HGET', FACTS, 'g' .. job) == 'r' .. cursor
  if last == cursor or cursor and not born and tonumber(last) < tonumber(cursor) then return cursor end
  call('HSET', CURSOR, job, last)
  call('ZADD', REV, call('HINCRBY', LEDGER, 'rev', 1), job)
  return last
end

-- archive writes a final record into the job's history, without its bundle and without what the log
-- has of the last attempt. byname: whether the body of the run named its definition: then format 2
-- is written, and the empty fields at the end and the log of an only attempt that succeeded are
-- omitted. finish.fast.lua does the same.
local function archive(id, run, log, args, byname)
  if byname and log == plainLog(run, run[SESSION]) then log = '@' .. run[SESSION] end
  run[HOLDER], run[SESSION], run[STARTED] = '', '', ''
  local record = concat(run, US, 1, R_ITEMS - 1)
  if byname then record = string.match(record, '^(.-)\31*$') end
  call('HSET', HIST, id, concat({record, log, args}, '\29'))
  call('ZADD', DONE, ms, id)
end

-- works writes the entries beside the record of a running run; settled removes them.
local function works(id, run)
  call('ZADD', BUSY, '0', run[SESSION] .. '\0' .. id)
  if run[STOP] ~= '' then call('ZADD', ASK, '0', run[SESSION] .. '\0' .. id) end
end

local function settled(id, run)
  call('ZREM', BUSY, run[SESSION] .. '\0' .. id)
  if run[STOP] ~= '' then call('ZREM', ASK, run[SESSION] .. '\0' .. id) end
end

-- final permanently ends an outstanding run.
local function final(S, id, run, state, reason)
  -- A request's only attempt needs no announcement: no worker but its own knows of it.
  if run[TICK] ~= '' or run[ATTEMPT] ~= '1' or run[STATE] ~= 'running' then announce(id, state) end
  undue(id, run)
  call('ZREM', TIMER, id)
  if run[DEADLINE] ~= '' or run[PATIENCE] ~= '' then call('ZREM', LATE, id) end
  call('ZREM', OPEN, run[JOB] .. '\0' .. pad(run[TICK]) .. '\0' .. id)
  if run[WAITS] == '1' then S.drop('+' .. id) end
  run[STATE], run[REASON], run[FINISHED] = state, reason, ms
  local log = call('HGET', LOG, id) or ''
  if run[CRASHES] ~= '0' then
    for session, _, _, outcome in string.gmatch(log, ATTEMPTS) do
      if outcome == 'crashed' then call('ZREM', DIED, session .. '\0' .. id) end
    end
  end
  call('HDEL', RUN, id)
  local args, byname = disembody(id)
  archive(id, run, log, args, byname)
  call('HDEL', LOG, id)
  if state == 'succeeded' then call('HSET', FACTS, 'g' .. run[JOB], 's' .. ms) end
end

-- cancel ends a run that is not running; it asks a running one to stop. It returns whether the run
-- ended.
local function cancel(S, id, run, reason)
  if run[STATE] ~= 'running' then
    final(S, id, run, 'canceled', reason)
    return true
  end
  run[STOP] = reason
  works(id, run)
  save(id, run)
  return false
end

-- asked lists what a worker is asked to stop: runs and reasons; no run: all of them, it must drain.
-- The reason is "" where the records before it are long, so that reading them does not keep Redis
-- busy; it is in the record when the run ends.
local function asked(session)
  local list, bytes, stop = {}, 0, nil
  local members = call('ZRANGEBYLEX', ASK, '[' .. session .. '\0', '(' .. session .. '\1', 'LIMIT', 0, 1000)
  for i = 1, #members do
    local id, reason = sub(members[i], #session + 2), nil
    if id ~= '' then bytes = bytes + call('HSTRLEN', RUN, id) end
    if id ~= '' and bytes < 256 * 1024 then
      stop = stop or '^' .. string.rep('[^\31]*\31', STOP - 1) .. '([^\31]*)'
      reason = string.match(call('HGET', RUN, id) or '', stop)
    end
    list[2 * i - 1], list[2 * i] = id, reason or ''
  end
  return list
end

-- park sends a run to wait for its bundle, under its present ticket or the next one, and returns
-- the names in its bundle. blocker is what was in its way: resource, session, id, info, token,
-- since (ms).
local function park(S, id, run, patience, blocker)
  local names, items = bundle(run, R_ITEMS)
  undue(id, run)
  run[STATE], run[WAITS] = 'waiting', '1'
  if run[WAITED] == '' then run[WAITED], run[BLOCKER] = ms, concat(blocker, '\30') end
  if run[PATIENCE] ~= '' and run[WAITBY] == '' then run[WAITBY] = format('%.0f', now + run[PATIENCE]) end
  save(id, run)
  watch(id, run)
  S.park('+' .. id, '@', info(id, run), items, tonumber(patience), nil, run[QUEUE])
  return names
end

-- audit records an act, for 90 days and the last 50,000 entries; entry '' for none. Repeats are one
-- entry, that of the last of them, so that no number of them pushes other entries out. Entry:
-- actor, act and object (a digest), how many times, how long after the first its repeats join it
-- (ms), JSON; joined by \31.
local function audit(entry)
  if entry == '' then return end
  local key, times, window, act = string.match(entry, '^([^\31]*)\31([^\31]*)\31([^\31]*)\31(.*)$')
  local ACTS, first = KEYS[#KEYS], ms
  local last = call('HGET', ACTS, key)
  if last then
    local id, n, since = string.match(last, '^([^\31]*)\31([^\31]*)\31([^\31]*)$')
    if now - since < tonumber(window) then
      call('XDEL', AUDIT, id)
      times, first = format('%.0f', times + n), since
    end
  elseif call('HLEN', ACTS) >= 1000 then
    call('DEL', ACTS) -- the next repeat of each begins an entry
  end
  local id = call('XADD', AUDIT, 'MAXLEN', '~', '50000', '*', 'e', act, 'n', times, 'f', first)
  call('HSET', ACTS, key, id .. US .. times .. US .. first)
  call('XTRIM', AUDIT, 'MINID', format('%.0f', math.max(0, now - 90 * 86400000)))
end

-- forget drops ids that need not be remembered any more, at most this number of them.
local function forget(most)
  local old = call('ZRANGEBYSCORE', IDS, '-inf', ms, 'LIMIT', '0', most)
  if #old == 0 then return end
  call('ZREM', IDS, unpack(old))
  for i = 1, #old do
    local job = sub(old[i], 1, 1) == '\1' and sub(old[i], 2)
    if job and call('HEXISTS', FACTS, 'v' .. job) == 0 then call('ZREM', REV, job) end
    old[i] = 'a' .. old[i]
  end
  call('HDEL', FACTS, unpack(old))
end

-- versionsOf reads a text of versionsText: the hash of a job's active definition, or nil, and its
-- definitions.
local function versionsOf(text)
  local active, versions = nil, {}
  for entry in string.gmatch(text or '', '[^\31]+') do
    if not active then
      active = entry
    else
      local hash, order, trigger, configs = string.match(entry, '^([^\30]*)\30([^\30]*)\30([^\30]*)\30(.*)$')
      versions[#versions + 1] = {hash = hash, order = tonumber(order), trigger = trigger, configs = configs, seen = 0}
    end
  end
  return active, versions
end

-- known returns what versionsOf does, for a job.
local function known(job) return versionsOf(call('HGET', FACTS, 'v' .. job)) end

-- checkJobs raises the error of keys that have the wrong type, before register and activate write
-- any of them: a definition that is active must be stored.
local function checkJobs()
  call('HLEN', CURSOR)
  call('HLEN', FACTS)
  call('HLEN', DEF)
  call('ZCARD', REV)
end

-- versionsText returns what FACTS has of a job's definitions.
local function versionsText(active, versions)
  local text = active
  for i = 1, #versions do
    local v = versions[i]
    text = text .. US .. v.hash .. '\30' .. v.order .. '\30' .. v.trigger .. '\30' .. v.configs
  end
  return text
end
