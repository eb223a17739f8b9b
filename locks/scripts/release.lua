-- release ends what a request has: its hold, which passes to the next waiter in the same step, or its wait.
-- ARGV: 1 request id  2 its hold as it stands in hold  3... the names of its bundle. For the fast path: of an exclusive
--       bundle that is not nested and has no limits; without 2 and 3 it may be anything the id has
-- Replies: released | cancelled | gone (it has nothing: never did, or no longer), each followed by 1 when due work is
-- left that another call should do, else 0; and gone, while the session lives, by the space's id, its epoch and the
-- revision of the session's last news: without another epoch or news of that, an earlier copy of this has ended it
-- The first write is a removal, so that a full Redis does not refuse it.
local id = ARGV[1]
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
local session = reply == 'gone' and string.match(id, '^(.*)%.[^.]*$')
if not session or not ends(session) then return {reply, S.more and 1 or 0} end
local place, epoch, revision = unpack(call('HMGET', META, 'id', 'epoch', 'rev:' .. session))
return {reply, S.more and 1 or 0, place or '', epoch or '', revision or '0'}
