-- open begins a session. An id that the space knows is refused: ids are never used twice. The first session of an empty
-- space makes it.
-- ARGV: 1 session  2 lease, ms  3 card  4 an id for the space, should there be none  5 the server's run id, or ''
--       6 ms for which a space that is made now grants nothing
-- Replies: open, now (ms), the space's id, epoch, ms of its grace time left | taken
local session = ARGV[1]
if call('ZSCORE', EXP, 's' .. session) or call('HEXISTS', META, 'card:' .. session) == 1 then return {'taken'} end
if call('HEXISTS', META, 'id') == 0 then
  call('HSET', META, 'id', ARGV[4], 'epoch', '1', 'server', ARGV[5])
  if ARGV[6] ~= '0' then
    call('HSET', META, 'grace', format('%.0f', now + ARGV[6]))
    call('ZADD', EXP, 0, 'e')
  end
end
local id, epoch, grace = unpack(call('HMGET', META, 'id', 'epoch', 'grace'))
call('ZADD', EXP, now + ARGV[2], 's' .. session)
call('HSET', META, 'card:' .. session, ARGV[3], 'at:' .. session, epoch)
return {'open', ms, id, epoch, grace and format('%.0f', math.max(0, grace - now)) or '0'}
