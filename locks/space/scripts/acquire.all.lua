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
local name, tail, session = 2 * n + 2, #ARGV - n, ARGV[#ARGV - n]
if not live(session, ms) then return '' end
local taken = occupied(ARGV, name, tail - 1)
local marks, slots, granted, members = {}, {}, {}, {}
for i = 1, n do
  local after = name + tonumber(ARGV[n + 1 + i])
  local free = noneIn(taken, ARGV, name, after - 1)
  for j = name, free and after - 1 or 0 do
    taken[ARGV[j]] = true
    slots[#slots + 1] = ARGV[j]
    slots[#slots + 1] = 'x' .. ARGV[i + 1]
  end
  if free then granted[#granted + 1] = i end
  marks[i] = free and '1' or '0'
  name = after
end
if #granted == 0 then return '' end
local _, first = draw(micros, #granted)
for k = 1, #granted do
  local i, token = granted[k], format('%.0f', first + k - 1)
  members[2 * k - 1], members[2 * k] = '0', H_TEXT{SESSION = session .. '\0' .. ARGV[i + 1]; TOKEN = token; SINCE = ms; INFO_ITEMS = ARGV[tail + i]}
end
take(slots, members)
return concat(marks) .. '\31' .. ms .. '\31' .. format('%.0f', first)
