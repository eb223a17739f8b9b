-- acquire grants a bundle to a session, all or none; else queues the request or says who is in the way.
-- ARGV: 1 session  2 request id  3 info  4 wait: -1 not at all, 0 without limit, else ms  5 patience, ms  6... items
-- Replies: granted, token, since (ms) | waiting, ms to the next due entry[, <describe>] | busy, 0, <describe> | dead
-- Sent twice it changes nothing more: an id that holds or waits is told so. Sent with -1 for an id that waits, it is the
-- wait's last try: the bundle, or the reason without the wait.
local session, id, info, patience = ARGV[1], ARGV[2], ARGV[3], ARGV[5]
local items, names = {}, {}
for i = 6, #ARGV do
  items[i - 5] = ARGV[i]
  names[i - 5] = sub(ARGV[i], 2)
end

if not ends(session) then return {'dead'} end
if quiet() and call('ZCARD', Q) == 0 then
  local owners = call('HMGET', OWN, unpack(names))
  local busy = false
  for i = 1, #names do busy = busy or owners[i] end
  if not busy then return {'granted', take(id, session, info, items), ms} end
end

local S = space()
S.reap()
local held = call('HGET', HOLD, id)
if held then
  held = fields(held)
  S.tell()
  return {'granted', held[2], held[3]}
end
local wait = S.wait(id)
if wait and ARGV[4] == '-1' then
  S.drop(id)
  S.settle()
  wait = nil
end
if wait then
  -- Only settle() grants to a wait. Where its walk has not come to this one yet, nothing is in the way.
  local resource, owner = S.blocked(names, wait[2], id)
  S.tell()
  if not resource then return {'waiting', soonest()} end
  return {'waiting', soonest(), S.describe(resource, owner)}
end
local resource, owner = S.blocked(names, nil, id)
if not resource then
  local token = take(id, session, info, items)
  S.tell()
  return {'granted', token, ms}
end
local reply = 'busy'
if ARGV[4] ~= '-1' then
  reply = 'waiting'
  S.park(id, session, info, items, patience, ARGV[4] ~= '0' and format('%.0f', now + ARGV[4]) or nil)
end
S.tell()
return {reply, soonest(), S.describe(resource, owner)}
