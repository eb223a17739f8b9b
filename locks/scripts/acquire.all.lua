-- acquire.all does for many requests of one session what the fast path of acquire does for one. Each is on its own: it is
-- granted its bundle, or nothing is changed for it.
-- ARGV: 1 n, how many requests  then n request ids  n times how many names  the names of each, one after the other
--       the session  n times info and items, joined by \31
-- Reply: of each request in its order 1 when it is granted, else 0, which says nothing: ask with acquire  \31  since (ms)
--       \31  the token of the first that is granted; each further one has the next token. Empty: none is granted.
-- Sent twice it changes nothing more: what an id holds is taken, also for the same id.
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
    members[#members + 1] = session .. '\0' .. ARGV[i + 1] .. '\31' .. format('%.0f', next) .. '\31' .. ms .. '\31\31\31' .. ARGV[tail + i]
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
