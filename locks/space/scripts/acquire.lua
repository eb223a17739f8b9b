-- acquire grants a bundle to a session, all or none. Otherwise it queues the request or reports
-- what is in the way.
-- ARGV: 1 session  2 request ID  3 how to ask, fields joined by \31:
--         wait (-1 not at all, 0 without limit, else ms)
--         patience (ms)
--         the holds that the request is nested in (joined by spaces)
--         limits (as in a hold's record)
--       4 info  5 items, joined by \31  6... names, for the fast path: of an exclusive bundle that
--         is not nested and has no limits, else none
-- Replies:
--   granted, token, since (ms)
--   waiting, ms to the next due entry[, <describe>]
--   busy, 0, <describe>
--   dead: the session has ended
--   lost, hold: a hold that the request is nested in is no longer valid
--   grace, ms until something is granted again
--   mode, name, 1 if it is declared as permits, else 0: never grantable as it is
--   limit, name, permits declared: never grantable as it is
--   deadlock, resource, hold, info, resource, hold, info...: see S.cycle; then cut, if its search
--     was cut short
-- Sending it twice changes nothing more: an ID that holds or waits gets that reply again. With -1
-- for an ID that waits, it is the wait's last try: the reply is the bundle, or the reason without
-- the wait.
local session, id, info, items, nested = ARGV[1], ARGV[2], ARGV[4], fields(ARGV[5]), nil
local longest, patience, under, limits = unpack(fields(ARGV[3]))
if not ends(session) then return {'dead'} end
local S = space()
S.reap()
local hold = held(id)
if hold then
  S.tell()
  return {'granted', hold[H_TOKEN], hold[H_SINCE]}
end
for ancestor in string.gmatch(under, '[^ ]+') do
  if not valid(ancestor) then
    S.tell()
    return {'lost', ancestor}
  end
  nested = nested or {}
  nested[ancestor] = true
end

local wait = S.wait(id)
if wait and longest == '-1' then
  S.drop(id, 't')
  S.settle()
  wait = nil
end
if wait then
  -- Only settle() grants to a wait. If its walk has not reached this one yet, nothing is in the
  -- way.
  local resource, owner = S.blocked(items, wait[W_TICKET], wait, nested)
  S.tell()
  if not resource then return {'waiting', soonest()} end
  return {'waiting', soonest(), S.describe(resource, owner)}
end
if S.grace() then -- also for permits that are not declared again yet
  S.tell()
  return {'grace', S.grace()}
end
local why, name, n = S.unfit(items)
if why then
  S.tell()
  return {why, name, n}
end
local resource, owner = S.blocked(items, nil, nil, nested)
if not resource then
  local token = S.seize(id, session, info, items, limits, under)
  S.tell()
  return {'granted', token, ms}
end
local reply = 'busy'
if longest ~= '-1' then
  local path = nested and S.cycle(items, under)
  if path then
    reply = {'deadlock'}
    for i = 1, #path, 2 do
      local k = #reply
      local blocker = held(path[i + 1])
      reply[k + 1], reply[k + 2], reply[k + 3] = path[i], path[i + 1], blocker[H_INFO]
    end
    if S.cut then reply[#reply + 1] = 'cut' end
    S.tell()
    return reply
  end
  reply = 'waiting'
  local deadline = longest ~= '0' and format('%.0f', now + longest) or nil
  S.park(id, session, info, items, patience, deadline, limits, under)
end
reply = {reply, soonest(), S.describe(resource, owner)}
S.settle()
S.tell()
return reply
