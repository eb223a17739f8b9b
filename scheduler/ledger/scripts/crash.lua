-- crash closes the attempt of a run after its session has ended: the run becomes due again, or
-- ends. The attempt has crashed if the process of that session died (died.lua), else it has lost
-- its lease. If the session lives and only the hold has ended under the attempt (max hold, or
-- revoked), the attempt has failed. A worker that cut off an attempt also closes it with this
-- script, under its next session: nothing of it runs any more, even if the old session still lives
-- here. ARGV: 1 run  2 token seen  3 on crash: rerun | abandon  4 crashes at most  5 history: runs
--       6 history: ms  7 retries at most  8 pause before the next one, ms
--       9 lost leases in a row that no worker explained, at most
--       10 the next session of the worker that cut off the attempt, or '' for a sweep
-- Replies, with the pushes to do last: closed, the run's state, the attempt's outcome | no: it has
--   not ended (any more)
--   to the worker itself also: dead: its next session has ended, too | later: lost state is still
--   being re-asserted
-- While workers re-assert what Redis has lost, no attempt is closed: the end of an attempt that is
-- known to have run may arrive in the next moment, and that end is why its hold is missing.
local id, reporter = ARGV[1], ARGV[10]
local run, list = load(id), {}
if reporter ~= '' and not ends(reporter) then return {'dead', '', '', list} end
if reasserting() then return {reporter == '' and 'no' or 'later', '', '', list} end
if not run or run[R_STATE] ~= 'running' or run[R_TOKEN] ~= ARGV[2] then
  -- a sweep came first
  if run and reporter ~= '' then noted(id, '', ARGV[2], 'lost lease', 'confirmed') end
  return {'no', '', '', list}
end
local session = run[R_SESSION]
local lives = reporter == '' and ends(session)
if lives and valid(run[R_HOLDER]) then return {'no', '', '', list} end
check()
local S = space()
local before = suspected(id, run)
settled(id, run)
S.free(run[R_HOLDER], call('ZSCORE', DIED, '!' .. session) and 'c' or 'l')

-- blame decides which runs may have caused the death of the session's process, and returns what
-- close adds to the entry of this one. As long as none of them was suspected before, each of them
-- may have. A suspect that dies again has most likely caused both deaths: all others that ran in
-- either of them are cleared.
local function blame()
  local known = call('ZRANGEBYLEX', DIED, '[?' .. session .. '\0', '(?' .. session .. '\1', 'LIMIT', '0', '1')
  if not before and #known > 0 then return '"cleared":true,' end
  if before then
    call('ZREM', DIED, before .. '\0' .. id)
    call('ZADD', DIED, '0', '?' .. session .. '\0' .. id)
    local others = call('ZRANGEBYLEX', DIED, '[' .. session .. '\0', '(' .. session .. '\1', 'LIMIT', '0', 1000)
    for i = 1, #others do
      if not call('ZSCORE', DIED, '?' .. others[i]) then clear(sub(others[i], #session + 2), session) end
    end
    others = before == '' and {} or call('ZRANGEBYLEX', DIED, '[' .. before .. '\0', '(' .. before .. '\1', 'LIMIT', '0', 1000)
    for i = 1, #others do
      local other = sub(others[i], #before + 2)
      if not call('ZSCORE', BUSY, session .. '\0' .. other) then clear(other, before) end
    end
  end
  call('ZADD', DIED, '0', session .. '\0' .. id)
end

-- unexplained returns how many attempts in a row, up to the last one, have lost their lease without
-- their worker coming back to report it: the run may have killed their hosts. close keeps those
-- entries of a long log.
local function unexplained()
  local n = 0
  for _, _, _, ended, member in string.gmatch(call('HGET', LOG, id), ATTEMPTS) do
    if ended == 'lost lease' and member ~= 'confirmed' then
      n = n + 1
    elseif ended ~= 'handed back' then
      n = 0
    end
  end
  return n
end

local outcome, happened, over = 'lost lease', 'lost its lease', nil
if lives then
  outcome = 'failed'
  close(id, run, outcome, '"its locks ended under it: it held them for too long, or they were revoked"')
  run[R_FAILS] = format('%d', run[R_FAILS] + 1)
elseif call('ZSCORE', DIED, '!' .. session) then
  outcome, happened = 'crashed', 'died'
  close(id, run, outcome, '"the process of the worker ' .. session .. ' died"', blame())
  buried(session)
  run[R_CRASHES] = format('%d', run[R_CRASHES] + 1)
  if tonumber(run[R_CRASHES]) >= tonumber(ARGV[4]) then over = 'its worker died ' .. run[R_CRASHES] .. ' times (max_crashes)' end
elseif reporter ~= '' then
  close(id, run, outcome, '"the worker ' .. session .. ' lost its lease and ended the attempt"', '"confirmed":true,')
else
  close(id, run, outcome, '"the worker ' .. session .. ' lost its lease: it lost Redis, was stopped, or its host died"')
  if unexplained() >= tonumber(ARGV[9]) then
    over = 'its worker lost its lease ' .. ARGV[9] .. ' times in a row and never came back: its hosts may die of it'
  end
end

if not lives and ARGV[3] == 'abandon' then
  final(S, id, run, 'lost', 'its worker ' .. session .. ' ' .. happened .. ' (on_crash: abandon)')
elseif run[R_STOP] ~= '' then
  final(S, id, run, 'canceled', run[R_STOP])
elseif lives and tonumber(run[R_FAILS]) > tonumber(ARGV[7]) then
  final(S, id, run, 'failed', '')
elseif over then
  final(S, id, run, 'failed', over)
elseif lives then
  run[R_STATE], run[R_AT] = 'retrying', format('%.0f', now + ARGV[8])
  call('ZADD', TIMER, run[R_AT], id)
  save(id, run)
else
  due(id, run)
  pushes(list, id, run)
end
if run[R_FINISHED] ~= '' then trim(tonumber(ARGV[5]), tonumber(ARGV[6])) end
S.settle()
offered(S, list)
return {'closed', run[R_STATE], outcome, list}
