-- assert has a session say what it holds, in pages, after the space has lost some or all of its writes.
-- ARGV: 1 session  2 lease, ms  3 card  4 an id for the space, should it be empty  5 the server's run id, or ''
--       6 ms of the grace time that an empty space begins with  7 the highest token that the session has seen
--       8 1: this is the last page, else 0  9... per hold: its member in the key hold, as it was granted
-- Replies: ok, now (ms), the space's id, epoch, the holds that cannot stand: another one with a higher token does
--   late: the grace time is over | dead: it ended, or was ended, before
-- Of two holds on one resource the one with the higher token stands. Holds of the session that it does not assert are
-- strays: it releases them itself, as always.
local session = ARGV[1]
if call('HEXISTS', META, 'id') == 0 then
  call('HSET', META, 'id', ARGV[4], 'epoch', '1', 'server', ARGV[5], 'grace', format('%.0f', now + ARGV[6]))
  call('ZADD', EXP, 0, 'e')
end
local S = space()
if not S.grace() then return {'late'} end
local id, epoch, at = unpack(call('HMGET', META, 'id', 'epoch', 'at:' .. session))
local last = call('GET', SEQ)
if not last or tonumber(last) < tonumber(ARGV[7]) then call('SET', SEQ, ARGV[7]) end

-- It stands at least until the grace time is over, also when the last server's clock said otherwise.
call('ZADD', EXP, format('%.0f', now + math.max(tonumber(ARGV[2]), S.grace())), 's' .. session)
call('HSET', META, 'card:' .. session, ARGV[3])

local refused = {}
for i = 9, #ARGV do
  local record = fields(ARGV[i])
  local hid = string.match(record[1], '^[^%z]*%z(.*)$')
  local known = held(hid)
  if not known then
    local _, items = bundle(record, H_ITEMS)
    local stronger = false
    local rivals = {}
    for j = 1, #items do -- who is in the way, and is he weaker?
      local resource, owner = S.blocked({items[j]}, nil, nil, {}, true)
      if resource then
        local rival = sub(owner, 1, 1) == 'x' and held(sub(owner, 2))
        if rival and tonumber(rival[2]) >= tonumber(record[2]) then stronger = true end
        rivals[#rivals + 1] = owner
      end
    end
    if stronger then
      refused[#refused + 1] = hid
    else
      for j = 1, #rivals do
        local kind, rival = sub(rivals[j], 1, 1), sub(rivals[j], 2)
        if kind == 'x' then S.free(rival, false, true) elseif kind == 'o' then S.lapse(rival) end
      end
      for j = 1, #items do -- permits are declared anew by who knows their number; until then he has what he says
        local name, n = named(items[j])
        if sub(items[j], 1, 1) == 'p' and not call('HGET', OWN, name) then
          call('HSET', OWN, name, format('p0:%d:0', n))
        end
      end
      occupy(items, 'x' .. hid)
      call('ZADD', HOLD, 0, ARGV[i])
      local most = limit(record[4])
      if most > 0 then call('ZADD', EXP, format('%.0f', now + most), 'm' .. hid) end
    end
  end
end
if ARGV[8] == '1' then call('HSET', META, 'at:' .. session, epoch) end
S.reap()
S.tell()
return {'ok', ms, id, epoch, unpack(refused)}
