-- release ends what a request has: its hold, which passes to the next waiter in the same step, or its wait.
-- ARGV: 1 request id  2 its session  3... the names of its bundle; without 2 and 3 it may be anything the id has
-- Replies: released | cancelled | gone (it has nothing: never did, or no longer), each followed by 1 when due work is
-- left that another call should do, else 0
-- The first write is a removal, so that a full Redis does not refuse it; on the fast path it is the check, too.
local id = ARGV[1]
if ARGV[2] and call('ZCARD', Q) == 0 and call('HDEL', HOLD, id) == 1 then
  call('ZREM', IDX, ARGV[2] .. '\0h\0' .. id)
  call('HDEL', OWN, unpack(ARGV, 3))
  return {'released', 0}
end
local S = space()
local reply = 'gone'
if S.free(id) then
  reply = 'released'
elseif S.drop(id) then
  reply = 'cancelled'
end
S.settle()
S.reap()
S.tell()
return {reply, S.more and 1 or 0}
