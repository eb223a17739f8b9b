-- enqueue records a requested run. An id that is outstanding, in the history or remembered exists
-- already, and nothing changes.
-- ARGV: 1 job  2 run id  3 queue  4 trigger: enqueue | hand  5 start not before (server ms; 0: now)
--       6 or this many ms from now (0: now)  7 ms for which the id is remembered (0: not beyond the
--       history)  8 arguments (JSON)  9 definition, as embody takes it  10 ms that it waits for its
--       bundle, or ""  11 what happens to it then  12 limits of its holds
--       13 entry for the audit, or ""  14 the run from which it was made, or ""
--       15 the trace context of the request, after a blank, or ""  16... items
-- Replies: created, n (0 while it is scheduled), state | exists, its state ("" when only the id is
--   remembered)
local job, id = ARGV[1], ARGV[2]
local there = load(id)
if there then return {'exists', there[R_STATE]} end
there = call('HGET', HIST, id)
if there then return {'exists', string.match(there, R_MATCH[[(STATE)]])} end
local remembered = call('ZSCORE', IDS, id)
if remembered and tonumber(remembered) > now then return {'exists', ''} end

checkBodies(ARGV[9])
local parent = childOf(ARGV[14], id, ARGV[13])
if ARGV[7] ~= '0' then
  forget(100)
  call('ZADD', IDS, format('%.0f', now + ARGV[7]), id)
end
audit(ARGV[13])
local run = fresh(job, ARGV[3], ARGV[4], '')
run[R_PATIENCE], run[R_ONBUSY], run[R_LIMITS] = ARGV[10], ARGV[11], ARGV[12]
run[R_BY] = parent .. ARGV[15]
for i = 16, #ARGV do run[R_ITEMS + i - 16] = ARGV[i] end
embody(id, ARGV[8], ARGV[9])
call('ZADD', OPEN, '0', job .. '\0' .. pad(0) .. '\0' .. id)
local at = math.max(tonumber(ARGV[5]), now + ARGV[6])
if at > now then
  run[R_STATE], run[R_AT] = 'scheduled', format('%.0f', at)
  call('ZADD', TIMER, run[R_AT], id)
  save(id, run)
else
  due(id, run)
end
return {'created', run[R_N], run[R_STATE]}
