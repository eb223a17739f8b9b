-- died notes that the process of a session has died, as its parent reports: the attempts under it
-- are then closed as crashed.
-- ARGV: session
-- Replies: 1 | 0: it has no attempt
-- Suspects with an ended run are also forgotten here: a build that knows no suspects leaves them.
if #call('ZRANGEBYLEX', BUSY, '[' .. ARGV[1] .. '\0', '(' .. ARGV[1] .. '\1', 'LIMIT', '0', '1') == 0 then return {0} end
local members = call('ZRANGEBYLEX', DIED, '-', '+', 'LIMIT', '0', 1000)
for i = 1, #members do
  local id = string.match(members[i], '^[^!?][^%z]*%z(.*)$')
  if id and call('HEXISTS', RUN, id) == 0 then call('ZREM', DIED, members[i]) end
end
call('ZADD', DIED, '0', '!' .. ARGV[1])
return {1}
