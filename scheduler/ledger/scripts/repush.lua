-- repush takes the next n for runs with deliveries that are lost, or were never pushed. ARGV: 1 1:
-- only those with a push that is still not confirmed, else 0  2... pairs of run and n of that
--       delivery
-- Replies: the pushes to do (id, n, queue), none for a run that is not due under that n
local list = {}
for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  local run = load(id)
  if run and run[R_STATE] == 'due' and run[R_N] == ARGV[i + 1] and (ARGV[1] == '0' or call('ZSCORE', PUSH, id)) then
    due(id, run)
    pushes(list, id, run)
  end
end
return list
