-- rouse makes the desk look for work, as after an offer. If the desk is not alive, all live
-- sessions are notified: the space does not know which of them can do the work.
-- ARGV: none
-- Replies: the number of sessions notified
local desk = call('HGET', META, 'desk')
local alive = {'s' .. (desk or '')}
if not desk or not ends(desk) then alive = call('ZRANGEBYSCORE', EXP, '(' .. ms, '+inf', 'LIMIT', '0', 200) end
local told = 0
for i = 1, #alive do
  if sub(alive[i], 1, 1) == 's' then
    call('PUBLISH', sub(META, 1, -5) .. 'to:' .. sub(alive[i], 2), 'o')
    told = told + 1
  end
end
return told
