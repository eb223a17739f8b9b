-- died notes that the process of a session has died, as its parent reports: the attempts under it are then closed as crashed.
-- ARGV: session
-- Replies: 1 | 0: there is no attempt under it
if #call('ZRANGEBYLEX', BUSY, '[' .. ARGV[1] .. '\0', '(' .. ARGV[1] .. '\1', 'LIMIT', '0', '1') == 0 then return {0} end
call('ZADD', DIED, '0', '!' .. ARGV[1])
return {1}
