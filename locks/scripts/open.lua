-- open begins a session. An id that the space knows is refused: ids are never used twice.
-- ARGV: 1 session  2 lease, ms  3 card
-- Replies: open, now (ms) | taken
local session = ARGV[1]
if call('ZSCORE', EXP, 's' .. session) or call('HEXISTS', META, 'card:' .. session) == 1 then return {'taken'} end
call('ZADD', EXP, now + ARGV[2], 's' .. session)
call('HSET', META, 'card:' .. session, ARGV[3])
return {'open', ms}
