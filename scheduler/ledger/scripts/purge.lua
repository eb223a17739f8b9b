-- purge removes the runs of one job's history that ended before an instant, the first ones first,
-- and the definitions that no run of the history has.
-- ARGV: 1 server ms  2 runs at most
-- Replies: how many it removed
check()
local old = call('ZRANGEBYSCORE', DONE, '-inf', '(' .. ARGV[1], 'LIMIT', '0', ARGV[2])
if #old > 0 then
  call('ZREM', DONE, unpack(old))
  call('HDEL', HIST, unpack(old))
  call('HDEL', OUTPUT, unpack(old))
end
tidyMade()
return {#old}
