-- finish records how an attempt ended and frees its locks, which pass to the next waiters, in one
-- step.
-- ARGV: 1 run  2 token  3 hold id
--       4 outcome: succeeded | failed | retry | handback | canceled | left
--       5 pause before the run is due again, ms  6 error (JSON: a string, or null)  7 output
--       8 history: runs  9 history: ms
-- Replies: recorded, the run's state, the pushes to do | counted, state, pushes, token: this
--   attempt was closed before, and only a success could still count | fenced, state, pushes, token:
--   a later attempt has begun, or another outcome is final. token is that of the run's last
--   attempt, 0 for none; if it is lower than the caller's, Redis has lost data
-- A success counts while its token is the last claimed one and the run is not final, even when its
-- hold has ended. A run that was asked to stop is canceled unless its attempt succeeded.
-- The first write is a removal, so that a full Redis does not refuse it.
local id, token, hid, outcome = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local run, list = load(id), {}
local last = run and run[R_TOKEN] == token
-- If a hold ended under its attempt (max hold, revoked) while the session lives, the attempt has
-- failed; if the session has ended, the sweep counts the attempt.
local stood = last and run[R_STATE] == 'running' and run[R_HOLDER] == hid and (valid(hid) or ends(run[R_SESSION]))
if last then
  check()
  settled(id, run)
end

-- While no request waits for any of its names and nothing is due, a bundle that is held exclusively
-- is simply removed.
local S
if run and run[R_WAITS] == '1' or not freePlain(hid) then
  S = space()
  S.free(hid)
end

local function done(reply, state, current)
  if S then
    S.settle()
    if not quiet() then S.reap() end
    offered(S, list)
  end
  return {reply, state, list, current}
end

if not run then
  local past = call('HGET', HIST, id)
  past = past and fields(string.match(past, F_MATCH[[(RUN)]]))
  if past and past[R_TOKEN] == token then return done('recorded', past[R_STATE]) end
  return done('fenced', past and past[R_STATE] or '', past and past[R_TOKEN] or '0')
end
if not last then return done('fenced', run[R_STATE], run[R_TOKEN]) end

local function output() if ARGV[7] ~= '' then call('HSET', OUTPUT, id, withOutput(id, run, outcome == 'succeeded', ARGV[7])) end end

if outcome == 'succeeded' then
  local reason = ''
  if run[R_CLOSED] == '1' then
    reason = 'succeeded after its attempt had been counted'
  else
    close(id, run, 'succeeded', 'null')
  end
  output()
  final(S, id, run, 'succeeded', reason)
  trim(tonumber(ARGV[8]), tonumber(ARGV[9]))
  return done('recorded', 'succeeded')
end
if not stood then
  if run[R_STATE] == 'running' and run[R_CLOSED] ~= '1' then
    works(id, run) -- the sweep counts this attempt
  end
  return done('counted', run[R_STATE], run[R_TOKEN])
end
output()

local function putOff(state)
  run[R_STATE], run[R_AT] = state, format('%.0f', now + ARGV[5])
  call('ZADD', TIMER, run[R_AT], id)
  save(id, run)
end

-- declined closes an attempt after its worker could not do the run. The run may be declined for as
-- long as no worker can do it, so attempts that were declined for the same error are one entry,
-- that of the last, with their number (times) and the start of the first (first_at). Of entries
-- with other errors that directly precede it, the last 7 are kept.
local function declined(id, run, failure)
  local log = call('HGET', LOG, id) or ''
  local before, entries, own = log, {}, nil
  local tail = ',"outcome":"handed back","error":' .. failure .. ',"times":'
  while true do
    -- The quotation marks of an error are escaped, so an error has no such text.
    local rest, entry = string.match(before, '^(.*)({"attempt":.*)$')
    local start = entry and string.find(entry, ',"times":%d+,"first_at":%d+}$')
    if not start then break end
    before = sub(rest, 1, -2)
    if not own and string.find(entry, tail, 1, true) then
      own = entry
    else
      table.insert(entries, 1, entry)
    end
  end
  while #entries > 7 do table.remove(entries, 1) end
  if before ~= '' then table.insert(entries, 1, before) end
  if #entries == 0 then call('HDEL', LOG, id) else call('HSET', LOG, id, concat(entries, ',')) end
  close(id, run, 'handed back', failure)
  local times, first = 0, run[R_STARTED]
  if own then times, first = string.match(own, '"times":(%d+),"first_at":(%d+)}$') end
  log = call('HGET', LOG, id)
  call('HSET', LOG, id, sub(log, 1, -2) .. ',"times":' .. format('%.0f', times + 1) .. ',"first_at":' .. first .. '}')
end

if outcome == 'canceled' or run[R_STOP] ~= '' then
  local closed = {failed = 'failed', retry = 'failed', handback = 'handed back', left = 'handed back', canceled = 'canceled'}
  close(id, run, closed[outcome], ARGV[6])
  if closed[outcome] == 'failed' then run[R_FAILS] = format('%d', run[R_FAILS] + 1) end
  final(S, id, run, 'canceled', run[R_STOP])
  trim(tonumber(ARGV[8]), tonumber(ARGV[9]))
elseif outcome == 'left' then
  close(id, run, 'handed back', ARGV[6])
  final(S, id, run, 'lost', 'its worker ' .. run[R_SESSION] .. ' ended while the handler ignored the end of its context (on_crash: abandon)')
  trim(tonumber(ARGV[8]), tonumber(ARGV[9]))
elseif outcome == 'handback' and ARGV[5] == '0' then
  close(id, run, 'handed back', ARGV[6])
  due(id, run)
  pushes(list, id, run)
elseif outcome == 'handback' then
  declined(id, run, ARGV[6])
  putOff('scheduled')
elseif outcome == 'retry' then
  close(id, run, 'failed', ARGV[6])
  run[R_FAILS] = format('%d', run[R_FAILS] + 1)
  putOff('retrying')
else
  close(id, run, 'failed', ARGV[6])
  run[R_FAILS] = format('%d', run[R_FAILS] + 1)
  final(S, id, run, 'failed', '')
  trim(tonumber(ARGV[8]), tonumber(ARGV[9]))
end
return done('recorded', run[R_STATE])
