-- create decides ticks of one job: it moves the cursor over them and accounts for each, in one step.
-- ARGV: 1 job  2 cursor seen (ms)  3 new cursor (ms)  4 decided by (session)  5 queue  6 overlap  7 max queued
--       8 history: runs  9 history: ms  10 arguments (JSON)  11 definition (JSON)  12 number of items  ... items
--       then five for each tick, oldest first: run id, tick (ms), verdict, reason, last tick (ms) of a range line or ""
-- verdict: run | catch (a missed tick that runs: overlap does not skip it) | a final state: missed, failed
-- Replies: ok, then id, n, queue of each run that is due | moved, the cursor | early: a tick has not come yet, or a
--   grace time goes on
local job, items = ARGV[1], tonumber(ARGV[12])
local cursor = call('HGET', CURSOR, job)
if cursor ~= ARGV[2] then return {'moved', cursor or ''} end
if tonumber(ARGV[3]) > now or not quiet() and space().grace() then return {'early'} end
local list = {}
for i = 1, items do list[i] = ARGV[12 + i] end
list = concat(list, US)

call('HSET', CURSOR, job, ARGV[3])
call('ZADD', REV, call('HINCRBY', LEDGER, 'rev', 1), job)

-- overlap returns why a tick is skipped, or nil.
local function overlap()
  local from, to = '[' .. job .. '\0' .. pad(1), '(' .. job .. '\1'
  if ARGV[6] == 'skip' then
    local first = call('ZRANGEBYLEX', OPEN, from, to, 'LIMIT', 0, 1)[1]
    if not first then return nil end
    local id = string.match(first, '([^%z]*)$')
    return 'overlap: skip; ' .. id .. ' is ' .. load(id)[STATE]
  end
  local queued, most = 0, tonumber(ARGV[7])
  local others = call('ZRANGEBYLEX', OPEN, from, to)
  if #others < most then return nil end
  for i = 1, #others do
    if load(string.match(others[i], '([^%z]*)$'))[STATE] ~= 'running' then queued = queued + 1 end
  end
  return queued >= most and 'overlap: queue; ' .. queued .. ' runs wait already' or nil
end

local out = {'ok'}
for i = 13 + items, #ARGV, 5 do
  local id, tick, verdict, reason, upto = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  if verdict == 'run' then
    local why = overlap()
    if why then verdict, reason = 'skipped', why end
  end
  local run = {'due', '0', job, ARGV[5], 'schedule', tick, ms, '', '0', '', '', '0', '', '', '0', '0', reason, '', '',
    '', ARGV[4], upto, ''}
  if verdict == 'run' or verdict == 'catch' then
    run[R_ITEMS] = list == '' and 'xrun:' .. id or list .. US .. 'xrun:' .. id
    due(id, run)
    pushes(out, id, run)
    call('HSET', BODY, id, ARGV[10] .. US .. ARGV[11])
    call('ZADD', OPEN, 0, job .. '\0' .. pad(tick) .. '\0' .. id)
  else
    run[STATE], run[FINISHED] = verdict, ms
    archive(id, run, '', ARGV[10])
  end
end
trim(tonumber(ARGV[8]), tonumber(ARGV[9]))
return out
