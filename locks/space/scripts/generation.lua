-- generation returns which space this is, in which epoch, and whether a session has asserted what
-- it holds in that epoch.
-- ARGV: 1 session
-- Replies: ID, epoch ('' for an empty space), 1 if the session is renewed in it, else 0
local id, epoch, at = unpack(call('HMGET', META, 'id', 'epoch', 'at:' .. ARGV[1]))
return {id or '', epoch or '', at and epoch and sub(at, 1, #epoch + 1) == epoch .. ' ' and 1 or 0}
