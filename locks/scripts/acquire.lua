-- acquire grants a bundle to a session, all or none; else queues the request or says who is in the way.
-- ARGV: 1 session  2 request id  3 wait: -1 not at all, 0 without limit, else ms  4 patience, ms  5 barge: 1 or ''
--       6 the holds that the request is nested in, joined by blanks  7 limits, as in a hold's record  8 info
--       9 items, joined by \31  10... names, for the fast path: of an exclusive bundle without 6 and 7, else none
-- Replies: granted, token, since (ms) | waiting, ms to the next due entry[, <describe>] | busy, 0, <describe> | dead
--   lost, hold: a hold that the request is nested in does not stand | grace, ms until something is granted again
--   mode, name, 1 when it is declared as permits, else 0 | limit, name, permits there are: never grantable as it is
--   deadlock, resource, hold, info, resource, hold, info...: see S.cycle
-- Sent twice it changes nothing more: an id that holds or waits is told so. Sent with -1 for an id that waits, it is the
-- wait's last try: the bundle, or the reason without the wait.
local session, id, patience, under = ARGV[1], ARGV[2], ARGV[4], ARGV[6]
local items, nested = fields(ARGV[9]), nil
if not ends(session) then return {'dead'} end
local S = space()
S.reap()
local hold = held(id)
if hold then
  S.tell()
  return {'granted', hold[2], hold[3]}
end
for ancestor in string.gmatch(under, '[^ ]+') do
  if not stands(ancestor) then
    S.tell()
    return {'lost', ancestor}
  end
  nested = nested or {}
  nested[ancestor] = true
end

local wait = S.wait(id)
if wait and ARGV[3] == '-1' then
  S.drop(id)
  S.settle()
  wait = nil
end
if wait then
  -- Only settle() grants to a wait. Where its walk has not come to this one yet, nothing is in the way.
  local resource, owner = S.blocked(items, wait[2], nil, nested)
  S.tell()
  if not resource then return {'waiting', soonest()} end
  return {'waiting', soonest(), S.describe(resource, owner)}
end
local why, name, n = S.unfit(items)
if why then
  S.tell()
  return {why, name, n}
end
if S.grace() then
  S.tell()
  return {'grace', S.grace()}
end
local resource, owner = S.blocked(items, nil, nil, nested, ARGV[5] == '1')
if not resource then
  local token = S.seize(id, session, ARGV[8], items, ARGV[7], under)
  S.tell()
  return {'granted', token, ms}
end
local reply = 'busy'
if ARGV[3] ~= '-1' then
  local path = nested and S.cycle(items, under)
  if path then
    reply = {'deadlock'}
    for i = 1, #path, 2 do
      local k = #reply
      local blocker = held(path[i + 1])
      reply[k + 1], reply[k + 2], reply[k + 3] = path[i], path[i + 1], blocker[6]
    end
    S.tell()
    return reply
  end
  reply = 'waiting'
  local deadline = ARGV[3] ~= '0' and format('%.0f', now + ARGV[3]) or nil
  S.park(id, session, ARGV[8], items, patience, deadline, ARGV[7], under)
end
S.tell()
return {reply, soonest(), S.describe(resource, owner)}
