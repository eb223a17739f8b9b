-- revoke revokes a hold. The holder is asked, or its work is ended, or it is not waited for.
-- ARGV: 1 resource  2 token of the hold that is meant
--       3 a ask: its holder decides
--         t take: its work is ended; the lock passes on when it is released or its session has
--           ended
--         f force: the lock passes on at once; after a loss of data, when its holder has
--           re-asserted it
--       4 actor and reason, JSON  5 where to look, as in the reply more; '' at first
-- Replies:
--   done, hold, session, 1 if work is left that another call should do, else 0
--   stale, token: another hold has the resource (the first one, if it is shared)
--   free: no hold has it
--   more, from, token: the hold is not among those examined; token is the first one's
-- It identifies a grant by its token, so it never touches a later grant of the lock. Sending it
-- twice notifies the holder twice.
local LOOK = 200 -- holds that one script examines
local name, token, how, why, from = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] or ''
local owner, ids = call('HGET', OWN, name), {}
local kind = owner and sub(owner, 1, 1)
if from == '' and (kind == 'x' or kind == 'u') then ids[1] = sub(owner, 2) end
local mark, members = '~r' .. name .. '\0x', {}
if kind == 's' or kind == 'p' or kind == 'u' then
  members = call('ZRANGEBYLEX', IDX, from == '' and '[' .. mark or '(' .. mark .. from, '(' .. mark .. '\255', 'LIMIT', '0', LOOK)
  for i = 1, #members do ids[#ids + 1] = sub(members[i], #mark + 1) end
end
local id, hold, member, other
for i = 1, #ids do
  local record, at = held(ids[i])
  if record and record[H_TOKEN] == token then
    id, hold, member = ids[i], record, at
    break
  end
  other = other or record and record[H_TOKEN]
end
if not hold and #members == LOOK then return {'more', ids[#ids], other or ''} end
if not hold then return other and {'stale', other} or {'free'} end

local session = string.match(id, '^(.*)%.[^.]*$') or ''
local S = space()
-- A holder that has not re-asserted yet, after a loss of data, would assert this hold again. So the
-- hold is kept for it to receive the revocation. Nothing passes on before that anyway.
local epoch, said = unpack(call('HMGET', META, 'epoch', 'at:' .. session))
local unsaid = strange() or S.grace() and said and sub(said, 1, #epoch + 1) ~= epoch .. ' '
if how == 'f' and (hold[H_SESSION] == '@' or not unsaid) then
  S.free(id, 'v', true)
elseif hold[H_SESSION] ~= '@' and (how == 'f' or hold[H_ASKED] == '' or sub(hold[H_ASKED], 1, 1) == 'a') then
  call('ZREM', HOLD, member)
  hold[H_SESSION], hold[H_ASKED] = hold[H_SESSION] .. '\0' .. id, how .. why
  call('ZADD', HOLD, '0', concat(hold, US))
end
if ends(session) then S.inform(session, 'r', id, how, why) end
S.settle()
S.reap()
S.tell()
return {'done', id, session, S.more and 1 or 0}
