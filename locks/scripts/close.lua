-- close ends a session and gives on all it has, some hundred holds a call.
-- ARGV: 1 session
-- Replies: ended | more (call again)
local session = ARGV[1]
if not call('ZSCORE', EXP, 's' .. session) then return {'ended'} end
call('ZREM', EXP, '')
call('ZADD', EXP, 'XX', '0', 's' .. session)
local S = space()
S.reap()
S.tell()
if call('ZSCORE', EXP, 's' .. session) then return {'more'} end
return {'ended'}
