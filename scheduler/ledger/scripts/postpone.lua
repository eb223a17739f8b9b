-- postpone makes sweeps list runs later whose expiry Redis has refused. It uses no key of their
-- jobs, which may be the reason.
-- ARGV: 1 ms until then  2... runs
-- Replies: how many of them it has postponed
local at, n = format('%.0f', now + ARGV[1]), 0
for i = 2, #ARGV do n = n + call('ZADD', LATE, 'XX', 'CH', at, ARGV[i]) end
return {n}
