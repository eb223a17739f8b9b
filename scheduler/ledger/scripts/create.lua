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
--       a range line or "", server ms at which it becomes due
-- verdict: run | catch (a missed tick that runs: overlap does not skip it) | a final state: missed,
-- failed
-- Replies: ok, the ticks that ended in this step (a list of id, state), then id, n, queue of each
--   due run | more, the member of open after which to continue, then id, n, queue of each due run:
--   overlap replace has ended, or asked to stop, as many earlier runs as one script may; others are
--   left, so no tick is decided, and the caller sends the decision again | moved, the cursor |
--   early: a tick has not come yet | inactive: another definition of the job decides its ticks |
--   grace, ms left of a grace period, in which nothing is decided | late: the grace period is over,
--   and nothing is re-asserted any more
-- MOST and BYTES bound how long a call keeps Redis busy: runs that a tick replaces, and the size of
-- these. READ and PAGE bound what overlap queue reads: the size of all records, and the number of
-- those that it reads together.
local MOST, BYTES, READ, PAGE = 50, 256 * 1024, 1024 * 1024, 50
local job, items, again = ARGV[1], tonumber(ARGV[19]), ARGV[2] == 'again'
local START = 21 + items -- where the arguments of the ticks begin
local list = {}
for i = 1, items do list[i] = ARGV[20 + i] end
list = concat(list, US)
if again then
  if not recalling() then return {'late'} end
  checkBodies(ARGV[11])
else
  local cursor = call('HGET', CURSOR, job)
  if cursor ~= ARGV[2] then return {'moved', cursor or ''} end
  if known(job) ~= ARGV[18] then return {'inactive'} end
  if tonumber(ARGV[3]) > now then return {'early'} end
  local pause = not quiet() and space().grace()
  if pause then return {'grace', format('%.0f', pause)} end
  check()
  checkBodies(ARGV[11])
end

-- Where data was lost once, the cursor may have gone back behind some ticks that are known.
local doubtful = again or call('HEXISTS', META, 'lost') == 1

local S, ended = nil, {}
local out = {'ok', ended}
local from, to = '[' .. job .. '\0' .. pad(1), '(' .. job .. '\1' -- the outstanding runs of ticks
local function outstanding() return call('ZRANGEBYLEX', OPEN, from, to, 'LIMIT', '0', '1')[1] end
local ordered = call('HMGET', FACTS, 'p' .. job, 's' .. job)
local paused = ARGV[16] == '1' and 'by its definition' or ordered[1]

