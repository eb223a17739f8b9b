-- The end of a run, and the history of its job.

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

-- check raises the error of a history with keys of the wrong type, before anything is written.
local function check()
  call('HLEN', HIST)
  call('ZCARD', DONE)
  call('HLEN', OUTPUT)
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

-- archive writes a final record into the job's history, without its bundle and without what the log
-- has of the last attempt. name: that of its definition, with an @ in front, if the body of the run
-- named it: then format 2 is written. The record has the beginning of the name, and the empty
-- fields at the end and the log of an only attempt that succeeded are omitted. finish.fast.lua does
-- the same.
local function archive(id, run, log, args, name)
  if name and log == plainLog(run, run[R_SESSION]) then log = '@' .. run[R_SESSION] end
  run[R_HOLDER], run[R_SESSION], run[R_STARTED] = sub(name or '', 2, 7), '', ''
  local record = concat(run, US, 1, R_ITEMS - 1)
  if name then record = string.match(record, '^(.-)\31*$') end
  call('HSET', HIST, id, F_TEXT{RUN = record; LOG = log; ARGS = args})
  call('ZADD', DONE, ms, id)
  redis.pcall('ZADD', ENDS, 'LT', '-' .. ms, run[R_JOB])
end

-- HEARD is the reason in the record of an end that was re-asserted by a worker that had only heard
-- of it.
local HEARD = 're-asserted after Redis had lost it'

-- pastOf returns the record of a run in the history, and its closed attempts; nil if it is not
-- there.
local function pastOf(id)
  local past = call('HGET', HIST, id)
  if not past then return nil, '' end
  local record, log = string.match(past, F_MATCH[[(RUN) (LOG)]])
  local run = fields(record)
  for i = #run + 1, R_ITEMS - 1 do run[i] = '' end
  if sub(log, 1, 1) == '@' then log = plainLog(run, sub(log, 2)) end
  return run, log
end

-- outdone reports whether the history knows at least as much of a run as the worker whose last
-- attempt at it had this token. It also returns what pastOf does.
local function outdone(id, token)
  local past, log = pastOf(id)
  local last = past and tonumber(past[R_TOKEN])
  return past and (last > token or last == token and past[R_REASON] ~= HEARD), past, log
end

-- works writes the entries beside the record of a running run; settled removes them.
local function works(id, run)
  call('ZADD', BUSY, '0', run[R_SESSION] .. '\0' .. id)
  if run[R_STOP] ~= '' then call('ZADD', ASK, '0', run[R_SESSION] .. '\0' .. id) end
end

local function settled(id, run)
  call('ZREM', BUSY, run[R_SESSION] .. '\0' .. id)
  if run[R_STOP] ~= '' then call('ZREM', ASK, run[R_SESSION] .. '\0' .. id) end
end

-- wants returns a function that reports whether targets receive a message about the end of a run
-- in this state, if it has any. A run that refuse has parked had its message then.
local function wants(run, state)
  local parked, job = run[R_STATE] == 'failed', run[R_JOB]
  return function() return not parked and (EVENTS[state] or state == 'succeeded' and call('HEXISTS', FACTS, 'n' .. job) == 1) end
end

-- endingOf returns what names the end of a run among others of that run: the token of the attempt
-- that ends it, or n. A worker that reports the end of its attempt again, after Redis has lost it,
-- gives it the same name.
local function endingOf(run)
  if run[R_STATE] == 'running' then return run[R_TOKEN] end
  return 'n' .. run[R_N]
end

-- final permanently ends an outstanding run.
local function final(S, id, run, state, reason)
  -- A request's only attempt needs no announcement: no worker but its own knows of it.
  if run[R_TICK] ~= '' or run[R_ATTEMPT] ~= '1' or run[R_STATE] ~= 'running' then announce(id, state) end
  undue(id, run)
  local wanted, ending = wants(run, state), endingOf(run)
  call('ZREM', TIMER, id)
  if run[R_DEADLINE] ~= '' or run[R_PATIENCE] ~= '' then call('ZREM', LATE, id) end
  call('ZREM', OPEN, run[R_JOB] .. '\0' .. pad(run[R_TICK]) .. '\0' .. id)
  if run[R_WAITS] == '1' then
    local late = state == 'missed' or run[R_WAITBY] ~= '' and now >= tonumber(run[R_WAITBY])
    S.drop('+' .. id, late and 't' or 'k')
  end
  run[R_STATE], run[R_REASON], run[R_FINISHED] = state, reason, ms
  local log = call('HGET', LOG, id) or ''
  if run[R_CRASHES] ~= '0' then
    for session, _, _, outcome in string.gmatch(log, ATTEMPTS) do
      if outcome == 'crashed' then call('ZREM', DIED, session .. '\0' .. id) end
    end
  end
  call('HDEL', RUN, id)
  local args, name, definition = disembody(id, wanted, EVENTS[state])
  if definition then
    local event = state == 'succeeded' and 'recovered' or state
    tell(run[R_JOB], definition, event, {messageOf(id, run, event, ending, log)})
  end
  archive(id, run, log, args, name)
  totalRun(run)
  call('HDEL', LOG, id)
  if state == 'succeeded' then call('HSET', FACTS, 'g' .. run[R_JOB], 's' .. ms) end
end

-- cancel ends a run that is not running; it asks a running one to stop. It returns whether the run
-- ended.
local function cancel(S, id, run, reason)
  if run[R_STATE] ~= 'running' then
    final(S, id, run, 'canceled', reason)
    return true
  end
  run[R_STOP] = reason
  works(id, run)
  save(id, run)
  return false
end
