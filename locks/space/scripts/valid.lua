-- valid returns whether a hold is valid, its bundle, and what is left of its session's lease, for
-- a process that joins another one's hold.
-- ARGV: 1 hold
-- Replies:
--   valid, now (ms), token, since (ms), ms of the lease left, items joined by \31
--   gone
--   unsure: the hold is not valid, but sessions are still re-asserting lost state
local hold = held(ARGV[1])
local ending = hold and hold[H_SESSION] ~= '@' and ends(hold[H_SESSION])
if not ending then
  local id, grace = unpack(call('HMGET', META, 'id', 'grace'))
  if not id or tonumber(grace or 0) > now then return {'unsure'} end
  return {'gone'}
end
local items = {}
for i = H_ITEMS, #hold do items[#items + 1] = hold[i] end
return {'valid', ms, hold[H_TOKEN], hold[H_SINCE], format('%.0f', ending - now), concat(items, US)}
