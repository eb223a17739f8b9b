-- sweep finds what has become due or needs repair, a bounded number of each kind per call.
-- ARGV: 1 entries of each kind at most  2 ms after which an unconfirmed push is listed  3 for how
--       many pushes the caller has room: at most this many runs become due by their time, and at
--       most this many pushes are listed
-- Replies: now (ms); ms to the next timer, or -1; 1 when more is left to do now, else 0; the pushes
--   to do (id, n, queue); runs under ended sessions, or without their hold (id, token, job,
--   failures); unconfirmed pushes (id, n, queue), unchanged; runs whose time may be over; runs
--   whose record cannot be read; how many of the pushes are for runs that were offered their locks,
--   they come first
local most = tonumber(ARGV[1])
local room = math.min(most, tonumber(ARGV[3]))
local S, list, dead, unconfirmed, broken = space(), {}, {}, {}, {}
S.reap()

-- found returns the record of a run that an index names. It removes an entry if its run has no
-- record any more, and leaves a run that cannot be read to refuse.
local function found(id, key, member)
  local run, text = load(id)
  if text then broken[#broken + 1] = id end
  if not run and not text then call('ZREM', key, member) end
  return run
end

-- offers that were made by scripts which know no runs
local waiting = S.findOffers(most)
offered(S, list)
local offers = #list / 3

-- A record, as far as load checks it. Behind since, nothing changes when the run becomes due.
local TIMED = R_MATCH[[(STATE=%l+) (N=%d+) (JOB (QUEUE) TRIGGER TICK CREATED) (SINCE=%d*)() TOKEN=%d+ * ATTEMPT=%d+ *
  FAILS=%d+ CRASHES=%d+ * LIMITS]]
local timers = call('ZRANGEBYSCORE', TIMER, '-inf', ms, 'LIMIT', '0', room)
local records = #timers > 0 and values(RUN, timers) or {}
local timed, ready, push, written, unread = {}, {}, {}, {}, false
for i = 1, #timers do
  local id, record = timers[i], records[i]
  if record == nil then -- the records before it are long
    unread = true
    break
  end
  local state, n, made, queue, since, rest = string.match(record or '', TIMED)
  if state and not UNTIMED[state] then -- as by due, all at once
    n = format('%d', n + 1)
    if since == '' then since = ms end
    local k = #timed
    timed[k + 1] = id
    ready[2 * k + 1], ready[2 * k + 2] = '0', queue .. '\0' .. pad(since) .. '\0' .. id
    push[2 * k + 1], push[2 * k + 2] = ms, id
    written[2 * k + 1] = id
    written[2 * k + 2] = R_TEXT{STATE = 'due'; N = n; JOB_CREATED = made; SINCE = since .. sub(record, rest)}
    k = #list
    list[k + 1], list[k + 2], list[k + 3] = id, n, queue
  else
    local run, text = load(id)
    call('ZREM', TIMER, id)
    if text then
      broken[#broken + 1] = id
      unreadable(id) -- the reply may be lost
    end
    if run and not UNTIMED[run[R_STATE]] then
      due(id, run)
      pushes(list, id, run)
    end
  end
end
if #timed > 0 then
  call('ZREM', SENT, unpack(timed)) -- a removal first, for a full Redis
  call('ZADD', READY, unpack(ready))
  call('ZADD', PUSH, unpack(push))
  call('HSET', RUN, unpack(written))
  call('ZREM', TIMER, unpack(timed)) -- last: after an error, the next sweep finds all of them
end

-- Unconfirmed pushes are only listed: the caller knows which of them it still has to push.
local unsure = call('ZRANGEBYSCORE', PUSH, '-inf', format('%.0f', now - ARGV[2]), 'LIMIT', '0', room)
for i = 1, #unsure do
  local run = found(unsure[i], PUSH, unsure[i])
  if run then pushes(unconfirmed, unsure[i], run) end
end

local function fallen(id, run)
  local k = #dead
  dead[k + 1], dead[k + 2], dead[k + 3], dead[k + 4] = id, run[R_TOKEN], run[R_JOB], run[R_FAILS]
end

-- from session to session, without reading what runs under the live ones
local from = '-'
while #dead < 4 * most do
  local member = call('ZRANGEBYLEX', BUSY, from, '+', 'LIMIT', '0', '1')[1]
  if not member then break end
  local session = string.match(member, '^([^%z]*)')
  if not ends(session) then
    local members = call('ZRANGEBYLEX', BUSY, '[' .. session .. '\0', '(' .. session .. '\1', 'LIMIT', '0', most)
    for i = 1, #members do
      local id = string.match(members[i], '([^%z]*)$')
      local run = found(id, BUSY, members[i])
      if run then fallen(id, run) end
    end
  end
  from = '[' .. session .. '\1'
end

-- some runs under live sessions, in turns: a hold may end before its work does
local after = call('HGET', LEDGER, 'looked')
local some = call('ZRANGEBYLEX', BUSY, after and '(' .. after or '-', '+', 'LIMIT', '0', most)
for i = 1, #some do
  local session, id = string.match(some[i], '^([^%z]*)%z(.*)$')
  local run = found(id, BUSY, some[i])
  if run and ends(session) and not valid(run[R_HOLDER]) then fallen(id, run) end
end
if #some == most then
  call('HSET', LEDGER, 'looked', some[most])
elseif after then
  call('HDEL', LEDGER, 'looked')
end

local late = call('ZRANGEBYSCORE', LATE, '-inf', ms, 'LIMIT', '0', most)

-- workers that were asked to drain and have ended; requests about a run go with its attempt
local asked = call('ZRANGEBYLEX', ASK, '-', '+', 'LIMIT', '0', most)
for i = 1, #asked do
  local session = string.match(asked[i], '^([^%z]*)%z$')
  if session and not ends(session) then call('ZREM', ASK, asked[i]) end
end

-- deaths with attempts that were closed in another way
local marks = call('ZRANGEBYLEX', DIED, '[!', '("', 'LIMIT', '0', most)
for i = 1, #marks do
  local session = sub(marks[i], 2)
  if not ends(session) then buried(session) end
end

forget(500)

local wait
for _, key in ipairs({TIMER, LATE}) do
  local first = call('ZRANGEBYSCORE', key, '(' .. ms, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
  local left = first[2] and tonumber(first[2]) - now
  if left and (not wait or left < wait) then wait = left end
end
local more = S.more or unread or waiting == most or #timers == room or #unsure == room or #late == most
return {ms, format('%.0f', wait or -1), more and 1 or 0, list, dead, unconfirmed, late, broken, offers}
