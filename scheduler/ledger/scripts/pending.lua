-- pending notes that a live process still has these pushes to do, so that none of them is repeated
-- for a while.
-- ARGV: runs
-- Replies: how many of them have a push that is not confirmed
local known = 0
for i = 1, #ARGV do
  if call('ZSCORE', PUSH, ARGV[i]) then
    call('ZADD', PUSH, ms, ARGV[i])
    known = known + 1
  end
end
return known
