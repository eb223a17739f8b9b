-- The fast path of claim, for one run or several: plain ones, while nothing is due. It precedes the
-- functions of the general path, since Redis creates them anew at each call and that takes as long
-- as the commands do. claim.lua does the same, with due, undue, grant, works and watch of the
-- libraries; a test runs both on random ledgers and compares all keys.
--
-- ARGV for several: 1 session  2 ''  3... hold id, run, n, marks (as in claim) of each
-- Replies for several: one for each, as in claim; '' for a run that is not plain, of which nothing
--   was changed
--
-- A run is plain when it is due under this n for its first attempt, has neither waited nor crashed,
-- has no start deadline and no limits of its hold, was not asked to stop, has a definition that its
-- worker can run, and wants nothing but exclusive locks that are free and that no request waits
-- for; when no earlier tick of its job is outstanding, if its ticks start in order; and no run that
-- goes first is due in the queues that a claim without a delivery names.
do
  local match, find = string.match, string.find
  -- A plain record. All other fields are as in a new one, which has nothing of an attempt.
  local PLAIN = R_MATCH[[STATE=due (N=%d+) (JOB) (QUEUE) (TRIGGER (TICK=%d*) CREATED=%d+) (SINCE=%d+) (REASON AT BY UPTO)
    (SERIAL) (PATIENCE ONBUSY) (ITEMS=x.*)]]
  local session, several, first, last = ARGV[1], ARGV[2] == '', 2, 2
  local replies = {}
  if several then first, last = 3, #ARGV - 3 end
  if live(session, ms) then
    local ids = {}
    for i = first, last, 4 do ids[#ids + 1] = ARGV[i + 1] end
    local records = values(RUN, ids)

    -- Which of the runs are plain, by their records.
    local plain, names, bytes = {}, {}, 0
    for k = 1, #ids do
      local record = records[k] or ''
      bytes = bytes + #record
      -- patterns take long on long records
      if k > 1 and (bytes > 98304 or #names > 500 and #record > 8192) then record = '' end
      local n, job, queue, made, tick, since, told, serial, wait, items = match(record, PLAIN)
      local fit = n == ARGV[first + 4 * k - 2]
      local rank = fit and (#since == 13 and '000' .. since or format('%016.0f', tonumber(since)))
      if fit and serial == '1' then
        fit = tick == '' or call('ZLEXCOUNT', OPEN, '[' .. job .. '\0' .. format('%016.0f', 1),
          '(' .. job .. '\0' .. format('%016.0f', tonumber(tick))) == 0
      end
      for i = 9, several and 0 or #ARGV do
        local other = fit and call('ZRANGEBYLEX', READY, '[' .. ARGV[i] .. '\0', '(' .. ARGV[i] .. '\1', 'LIMIT', '0', '1')[1]
        if other and match(other, '^[^%z]*%z([^%z]*)') < rank then fit = false end
      end
      if fit then
        local from = exclusive(items, names) -- the others are claimed one by one
        if from then
          local place = queue .. '\0' .. rank .. '\0' .. ids[k]
          plain[#plain + 1] = {k, from, #names, n, job, queue, made, since, told, serial, wait, items, place}
        end
      end
    end

    -- Which bundles are free.
    local granted, taken = {}, #names > 0 and occupied(names, 1, #names)
    for p = 1, #plain do
      local run = plain[p]
      if noneIn(taken, names, run[2], run[3]) then
        granted[#granted + 1] = run
        for i = run[2], run[3] do taken[names[i]] = true end
      end
    end

    -- Which of these their worker can run.
    local mine, bodies, ready = {}, {}, {}
    for g = 1, #granted do mine[g] = ids[granted[g][1]] end
    if #granted > 0 then bodies = values(BODY, mine) end
    local able = 0
    for g = 1, #granted do
      local run, unread, body = granted[g], bodies[g] == nil, bodies[g] or ''
      local marks = several and ARGV[first + 4 * run[1] - 1] or ARGV[8]
      local runnable = marks == ''
      local at = find(body, '\31', 1, true) or 0
      local mark = string.byte(body, at + 1) == 64 and sub(body, at + 1)
      if runnable and mark then -- the worker has not said that it has this definition
        local text = call('HGET', DEFS, mark)
        if text and text ~= '' then body = sub(body, 1, at) .. text else runnable = false end
      elseif not runnable then
        local _, upto = find(body, '"handler":"', at + 1, true)
        local handler = upto and sub(body, upto + 1, (find(body, '"', upto + 1, true) or 0) - 1) or ''
        mark = mark or handler .. ' ' .. #body - at
        if find(marks, '\30' .. mark .. '\30', 1, true) then runnable = true end
      end
      if runnable and not unread then
        able = able + 1
        granted[able], mine[able], bodies[able], ready[able] = run, mine[g], body, run[13]
      end
    end
    for g = #granted, able + 1, -1 do granted[g], mine[g], bodies[g] = nil, nil, nil end

    if #granted > 0 then
      -- the first write is a removal, so that a full Redis does not refuse it
      call('ZREM', READY, unpack(ready))
      call('ZREM', PUSH, unpack(mine))
      call('ZREM', SENT, unpack(mine))
      -- Scores are texts, for Redis would print a number and parse it again.
      local slots, holds, busy, writes = {}, {}, {}, {}
      local _, token = draw(micros, #granted)
      for g = 1, #granted do
        local k, from, upto, n, job, queue, made, since, told, serial, wait, items = unpack(granted[g])
        local id, hid, number = mine[g], ARGV[first + 4 * k - 4], format('%.0f', token)
        local record = R_TEXT{STATE = 'running'; N = format('%d', n + 1); JOB = job; QUEUE = queue; TRIGGER_CREATED = made;
          SINCE = since; TOKEN = number; HOLDER = hid; SESSION = session; ATTEMPT = '1'; STARTED = ms; FIRST = ms;
          REASON_UPTO = told; SERIAL = serial; PATIENCE_ONBUSY = wait; ITEMS = items}
        local tag = 'x' .. hid
        for i = from, upto do slots[#slots + 1], slots[#slots + 2] = names[i], tag end
        holds[2 * g - 1], holds[2 * g] = '0', H_TEXT{SESSION = session .. '\0' .. hid; TOKEN = number; SINCE = ms;
          INFO = '{"job":"' .. job .. '","run":"' .. id .. '"}'; ITEMS = items}
        busy[2 * g - 1], busy[2 * g] = '0', session .. '\0' .. id
        writes[2 * g - 1], writes[2 * g] = id, record
        replies[k] = {'granted', number, record, bodies[g], {}}
        token = token + 1
      end
      take(slots, holds)
      call('ZADD', BUSY, unpack(busy))
      call('HSET', RUN, unpack(writes))
    end
  end
  if several then
    for k = 1, (#ARGV - 2) / 4 do replies[k] = replies[k] or '' end
    return replies
  end
  if replies[1] then return replies[1] end
end
