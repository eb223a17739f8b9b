-- downgrade turns a hold's exclusive resources into shared ones without releasing them in between.
-- ARGV: 1 hold  2... names
-- Replies:
--   ok, 1 if work is left that another call should do, else 0
--   gone: the hold is not valid
--   mode, name: the hold does not have that name exclusively
-- Sending it twice returns the same reply.
local id = ARGV[1]
local hold, member = held(id)
if not hold or hold[H_SESSION] == '@' then return {'gone'} end
local place = {}
for i = H_ITEMS, #hold do place[named(hold[i])] = i end
for i = 2, #ARGV do
  local at = place[ARGV[i]]
  local mode = at and sub(hold[at], 1, 1)
  if mode ~= 'x' and mode ~= 's' then return {'mode', ARGV[i]} end
end
call('ZREM', HOLD, member)
local session, changed, members = hold[H_SESSION], {}, {}
hold[H_SESSION] = session .. '\0' .. id
for i = 2, #ARGV do
  local name = ARGV[i]
  if sub(hold[place[name]], 1, 1) == 'x' then
    hold[place[name]] = 's' .. name
    changed[#changed + 1] = name
    members[2 * #changed - 1], members[2 * #changed] = '0', '~r' .. name .. '\0x' .. id
  end
end
if #changed > 0 then
  local owners, shares = call('HMGET', OWN, unpack(changed)), {}
  call('ZADD', IDX, unpack(members))
  for i = 1, #changed do
    local n = 1
    if sub(owners[i], 1, 1) == 'u' then -- others share it already
      n = call('ZLEXCOUNT', IDX, '[~r' .. changed[i] .. '\0', '(~r' .. changed[i] .. '\1')
    end
    shares[2 * i - 1], shares[2 * i] = changed[i], format('s%d', n)
  end
  call('HSET', OWN, unpack(shares))
end
call('ZADD', HOLD, '0', concat(hold, US))
local S = space()
S.visit(changed)
S.settle()
S.reap()
S.tell()
return {'ok', S.more and 1 or 0}
