-- pause makes a job skip its ticks from now on, or lets them run again.
-- ARGV: 1 job  2 the actor and the reason; "" to resume  3 entry for the audit
-- Replies: done | already, and the name of the user | none: the job does not exist
local job, old = ARGV[1], call('HGET', FACTS, 'p' .. ARGV[1])
if call('HEXISTS', DEF, job) == 0 then return {'none'} end
if (ARGV[2] == '') == not old then return {'already', old or ''} end
if ARGV[2] == '' then
  call('HDEL', FACTS, 'p' .. job)
else
  call('HSET', FACTS, 'p' .. job, ARGV[2])
end
audit(ARGV[3])
return {'done'}
