-- pass passes on what an attempt has printed, as long as a client follows its run: see follow.
-- LIVE, the last key, keeps the last 32 entries. It is never made here: without a client, a script
-- that arrives late leaves nothing.
-- ARGV: 1 token  2 number of the attempt  3 1: the entries begin with the tail that its worker has
--       kept, 0: they continue  4... from, up to, 1 at the end of the output, else 0, text, of each
--       entry
-- Replies: 1 | 0: no client follows any more, or a later attempt passes its output on; nothing was
--   written | 2: a client needs the output from the tail on; nothing was written
local LIVE = KEYS[#KEYS]
local kept = call('HMGET', LIVE, 'until', 'token', 'n')
if not kept[1] or tonumber(kept[1]) < now then
  call('DEL', LIVE)
  return {0}
end
if kept[2] and tonumber(kept[2]) > tonumber(ARGV[1]) then return {0} end
if ARGV[3] == '0' and kept[2] ~= ARGV[1] then return {2} end
-- The numbers continue from the time: what was passed on under an earlier key has lower ones.
local n = tonumber(kept[3] or ms)
local set = {'token', ARGV[1]}
if ARGV[3] == '1' then set[3], set[4] = 'first', format('%.0f', n + 1) end
for i = 4, #ARGV, 4 do
  n = n + 1
  local k = #set
  set[k + 1] = 'e' .. n % 32
  set[k + 2] = concat({format('%.0f', n), ARGV[2], ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]}, US)
end
set[#set + 1], set[#set + 2] = 'n', format('%.0f', n)
call('HSET', LIVE, unpack(set))
return {1}
