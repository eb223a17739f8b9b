-- claim starts an attempt: it looks at the run first, then takes its whole bundle and begins the attempt under the
-- hold's token, all in one step; a bundle that is not free sends the run to wait, without a worker.
-- ARGV: 1 session  2 hold id  3 run  4 n  5 patience of a wait, ms  6... for a claim without a delivery: the queues in
--       which a run that has been due longer goes first
-- Replies, each with the pushes to do (id, n, queue) last, as one list:
--   granted, token, n of fields, record..., arguments and definition, pushes
--   waiting, <describe> (eight fields), pushes
--   behind, pushes: earlier ticks of its job go first, it waits behind them
--   later, pushes: a run that was due earlier goes first; this one is to be pushed, under the next n; no pushes during a
--     grace time, in which nothing is claimed
--   stale: not due, or another n | dead: the session has ended
-- Sent again it gives the answer once more, for as long as the attempt runs.
local session, hid, id = ARGV[1], ARGV[2], ARGV[3]
if not ends(session) then return {'dead'} end
local run = load(id)
if not run then return {'stale'} end

local function info(id, run) return '{"job":"' .. run[JOB] .. '","run":"' .. id .. '"}' end

local function granted(list)
  return {'granted', run[TOKEN], concat(run, US), call('HGET', BODY, id), list}
end

if run[STATE] == 'running' and run[HOLDER] == hid then return granted({}) end
if run[STATE] ~= 'due' or run[N] ~= ARGV[4] then return {'stale'} end
if not quiet() and space().grace() then -- what was lost is being said again: the sweep pushes it when that is over
  due(id, run)
  return {'later', {}}
end
for i = 6, #ARGV do
  local first = call('ZRANGEBYLEX', READY, '[' .. ARGV[i] .. '\0', '(' .. ARGV[i] .. '\1', 'LIMIT', 0, 1)[1]
  if first and string.match(first, '^[^%z]*%z([^%z]*)') < pad(run[SINCE]) then
    local list = {}
    due(id, run) -- under the next n: a late copy of this claim must not take what a delivery is pushed for
    pushes(list, id, run)
    return {'later', list}
  end
end

local S, list = nil, {}

-- wait sends a run to wait under the ticket that it has, or the next one, and returns what for.
local function wait(id, run)
  local names, items = bundle(run, R_ITEMS)
  undue(id, run)
  run[STATE], run[WAITS] = 'waiting', '1'
  save(id, run)
  S.park('+' .. id, '@', info(id, run), items, tonumber(ARGV[5]))
  return names
end

-- Ticks of one job begin in their order: those before this one that are due, but whose deliveries take longer, go to
-- wait in front of it.
if run[TICK] ~= '' and run[WAITS] ~= '1' then
  local before, first = '(' .. run[JOB] .. '\0' .. pad(run[TICK]), '[' .. run[JOB] .. '\0' .. pad(1)
  local earlier = call('ZREVRANGEBYLEX', OPEN, before, first, 'LIMIT', 0, 128) -- still earlier ones were due long ago
  for i = #earlier, 1, -1 do
    local other = string.match(earlier[i], '([^%z]*)$')
    local tick = load(other)
    if tick[STATE] == 'due' and tick[WAITS] ~= '1' then
      S = S or space()
      S.visit(wait(other, tick))
    end
  end
  if S then
    S.visit(wait(id, run))
    S.reap()
    offered(S, list)
    return {'behind', list}
  end
end

local names, items = bundle(run, R_ITEMS)
local busy = run[WAITS] == '1' or not quiet() or call('ZCARD', Q) > 0
if not busy then -- as it is for almost every run: what it wants is there for the taking
  local owners = call('HMGET', OWN, unpack(names))
  for i = 1, #names do busy = busy or owners[i] end
end
if busy then
  S = space()
  S.reap()
  local wid = '+' .. id
  local place = S.wait(wid)
  local resource, owner, beaten = S.blocked(items, place and place[2], wid)
  if resource then
    wait(id, run)
    offered(S, list)
    local reply = {'waiting', S.describe(resource, owner)}
    reply[10] = list
    return reply
  end
  for i = 1, #beaten do S.lapse(beaten[i]) end
  if run[WAITS] == '1' then S.drop(wid) end
end

undue(id, run)
run[STATE], run[HOLDER], run[SESSION], run[CLOSED], run[WAITS] = 'running', hid, session, '', ''
run[ATTEMPT], run[STARTED] = format('%d', run[ATTEMPT] + 1), ms
if run[FIRST] == '' then run[FIRST] = ms end
run[TOKEN] = take(hid, session, info(id, run), items)
call('ZADD', BUSY, 0, session .. '\0' .. id)
save(id, run)
if S then
  S.settle()
  offered(S, list)
end
return granted(list)
