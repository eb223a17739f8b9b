-- release ends what a request has: its hold, which passes to the next waiter in the same step, or
-- its wait.
-- ARGV: 1 request ID  2 its hold as its member in the key hold  3... the names of its bundle. The
--         fast path needs 2 and 3, for an exclusive bundle that is not nested and has no limits;
--         without them the ID may have anything.
-- Replies:
--   released
--   cancelled
--   gone: it has nothing, never had, or no longer has
--   Each is followed by 1 if due work is left that another call should do, else 0. While the
--   session is alive, gone also has the space's ID, its epoch and the revision of the session's
--   last message. Unless these show another epoch or a message about the hold, an earlier copy has
--   ended it.
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
local known = call('HMGET', META, 'id', 'epoch', 'rev:' .. session)
return {reply, S.more and 1 or 0, known[1] or '', known[2] or '', known[3] or '0'}
