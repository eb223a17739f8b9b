-- notify makes the desk look for work, as after an offer. If the desk is not alive, all live
-- sessions are notified: the space does not know which of them can do the work.
-- ARGV: none
-- Replies: the number of sessions notified
local desk = call('HGET', META, 'desk')
if not desk or not ends(desk) then return notifyAll('o', 200) end
notify(desk, 'o')
return 1
