-- claim starts an attempt: it looks at the run first, then takes its whole bundle and begins the attempt under the
-- hold's token, all in one step; a bundle that is not free sends the run to wait, without a worker.
-- ARGV: 1 session  2 hold id  3 run  4 n  5 patience of a wait, ms  6... for a claim without a delivery: the queues in
--       which a run that has been due longer goes first
-- Replies, each with the pushes to do (id, n, queue) last, as one list:
--   granted, token, n of fields, record..., arguments and definition, pushes
--   waiting, <describe> (eight fields), pushes
--   later, pushes: a run that was due earlier goes first; this one is to be pushed, under the next n
--   stale: not due, or another n | dead: the session has ended
-- Sent again it gives the answer once more, for as long as the attempt runs.
local session, hid, id = ARGV[1], ARGV[2], ARGV[3]
if not ends(session) then return {'dead'} end
local run = load(id)
if not run then return {'stale'} end

local function granted(list)
  return {'granted', run[TOKEN], concat(run, US), call('HGET', BODY, id), list}
end

if run[STATE] == 'running' and run[HOLDER] == hid then return granted({}) end
if run[STATE] ~= 'due' or run[N] ~= ARGV[4] then return {'stale'} end
for i = 6, #ARGV do
  local first = call('ZRANGEBYLEX', READY, '[' .. ARGV[i] .. '\0', '(' .. ARGV[i] .. '\1', 'LIMIT', 0, 1)[1]
  if first and string.match(first, '^[^%z]*%z([^%z]*)') < pad(run[SINCE]) then
    local list = {}
    due(id, run) -- under the next n: a late copy of this claim must not take what a delivery is pushed for
    pushes(list, id, run)
    return {'later', list}
  end
end

local names, items = bundle(run, R_ITEMS)
local info = '{"job":"' .. run[JOB] .. '","run":"' .. id .. '"}'
local S, list = nil, {}
local busy = run[WAITS] == '1' or not quiet() or call('ZCARD', Q) > 0
if not busy then
  local owners = call('HMGET', OWN, unpack(names))
  for i = 1, #names do busy = busy or owners[i] end
end
if busy then
  S = space()
  S.reap()
  local wid = '+' .. id
  local wait = S.wait(wid)
  local resource, owner, beaten = S.blocked(names, wait and wait[2], wid)
  if resource then
    undue(id, run)
    run[STATE], run[WAITS] = 'waiting', '1'
    save(id, run)
    S.park(wid, '@', info, items, tonumber(ARGV[5]))
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
run[TOKEN] = take(hid, session, info, items)
call('ZADD', BUSY, 0, session .. '\0' .. id)
save(id, run)
if S then
  S.settle()
  offered(S, list)
end
return granted(list)
