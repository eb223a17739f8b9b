-- greet tells the space which server a client has just connected to. When it is another one than the space knows, some
-- of the last writes may be missing: a grace time begins, in which nothing is granted and every session has to say what
-- it holds before it is renewed. An empty space stays empty.
-- ARGV: 1 the server's run id  2 ms of the grace time
-- Replies: empty | known | changed, epoch
local id, server = unpack(call('HMGET', META, 'id', 'server'))
if not id then return {'empty'} end
if server == ARGV[1] then return {'known'} end
local upto = format('%.0f', now + ARGV[2])
local epoch = call('HINCRBY', META, 'epoch', 1)
call('HSET', META, 'server', ARGV[1], 'grace', upto)
call('ZADD', EXP, 0, 'e')
-- The last server's clock may have been another one: no lease that it gave ends later than the grace time.
local members = call('ZRANGE', EXP, 0, -1)
for i = 1, #members do
  if sub(members[i], 1, 1) == 's' then call('ZADD', EXP, 'XX', upto, members[i]) end
end
return {'changed', epoch}
