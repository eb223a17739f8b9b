-- release.all does for many holds what the fast path of release does for one.
-- ARGV: 1 n, the number of holds, then
--       n holds, each as its member in the key hold
--       n numbers of names
--       the names of each hold, one after the other
-- Reply: for each hold in order 1 if it is released, else 0; after 0, send release. Empty: none is
--       released.
-- The first write is a removal, so that a full Redis does not refuse it.
local n = tonumber(ARGV[1])
local queues = awaited(ARGV, 2 * n + 2, #ARGV)
local there = call('ZMSCORE', HOLD, unpack(ARGV, 2, n + 1))
local marks, gone, names, name = {}, {}, {}, 2 * n + 2
for i = 1, n do
  local after, goes = name + tonumber(ARGV[n + 1 + i]), there[i]
  for j = name, queues and after - 1 or 0 do
    if queues[ARGV[j]] then goes = nil end
  end
  if goes then
    gone[#gone + 1] = ARGV[i + 1]
    for j = name, after - 1 do names[#names + 1] = ARGV[j] end
  end
  marks[i] = goes and '1' or '0'
  name = after
end
if #gone == 0 then return '' end
call('ZREM', HOLD, unpack(gone))
call('HDEL', OWN, unpack(names))
return table.concat(marks)
