-- renew moves a session's end on. One command, however many holds stand on the session.
-- ARGV: 1 session  2 lease, ms
-- Replies: ok, now (ms), revision, holds and waits of the session, ms to the next due entry | dead
-- The first write is a removal, of nothing, so that a full Redis does not refuse it.
local session = ARGV[1]
if not ends(session) then return {'dead'} end
call('ZREM', EXP, '')
call('ZADD', EXP, 'XX', now + ARGV[2], 's' .. session)
if not quiet() then
  local S = space()
  S.reap()
  S.tell()
end
local rev = call('HGET', META, 'rev:' .. session) or '0'
local count = call('ZLEXCOUNT', IDX, '[' .. session .. '\0', '(' .. session .. '\1')
return {'ok', ms, rev, count, soonest()}
