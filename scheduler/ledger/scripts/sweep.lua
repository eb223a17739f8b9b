-- sweep finds what has come due or has gone astray, a bounded number of each a call.
-- ARGV: 1 entries of each kind at most  2 ms after which an unconfirmed push is repeated  3 ms after which a confirmed
--       delivery is looked up
-- Replies: now (ms); ms to the next timer, or -1; 1 when more is left to do now, else 0; the pushes to do (id, n,
-- queue); runs under ended sessions (id, token, job); deliveries to look up (id, n, queue); runs whose time may be over
local most = tonumber(ARGV[1])
local S, list, dead, look = space(), {}, {}, {}
S.reap()

-- offers that were made by scripts which know no runs
local waiting = call('ZRANGEBYLEX', IDX, '[@\0o\0', '(@\0o\1', 'LIMIT', 0, most)
for i = 1, #waiting do S.offers[#S.offers + 1] = string.match(waiting[i], '^[^%z]*%z.%z(.*)$') end
offered(S, list)

local timers = call('ZRANGEBYSCORE', TIMER, '-inf', ms, 'LIMIT', 0, most)
for i = 1, #timers do
  local id = timers[i]
  local run = load(id)
  call('ZREM', TIMER, id)
  if run and (run[STATE] == 'scheduled' or run[STATE] == 'retrying') then
    due(id, run)
    pushes(list, id, run)
  end
end

local unsure = call('ZRANGEBYSCORE', PUSH, '-inf', format('%.0f', now - ARGV[2]), 'LIMIT', 0, most)
for i = 1, #unsure do
  local run = load(unsure[i])
  due(unsure[i], run)
  pushes(list, unsure[i], run)
end

-- from session to session, without looking at what runs under the live ones
local from = '-'
while #dead < 3 * most do
  local member = call('ZRANGEBYLEX', BUSY, from, '+', 'LIMIT', 0, 1)[1]
  if not member then break end
  local session = string.match(member, '^([^%z]*)')
  if not ends(session) then
    local members = call('ZRANGEBYLEX', BUSY, '[' .. session .. '\0', '(' .. session .. '\1', 'LIMIT', 0, most)
    for i = 1, #members do
      local id = string.match(members[i], '([^%z]*)$')
      local run = load(id)
      local k = #dead
      dead[k + 1], dead[k + 2], dead[k + 3] = id, run[TOKEN], run[JOB]
    end
  end
  from = '[' .. session .. '\1'
end

local known = call('ZRANGEBYSCORE', SENT, '-inf', format('%.0f', now - ARGV[3]), 'LIMIT', 0, most)
for i = 1, #known do pushes(look, known[i], load(known[i])) end

local late = call('ZRANGEBYSCORE', LATE, '-inf', ms, 'LIMIT', 0, most)

-- workers that were asked to drain and have ended; what was asked about a run goes with its attempt
local asked = call('ZRANGEBYLEX', ASK, '-', '+', 'LIMIT', 0, most)
for i = 1, #asked do
  local session = string.match(asked[i], '^([^%z]*)%z$')
  if session and not ends(session) then call('ZREM', ASK, asked[i]) end
end

local wait
for _, key in ipairs({TIMER, LATE}) do
  local first = call('ZRANGEBYSCORE', key, '(' .. ms, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local left = first[2] and tonumber(first[2]) - now
  if left and (not wait or left < wait) then wait = left end
end
local more = S.more or #waiting == most or #timers == most or #unsure == most or #late == most
return {ms, format('%.0f', wait or -1), more and 1 or 0, list, dead, look, late}
