-- Ticks: whether a tick runs, and what becomes of the earlier runs of its job.
--
-- The functions share a decision, a table that create makes of its arguments: job; again; overlap;
-- most: the most runs of ticks that wait; lateness: ms after a tick at which its start deadline is,
-- or ''; spans: what to skip, see spansOf; doubtful: runs of these ticks may exist already; paused:
-- by which actor or definition, or nothing; made: the runs of earlier ticks of this decision, which
-- a later one may replace; waiting: how many runs of ticks wait, once that was counted; S: space(),
-- once it was needed.

-- spansOf reads the spans of ticks to skip that FACTS has for a job: a list of first, last, reason;
-- the texts of those that reach beyond a cursor; and whether the cursor has passed any.
local function spansOf(text, cursor)
  local spans, left = {}, {}
  for span in string.gmatch(text or '', '[^\31]+') do
    local first, last, why = string.match(span, '^(%d+)\30(%d+)\30(.*)$')
    spans[#spans + 1] = {tonumber(first), tonumber(last), why}
    if tonumber(last) > cursor then left[#left + 1] = span end
  end
  return spans, left, #left < #spans
end

-- judge returns the verdict on a tick and its reason, as far as no other run matters; the start
-- deadline of its run, or ''; and whether a worker that knows more has asserted that run. The other
-- arguments are those of create for the tick.
local function judge(decision, id, tick, verdict, reason, upto)
  local deadline = decision.lateness ~= '' and format('%.0f', tick + decision.lateness) or ''
  if upto == '' and verdict ~= 'failed' then
    for k = 1, #decision.spans do
      local span = decision.spans[k]
      if tonumber(tick) >= span[1] and tonumber(tick) <= span[2] then verdict, reason = 'skipped', span[3] end
    end
  end
  local there = decision.doubtful and (call('HEXISTS', RUN, id) == 1 or call('HEXISTS', HIST, id) == 1)
  if not decision.again and (verdict == 'run' or verdict == 'catch') then
    if decision.paused then
      verdict, reason = 'skipped', 'paused ' .. decision.paused
    elseif deadline ~= '' and now >= tonumber(deadline) then
      verdict, reason = 'missed', 'start_deadline: no worker was up'
    end
  end
  return verdict, reason, deadline, there
end

-- ticksOf returns the bounds of a job's runs of ticks in OPEN.
local function ticksOf(job) return '[' .. job .. '\0' .. pad(1), '(' .. job .. '\1' end

-- replaced cancels a run for another one.
local function replaced(decision, id, run, by)
  decision.S = decision.S or space()
  cancel(decision.S, id, run, 'overlap: replace; by ' .. by)
end

-- replaceEarlier ends the outstanding runs of ticks that a run replaces, or asks them to stop. It
-- begins after a member of OPEN, '' for the first one, and returns the member after which to
-- continue if others are left. MOST and BYTES bound how long it keeps Redis busy: the number of
-- runs, and their size.
local function replaceEarlier(decision, after, by)
  local MOST, BYTES = 50, 256 * 1024
  local from, to = ticksOf(decision.job)
  local others = call('ZRANGEBYLEX', OPEN, after == '' and from or '(' .. after, to, 'LIMIT', '0', MOST)
  local bytes = 0
  for i = 1, #others do
    local id = string.match(others[i], '([^%z]*)$')
    bytes = bytes + call('HSTRLEN', RUN, id) + call('HSTRLEN', BODY, id)
    local run = load(id)
    if run then replaced(decision, id, run, by) end
    if bytes >= BYTES and i < #others then return others[i] end
  end
  return #others == MOST and others[MOST]
end

-- waitingTicks returns how many runs of ticks wait; a higher number once it is known that at least
-- most do. The newest ones come first: they wait if any does, so that few records are read. READ
-- and PAGE bound what it reads: the size of all records, and the number of those that it reads
-- together. Runs beyond READ count as waiting.
local function waitingTicks(from, to, most)
  local READ, PAGE = 1024 * 1024, 50
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
      if record ~= '' and not string.find(record, R_MATCH[[STATE=running]]) then n = n + 1 end
    end
  end
  return n
end

-- overlap returns why a tick is skipped, or nil; and whether it must wait, in front of all later
-- ones, for a run that it replaces.
local function overlap(decision, id)
  if decision.overlap == 'allow' then return nil end
  local from, to = ticksOf(decision.job)
  if decision.overlap == 'skip' or decision.overlap == 'replace' then
    if decision.overlap == 'replace' then
      for i = 1, #decision.made do
        local run = load(decision.made[i])
        if run then replaced(decision, decision.made[i], run, id) end
      end
      decision.made = {}
    end
    local member = call('ZRANGEBYLEX', OPEN, from, to, 'LIMIT', '0', '1')[1]
    -- those that are left were asked to stop
    if not member or decision.overlap == 'replace' then return nil, member ~= nil end
    local other = string.match(member, '([^%z]*)$')
    local run = load(other)
    return 'overlap: skip; ' .. other .. ' is ' .. (run and run[R_STATE] or 'unreadable')
  end
  local most = decision.most
  if not decision.waiting then
    if call('ZLEXCOUNT', OPEN, from, to) < most then return nil end
    decision.waiting = waitingTicks(from, to, most)
  end
  return decision.waiting >= most and 'overlap: queue; ' .. most .. ' runs wait already' or nil
end
