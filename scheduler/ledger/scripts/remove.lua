-- remove drops the remaining data of a job that no worker carries: its definitions, cursor, pauses
-- and history.
-- ARGV: 1 job  2 ms after which a definition that no worker carries gives way  3 entry for the
--       audit  4 ms for which the removal of the job is remembered
--       5... the fields that a job may have in totals, without the job
-- Replies: done | more: it must be called again | none: nothing of the job is left | carried: a
--   worker carries it | open, how many of its runs are outstanding
-- Polls report the removed job, without a cursor, until it is registered again: a worker that
-- carries it was only absent, and workers that know its cursor forget it.
local job = ARGV[1]
local _, versions = known(job)
-- After a loss of data, there may be a cursor or a history that workers have re-asserted, although
-- no worker carries the job.
if call('HEXISTS', DEF, job) == 0 and call('HEXISTS', CURSOR, job) == 0 and call('EXISTS', HIST, MADE) == 0 then
  return {'none'}
end
for i = 1, #versions do
  for c in string.gmatch(versions[i].configs, '[^,]+') do
    if tonumber(call('HGET', LEDGER, 'config:' .. c) or '0') >= now - ARGV[2] then return {'carried'} end
  end
end
local open = call('ZLEXCOUNT', OPEN, '[' .. job .. '\0', '(' .. job .. '\1')
if open > 0 then return {'open', open} end
check()
local old = call('ZRANGE', DONE, 0, 499)
if #old > 0 then
  call('ZREM', DONE, unpack(old))
  call('HDEL', HIST, unpack(old))
  call('HDEL', OUTPUT, unpack(old))
  -- Without a definition and a cursor, nothing but the history shows that there is such a job.
  if call('ZCARD', DONE) > 0 then return {'more'} end
end
tidyMade()
call('DEL', HIST)
call('DEL', OUTPUT)
call('DEL', MADE)
call('HDEL', FACTS, 'g' .. job, 'p' .. job, 'v' .. job, 's' .. job, 'm' .. job, 'n' .. job)
local totals = {}
for i = 5, #ARGV do totals[i - 4] = ARGV[i] .. US .. job end
redis.pcall('HDEL', TOTALS, unpack(totals))
redis.pcall('ZREM', ENDS, job)
call('HDEL', CURSOR, job)
call('HDEL', DEF, job)
call('ZADD', REV, call('HINCRBY', LEDGER, 'rev', 1), job)
-- For a worker that carries the job again: Redis has not lost it. This is remembered for as long as
-- a job that no worker carries is.
call('ZADD', IDS, format('%.0f', now + ARGV[4]), '\1' .. job)
call('ZREM', IDS, '\2' .. job)
audit(ARGV[3])
return {'done'}
