-- acquire.all does for many requests of one session what the fast path of acquire does for one.
-- Each request is independent: it is granted its bundle, or nothing changes for it.
-- ARGV: 1 n, the number of requests, then
--       n request IDs
--       n numbers of names
--       the names of each request, one after the other
--       the session
--       n times info and items, joined by \31
-- Reply: three fields joined by \31, or empty if none is granted:
--       for each request in order 1 if it is granted, else 0; after 0, ask with acquire
--       since (ms)
--       the token of the first granted request; each further one has the next token
-- Sending it twice changes nothing more: the resources of an ID's hold are taken, even for the same
-- ID.
local n = tonumber(ARGV[1])
local session = ARGV[#ARGV - n]
if call('ZCOUNT', EXP, '-inf', ms) > 0 or call('HEXISTS', META, 'card:' .. session) == 0 then return '' end
local first, last = us, call('GET', SEQ)
if last and tonumber(last) >= first then first = last + 1 end

local name, tail, next = 2 * n + 2, #ARGV - n, first
local owners = call('HMGET', OWN, unpack(ARGV, name, tail - 1))
local queues = awaited(ARGV, name, tail - 1) or {}
local marks, slots, members, taken = {}, {}, {}, {}
for i = 1, n do
  local names, free = tonumber(ARGV[n + 1 + i]), true
  for j = name, name + names - 1 do
    if owners[j - 2 * n - 1] or taken[ARGV[j]] or queues[ARGV[j]] then free = false end
  end
  if free then
    for j = name, name + names - 1 do
      taken[ARGV[j]] = true
      slots[#slots + 1] = ARGV[j]
      slots[#slots + 1] = 'x' .. ARGV[i + 1]
    end
    members[#members + 1] = 0
    members[#members + 1] = H_TEXT{SESSION = session .. '\0' .. ARGV[i + 1]; TOKEN = format('%.0f', next); SINCE = ms; INFO_ITEMS = ARGV[tail + i]}
    next = next + 1
  end
  marks[i] = free and '1' or '0'
  name = name + names
end
if next == first then return '' end
call('HSET', OWN, unpack(slots))
call('ZADD', HOLD, unpack(members))
call('SET', SEQ, format('%.0f', next - 1))
return table.concat(marks) .. '\31' .. ms .. '\31' .. format('%.0f', first)
