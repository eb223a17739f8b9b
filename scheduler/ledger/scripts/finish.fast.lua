-- The fast path of finish, for one attempt or several of one job: plain successes, while nothing is
-- due. It precedes the functions of the general path, since Redis creates them anew at each call
-- and that takes as long as the commands do. finish.lua does the same, with settled, close,
-- announce, final, totalRun and trim of the library; a test runs both on random ledgers and
-- compares all keys.
--
-- ARGV for several: 1 ''  2 history: runs  3 history: ms  4... run, token, hold id, output of each
-- Replies for several: one for each: 1 recorded, succeeded | 0 it is not plain, nothing of it was
--   changed
--
-- A success is plain when its attempt is the running one, was not asked to stop, its run has never
-- crashed, and its hold is still as it was granted: nothing but exclusive locks, without limits,
-- which no request waits for and which were not revoked. After earlier attempts, it has no output,
-- which would have to join theirs. If its job has targets of messages, none of them waits for a
-- success. The first write is a removal, so that a full Redis does not refuse it.
do
  local match, find = string.match, string.find
  -- A plain record. All other fields are as in a new one.
  local PLAIN = R_MATCH[[STATE=running (N=%d+) ((JOB) QUEUE (TRIGGER) (TICK=%d*) CREATED=%d+ SINCE=%d*) (TOKEN=%d+) (HOLDER)
    (SESSION) (ATTEMPT=%d+) (STARTED=%d+) (FIRST FAILS=%d+ CRASHES=0) REASON FINISHED (AT BY UPTO SERIAL * BLOCKER)
    (ITEMS=x.*)]]
  local several, replies = ARGV[1] == '', {}
  local first, last, step, keep, age, output = 1, 1, 1, ARGV[8], ARGV[9], 6
  if several then first, last, step, keep, age, output = 4, #ARGV - 3, 4, ARGV[2], ARGV[3], 3 end
  if (several or ARGV[4] == 'succeeded') and quiet() then
    local ids = {}
    for i = first, last, step do ids[#ids + 1] = ARGV[i] end
    local records = values(RUN, ids)

    local plain, members, mine, seen, bundles, bytes = {}, {}, {}, {}, {}, 0
    local again = false -- whether one of them is not the first attempt at its run
    for k = 1, #ids do
      local id, at, record = ids[k], first + step * (k - 1), records[k] or ''
      bytes = bytes + #record
      -- patterns take long on long records
      if k > 1 and (bytes > 98304 or #bundles > 500 and #record > 8192) then record = '' end
      local n, made, job, trigger, tick, token, hid, session, attempt, started, tally, rest, items = match(record, PLAIN)
      if n and token == ARGV[at + 1] and hid == ARGV[at + 2] and not seen[id] and (attempt == '1' or ARGV[at + output] == '') then
        seen[id] = true
        local from = exclusive(items, bundles)
        if from then -- the others are finished one by one
          members[#members + 1] = H_TEXT{SESSION = session .. '\0' .. hid; TOKEN = token; SINCE = started;
            INFO = '{"job":"' .. job .. '","run":"' .. id .. '"}'; ITEMS = items}
          mine[#members] = id
          again = again or attempt ~= '1'
          plain[#plain + 1] = {k, n, made, job, tick, token, session, attempt, started, tally, rest, ARGV[at + output], from, #bundles, trigger}
        end
      end
    end

    local ended, gone, names = {}, {}, {}
    local granted = #members > 0 and asGranted(members, 1, #members)
    local queues = #members > 0 and awaited(bundles, 1, #bundles)
    local bodies = #members > 0 and values(BODY, mine)
    local logs = again and values(LOG, mine) or {}
    local awaits -- whether a target waits for a success of the job
    for p = 1, #plain do
      local run, told, body = plain[p], false, bodies[p]
      if body and find(body, ' \31', 1, true) then
        if awaits == nil then awaits = call('HEXISTS', FACTS, 'n' .. run[4]) == 1 end
        told = awaits
      end
      if granted[p] and not told and bodies[p] ~= nil and (run[8] == '1' or logs[p] ~= nil) and noneIn(queues, bundles, run[13], run[14]) then
        local e = #ended + 1
        ended[e], gone[e], mine[e], bodies[e], logs[e] = run, members[p], mine[p], bodies[p], logs[p]
        for i = run[13], run[14] do names[#names + 1] = bundles[i] end
      end
    end
    for p = #plain, #ended + 1, -1 do mine[p] = nil end
    if #ended > 0 then
      local busy, open, hist, done, tails, told = {}, {}, {}, {}, {}, {}
      local uses = {} -- name -> how many of the bodies name it
      local triggers = {} -- trigger -> how many of the runs it made
      for e = 1, #ended do
        local k, n, made, job, tick, token, session, attempt, started, tally, rest, tail = unpack(ended[e])
        local id, body = mine[e], bodies[e] or ''
        local at = find(body, '\31', 1, true) or #body + 1
        local byname = string.byte(body, at + 1) == 64
        local name = byname and sub(body, at + 2) or ''
        if byname then uses[name] = (uses[name] or 0) + 1 end
        local trigger = ended[e][15]
        triggers[trigger] = (triggers[trigger] or 0) + 1
        busy[e] = session .. '\0' .. id
        if tick ~= '' or attempt ~= '1' then told[#told + 1] = id end
        tick = #tick == 13 and '000' .. tick or format('%016.0f', tonumber(tick) or 0)
        open[e] = job .. '\0' .. tick .. '\0' .. id
        -- The final record is shortened as by archive. An attempt that started with its run, and
        -- has no log before it, is the only one.
        local past = logs[e] and logs[e] .. ',' or ''
        local log
        rest = '\31' .. R_TEXT{AT_BLOCKER = rest; ...}
        if byname then rest = match(rest, '^(.-)\31*$') end
        if byname and past == '' and sub(tally, 1, #started + 1) == started .. '\31' then
          log = '@' .. session
        else
          log = past .. '{"attempt":' .. attempt .. ',"worker":"' .. session .. '","token":"' .. token .. '","started_at":' .. started ..
            ',"finished_at":' .. ms .. ',"outcome":"succeeded","error":null}'
        end
        hist[2 * e - 1] = id
        hist[2 * e] = F_TEXT{RUN = R_TEXT{STATE = 'succeeded'; N = format('%d', n + 1); JOB_SINCE = made; TOKEN = token;
          HOLDER = sub(name, 1, 6); ATTEMPT = attempt; FIRST_CRASHES = tally; FINISHED = ms; CLOSED = '1' .. rest}; LOG = log;
          ARGS = sub(body, 1, string.byte(body, at - 1) == 32 and at - 2 or at - 1)}
        done[2 * e - 1], done[2 * e] = ms, id
        if tail ~= '' then tails[#tails + 1], tails[#tails + 2] = id, tail end
        replies[k] = 1
      end
      -- The keys of the job are read first: if one of them has the wrong type, nothing has changed.
      call('HLEN', HIST)
      if #tails > 0 then call('HLEN', OUTPUT) end
      local old = keep == '0' and {} or call('ZRANGEBYSCORE', DONE, '-inf', format('(%.0f', ms - age), 'LIMIT', '0', 100)
      giveBack(ms, names, 1, unpack(gone))
      call('ZREM', BUSY, unpack(busy))
      call('ZREM', OPEN, unpack(open))
      call('HDEL', RUN, unpack(mine))
      call('HDEL', BODY, unpack(mine))
      for name, n in pairs(uses) do
        local left = redis.pcall('HINCRBY', DEFS, '#' .. name, -n)
        if type(left) == 'number' and left <= 0 then
          -- as usedMade and disembody of the library
          if redis.pcall('ZADD', MADE, 'XX', 'CH', ms, name) ~= 1 and type(redis.pcall('ZSCORE', MADE, name)) ~= 'string' then
            call('HDEL', DEFS, '@' .. name, '#' .. name)
          elseif left < 0 then
            call('HSET', DEFS, '#' .. name, '0')
          end
        end
      end
      if again then call('HDEL', LOG, unpack(mine)) end
      call('HSET', FACTS, 'g' .. ended[1][4], 's' .. ms)
      if #tails > 0 then call('HSET', OUTPUT, unpack(tails)) end
      call('HSET', HIST, unpack(hist))
      call('ZADD', DONE, unpack(done))
      redis.pcall('ZADD', ENDS, 'LT', '-' .. ms, ended[1][4])
      for trigger, n in pairs(triggers) do redis.pcall('HINCRBY', TOTALS, 'r\31succeeded\31' .. trigger .. '\31' .. ended[1][4], n) end
      for t = 1, #told do call('XADD', NEWS, 'MAXLEN', '~', '10000', '*', 'r', told[t], 's', 'succeeded') end
      local extra = keep == '0' and 0 or call('ZCARD', DONE) - keep
      if extra > #old then old = call('ZRANGE', DONE, 0, math.min(extra, 100) - 1) end
      if #old > 0 then
        call('ZREM', DONE, unpack(old))
        call('HDEL', HIST, unpack(old))
        call('HDEL', OUTPUT, unpack(old))
      end
    end
  end
  if several then
    for k = 1, (#ARGV - 3) / 4 do replies[k] = replies[k] or 0 end
    return replies
  end
  if replies[1] then return {'recorded', 'succeeded', {}} end
end
