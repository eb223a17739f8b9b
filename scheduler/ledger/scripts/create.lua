-- create decides ticks of one job: it moves the cursor over them and accounts for each, in one
-- step.
-- ARGV: 1 job  2 cursor seen (ms), or again: these ticks were decided before Redis lost their runs,
--       which become due again unless a worker knows better  3 new cursor (ms)  4 decided by
--       (session)  5 queue  6 overlap  7 max queued  8 history: runs  9 history: ms  10 arguments
--       (JSON)  11 definition, as embody takes it  12 start deadline, ms after the tick, or ""
--       13 ms that a run waits for its bundle, or ""  14 and what happens to it then
--       15 limits of its holds
--       16 1 when the definition is paused  17 item that a run which catches up takes in addition
--       to the others, or ""  18 hash of the definition  19 number of items
--       20 overlap replace: the member of open after which to continue, "" to begin  ... items
--       then six for each tick, oldest first: run id, tick (ms), verdict, reason, last tick (ms) of
--       a range line or "", server ms at which it becomes due; of a range line, how many ticks it
--       is for
-- verdict: run | catch (a missed tick that runs: overlap does not skip it) | a final state: missed,
-- failed
-- Replies: ok, the ticks that ended in this step (a list of id, state), then id, n, queue of each
--   due run | more, the member of open after which to continue, then id, n, queue of each due run:
--   overlap replace has ended, or asked to stop, as many earlier runs as one script may; others are
--   left, so no tick is decided, and the caller sends the decision again | moved, the cursor |
--   early: a tick has not come yet | inactive: another definition of the job decides its ticks |
--   grace, ms left of a grace period, in which nothing is decided | late: the grace period is over,
--   and nothing is re-asserted any more
local job, items, again = ARGV[1], tonumber(ARGV[19]), ARGV[2] == 'again'
local START = 21 + items -- where the arguments of the ticks begin
local list = {}
for i = 1, items do list[i] = ARGV[20 + i] end
list = concat(list, US)
if again then
  if not reasserting() then return {'late'} end
  checkBodies(ARGV[11])
else
  local cursor = call('HGET', CURSOR, job)
  if cursor ~= ARGV[2] then return {'moved', cursor or ''} end
  if known(job) ~= ARGV[18] then return {'inactive'} end
  if tonumber(ARGV[3]) > now then return {'early'} end
  local grace = not quiet() and space().grace()
  if grace then return {'grace', format('%.0f', grace)} end
  check()
  checkBodies(ARGV[11])
end

local ended, told = {}, {missed = {}, failed = {}}
local out = {'ok', ended}
local args, marked = unmarked(ARGV[10])
local ordered = call('HMGET', FACTS, 'p' .. job, 's' .. job)
local spans, left, passed = spansOf(ordered[2], tonumber(ARGV[3]))
local decision = {
  job = job, again = again, overlap = ARGV[6], most = tonumber(ARGV[7]), lateness = ARGV[12], spans = spans, made = {},
  -- Where data was lost once, the cursor may have gone back behind some ticks that are known.
  doubtful = again or everLost(),
  paused = ARGV[16] == '1' and 'by its definition' or ordered[1],
}

-- The first tick that runs replaces all earlier runs. There may be very many of them.
local last = false
if not again and decision.overlap == 'replace' then
  for i = START, #ARGV, 6 do
    local verdict, _, _, there = judge(decision, unpack(ARGV, i, i + 4))
    if verdict == 'run' and not there then
      last = replaceEarlier(decision, ARGV[20], ARGV[i])
      break
    end
  end
end
if last then
  out = {'more', last}
  trim(tonumber(ARGV[8]), tonumber(ARGV[9]))
  if decision.S then
    decision.S.settle()
    offered(decision.S, out)
  end
  return out
end

if not again then
  call('HSET', CURSOR, job, ARGV[3])
  call('ZADD', REV, call('HINCRBY', LEDGER, 'rev', 1), job)
end
if passed and #left == 0 then
  call('HDEL', FACTS, 's' .. job)
elseif passed then
  call('HSET', FACTS, 's' .. job, concat(left, US))
end

for i = START, #ARGV, 6 do
  local id, tick, upto, at = ARGV[i], ARGV[i + 1], ARGV[i + 4], ARGV[i + 5]
  local verdict, reason, deadline, there = judge(decision, unpack(ARGV, i, i + 4))
  local wait = false
  if verdict == 'run' and not again and not there then
    local why
    why, wait = overlap(decision, id)
    if why then verdict, reason = 'skipped', why end
  end
  local run = fresh(job, ARGV[5], 'schedule', tick)
  run[R_REASON], run[R_BY], run[R_UPTO] = reason, ARGV[4], upto
  if there then -- a worker that knows more has asserted it
  elseif verdict == 'run' or verdict == 'catch' then
    announce(id, '')
    local own = list == '' and 'xrun:' .. id or list .. US .. 'xrun:' .. id
    local alone = verdict == 'catch' and ARGV[17] or ''
    if alone ~= '' then own = own .. US .. alone end
    run[R_SERIAL] = (decision.overlap ~= 'allow' or alone ~= '') and '1' or ''
    run[R_DEADLINE], run[R_PATIENCE], run[R_ONBUSY], run[R_LIMITS] = deadline, ARGV[13], ARGV[14], ARGV[15]
    run[R_ITEMS] = own
    embody(id, ARGV[10], ARGV[11])
    call('ZADD', OPEN, '0', job .. '\0' .. pad(tick) .. '\0' .. id)
    if tonumber(at) > now then
      run[R_STATE], run[R_AT] = 'scheduled', at
      call('ZADD', TIMER, at, id)
      save(id, run)
    elseif wait then
      run = fields(concat(run, US)) -- its items one by one
      run[R_SINCE] = ms
      local S = decision.S or space() -- no run that it replaces could be read
      decision.S = S
      S.visit(park(S, id, run, 0, B_TEXT{RESOURCE = 'job:' .. job; SINCE = ms}))
    else
      due(id, run)
      pushes(out, id, run)
    end
    watch(id, run)
    decision.made[#decision.made + 1] = id
    if decision.waiting then decision.waiting = decision.waiting + 1 end
  else
    run[R_STATE], run[R_FINISHED] = verdict, ms
    ended[#ended + 1] = id
    ended[#ended + 1] = verdict
    announce(id, verdict)
    local messages = marked and told[verdict]
    if messages then messages[#messages + 1] = messageOf(id, run, verdict, endingOf(run), '') end
    archive(id, run, '', args)
    addTotal(upto ~= '' and at or 1, 't', verdict, job)
  end
end
for event, messages in pairs(told) do
  if #messages > 0 then tell(job, sub(ARGV[11], string.find(ARGV[11], US, 1, true) + 1), event, messages) end
end
trim(tonumber(ARGV[8]), tonumber(ARGV[9]))
if decision.S then
  decision.S.settle()
  offered(decision.S, out)
end
return out
