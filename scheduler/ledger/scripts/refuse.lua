-- refuse ends, as failed, a run that cannot be processed: Redis refused its claim or its end, or
-- its record cannot be read. If the history of its job also refuses it, it is parked: it stays
-- outstanding, as failed, and nothing starts it; expire tries to move it into the history from time
-- to time.
-- ARGV: 1 run  2 n of the delivery of the refused claim, or ""  3 hold id of that claim or of
--       the attempt, or "" or its token  4 reason  5 the same as JSON  6 tick (ms), or ""  7 queue,
--       or ""
-- Replies, with the pushes to do last: ended | parked, the reason | no: the run is not as its
--   caller knows it (any more)
local id, list = ARGV[1], {}
local run, broken = load(id)
if run then
  local claimed = run[R_STATE] == 'due' and run[R_N] == ARGV[2]
  local attempted = run[R_STATE] == 'running' and (run[R_HOLDER] == ARGV[3] or run[R_TOKEN] == ARGV[3])
  if not claimed and not attempted then return {'no', '', list} end
elseif not broken then
  return {'no', '', list}
end
local S, reason, why = space(), ARGV[4], blocked()

if broken then -- the rest of its record tells where its entries are
  local past = fields(broken)
  settled(id, {[R_SESSION] = past[R_SESSION] or '', [R_STOP] = ''})
  call('ZREM', READY, (past[R_QUEUE] or '') .. '\0' .. pad(past[R_SINCE]) .. '\0' .. id)
  -- If the record does not tell, its entry is among the oldest; if it is not, the claim that meets
  -- it removes it.
  local from, to = '-', '+'
  if ARGV[7] ~= '' then from, to = '[' .. ARGV[7] .. '\0', '(' .. ARGV[7] .. '\1' end
  local ready = call('ZRANGEBYLEX', READY, from, to, 'LIMIT', 0, 1000)
  for i = 1, #ready do
    if sub(ready[i], -#id - 1) == '\0' .. id then call('ZREM', READY, ready[i]) end
  end
  if past[R_HOLDER] and string.find(past[R_HOLDER], '.', 1, true) then S.free(past[R_HOLDER]) end
  run = fresh(string.match(id, '^[^@#]*'), ARGV[7], ARGV[6] == '' and 'enqueue' or 'schedule', ARGV[6])
  run[R_N] = tonumber(past[R_N]) and past[R_N] or ms
  -- so that final looks for all
  run[R_WAITS], run[R_DEADLINE] = S.ticket('+' .. id) and '1' or '', '0'
elseif run[R_STATE] == 'running' then
  settled(id, run)
  close(id, run, 'failed', ARGV[5])
  run[R_FAILS] = format('%d', run[R_FAILS] + 1)
end
if ARGV[3] ~= '' then S.free(ARGV[3]) end
if run[R_HOLDER] ~= '' then S.free(run[R_HOLDER]) end
if not why then
  final(S, id, run, 'failed', reason)
else
  undue(id, run)
  local ending = endingOf(run)
  call('ZREM', TIMER, id)
  if run[R_WAITS] == '1' then S.drop('+' .. id, 'f') end
  reason = reason .. '; parked, since the history of its job cannot be written: ' .. why
  run[R_STATE], run[R_REASON], run[R_FINISHED], run[R_WAITS] = 'failed', reason, ms, ''
  save(id, run)
  call('ZADD', LATE, format('%.0f', now + 60000), id)
  local args, definition, byname = apart(call('HGET', BODY, id) or '')
  local _, marked = unmarked(args)
  if marked then
    tell(run[R_JOB], resolve(definition, byname), 'failed', {messageOf(id, run, 'failed', ending, call('HGET', LOG, id) or '')})
  end
end
S.settle()
offered(S, list)
return {why and 'parked' or 'ended', reason, list}
