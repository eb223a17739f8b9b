-- register makes jobs known. A job that has no cursor yet starts at now; one that has goes on where it stopped.
-- ARGV: pairs of job and definition (JSON)
-- Replies: now (ms), the revision of the cursors before this, then each job's cursor (ms) in the order asked for
local out = {ms, call('HGET', LEDGER, 'rev') or '0'}
for i = 1, #ARGV, 2 do
  local job = ARGV[i]
  if call('HSETNX', CURSOR, job, ms) == 1 then
    call('ZADD', REV, call('HINCRBY', LEDGER, 'rev', 1), job)
  end
  call('HSET', DEF, job, ARGV[i + 1])
  call('HSETNX', FACTS, 'g' .. job, 'r' .. ms)
  out[#out + 1] = call('HGET', CURSOR, job)
end
return out
