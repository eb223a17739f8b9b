-- release.all does for many holds what the fast path of release does for one.
-- ARGV: 1 n, the number of holds, then
--       n holds, each as its member in the key hold
--       n numbers of names
--       the names of each hold, one after the other
-- Reply: for each hold in order 1 if it is released, else 0; after 0, send release. Empty: none is
--       released.
local n = tonumber(ARGV[1])
local queues = awaited(ARGV, 2 * n + 2, #ARGV)
local there = asGranted(ARGV, 2, n + 1)
local marks, gone, names, name = {}, {}, {}, 2 * n + 2
local seen = {} -- members; one that is named twice has one end
for i = 1, n do
  local after = name + tonumber(ARGV[n + 1 + i])
  local goes = there[i] and noneIn(queues, ARGV, name, after - 1)
  if goes and not seen[ARGV[i + 1]] then
    seen[ARGV[i + 1]] = true
    gone[#gone + 1] = ARGV[i + 1]
    for j = name, after - 1 do names[#names + 1] = ARGV[j] end
  end
  marks[i] = goes and '1' or '0'
  name = after
end
if #gone == 0 then return '' end
giveBack(nil, names, 1, unpack(gone))
return concat(marks)
