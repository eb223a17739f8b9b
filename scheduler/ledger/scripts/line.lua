-- line writes one line for ticks of a job that no worker decided, or of which Redis has lost the
-- records.
-- ARGV: 1 job  2 id of the line; "": none is written  3 the first and 4 the last of the ticks (ms);
--       4 is "" for a single tick  5 final state  6 reason  7 session of the caller, or ""
--       8 the absence of the job (see m<job> in facts) that this settles; "": none
--       9 how many ticks it is for; 1 where that is not known
-- Replies: ok | settled: that is not the absence of the job any more, and nothing was written
local job, id, absence = ARGV[1], ARGV[2], ARGV[8]
if absence ~= '' then
  if call('HGET', FACTS, 'm' .. job) ~= absence then return {'settled'} end
  check()
  call('HDEL', FACTS, 'm' .. job)
  -- A single tick may have a record: a person has run it by hand in the meantime.
  if id == '' or call('HEXISTS', RUN, id) == 1 or call('HEXISTS', HIST, id) == 1 then return {'ok'} end
end
local run = fresh(job, '', 'schedule', ARGV[3])
run[R_STATE], run[R_REASON], run[R_FINISHED], run[R_BY], run[R_UPTO] = ARGV[5], ARGV[6], ms, ARGV[7], ARGV[4]
archive(id, run, '', 'null')
addTotal(ARGV[9], 't', ARGV[5], job)
return {'ok'}
