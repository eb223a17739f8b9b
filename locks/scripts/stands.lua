-- stands tells whether a hold stands, what it holds, and for how long its session's lease still goes: for who joins the
-- hold of another process.
-- ARGV: 1 hold
-- Replies: stands, now (ms), token, since (ms), ms of the lease left, items joined by \31 | gone
--   unsure: it does not stand, but what was lost is still being said again
local hold = held(ARGV[1])
local ending = hold and hold[1] ~= '@' and ends(hold[1])
if not ending then
  local id, grace = unpack(call('HMGET', META, 'id', 'grace'))
  if not id or tonumber(grace or 0) > now then return {'unsure'} end
  return {'gone'}
end
local items = {}
for i = H_ITEMS, #hold do items[#items + 1] = hold[i] end
return {'stands', ms, hold[2], hold[3], format('%.0f', ending - now), concat(items, US)}
