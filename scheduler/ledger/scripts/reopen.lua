-- reopen makes an ended run due again, under its id, on request. Failures and crashes count anew;
-- the earlier attempts stay in its record, and the numbers of its deliveries continue.
-- ARGV: 1 run  2 tick (ms), or ""  3 job  4 queue  5 arguments (JSON)  6 definition, as embody
--       takes it  7 ms that it waits for its bundle, or ""  8 what happens to it then
--       9 limits of its holds  10 1 when it has the lock of its job  11 1: also when it succeeded,
--       and when the ledger has no record of it  12 entry for the audit  13 the run from which it
--       is made, if it is new, or ""  14... items
-- Replies: due, n | outstanding, its state | refused, its state | none
local id = ARGV[1]
local run = load(id)
if run then return {'outstanding', run[R_STATE]} end
checkBodies(ARGV[6])
local past, log = pastOf(id)
local anew = past == nil
if past then
  run = past
  local state = run[R_STATE]
  if run[R_UPTO] ~= '' or state == 'succeeded' and ARGV[11] ~= '1' then return {'refused', state} end
  -- A late success of its last attempt still counts, since the work is done; a run that succeeded
  -- is reopened to do the work once more.
  anew = state == 'succeeded'
  for i = R_ITEMS, #run do run[i] = nil end
  run[R_HOLDER] = ''
  call('HDEL', HIST, id)
  call('ZREM', DONE, id)
elseif ARGV[11] == '1' then
  run = fresh(ARGV[3], ARGV[4], ARGV[2] == '' and 'hand' or 'schedule', ARGV[2])
  run[R_N] = ms -- it may have had deliveries, whose numbers are no longer known
  run[R_BY] = childOf(ARGV[13], id, ARGV[12])
else
  return {'none'}
end
-- A token above all before it, or the worker of the last attempt would re-assert the end of that.
if anew then run[R_TOKEN] = draw(micros, 1) end
audit(ARGV[12])
local new = {R_NEW}
for i = R_SERIAL, R_ITEMS - 1 do run[i] = new[i] end
run[R_QUEUE], run[R_SINCE], run[R_FAILS], run[R_CRASHES], run[R_REASON], run[R_FINISHED] = ARGV[4], '', '0', '0', '', ''
run[R_CLOSED], run[R_AT], run[R_WAITS] = '1', '', ''
run[R_PATIENCE], run[R_ONBUSY], run[R_LIMITS], run[R_SERIAL] = ARGV[7], ARGV[8], ARGV[9], ARGV[10]
for i = 14, #ARGV do run[R_ITEMS + i - 14] = ARGV[i] end
embody(id, ARGV[5], ARGV[6])
if log ~= '' then call('HSET', LOG, id, log) end
call('ZADD', OPEN, '0', run[R_JOB] .. '\0' .. pad(run[R_TICK]) .. '\0' .. id)
due(id, run)
announce(id, '')
return {'due', run[R_N]}
