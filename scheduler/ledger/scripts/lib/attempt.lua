-- Attempts: the log of a run.

-- The worker, the start, the end, the outcome, and the name of the next member of each closed
-- attempt in a log. The quotation marks of an error are escaped, so no error matches this pattern.
local ATTEMPTS = '"worker":"([^"]*)","token":"%d+","started_at":(%d+),"finished_at":(%d+),"outcome":"([^"]*)","(%a*)"'

-- entryOf returns the entry of a closed attempt, the last one of its run, in a log. failure: JSON.
-- more: a member of the entry that follows the outcome, with its comma, or nil.
local function entryOf(run, session, started, finished, outcome, failure, more)
  return '{"attempt":' .. run[R_ATTEMPT] .. ',"worker":"' .. session .. '","token":"' .. run[R_TOKEN] ..
    '","started_at":' .. started .. ',"finished_at":' .. finished .. ',"outcome":"' .. outcome ..
    '",' .. (more or '') .. '"error":' .. failure .. '}'
end

-- plainLog returns the log of a run that has ended, if its only attempt succeeded, under this
-- session. The final record has all the rest: the attempt started and ended with the run. record.go
-- has the same function.
local function plainLog(run, session)
  return entryOf(run, session, run[R_FIRST], run[R_FINISHED], 'succeeded', 'null')
end

-- earlier returns the entries of a log before that of the attempt with a token: all of them if it
-- has none. In an error, quotation marks are escaped.
local function earlier(log, token)
  local at = string.find(log, '"token":"' .. token .. '"', 1, true)
  return at and (string.match(sub(log, 1, at), '^(.*),{"attempt":') or '') or log
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
  run[R_CLOSED] = '1'
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
  -- A success is counted with its run.
  if outcome ~= 'succeeded' then addTotal(1, 'a', outcome, run[R_JOB]) end
  local entry = entryOf(run, run[R_SESSION], run[R_STARTED], ms, outcome, failure, more)
  call('HSET', LOG, id, past and past .. ',' .. entry or entry)
end

-- suspected returns the session in whose death a run crashed, if the run may have caused that; ''
-- for an unknown session. It returns nil for a run that never crashed, that was cleared, or that
-- has survived an attempt since its last crash: the attempt ended in another way, or was handed
-- back or lost its lease only after it had run for longer than those that crashed. An attempt that
-- still runs counts like the latter. Record.Suspect (record.go) follows the same rule.
local function suspected(id, run)
  if run[R_CRASHES] == '0' then return nil end
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
  if run[R_STATE] == 'running' and survived(now - run[R_STARTED]) then session = nil end
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
