-- place tells which space this is, and up to which epoch a session has said what it holds.
-- ARGV: 1 session
-- Replies: id, epoch ('' for an empty space), whether the session is renewed in it: 1 or 0
local id, epoch, at = unpack(call('HMGET', META, 'id', 'epoch', 'at:' .. ARGV[1]))
return {id or '', epoch or '', at and epoch and sub(at, 1, #epoch + 1) == epoch .. ' ' and 1 or 0}
