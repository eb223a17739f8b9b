-- cancel ends a run that has not started, or waits for its next attempt, and asks the worker of a
-- running one to stop it.
-- ARGV: 1 run  2 reason  3 history: runs  4 history: ms  5 entry for the audit
-- Replies, with the pushes to do last: canceled | asked (also when it was asked before) | over, its
--   final state | none
local id = ARGV[1]
local run, list = load(id), {}
if not run then
  local past = call('HGET', HIST, id)
  if not past then return {'none', '', list} end
  return {'over', string.match(past, R_MATCH[[(STATE)]]), list}
end
check()
local S, reply = space(), 'asked'
if cancel(S, id, run, ARGV[2]) then
  reply = 'canceled'
  trim(tonumber(ARGV[3]), tonumber(ARGV[4]))
end
audit(ARGV[5])
S.settle()
offered(S, list)
return {reply, run[R_STATE], list}