-- The spans to skip; those that the cursor has passed are forgotten.
local spans, kept = {}, {}
for span in string.gmatch(ordered[2] or '', '[^\31]+') do
  local first, last, why = string.match(span, '^(%d+)\30(%d+)\30(.*)$')
  spans[#spans + 1] = {tonumber(first), tonumber(last), why}
  if tonumber(last) > tonumber(ARGV[3]) then kept[#kept + 1] = span end
end

-- judge returns the verdict on a tick and its reason, as far as no other run matters; the start
-- deadline of its run, or ''; and whether a worker that knows more has asserted that run.
local function judge(i)
  local id, tick, verdict, reason, upto = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local deadline = ARGV[12] ~= '' and format('%.0f', tick + ARGV[12]) or ''
  if upto == '' and verdict ~= 'failed' then
    for k = 1, #spans do
      if tonumber(tick) >= spans[k][1] and tonumber(tick) <= spans[k][2] then verdict, reason = 'skipped', spans[k][3] end
    end
  end
  local there = doubtful and (call('HEXISTS', RUN, id) == 1 or call('HEXISTS', HIST, id) == 1)
  if not again and (verdict == 'run' or verdict == 'catch') then
    if paused then
      verdict, reason = 'skipped', 'paused ' .. paused
    elseif deadline ~= '' and now >= tonumber(deadline) then
      verdict, reason = 'missed', 'start_deadline: no worker was up'
    end
  end
  return verdict, reason, deadline, there
end

-- The first tick that runs replaces all earlier runs. There may be very many of them.
if not again and ARGV[6] == 'replace' then
  local by
  for i = START, #ARGV, 6 do
    local verdict, _, _, there = judge(i)
    if verdict == 'run' and not there then
      by = ARGV[i]
      break
    end
  end
  local others = by and call('ZRANGEBYLEX', OPEN, ARGV[20] == '' and from or '(' .. ARGV[20], to, 'LIMIT', '0', MOST) or {}
  local last, bytes = #others == MOST and others[MOST], 0
  for i = 1, #others do
    local other = string.match(others[i], '([^%z]*)$')
    bytes = bytes + call('HSTRLEN', RUN, other) + call('HSTRLEN', BODY, other)
    local run = load(other)
    if run then
      S = S or space()
      cancel(S, other, run, 'overlap: replace; by ' .. by)
    end
    if bytes >= BYTES and i < #others then
      last = others[i]
      break
    end
  end
  if last then
    out = {'more', last}
    trim(tonumber(ARGV[8]), tonumber(ARGV[9]))
    if S then
      S.settle()
      offered(S, out)
    end
    return out
  end
end

if not again then
  call('HSET', CURSOR, job, ARGV[3])
  call('ZADD', REV, call('HINCRBY', LEDGER, 'rev', 1), job)
end
if #kept == 0 and #spans > 0 then
  call('HDEL', FACTS, 's' .. job)
elseif #kept < #spans then
  call('HSET', FACTS, 's' .. job, concat(kept, US))
end

-- queued returns how many runs of ticks wait; a higher number once it is known that at least most
-- do. The newest ones come first: they wait if any does, so that few records are read. Runs
-- beyond READ count as waiting.
local function queued(most)
  local n, bytes, upto, left = 0, 0, to, call('ZLEXCOUNT', OPEN, from, to)
  while n < most and left > 0 do
    if bytes >= READ then return n + left end
    local page = call('ZREVRANGEBYLEX', OPEN, upto, from, 'LIMIT', '0', PAGE)
    if #page == 0 then break end
    upto, left = '(' .. page[#page], left - #page
    for i = 1, #page do page[i] = string.match(page[i], '([^%z]*)$') end
    local records = call('HMGET', RUN, unpack(page))
    for i = 1, #page do
      local record = records[i] or ''
      bytes = bytes + #record
      if record ~= '' and sub(record, 1, 8) ~= 'running' .. US then n = n + 1 end
    end
  end
  return n
end

-- overlap returns why a tick is skipped, or nil; and whether it must wait, in front of all later
-- ones, for a run that it replaces.
local made = {} -- the runs of this decision, which a later tick of it may replace
local waiting   -- how many runs of ticks wait, once that was counted
local function overlap(id)
  if ARGV[6] == 'allow' then return nil end
  if ARGV[6] == 'skip' then
    local member = outstanding()
    if not member then return nil end
    local other = string.match(member, '([^%z]*)$')
    local there = load(other)
    return 'overlap: skip; ' .. other .. ' is ' .. (there and there[STATE] or 'unreadable')
  end
  if ARGV[6] == 'replace' then
    for i = 1, #made do
      local there = load(made[i])
      S = S or space()
      if there then cancel(S, made[i], there, 'overlap: replace; by ' .. id) end
    end
    made = {}
    return nil, outstanding() ~= nil -- those that are left were asked to stop
  end
  local most = tonumber(ARGV[7])
  if not waiting then
    if call('ZLEXCOUNT', OPEN, from, to) < most then return nil end
    waiting = queued(most)
  end
  return waiting >= most and 'overlap: queue; ' .. most .. ' runs wait already' or nil
end

for i = START, #ARGV, 6 do
  local id, tick, upto, at = ARGV[i], ARGV[i + 1], ARGV[i + 4], ARGV[i + 5]
  local verdict, reason, deadline, there = judge(i)
  local wait = false
  if verdict == 'run' and not again and not there then
    local why
    why, wait = overlap(id)
    if why then verdict, reason = 'skipped', why end
  end
  local run = fresh(job, ARGV[5], 'schedule', tick)
  run[REASON], run[BY], run[UPTO] = reason, ARGV[4], upto
  if there then -- a worker that knows more has asserted it
  elseif verdict == 'run' or verdict == 'catch' then
    announce(id, '')
    local own = list == '' and 'xrun:' .. id or list .. US .. 'xrun:' .. id
    local alone = verdict == 'catch' and ARGV[17] or ''
    if alone ~= '' then own = own .. US .. alone end
    run[SERIAL] = (ARGV[6] ~= 'allow' or alone ~= '') and '1' or ''
    run[DEADLINE], run[PATIENCE], run[ONBUSY], run[LIMITS] = deadline, ARGV[13], ARGV[14], ARGV[15]
    run[R_ITEMS] = own
    embody(id, ARGV[10], ARGV[11])
    call('ZADD', OPEN, '0', job .. '\0' .. pad(tick) .. '\0' .. id)
    if tonumber(at) > now then
      run[STATE], run[AT] = 'scheduled', at
      call('ZADD', TIMER, at, id)
      save(id, run)
    elseif wait then
      run = fields(concat(run, US)) -- its items one by one
      run[SINCE] = ms
      S.visit(park(S, id, run, 0, {'job:' .. job, '', '', '', '0', ms}))
    else
      due(id, run)
      pushes(out, id, run)
    end
    watch(id, run)
    made[#made + 1], waiting = id, waiting and waiting + 1
  else
    run[STATE], run[FINISHED] = verdict, ms
    ended[#ended + 1] = id
    ended[#ended + 1] = verdict
    announce(id, verdict)
    archive(id, run, '', ARGV[10])
  end
end
trim(tonumber(ARGV[8]), tonumber(ARGV[9]))
if S then
  S.settle()
  offered(S, out)
end
return out
