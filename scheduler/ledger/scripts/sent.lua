-- sent lists deliveries that were confirmed some time ago and have not led to a claim, the oldest
-- first.
-- ARGV: 1 how many at most  2 ms since they were last known to be in the queue, at least
-- Replies: how many deliveries are confirmed in all; those to look up (id, n, queue); runs whose
--   record cannot be read
-- A run that cannot be read stays listed until it is ended. An entry without a due run is removed.
local look, broken, gone = {}, {}, {}
local ids = call('ZRANGEBYSCORE', SENT, '-inf', format('%.0f', now - ARGV[2]), 'LIMIT', '0', ARGV[1])
local records = #ids > 0 and call('HMGET', RUN, unpack(ids)) or {}
for i = 1, #ids do
  local n, queue = string.match(records[i] or '', R_MATCH[[STATE=due (N=%d+) JOB (QUEUE) TRIGGER]])
  if n then
    local k = #look
    look[k + 1], look[k + 2], look[k + 3] = ids[i], n, queue
  else
    local _, text = load(ids[i])
    if text then broken[#broken + 1] = ids[i] else gone[#gone + 1] = ids[i] end
  end
end
if #gone > 0 then call('ZREM', SENT, unpack(gone)) end
return {call('ZCARD', SENT), look, broken}
