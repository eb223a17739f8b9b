-- stage stores an atomic list that enqueueall then records in parts. From then on, all of its
-- requests are certain to be recorded: by the sender, or, after its death, by a worker. So it first
-- raises the errors that would refuse a part. A list that is staged already stays as it is.
-- KEYS: as those of enqueueall for all of the list
-- ARGV: 1 name of the list  2 the list  3 how many fields lists may have  4 which key is lists
--       5... the name of the definition of each kind
-- Replies: staged | full
local first = tonumber(ARGV[4])
local LISTS = KEYS[first]
for _, key in ipairs{RUN, BODY, LISTS} do call('HLEN', key) end
for _, key in ipairs{OPEN, READY, PUSH, TIMER, IDS} do call('ZCARD', key) end
for k = 1, #ARGV - 4 do
  call('HLEN', KEYS[first + 4 * k - 3])
  checkBodies(ARGV[4 + k])
end
for i = first + 4 * (#ARGV - 4) + 1, #KEYS do call('HLEN', KEYS[i]) end
if not progress(LISTS, ARGV[1]) then
  if call('HLEN', LISTS) >= tonumber(ARGV[3]) then return {'full'} end
  call('HSET', LISTS, 'l:' .. ARGV[1], ARGV[2], 'n:' .. ARGV[1], ms .. ' 0')
end
return {'staged'}
