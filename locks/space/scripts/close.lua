-- close ends a session and passes on everything it has, a part per call.
-- ARGV: 1 session  2 crashed: its process has died, and its holds rest for their crash delay;
--         '' it is closed in order
-- Replies: ended | more (call again): more of the session, or of what its end makes grantable
-- A session that was closed in order ends at 0, one that was ended after a crash at 1, whatever a
-- later call says.
local session, crashed = ARGV[1], ARGV[2] == 'crashed'
local at = call('ZSCORE', EXP, 's' .. session)
if not at and quiet() then return {'ended'} end
call('ZREM', EXP, '')
at = at and tonumber(at)
if at and at ~= 0 and at ~= 1 then call('ZADD', EXP, 'XX', crashed and '1' or '0', 's' .. session) end
local S = space()
S.reap()
S.tell()
if S.more or call('ZSCORE', EXP, 's' .. session) then return {'more'} end
return {'ended'}
