-- renew extends a session. One command does, however many holds belong to the session.
-- ARGV: 1 session  2 lease, ms  3 the ID of the space that the session knows  4 its epoch
--       5 and 6 the length of a grace period, as in greet, since a new server does not always show
--         by a new connection
--       7 how much the space keeps of what has ended if it has no bounds, as for retain; or none
-- Replies:
--   ok, now (ms), revision, holds and waits of the session, ms to the next due entry, longest lease
--     of a session, the format that the space is written in; then, if the server hides its identity
--     although the space knows one: hidden, the error of INFO
--   dead: the session has ended
--   assert, id, epoch: the space has another ID ('' for none) or epoch, and the session must first
--     assert what it holds (assert.lua)
-- The first write is a removal, of nothing, so that a full Redis does not refuse it.
local session = ARGV[1]
local found, failed = notice(ARGV[5], ARGV[6])
local known = call('HMGET', META, 'id', 'epoch', 'at:' .. session, 'rev:' .. session)
if known[1] ~= ARGV[3] or known[2] ~= ARGV[4] then return {'assert', known[1] or '', known[2] or ''} end
if known[3] ~= ARGV[4] .. ' ' .. ARGV[2] or not ends(session) then return {'dead'} end
call('ZREM', EXP, '')
call('ZADD', EXP, 'XX', now + ARGV[2], 's' .. session)
if ARGV[7] then retain(ARGV[7]) end
if not quiet() then
  local S = space()
  S.reap()
  S.tell()
  known[4] = call('HGET', META, 'rev:' .. session)
end
local from, to = '[' .. session .. '\0', '(' .. session .. '\1'
local count = call('ZLEXCOUNT', HOLD, from, to) + call('ZLEXCOUNT', IDX, from, to)
local longest = call('ZREVRANGEBYLEX', IDX, '(~m', '[~l', 'LIMIT', '0', '1')[1]
local reply = {'ok', ms, known[4] or '0', count, soonest(), longest and tonumber(sub(longest, 3, 11)) or 0,
  tonumber(WRITTEN or '') == FORMAT and WRITTEN or raise(session)}
if found == 'hidden' then reply[8], reply[9] = found, failed end
return reply
