-- confirm notes that the deliveries of runs are known to be in the queue now.
-- ARGV: pairs of run and n
-- Replies: how many of them were still the run's own
local n = 0
for i = 1, #ARGV, 2 do
  local id = ARGV[i]
  local run = load(id)
  if run and run[STATE] == 'due' and run[N] == ARGV[i + 1] then
    call('ZREM', PUSH, id)
    call('ZADD', SENT, ms, id)
    n = n + 1
  end
end
return n
